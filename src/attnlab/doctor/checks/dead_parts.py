"""Check `dead-parts`: everything a module holds takes part in its output, can learn, and is there once."""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnlab.core.constructors import named, signature_of
from attnlab.core.errors import AttnlabError, ModuleError
from attnlab.doctor.examination import Examination, accepted_by
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.position_claims import names_position
from attnlab.doctor.measures.linear_pairs import widened_for_nothing
from attnlab.doctor.measures.more_of_one import of_more
from attnlab.doctor.measures.norms import norms_of, unused_norms
from attnlab.doctor.measures.participation import (
    MEMORIES,
    Rows,
    Survey,
    held_at_zero,
    influence,
    influence_beside,
    reached_behind_others,
    survey,
    wrong_slopes,
)
from attnlab.doctor.measures.unregistered import Unregistered, lasting_tensors, untrained
from attnlab.inspection.cost import count_parameters
from attnlab.inspection.tape.attentions import attentions
from attnlab.inspection.tape.tape import Event, ModuleCall, Tape
from attnlab.inspection.tape.tracing import LAYOUT
from attnlab.strangers.calling.sources import OTHER_MEMORIES, is_same
from attnlab.strangers.loading.mentions import SWITCHED, only_copied, use_of
from attnlab.strangers.said.source import is_handed_on_unread, names_read, nodes_of
from attnlab.strangers.said.topics import said_unused
from attnlab.strangers.trying.trial import Trial, sight_of

ID = "dead-parts"
_SHOWN = 4  # names in one sentence
_CANCELLED = 1e-12  # of the largest gradient: what rounding leaves of a sum that is zero
_SMALLEST_BLOCK = 16  # a dead head is at least this part (1/16) of a projection
_ASKS = re.compile(r"(^|[._ ])(w_?|to_?)?(q|k|qk|query|key|queries|keys)(_?(proj|lin|layer)\w*)?\b", re.IGNORECASE)
"""Names of what makes queries or keys."""
_WEIGHT = re.compile(
    r"^w$|^w_?[qkvo]\d?$|weight|kernel|proj|^(q|k|v|o|query|key|value|out)(_mat|_matrix|_w)?$", re.IGNORECASE
)
_CUTS = re.compile(
    r"\.data\b|no_grad|inference_mode|set_grad_enabled|\.item\(|\.tolist\(|\.numpy\(|torch\.tensor\(|argmax"
)
_TIED = re.compile(r"self\.(\w+)\.weight = self\.(\w+)\.weight\b")  # set to share what another layer has
_OF_MANY = frozenset({"max", "amax", "min", "amin", "logsumexp", "mean", "var", "std", "median", "norm"})
"""Statistics of many numbers: without their gradient what is divided by or taken off is a constant, as is meant."""
_WORD = re.compile(r"[._\d]+")
_ROLES = {
    "query": frozenset({"q", "wq", "query", "queries", "toq"}),
    "key": frozenset({"k", "wk", "key", "keys", "tok"}),
    "value": frozenset({"v", "wv", "value", "values", "tov"}),
}
_DETACH = "PyTorch documentation, torch.Tensor.detach and 'Autograd mechanics'"
_REFORMER = "Kitaev 2020 (Reformer), arXiv:2001.04451, section 2: shared q and k are a choice, with a price"
_ALBERT = "Lan 2020 (ALBERT), arXiv:1909.11942, section 3.1; Dehghani 2019, arXiv:1807.03819"

TEXTS: Mapping[str, FindingText] = {
    "unregistered": FindingText(
        "error",
        "{names} {are} kept where PyTorch does not register {them}: no optimizer trains {them}, `.to(device)` does not"
        " move and `state_dict` does not save.",
        "keep layers in nn.ModuleList or nn.ModuleDict instead of a list or dict, and tensors in nn.Parameter",
        "PyTorch documentation, torch.nn.Module and torch.nn.ModuleList: only attributes are registered",
    ),
    "memory": FindingText(
        "error",
        "`{name}` has no influence: it is asked for, and every result is the same with another one.",
        "make keys and values of it, attention(x, {name}, {name}); if it asks, put a non-linearity between its sum with"
        " a key and the score, v . tanh(q + k), as a softmax takes out what all keys share; or drop the argument",
        "Vaswani 2017, arXiv:1706.03762, section 3.2.3; Bahdanau 2015, arXiv:1409.0473, appendix A.1.2",
    ),
    "unread": FindingText(
        "warning",
        "`{name}` is asked for, and nothing reads it.",
        "drop the argument, or give it a default where an interface asks for it",
        nature="set-up",
    ),
    "raises": FindingText(
        "error",
        "it cannot be trained: with gradients it raises an exception.",
        "write x = x + y instead of x += y, masked_fill instead of masked_fill_, where the old value is still needed,"
        " and nothing into the pieces of a tensor that a loop or unbind() gives",
        "PyTorch documentation, 'Autograd mechanics', in-place correctness checks",
    ),
    "dead": FindingText(
        "error",
        "{names}: {why}, so it is built but learns nothing.",
        "use {names} in forward (is another one used twice, or a result overwritten or thrown away?), or remove it",
        "PyTorch documentation, DistributedDataParallel, find_unused_parameters",
    ),
    "alone": FindingText(
        "error",
        "{names}: learn nothing, as a softmax over an axis of one number gives 1 whatever that number is.",
        "normalize over the positions: `softmax(dim=1)` on scores (batch, length, 1)",
        "Bahdanau 2015, arXiv:1409.0473, section 3.1: the weights of an output are a softmax over all positions",
    ),
    "one map": FindingText(
        "warning",
        "'{first}' and '{second}' are together one linear map: nothing bends what is handed from one to the other.",
        "put a non-linearity between them, {second}(gelu({first}(x))); two linear layers in a row do what one does",
        "Vaswani 2017, arXiv:1706.03762, equation 2: a feed-forward has a ReLU between its linear layers",
    ),
    "held at zero": FindingText(
        "error",
        "{names}: start at zero and stay there, as what each gets its gradient through is zero, too.",
        "start at zero the last of the layers in a row alone, or its gain; the others at random, as PyTorch does",
        "Zhang 2019, arXiv:1901.09321, section 3; Bachlechner 2020, arXiv:2003.04887: one factor of a branch is zero",
    ),
    "pattern": FindingText(
        "warning",
        "{names}: only copies of it are used; it learns nothing itself, and is saved and counted all the same.",
        "keep it in a variable, layer = nn.TransformerEncoderLayer(...), and not as an attribute of the module",
        "PyTorch documentation, nn.TransformerEncoder: its layers are copies of the one it is given",
    ),
    "cut": FindingText(
        "error",
        "{names} shape the output but get no gradient: the graph is cut behind them, and they stay as they were"
        " initialized.",
        "remove .data, .detach(), torch.no_grad(), .item(), torch.tensor(...) or argmax on the way from them to the"
        " output",
        _DETACH,
    ),
    "dead rows": FindingText(
        "error",
        "part of a projection has no influence: what it makes, such as a head or queries and keys, is dead.",
        "see that every head's slice is computed, kept and concatenated (loop bounds, slices, overwritten results), and"
        " that a softmax has more than one key: over a single one it gives 1 whatever q and k are",
        "Vaswani 2017, arXiv:1706.03762, section 3.2.2: all heads are concatenated",
    ),
    "cut rows": FindingText(
        "error",
        "part of a projection shapes the output but gets no gradient: the graph is cut behind it.",
        "remove .data, .detach(), torch.no_grad() or torch.tensor(...) between it and the output",
        _DETACH,
    ),
    "cut input": FindingText(
        "error",
        "{share} of the gradient to its input is lost: what stands before it in a stack cannot learn through it.",
        "remove .data, .detach(), torch.no_grad() or torch.tensor(...) on the way from the input to the output",
        _DETACH,
    ),
    "same vectors": FindingText(
        "error",
        "queries and keys are the same vectors: both come from {names}, so the scores are symmetric.",
        "project the keys with their own layer; if one is meant for both, say so in the docstring, or accept it",
        _REFORMER,
    ),
    "equal start": FindingText(
        "warning",
        "queries and keys start as the same vectors: {names} hold equal numbers.",
        "initialize the two projections independently",
        _REFORMER,
    ),
    "same weight": FindingText(
        "error",
        "{names} are one and the same weight.",
        "give each projection its own weight; if sharing is meant, say so in the docstring",
        _REFORMER,
    ),
    "same result": FindingText(
        "error",
        "{names} are one and the same module, and it computes the same thing each time.",
        "build each one anew: [Head() for _ in range(n)] instead of [Head()] * n or a second name",
        "PyTorch documentation, torch.nn.ModuleList",
    ),
    "same layers": FindingText(
        "warning",
        "{names} are one and the same module: the layers share all their weights.",
        "build each one anew: nn.ModuleList([Block() for _ in range(n)]); if it is meant, say so in the docstring",
        _ALBERT,
    ),
    "looped": FindingText(
        "warning",
        "'{name}' is called in a loop for every layer that `{count}` asks for: all layers share its weights.",
        "build each one anew: nn.ModuleList([Block() for _ in range(n)]); if it is meant, say so in the docstring",
        _ALBERT,
    ),
}
"""What -> its text; braces are filled with what was measured."""


def check_dead_parts(exam: Examination) -> Iterator[Finding]:
    """Find parameters, heads and submodules that have no influence, cannot learn, or are one where two are meant.

    What has nothing to choose among where there is one of something is asked about where there are several.
    """
    found = list(_not_alive(exam))
    for words, other in of_more(exam) if any(_has_no_choice(finding) for finding in found) else ():
        with contextlib.suppress(AttnlabError):
            if sight_of(Trial(other.fresh()), other.convention) == "itself":
                continue  # whatever is chosen there, it is no position
            alive = list(_not_alive(other))
            if not any(_has_no_choice(finding) for finding in alive):
                found = list(accepted_by(found, words, by="it is built with")) if words else alive
                break
    yield from found


def _has_no_choice(finding: Finding) -> bool:
    """Whether a finding may come of a softmax over one number."""
    return finding.remedy in (TEXTS["alone"].remedy, TEXTS["dead rows"].remedy) and not finding.accepted


def _not_alive(exam: Examination) -> Iterator[Finding]:
    """The findings about one examination."""
    yield from _unregistered(exam)
    unused = list(_unused_memory(exam))
    seen = survey(exam)
    own = [name for part in exam.eval_module.modules() for name in vars(type(part)) if name.startswith("backward")]
    if own and not seen.largest:  # as of reversible blocks
        raise ModuleError(f"its gradients are left to its method `{own[0]}`, which nothing calls here")
    if seen.broken:
        yield from [*unused, TEXTS["raises"].finding(ID, seen.broken)]
        return
    found, twice = list(_silent(exam, seen)), [*_one_projection(exam), *_repeated(exam)]
    if not any(finding.remedy == TEXTS["alone"].remedy for finding in found):
        yield from unused
    silent = [each for each in found if not each.accepted and each.severity == "error"]
    shared = [each for each in twice if not each.accepted]
    yield from found
    yield from [each for each in twice if each.accepted][:1]
    # Of several signs of one cause the plainest alone: where queries are used for keys, a projection or a part of it is
    # left over, and parameters that are cut off cut the input off too.
    left_over = any(_ASKS.search(finding.message) for finding in silent)
    yield from [] if left_over else shared[:1]
    if not shared:
        yield from _silent_rows(exam, seen)
    if not silent and not shared:
        yield from _cut_input(exam)
    if not silent:
        yield from _held_at_zero(exam)
    for first, second, widths in itertools.islice(widened_for_nothing(exam.eval_module, exam.usual_tape), 1):
        evidence = f"widths {' -> '.join(map(str, widths))}: a matrix of {widths[0]} by {widths[2]} gives the same"
        yield TEXTS["one map"].finding(ID, evidence, {"first": first, "second": second})


# What PyTorch does not see, and what is not looked at


def _unregistered(exam: Examination) -> Iterator[Finding]:
    """An error for what would train outside of `parameters()`, else for plain tensors that look like weights."""
    module = exam.patient.module
    hidden = [(kept.path, numbers) for kept, numbers in untrained(module)]
    plain = lasting_tensors(exam) if not hidden else []
    found = hidden or [(kept.path, tensor.numel()) for kept, tensor in plain if _is_weight(kept, tensor)]
    if found:
        registered = sum(parameter.numel() for parameter in module.parameters())
        evidence = f"{sum(numbers for _, numbers in found)} numbers outside parameters(), {registered} inside"
        are, them = ("is", "it") if len(found) == 1 else ("are", "them")
        words = {"names": _list([path for path, _ in found]), "are": are, "them": them}
        finding = TEXTS["unregistered"].finding(ID, evidence, words)
        yield from [finding] if hidden else exam.as_meant([finding], "fixed weights")


def _is_weight(kept: Unregistered, tensor: Tensor) -> bool:
    """Whether a plain tensor is named and shaped as a weight."""
    is_constant = tensor.grad_fn is None and not tensor.requires_grad and tensor.is_floating_point()
    return kept.is_attribute and is_constant and tensor.dim() > 1 and bool(_WEIGHT.search(kept.attribute))


def _unused_memory(exam: Examination) -> Iterator[Finding]:
    """An error if another memory, or another sequence in one of the places of the input, leaves everything as it is."""
    given = [one for one in exam.convention.arguments if not one.parameter.startswith("_")]
    memory = [one for one in given if one.source in OTHER_MEMORIES]
    inputs = [one for one in given if one.source == "x" and not exam.convention.of_loss]  # else a target among them
    read = names_read(exam.patient.module)
    several = sum(one.parameter in read for one in inputs) > 1  # of one alone others are there for the interface's sake
    for asked in [memory, *([one] for one in inputs if len(inputs) > 1 and (several or one.parameter in read))]:
        change = influence_beside(exam, asked) if asked else math.inf
        if change <= exam.tolerance:
            name = asked[0].parameter
            evidence = f"{2 * MEMORIES} calls with other numbers in it: results change by {change:.2g} of their size"
            unread = all(is_handed_on_unread(exam.patient.module, one.parameter) for one in asked)
            unread |= asked is not memory and name not in read
            finding = TEXTS["unread" if unread else "memory"].finding(ID, evidence, {"name": name or "the memory"})
            words = said_unused(exam.patient.said, exam.patient.text, (name, "memory", "context"))
            yield from accepted_by([finding], words)


# Parameters without gradient


def _silent(exam: Examination, seen: Survey) -> Iterator[Finding]:
    """Errors for parameters without gradient, be they without influence too or not."""
    module = exam.eval_module
    suspects = [name for name in _suspects(module, seen) if use_of(module, name) not in SWITCHED]
    if not suspects:
        return
    moves = influence(exam, suspects) > exam.tolerance
    changes = {name: influence(exam, [name]) if moves else 0.0 for name in suspects}
    cut = [name for name in suspects if changes[name] > exam.tolerance]
    beside = {_owner(name) for name in cut}
    reached = reached_behind_others(exam) if cut else set()
    cut = [name for name in cut if name not in reached]
    dead = [name for name in suspects if changes[name] <= exam.tolerance and _owner(name) not in beside]
    norms = {norm.name for norm in unused_norms(exam, norms_of(exam))} if dead else set()  # `norm-placement` says so
    dead = [name for name in dead if _owner(name) not in norms]
    dead = [name for name in dead if not (_given_one_key(exam) and _ASKS.search(name))]
    copied = only_copied(module, dead)
    dead = [name for name in dead if name not in copied]
    if copied:
        evidence = f"gradient 0 in {seen.calls} calls, and the output does not change when its numbers are replaced"
        yield TEXTS["pattern"].finding(ID, evidence, {"names": _list([*dict.fromkeys(copied.values())])})
    if dead:
        numbers = sum(dict(module.named_parameters())[name].numel() for name in dead)
        unused = all(use_of(module, name) == "never" for name in dead)
        why = "is never used in forward" if unused else "has no influence on the output"
        evidence = (
            f"gradient 0 in {seen.calls} calls (two lengths, train and eval mode, zero-initialized gains opened), and"
            f" the output does not change when {numbers} numbers are replaced by others"
        )
        names = {"names": _list(_whole_parts(module, dead)), "why": why}
        alone = None if unused else _softmax_of_one(exam)
        evidence += "" if alone is None else f"; the softmax gives {tuple(alone.shape)} ones"
        yield TEXTS["dead" if alone is None else "alone"].finding(ID, evidence, names)
    if cut:
        change = max(changes[name] for name in cut)
        evidence = f"gradient 0 in {seen.calls} calls, but changing them changes the output by {change:.2g} of its size"
        yield from exam.as_meant([TEXTS["cut"].finding(ID, evidence, {"names": _list(cut)})], "stopped gradients")


def _held_at_zero(exam: Examination) -> Iterator[Finding]:
    """An error for matrices that would get a gradient if they did not all start at zero."""
    held = held_at_zero(exam)
    if held:
        evidence = "gradient 0 in calls between which all that has one was moved; not so with small numbers in them"
        yield TEXTS["held at zero"].finding(ID, evidence, {"names": _list(_whole_parts(exam.eval_module, held))})


def _given_one_key(exam: Examination) -> bool:
    """Whether a sequence of one vector was given, among whose keys, one alone, queries have nothing to choose."""
    return any(one.source == "sequence of one" for one in exam.convention.arguments)


def _softmax_of_one(exam: Examination) -> Tensor | None:
    """What a softmax gives that runs over an axis of one number, at every one of several positions."""
    softmaxes = [event.output for event in exam.usual_tape.events if event.call in ("_softmax", "softmax")]
    return next((one for one in softmaxes if one.dim() > 1 and 1 in one.shape and bool((one == 1).all())), None)


def _suspects(module: nn.Module, seen: Survey) -> list[str]:
    """The parameters without gradient, left out what theory allows to have none.

    A key bias cancels in the softmax, other biases in a norm: a vector in a module whose weight lives is right.
    """
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    exact = any(parameter.dtype == torch.float64 for parameter in named.values())
    biggest = max((one for one in seen.largest.values() if math.isfinite(one)), default=0.0)
    silent = set()
    for name, parameter in named.items():
        floor = _CANCELLED * biggest if exact and name.endswith("weight") and parameter.dim() > 1 else 0.0
        if parameter.numel() and seen.largest.get(name, 0.0) <= floor:
            silent.add(name)
    lively = {_owner(name) for name in named if name not in silent}
    absorbed = {name for name in silent if named[name].dim() <= 1 and _owner(name) in lively and name in seen.largest}
    return [name for name in named if name in silent - absorbed]


def _owner(name: str) -> str:
    """The submodule that holds a parameter."""
    return name.rpartition(".")[0]


def _whole_parts(module: nn.Module, names: Sequence[str]) -> list[str]:
    """Names with all dead parameters of one submodule merged to that submodule."""
    held = {
        _owner(name): {inner for inner, _ in module.get_submodule(_owner(name)).named_parameters()} for name in names
    }
    whole = {owner for owner, inner in held.items() if owner and {f"{owner}.{one}" for one in inner} <= set(names)}
    return list(dict.fromkeys(_owner(name) if _owner(name) in whole else name for name in names))


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


# Rows and columns without gradient: a dead head in a shared projection


def _silent_rows(exam: Examination, seen: Survey) -> Iterator[Finding]:
    """Errors for blocks of rows or columns of a projection that do nothing, or cannot learn."""
    dead, cut = [], []
    for name, rows in _silent_blocks(exam, seen):
        axis, run = rows
        size = dict(exam.eval_module.named_parameters())[name].shape[axis]
        words = f"{'rows' if axis == 0 else 'columns'} {int(run[0])} to {int(run[-1])} of {size} in {name}"
        if influence(exam, [name], rows) <= exam.tolerance:
            dead.append(words)
        else:
            cut.append(words)
    silent = f"gradient 0 in {seen.calls} calls"
    if dead and not _given_one_key(exam):
        evidence = f"{silent}, and the output does not change when they are replaced: {'; '.join(dead[:_SHOWN])}"
        yield TEXTS["dead rows"].finding(ID, evidence)
    if cut:
        evidence = f"{silent}, but the output changes when they are replaced: {'; '.join(cut[:_SHOWN])}"
        yield from exam.as_meant([TEXTS["cut rows"].finding(ID, evidence)], "stopped gradients")


def _silent_blocks(exam: Examination, seen: Survey) -> Iterator[tuple[str, Rows]]:
    """Yield runs of neighbouring rows or columns without gradient, wide enough to be no chance."""
    positions = {exam.convention.vocab_size, exam.convention.longest, exam.convention.length}  # rows of tables
    for name, by_length in seen.alive.items():
        alive = torch.stack([*by_length.values()]).any(0)
        owner = exam.eval_module.get_submodule(_owner(name))
        if alive.dim() < 2 or not alive.any() or isinstance(owner, nn.Embedding) or names_position(name):
            continue
        if _only_added(exam.usual_tape, name):
            continue  # rows of a table, such as one for each step of a loop
        for axis in (0, 1) if isinstance(owner, nn.Conv1d | nn.Conv2d) else range(alive.dim()):
            size = alive.shape[axis]
            lives = [own.movedim(axis, 0).flatten(1).any(1) for own in by_length.values()]
            if size in positions or not all(torch.equal(lives[0], other) for other in lives[1:]):
                continue
            run = _longest_run(~lives[0])
            wide = len(run) >= max(1 if alive.dim() > 2 else 2, size // _SMALLEST_BLOCK)
            if wide and use_of(exam.eval_module, name) in {"always", "unknown"}:
                yield name, (axis, run)


def _only_added(tape: Tape, name: str) -> bool:
    """Whether pieces of a parameter are added to what is larger, and nothing else is done with them."""
    waiting = [event.index for event in tape.events if name in event.parameters]
    reads, seen = list[Event](), set(waiting)
    while waiting:
        event = tape.events[waiting.pop()]
        following = [at for at in tape.children(event.index) if event.call in LAYOUT and at not in seen]
        reads += [] if event.call in LAYOUT else [event]
        waiting += following
        seen |= set(following)
    return bool(reads) and all(
        event.call.rstrip("_") == "add" and min(one.numel() for one in event.inputs) < event.output.numel()
        for event in reads
    )


def _longest_run(dead: Tensor) -> Tensor:
    """The indices of the longest run of neighbours."""
    is_dead = dead.tolist()
    runs = [list(run) for silent, run in itertools.groupby(range(len(is_dead)), is_dead.__getitem__) if silent]
    return torch.tensor(max(runs, key=len, default=[]), dtype=torch.long)


# The gradient with respect to the input


def _cut_input(exam: Examination) -> Iterator[Finding]:
    """An error where the source says how the graph is cut, or nothing at all gets through."""
    slopes = wrong_slopes(exam)
    lost = not any(claimed for claimed, _ in slopes)
    if slopes and (lost or _cuts(exam)):
        evidence = "slope of the output in a random direction by gradient and by finite difference: " + ", ".join(
            f"{claimed:.3g} against {true:.3g}" for claimed, true in slopes
        )
        finding = TEXTS["cut input"].finding(ID, evidence, {"share": "all" if lost else "part"})
        yield from exam.as_meant([finding], "stopped gradients")


def _cuts(exam: Examination) -> bool:
    """Whether code cuts the graph, but for statistics that it detaches."""
    nodes = nodes_of(exam.patient.text)
    detached = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr.startswith("detach")]
    if detached and all(_of_many(node.value) for node in detached):
        with _Attached():
            return bool(wrong_slopes(exam))  # by something else
    unread = not nodes and ".detach" in exam.patient.text
    return bool(detached or unread or _CUTS.search(exam.patient.text))


@final
class _Attached(TorchFunctionMode):
    """Let nothing detach a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        del types
        return args[0] if func is Tensor.detach else func(*args, **(kwargs or {}))


def _of_many(node: ast.AST) -> bool:
    """Whether an expression is made of a statistic of many numbers."""
    calls = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return any(isinstance(func, ast.Attribute) and func.attr in _OF_MANY for func in calls)


# One thing where the code suggests several


def _one_projection(exam: Examination) -> Iterator[Finding]:
    """An error if queries and keys are the same numbers, or their weights are; a warning if they only start so."""
    found = list(_same_vectors(exam)) or list(_tied_weights(exam))
    names = "".join(one.message for one in found)
    tied = (match for match in _TIED.finditer(exam.patient.text) if any(f"{one}." in names for one in match.groups()))
    words = next((match[0] for match in tied), "")
    yield from exam.as_meant(accepted_by(found, words, by="its source sets"), "one projection of queries and keys")


def _same_vectors(exam: Examination) -> Iterator[Finding]:
    tape = exam.usual_tape
    for one in attentions(tape, exam.convention):
        if one.q is None or one.k is None or one.q.shape != one.k.shape or not torch.equal(one.q, one.k):
            continue
        of_queries, of_keys = _makers(tape, one.q_index), _makers(tape, one.k_index)
        if of_queries:  # without any projection q = k = x is a choice
            both = of_queries & of_keys
            names = " and ".join(sorted(both or of_queries | of_keys))
            evidence = "largest difference between q and k over all heads and positions: 0"
            yield TEXTS["same vectors" if both else "equal start"].finding(ID, evidence, {"names": names})
            return


def _makers(tape: Tape, start: int | None) -> set[str]:
    """The nearest parameters that made a tensor: those of the last products on the way."""
    names: set[str] = set()
    waiting, seen = [] if start is None else [start], set[int]()
    while waiting:
        at = waiting.pop()
        own = tape.learned.intersection(tape.events[at].parameters)
        names |= own
        if not own and at not in seen:
            waiting += [parent for parent in tape.events[at].parents if parent is not None]
        seen.add(at)
    return names


def _tied_weights(exam: Examination) -> Iterator[Finding]:
    """Errors for projections of q and k that share a weight but not their biases, so that their vectors differ."""
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in exam.eval_module.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    for parameter, places in names.items():
        roles = {role for role, words in _ROLES.items() for place in places if words & set(_WORD.split(place.lower()))}
        owners = {exam.eval_module.get_submodule(_owner(place)) for place in places}
        if parameter.dim() > 1 and len(roles) > 1 and len(owners) > 1:
            evidence = f"{len(places)} names, one set of {parameter.numel()} numbers"
            yield TEXTS["same weight"].finding(ID, evidence, {"names": " and ".join(places[:_SHOWN])})


def _repeated(exam: Examination) -> Iterator[Finding]:
    """Errors for modules that stand under several names and compute the same twice, else warnings."""
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, part in exam.eval_module.named_modules(remove_duplicate=False):
        names[part].append(name)
    repeated = {part: places for part, places in names.items() if len(places) > 1}
    for part, (first, *others) in repeated.items():
        inner = any(first.startswith(f"{place}.") for places in repeated.values() for place in places)
        learned = any(parameter.dim() > 1 for parameter in part.parameters())
        inputs = [call.given[0] for call in exam.usual_tape.calls if call.name == first and call.given]
        if inner or not learned or isinstance(part, nn.Embedding) or len(inputs) < 2:
            continue
        same = all(torch.equal(inputs[0], other) for other in inputs[1:])
        numbers = sum(parameter.numel() for parameter in part.parameters())
        shown = [first, *others][:_SHOWN]
        evidence = f"{len(others) + 1} names ({', '.join(shown)}), one set of {numbers} numbers; called"
        evidence += f" {len(inputs)} times{' with the same input' if same else ''}"
        found = [TEXTS["same result" if same else "same layers"].finding(ID, evidence, {"names": " and ".join(shown)})]
        yield from exam.as_meant(exam.as_meant(found, "shared parts"), "one projection of queries and keys")
    yield from exam.as_meant(_looped(exam), "shared parts")


def _looped(exam: Examination) -> Iterator[Finding]:
    """A warning for one module that is called as many times in a row as an argument asks for layers."""
    calls: dict[str, list[ModuleCall]] = defaultdict(list)
    for call in exam.usual_tape.calls:
        if call.given and call.returned:
            calls[call.name].append(call)
    usual = {name: one.default for name, one in signature_of(type(exam.patient.module)).items()}
    sizes = {**usual, **exam.patient.arguments}
    weighed = {name for name, part in exam.patient.module.named_modules() if count_parameters(part)}
    for name, made in calls.items():
        in_a_row = name in weighed and all(_hands_on(one, other) for one, other in itertools.pairwise(made))
        counted = [word for word in named("n_layers", sizes) if sizes[word] == len(made) > 1]
        if in_a_row and counted and not _adds_parameters(exam, {counted[0]: len(made) + 1}):
            evidence = f"called {len(made)} times, each on what the one before gave"
            evidence += f"; {counted[0]}={len(made) + 1} adds no parameter"
            yield TEXTS["looped"].finding(ID, evidence, {"name": name, "count": counted[0]})
            return


def _hands_on(one: ModuleCall, other: ModuleCall) -> bool:
    """Whether a call is given what another returned."""
    return any(is_same(given, returned) for given in other.given for returned in one.returned)


def _adds_parameters(exam: Examination, changes: Mapping[str, int]) -> bool:
    """Whether an instance with other arguments has more parameters, or cannot be built."""
    usual, other = exam.patient.module, exam.another(changes)
    return other is None or count_parameters(other) > count_parameters(usual)
