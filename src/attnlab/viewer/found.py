"""Studies and single runs below a folder, each with what it says of itself in a few words."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from attnlab.core.errors import RunError
from attnlab.training.keeping.runs import METRICS, SPEC
from attnlab.viewer.known import is_study, known
from attnlab.viewer.places import address, path_below
from attnlab.viewer.states import state_of_run, state_of_study

DEEPEST = 6
"""Levels of folders that are looked through: a runs folder has two or three."""
MOST_FOLDERS = 20_000
"""Folders that are looked at: some seconds."""
MOST = 500
"""Studies and runs that a page lists."""


@final
@dataclass(frozen=True)
class Listed:
    """Hold one study or single run."""

    path: str  # from the folder that is viewed; empty for the folder itself
    name: str  # of the folder
    address: str  # of its page; empty where there is none
    state: str  # a `State`, or ``damaged``
    question: str = ""  # of a study
    done: int = 0  # runs that have finished or failed
    of: int = 1  # runs that are planned so far
    sentences: tuple[str, ...] = ()  # the answer so far, with `words.named` variants
    trouble: str = ""  # why it cannot be shown
    events: str = ""  # address of what is told of a study that runs


def found(folder: Path) -> list[Listed]:
    """What lies below a folder: what goes on now, then the last written first."""
    root = folder.resolve()
    places = sorted(_places(root), key=_written, reverse=True)
    listed = [_study(root, place) if is_study(place) else _run(root, place) for place in places]
    return sorted(listed, key=lambda one: one.state != "running")


def _written(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:  # gone since
        return 0.0


def _places(root: Path) -> Iterator[Path]:
    """Folders of studies and single runs; what lies within one belongs to it. Links are not followed."""
    count = 0
    for name, folders, files in itertools.islice(os.walk(root), MOST_FOLDERS):
        place = Path(name)
        if is_study(place) or {SPEC, METRICS} & set(files):
            folders.clear()
            yield place
            count += 1
        if count == MOST:
            return
        deep = len(place.relative_to(root).parts) >= DEEPEST
        folders[:] = [] if deep else sorted(one for one in folders if not one.startswith("."))


def _study(root: Path, place: Path) -> Listed:
    path = path_below(root, place)
    name = place.name
    try:
        said = known(place)
    except RunError as error:
        return Listed(path, name, "", "damaged", trouble=str(error))
    states = [state_of_run(place / run.folder) for run in said.runs]
    done = sum(state in ("finished", "failed") for state in states)
    state = state_of_study(place, states)
    events = address("events", path) if state == "running" else ""
    return Listed(
        path, name, address("study", path), state, said.question, done, len(states), said.answer, events=events
    )


def _run(root: Path, place: Path) -> Listed:
    path, state = path_below(root, place), state_of_run(place)
    return Listed(path, place.name, address("run", path), state, done=int(state in ("finished", "failed")))
