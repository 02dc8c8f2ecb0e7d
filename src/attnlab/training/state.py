"""Where a run stands: everything beside weights, optimizer and random numbers that is needed to go on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from attnlab.errors import RunError


@dataclass
class RunState:
    """Hold the numbers of a run between two steps.

    Parameters
    ----------
    precision : str
        ``float32`` or ``bf16``, as chosen at the start.
    precision_reason : str
        Why that one.
    step : int
        Updates made.
    seconds : float
        Time spent on training steps.
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
    stopped : str
        Why training ended; empty while it has not.
    resumed_at : list of int
        Steps after which the run went on from a checkpoint.
    """

    precision: str = "float32"
    precision_reason: str = ""
    step: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    train_loss: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    since_best: int = 0
    stopped: str = ""
    resumed_at: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunState:
        """Read what `to_json` returned.

        Raises
        ------
        RunError
            If the names are not those of this version.
        """
        if values.keys() != {one.name for one in fields(cls)}:
            raise RunError(f"the checkpoint is of another version of attnlab: it holds {sorted(values)}")
        return cls(**values)

    def take_mean_loss(self) -> float:
        """Return the mean training loss since the last record, and begin anew."""
        self.train_loss = self.loss_sum / max(1, self.loss_count)
        self.loss_sum, self.loss_count = 0.0, 0
        return self.train_loss
