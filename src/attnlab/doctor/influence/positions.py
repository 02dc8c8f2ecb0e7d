"""Check `positions`: whether order is visible, and whether what is there to show it does so, and rightly."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.constructors import named, signature_of
from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination, accepted_by
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.batch_independence import layout_meant
from attnlab.doctor.influence.differences import relative_change
from attnlab.doctor.influence.heads import check_heads_mixed
from attnlab.doctor.influence.influence import fields
from attnlab.doctor.influence.position_claims import Claims, claims_of, effect, names_position
from attnlab.doctor.influence.steady import is_steady
from attnlab.doctor.over_features import over_features
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.dependence import dependence_of, rounding
from attnlab.strangers.calling.sources import HANDED_ON

ID = "positions"
_HAVIV = "Haviv 2022, arXiv:2203.16634; Kazemnejad 2023, arXiv:2305.19466"
_VASWANI = "Vaswani 2017, arXiv:1706.03762, section 3.5"
_SU = "Su 2021 (rotary positions), arXiv:2104.09864, section 3.4"
_PRESS = "Press 2022 (ALiBi), arXiv:2108.12409, section 3"
_SHAW = "Shaw 2018 (relative positions), arXiv:1803.02155; Raffel 2020 (T5), arXiv:1910.10683, section 2.1"
_LIU = "Liu 2021 (Swin), arXiv:2103.14030, section 3.2"
_NO_EFFECT = "use what is built: add the positions to the input, or rotate q and k, or add the bias to the scores"
_ALIKE = "the same for every token: order stays invisible"
_ROTATE = "rotate q and k by the same angles, (x1 cos - x2 sin, x2 cos + x1 sin) at each position"

TEXTS: Mapping[str, FindingText] = {
    "no effect": FindingText(
        "error", "positions are built in {names}, but have no effect on the output.", _NO_EFFECT, _VASWANI
    ),
    "alike": FindingText(
        "error",
        f"{{what}} are {_ALIKE}.",
        "index the table by torch.arange(length) along the length axis; rotate by an angle that grows with position",
        _VASWANI,
    ),
    "along the batch": FindingText(
        "error",
        "{what} differ from sample to sample instead of from token to token: they are laid along the batch.",
        "with (batch, length, d_model) add pe[:, : x.size(1)], not pe[: x.size(0)]",
        _VASWANI,
    ),
    "rotated values": FindingText(
        "error",
        "the rotation is applied to the values too: what is read then depends on where it stands.",
        "rotate q and k alone",
        _SU,
    ),
    "one rotated": FindingText(
        "error",
        "only one of q and k is rotated ({which}), so scores know absolute places, not distances.",
        _ROTATE,
        _SU,
    ),
    "rotation": FindingText(
        "error", "the rotation does not make scores depend on the distance of two tokens alone.", _ROTATE, _SU
    ),
    "bias": FindingText(
        "error",
        "the position bias is no function of the distance between query and key.",
        "index the bias by key position minus query position",
        f"{_PRESS}; {_SHAW}",
    ),
    "sign": FindingText(
        "error",
        "the linear bias has the wrong sign: the farther a key is away, the more it is favoured.",
        "subtract slope times distance: bias = -slope * (query position - key position)",
        _PRESS,
    ),
    "behind": FindingText(
        "warning",
        "positions come behind its attention: no score and no value depends on them.",
        "add them to what enters the first layer, or rotate q and k, or add a bias to the scores",
        _VASWANI,
    ),
    "shared in a plane": FindingText(
        "error",
        "'{table}' has a row for every distance in a plane, and most are read for no pair: distances that differ share"
        " one.",
        "the row of a distance is (rows apart) * (2 * width - 1) + (columns apart), both counted from 0 on",
        _LIU,
    ),
    "visible": FindingText("info", "the order of its input is visible to it.", "", _HAVIV),
    "none": FindingText("info", "it has no positions, so {seen}.", "", _HAVIV),
}
"""What -> its text; braces are filled with what was measured."""

_BLOCKED = -1e4  # scores at or below this stand for a mask
_ROUNDING = 1e-4  # of the range of the scores: tables of sines are often kept in float32
_LOOKUPS = frozenset({"index", "index_select", "embedding"})
_CLASS_TOKENS = 2  # at most: one for the class, one for what a teacher says
_ROTARY = r"rotary|rope|freqs"
_RELATIVE = r"relative|\brel_|rel_(pos|bias|emb)"
_ALIBI = r"alibi"
_GIVEN = frozenset({"positions", "positions of each", "cos", "sin", "half cos", "half sin", "cos and sin", "turns"})
"""Arguments by which the caller tells positions."""


def check_positions(exam: Examination) -> Iterator[Finding]:
    """Find positions that are built or claimed without effect, or with the wrong one; say whether order is visible."""
    claims = claims_of(exam)
    order = _order(exam)
    if order is not None and order.batch_matters and layout_meant(exam) is not None:  # which layout is meant is asked
        return
    found = list(_errors(exam, claims, order)) or list(_sharing(exam))
    yield from found
    if not found and order is not None:
        yield from _fact(exam, order, own=claims.any or exam.convention.kind == "model" or not _mixes_neighbors(exam))


def _errors(exam: Examination, claims: Claims, order: _Order | None) -> Iterator[Finding]:
    """The first thing that is wrong with positions that are built or claimed."""
    if not claims.any:
        return
    dead = list(_without_effect(exam, claims))
    angles_told = any(argument.source == HANDED_ON for argument in exam.convention.arguments)  # maybe by the tokens
    wrong = [] if dead or order is None or angles_told else list(_wrong_scores(claims, order))
    if dead or wrong:
        yield from dead or wrong
    elif order is not None and (order.hidden or _pieces_alike(exam, claims, order)) and not _are_given(exam):
        asked_for = "" if claims.modules or claims.tensors else _asked_for(exam)
        yield from accepted_by([_same_for_all(order, claims)], asked_for, by="order is visible when it is built with")


def _sharing(exam: Examination) -> Iterator[Finding]:
    """The error for a table with a row for every distance in a plane, most of which no pair of positions reads."""
    side = math.isqrt(exam.convention.length)
    if exam.convention.any_length or side**2 != exam.convention.length:
        return
    tape, pairs = exam.usual_tape, exam.convention.length**2
    for event in (one for one in tape.events if one.call in _LOOKUPS):
        sizes = {name: len(one) for one, name in zip(event.inputs, event.parameters, strict=True) if name and one.ndim}
        table = next((name for name in sizes.keys() & tape.learned if sizes[name] == (2 * side - 1) ** 2), None)
        rows = next((one for one in event.inputs if one.dtype in (torch.int64, torch.int32)), None)
        if table is None or rows is None or rows.numel() != pairs:
            continue
        read = len(rows.unique())
        if 1 < read < sizes[table] / 2:
            evidence = f"{pairs} pairs read {read} of its {sizes[table]} rows, at the only length, "
            yield TEXTS["shared in a plane"].finding(ID, f"{evidence}{exam.convention.length}", {"table": table})
            return


def _asked_for(exam: Examination) -> str:
    """The argument of the constructor, off unless given, with which order is visible; nothing where there is none."""
    wanted = signature_of(type(exam.patient.module))
    usual = {name: exam.patient.arguments.get(name, one.default) for name, one in wanted.items()}
    off = [name for name, value in usual.items() if value is None or value is False]
    for name in (each for each in off if each not in named("causal", wanted)):
        value = usual[name] is False or exam.convention.length
        module = exam.another({name: value})
        if module is None:
            continue
        with contextlib.suppress(ModuleError):
            order = _order(Examination(replace(exam.patient, module=module), exam.convention, exam.options))
            if order is not None and not order.hidden:
                return f"{name}={value}"
    return ""


def _are_given(exam: Examination) -> bool:
    given = exam.convention.arguments
    return any(one.source in _GIVEN or (one.source == "constant" and names_position(one.parameter)) for one in given)


# Parts without effect


def _without_effect(exam: Examination, claims: Claims) -> Iterator[Finding]:
    """Yield parts that change nothing: all together, or a parameter or submodule by itself."""
    parts = [*claims.modules, *claims.tensors]
    if not parts:
        return
    dead = parts
    if effect(exam, tensors=claims.tensors, modules=claims.modules) > exam.tolerance:
        named = exam.patient.module.named_parameters()
        own = [name for name, one in named if name in claims.tensors and one.dim() > 1]  # a bias cancels in a softmax
        dead = [name for name in own if effect(exam, tensors=[name]) <= exam.tolerance]
        dead += [name for name in _leaves(exam, claims.modules) if effect(exam, modules=[name]) <= exam.tolerance]
    if dead:
        names = ", ".join(f"'{name}'" for name in _outermost(dead)[:4])
        evidence = "the output does not change when they are replaced by random numbers"
        yield TEXTS["no effect"].finding(ID, evidence, {"names": names})


def _leaves(exam: Examination, modules: Sequence[str]) -> list[str]:
    """Submodules for positions that hold no tensor that could be asked by itself."""
    named = dict(exam.patient.module.named_modules())
    return [name for name in modules if not any(True for _ in named[name].buffers())]


def _outermost(paths: list[str]) -> list[str]:
    """Paths without those that lie inside others."""
    return [path for path in dict.fromkeys(paths) if not any(path.startswith(f"{other}.") for other in paths)]


# Whether order is visible


@final
@dataclass(frozen=True)
class _Order:
    """What is seen of order when all tokens of a sequence are the same.

    With equal tokens nothing but positions can make outputs differ, or scores.
    """

    hidden: bool
    permuted: float | None
    attentions: tuple[TapedAttention, ...]
    batch_matters: bool
    flat: bool  # whether outputs at all positions are equal then; of a pooled output there is one

    @property
    def behind(self) -> bool:
        """Whether outputs differ then, and nothing that an attention reads."""
        same = (_is_constant(one) and _has_equal_rows(one.v) for one in self.attentions)
        return not self.flat and bool(self.attentions) and all(same)


def _order(exam: Examination) -> _Order | None:
    """What is seen of order, None where it cannot be told."""
    if not is_steady(exam):  # chance changes more than order does
        return None
    open_call = False if exam.convention.causal_means in {"mask", "flag"} else None
    x = exam.inputs(seed=62)
    same = x[:1, :1].expand_as(x).contiguous()
    tape = exam.tape(same)
    if not bool(torch.isfinite(tape.output).all()) or _sees_nothing(exam, x):
        return None
    dependence = dependence_of(tape, exam.convention)
    found = tuple(one for one in attentions(tape, exam.convention) if over_features(dependence, one) is None)
    batch_matters = _spread(tape.output, 0) > _ROUNDING * _scale(tape.output)
    flat = exam.convention.pooled or _spread(tape.output, 1) <= exam.tolerance * _scale(tape.output)
    permuted = _permuted(exam, x, open_call)
    if (permuted is not None and permuted > _ROUNDING) or (permuted is None and _swap_is_seen(exam, x, found)):
        return _Order(False, permuted, found, batch_matters, flat)
    if exam.convention.pooled:
        return None if permuted is None else _Order(True, permuted, found, batch_matters, flat)
    scores = [_is_constant(one) for one in found]
    if permuted is None and (not scores or None in scores):
        return None if flat else _Order(False, permuted, found, batch_matters, flat)
    return _Order(flat and all(scores), permuted, found, batch_matters, flat)


def _sees_nothing(exam: Examination, x: Tensor) -> bool:
    """Whether other inputs give the same: then nothing tells whether their order would be seen."""
    return relative_change(exam.run(x), exam.run(exam.change(x, slice(None)))) <= exam.tolerance


def _permuted(exam: Examination, x: Tensor, causal: bool | None) -> float | None:
    """How much more than the order of the outputs changes with that of the inputs, None if causal by itself."""
    if exam.convention.causal and causal is None:
        return None
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(63))
    before, after = exam.run(x, causal=causal), exam.run(x[:, order].contiguous(), causal=causal)
    before = before if exam.convention.pooled else before[:, order]
    return relative_change(before, after)


def _swap_is_seen(exam: Examination, x: Tensor, found: Sequence[TapedAttention]) -> bool:
    """Whether swapping the first two inputs changes the last output of a single causal attention.

    What a relative table multiplies may vanish where all tokens are equal. Through a second layer a causal mask alone
    shows order.
    """
    if len(found) != 1 or exam.convention.pooled:
        return False
    order = [1, 0, *range(2, x.shape[1])]
    before, after = exam.run(x)[:, -1], exam.run(x[:, order].contiguous())[:, -1]
    return relative_change(before, after) > _ROUNDING


def _spread(values: Tensor, axis: int) -> float:
    return float((values.amax(axis) - values.amin(axis)).max())


def _scale(values: Tensor) -> float:
    return max(float(values.abs().max()), 1e-30)


def _allowed(scores: Tensor) -> Tensor:
    return torch.isfinite(scores) & (scores > _BLOCKED)


def _is_constant(one: TapedAttention) -> bool | None:
    """Whether a query scores all keys alike; None where there are no scores to look at."""
    if one.scores is None:
        return None
    allowed = _allowed(one.scores)
    if not bool(allowed.any()):
        return None
    return _range(one.scores, allowed, 3) <= 1e-6 * max(1.0, float(one.scores[allowed].abs().max()))


def _pieces_alike(exam: Examination, claims: Claims, order: _Order) -> bool:
    """Whether pieces of the input, such as patches of an image, are given one vector of positions, and look alike.

    The order within a piece is seen, that of the pieces is not. Before them may be class tokens. What may tell them
    apart, such as a table or a convolution, is used elsewhere: of the values, or behind the attention.
    """
    tensors = [exam.patient.module.state_dict(keep_vars=True).get(path) for path in claims.tensors]
    pieces = {one.weights.shape[2] - first for one in order.attentions for first in range(_CLASS_TOKENS + 1)}
    one_vector = bool(tensors) and all(one is not None and _is_one_vector(one, pieces) for one in tensors)
    return one_vector and bool(order.attentions) and all(_is_of_pieces_alike(exam, one) for one in order.attentions)


def _is_one_vector(table: Tensor, rows: Container[int]) -> bool:
    """Whether a table has a single row, or equal ones that no training makes differ."""
    sizes = [size for size in table.shape if size > 1]
    if len(sizes) == 2 and sizes[0] in rows and not table.requires_grad:
        return _spread(table.squeeze(), 0) == 0.0
    return len(sizes) == 1 and sizes[0] not in rows


def _is_of_pieces_alike(exam: Examination, one: TapedAttention) -> bool:
    count, k_len = one.weights.shape[2:]
    if one.scores is None or count != k_len or count == exam.convention.length or count <= _CLASS_TOKENS + 1:
        return False
    pieces = replace(one, scores=one.scores[..., _CLASS_TOKENS:, _CLASS_TOKENS:], v=one.v[:, :, _CLASS_TOKENS:])
    return bool(_is_constant(pieces)) and _has_equal_rows(pieces.v)


def _same_for_all(order: _Order, claims: Claims) -> Finding:
    """The error of positions that do not tell tokens apart."""
    named = _outermost([*claims.modules, *claims.tensors])
    what = (
        f"the positions ({', '.join(named[:3])})"
        if named
        else f"the positions its text claims ('{claims.said.strip()}')"
    )
    evidence = "all tokens equal: outputs at all positions are equal"
    if not order.hidden:
        evidence = "all tokens equal: what the pieces of the input are scored by and read is equal"
    elif order.permuted is not None:
        evidence += f"; permuting the input permutes the output (difference {order.permuted:.1g})"
    return TEXTS["along the batch" if order.batch_matters else "alike"].finding(ID, evidence, {"what": what})


# Relative positions


def _wrong_scores(claims: Claims, order: _Order) -> Iterator[Finding]:
    """What is wrong with scores that must depend on the distance alone."""
    rotary, alibi = claims.of(_ROTARY), claims.of(_ALIBI)
    if not (rotary or alibi or claims.of(_RELATIVE)):
        return
    for one in order.attentions:
        if one.scores is None or one.scores.shape[2] != one.scores.shape[3]:
            continue
        if not _has_equal_rows(one.v):
            if rotary and _has_equal_sizes(one.v):
                evidence = "all tokens equal: the values differ from position to position in direction, not in size"
                yield TEXTS["rotated values"].finding(ID, evidence)
            return
        if order.hidden and not rotary:
            return
        finding = _not_relative(one.scores, rotary=rotary) or (_wrong_sign(one.scores) if alibi else None)
        if finding is not None:
            yield finding
            return


def _has_equal_rows(values: Float[Tensor, "batch heads length d_v"]) -> bool:
    return _spread(values, 2) <= 1e-6 * _scale(values)


def _has_equal_sizes(values: Float[Tensor, "batch heads length d_v"]) -> bool:
    return _spread(values.norm(dim=-1), 2) <= _ROUNDING * _scale(values)


def _not_relative(scores: Tensor, *, rotary: bool) -> Finding | None:
    """The error of scores that do not depend on the distance alone."""
    allowed = _allowed(scores)
    along_keys, along_queries = _range(scores, allowed, 3), _range(scores, allowed, 2)
    if max(along_keys, along_queries) <= rounding(scores):  # all scores are equal: there is no position in them
        return None
    own = scores.diagonal(dim1=2, dim2=3).unsqueeze(-1)
    relative = scores - torch.where(torch.isfinite(own), own, 0.0)  # what all keys of a query share has no effect
    unevenness, extent = _unevenness(relative, allowed)
    small = _ROUNDING * max(along_keys, along_queries)
    if not (rotary and along_keys <= small < along_queries):  # else what is left of the scores is rounding
        even = _ROUNDING * 10 * extent
        if unevenness <= even or any(_unevenness_in_a_grid(some, sides) <= even for some, sides in _grids(relative)):
            return None
    unevenness, extent = _unevenness(scores, allowed)
    kind, words = "rotation" if rotary else "bias", {}
    if rotary and min(along_keys, along_queries) <= small:
        kind = "one rotated"
        words = {"which": "q is rotated, k is not" if along_keys <= small else "k is rotated, q is not"}
    evidence = f"all tokens equal: scores of pairs at the same distance differ by up to {unevenness:.3g}, all scores by"
    return TEXTS[kind].finding(ID, f"{evidence} {extent:.3g}", words)


def _unevenness(scores: Tensor, allowed: Tensor) -> tuple[float, float]:
    """The largest difference of scores at one distance, and of all scores of a head."""
    length = scores.shape[-1]
    worst = 0.0
    for distance in range(-length + 2, length - 1):
        line, real = scores.diagonal(distance, 2, 3), allowed.diagonal(distance, 2, 3)  # (batch, heads, pairs)
        worst = max(worst, _range(line, real, 2))
    flat, real = scores.flatten(2), allowed.flatten(2)
    return worst, max(_range(flat, real, 2), 1e-30)


def _grids(scores: Tensor) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Yield scores of positions that may lie in a plane, then in a volume, the first one left out or not, and sides."""
    for axes, first in itertools.product((1, 2), (0, 1)):
        some = scores[..., first:, first:]
        parts = [size for size in range(2, some.shape[-1]) if some.shape[-1] % size == 0]
        yield from ((some, sides) for sides in itertools.product(parts, repeat=axes) if math.prod(sides) in parts)


def _unevenness_in_a_grid(scores: Tensor, sides: Sequence[int]) -> float:
    """The largest difference of scores of pairs that lie alike, so far apart along every side, and are not masked.

    It is that of the window and head where it is least: all tokens are equal and places are told to all heads alike, so
    that windows differ by a mask, which may be a small number. Where all scores are equal there is nothing to see.
    """
    place = torch.arange(scores.shape[-1])
    kind = torch.zeros(scores.shape[-2:], dtype=torch.long)
    for side in (*sides, scores.shape[-1] // math.prod(sides)):
        place, along = place // side, place % side
        kind = kind * 2 * side + along[:, None] - along[None] + side
    count = int(kind.max()) + 1
    kind = kind.flatten().expand(*scores.shape[:2], -1)  # of every pair: how it lies
    flat, blocked = scores.flatten(2), ~_allowed(scores).flatten(2)
    least = torch.full((*scores.shape[:2], count), -torch.inf, dtype=flat.dtype)
    high = least.scatter_reduce(2, kind, flat.masked_fill(blocked, -torch.inf), "amax")
    low = (-least).scatter_reduce(2, kind, flat.masked_fill(blocked, torch.inf), "amin")
    uneven = torch.where(torch.isfinite(high), high - low, 0.0).amax(2)
    seen, differ = (~blocked).sum(2), high.amax(2) - low.amin(2) > rounding(scores)
    telling = differ & (seen == seen[differ].max()) if bool(differ.any()) else ~differ
    return float(uneven[telling].min())


def _range(scores: Tensor, allowed: Tensor, axis: int) -> float:
    """The largest range of the scores that may be, along an axis."""
    high = scores.masked_fill(~allowed, -torch.inf).amax(axis)
    low = scores.masked_fill(~allowed, torch.inf).amin(axis)
    both = torch.isfinite(high) & torch.isfinite(low)
    return float((high - low)[both].max()) if bool(both.any()) else 0.0


def _wrong_sign(scores: Tensor) -> Finding | None:
    """The error of a linear bias that favours what is far away."""
    last = scores[..., -1, :]  # (batch, heads, k_len): the last query
    if not bool(_allowed(last).all()):
        return None
    if not bool((last[..., 0] > last[..., -1] + _ROUNDING).any()):
        return None
    evidence = f"all tokens equal: the last query scores the first key {float(last[0, 0, 0]):.3g}, itself"
    return TEXTS["sign"].finding(ID, f"{evidence} {float(last[0, 0, -1]):.3g}")


# The fact


def _fact(exam: Examination, order: _Order, *, own: bool) -> Iterator[Finding]:
    """Yield whether order is visible; a part of a model that has no positions of its `own` gets them with its input."""
    if own and order.behind and not any(check_heads_mixed(exam)):  # else what differs is which heads lie where
        evidence = "all tokens equal: outputs differ between positions, while all scores are equal, and all values"
        yield TEXTS["behind"].finding(ID, evidence)
        return
    if not order.hidden:
        evidence = "outputs or scores differ between positions although all tokens are equal, or when two are swapped"
        if order.permuted is not None and order.permuted > _ROUNDING:
            evidence = "permuting the input changes more than the order of the output"
            evidence += f" (by {order.permuted:.2g} of its size)"
        yield TEXTS["visible"].finding(ID, evidence)
        return
    evidence = "all tokens equal: outputs at all positions are equal, and so are all scores"
    if order.permuted is not None:
        kept = "leaves the output as it is (invariant" if exam.convention.pooled else "permutes the output (equivariant"
        evidence = f"permuting the input {kept}; difference {order.permuted:.1g} of its size)"
    yield TEXTS["none"].finding(ID, evidence, {"seen": _without_positions(exam)})


def _mixes_neighbors(exam: Examination) -> bool:
    """Whether a recurrence or a convolution over several places, which tell places apart, is a part of it."""
    parts = [*exam.patient.module.modules()]
    convolutions = (part for part in parts if isinstance(part, nn.modules.conv._ConvNd))
    recurrent = any(isinstance(part, nn.RNNBase) for part in parts)
    return recurrent or any(max(part.kernel_size) > 1 for part in convolutions)


def _without_positions(exam: Examination) -> str:
    """What of order is visible without positions: a mask shows some, one that hides the past shows more."""
    if not exam.convention.causal:
        return "order is invisible to it"
    last = fields(exam)[-1:]
    if last and last[0].count == last[0].length:
        return "order is invisible to it but for the causal mask, which leaks it (later positions see more)"
    return "nothing but its mask, through which a position sees a part of what came before, shows it order"
