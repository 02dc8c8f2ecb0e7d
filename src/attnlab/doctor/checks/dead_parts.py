"""Check `dead-parts`: everything a module holds takes part in its output and can learn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.measures.cuts import DETACH_URL, cut_input
from attnlab.doctor.measures.dead_heads import silent_rows
from attnlab.doctor.measures.gradients import Survey, influence, revives, survey
from attnlab.doctor.measures.hidden import Hidden, hidden_parts, plain_weights, recomputed
from attnlab.doctor.measures.norms import norms_of, unused_norms
from attnlab.doctor.measures.sharing import sharing
from attnlab.doctor.measures.unused_memory import unused_memory
from attnlab.strangers.loading.mentions import OPTIONAL, use_of

ID = "dead-parts"
_SHOWN = 4  # names in one sentence
_CANCELLED = 1e-12  # of the largest gradient: what rounding leaves of a sum that is zero
_SMALLEST_BLOCK = 16  # a dead head is at least this part (1/16) of a projection; fewer units may be silent by chance
_ASKS = re.compile(r"(^|[._ ])(w_?|to_?)?(q|k|qk|query|key|queries|keys)(_?(proj|lin|layer)\w*)?\b", re.IGNORECASE)
"""Names of what makes queries or keys."""
_MODULES_URL = "PyTorch documentation, torch.nn.Module and torch.nn.ModuleList: only attributes are registered"
_UNUSED_URL = "PyTorch documentation, DistributedDataParallel, find_unused_parameters"


def check_dead_parts(exam: Examination) -> Iterator[Finding]:
    """Find parameters, heads and submodules that have no influence, cannot learn, or are one where two are meant."""
    yield from _hidden(exam)
    yield from unused_memory(exam)
    seen = survey(exam)
    if seen.broken:
        yield _untrainable(seen.broken)
    elif seen.calls:
        yield from _without_gradient(exam, seen)
    else:
        yield from sharing(exam)


def _without_gradient(exam: Examination, seen: Survey) -> Iterator[Finding]:
    """What is dead, cut off or shared; of several signs of one cause the plainest alone.

    Parameters that are cut off cut the input off too; where queries are used for keys, a projection or a part of it
    is left over.
    """
    found, twice = list(_silent(exam, seen)), list(sharing(exam))
    silent, shared = ([each for each in some if not each.accepted] for some in (found, twice))
    yield from found
    yield from [each for each in twice if each.accepted][:1]
    left_over = any(_ASKS.search(finding.message) for finding in silent)
    yield from [] if left_over else shared[:1]
    if not shared:
        yield from silent_rows(exam, seen)
    if not silent and not shared:
        yield from cut_input(exam)


def _hidden(exam: Examination) -> Iterator[Finding]:
    """What is kept where `parameters()` does not see it."""
    module = exam.patient.module
    plain = plain_weights(module)
    passing = recomputed(exam) if plain else frozenset()
    plain = [part for part in plain if part.path.removeprefix("self.") not in passing]
    hidden = hidden_parts(module)
    yield from _unregistered(module, hidden)
    yield from exam.as_meant(_unregistered(module, plain), "fixed weights") if not hidden else ()


def _unregistered(module: nn.Module, parts: Sequence[Hidden]) -> Iterator[Finding]:
    """The error for parts that `parameters()` does not see, if there are any."""
    if not parts:
        return
    registered = sum(parameter.numel() for parameter in module.parameters())
    names = _list([part.path for part in parts])
    yield Finding(
        ID,
        "error",
        f"{names} {_is(parts)} kept where PyTorch does not register {_it(parts)}: no optimizer trains {_it(parts)},"
        " `.to(device)` does not move and `state_dict` does not save.",
        f"{sum(part.numbers for part in parts)} numbers outside parameters(), {registered} inside",
        "keep layers in nn.ModuleList or nn.ModuleDict instead of a list or dict, and tensors in nn.Parameter",
        _MODULES_URL,
    )


def _untrainable(raised: str) -> Finding:
    return Finding(
        ID,
        "error",
        "it cannot be trained: the backward pass raises an exception.",
        raised,
        "write x = x + y instead of x += y, masked_fill instead of masked_fill_, where the old value is still needed",
        "PyTorch documentation, 'Autograd mechanics', in-place correctness checks",
    )


def _silent(exam: Examination, seen: Survey) -> Iterator[Finding]:
    """Yield parameters without gradient: those without influence too, and those that have influence all the same."""
    module = exam.eval_module
    suspects = [name for name in _suspects(module, seen) if use_of(module, name) not in OPTIONAL]
    if not suspects:
        return
    moves = bool(influence(exam, suspects) > exam.tolerance)
    by_influence = {name: influence(exam, [name]) if moves else 0.0 for name in suspects}
    cut = [name for name in suspects if by_influence[name] > exam.tolerance and not revives(exam, [name])]
    dead = [name for name in suspects if by_influence[name] <= exam.tolerance and not _beside(name, cut)]
    norms = {norm.name for norm in unused_norms(exam, norms_of(exam))} if dead else set()  # `norm-placement` says so
    dead = [name for name in dead if name.rpartition(".")[0] not in norms]
    if dead:
        yield _dead(exam, seen, dead)
    if cut:
        yield from exam.as_meant([_cut(seen, cut, max(by_influence[name] for name in cut))], "stopped gradients")


def _suspects(module: nn.Module, seen: Survey) -> list[str]:
    """The parameters without gradient, left out what theory allows to have none.

    A key bias cancels in the softmax, other biases in a norm: a vector in a module whose weight lives is right.
    """
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    biggest = max((one for one in seen.largest.values() if math.isfinite(one)), default=0.0)
    exact = any(parameter.dtype == torch.float64 for parameter in named.values())
    floor = _CANCELLED * biggest if exact else 0.0
    silent = []
    for name, parameter in named.items():
        is_matrix = name.endswith("weight") and parameter.dim() > 1
        if parameter.numel() and seen.largest.get(name, 0.0) <= (floor if is_matrix else 0.0):
            silent.append(name)
    return [name for name in silent if name not in seen.largest or not _is_absorbed(name, named, silent)]


def _beside(name: str, others: Sequence[str]) -> bool:
    """Whether another parameter of the same submodule is among these."""
    return any(other.rpartition(".")[0] == name.rpartition(".")[0] for other in others)


def _is_absorbed(name: str, named: dict[str, nn.Parameter], silent: Sequence[str]) -> bool:
    """Whether a silent vector belongs to a module whose other parameters live."""
    owner = name.rpartition(".")[0]
    others = [other for other in named if other != name and other.rpartition(".")[0] == owner]
    return named[name].dim() <= 1 and any(other not in silent for other in others)


def _dead(exam: Examination, seen: Survey, names: Sequence[str]) -> Finding:
    """The finding about parameters that do nothing at all."""
    parts = _parts(exam.eval_module, names)
    numbers = sum(dict(exam.eval_module.named_parameters())[name].numel() for name in names)
    unused = all(use_of(exam.eval_module, name) == "never" for name in names)
    why = "is never used in forward" if unused else "has no influence on the output"
    return Finding(
        ID,
        "error",
        f"{_list(parts)}: {why}, so it is built but learns nothing.",
        f"gradient 0 in {seen.calls} calls (two lengths, train and eval mode, zero-initialized gains opened), and the"
        f" output does not change when {numbers} numbers are replaced by others",
        f"use {_list(parts)} in forward (is another one used twice, or a result overwritten or thrown away?),"
        " or remove it",
        _UNUSED_URL,
    )


def _cut(seen: Survey, names: Sequence[str], change: float) -> Finding:
    """The finding about parameters whose gradient is lost on the way."""
    return Finding(
        ID,
        "error",
        f"{_list(names)} shape the output but get no gradient: the graph is cut behind them, and they stay as they"
        " were initialized.",
        f"gradient 0 in {seen.calls} calls, but changing them changes the output by {change:.2g} of its size",
        "remove .data, .detach(), torch.no_grad(), .item(), torch.tensor(...) or argmax on the way from them to the"
        " output",
        DETACH_URL,
    )


def _parts(module: nn.Module, names: Sequence[str]) -> list[str]:
    """Names with all dead parameters of one submodule merged to that submodule."""
    merged: list[str] = []
    for name in names:
        owner = name.rpartition(".")[0]
        whole = owner and all(
            f"{owner}.{inner}" in names for inner, _ in module.get_submodule(owner).named_parameters()
        )
        merged.append(owner if whole else name)
    return list(dict.fromkeys(merged))


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _it(things: Sequence[object]) -> str:
    return "it" if len(things) == 1 else "them"
