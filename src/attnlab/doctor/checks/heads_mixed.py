"""Whether heads are split and merged without scrambling heads, positions and samples."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.own_memory import with_own_memory
from attnlab.doctor.measures.rows import Rows, rows_of_operand, rows_of_output
from attnlab.doctor.measures.words import excused, first_error, quote
from attnlab.inspection.tape.attentions import Attention, attentions
from attnlab.inspection.tape.dependence import Dependence, dependence_of, differs
from attnlab.inspection.tape.tape import Tape

_ID = "heads-mixed"
_SOURCE = "torch.Tensor.view: the order of elements stays, so axes cannot be exchanged; reczoo/FuxiCTR#30"
_SPLIT = "x.view(batch, length, n_heads, d_head).transpose(1, 2)"
_MERGE = "out.transpose(1, 2).reshape(batch, length, n_heads * d_head)"
_SINGLE = 0.9  # share of the elements that follow one sample alone, where nothing has mixed samples
_OVER_HEADS = re.compile(
    r"(attends?|attending|attention|attention maps?|softmax\w*|maps?|mix\w*|interacts?)( is| are| runs?)?"
    r" (across|over|between|among) (the )?(\w+ )?(heads|channels|features|groups|experts)\b|talking[- ]heads",
    re.IGNORECASE,
)
"""Words for attention that is meant to run over heads."""


def check_heads_mixed(exam: Examination) -> Iterator[Finding]:
    """Replace single positions and single rows, and look which rows of which heads change."""
    found = (finding for each in with_own_memory(exam) for finding in _mixed(each))
    yield from first_error(found)


def _mixed(exam: Examination) -> Iterator[Finding]:
    """The error of each attention that has one."""
    tape = exam.usual_tape
    dependence = dependence_of(tape, exam.usage)
    for attention in attentions(tape, exam.usage):
        found = _over_heads(exam, attention) or _samples_mixed(dependence, attention)
        found = found or _split(dependence, attention) or _merged(tape, dependence, attention)
        if found is not None:
            yield found


def _over_heads(exam: Examination, attention: Attention) -> Finding | None:
    """The error for an attention in which heads look at each other and positions do not."""
    if attention.along != "heads":
        return None
    _, count, q_len, k_len = attention.weights.shape
    evidence = (
        f"weights{_in(attention)} are {q_len} x {k_len} for each of {count} positions; input and output have"
        f" {exam.usage.length} positions, and replacing one changes only its own row of the weights"
    )
    message = "Attention runs over the heads of each position instead of over the positions."
    finding = Finding(_ID, "error", message, evidence, f"exchange heads and positions first: {_SPLIT}", _SOURCE)
    return next(excused([finding], quote(exam, _OVER_HEADS)))


def _samples_mixed(dependence: Dependence, attention: Attention) -> Finding | None:
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
    message = "Heads hold pieces of several samples: batch and heads are scrambled by a view."
    evidence = f"values{_in(attention)}: one head holds elements of {int(per_head.max())} of {dependence.batch} samples"
    return Finding(_ID, "error", message, evidence, f"transpose before you view: {_SPLIT}", _SOURCE)


def _split(dependence: Dependence, attention: Attention) -> Finding | None:
    """The error for queries, keys or values whose rows are not the positions."""
    if attention.along != "positions" or attention.weights.shape[0] != dependence.batch:
        return None
    pairing, sources = attention.sources.pairing, attention.sources
    found: dict[str, Rows | None] = {"values": rows_of_operand(dependence, sources.values, sources.value_places)}
    if pairing.queries is not None and pairing.query_places is not None:
        found["queries"] = rows_of_operand(dependence, pairing.queries, pairing.query_places)
    if pairing.keys is not None and pairing.key_places is not None:
        found["keys"] = rows_of_operand(dependence, pairing.keys, pairing.key_places)
    mixed = {name: rows for name, rows in found.items() if rows is not None and rows.mixed}
    if not mixed:
        return None
    names = " and ".join(sorted(mixed))
    message = f"Splitting the heads scrambles {names}: their rows are not the positions of the input."
    return _error(attention, message, next(iter(mixed.items())), f"view, then transpose: {_SPLIT}")


def _merged(tape: Tape, dependence: Dependence, attention: Attention) -> Finding | None:
    """The error for outputs whose rows are not the queries."""
    if attention.along != "positions":
        return None
    rows = rows_of_output(tape, dependence, attention)
    if rows is None or not rows.mixed:
        return None
    message = "Merging the heads scrambles positions: an output is made of head outputs of other positions."
    return _error(attention, message, ("merged outputs", rows), f"transpose, then reshape: {_MERGE}")


def _error(attention: Attention, message: str, worst: tuple[str, Rows], remedy: str) -> Finding:
    name, rows = worst
    evidence = (
        f"{name}{_in(attention)}: {rows.home:.0%} of the entries follow the position of their row, a head follows"
        f" {rows.coverage:.0%} of the positions (both must be 100%); {rows.example}"
    )
    evidence += "; other samples change too" if rows.foreign else ""
    return Finding(_ID, "error", message, evidence, remedy, _SOURCE)


def _in(attention: Attention) -> str:
    return f" in '{attention.where}'" if attention.where else ""
