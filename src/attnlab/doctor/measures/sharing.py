"""Part of `dead-parts`: two places that are meant to differ hold one and the same part."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.inspection.tape.attentions import TapedAttention, attentions
from attnlab.inspection.tape.tape import Tape

ID = "dead-parts"
_WORD = re.compile(r"[._\d]+")
_ROLES = {
    "query": frozenset({"q", "wq", "query", "queries", "toq"}),
    "key": frozenset({"k", "wk", "key", "keys", "tok"}),
    "value": frozenset({"v", "wv", "value", "values", "tov"}),
}
_REFORMER = "Kitaev 2020 (Reformer), arXiv:2001.04451, section 2: shared q and k are a choice, with a price"
_ALBERT = "Lan 2020 (ALBERT), arXiv:1909.11942, section 3.1; Dehghani 2019, arXiv:1807.03819"


def sharing(exam: Examination) -> Iterator[Finding]:
    """What is one thing where the code suggests several."""
    equal = list(_one_projection(exam))
    yield from exam.as_meant(equal or _tied_weights(exam), "one projection of queries and keys")
    yield from _repeated(exam)


# q and k


def _one_projection(exam: Examination) -> Iterator[Finding]:
    """Yield whether queries and keys are the same numbers."""
    tape = exam.usual_tape
    for one in attentions(tape, exam.convention):
        if not _equal(one) or not _is_projected(tape, one):
            continue
        yield _same_vectors(_matrices(tape, one.q_index), _matrices(tape, one.k_index))
        return


def _same_vectors(of_queries: set[str], of_keys: set[str]) -> Finding:
    """The error of one projection for both, or the warning about two that start with the same numbers."""
    if of_queries & of_keys:
        return Finding(
            ID,
            "error",
            f"queries and keys are the same vectors: both come from {' and '.join(sorted(of_queries & of_keys))}, so"
            " the scores are symmetric.",
            "largest difference between q and k over all heads and positions: 0",
            "project the keys with their own layer; if one is meant for both, say so in the docstring, or accept it",
            _REFORMER,
        )
    return Finding(
        ID,
        "warning",
        f"queries and keys start as the same vectors: {' and '.join(sorted(of_queries | of_keys))} hold equal numbers.",
        "largest difference between q and k over all heads and positions: 0",
        "initialize the two projections independently",
        _REFORMER,
    )


def _tied_weights(exam: Examination) -> Iterator[Finding]:
    """Yield projections of q and k that share a weight but not their biases, so that their vectors differ."""
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in exam.eval_module.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    for parameter, places in names.items():
        roles = {role for role, words in _ROLES.items() for place in places if words & set(_WORD.split(place.lower()))}
        owners = {exam.eval_module.get_submodule(place.rpartition(".")[0]) for place in places}
        if parameter.dim() > 1 and len(roles) > 1 and len(owners) > 1:
            yield Finding(
                ID,
                "error",
                f"{' and '.join(places[:4])} are one and the same weight.",
                f"{len(places)} names, one set of {parameter.numel()} numbers",
                "give each projection its own weight; if sharing is meant, say so in the docstring",
                _REFORMER,
            )


def _equal(one: TapedAttention) -> bool:
    """Whether q and k of self-attention are the same numbers."""
    return one.q is not None and one.k is not None and one.q.shape == one.k.shape and torch.equal(one.q, one.k)


def _matrices(tape: Tape, start: int | None) -> set[str]:
    """The nearest parameters that made a tensor: those of the last products on the way."""
    names: set[str] = set()
    waiting, seen = [] if start is None else [start], set[int]()
    while waiting:
        at = waiting.pop()
        own = {name for name in tape.events[at].parameters if name is not None}
        names |= own
        if not own and at not in seen:
            waiting += [parent for parent in tape.events[at].parents if parent is not None]
        seen.add(at)
    return names


def _is_projected(tape: Tape, one: TapedAttention) -> bool:
    """Whether q went through a learned matrix: without any projection q = k = x is a choice."""
    return bool(_matrices(tape, one.q_index))


# Heads and layers


def _repeated(exam: Examination) -> Iterator[Finding]:
    """Yield modules with weights that stand under several names."""
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, part in exam.eval_module.named_modules(remove_duplicate=False):
        names[part].append(name)
    for part, places in names.items():
        if len(places) < 2 or not any(parameter.dim() > 1 for parameter in part.parameters()):
            continue
        if isinstance(part, nn.Embedding) or any(places[0].startswith(f"{outer}.") for outer in _outer(names, part)):
            continue
        yield from _judge(exam, part, places)


def _outer(names: dict[nn.Module, list[str]], part: nn.Module) -> list[str]:
    """The names of the larger modules that stand under several names themselves."""
    return [place for other, places in names.items() if other is not part and len(places) > 1 for place in places]


def _judge(exam: Examination, part: nn.Module, places: list[str]) -> Iterator[Finding]:
    """An error where the repetition computes the same thing twice, else a warning; facts where declared."""
    found = exam.as_meant(_repetition(exam, part, places), "shared parts")
    yield from exam.as_meant(found, "one projection of queries and keys")


def _repetition(exam: Examination, part: nn.Module, places: list[str]) -> Iterator[Finding]:
    inputs = _inputs(exam, part)
    numbers = sum(parameter.numel() for parameter in part.parameters())
    evidence = (
        f"{len(places)} names ({', '.join(places[:4])}), one set of {numbers} numbers; called {len(inputs)} times"
    )
    if len(inputs) > 1 and all(torch.equal(inputs[0], other) for other in inputs[1:]):
        yield Finding(
            ID,
            "error",
            f"{' and '.join(places[:4])} are one and the same module, and it computes the same thing each time.",
            f"{evidence} with the same input",
            "build each one anew: [Head() for _ in range(n)] instead of [Head()] * n or a second name",
            "PyTorch documentation, torch.nn.ModuleList",
        )
    elif len(inputs) > 1:
        yield Finding(
            ID,
            "warning",
            f"{' and '.join(places[:4])} are one and the same module: the layers share all their weights.",
            evidence,
            "build each one anew: nn.ModuleList([Block() for _ in range(n)]); if it is meant, say so in the docstring",
            _ALBERT,
        )


def _inputs(exam: Examination, part: nn.Module) -> list[Tensor]:
    """What a submodule is given at each of its calls."""
    given: list[Tensor] = []

    def note(_module: nn.Module, inputs: tuple[object, ...]) -> None:
        given.extend(one.detach().clone() for one in inputs[:1] if isinstance(one, Tensor))

    handle = part.register_forward_pre_hook(note)
    try:
        exam.run(exam.inputs())
    finally:
        handle.remove()
    return given
