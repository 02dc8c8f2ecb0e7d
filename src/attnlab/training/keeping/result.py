"""Where a run stands between two steps, and what it ends with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError
from attnlab.core.files import SEAL, fingerprint, read_json, write_json
from attnlab.training.keeping.runs import METRICS, RESULT, SPEC, mendable
from attnlab.training.speed.settings import Choice, Setting


@dataclass(kw_only=True)
class AbstractOutcome:
    """Hold what a run that goes on and a finished one have in common."""

    metrics: dict[str, float] = field(default_factory=dict)
    """What was measured last; at the end metrics of every held-out part, with the weights at the end, and
    ``seconds_to_target`` where the run reached its target: the time spent on training, choosing and evaluation until
    then."""
    best: dict[str, Any] = field(default_factory=dict)
    """``step`` and ``metrics`` of the best evaluation on the first part; empty before the first."""
    precision: str = "float32"  # ``float32`` or ``bf16``, as chosen at the start
    compiled: bool = False  # whether training steps are compiled
    setting_reason: str = ""  # why these two
    choosing_seconds: float = 0.0  # time spent on choosing them and on compiling; part of `seconds`
    seconds: float = 0.0  # time spent on training steps, and on choosing how to compute them
    evaluation_seconds: float = 0.0  # time spent on evaluation
    train_loss: float = 0.0  # mean training loss between the last two records
    averaged: int = 0  # points of training whose weights are averaged; 0 where the weights at the end are the last ones
    stopped: str = ""  # why training ended: ``budget``, ``early stop`` or ``target``; empty while it has not
    resumed_at: list[int] = field(default_factory=list)  # steps after which the run went on from a checkpoint
    together: int = 1
    """With how many runs, itself included, it was trained as one program, the most of all its steps; 1 for a run of its
    own. Its seconds are its share."""
    together_note: str = ""  # why not with all it might have been trained with; empty if there is nothing to say


@final
@dataclass(kw_only=True)
class RunState(AbstractOutcome):
    """Hold everything beside weights, optimizer and random numbers that a run needs to go on."""

    step: int = 0  # updates made
    loss_sum: float = 0.0
    loss_count: int = 0
    """Training losses since the last record."""
    since_best: int = 0  # evaluations since the best one

    @property
    def setting(self) -> Setting:
        """How training steps are computed."""
        return Setting(self.precision, self.compiled)

    def adopt(self, choice: Choice) -> None:
        """Take over a chosen setting and the time it took; a reason from an earlier start stays."""
        self.precision, self.compiled = choice.setting.precision, choice.setting.compile
        self.setting_reason = self.setting_reason or choice.reason
        self.choosing_seconds += choice.seconds
        self.seconds += choice.seconds

    def note_together(self, runs: int, note: str) -> None:
        """Note with how many runs a step was computed, and why not with more."""
        self.together = max(self.together, runs)
        self.together_note = note or self.together_note

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunState:
        """Read what `to_json` returned."""
        if values.keys() != {one.name for one in fields(cls)}:
            raise RunError(f"the checkpoint is of another version of attnlab: it holds {sorted(values)}")
        return cls(**values)

    def shared(self) -> dict[str, Any]:
        """The fields that a result has too."""
        return {one.name: getattr(self, one.name) for one in fields(AbstractOutcome)}

    def take_mean_loss(self) -> float:
        """The mean training loss since the last record, and begin anew."""
        self.train_loss = self.loss_sum / max(1, self.loss_count)
        self.loss_sum, self.loss_count = 0.0, 0
        return self.train_loss


@final
@dataclass(kw_only=True)
class Result(AbstractOutcome):
    """Hold the numbers of a finished run.

    Parameters
    ----------
    steps : int
        Updates made.
    tokens : int
        Training positions with a loss that were seen.
    seed : int
        Seed of data order and dropout.
    environment : dict
        Versions, hardware, threads, device.
    written_per_second : float
        Sentences that the model wrote in a second when it was judged, scoring included; 0 where it wrote none.
    curve : list of dict
        The records of ``metrics.jsonl``; kept there alone in a run folder.
    """

    steps: int
    tokens: int
    seed: int
    environment: dict[str, Any]
    written_per_second: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)


def write_result(folder: Path, result: Result) -> None:
    """Write ``result.json``, which marks the run as done."""
    record = {name: value for name, value in asdict(result).items() if name != "curve"}
    write_json(folder / RESULT, {**record, SEAL: _seal(folder, record)})


def read_record(folder: Path, *, required: bool = False) -> dict[str, Any] | None:
    """Read what ``result.json`` holds; None if the run is not done.

    Raises
    ------
    RunError
        If the file, ``metrics.jsonl`` or ``spec.json`` is missing or was changed after the run ended, or lacks a
        required seal.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    with mendable(folder):
        record = read_json(path)
    seal = record.pop(SEAL, None)
    is_older = seal is None and not required  # results of earlier versions have none, or do not cover what was run
    if not (is_older or seal == _seal(folder, record) or seal == _seal(folder, record, beside=(METRICS,))):
        missing = " and ".join(name for name in (METRICS, SPEC) if not (folder / name).exists())
        changed = f"{RESULT}, {METRICS} or {SPEC} was changed after the run ended; put back what was changed"
        said = f"{missing} of a finished run is missing; put it back" if missing else changed
        raise RunError(f"{folder}: {said}, or remove the folder and run it again")
    return record


def _seal(folder: Path, record: dict[str, Any], beside: Sequence[str] = (METRICS, SPEC)) -> str:
    """The sha256 of a result, of the records that led to it and of what was run."""
    names = {METRICS: "curve", SPEC: "spec"}
    files = {names[name]: folder / name for name in beside}
    hashes = {k: hashlib.sha256(f.read_bytes()).hexdigest() if f.exists() else None for k, f in files.items()}
    return fingerprint({"result": record, **hashes})


def read_result(folder: Path | str, curve: list[dict[str, Any]] | None = None) -> Result | None:
    """Read the result of a run folder.

    Parameters
    ----------
    folder : Path or str
        The run folder.
    curve : list of dict, optional
        Records to put into the result, from ``read_metrics``.

    Returns
    -------
    Result or None
        None if the run is not done.

    Raises
    ------
    RunError
        If the file is damaged.
    """
    path = Path(folder) / RESULT
    record = read_record(Path(folder))
    if record is None:
        return None
    wanted = {one.name for one in fields(Result)} - {"curve"}
    if wanted != record.keys():
        raise RunError(f"{path} is not a result of this version: it must have {sorted(wanted)}")
    return Result(**record, curve=curve or [])
