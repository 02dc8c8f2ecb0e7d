"""What is known of a study so far, without its curves: read once for every state of its files."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnlab.core.contracts import Metric
from attnlab.core.errors import AttnlabError, RunError
from attnlab.core.files import read_json
from attnlab.core.processes.apart import names_own_code
from attnlab.studies.judge.collect import load_plan, so_far
from attnlab.studies.judge.results import Alarm, StudyResults
from attnlab.studies.judge.tuning import cells_again, chosen_settings
from attnlab.studies.plan.plan import CellPlan
from attnlab.studies.report import tables, words
from attnlab.studies.run.folder import RULES, STUDY, read_study
from attnlab.studies.run.layout import LAYOUT

MOST_KEPT = 64
"""Studies whose words are kept in memory."""
OF_RUNS = ("seed-", "tune-")
"""How folders below those of variants begin."""


@final
@dataclass(frozen=True)
class PlannedRun:
    """Name one run of a study, and what it may use up."""

    folder: str  # its place within the study's folder
    variant: str  # name of the variant
    title: str  # which of the variant's runs it is, in words
    tuning: bool  # whether it is one of those that choose settings
    budget: tuple[str, float]  # ``steps``, ``tokens``, ``flops`` or ``seconds``, and how many
    flops_per_token: float  # training FLOPs

    @classmethod
    def of(cls, cell: CellPlan) -> PlannedRun:
        """The run that a study plans."""
        settings = ", ".join(f"{key} {value:g}" for key, value in cell.tuned.items())
        seed = f"seed {cell.seed}" if cell.tuning_run is None else f"tuning {cell.tuning_run}"
        title = ", ".join(filter(None, (seed, settings if cell.tuning_run else "")))
        ((kind, amount),) = ((k, v) for k, v in cell.spec["recipe"]["budget"].items() if v is not None)
        return cls(
            cell.folder, cell.variant, title, cell.tuning_run is not None, (kind, amount), cell.spec["flops_per_token"]
        )


@final
@dataclass(frozen=True)
class KnownStudy:
    """Hold what a study says of itself and of its runs."""

    name: str  # of the study
    question: str  # what it asks, in words
    baseline: str  # name of the variant that others are compared with
    variants: tuple[str, ...]  # names, in the order of the study
    metrics: tuple[Metric, ...]  # whose curve is worth drawing, the first best
    metric: Metric  # that of the verdicts
    answer: tuple[str, ...]  # sentences with `words.named` variants; empty before a run has ended
    facts: tuple[str, ...]  # what stands below the answer
    alarms: tuple[Alarm, ...]  # what makes a number doubtful, failed runs left out
    failures: tuple[tuple[str, int, str], ...]  # variant, seed and error of every run that failed
    rows: tuple[Mapping[str, Any], ...]  # of the table of verdicts
    effects: tuple[Mapping[str, Any], ...]  # ``name``, ``verdict``, ``difference``, ``low``, ``high`` of comparisons
    smallest_effect: float  # smallest effect of interest; 0 for none
    runs: tuple[PlannedRun, ...]  # those that choose settings first
    workers: int  # processes that share the runs


def known(folder: Path) -> KnownStudy:
    """What is known of the study in a folder.

    Parameters
    ----------
    folder : Path
        The study's folder; no code that it names is run.

    Returns
    -------
    KnownStudy
        The words; the same object until a file of the study or a result of a run changes.

    Raises
    ------
    RunError
        If it holds no study, or one that cannot be read.
    """
    stamp, kept = _stamp(folder), _kept(folder)
    if not kept or kept[0][0] != stamp:
        kept[:] = [(stamp, _readable(folder))]
    return kept[0][1]


def is_study(folder: Path) -> bool:
    """Whether a folder says that it holds a study."""
    return (folder / STUDY).is_file() or (folder / RULES).is_file()


def _stamp(folder: Path) -> int:
    """What tells one state of a study's files from the next, in whatever order they are met."""
    return sum(hash((one.path, status.st_mtime_ns, status.st_size)) for one, status in _records(folder, depth=0))


def _records(folder: Path | str, depth: int) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """The study's own records and those of its runs; not the notes beside locks, which change with the hour."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:  # gone since
        for one in found:
            with contextlib.suppress(OSError):
                if one.name.endswith(".json") and not one.name.startswith("."):
                    yield one, one.stat()
                elif one.is_dir() and (depth == 0 or one.name.startswith(OF_RUNS)):
                    yield from _records(one.path, depth + 1)


@functools.lru_cache(maxsize=MOST_KEPT)
def _kept(_: Path) -> list[tuple[int, KnownStudy]]:
    """What was known of a study last, with the state of its files; empty before."""
    return []


def _readable(folder: Path) -> KnownStudy:
    try:
        return _read(folder)
    except AttnlabError as error:
        raise RunError(str(error)) from error
    except Exception as error:  # whatever a file of a stranger holds
        raise RunError(f"{folder.name} cannot be read as a study: {type(error).__name__}: {error}") from error


def _read(folder: Path) -> KnownStudy:
    _refuse_own_code(folder)
    plan = load_plan(folder)
    judged, results = so_far(plan, chosen_settings(plan, folder), folder, writes=False)
    cells = [*plan.tuning_cells(), *cells_again(plan, folder), *judged]
    return KnownStudy(
        name=results.study,
        question=results.question,
        baseline=results.baseline,
        variants=tuple(variant.name for variant in results.variants),
        metrics=(results.metric, *results.metrics),
        metric=results.metric,
        answer=tuple(words.sentences(results)) if any(variant.done for variant in results.variants) else (),
        facts=tuple(tables.facts(results)),
        alarms=tuple(words.alarms(results)),
        failures=tuple(tables.failed_runs(results)),
        rows=tuple(tables.verdicts(results)),
        effects=tuple(_effects(results)),
        smallest_effect=results.smallest_effect,
        runs=tuple(PlannedRun.of(cell) for cell in cells),
        workers=_workers(folder),
    )


def _refuse_own_code(folder: Path) -> None:
    """Raise where a folder of an earlier version kept nothing of a task that is a person's own code."""
    saved = read_study(folder) if (folder / STUDY).exists() else {}
    if saved and not saved.get("task") and names_own_code(saved["content"]["task"]):
        raise RunError(f"{folder.name} is of an earlier version and needs its own code; see: attnlab report {folder}")


def _effects(results: StudyResults) -> Iterator[dict[str, Any]]:
    """The comparisons that have a difference."""
    for one in (*results.verdicts, *results.exploratory):
        apart = one.comparison
        if apart.difference is not None:
            numbers = {"difference": apart.difference, "low": apart.low, "high": apart.high}
            texts = {"told": f"{words.difference(apart)} ({words.interval(apart)})", "verdict": one.verdict}
            yield {"name": words.title(results, one), **numbers, **texts}


def _workers(folder: Path) -> int:
    return int(read_json(folder / LAYOUT)["workers"]) if (folder / LAYOUT).exists() else 1
