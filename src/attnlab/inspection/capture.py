"""Look inside the attention of any model while it runs.

Three kinds of attention are seen: the lab's own layers (through their readable path),
`torch.nn.MultiheadAttention`, and hand-written attention, whose softmax and matrix products, or call of
``scaled_dot_product_attention``, are watched. Softmax written out by hand (``exp`` and a division) and
attention over another axis than the last are not seen. Nothing is left on the model afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.inspection.watch import Captured, Recorder, WatchAttention
from attnlab.nn.attention import Attention

Forward = Callable[..., Any]


@contextlib.contextmanager
def capture(model: nn.Module) -> Iterator[dict[str, Captured]]:
    """Record what every attention of a model computes while the context is open.

    Parameters
    ----------
    model : nn.Module
        Any module; it need not be built from the lab's parts.

    Yields
    ------
    dict of str to Captured
        By qualified module name, in the order of the calls; filled while the model runs. The second
        call of the same module goes under ``name#2``, and so on; the model itself is ``"model"``.

    Notes
    -----
    The lab's layers run their readable path, so outputs agree with those outside the context to
    rounding; in training mode dropout may draw other random numbers. Weights are those before
    dropout where a fused call hides them. Without the context nothing is slower: no hook stays.

    Examples
    --------
    >>> layer = nn.MultiheadAttention(4, 2, batch_first=True)
    >>> x = torch.zeros(1, 3, 4)
    >>> with capture(layer) as trace:
    ...     _ = layer(x, x, x)
    >>> tuple(trace["model"].weights.shape)
    (1, 2, 3, 3)
    """
    recorder = Recorder()
    with contextlib.ExitStack() as stack:
        for name, module in model.named_modules():
            stack.enter_context(_attached(name or "model", module, recorder))
        stack.enter_context(_without_fast_path())
        stack.enter_context(WatchAttention(recorder))
        yield recorder.trace


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
    known = next((READERS[kind] for kind in type(module).__mro__ if kind in READERS), None)
    if known is None:
        yield
        return
    before = vars(module).get("forward")  # usually none: the class has it
    module.forward = partial(known, module, module.forward, recorder)
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@contextlib.contextmanager
def _without_fast_path() -> Iterator[None]:
    """Keep torch's encoder layers in Python, where they can be watched."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _read_lab_attention(
    module: Attention,
    _forward: Forward,
    recorder: Recorder,
    x: Tensor,
    memory: Tensor | None = None,
    padding: Tensor | None = None,
) -> Tensor:
    """Run one of the lab's layers on its readable path and record all of it."""
    with recorder.paused():
        seen = module.trace(x, memory, padding)
    names = [field.name for field in dataclasses.fields(Captured)]
    recorder.file(Captured(**{name: getattr(seen, name) for name in names}))
    return seen.output


@final
@dataclass(frozen=True)
class _TorchCall:
    """Hold the arguments of ``nn.MultiheadAttention`` by its own names."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False


def _read_torch_attention(
    _module: nn.MultiheadAttention, forward: Forward, recorder: Recorder, *positional: Any, **named: Any
) -> tuple[Tensor, Tensor | None]:
    """Run torch's layer with its weights kept per head, and answer what was asked for."""
    asked = _TorchCall(*positional, **named)
    arguments = vars(asked) | {"need_weights": True, "average_attn_weights": False}
    with recorder.paused():
        output, weights = forward(**arguments)
    per_head = weights if weights.ndim == 4 else weights[None]  # (batch, heads, q_len, k_len)
    recorder.file(Captured(weights=per_head))
    if not asked.need_weights:
        return output, None
    return output, weights.mean(dim=-3) if asked.average_attn_weights else weights


READERS: dict[type[nn.Module], Callable[..., Any]] = {
    Attention: _read_lab_attention,
    nn.MultiheadAttention: _read_torch_attention,
}
"""Layers that can say themselves what they compute; all others are watched."""
