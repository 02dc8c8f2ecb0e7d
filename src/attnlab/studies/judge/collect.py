"""Read a study's run folder into plain data."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from attnlab.core.build import build
from attnlab.core.errors import RunError
from attnlab.core.files import read_json
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.study import restore_study, slug
from attnlab.studies.judge.alarms import alarms_of, doubts_about
from attnlab.studies.judge.asking import SeedsAsked
from attnlab.studies.judge.results import Alarm, CellResults, StudyResults, VariantResults, looks_in
from attnlab.studies.judge.tuning import TUNING, chosen_settings, read_tuning
from attnlab.studies.judge.worth import PartsJudged, kept_parts
from attnlab.studies.plan.plan import CellPlan, Plan, PlannedVariant, restore_plan
from attnlab.studies.run.folder import ENVIRONMENT, STUDY, is_sealed, read_inside, read_rules, read_study
from attnlab.studies.run.index import index_of
from attnlab.studies.run.layout import LAYOUT
from attnlab.studies.run.task_record import TaskRecord
from attnlab.studies.storage.mirror import local
from attnlab.training.keeping.runs import FAILED, SPEC, LaterRecords
from attnlab.training.recipe.objectives import OBJECTIVES
from attnlab.training.recipe.target import SECONDS_TO_TARGET
from attnlab.training.speed.settings import Setting


def load_plan(out: Path) -> Plan:
    """The plan of the study that a folder holds."""
    path = out / STUDY
    if (out / SPEC).exists():
        raise RunError(f"{out} is one run of a study; its report is that of the study's folder: {out.parent.parent}")
    if not path.exists():
        raise RunError(f"{out} holds no study: no {STUDY} in it. Run one with: attnlab run STUDY --out {out}")
    saved = read_study(out)
    study = restore_study(saved)
    kept = saved.get("task")  # none in folders of earlier versions
    task = TaskRecord.from_json(kept) if kept else build_task(study.task_spec())
    return restore_plan(study, task, saved["variants"])


def read_results(out: Path) -> StudyResults:
    """Read everything a study has found so far.

    Parameters
    ----------
    out : Path
        Folder of the study, finished or not; also one in an object store, such as ``s3://bucket/my-study``.

    Returns
    -------
    StudyResults
        What its runs reached; nothing is trained and no data is needed.

    Raises
    ------
    RunError
        If the folder holds no study.
    """
    out = local(out)
    plan = load_plan(out)
    return so_far(plan, chosen_settings(plan, out), out)[1]


def so_far(
    plan: Plan, chosen: Mapping[str, Mapping[str, int | float]], out: Path, *, writes: bool = True
) -> tuple[list[CellPlan], StudyResults]:
    """The judged runs that the rules ask for by what is known so far, and what they have found.

    After each look both variants of a comparison that it left open get the seeds of the next. The index of the runs is
    written, unless the folder is only to be read.
    """
    looking = Looking(plan, out, chosen)
    waiting = [variant.name for variant in plan.variants]
    while waiting:
        name = waiting.pop()
        if looking.has_ended(name):
            waiting += looking.asked.had(name)
    judged = looking.judged()
    found = judged, looking.results(judged)
    if writes:
        index_of(out).write()
    return found


@final
class Looking:
    """Look into the folder of a study as its runs end; what is done is read once.

    Parameters
    ----------
    plan : Plan
        The study.
    out : Path
        Its folder.
    chosen : mapping
        By variant the settings of its judged runs; may get longer as they are chosen.
    """

    def __init__(self, plan: Plan, out: Path, chosen: Mapping[str, Mapping[str, int | float]]) -> None:
        self._plan, self._out, self._chosen, self._index = plan, out, chosen, index_of(out)
        self._rules = read_rules(out)
        self._sealed = is_sealed(out)
        self._environment = read_json(out / ENVIRONMENT) | _layout(out)
        self._cells: dict[str, CellResults] = {}
        self.asked = SeedsAsked(
            [variant.name for variant in plan.variants],
            plan.study.contrasts,
            baseline=plan.study.baseline,
            looks=looks_in(self._rules),
            left_open=self._left_open,
        )

    def judged(self, *names: str) -> list[CellPlan]:
        """The judged runs that are asked for so far, of some variants or of all."""
        counts = self.asked.counts
        return self._plan.judged_cells(self._chosen, {name: counts[name] for name in names or counts})

    def has_ended(self, name: str) -> bool:
        """Whether every run that is asked for of a variant lies there, done or failed."""
        return all(self._cell(cell).status != "missing" for cell in self.judged(name))

    def results(self, judged: Sequence[CellPlan] | None = None) -> StudyResults:
        """What the judged runs have found; by default all that are asked for."""
        variants = self._variants(self.judged() if judged is None else judged)
        return self._results(variants, tuple(alarms_of(self._plan, variants, self._rules)))

    def _left_open(self, names: Collection[str], seeds: int) -> set[str]:
        """Which of some variants need more runs than so many seeds, by the comparisons among them."""
        variants = self._variants(self._plan.judged_cells(self._chosen, dict.fromkeys(names, seeds)))
        doubts = tuple(one for variant in variants for one in doubts_about(self._plan, variant))
        return self._results(variants, doubts).left_open(seeds)

    def _variants(self, judged: Sequence[CellPlan]) -> tuple[VariantResults, ...]:
        """What the variants of some runs have found by these."""
        cells: dict[str, list[CellPlan]] = {}
        for cell in judged:
            cells.setdefault(cell.variant, []).append(cell)
        tuning = read_tuning(self._out)
        return tuple(self._variant(one, cells[one.name], tuning) for one in self._plan.variants if one.name in cells)

    def _results(self, variants: tuple[VariantResults, ...], alarms: tuple[Alarm, ...]) -> StudyResults:
        plan = self._plan
        return StudyResults(
            study=plan.study.name,
            question=plan.study.question,
            task={"name": plan.task.name, **plan.task.describe()},
            metric=plan.metric,
            metrics=plan.metrics,
            floors=plan.task.floors(),
            rules=self._rules,
            baseline=plan.study.baseline,
            contrasts=plan.study.contrasts,
            scale=plan.study.scale,
            variants=variants,
            alarms=alarms,
            environment=self._environment | _devices(variants) | _company(variants),
            complete=all(cell.status != "missing" for variant in variants for cell in variant.cells),
            heads=self._heads,
        )

    @functools.cached_property
    def _heads(self) -> tuple[PartsJudged, ...]:
        names = {slug(variant.name): variant.name for variant in self._plan.variants}
        return tuple(replace(one, variant=names[one.variant]) for one in kept_parts(self._out))

    def _variant(self, planned: PlannedVariant, cells: Sequence[CellPlan], tuning: Mapping[str, Any]) -> VariantResults:
        run = cells[0].spec
        read = tuple(self._cell(cell) for cell in cells)
        objective = run["recipe"].get("objective", "likelihood")
        if build(objective, OBJECTIVES, axis="objective").samples:  # it also learns from what it writes
            read = tuple(replace(one, tokens=None) for one in read)
        tunes = self._plan.study.rules.tuning_runs > 0
        if tunes and planned.name not in tuning and any(one.status == "done" for one in read):
            raise RunError(f"{self._out / TUNING} is missing, which says what was chosen; attnlab run writes it again")
        return VariantResults(
            name=planned.name,
            spec={"task": run["task"], "model": run["model"], "training": run["recipe"]},
            parameters=planned.parameters,
            flops_per_token=planned.flops_per_token,
            activation_bytes=planned.activation_bytes,
            notes=planned.notes,
            tuning=tuning.get(planned.name),
            cells=read,
        )

    def _cell(self, cell: CellPlan) -> CellResults:
        if cell.folder in self._cells:
            return self._cells[cell.folder]
        found = self._read(cell)
        if found.status == "done":  # else it may still be
            self._cells[cell.folder] = found
        return found

    def _read(self, cell: CellPlan) -> CellResults:
        """What one run reached; where it is timed, with the seconds of all its steps as the time to the target."""
        folder = self._out / cell.folder
        result = self._index.result(cell, required=self._sealed)
        looked = read_inside(self._out, cell, required=self._sealed)
        if result is not None and looked is not None:
            metrics = result["metrics"]
            if "claim_levels" in self._rules:
                metrics = {SECONDS_TO_TARGET: _seconds(result), **metrics}
            return CellResults(
                seed=cell.seed,
                status="done",
                metrics=metrics,
                seconds=result["seconds"],
                written_per_second=result.get("written_per_second", 0.0),  # not in results of earlier versions
                setting=str(Setting(result["precision"], result["compiled"])),
                device=result.get("environment", {}).get("device", ""),
                together=result.get("together", 1),  # not in results of earlier versions
                together_note=result.get("together_note", ""),
                curve=LaterRecords(folder),
                steps=result.get("steps"),
                tokens=result.get("tokens"),
                predictions=looked.get("predictions"),
                attention=looked.get("attention"),
                reach=looked.get("reach"),
                surface=looked.get("surface"),  # not in results of earlier versions
            )
        if (folder / FAILED).exists():
            error = read_json(folder / FAILED)["error"]
            return CellResults(seed=cell.seed, status="failed", error=error, curve=LaterRecords(folder))
        return CellResults(seed=cell.seed, status="missing")


def _seconds(result: Mapping[str, Any]) -> float:
    """What all steps of a run take, and choosing how: by a step measured in turns where it was, else as it took."""
    a_step = result.get("seconds_per_step")
    return result["seconds"] if a_step is None else a_step * result["steps"] + result["choosing_seconds"]


def _layout(out: Path) -> dict[str, Any]:
    """How the cells shared the machine, as part of the environment."""
    path = out / LAYOUT
    if not path.exists():
        return {}
    layout = read_json(path)
    shared = f"{layout['workers']} process(es), {layout['threads']} thread(s) each; {layout['reason']}"
    return {"threads": layout["threads"], "device": layout["device"], "layout": shared}


def _devices(variants: Sequence[VariantResults]) -> dict[str, Any]:
    """What the runs say they were computed on, as part of the environment."""
    names = dict.fromkeys(cell.device for variant in variants for cell in variant.done if cell.device)
    return {"device": ", ".join(names)} if names else {}


def _company(variants: Sequence[VariantResults]) -> dict[str, Any]:
    """Which variants' seeds trained as one program, and why others did not, as part of the environment."""
    words = []
    for variant in variants:
        most = max((cell.together for cell in variant.done), default=1)
        notes = dict.fromkeys(cell.together_note for cell in variant.done if cell.together_note)
        said = [*([f"{most} seeds together"] if most > 1 else []), *notes]
        words += [f"{variant.name}: {'; '.join(said)}"] if said else []
    return {"trained_together": ". ".join(words)} if words else {}
