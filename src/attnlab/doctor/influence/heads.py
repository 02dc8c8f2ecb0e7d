"""Whether heads are split and merged rightly: rows of queries, keys, values and outputs are positions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnlab.core.constructors import named
from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination, accepted_by
from attnlab.doctor.findings import SCRAMBLED_HEADS, Finding, FindingText
from attnlab.doctor.influence.padded import with_own_memory
from attnlab.doctor.influence.steady import is_steady_when_fresh
from attnlab.doctor.over_features import has_unit_factors, over_features
from attnlab.doctor.turned_views import VIEWS_MOVE_NOTHING, scrambled_axes
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.dependence import Dependence, dependence_of, differs
from attnlab.inspection.tape.replay import replay
from attnlab.inspection.tape.tape import Change, Event, Tape
from attnlab.strangers.calling.layouts import BATCH_INSIDE, FILMS, SPLIT, STILLS
from attnlab.strangers.loading.sizes import pieces_of
from attnlab.strangers.said.topics import declared

_ID = "heads-mixed"
_XCIT = "Vaswani 2017, arXiv:1706.03762, section 3.2.1; over features on purpose: Ali 2021 (XCiT), arXiv:2106.09681"
_AINSLIE = "Ainslie 2023 (GQA), arXiv:2305.13245, section 2.2"
_LIU = "Liu 2021 (shifted windows), arXiv:2103.14030, section 3.2"
_SPLIT = "x.view(batch, length, n_heads, d_head).transpose(1, 2)"
_MERGE = "out.transpose(1, 2).reshape(batch, length, n_heads * d_head)"
_ACCEPT = "; if it is meant, accept it (--accept heads-mixed)"
_OVER_FEATURES = "Attention runs over the features instead of over the positions: features look at each other."
_POSITIONS = "sum the scores over features; for q, k, v of (batch, features, length): v @ (q.mT @ k).softmax(-1).mT"

_FEATURES = "attention over features"
_CHANNELS = frozenset({"channel", "channels", "variate", "variates"})
"""What the name of a class says that is no word for features in general."""

TEXTS: Mapping[str, FindingText] = {
    "over heads": FindingText(
        "error",
        "Attention runs over the heads of each position instead of over the positions.",
        f"exchange heads and positions first: {_SPLIT}{_ACCEPT}",
        VIEWS_MOVE_NOTHING,
    ),
    "over features": FindingText("error", _OVER_FEATURES, f"{_POSITIONS}{_ACCEPT}", _XCIT),
    "over features?": FindingText("warning", _OVER_FEATURES, f"{_POSITIONS}{_ACCEPT}", _XCIT, "set-up"),
    "samples": FindingText(
        "error",
        "Heads hold pieces of several samples: batch and heads are scrambled by a view.",
        f"transpose before you view: {_SPLIT}",
        VIEWS_MOVE_NOTHING,
    ),
    "split": FindingText(
        "error",
        "Splitting the heads scrambles {names}: their rows are not the positions of the input.",
        f"view, then transpose: {_SPLIT}",
        VIEWS_MOVE_NOTHING,
        called=SCRAMBLED_HEADS,
    ),
    "not turned": FindingText(
        "error",
        "Queries are multiplied by keys that are not transposed: scores are those of features, and sum over positions.",
        "transpose the keys, q @ k.transpose(-2, -1): as it stands it runs where the length is the width alone",
        "Vaswani 2017, arXiv:1706.03762, equation 1: queries times the transpose of the keys",
    ),
    "shared": FindingText(
        "warning",
        "Heads that share keys do not share values: one of both was repeated in another order.",
        f"repeat keys and values alike, x.repeat_interleave(n_heads // n_kv_heads, dim=1){_ACCEPT}",
        _AINSLIE,
    ),
    "exchange": FindingText(
        "error",
        "A view does not exchange positions and features: every number stays where it is, and both are scrambled.",
        "exchange axes by `permute` or `transpose`, and view afterwards",
        VIEWS_MOVE_NOTHING,
    ),
    "merge": FindingText(
        "error",
        "Merging the heads scrambles positions: an output is made of head outputs of other positions.",
        f"transpose, then reshape: {_MERGE}",
        VIEWS_MOVE_NOTHING,
        called=SCRAMBLED_HEADS,
    ),
    "laid elsewhere": FindingText(
        "error",
        "Windows are not laid back as they were cut: what a position asked for comes out at another one.",
        f"reverse after the attention what cut the windows: the same axes, torch.roll by +shift after -shift{_ACCEPT}",
        _LIU,
    ),
}
"""What -> its text; braces are filled with what was measured."""

_HEADS = 4  # where the class has one by default; none of the other sizes of an examination
_SINGLE = 0.9  # share of the elements that follow one sample alone, where nothing has mixed samples
_MOST_POSITIONS = 12  # replaced one after the other; neighbours, so that a shift shows as one
_FARTHEST = 1  # shift of rows against positions that still counts as none, as in a token shift
_ENOUGH = 0.6  # of the entries must follow their own position; a view without transpose reaches 2 / length or so
_COVERED = 0.7  # of the positions must be seen by each head

_TRANSLATING = frozenset(
    {
        *("_softmax", "_safe_softmax", "_log_softmax", "cumsum", "mean", "sum", "roll", "flip", "sort", "gather"),
        *("mkldnn_rnn_layer", "_fft_r2c", "amax", "max", "scatter", "index_select", "index", "avg_pool2d", "_fft_c2c"),
    }
)
"""Operations after which another position may be seen; the trace of a row ends there."""
_REORDERING = frozenset({"roll", "flip", "gather", "index", "index_select"})
"""Those of them by which windows are laid back."""
_CHOOSING = frozenset({"gather", "index", "index_select"})
"""Operations that choose rows: behind them a head holds the positions that it was given."""


def check_heads_mixed(exam: Examination) -> Iterator[Finding]:
    """Replace single positions and single rows, and look which rows of which heads change; and at views by name."""
    axes = next(scrambled_axes(exam, _ID), None)
    if axes is not None:
        yield axes
        return
    if not is_steady_when_fresh(exam):  # what chance changes follows no position
        return
    found = next((finding for each in _with_several_heads(exam) for finding in _mixed(each)), None)
    if found is not None:
        yield found


def _with_several_heads(exam: Examination) -> Iterator[Examination]:
    """The examination, and one of another instance with several heads where a single one could hide how it splits."""
    yield from with_own_memory(exam)
    asked_for = any(type(value) is int and value == 1 for value in exam.patient.arguments.values())
    if asked_for or max((found.n_heads for found in attentions(exam.usual_tape, exam.convention)), default=0) != 1:
        return
    module = exam.another({"n_heads": _HEADS})
    if module is None:
        return
    several = Examination(replace(exam.patient, module=module), exam.convention, exam.options)
    try:
        several.run(several.inputs())
    except ModuleError:  # another width: nothing can be said
        return
    yield several


def _mixed(exam: Examination) -> Iterator[Finding]:
    """The error of each attention that has one, then that of views anywhere."""
    tape = exam.usual_tape
    dependence = dependence_of(tape, exam.convention)
    yield from _of_attentions(exam, dependence)
    for event in tape.events:
        if _exchanges_by_view(dependence, event):
            where = f" in {event.where!r}" if event.where else ""
            evidence = f"{tuple(event.inputs[0].shape)} is viewed as {tuple(event.output.shape)}{where}"
            yield TEXTS["exchange"].finding(
                _ID, f"{evidence}; along its axis of {dependence.length} lie the positions of the input"
            )


def _exchanges_by_view(dependence: Dependence, event: Event) -> bool:
    """Whether what has its positions on one side of its features is viewed as if they were on the other."""
    if "view" not in event.call or min(event.inputs[0].dim(), event.output.dim()) < 3:
        return False
    (batch, *before), (other, *after), length = event.inputs[0].shape, event.output.shape, dependence.length
    features = math.prod(before) // length
    first = before[-1] == features == after[0] and math.prod(after[1:]) == length
    last = before[0] == features == after[-1] and math.prod(after[:-1]) == length
    square = after if first else before  # perhaps features last, too
    if first == last or (square[-1], math.prod(square[:-1])) == (features, length):
        return False
    if not batch == other == dependence.batch:
        return False
    if features == 1 or abs(features - length) <= 1:  # as where relative scores are skewed
        return False
    places = torch.arange(event.inputs[0].numel()).view(batch, 1, -1, features if first else length)
    rows = rows_of_operand(dependence, (event.index, 0), places if first else places.mT)
    return rows is not None and not rows.mixed


def _of_attentions(exam: Examination, dependence: Dependence) -> Iterator[Finding]:
    """The error of each attention that has one."""
    tape = exam.usual_tape
    for attention in attentions(tape, exam.convention):
        found = _over_heads(exam, attention) or _over_features(exam, dependence, attention)
        found = found or _samples_mixed(dependence, attention)
        found = found or _split(dependence, attention)
        if not _axes_are_alike(exam, dependence, attention):
            found = found or _merged(tape, dependence, attention) or _laid_elsewhere(tape, dependence, attention)
        found = found or _shared_unlike(attention)
        if found is not None:
            yield found


def _axes_are_alike(exam: Examination, dependence: Dependence, attention: TapedAttention) -> bool:
    """Whether nothing tells frames, rows and columns apart: of films, and where rows or columns of a square look."""
    layout, side = exam.convention.layout, math.isqrt(exam.convention.length)
    if layout not in STILLS or {*attention.weights.shape[2:]} != {side}:
        return layout in (*FILMS, *BATCH_INSIDE)
    first, beside, below = (_keys_hold(dependence, attention, position) for position in (0, 1, side))
    return not (first & beside and first & below)  # of a window both are


def _keys_hold(dependence: Dependence, attention: TapedAttention, position: int) -> set[int]:
    """The heads, of every window, row or column, one after the other, whose values hold a position."""
    event, number = attention.sources.values
    before = dependence.tape.events[event].inputs[number]
    changed = differs(before, dependence.with_position(position)[event].inputs[number])
    return {*changed.flatten()[attention.sources.value_places][0].flatten(1).any(1).nonzero().flatten().tolist()}


def _over_heads(exam: Examination, attention: TapedAttention) -> Finding | None:
    """The error for an attention in which heads, or features, of one position or row look at each other."""
    inputs = [one for one in exam.convention.arguments if one.source == "x"]
    if attention.along != "heads" or (exam.convention.layout in SPLIT and len(inputs) == 1):
        return None  # a single input of four axes may have them for anything
    _, count, q_len, k_len = attention.weights.shape
    arguments = exam.patient.arguments
    said = {arguments[name] for name in named("n_heads", arguments)}
    if k_len == 1 or (said and k_len not in said):  # nothing is looked at beside oneself; or something else than heads
        return None
    evidence = (
        f"weights{_in(attention)} are {q_len} x {k_len} for each of {count} positions; input and output have"
        f" {exam.convention.length} positions, and replacing one changes only its own row of the weights"
    )
    of_features = not said and k_len == exam.convention.d_in  # a head for each of them nobody has
    return TEXTS["over features" if of_features else "over heads"].finding(_ID, evidence)


def _over_features(exam: Examination, dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """What is said of an attention in which features look at each other; an error where nothing shows it is meant."""
    projected = over_features(dependence, attention)
    if projected is None:
        return None
    _, _, q_len, k_len = attention.weights.shape
    positions = "is a column of the values" if projected == "over features" else "changes all rows of the values"
    evidence = (
        f"weights{_in(attention)} are {q_len} x {k_len}; input and output have {dependence.length} positions, and each"
        f" {positions}, which were projected {projected}"
    )
    doubtful = projected == "over positions" or has_unit_factors(attention)
    found = TEXTS["over features?" if doubtful else "over features"].finding(_ID, evidence)
    named = pieces_of(type(exam.patient.module).__name__)
    title = declared(" ".join(named), _FEATURES) if _CHANNELS & {*named} else ""
    return next(accepted_by([found], title, by="its name says") if title else exam.as_meant([found], _FEATURES))


def _samples_mixed(dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """The error for heads that hold elements of several samples though no operation has mixed samples."""
    if attention.along != "unknown" or attention.weights.shape[3] != dependence.length:
        return None
    event, number = attention.sources.values
    before = dependence.tape.events[event].inputs[number]
    places = attention.sources.value_places
    changed = [
        differs(before, dependence.with_sample(sample)[event].inputs[number]).flatten()[places]
        for sample in range(dependence.batch)
    ]
    owners = torch.stack(changed).sum(0)  # (batch, heads, k_len, d_v)
    if float((owners == 1).double().mean()) < _SINGLE:  # something mixes samples: not the order of elements
        return None
    per_head = torch.stack([each.flatten(2).any(2) for each in changed]).sum(0)
    if int(per_head.max()) < 2:
        return None
    evidence = f"values{_in(attention)}: one head holds elements of {int(per_head.max())} of {dependence.batch} samples"
    return TEXTS["samples"].finding(_ID, evidence)


def _split(dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """The error for queries, keys or values whose rows are not the positions."""
    if attention.along != "positions" or attention.weights.shape[0] != dependence.batch:
        return None
    _, count, q_len, k_len = attention.weights.shape
    if q_len < k_len and count * q_len == dependence.length:  # windows, which share keys with those beside them
        return None
    pairing, sources = attention.sources.pairing, attention.sources
    found: dict[str, Rows | None] = {"values": rows_of_operand(dependence, sources.values, sources.value_places)}
    if pairing.queries is not None and pairing.query_places is not None:
        found["queries"] = rows_of_operand(dependence, pairing.queries, pairing.query_places)
    if pairing.keys is not None and pairing.key_places is not None:
        found["keys"] = rows_of_operand(dependence, pairing.keys, pairing.key_places)
    mixed = {name: rows for name, rows in found.items() if rows is not None and rows.mixed}
    if not mixed or _are_chosen(dependence, sources.values[0]):
        return None
    names, text = " and ".join(sorted(mixed)), "split"
    if names == "keys" and pairing.keys is not None and pairing.key_places is not None:
        turned = rows_of_operand(dependence, pairing.keys, pairing.key_places.mT)
        text = "split" if turned is None or turned.mixed else "not turned"
    return TEXTS[text].finding(_ID, _evidence(attention, *next(iter(mixed.items()))), {"names": names})


def _are_chosen(dependence: Dependence, values: int) -> bool:
    """Whether positions were chosen by their numbers before they became values, some more often than others.

    So sparse attention does; what only reorders them, or repeats heads, holds as much of each.
    """
    tape, positions = dependence.tape, tested_positions(dependence.length)
    for event in (one for one in tape.events[:values] if one.call in _CHOOSING and dependence.input_depends(one, 0)):
        if values not in tape.descendants(event.index):
            continue
        shares = set()
        for other in (dependence.with_position(position)[event.index] for position in positions):
            given = int(differs(event.inputs[0], other.inputs[0]).sum())
            shares |= {int(differs(event.output, other.output).sum()) / given} if given else set()
        if len(shares) > 1:
            return True
    return False


def _shared_unlike(attention: TapedAttention) -> Finding | None:
    """The warning for keys and values one of which was repeated whole, the other head by head.

    Keys and values that are shared in other ways are so on purpose: no call gives such an order by mistake.
    """
    if attention.k is None:
        return None
    keys, values = owned = _owners(attention.k), _owners(attention.v)
    heads, groups = len(keys), len(set(keys))
    each = heads // groups  # heads that share
    whole, by_head = [head % groups for head in range(heads)], [head // each * each for head in range(heads)]
    if whole == by_head or owned not in ((whole, by_head), (by_head, whole)):
        return None
    listed = " and ".join(
        f"{name} are those of heads {owners}" for name, owners in (("keys", keys), ("values", values))
    )
    return TEXTS["shared"].finding(_ID, f"{listed}{_in(attention)}, head after head")


def _owners(factors: Float[Tensor, "batch heads length features"]) -> list[int]:
    """Of each head the first head that has the same."""
    heads = list(factors.unbind(1))
    return [next(first for first, other in enumerate(heads) if torch.equal(other, head)) for head in heads]


def _merged(tape: Tape, dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """The error for outputs whose rows are not the queries."""
    if attention.along != "positions":
        return None
    rows = rows_of_output(tape, dependence, attention)
    if rows is None or not rows.mixed or _are_ranked(dependence, attention):
        return None
    return TEXTS["merge"].finding(_ID, _evidence(attention, "merged outputs", rows))


def _are_ranked(dependence: Dependence, attention: TapedAttention) -> bool:
    """Whether what stands in the positions decides which of them ask, and in which order: their rows are no places."""
    if attention.sources.pairing.queries is None:
        return False
    tape, (asking, _) = dependence.tape, attention.sources.pairing.queries
    choosing = (one for one in tape.events[:asking] if one.call in _CHOOSING and asking in tape.descendants(one.index))
    return any(dependence.input_depends(one, number) for one in choosing for number in range(1, len(one.inputs)))


def _laid_elsewhere(tape: Tape, dependence: Dependence, attention: TapedAttention) -> Finding | None:
    """The error for windows whose outputs come out at other positions than their queries came from.

    Where all are moved on by as much, or come out backwards, that is meant, unless they were so moved to be cut.
    """
    length = dependence.length
    found = list(_ways(tape, dependence, attention))
    moved = [(position, row) for position, _, row in found if position != row]
    if len(moved) <= (1 - _ENOUGH) * len(tested_positions(length)):
        return None
    cut = [(position, place) for position, place, _ in found]
    moved_to_be_cut = _is_one_move(cut, length) and any(position != place for position, place in cut)
    if _is_one_move([(position, row) for position, _, row in found], length) and not moved_to_be_cut:
        return None
    listed = ", ".join(f"of {position} at {row}" for position, row in moved[:3])
    return TEXTS["laid elsewhere"].finding(_ID, f"what comes of the query{_in(attention)} {listed} and so on")


def _is_one_move(moves: Sequence[tuple[int, int]], length: int) -> bool:
    """Whether all go equally far, round the end, or in reverse."""
    return any(len({(end + sign * start) % length for start, end in moves}) == 1 for sign in (-1, 1))


def _ways(tape: Tape, dependence: Dependence, attention: TapedAttention) -> Iterator[tuple[int, int, int]]:
    """Yield positions, where their queries lie when window stands after window, and where what comes of them ends.

    Ends where several positions are mixed before or behind the attention.
    """
    pairing, length = attention.sources.pairing, dependence.length
    batch, count, q_len, _ = attention.weights.shape  # heads of every window, one after the other
    if batch != dependence.batch or q_len == length or count * q_len % length:
        return
    behind = _behind(tape, dependence, attention, _REORDERING)
    ends = [event for event in behind if _has_positions(event.output, dependence.batch, length)][-1:]
    if not ends or pairing.queries is None or pairing.query_places is None:
        return
    event, number = pairing.queries
    before, n_heads = tape.events[event].inputs[number], count * q_len // length
    for position in tested_positions(length):
        after = dependence.with_position(position)[event].inputs[number]
        asking = differs(before, after).flatten()[pairing.query_places].any(3)  # (batch, heads, q_len)
        (output,) = _replayed(tape, _all_rows(attention, _rows_moved(asking)), ends)
        rows = _batch_first(differs(ends[0].output, output), dependence.batch, length).any(3)[0, 0].nonzero().flatten()
        if int(asking.sum()) != n_heads or len(rows) != 1:
            return
        head, row = asking[0].nonzero()[0].tolist()
        yield position, head // n_heads * q_len + row, int(rows)


def _rows_moved(rows: Bool[Tensor, "batch heads q_len"]) -> Callable[[Tensor], Tensor]:
    """A function that gives some rows other head outputs, in all heads."""

    def moved(outputs: Tensor) -> Tensor:
        return torch.where(rows[..., None], outputs + outputs.abs().max() + 1.0, outputs)

    return moved


def _evidence(attention: TapedAttention, name: str, rows: Rows) -> str:
    """What rows follow, in words."""
    evidence = (
        f"{name}{_in(attention)}: {rows.home:.0%} of the entries follow the position of their row, a head follows"
        f" {rows.coverage:.0%} of the positions (both must be 100%); {rows.example}"
    )
    return evidence + ("; other samples change too" if rows.foreign else "")


def _in(attention: TapedAttention) -> str:
    return f" in '{attention.where}'" if attention.where else ""


# How rows follow positions


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Say how the rows of a tensor follow positions."""

    home: float  # share of the entries that follow one position each, at one distance from their row; 1 is right
    coverage: float  # share of the positions that the head with the fewest follows, dead ones left out; 1 is right
    foreign: bool  # whether a position also changes other samples
    permuted: bool  # whether each head holds every position exactly once, in another order
    example: str  # what replacing one position changes

    @property
    def mixed(self) -> bool:
        """Whether heads or positions are scrambled."""
        return self.foreign or (not self.permuted and (self.home < _ENOUGH or self.coverage < _COVERED))


def tested_positions(length: int) -> range:
    """Neighbouring positions to replace, in the middle of the sequence."""
    count = min(length, _MOST_POSITIONS)
    first = (length - count) // 2
    return range(first, first + count)


def rows_of_operand(
    dependence: Dependence, operand: Operand, places: Int[Tensor, "batch heads rows features"]
) -> Rows | None:
    """How queries, keys or values follow the positions of the input."""
    if places.shape[2] != dependence.length:
        return None
    event, number = operand
    before = dependence.tape.events[event].inputs[number]
    positions = tested_positions(dependence.length)

    def changed_in(events: Sequence[Event]) -> Tensor:
        return differs(before, events[event].inputs[number]).flatten()[places]

    after = [changed_in(dependence.with_position(position)) for position in positions]
    own = [changed_in(dependence.with_sample(sample)) for sample in range(dependence.batch)]
    return _judged(after, own, positions)


def rows_of_output(tape: Tape, dependence: Dependence, attention: TapedAttention) -> Rows | None:
    """How what comes after an attention follows the rows of its head outputs.

    There may be more rows than positions, as where a class token is put before them. None where there are as many
    heads as rows, which no shape tells apart.
    """
    batch, heads, length, k_len = attention.weights.shape
    if heads == length:
        return None
    ends = _ends(tape, dependence, attention)
    more = length == k_len and length != batch
    if not ends or (length != dependence.length and not more) or batch != dependence.batch:
        return None
    positions = tested_positions(min(length, dependence.length))
    after = [_replayed(tape, attention.change_row(position, _sample_moved(0)), ends) for position in positions]
    own = [_replayed(tape, _all_rows(attention, _sample_moved(sample)), ends) for sample in range(batch)]
    judged = []
    for number, end in enumerate(ends):
        changed = [
            [differs(end.output, outputs[number]) for outputs in replayed] for replayed in (after, own)
        ]  # what each position changes, what each sample does
        readings = [functools.partial(_batch_first, batch=batch, length=length)]
        if _channels_first(end.output, batch, length) and end.output.shape[1] >= dependence.length:  # or windows
            readings.append(functools.partial(_in_windows, length=length))
        for read in readings:
            rows, samples = ([read(one) for one in each] for each in changed)
            found = _judged(rows, samples, positions)
            if not found.mixed:
                break
        judged.append(found)
    return next((rows for rows in judged if rows.mixed), judged[-1])


def _replayed(tape: Tape, change: Change, ends: Sequence[Event]) -> list[Tensor]:
    """The outputs of some events after a change."""
    events = replay(tape, {change[0]: change[1]}, until=ends[-1].index)
    return [events[end.index].output for end in ends]


def _all_rows(attention: TapedAttention, function: Callable[[Tensor], Tensor]) -> Change:
    """A change of all head outputs; the function is given them as (batch, heads, q_len, d_v)."""
    places = attention.output_places

    def changed(output: Tensor) -> Tensor:
        flat = output.flatten()
        flat[places.flatten()] = function(flat[places]).flatten()
        return flat.view(output.shape)

    return attention.outputs_index, changed


def _sample_moved(sample: int) -> Callable[[Tensor], Tensor]:
    """A function that gives one sample other head outputs."""

    def moved(outputs: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        other = outputs.clone()
        other[sample] = torch.randn(outputs.shape[1:], generator=generator, dtype=torch.float64).to(outputs.dtype)
        return other

    return moved


def _has_positions(tensor: Tensor, batch: int, length: int) -> bool:
    """Whether a tensor is (batch, length, ...), (length, batch, ...) or (batch, channels, length)."""
    if tensor.dim() < 3 or not tensor.is_floating_point():
        return False
    first = tuple(tensor.shape[:2])
    return first in ((batch, length), (length, batch)) or (tensor.dim() == 3 and _channels_first(tensor, batch, length))


def _channels_first(tensor: Tensor, batch: int, length: int) -> bool:
    return tensor.shape[0] == batch and tensor.shape[2] == length and tensor.shape[1] != length


def _batch_first(changed: Bool[Tensor, " *shape"], batch: int, length: int) -> Bool[Tensor, "batch 1 rows features"]:
    """What changed with batch and rows first, the rest folded into features."""
    if changed.shape[:2] == (length, batch):
        changed = changed.transpose(0, 1)
    elif changed.shape[:2] != (batch, length):
        changed = changed.transpose(1, 2)
    return changed.flatten(2)[:, None]


def _in_windows(changed: Bool[Tensor, " *shape"], length: int) -> Bool[Tensor, "batch heads rows features"]:
    """What changed in each window of so many rows, one after the other; beside whole ones a part is left out."""
    size = min(length, changed.shape[1])
    return changed[:, : changed.shape[1] // size * size].unflatten(1, (-1, size))


def _ends(tape: Tape, dependence: Dependence, attention: TapedAttention) -> list[Event]:
    """Two events with axes batch and length: the last before something learned, the last before positions mix.

    After the first the entries of a row are mixed, and show no more from where each of them came.
    """
    found: list[Event] = []
    ends: list[Event] = []
    _, heads, rows, _ = attention.weights.shape
    for event in _behind(tape, dependence, attention):
        if event.call in _PRODUCTS and not ends:
            ends = found[-1:]
        apart = rows < dependence.length and math.prod(event.output.shape[1:-1]) == heads * rows  # heads may look so
        if _has_positions(event.output, dependence.batch, rows) and not apart:
            found.append(event)
    return list(dict.fromkeys([*ends, *found[-1:]]))


def _behind(
    tape: Tape, dependence: Dependence, attention: TapedAttention, passing: Collection[str] = ()
) -> Iterator[Event]:
    """Yield what is made of the outputs of an attention, to the first event that mixes positions."""
    for index in sorted(tape.descendants(attention.outputs_index)):
        event = tape.events[index]
        if event.call not in passing and _mixes_positions(dependence, event):
            return
        yield event


_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "mv"})


def _mixes_positions(dependence: Dependence, event: Event) -> bool:
    """Whether an event may mix positions: a product of two tensors from the input, a convolution, a sum."""
    if event.call in ("bmm", "mm", "baddbmm"):
        return sum(dependence.input_depends(event, number) for number in range(len(event.inputs))) > 1
    if event.call == "convolution":
        return max(event.inputs[1].shape[2:]) > 1
    return event.call in _TRANSLATING


def _judged(
    changed: Sequence[Bool[Tensor, "batch heads rows features"]],
    own: Sequence[Bool[Tensor, "batch heads rows features"]],
    positions: range,
) -> Rows:
    """How rows follow positions.

    `changed` is what replacing each position of the first sample changes, `own` what replacing each sample changes:
    what follows another sample and not its own is in the wrong place, what follows both has been mixed on purpose.
    """
    table = torch.stack([each[0] for each in changed])  # (positions, heads, rows, features)
    if not table.any():  # a dead part, which is no matter of order
        return Rows(home=1.0, coverage=1.0, foreign=False, permuted=False, example="")
    home = torch.stack([_at_shift(table, positions, shift) for shift in range(-_FARTHEST, _FARTHEST + 1)]).amax(0)
    covered = table.flatten(2).any(2).double().mean(0)  # (heads)
    strayed = [each[sample] & ~own[sample][sample] for each in changed for sample in range(1, each.shape[0])]
    return Rows(
        home=float(home.nanmean()),
        coverage=float(covered[covered > 0].min()),
        foreign=any(bool(each.any()) for each in strayed),
        permuted=_permuted(table),
        example=_example(table, positions),
    )


def _at_shift(table: Tensor, positions: range, shift: int) -> Float[Tensor, "heads features"]:
    """The share of rows that follow the position at one distance, among those that follow any.

    Entries that follow none are left out: a ReLU may have closed on them. Each feature has its own best distance:
    a token shift may move half of them.
    """
    rows = table.shape[2]
    pairs = [(number, position - shift) for number, position in enumerate(positions) if 0 <= position - shift < rows]
    follows = torch.stack([table[number, :, row] for number, row in pairs])  # (pairs, heads, features)
    alive = torch.stack([table[:, :, row].any(0) for _, row in pairs])
    return (follows & alive).sum(0) / alive.sum(0)  # NaN where all are closed


def _permuted(table: Tensor) -> bool:
    """Whether each position changes exactly one row of each head, all its entries, and each another one."""
    rows = table.any(3)  # (positions, heads, rows)
    whole = bool((table.all(3) == rows).all())
    return whole and bool((rows.sum(2) == 1).all()) and bool((rows.sum(0) <= 1).all())


def _example(table: Tensor, positions: range) -> str:
    """In words what replacing the middle position changes."""
    number = len(positions) // 2
    rows = table[number].any(2)  # (heads, rows)
    words = [f"{row.nonzero().flatten().tolist()} of head {head}" for head, row in enumerate(rows) if row.any()]
    listed = ", ".join(words[:3]) + (" and more" if len(words) > 3 else "")
    return f"replacing position {positions[number]} changes rows {listed or 'nowhere'}"
