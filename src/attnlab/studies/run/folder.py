"""The folder of a study: question and rules written before the first step, and held to afterwards.

Within it every cell has a folder of its own, which says whether the cell is done.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from attnlab.core.errors import RunError
from attnlab.core.files import SEAL, fingerprint, read_json, read_sealed, sealed, write_json
from attnlab.core.machine import environment
from attnlab.studies.define.study import OWN_FILES, study_hash
from attnlab.studies.plan.plan import SEALED, CellPlan, Plan, rules_hash
from attnlab.studies.run.task_record import TaskRecord
from attnlab.training.keeping.result import read_record
from attnlab.training.keeping.runs import RESULT, SPEC

RULES, STUDY, ENVIRONMENT = "rules.json", "study.json", "environment.json"
INSIDE = "inside.json"
"""File of a cell with predictions, attention maps and measured reach."""
CLOCK = "clock.json"
"""File of a cell with the seconds of its steps, measured in turns with those of the other variants."""
_BESIDE_RULES = ("hash", "fixed_at", "extended")
_PREFIX = {"content": "", "files": "file", "scale": "scale"}


def prepare(plan: Plan, out: Path) -> None:
    """Write study and rules before the first step, or check that they are those already written."""
    rules = plan.rules_record()
    if not (out / RULES).exists():
        reports = sorted(name for name in OWN_FILES if name.startswith(("report.", "charts")) and (out / name).exists())
        if reports:
            raise RunError(f"{out} is no study's folder and holds {', '.join(reports)}; choose another with --out")
        write_json(out / STUDY, sealed(_study_record(plan)))
        write_json(out / ENVIRONMENT, environment())
        write_json(out / RULES, {**rules, "fixed_at": datetime.now(UTC).isoformat(timespec="seconds")})
        return
    written = read_rules(out)
    if written["hash"] != rules["hash"]:
        _refuse(plan, out, written)


def read_rules(out: Path) -> dict[str, Any]:
    """The rules as they were written before the first step; a `RunError` where they, or the study, were changed."""
    rules, study = read_json(out / RULES), read_study(out)
    is_older = "levels" not in rules and SEAL not in read_json(out / STUDY)
    is_whole = {"files", "data"} <= study.keys()
    if is_older and not is_whole:  # folders of the first versions tell too little to know
        return rules
    own = {key: value for key, value in rules.items() if key not in _BESIDE_RULES}
    if not is_whole or rules["hash"] != rules_hash(own, study_hash(study["content"], study["files"]), study["data"]):
        raise RunError(
            f"{out}: {RULES} or {STUDY} was changed after the study began, so nothing can be judged by them; put back "
            "what was changed, or run the study anew in another folder"
        )
    return rules


def read_study(out: Path) -> dict[str, Any]:
    """The study, its task and its plan as written before the first step; a `RunError` where they were changed."""
    return read_sealed(out / STUDY, required=is_sealed(out))


def is_sealed(out: Path) -> bool:
    """Whether the records of a folder carry fingerprints; those of earlier versions do not."""
    return (out / RULES).exists() and read_json(out / RULES).get("records") == SEALED


def read_cell(out: Path, cell: CellPlan, *, required: bool) -> dict[str, Any] | None:
    """The result of a planned run, None if it is not done; a `RunError` where it was changed, or is of another run."""
    folder = out / cell.folder
    result = read_record(folder, required=required)
    if result is not None and required:
        kept = read_json(folder / SPEC)
        changed = _difference(kept, json.loads(json.dumps(cell.spec)))
        if changed and all(name.startswith("task.") for name in changed):  # the study is the same: its files were moved
            raise RunError(
                f"{folder} was trained on files elsewhere, and goes on with them where they were: "
                + ", ".join(f"{name} {kept['task'].get(name.partition('.')[2])}" for name in changed)
            )
        if changed:
            raise RunError(f"{folder} holds another run (it differs in: {', '.join(changed)}); put back the right one")
    return result


def read_inside(out: Path, cell: CellPlan, *, required: bool) -> dict[str, Any] | None:
    """What was seen inside a trained model; nothing where it is not looked into, None where it is still to be.

    A `RunError` says that it was changed, or is of another run.
    """
    path = os.path.join(out, cell.folder, INSIDE)  # a study may ask for 100,000 runs, where a Path is slow
    if not os.path.exists(path):
        return None if required and cell.spec["look_inside"] else {}
    return _of_cell(Path(path), cell, "seen inside", required=required)


def read_clock(out: Path, cell: CellPlan) -> float | None:
    """The seconds of a step of a planned run, measured in turns; None where they were not.

    A `RunError` says that they were changed, or are of another run.
    """
    path = out / cell.folder / CLOCK
    return _of_cell(path, cell, "measured of", required=True)["seconds_per_step"] if path.exists() else None


def _of_cell(path: Path, cell: CellPlan, how: str, *, required: bool) -> dict[str, Any]:
    """A record of a run, which says what run it is of."""
    found = read_sealed(path, required=required)
    if required and found["of"] != fingerprint(json.loads(json.dumps(cell.spec))):
        raise RunError(f"{path} was {how} another run; put back the right one")
    return found


def recorded_setting(folder: Path) -> dict[str, Any]:
    """Precision and compiling that a run ended in."""
    result = read_json(folder / RESULT)
    return {"precision": result["precision"], "compile": result["compiled"]}


def is_done(folder: Path, spec: Mapping[str, Any]) -> bool:
    """Whether a cell needs no more work."""
    if not (folder / RESULT).exists() or read_json(folder / SPEC) != json.loads(json.dumps(spec)):
        return False
    return not spec["look_inside"] or (folder / INSIDE).exists()


def _study_record(plan: Plan) -> dict[str, Any]:
    study = plan.study
    variants = [asdict(variant) for variant in plan.variants]
    task = asdict(TaskRecord.of(plan.task))
    return {**study.to_json(), "files": study.files(), "data": plan.data(), "task": task, "variants": variants}


def _refuse(plan: Plan, out: Path, written: Mapping[str, Any]) -> NoReturn:
    """Say in what a study differs from the one that its folder was begun with."""
    before = read_study(out)
    now = _study_record(plan)
    if before.get("data", now["data"]) != now["data"]:
        raise RunError(f"{out} holds runs on another text: it has changed since; choose another folder with --out")
    changed = [f for key in ("content", "files", "scale") for f in _difference(before.get(key), now[key], _PREFIX[key])]
    if changed and all(key.startswith("rules.seeds") for key in changed):
        raise RunError(
            f"{out} was begun with seeds {_seeds(written['seeds'])}, and seeds added after a look at the results make "
            "its error larger than it says; begin anew with --out, and with seeds: {at_least: 3, at_most: 20} for as "
            f"many as it takes; or see: attnlab report {out}"
        )
    raise RunError(
        f"{out} holds runs of another study or other rules (they differ in: {', '.join(changed) or 'version'}); "
        "choose another folder with --out, or delete it"
    )


def _seeds(seeds: int | Mapping[str, int]) -> str:
    return str(seeds) if isinstance(seeds, int) else f"{seeds['at_least']} to {seeds['at_most']}"


def _difference(one: Any, other: Any, path: str = "") -> list[str]:
    """The dotted keys in which two nested mappings differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = sorted(set(one) | set(other))
    return [found for key in keys for found in _difference(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))]
