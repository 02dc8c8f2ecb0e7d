"""Count the memory that autograd keeps between the forward and the backward pass."""

from __future__ import annotations

from types import TracebackType
from typing import final

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from attnlab.inspection.standins import FusedAttention, FusedRecurrence


@final
class KeptBytes:
    """Add up, while open as a context, the bytes that operations keep for the backward pass.

    Parameters
    ----------
    model : nn.Module
        Its parameters and buffers do not count: they are there anyway.

    Notes
    -----
    Tensors that share their memory count once. Nothing is computed on the ``meta`` device.

    Examples
    --------
    >>> import torch
    >>> kept = KeptBytes(nn.Identity())
    >>> with kept:
    ...     _ = torch.ones(3, requires_grad=True).exp()
    >>> kept.total()
    12
    """

    def __init__(self, model: nn.Module) -> None:
        own = [*model.parameters(), *model.buffers()]
        self._own = {_storage(tensor) for tensor in own}
        self._kept: dict[int, Tensor] = {}  # the tensors stay alive, so that no address is used again
        self._hooks = saved_tensors_hooks(self._keep, lambda tensor: tensor)
        self._stand_ins = (FusedAttention(), FusedRecurrence())

    def __enter__(self) -> KeptBytes:
        for context in (self._hooks, *self._stand_ins):
            context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for context in (*reversed(self._stand_ins), self._hooks):
            context.__exit__(kind, error, traceback)

    def total(self) -> int:
        """The bytes kept so far."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._kept.values())

    def _keep(self, tensor: Tensor) -> Tensor:
        address = _storage(tensor)
        if address not in self._own:
            self._kept[address] = tensor
        return tensor


def _storage(tensor: Tensor) -> int:
    """What identifies the memory behind a tensor, on the meta device too."""
    return tensor.untyped_storage()._cdata
