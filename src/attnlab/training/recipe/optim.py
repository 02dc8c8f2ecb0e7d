"""Optimizers by name, behind one small object that a checkpoint can save and restore.

Weight decay acts on matrices only (parameters with two axes or more); norms and biases are never decayed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from attnlab.core.errors import RunError, SpecError
from attnlab.core.sharded import placed_like

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MATRIX_AXES = 2
"""A parameter with at least this many axes is a matrix: decayed, and perhaps Muon's."""

INPUT_WORDS = ("embed", "position")
"""Names of parameters that are tables of inputs rather than hidden matrices."""


@final
class OptimizerSet:
    """Step one or several torch optimizers as one, and give their state as named tensors.

    Parameters
    ----------
    members : mapping of str to torch.optim.Optimizer
        The optimizers; each parameter belongs to one of them.
    """

    def __init__(self, members: Mapping[str, torch.optim.Optimizer]) -> None:
        self.members = dict(members)

    def set_rate(self, lr: float) -> None:
        """Set the learning rate of every parameter."""
        for optimizer in self.members.values():
            for group in optimizer.param_groups:
                group["lr"] = lr

    def rate(self) -> float:
        """The learning rate that was set last."""
        return float(next(iter(self.members.values())).param_groups[0]["lr"])

    def step(self) -> None:
        """Update all parameters from their gradients."""
        for optimizer in self.members.values():
            optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for optimizer in self.members.values():
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All state under ``<optimizer>.<parameter index>.<key>``."""
        return {
            f"{name}.{index}.{key}": value
            for name, optimizer in self.members.items()
            for index, entries in optimizer.state_dict()["state"].items()
            for key, value in entries.items()
            if value is not None
        }

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter under ``<optimizer>.<parameter index>``."""
        return {
            f"{name}.{index}": parameter
            for name, optimizer in self.members.items()
            for index, parameter in enumerate(one for group in optimizer.param_groups for one in group["params"])
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_tensors` returned."""
        like = self.parameters()
        states: dict[str, dict[int, dict[str, Tensor]]] = {name: {} for name in self.members}
        for full_name, tensor in tensors.items():
            name, index, key = full_name.split(".", 2)
            if name not in states:
                raise RunError(f"the checkpoint holds the state of an optimizer '{name}' that this run does not use")
            states[name].setdefault(int(index), {})[key] = placed_like(tensor, like[f"{name}.{index}"])
        for name, optimizer in self.members.items():
            optimizer.load_state_dict({"state": states[name], "param_groups": optimizer.state_dict()["param_groups"]})


class AbstractOptimizer(ABC):
    """Describe an optimizer before there is a model to optimize."""

    @abstractmethod
    def over(self, model: nn.Module, lr: float, weight_decay: float) -> OptimizerSet:
        """The optimizer over a model's trainable parameters."""


@final
class AdamW(AbstractOptimizer):
    """Adam with decoupled weight decay.

    Parameters
    ----------
    betas : sequence of float
        Decay of the running means of gradient and squared gradient.
    eps : float
        Added to the root of the second mean.

    Raises
    ------
    SpecError
        If `betas` are not two numbers in [0, 1).

    Notes
    -----
    Uses torch's fused kernel: 0.75 ms for 0.8 M parameters on one measured CPU, where the kernel per
    list of tensors took 3.1 ms. The second beta is 0.99, not torch's 0.999, because runs here have hundreds
    or thousands of steps. Time and memory: two numbers per parameter.

    References
    ----------
    .. [1] Loshchilov, Hutter, 2019, arXiv:1711.05101, algorithm 2.
    """

    def __init__(self, betas: Sequence[float] = (0.9, 0.99), eps: float = 1e-8) -> None:
        self.betas = _two_betas(betas)
        self.eps = eps

    def over(self, model: nn.Module, lr: float, weight_decay: float) -> OptimizerSet:
        """AdamW over all trainable parameters."""
        return OptimizerSet({"adamw": self.torch_adamw(_trainable(model), lr, weight_decay)})

    def torch_adamw(self, parameters: Sequence[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
        """Torch's AdamW over the given parameters, decaying the matrices among them."""
        import torch

        groups = _decay_groups(parameters, weight_decay)
        return torch.optim.AdamW(groups, lr=lr, betas=self.betas, eps=self.eps, fused=_can_fuse(parameters))


@final
class Adam(AbstractOptimizer):
    """Adam, whose weight decay goes through its means: with a weight decay of 0 it is `AdamW`.

    Parameters
    ----------
    betas : sequence of float
        Decay of the running means of gradient and squared gradient; torch's by default, which differ from `AdamW`'s
        here.
    eps : float
        Added to the root of the second mean.

    Raises
    ------
    SpecError
        If `betas` are not two numbers in [0, 1).

    Notes
    -----
    Weight decay is added to the gradient, as torch does it, so that it is divided by the root of the second mean as
    well. Time and memory: as `AdamW`.

    References
    ----------
    .. [1] Kingma, Ba, 2015, arXiv:1412.6980, algorithm 1.
    """

    def __init__(self, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        self.betas = _two_betas(betas)
        self.eps = eps

    def over(self, model: nn.Module, lr: float, weight_decay: float) -> OptimizerSet:
        """Adam over all trainable parameters."""
        import torch

        parameters = _trainable(model)
        groups, fused = _decay_groups(parameters, weight_decay), _can_fuse(parameters)
        return OptimizerSet({"adam": torch.optim.Adam(groups, lr=lr, betas=self.betas, eps=self.eps, fused=fused)})


@final
class Sgd(AbstractOptimizer):
    """Stochastic gradient descent with momentum.

    Parameters
    ----------
    momentum : float
        Fraction of the last update kept, in [0, 1).
    nesterov : bool
        True looks ahead along the momentum.

    Raises
    ------
    SpecError
        If `momentum` lies outside [0, 1), or is 0 with `nesterov`.

    Notes
    -----
    ``b = momentum b + g; w = w - lr b``. Weight decay is added to the gradient, as torch does it. Memory: one
    number per parameter.

    References
    ----------
    .. [1] Sutskever, Martens, Dahl, Hinton, 2013, "On the importance of initialization and momentum in deep learning".
    """

    def __init__(self, momentum: float = 0.9, nesterov: bool = False) -> None:
        if not 0.0 <= momentum < 1.0:
            raise SpecError(f"'momentum' must lie in [0, 1); got {momentum!r}")
        if nesterov and momentum == 0.0:
            raise SpecError("'nesterov' needs a 'momentum' above 0")
        self.momentum = momentum
        self.nesterov = nesterov

    def over(self, model: nn.Module, lr: float, weight_decay: float) -> OptimizerSet:
        """SGD over all trainable parameters."""
        import torch

        groups = _decay_groups(_trainable(model), weight_decay)
        return OptimizerSet({"sgd": torch.optim.SGD(groups, lr=lr, momentum=self.momentum, nesterov=self.nesterov)})


@final
class Muon(AbstractOptimizer):
    """Orthogonalized momentum for hidden matrices, AdamW for everything else.

    Parameters
    ----------
    momentum : float
        Fraction of the last update kept.
    betas : sequence of float
        AdamW's, for embeddings, positions, the output layer, vectors and kernels with more than two axes.

    Raises
    ------
    SpecError
        If `momentum` lies outside [0, 1) or `betas` are not two numbers in [0, 1).

    Notes
    -----
    A matrix is hidden if it has exactly two axes, is no embedding (by its module or by "embed" or "position" in
    its name) and is not the last layer of the model. Updates are scaled to the root mean square of AdamW's [2]_,
    so that one learning rate serves both. Memory: one number per parameter of a hidden matrix, two elsewhere.

    References
    ----------
    .. [1] Jordan et al., 2024, "Muon: an optimizer for hidden layers in neural networks".
    .. [2] Liu et al., 2025, arXiv:2502.16982, section 2.2.
    """

    def __init__(self, momentum: float = 0.95, betas: Sequence[float] = (0.9, 0.99)) -> None:
        if not 0.0 <= momentum < 1.0:
            raise SpecError(f"'momentum' must lie in [0, 1); got {momentum!r}")
        self.momentum = momentum
        self.rest = AdamW(betas)

    def over(self, model: nn.Module, lr: float, weight_decay: float) -> OptimizerSet:
        """Muon over the hidden matrices and AdamW over the rest."""
        from attnlab.training.recipe.muon import BatchedMuon

        hidden = hidden_matrices(model)
        if not hidden:
            raise SpecError("muon needs hidden matrices, and this model has none; use adamw")
        chosen = {id(parameter) for parameter in hidden}
        others = [parameter for parameter in _trainable(model) if id(parameter) not in chosen]
        muon = BatchedMuon(hidden, lr=lr, weight_decay=weight_decay, momentum=self.momentum)
        adamw = {"adamw": self.rest.torch_adamw(others, lr, weight_decay)} if others else {}
        return OptimizerSet({"muon": muon, **adamw})


@final
class Em(AbstractOptimizer):
    """Stepwise expectation maximization, for models whose parameters are counts, such as grammars.

    Parameters
    ----------
    power : float
        How fast older batches cease to be forgotten, in [0, 1].
    times : float
        What the learning rate is multiplied by, so that grammars can be tuned over the rates of networks.

    Raises
    ------
    SpecError
        If `power` lies outside [0, 1], `times` is not positive, or a weight is negative.

    Notes
    -----
    See `StepwiseEm`. Counts do not decay. Gradients are not to be clipped, which would change what is counted. Tables
    of embeddings beside the counts, such as weights of features, are left to `AdamW`, at the learning rate itself.

    References
    ----------
    .. [1] Liang, Klein, 2009, "Online EM for unsupervised models".
    """

    def __init__(self, power: float = 0.7, times: float = 1.0) -> None:
        if not 0.0 <= power <= 1.0:
            raise SpecError(f"'power' must lie in [0, 1]; got {power!r}")
        if not 0.0 < times < math.inf:
            raise SpecError(f"'times' must be a number above 0; got {times!r}")
        self.power, self.times = power, times

    def over(self, model: nn.Module, lr: float, weight_decay: float) -> OptimizerSet:
        """EM over all counts, none of which may be negative and none decays; `AdamW` over tables of embeddings."""
        from attnlab.training.recipe.em import StepwiseEm

        tables = _tables(model)
        weights, counts = ([one for one in _trainable(model) if (id(one) in tables) == of] for of in (True, False))
        if not counts or any(bool((one < 0).any()) for one in counts if not one.is_meta):
            raise SpecError(
                f"the optimizer 'em' learns counts, and {type(model).__name__} has "
                + ("negative weights" if counts else "none")
            )
        beside = {"adamw": AdamW().torch_adamw(weights, lr, weight_decay)} if weights else {}
        return OptimizerSet({"em": StepwiseEm(counts, lr=lr, power=self.power, times=self.times), **beside})


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable matrices between a model's embeddings and its last layer."""
    tables = _tables(model)
    with_parameters = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    last = {id(p) for module in with_parameters[-1:] for p in module.parameters(recurse=False)}
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and parameter.ndim == MATRIX_AXES
        and id(parameter) not in tables | last
        and not any(word in name for word in INPUT_WORDS)
    ]


def _tables(model: nn.Module) -> set[int]:
    """The identities of the weights of embeddings."""
    import torch

    return {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag)}


def _trainable(model: nn.Module) -> list[nn.Parameter]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise SpecError(f"{type(model).__name__} has no trainable parameters")
    return parameters


def _decay_groups(parameters: Sequence[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    matrices = [parameter for parameter in parameters if parameter.ndim >= MATRIX_AXES]
    vectors = [parameter for parameter in parameters if parameter.ndim < MATRIX_AXES]
    groups = ({"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def _can_fuse(parameters: Sequence[nn.Parameter]) -> bool:
    return all(parameter.is_floating_point() for parameter in parameters)


def _two_betas(betas: Sequence[float]) -> tuple[float, float]:
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise SpecError(f"'betas' must be two numbers in [0, 1); got {list(betas)!r}")
    return betas[0], betas[1]


OPTIMIZERS: dict[str, type[AbstractOptimizer]] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": Sgd,
    "muon": Muon,
    "em": Em,
}
