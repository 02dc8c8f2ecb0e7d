"""Look inside the attention of any model while it runs.

Three kinds of attention are seen: the lab's own layers (through their readable path; linear attention, which does
without its weights, pair by pair), `torch.nn.MultiheadAttention`, and hand-written attention, whose softmax and matrix
products, or call of ``scaled_dot_product_attention``, are watched. Softmax written out by hand (``exp`` and a division)
and attention over another axis than the last are not seen. Nothing is left on the model afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.inspection.maps import AttentionTrace
from attnlab.inspection.torch_attention import StepByStep
from attnlab.inspection.watch import Captured, Recorder, WatchAttention
from attnlab.nn.attention import Attention
from attnlab.nn.key_values import AbstractKeylessMixer
from attnlab.nn.recurrences import LinearAttention


@contextlib.contextmanager
def capture(model: nn.Module) -> Iterator[AttentionTrace]:
    """Record what every attention of a model computes while the context is open.

    Parameters
    ----------
    model : nn.Module
        Any module; it need not be built from the lab's parts.

    Yields
    ------
    AttentionTrace
        A dict of str to `Captured`: by qualified module name, in the order of the calls; filled while the model
        runs. The second call of the same module goes under ``name#2``, and so on; the model itself is ``"model"``. What
        mixes positions without weights (a recurrence, a convolution) is not in it; its text names these mixers.

    Notes
    -----
    The lab's layers run their readable path, so outputs agree with those outside the context to
    rounding; in training mode dropout may draw other random numbers. Where a fused call hides the weights, they are
    those before dropout. Weights of attention that an intervention changes are those that were used; scores, queries
    and keys inside of a fused call are shown as the call was given them. Without the context nothing is slower: no
    hook stays.

    Examples
    --------
    >>> layer = nn.MultiheadAttention(4, 2, batch_first=True)
    >>> x = torch.zeros(1, 3, 4)
    >>> with capture(layer) as trace:
    ...     _ = layer(x, x, x)
    >>> tuple(trace["model"].weights.shape)
    (1, 2, 3, 3)
    """
    trace = AttentionTrace(
        f"{name or 'model'} ({type(one).__name__})"
        for name, one in model.named_modules()
        if isinstance(one, AbstractKeylessMixer) and type(one) not in READERS
    )
    recorder = Recorder(trace)
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            stack.enter_context(_attached(name or "model", module, recorder))
        stack.enter_context(without_fast_path())
        stack.enter_context(recorder.watching())
        stack.enter_context(WatchAttention(recorder))
        yield trace


@contextlib.contextmanager
def _attached(name: str, module: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Track when a module runs, and let a known attention layer report by itself."""
    hooks = (
        module.register_forward_pre_hook(lambda *_: recorder.enter(name)),
        module.register_forward_hook(lambda _module, _inputs, output: recorder.leave(output), always_call=True),
    )
    try:
        with _replaced(module, recorder):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def _replaced(module: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Put a reporting `forward` in the place of a known attention layer's own."""
    known = next((READERS[kind] for kind in READERS if type(module).forward is kind.forward), None)
    if known is None:
        yield
        return
    before = vars(module).get("forward")  # usually none: the class has it
    module.forward = known(module, recorder)
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Keep torch's encoder layers in Python, where they can be watched."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@final
class _LabAttention:
    """Stand in the place of the `forward` of one of the lab's layers: run its readable path and record all of it."""

    def __init__(self, module: Attention | LinearAttention, recorder: Recorder) -> None:
        self.module = module
        self.recorder = recorder

    def __call__(self, x: Tensor, memory: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        with self.recorder.paused():
            seen = self.module.trace(x, memory, padding)
        names = [field.name for field in dataclasses.fields(Captured)]
        self.recorder.file(Captured(**{name: getattr(seen, name) for name in names}))
        return seen.output


READERS: dict[type[nn.Module], Callable[..., Any]] = {
    Attention: _LabAttention,
    LinearAttention: _LabAttention,
    nn.MultiheadAttention: StepByStep,
}
"""Layers that can say themselves what they compute; all others are watched."""
