"""Ask by gradients which inputs a logit hangs on: of any model, whatever is inside."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.modes import evaluating
from attnlab.core.sizes import require_positive
from attnlab.inspection.attribution.calls import answer_of, logit_of
from attnlab.inspection.drawings import draw_tokens

Embedded = Float[Tensor, "batch length *features"]
Compute = Callable[[Embedded], Float[Tensor, " batch"]]

STEPS = 32
CROWDING = 3
"""Power of the places at which gradients are taken: more of them near the baseline, where norms of little are steep."""


@final
@dataclass(frozen=True)
class InputAttribution:
    """Hold how much of a logit, or of the difference of two, goes back to each position of an input.

    Parameters
    ----------
    scores : Tensor
        A number for each position, (batch, length); positive where it raises the logit.
    change : Tensor
        The logit less that of the baseline, (batch): what the scores should add up to.
    """

    scores: Float[Tensor, "batch length"]
    change: Float[Tensor, " batch"]

    @property
    def error(self) -> Float[Tensor, " batch"]:
        """What the sum of the scores is too large by."""
        return self.scores.sum(dim=-1) - self.change

    def _repr_html_(self) -> str:
        """The scores of the first sequence, by position; `draw_tokens` has them by token."""
        return draw_tokens(self.scores[0]).html


def gradient_times_input(
    model: nn.Module, *inputs: Tensor, position: int, token: int, against: int | None = None, of: int = 0
) -> InputAttribution:
    """Multiply each position of an input by the gradient of a logit with respect to it.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(*inputs)`` in evaluation mode, answers logits (batch, length, vocab_size), or one answer per
        sequence, or an object that has them. Where the input is tokens, an ``nn.Embedding`` reads them.
    *inputs : Tensor
        What it is called with.
    position : int
        At which position of the output.
    token : int
        Whose logit.
    against : int, optional
        A token whose logit is subtracted.
    of : int, default 0
        Which of the inputs the logit is attributed to: of an encoder-decoder, 0 is what is read, 1 what is written.

    Returns
    -------
    InputAttribution
        A score for each position, and by how much the logit differs from that of an input of zeros.

    Raises
    ------
    ModuleError
        If no ``nn.Embedding`` reads the tokens, or a number lies outside the output.

    Notes
    -----
    ``sum_i x_i df/dx_i`` over the features of a position, of the embedded token where the input is tokens. Exact for a
    model that is linear in its input; elsewhere the scores need not add up to anything, and `error` says how far off
    they are. One forward and one backward pass.

    References
    ----------
    .. [1] Simonyan, Vedaldi, Zisserman, 2013, arXiv:1312.6034, section 3 (the gradient alone).
    """
    with _from_embedded(model, inputs, of, (position, token, against)) as (x, compute):
        return _scored(x, torch.zeros_like(x), _gradient(compute, x), shape=inputs[of].shape[:2], compute=compute)


def integrated_gradients(
    model: nn.Module,
    *inputs: Tensor,
    position: int,
    token: int,
    against: int | None = None,
    of: int = 0,
    steps: int = STEPS,
    baseline: Literal["zero"] | Tensor = "zero",
) -> InputAttribution:
    """Average the gradient of a logit on the way from a baseline to the input, and multiply it by the way.

    Parameters
    ----------
    model : nn.Module
        As in `gradient_times_input`.
    *inputs : Tensor
        What it is called with.
    position : int
        At which position of the output.
    token : int
        Whose logit.
    against : int, optional
        A token whose logit is subtracted.
    of : int, default 0
        Which of the inputs the logit is attributed to.
    steps : int, default 32
        Points at which the gradient is taken.
    baseline : "zero" or Tensor
        Where the way begins: zeros, or what broadcasts to the embedded input, (batch, length, d_model); for an input of
        floats, to the input.

    Returns
    -------
    InputAttribution
        A score for each position, and by how much the logit differs from that of the baseline.

    Raises
    ------
    ModuleError
        If no ``nn.Embedding`` reads the tokens, or a number lies outside the output.
    SpecError
        If the number of steps is not positive, or the baseline is of another shape.

    Notes
    -----
    ``(x - b) int_0^1 df/dx (b + a (x - b)) da``, summed over the features of a position. The integral is taken by
    midpoints between ``a = (k / steps)^3``, so that its error falls with the square of the number of steps where the
    model is smooth; the scores add up to ``f(x) - f(b)`` [1]_ up to that, and `error` says by how much not. Only the
    embedded input moves: what the model adds to it, such as positions, stays. Where nothing is added, a norm of zeros
    is a jump as wide as its epsilon; if the error stays large, take a baseline that is some mean of embedded inputs.
    `steps` forward and backward passes, one at a time.

    References
    ----------
    .. [1] Sundararajan, Taly, Yan, 2017, arXiv:1703.01365, section 3 and proposition 1.
    """
    require_positive("steps", steps)
    with _from_embedded(model, inputs, of, (position, token, against)) as (x, compute):
        begin = torch.zeros_like(x) if isinstance(baseline, str) else _fitted(baseline, x)
        ends = [(step / steps) ** CROWDING for step in range(steps + 1)]
        gradient = torch.zeros_like(x)
        for since, to in itertools.pairwise(ends):
            gradient += (to - since) * _gradient(compute, begin + (since + to) / 2 * (x - begin))
        return _scored(x, begin, gradient, shape=inputs[of].shape[:2], compute=compute)


def _scored(
    x: Embedded, begin: Embedded, gradient: Embedded, *, shape: torch.Size, compute: Compute
) -> InputAttribution:
    with torch.no_grad():
        scores = ((x - begin) * gradient).reshape(*shape, -1).sum(dim=-1)
        return InputAttribution(scores, compute(x) - compute(begin))


def _gradient(compute: Compute, x: Embedded) -> Embedded:
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # whose RNNs have none in evaluation mode
        moved = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(compute(moved).sum(), moved, materialize_grads=True)
    return found


def _fitted(baseline: Tensor, x: Embedded) -> Embedded:
    try:
        return baseline.to(x).expand_as(x)
    except RuntimeError as error:
        raise SpecError(
            f"the baseline must broadcast to the embedded input, {tuple(x.shape)}; got {tuple(baseline.shape)}"
        ) from error


@contextlib.contextmanager
def _from_embedded(
    model: nn.Module, inputs: tuple[Tensor, ...], of: int, asked: tuple[int, int, int | None]
) -> Iterator[tuple[Embedded, Compute]]:
    """Yield an input as it is embedded, and the logit as a function of that."""
    if not 0 <= of < len(inputs):
        raise ModuleError(f"of must name one of the {len(inputs)} inputs by its number, from 0; got {of}")
    given = [one.clone() for one in inputs]  # apart in memory, so that it can be told which one is read
    reading = _Reading(given[of])

    def from_tokens(x: Embedded | None) -> Tensor:
        reading.instead = x
        return logit_of(answer_of(model(*given)), *asked)

    def from_floats(x: Embedded) -> Tensor:
        return logit_of(answer_of(model(*given[:of], x, *given[of + 1 :])), *asked)

    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluating(model))
        if given[of].is_floating_point():
            yield given[of], from_floats
            return
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                stack.callback(module.register_forward_hook(reading).remove)
        with torch.no_grad():
            from_tokens(None)
        if reading.found is None:
            raise ModuleError(
                f"no nn.Embedding of {type(model).__name__} reads input {of} as it is given; embed it yourself and "
                "call a model of floats"
            )
        yield reading.found, from_tokens


@final
class _Reading:
    """Know what the first embedding that reads some tokens makes of them, and put something in the place of that."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.module: nn.Module | None = None
        self.found: Tensor | None = None
        self.instead: Tensor | None = None

    def __call__(self, module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        asked = given[0]
        reads = asked.data_ptr() == self.tokens.data_ptr() and asked.numel() == self.tokens.numel()
        if not reads or self.module not in (None, module):
            return output
        if self.found is None:
            self.module, self.found = module, output
        return output if self.instead is None else self.instead
