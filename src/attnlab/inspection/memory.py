"""Count the memory that autograd keeps between the forward and the backward pass.

The meta device has no fused kernels: it would run attention by its plain formula, which keeps the weights for the
backward pass, and would walk through a recurrence step by step, which takes minutes. Stand-ins take their place: same
shapes, same memory, no work. Their values mean nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from attnlab.inspection.fused import FusedCall

RECURRENT_CALLS = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
FLOPS_PER_MULTIPLY_ADD = 2


@contextlib.contextmanager
def kept_bytes(model: nn.Module) -> Iterator[Callable[[], int]]:
    """Add up, while open, the bytes that operations keep for the backward pass; yields a function that says how many.

    Notes
    -----
    Tensors that share their memory count once, the model's parameters and buffers not at all: they are there anyway.
    Nothing is computed on the ``meta`` device.

    Examples
    --------
    >>> with kept_bytes(nn.Identity()) as total:
    ...     _ = torch.ones(3, requires_grad=True).exp()
    >>> total()
    12
    """
    own = {_storage(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}  # the tensors stay alive, so that no address is used again

    def keep(tensor: Tensor) -> Tensor:
        address = _storage(tensor)
        if address not in own:
            kept[address] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), FusedAttention(), FusedRecurrence():
        yield lambda: sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def _storage(tensor: Tensor) -> int:
    """What identifies the memory behind a tensor, on the meta device too."""
    return tensor.untyped_storage()._cdata


@final
class FusedAttention(TorchFunctionMode):
    """Let attention keep what fused kernels keep, where no weights must be kept."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is nn.functional.scaled_dot_product_attention:
            call = FusedCall(*args, **named)
            if call.keeps_no_weights():
                return _AttentionStandIn.apply(call.query, call.key, call.value)
        return func(*args, **named)


@final
class _AttentionStandIn(torch.autograd.Function):
    """Keep q, k, v, the output and one normalizing number per query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = query.new_zeros(*query.shape[:-1], value.shape[-1])
        per_query = torch.empty(math.prod(query.shape[:-1]), dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, output, per_query)
        return output

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        raise NotImplementedError("memory is counted in the forward pass alone")


@final
class FusedRecurrence(TorchFunctionMode):
    """Run recurrent layers on the meta device as one operation, and count their FLOPs by formula.

    Notes
    -----
    Every matrix of a layer multiplies every step once in the forward and twice in the backward pass: an LSTM
    takes ``3 * 2 * 4 hidden (input + hidden)`` per step and direction. Left out are the gradients nobody asks
    for: of an input that is data, and of a first state that is zero. Packed sequences are not stood in for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") not in RECURRENT_CALLS or not _is_on_meta(args) or kwargs:
            return func(*args, **(kwargs or {}))
        call = _Recurrence.of(args)
        self.flops += call.flops()
        return _RecurrenceStandIn.apply(call, call.x, *call.states, *call.parameters)


def _is_on_meta(args: Sequence[Any]) -> bool:
    """Whether a recurrent call gets a plain (not packed) sequence without values."""
    return args[0].device.type == "meta" and isinstance(args[3], bool)  # packed calls have parameters there


@final
@dataclass(frozen=True)
class _Recurrence:
    """Hold what counts of the arguments of a recurrent call."""

    x: Tensor
    states: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...]
    n_cells: int  # layers times directions
    directions: int
    batch_first: bool

    @staticmethod
    def of(args: Sequence[Any]) -> _Recurrence:
        x, states, parameters, _biases, n_layers, _dropout, _train, bidirectional, batch_first = args
        directions = 2 if bidirectional else 1
        initial = (states,) if torch.is_tensor(states) else tuple(states)
        return _Recurrence(x, initial, tuple(parameters), n_layers * directions, directions, batch_first)

    def cells(self) -> list[list[Tensor]]:
        """The matrices of each layer and direction: from the input, from the state, projection."""
        matrices = [parameter for parameter in self.parameters if parameter.ndim == 2]
        size = len(matrices) // self.n_cells
        return [matrices[i * size : (i + 1) * size] for i in range(self.n_cells)]

    def flops(self) -> int:
        """The FLOPs of forward and backward."""
        steps = self.x.shape[1 if self.batch_first else 0]
        rows = self.x.shape[:2].numel()  # batch times steps
        cells = self.cells()
        products = 3 * rows * sum(matrix.numel() for cell in cells for matrix in cell)
        if not self.x.requires_grad:
            products -= rows * sum(cell[0].numel() for cell in cells[: self.directions])
        if not self.states[0].requires_grad:
            products -= rows // steps * sum(cell[1].numel() for cell in cells)
        return FLOPS_PER_MULTIPLY_ADD * products

    def kept(self) -> int:
        """How many numbers each step keeps inside: the gates and the new state of every cell."""
        return sum(cell[1].shape[0] + cell[1].shape[1] for cell in self.cells())


@final
class _RecurrenceStandIn(torch.autograd.Function):
    """Keep the input, the output, and the gates and states in between."""

    @staticmethod
    def forward(ctx: Any, call: _Recurrence, *tensors: Tensor) -> tuple[Tensor, ...]:
        output = call.x.new_zeros(*call.x.shape[:2], call.directions * call.states[0].shape[-1])
        inside = call.x.new_zeros(*call.x.shape[:2], call.kept())
        ctx.save_for_backward(*tensors, output, inside)
        return (output, *(torch.zeros_like(state) for state in call.states))

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> Any:
        tensors = ctx.saved_tensors[:-2]  # without output and inside
        return (None, *(torch.zeros_like(tensor) for tensor in tensors))
