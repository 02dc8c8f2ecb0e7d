"""An index of a study's runs: what their results say, in one file beside their folders, so that few need be opened.

It is never more than a copy. What it says of a run is believed while size, times and number of every file that it was
read from are as they were; anything else is read from the folder of the run. Who edits a file changes the time of its
last change, which no program can set. The file may be removed, and is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError
from attnlab.core.files import replace_file
from attnlab.studies.plan.plan import CellPlan
from attnlab.studies.run.folder import CLOCK, INSIDE, is_done, read_cell, read_clock
from attnlab.training.keeping.runs import METRICS, RESULT, SPEC

INDEX = ".runs.jsonl"
"""A line with the version and the sha256 of all that follows, then one a run: folder, what it was read from, record."""
VERSION = "2"
READ_FROM = (RESULT, METRICS, SPEC, CLOCK)
KEPT = (
    *("metrics", "steps", "tokens", "seconds", "written_per_second", "precision", "compiled"),
    *("choosing_seconds", "together", "together_note"),
)
"""What is collected of a result."""
SETTLED_S = 2.0
"""Age of a file from which on a later change has another time, on every file system."""
MOST_KEPT = 8
"""Studies whose index stays in memory."""


@final
class RunIndex:
    """Say of the runs of a study what they reached.

    Parameters
    ----------
    out : Path
        Folder of the study.

    Notes
    -----
    A run that is believed costs four questions to the file system; its line is parsed when it is asked for.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lines = _lines(out / INDEX)
        self._changed = False

    def result(self, cell: CellPlan, *, required: bool) -> Mapping[str, Any] | None:
        """What `read_cell` returns of a run, or the part of it that is collected, and ``seconds_per_step`` if timed."""
        kept = self._kept(cell, stamp := _stamp(self._out, cell, required=required))
        if kept is not None:
            return json.loads(kept)
        result = read_cell(self._out, cell, required=required)
        if result is None:
            return None
        timed = read_clock(self._out, cell)
        record = dict(result) if timed is None else {**result, "seconds_per_step": timed}
        self._keep(cell, stamp, record)
        return result if timed is None else record

    def is_done(self, cell: CellPlan, *, required: bool) -> bool:
        """Whether a run needs no more work."""
        if not required or self._kept(cell, _stamp(self._out, cell, required=True)) is None:
            return is_done(self._out / cell.folder, cell.spec)
        return not cell.spec["look_inside"] or (self._out / cell.folder / INSIDE).exists()

    def _kept(self, cell: CellPlan, stamp: str) -> bytes | None:
        """The record of a run whose files are as they were."""
        line = self._lines.get(cell.folder)
        if line is None or not stamp:
            return None
        known, _, record = line.partition(b"\t")
        return record if known == stamp.encode() else None

    def _keep(self, cell: CellPlan, stamp: str, record: Mapping[str, Any]) -> None:
        """Note a run, unless its files are so new that a later change might not show."""
        if not stamp or not _is_settled(self._out, cell):
            return
        of = {name: record[name] for name in (*KEPT, "seconds_per_step") if name in record}
        of["environment"] = {"device": record.get("environment", {}).get("device", "")}
        self._lines[cell.folder] = f"{stamp}\t{json.dumps(of)}".encode()
        self._changed = True

    def write(self) -> None:
        """Write the index, where it has changed and may be written."""
        if not self._changed:
            return
        body = b"".join(b"%s\t%s\n" % (folder.encode(), line) for folder, line in sorted(self._lines.items()))
        head = f"{VERSION} {hashlib.sha256(body).hexdigest()}\n".encode()
        with contextlib.suppress(OSError, RunError):  # a copy that cannot be kept is made again
            replace_file(self._out / INDEX, head + body)
            self._changed = False


def index_of(out: Path) -> RunIndex:
    """The index of a study's folder, read once a process: files that have changed since are seen all the same."""
    return _index_of(out.absolute())


_index_of = functools.lru_cache(maxsize=MOST_KEPT)(RunIndex)


def _lines(path: Path) -> dict[str, bytes]:
    """The lines of an index by folder; none where it is missing, damaged, or of another version."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
    except OSError:
        return {}
    if head != f"{VERSION} {hashlib.sha256(body).hexdigest()}".encode():
        return {}
    return {folder.decode(): line for folder, _, line in (one.partition(b"\t") for one in body.splitlines())}


def _stamp(out: Path, cell: CellPlan, *, required: bool) -> str:
    """What is another text where a file or the plan of a run has changed; empty where it has no result."""
    place, found = f"{out}{os.sep}{cell.folder}{os.sep}", []
    for name in READ_FROM:
        try:
            status = os.stat(place + name)
        except OSError:
            if name == RESULT:
                return ""
            found.append("-")
            continue
        found.append(f"{status.st_size:x}.{status.st_mtime_ns:x}.{status.st_ctime_ns:x}.{status.st_ino:x}")
    return " ".join([*found, cell.fingerprint, str(int(required))])


def _is_settled(out: Path, cell: CellPlan) -> bool:
    """Whether the files of a run are old enough for a later change to show."""
    newest, now = 0.0, time.time()
    for name in READ_FROM:
        with contextlib.suppress(OSError):
            newest = max(newest, os.stat(out / cell.folder / name).st_ctime)
    return newest < now - SETTLED_S
