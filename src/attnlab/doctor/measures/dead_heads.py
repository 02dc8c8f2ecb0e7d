"""Part of `dead-parts`: a head without influence, seen as rows or columns of a shared projection without gradient."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.position_claims import names_position
from attnlab.doctor.measures.cuts import DETACH_URL
from attnlab.doctor.measures.gradients import Survey, influence, revives
from attnlab.strangers.loading.mentions import use_of

_SHOWN = 4  # projections in one sentence
_SMALLEST_BLOCK = 16  # a dead head is at least this part (1/16) of a projection; fewer units may be silent by chance
_SMALLEST_CUT = 4  # neighbouring units of a rectifier that are silent at once by chance, but could speak: fewer


def silent_rows(exam: Examination, seen: Survey) -> Iterator[Finding]:
    """Yield blocks of a projection's rows or columns that do nothing: a dead head."""
    dead, cut = [], []
    for name, axis, rows in _dead_blocks(exam, seen):
        size = dict(exam.eval_module.named_parameters())[name].shape[axis]
        words = f"{'rows' if axis == 0 else 'columns'} {int(rows[0])} to {int(rows[-1])} of {size} in {name}"
        if influence(exam, [name], rows=(axis, rows)) <= exam.tolerance:
            dead.append(words)
        elif len(rows) >= max(_SMALLEST_CUT, size // 8) and not revives(exam, [name], rows=(axis, rows)):
            cut.append(words)
    if dead:
        yield Finding(
            "dead-parts",
            "error",
            "part of a projection has no influence: what it makes, such as a head or queries and keys, is dead.",
            f"gradient 0 in {seen.calls} calls, and the output does not change when they are replaced: "
            + "; ".join(dead[:_SHOWN]),
            "see that every head's slice is computed, kept and concatenated (loop bounds, slices, overwritten results),"
            " and that a softmax has more than one key: over a single one it gives 1 whatever q and k are",
            "Vaswani 2017, arXiv:1706.03762, section 3.2.2: all heads are concatenated",
        )
    if cut:
        finding = Finding(
            "dead-parts",
            "error",
            "part of a projection shapes the output but gets no gradient: the graph is cut behind it.",
            f"gradient 0 in {seen.calls} calls, but the output changes when they are replaced: "
            + "; ".join(cut[:_SHOWN]),
            "remove .data, .detach(), torch.no_grad() or torch.tensor(...) between it and the output",
            DETACH_URL,
        )
        yield from exam.as_meant([finding], "stopped gradients")


def _dead_blocks(exam: Examination, seen: Survey) -> Iterator[tuple[str, int, Tensor]]:
    """Yield runs of neighbouring rows or columns without gradient, wide enough to be no chance."""
    for name, alive in seen.alive.items():
        owner = exam.eval_module.get_submodule(name.rpartition(".")[0])
        if alive.dim() < 2 or not alive.any() or isinstance(owner, nn.Embedding) or names_position(name):
            continue
        axes = (0, 1) if isinstance(owner, nn.Conv1d) else range(alive.dim())
        for axis in axes:
            by_length = [_along(own, axis) for own in seen.per_length[name].values()]
            size = alive.shape[axis]
            same = all(torch.equal(by_length[0], other) for other in by_length[1:])
            if (
                not same
                or size == (exam.convention.vocab_size or -1)
                or size in {exam.convention.longest, exam.convention.length}
            ):
                continue
            dead = ~_along(alive, axis)
            run = _longest_run(dead)
            if len(run) >= max(1 if alive.dim() > 2 else 2, size // _SMALLEST_BLOCK) and use_of(
                exam.eval_module, name
            ) in {"always", "unknown"}:
                yield name, axis, run


def _along(alive: Tensor, axis: int) -> Tensor:
    """For each index along an axis whether anything lives there."""
    return alive.movedim(axis, 0).flatten(1).any(1)


def _longest_run(dead: Tensor) -> Tensor:
    """The indices of the longest run of neighbours."""
    best: list[int] = []
    run: list[int] = []
    for index, is_dead in enumerate(dead.tolist()):
        run = [*run, index] if is_dead else []
        best = run if len(run) > len(best) else best
    return torch.tensor(best, dtype=torch.long)
