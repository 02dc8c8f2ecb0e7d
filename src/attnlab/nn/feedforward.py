"""Feed-forward: what a block does at every position on its own, after positions were mixed."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.layouts import Activations
from attnlab.core.sharded import RankShare
from attnlab.core.sizes import check_positive
from attnlab.nn.kernels.dropout import Dropout
from attnlab.nn.kernels.gelu import gelu
from attnlab.nn.kernels.recording import is_recorded

EXPANSION = 4  # hidden width over d_model; source: Vaswani et al., 2017, section 3.3

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": gelu,
    "gelu-tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
"""What bends hidden features, by name."""


class AbstractFeedForward(nn.Module, ABC):
    """Map every position on its own.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    d_ff : int, optional
        Hidden width; ``4 d_model`` unless given.
    dropout : float
        Probability that a hidden feature is set to zero in training.
    bias : bool
        Whether the linear maps add a learned vector.

    Raises
    ------
    SpecError
        If a size is not positive, or the probability not in [0, 1).
    """

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, x: Activations) -> Activations:
        """The map of every position."""

    def take_share(self, number: int, count: int) -> dict[str, int]:
        """Become one of so many equal parts; as of `AbstractMixer`."""
        del number
        raise SpecError(f"{type(self).__name__} cannot be divided among {count} devices")

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions of every sequence, if these do not depend on the others."""


@final
class NoFeedForward(AbstractFeedForward):
    """Do nothing; a block leaves the whole sublayer out.

    Notes
    -----
    ``y = x``. No parameters.
    """

    def forward(self, x: Activations) -> Activations:
        """Return `x` as it is."""
        return x


class AbstractTwoLayers(AbstractFeedForward):
    """Widen and narrow with two linear maps, and bend what is between them."""

    def __init__(self, d_model: int, *, d_ff: int | None = None, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        d_ff = EXPANSION * d_model if d_ff is None else d_ff
        check_positive({"d_model": d_model, "d_ff": d_ff})
        self.widen = nn.Linear(d_model, d_ff, bias=bias)
        self.drop = Dropout(dropout)
        self.to_residual = nn.Linear(d_ff, d_model, bias=bias)

    @abstractmethod
    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""

    def forward(self, x: Activations) -> Activations:
        """The map of every position."""
        return self.to_residual(self.drop(self.activation(self.widen(x))))

    def take_share(self, number: int, count: int) -> dict[str, int]:
        """Become one of so many equal parts; as of `AbstractMixer`."""
        return _share_hidden(self.drop, self.to_residual, number, count) | {"widen": 1}


@final
class ReluFeedForward(AbstractTwoLayers):
    """Widen, rectify, and narrow again.

    Notes
    -----
    ``W_2 relu(W_1 x + b_1) + b_2``; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, equation 2.
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return F.relu(hidden)


@final
class SquaredReluFeedForward(AbstractTwoLayers):
    """Widen, rectify and square, and narrow again.

    Notes
    -----
    ``W_2 relu(W_1 x + b_1)^2 + b_2``; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] So et al., 2021, arXiv:2109.08668 ("squaring ReLU activations").
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return F.relu(hidden).square()


@final
class GeluFeedForward(AbstractTwoLayers):
    """Widen, bend smoothly, and narrow again.

    Notes
    -----
    ``W_2 gelu(W_1 x + b_1) + b_2`` with ``gelu(x) = x P(X <= x)``, X standard normal, exact rather than the
    approximation by tanh; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] Hendrycks, Gimpel, 2016, arXiv:1606.08415, section 2.
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return gelu(hidden)


@final
class GeluTanhFeedForward(AbstractTwoLayers):
    """Widen, bend smoothly by an approximation, and narrow again.

    Notes
    -----
    As `GeluFeedForward`, with ``gelu(x) = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`` [1]_: what GPT-2 was
    trained with.

    References
    ----------
    .. [1] Hendrycks, Gimpel, 2016, arXiv:1606.08415, section 2.
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return ACTIVATIONS["gelu-tanh"](hidden)


@final
class SiluFeedForward(AbstractTwoLayers):
    """Widen, let every feature gate itself, and narrow again.

    Notes
    -----
    ``W_2 silu(W_1 x + b_1) + b_2`` with ``silu(x) = x sigmoid(x)``; ``2 d_model d_ff`` weights.

    References
    ----------
    .. [1] Ramachandran, Zoph, Le, 2017, arXiv:1710.05941 ("Swish" with beta 1).
    """

    def activation(self, hidden: Tensor) -> Tensor:
        """Bend every hidden feature."""
        return F.silu(hidden)


@final
class GatedFeedForward(AbstractFeedForward):
    """Widen twice, let one half gate the other, and narrow again.

    Parameters
    ----------
    d_ff : int, optional
        Hidden width; unless given ``4 d_model * 2 // 3`` (rounded down), about as many weights as the others.
    gate : {"silu", "gelu", "gelu-tanh", "relu"}
        What bends the half that gates.

    Notes
    -----
    ``W_2 (silu(W_1 x + b_1) * (W_3 x + b_3)) + b_2``; ``3 d_model d_ff`` weights. With "silu" this is SwiGLU of [1]_,
    with "gelu" GEGLU. Differs from [1]_: with biases, like the other entries, unless `bias` is False.

    References
    ----------
    .. [1] Shazeer, 2020, arXiv:2002.05202, equation 6.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_ff: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        gate: Literal["silu", "gelu", "gelu-tanh", "relu"] = "silu",
    ) -> None:
        super().__init__()
        d_ff = EXPANSION * d_model * 2 // 3 if d_ff is None else d_ff
        check_positive({"d_model": d_model, "d_ff": d_ff})
        self.widen = nn.Linear(d_model, 2 * d_ff, bias=bias)
        self.gate = gate
        self.drop = Dropout(dropout)
        self.to_residual = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Activations) -> Activations:
        """The map of every position."""
        gate, value = self.widen(x).chunk(2, dim=-1)  # (batch, length, d_ff) each
        return self.to_residual(self.drop(ACTIVATIONS[self.gate](gate) * value))

    def take_share(self, number: int, count: int) -> dict[str, int]:
        """Become one of so many equal parts; as of `AbstractMixer`."""
        return _share_hidden(self.drop, self.to_residual, number, count) | {"widen": 2}


def _share_hidden(drop: Dropout, to_residual: nn.Linear, number: int, count: int) -> dict[str, int]:
    """RankShare hidden features among so many."""
    if to_residual.in_features % count:
        raise SpecError(f"{to_residual.in_features} hidden features cannot be divided among {count} devices")
    drop.share = RankShare(-1, number, count)
    return {"to_residual": 0}


class AbstractExperts(AbstractFeedForward):
    """Let every position choose a few of several feed-forwards, and add what they give by its trust in them.

    Parameters
    ----------
    n_experts : int, default 4
        Number of feed-forwards.
    top_k : int, default 2
        How many of them a position uses.
    d_ff : int, optional
        Hidden width of each; ``4 d_model`` unless given.
    balance : float, default 0.01
        Weight of what makes experts be used alike, in training; 0 leaves it out.
    path : {"sparse", "readable"}
        "sparse" computes every expert where it is chosen; "readable" everywhere, at n_experts / top_k times the cost,
        which seeds need to train as one program.

    Raises
    ------
    SpecError
        If a size is not positive, more experts are to be used than there are, or the weight is negative.

    Notes
    -----
    The gradient of the balancing loss joins the one of the training loss on the way back; the loss that is reported
    stays the task's. No expert has a limit of positions, so that no position depends on another; padding counts as any
    position.
    """

    def __init__(
        self,
        d_model: int,
        *,
        n_experts: int = 4,
        top_k: int = 2,
        d_ff: int | None = None,
        balance: float = 0.01,
        dropout: float = 0.0,
        path: Literal["sparse", "readable"] = "sparse",
    ) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "n_experts": n_experts, "top_k": top_k})
        if top_k > n_experts:
            raise SpecError(f"top_k must be at most n_experts ({n_experts}); got {top_k}")
        if balance < 0.0:
            raise SpecError(f"balance must not be negative; got {balance}")
        self.top_k, self.balance = top_k, balance
        self._use = self._where_chosen if path == "sparse" else self._everywhere
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(ReluFeedForward(d_model, d_ff=d_ff, dropout=dropout) for _ in range(n_experts))

    @abstractmethod
    def choose(
        self, x: Float[Tensor, "positions d_model"]
    ) -> tuple[Float[Tensor, "positions k"], Int[Tensor, "positions k"], Callable[[], Float[Tensor, ""]]]:
        """The trust of every position in the experts it chooses, their numbers, and how unevenly they are used."""

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Refuse: what balances experts, and noise, are of all positions."""
        del share, gather
        raise SpecError(
            f"{type(self).__name__} balances experts over all positions, and cannot be computed at some alone"
        )

    def forward(self, x: Activations) -> Activations:
        """The weighted sum of the chosen experts at every position."""
        flat = x.flatten(0, -2)
        trust, chosen, imbalance = self.choose(flat)
        use = self._everywhere if is_recorded() else self._use
        y = use(flat, trust.to(flat.dtype), chosen).view_as(x)
        if self.training and self.balance > 0.0 and torch.is_grad_enabled():
            y = _WithGradientOf.apply(y, self.balance * imbalance())
        return y

    def _everywhere(
        self,
        x: Float[Tensor, "positions d_model"],
        trust: Float[Tensor, "positions k"],
        chosen: Int[Tensor, "positions k"],
    ) -> Float[Tensor, "positions d_model"]:
        """The sum over experts, those that are not chosen by weight 0."""
        weights = trust.new_zeros(x.shape[0], len(self.experts)).scatter(-1, chosen, trust)
        return torch.stack([expert(x) for expert in self.experts], dim=-1).matmul(weights[..., None])[..., 0]

    def _where_chosen(
        self,
        x: Float[Tensor, "positions d_model"],
        trust: Float[Tensor, "positions k"],
        chosen: Int[Tensor, "positions k"],
    ) -> Float[Tensor, "positions d_model"]:
        """The sum over experts, each computed at the positions that chose it."""
        order = chosen.flatten().argsort(stable=True)
        positions = order // self.top_k
        taken = x[positions]
        counts = [len(order), *[0] * (len(self.experts) - 1)]
        if not x.is_meta:  # there choices are not known; all for one expert have the same cost
            numbers = torch.arange(len(self.experts), device=x.device)
            counts = (chosen.flatten() == numbers[:, None]).sum(dim=-1).tolist()
        found = [expert(some) for expert, some in zip(self.experts, taken.split(counts), strict=True)]
        weighted = torch.cat(found) * trust.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, positions, weighted.to(x.dtype))


@final
class MixtureOfExperts(AbstractExperts):
    """Let every position choose experts by their probabilities.

    Notes
    -----
    ``y = sum_i g_i W_2i relu(W_1i x)`` over the `top_k` largest of ``p = softmax(W_r x)``, with g the chosen p divided
    by their sum; a single one is p itself [2]_, as its share would always be 1 and teach the router nothing. The
    load-balancing loss [2]_ is ``n sum_i f_i P_i``, with f the share of choices that fall on an
    expert and P its mean probability: 1 where all are used alike, n where one is. Differs from [1]_: no noise, and the
    newer balancing loss.

    References
    ----------
    .. [1] Shazeer et al., 2017, arXiv:1701.06538, section 2.
    .. [2] Fedus, Zoph, Shazeer, 2021, arXiv:2101.03961, equations 2 and 4 to 6.
    """

    def choose(
        self, x: Float[Tensor, "positions d_model"]
    ) -> tuple[Float[Tensor, "positions k"], Int[Tensor, "positions k"], Callable[[], Float[Tensor, ""]]]:
        """The trust of every position in the experts it chooses, their numbers, and how unevenly they are used."""
        probabilities = self.router(x).softmax(dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))
        trust, chosen = probabilities.topk(self.top_k, dim=-1)
        if self.top_k > 1:
            trust = trust / trust.sum(dim=-1, keepdim=True)
        return trust, chosen, lambda: load_imbalance(probabilities, chosen)


@final
class NoisyMixtureOfExperts(AbstractExperts):
    """Let every position choose experts by scores with noise, which in training lets it try others.

    Notes
    -----
    ``H = W_r x + e softplus(W_n x)``, e standard normal, in training; else ``H = W_r x``. ``y = sum_i g_i W_2i
    relu(W_1i x)`` over the `top_k` largest H, with g their softmax. What balances is ``CV(importance)^2 + CV(load)^2``
    over experts, with CV the standard deviation over the mean; the importance of an expert is the sum of its g over
    positions, its load the expected number of positions that choose it if the noise of its own score is drawn again.
    ``W_r`` and ``W_n`` begin at zero, where all experts are alike. At least one expert must be left out. Differs from
    [1]_: experts are one level deep, with biases, and both balancing losses have one weight.

    References
    ----------
    .. [1] Shazeer et al., 2017, arXiv:1701.06538, sections 2.1 and 4, appendix A.
    """

    def __init__(
        self,
        d_model: int,
        *,
        n_experts: int = 4,
        top_k: int = 2,
        d_ff: int | None = None,
        balance: float = 0.01,
        dropout: float = 0.0,
        path: Literal["sparse", "readable"] = "sparse",
    ) -> None:
        if top_k == n_experts:
            raise SpecError(
                f"top_k must be less than n_experts ({n_experts}), as noise chooses among them; got {top_k}"
            )
        sizes = {"n_experts": n_experts, "top_k": top_k, "d_ff": d_ff}
        super().__init__(d_model, **sizes, balance=balance, dropout=dropout, path=path)  # type: ignore[arg-type]
        self.noise = nn.Linear(d_model, n_experts, bias=False)
        nn.init.zeros_(self.router.weight)
        nn.init.zeros_(self.noise.weight)

    def choose(
        self, x: Float[Tensor, "positions d_model"]
    ) -> tuple[Float[Tensor, "positions k"], Int[Tensor, "positions k"], Callable[[], Float[Tensor, ""]]]:
        """The trust of every position in the experts it chooses, their numbers, and how unevenly they are used."""
        precise = torch.promote_types(x.dtype, torch.float32)
        clean = self.router(x).to(precise)
        spread = F.softplus(self.noise(x).to(precise))
        noisy = clean + torch.randn_like(clean) * spread if self.training else clean
        highest, ranked = noisy.topk(self.top_k + 1, dim=-1)
        chosen = ranked[:, :-1]
        trust = highest[:, :-1].softmax(dim=-1)

        def imbalance() -> Float[Tensor, ""]:
            none = torch.zeros_like(noisy)
            importance = none.scatter(-1, chosen, trust).sum(dim=0)
            is_chosen = none.scatter(-1, chosen, 1.0) > 0.0
            to_beat = torch.where(is_chosen, highest[:, -1:], highest[:, -2:-1])  # the k-th highest of the others
            load = torch.special.ndtr((clean - to_beat) / spread).sum(dim=0)
            return _uneven(importance) + _uneven(load)

        return trust, chosen, imbalance


def _uneven(amounts: Float[Tensor, " experts"]) -> Float[Tensor, ""]:
    """The squared coefficient of variation."""
    return amounts.var(correction=0) / amounts.mean().square()


def load_imbalance(
    probabilities: Float[Tensor, "positions experts"], chosen: Int[Tensor, "positions k"]
) -> Float[Tensor, ""]:
    """How unevenly experts are used; its gradient makes what is used too much less likely."""
    count = probabilities.shape[-1]
    used = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0 / chosen.shape[-1]).mean(dim=0)
    return count * (used * probabilities.mean(dim=0)).sum()


@final
class _WithGradientOf(torch.autograd.Function):
    """A tensor as it is; on the way back a scalar joins the loss."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, loss: Tensor) -> Tensor:
        """Return `y`."""
        del loss
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep the scalar, for its shape."""
        del output
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of `y`, and 1 for the scalar."""
        (loss,) = ctx.saved_tensors
        return gradients[0], torch.ones_like(loss)


FEEDFORWARDS: Mapping[str, Callable[..., AbstractFeedForward]] = {
    "none": NoFeedForward,
    "relu": ReluFeedForward,
    "squared-relu": SquaredReluFeedForward,
    "gelu": GeluFeedForward,
    "gelu-tanh": GeluTanhFeedForward,
    "silu": SiluFeedForward,
    "gated": GatedFeedForward,
    "mixture-of-experts": MixtureOfExperts,
    "noisy-mixture-of-experts": NoisyMixtureOfExperts,
}
