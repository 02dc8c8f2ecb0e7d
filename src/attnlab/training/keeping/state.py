"""Where a run stands: everything beside weights, optimizer and random numbers that is needed to go on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from attnlab.core.errors import RunError
from attnlab.training.speed.settings import Choice, Setting


@dataclass
class RunState:
    """Hold the numbers of a run between two steps.

    Parameters
    ----------
    precision : str
        ``float32`` or ``bf16``, as chosen at the start.
    compiled : bool
        Whether training steps are compiled.
    setting_reason : str
        Why these two.
    choosing_seconds : float
        Time spent on choosing them and on compiling; part of `seconds`.
    step : int
        Updates made.
    seconds : float
        Time spent on training steps, and on choosing how to compute them.
    evaluation_seconds : float
        Time spent on evaluation.
    loss_sum, loss_count : float, int
        Training losses since the last record.
    train_loss : float
        Their mean at the last record.
    metrics : dict
        What the last evaluation gave.
    best : dict
        ``step`` and ``metrics`` of the best evaluation; empty before the first.
    since_best : int
        Evaluations since then.
    averaged : int
        Points of training whose weights are in the average so far.
    stopped : str
        Why training ended; empty while it has not.
    resumed_at : list of int
        Steps after which the run went on from a checkpoint.
    together : int
        With how many runs, itself included, it was trained as one program; the most of all its steps.
    together_note : str
        Why not with all it might have been trained with; empty if there is nothing to say.
    """

    precision: str = "float32"
    compiled: bool = False
    setting_reason: str = ""
    choosing_seconds: float = 0.0
    step: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    train_loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    since_best: int = 0
    averaged: int = 0
    stopped: str = ""
    resumed_at: list[int] = field(default_factory=list)
    together: int = 1
    together_note: str = ""

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

    def note_company(self, runs: int, note: str) -> None:
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

    def take_mean_loss(self) -> float:
        """The mean training loss since the last record, and begin anew."""
        self.train_loss = self.loss_sum / max(1, self.loss_count)
        self.loss_sum, self.loss_count = 0.0, 0
        return self.train_loss
