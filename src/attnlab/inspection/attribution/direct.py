"""Split a logit exactly over what writes into the residual stream.

Everything happens at one position: the stream there is a sum of vectors, and each is followed to the logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.inspection.attribution.calls import Call, Record, is_like, logit_of, record, same
from attnlab.inspection.drawing.pieces import bars, drawn
from attnlab.nn.block import Wiring

Vector = Float[Tensor, "batch 1 d_model"]
Parts = dict[str, Vector]

MOST_SUBLAYERS = 3
"""What a layer adds to the stream in one go: of attention, attention to another sequence, and feed-forward."""
ROUNDING = 16
"""Times the relative precision of the number format: what sums of the same numbers in other orders differ by."""
CLOSE = 1e-3  # much more than rounding, much less than what a module that is no norm does
LARGE = 1e3  # of a stream: so much larger than the epsilon of any norm that the epsilon does not show


@final
@dataclass(frozen=True)
class Attribution:
    """Hold what the parts of a model add to one logit, or to the difference of two.

    Parameters
    ----------
    parts : mapping of str to Tensor
        By name, (batch) each, in float64: ``embedding``, modules by their names, heads as ``NAME:2``, and what
        attention, norms and output add of themselves as ``NAME.bias``, where that is not zero.
    logit : Tensor
        What the model answered, (batch).
    """

    parts: Mapping[str, Float[Tensor, " batch"]]
    logit: Float[Tensor, " batch"]

    @property
    def remainder(self) -> Float[Tensor, " batch"]:
        """What the parts leave unexplained: rounding of the model's own number format."""
        return self.logit - sum(self.parts.values())

    def _repr_html_(self) -> str:
        """The parts of the logit of the first sequence, the largest first."""
        title = f"What adds up to the logit {self.logit[0].item():.3g}"
        return drawn(title, bars({name: part[0].item() for name, part in self.parts.items()})).html


@torch.no_grad()
def logit_attribution(
    model: nn.Module, *inputs: Any, position: int, token: int, against: int | None = None
) -> Attribution:
    """Split the logit of a token at a position exactly over everything that writes into the residual stream.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(*inputs)`` in evaluation mode, answers logits (batch, length, vocab_size), or an object that
        has them. Its layers stand in one list and hand on one stream.
    *inputs : Any
        What it is called with.
    position : int
        At which position of the output; of an encoder-decoder, of what is written.
    token : int
        Whose logit.
    against : int, optional
        A token whose logit is subtracted.

    Returns
    -------
    Attribution
        The parts and the logit, of each sequence of the batch.

    Raises
    ------
    ModuleError
        If there are no such layers, the stream goes through something within a layer that is neither a sum nor a norm,
        or through more than norms and a linear map behind the last one, or a number lies outside the output.

    Notes
    -----
    Direct logit attribution: norms are frozen at the scale they have in this call, which leaves a linear map from each
    part to the logit [1]_. Parts are what the last stack that leads to the output adds: tokens, positions, each
    sublayer, an attention's heads where what follows them is linear in each head (for `AttentionOverHeads` it is not:
    there the layer is one part), and biases. A layer without a residual path forgets all parts before its last
    sublayer, which then counts alone. What a part does through later layers is no part of its number. A literal block
    is refused: the ReLU behind its sum has no parts. So is a readout of a whole window.

    What a layer adds is found in the numbers of its modules, so modules of other people are split as well, as long as
    their layers add outputs of modules to the stream as they are. One more forward pass, with every module's input and
    output kept.

    References
    ----------
    .. [1] Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits", Transformer Circuits Thread.
    """
    seen = record(model, inputs)
    logit = logit_of(seen.answer, position, token, against)
    layers, _ = seen.layers()
    at = _At(range(layers[0].output.shape[-2])[position])
    *norms, output = _tail(seen, layers[-1])
    parts = _begin(seen, layers[0], at)
    for step in itertools.chain.from_iterable(_steps(seen, layer, at) for layer in layers):
        found = {name: vector for call in step.added for name, vector in _split(seen, call, at).items()}
        parts = (parts if step.residual else {}) | found
        parts = parts if step.norm is None else _normalized(parts, step.norm, at)
    for norm in norms:
        parts = _normalized(parts, norm, at)
    written, zero = output.exactly(), torch.zeros_like(at(output.input))
    bias = written(zero)
    numbers = {name: logit_of(written(vector) - bias, 0, token, against) for name, vector in parts.items()}
    result = Attribution(numbers | _bias(output, logit_of(bias, 0, token, against)), logit.double())
    rounding = torch.finfo(logit.dtype).eps ** 0.5 * sum(map(Tensor.abs, result.parts.values()))  # half of the digits
    if bool((result.remainder.abs() > rounding).any()):
        raise ModuleError(f"{output.name} leads to the logits by something else than a linear map: they have no parts")
    return result


@final
@dataclass(frozen=True)
class _At:
    """Take one position out of a sequence, in float64."""

    position: int

    def __call__(self, x: Float[Tensor, "*batch length d_model"]) -> Vector:
        return x[..., self.position : self.position + 1, :].double()


@final
@dataclass(frozen=True)
class _Step:
    """Say how a layer changes the stream in one go."""

    added: tuple[Call, ...]  # whose outputs are summed
    residual: bool  # whether the stream is part of the sum
    norm: Call | None  # what the sum goes through


def _begin(seen: Record, layer: Call, at: _At) -> Parts:
    """The stream before the first layer, split into tokens and positions where both can be told."""
    before = seen.calls[: layer.start]
    for call in before:
        if call.name.endswith("positions") and same(call.output, layer.input) and not call.changes_nothing:
            alone = at(call.exactly()(torch.zeros_like(call.input).double()))
            return {"embedding": at(layer.input) - alone, call.name: alone.clone()}
    size = layer.input.shape[-2:]  # (length, d_model); embeddings of another sequence, or of pairs, have another one
    tables = [call for call in before if isinstance(call.module, nn.Embedding) and call.output.shape[-2:] == size]
    summed = _summands(tables, layer.input, None, at)
    if len(summed) > 1:
        return {call.name: at(call.output).expand_as(at(layer.input)) for call in summed}
    return {"embedding": at(layer.input)}


def _tail(seen: Record, layer: Call) -> list[Call]:
    """The norms behind the last layer, and the map to the logits."""
    tail = [call for call in seen.after(layer, whole=False) if not call.changes_nothing]
    strange = [call.name for call in tail[:-1] if not _is_norm(call)]
    if strange or not tail or not same(tail[-1].output, seen.answer):
        raise ModuleError(
            f"between the last layer and the logits stands {strange[0] if strange else 'more than modules'}; "
            "a logit has parts only where norms and one linear map lead to it"
        )
    return tail


def _steps(seen: Record, layer: Call, at: _At) -> Iterator[_Step]:
    """Yield how a layer changes the stream, from its input to its output."""
    inside = seen.within(layer)
    residual = all(call.module.residual for call in inside if isinstance(call.module, Wiring))
    writers = [
        replace(call, output=call.output.reshape(layer.output.shape))  # some layers flatten batch and length
        for call in inside
        if is_like(call.output, layer.output) and not isinstance(call.module, Wiring) and not call.changes_nothing
    ]
    x, begin = layer.input, layer.start
    while not same(x, layer.output):
        left = [call for call in writers if call.start > begin]
        step = _next_step(left, x, layer.output, residual=residual, at=at)
        if step is None:
            raise ModuleError(
                f"{layer.name} ({type(layer.module).__name__}) changes the stream by more than sums of what its "
                "modules return and norms, so a logit has no parts; attribute to inputs by integrated_gradients"
            )
        yield step
        x, begin = (layer.output, layer.stop) if step.norm is None else (step.norm.output, step.norm.start)


def _next_step(writers: Sequence[Call], x: Tensor, end: Tensor, *, residual: bool, at: _At) -> _Step | None:
    """The sum that ends a layer, or else the first one that goes through a norm; a sum of one goes on where it can."""
    through: list[tuple[Tensor, Call | None]] = [
        (call.input, call) for call in writers if call.input.shape == end.shape
    ]
    goals = [(end, None), *through] if residual else [*through, (end, None)]
    for goal, norm in goals:
        earlier = [call for call in writers if norm is None or call.stop <= norm.start]
        added = _summands(earlier, goal, x if residual else None, at, most=MOST_SUBLAYERS if residual else 1)
        if added and (norm is None or _is_norm(norm)):
            return _Step(added, residual, norm)
    return None


def _summands(
    calls: Sequence[Call], goal: Tensor, x: Tensor | None, at: _At, most: int = MOST_SUBLAYERS
) -> tuple[Call, ...]:
    """The fewest calls, the outermost first, whose outputs and the stream add up to a sum; none where none do."""
    rest = [] if x is None else [at(x)]
    for count in range(1, most + 1):
        for chosen in itertools.combinations(calls, count):
            if _add_up([*rest, *(at(call.output) for call in chosen)], at(goal), torch.finfo(goal.dtype)):
                return chosen
    return ()


def _add_up(terms: Sequence[Tensor], goal: Tensor, numbers: torch.finfo) -> bool:
    """Whether terms are those of a sum, to rounding."""
    size = torch.as_tensor(sum(map(Tensor.abs, terms)))
    largest = size.amax(dim=-1, keepdim=True)  # a small feature may be what is left of large products
    return bool(((goal - sum(terms)).abs() <= ROUNDING * numbers.eps * largest).all())


def _split(seen: Record, call: Call, at: _At) -> Parts:
    """What one module adds: the heads of the attention in it, where they can be told, or all in one."""
    whole = {call.name: at(call.output)}
    attentions = [one for one in (call, *seen.within(call)) if one.name in seen.trace]
    heads = seen.trace[attentions[0].name].head_outputs if len(attentions) == 1 else None
    if heads is None:
        return whole
    (attention,) = attentions
    joined = _side_by_side(heads)
    for one in seen.within(call):
        if same(one.input, heads) or same(one.input, joined):
            lay_out = _side_by_side if same(one.input, joined) else torch.clone
            combine = one.exactly()
            bias = at(combine(lay_out(torch.zeros_like(heads).double())))
            alone = [_only(heads, head) for head in range(heads.shape[1])]
            shares = [at(combine(lay_out(head))) - bias for head in alone]
            if _add_up([*shares, bias], at(call.output), torch.finfo(heads.dtype)):
                named = {f"{attention.name}:{head}": share for head, share in enumerate(shares)}
                return named | _bias(attention, bias)
    return whole


def _side_by_side(heads: Float[Tensor, "batch heads length d_v"]) -> Float[Tensor, "batch length width"]:
    return heads.transpose(1, 2).flatten(2)


def _only(heads: Float[Tensor, "batch heads length d_v"], head: int) -> Float[Tensor, "batch heads length d_v"]:
    """The output of one head, with zeros for the others."""
    chosen = torch.arange(heads.shape[1], device=heads.device) == head
    return heads.double() * chosen[:, None, None]


def _bias(call: Call, vector: Tensor) -> dict[str, Tensor]:
    """What a module adds of itself, where that is anything."""
    return {f"{call.name}.bias": vector} if bool(vector.any()) else {}


def _is_norm(call: Call) -> bool:
    """Whether a module gives the same for a stream that is twice as large."""
    compute, x = call.exactly(), call.input.double()
    large = LARGE * x / x.square().mean(dim=-1, keepdim=True).sqrt()
    return torch.allclose(compute(large), compute(2 * large), rtol=CLOSE, atol=CLOSE)


def _normalized(parts: Parts, norm: Call, at: _At) -> Parts:
    """The parts of a stream behind a norm that keeps the scale it had, and its bias."""
    compute, x = norm.exactly(), at(norm.input)
    bias = compute(torch.zeros_like(x))
    size = x.square().mean(dim=-1, keepdim=True).sqrt()
    centers = torch.allclose(compute(x + size), compute(x), rtol=CLOSE, atol=CLOSE)  # layer norm does, RMS norm not

    def centered(vector: Vector) -> Vector:
        return vector - vector.mean(dim=-1, keepdim=True) if centers else vector

    gain = torch.where(centered(x) == 0, 0.0, (compute(x) - bias) / centered(x))
    return {name: gain * centered(vector) for name, vector in parts.items()} | _bias(norm, bias)
