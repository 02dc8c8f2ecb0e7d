"""Run folders: what lies in the folder of one trained model, and who may write there.

======================  =====================================================================================
``spec.json``           what the run is; written before the first step
``metrics.jsonl``       one line per record: step, tokens, seconds, lr, train_loss; metrics where it was evaluated;
                        ``watch`` in place of the loss where the run was looked into
``last/``, ``best/``    checkpoints: model.safetensors, optimizer.safetensors (last, while unfinished), state.json
``result.json``         the final numbers; its presence means that the run is done
``failed.json``         error, kind, step, layer of a run that had to stop; gone when it is started again
``.lock``               held by the process that writes
======================  =====================================================================================
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError
from attnlab.core.files import parse_record, read_json, synchronize, without_remedy, write_json, write_text, writing

SPEC, METRICS, RESULT, FAILED = "spec.json", "metrics.jsonl", "result.json", "failed.json"
LOCK, HOLDER = ".lock", ".lock.json"


@contextlib.contextmanager
def lock(folder: Path | str) -> Iterator[None]:
    """Hold a run folder for writing; the folder is created if need be.

    Parameters
    ----------
    folder : Path or str
        The run folder.

    Yields
    ------
    None
        While the folder is held. The system lets go of it when the process dies, however it dies.

    Raises
    ------
    RunError
        If another process holds it; the text names process and host.
    """
    import filelock

    folder = Path(folder)
    if re.match(r"[a-z][a-z0-9+.-]+:/", folder.as_posix()):
        raise RunError(
            f"{folder}: a single run is kept in a folder of this machine; in stores lie studies (attnlab run)"
        )
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file_lock = filelock.FileLock(folder / LOCK)
    with writing(folder):
        try:
            file_lock.acquire(timeout=0)
        except filelock.Timeout as error:  # an OSError, but not one of the disk
            raise RunError(f"{folder} is being written by {_holder(folder)}; wait for it, or stop it first") from error
    try:
        write_json(folder / HOLDER, this_process())
        yield
    finally:
        (folder / HOLDER).unlink(missing_ok=True)
        file_lock.release()


def _holder(folder: Path) -> str:
    with contextlib.suppress(RunError, KeyError, TypeError):
        holder = read_json(folder / HOLDER)
        return holder_named(holder)
    return "another process"


def this_process() -> dict[str, Any]:
    """What a process leaves of itself in a folder that it holds."""
    return {"pid": os.getpid(), "host": platform.node()}


def holder_named(holder: Mapping[str, Any]) -> str:
    """The process that holds a folder, by what it left there."""
    return f"process {holder['pid']} on {holder['host']}"


def open_run(folder: Path, spec: Mapping[str, Any]) -> None:
    """Claim a folder for a run, or check that it is this run's.

    Parameters
    ----------
    folder : Path
        An existing folder, held with `lock`.
    spec : mapping
        What the run is; JSON types. Written at the first opening.

    Raises
    ------
    RunError
        If the folder holds another run; the text says what differs.
    """
    wanted = json.loads(json.dumps(spec, allow_nan=False))  # as it will be read back
    path = folder / SPEC
    if not path.exists():
        write_json(path, wanted)
        return
    with mendable(folder):
        found = read_json(path)
    if found != wanted:
        differences = "; ".join(_differences(found, wanted, ""))
        raise RunError(f"{folder} holds another run ({differences}); choose another folder, or remove this one")


def _differences(found: Any, wanted: Any, place: str) -> Iterator[str]:
    """Every place where two JSON values differ, with both values."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            inner = f"{place}.{key}" if place else key
            yield from _differences(found.get(key), wanted.get(key), inner)
    elif found != wanted:
        yield f"{place or 'spec'} is {json.dumps(found)} there and {json.dumps(wanted)} here"


@final
class MetricsLog:
    """Append records to ``metrics.jsonl``, each on disk before the next step.

    Parameters
    ----------
    folder : Path
        The run folder.
    after_step : int
        Records of later steps are dropped first: they are of a run that was cut off after its last checkpoint.

    Raises
    ------
    RunError
        If the records up to this step are missing, or damaged.
    """

    def __init__(self, folder: Path, *, after_step: int) -> None:
        self.path = folder / METRICS
        if after_step > 0 and not self.path.exists():
            with mendable(folder):
                raise RunError(f"{self.path} is missing, and the curve up to step {after_step} with it")
        kept = [record for record in read_metrics(folder) if record["step"] <= after_step]
        write_text(self.path, "".join(_line(record) for record in kept))
        with writing(folder):
            self._file = self.path.open("a", encoding="utf-8")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        with writing(self.path.parent):
            self._file.write(_line(record))
            self._file.flush()

    def synchronize(self) -> None:
        """Wait until all records are safe against a power cut."""
        with writing(self.path.parent):
            synchronize(self.path)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what could not be written has been reported
            self._file.close()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"


def lost_curve(folder: Path) -> str:
    """What is to be said where a finished run has lost its records; empty where it has not."""
    lost = (folder / RESULT).exists() and not (folder / METRICS).exists()
    return f"{METRICS} is missing, and the curve of the run with it" if lost else ""


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """Read the records of a run, also of one that is being written.

    Parameters
    ----------
    folder : Path or str
        The run folder.

    Returns
    -------
    list of dict
        One per record, in order; empty before the first. A last line that was cut off is left out.

    Raises
    ------
    RunError
        If another line than the last is damaged.
    """
    path = Path(folder) / METRICS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    with mendable(Path(folder)):
        return [parse_record(line, path) for line in lines[:-1]]  # what follows the last line end is empty, or cut off


@final
class LaterRecords(Sequence[Mapping[str, Any]]):
    """Hold the records of a run, read when they are first asked for.

    Parameters
    ----------
    folder : Path
        The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @functools.cached_property
    def _records(self) -> list[dict[str, Any]]:
        return read_metrics(self._folder)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._records)

    def __getitem__(self, place: Any) -> Any:
        """The record at a place, or those of a slice."""
        return self._records[place]

    def __eq__(self, other: object) -> bool:
        """Whether other records are the same ones."""
        return isinstance(other, LaterRecords) and self._records == other._records

    __hash__ = None  # pyrefly: ignore


@contextlib.contextmanager
def mendable(folder: Path) -> Iterator[None]:
    """Say of a damaged file of a run how to go on."""
    try:
        yield
    except RunError as error:
        raise RunError(f"{without_remedy(error)}; put it back, or remove {folder} and run it again") from error


def write_failure(folder: Path, error: BaseException, *, step: int, layer: str = "") -> None:
    """Record why a run had to stop; a disk that cannot take even that is left alone."""
    record = {"error": str(error), "kind": type(error).__name__, "step": step, "layer": layer}
    with contextlib.suppress(RunError):
        write_json(folder / FAILED, record)


def read_failure(folder: Path | str) -> dict[str, Any] | None:
    """Read why a run had to stop.

    Parameters
    ----------
    folder : Path or str
        The run folder.

    Returns
    -------
    dict or None
        ``error``, ``kind``, ``step``, ``layer``; None if it did not fail.
    """
    path = Path(folder) / FAILED
    return read_json(path) if path.exists() else None
