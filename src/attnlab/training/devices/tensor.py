"""Heads and hidden features divided among ranks (tensor parallel): each computes all rows, and a part of every layer.

How a part of the model is divided it says itself, by a method ``take_share(number, count)``; what has none stays whole
on every rank. Experimental.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.distributed.tensor.placement_types import _StridedShard

from attnlab.core.errors import SpecError
from attnlab.core.sharded import local, whole
from attnlab.training.devices.ranks import AbstractRanks
from attnlab.training.devices.spread import AbstractSpread


@final
class TensorParallel(AbstractSpread):
    """Train a model of which every rank computes some heads and some hidden features.

    Parameters
    ----------
    model : nn.Module
        The model; it waits on the CPU, and is read again where something needs it whole.
    ranks : AbstractRanks
        Who trains it.
    device : torch.device
        Where to train.

    Raises
    ------
    SpecError
        If a part of it cannot be divided among the ranks, or none can.

    Notes
    -----
    The first linear map of a pair is cut by its outputs, the second by its inputs; one sum over ranks follows each
    pair forward, and one backward. Embeddings, norms and logits are whole on every rank, with equal gradients.

    References
    ----------
    .. [1] Shoeybi et al., 2019, arXiv:1909.08053, section 3.
    """

    def __init__(self, model: nn.Module, ranks: AbstractRanks, device: torch.device) -> None:
        self._model = model
        self.owner = self.called = copy.deepcopy(model)
        plan = take_shares(self.owner, ranks.number, ranks.count)
        parallelize_module(self.owner, init_device_mesh(device.type, (ranks.count,)), plan, src_data_rank=None)
        model.cpu()

    def exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """No context: what ranks add up is part of the model."""
        del last
        return contextlib.nullcontext()

    def updating(self) -> contextlib.AbstractContextManager[object]:
        """The context in which whole and divided parameters are updated together."""
        return implicit_replication()

    @torch.no_grad()
    def give_back(self) -> None:
        """Gather the weights, tensor by tensor."""
        trained = self.owner.state_dict()
        for name, tensor in self._model.state_dict().items():
            tensor.copy_(whole(trained[name]))


def take_shares(model: nn.Module, number: int, count: int) -> dict[str, ParallelStyle]:
    """Make of a model a rank's share of it, but for its linear maps; how these are divided, by name.

    Raises
    ------
    SpecError
        If a part of it cannot be divided among so many ranks, or none can.
    """
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        plan |= _styles(f"{name}." if name else "", module, number, count)
    if not plan:
        raise SpecError(f"sharding: tensor: {type(model).__name__} has no attention and no feed-forward to divide")
    return plan


def _styles(prefix: str, module: nn.Module, number: int, count: int) -> Mapping[str, ParallelStyle]:
    """How the linear maps of a part are divided, which becomes this rank's share of itself."""
    take_share: Callable[[int, int], dict[str, int]] | None = getattr(module, "take_share", None)
    if take_share is None or next(module.parameters(), None) is None:
        return {}
    try:
        maps = take_share(number, count)
    except SpecError as error:
        raise SpecError(f"sharding: tensor: {error} ({prefix.removesuffix('.') or 'the model'})") from None
    return {prefix + name: _STYLES.get(packs, PackedColumns)(packs) for name, packs in maps.items()}


@final
class PackedColumns(ParallelStyle):
    """Cut a linear map whose outputs are several packs of equal size, of which every rank has a part of each.

    Parameters
    ----------
    packs : int
        How many.

    Notes
    -----
    As `ColwiseParallel`, which would give whole packs to the first ranks. It takes a linear map, or a module that holds
    one as ``linear`` and may use its matrix in parts.
    """

    def __init__(self, packs: int) -> None:
        super().__init__()
        self._packs = packs

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        linear = module if isinstance(module, nn.Linear) else module.linear
        for name, parameter in list(linear.named_parameters(recurse=False)):  # type: ignore[union-attr]
            place = _StridedShard(0, split_factor=self._packs)
            held = distribute_tensor(parameter.detach(), device_mesh, [place], src_data_rank=None)
            linear.register_parameter(name, nn.Parameter(held, requires_grad=parameter.requires_grad))  # type: ignore[operator]
        linear.forward = lambda x: nn.functional.linear(x, *_held_of(linear))  # type: ignore[assignment, arg-type]
        module.register_forward_pre_hook(lambda _, inputs: tuple(_entering(one, device_mesh) for one in inputs))
        return module


_STYLES: Mapping[int, Callable[[int], ParallelStyle]] = {
    0: lambda _: RowwiseParallel(),
    1: lambda _: ColwiseParallel(),
}
"""By the number of packs that the rows of a linear map are; 0: its inputs are divided."""


def _held_of(linear: nn.Linear) -> Iterator[Tensor | None]:
    """What this rank holds of a linear map."""
    yield local(linear.weight)
    yield None if linear.bias is None else local(linear.bias)


def _entering(x: Any, mesh: DeviceMesh) -> Any:
    """What all ranks have alike, and each uses for its part: its gradient is the sum of theirs."""
    if not isinstance(x, Tensor):
        return x
    return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
