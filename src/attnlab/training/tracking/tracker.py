"""What every tracker does: take the numbers of one run, whatever program shows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnlab.core.files import read_json, write_json

IDENTITIES = "trackers.json"
"""File of the run folder: by name of a tracker what it calls the run."""


@final
@dataclass(frozen=True)
class TrackedRun:
    """Say which run it is whose numbers come."""

    folder: Path  # the run's folder
    project: str  # the study
    name: str  # the run within it
    config: Mapping[str, Any]  # what identifies the run, in JSON types
    step: int = 0  # after which step it begins, or goes on
    resumed: bool = False  # whether it goes on


class AbstractTracker(ABC):
    """Write down one run; made when the run begins or goes on.

    Parameters
    ----------
    run : TrackedRun
        The run.
    """

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take numbers of a step."""

    @abstractmethod
    def flush(self) -> None:
        """See to it that what was taken can be looked at soon."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """End the run, for good or because it stopped."""


def known_identity(run: TrackedRun, tracker: str) -> str | None:
    """What a tracker calls a run that goes on; None for a run that begins."""
    path = run.folder / IDENTITIES
    return read_json(path).get(tracker) if run.resumed and path.exists() else None


def keep_identity(run: TrackedRun, tracker: str, identity: str) -> None:
    """Write down what a tracker calls a run, for when it goes on."""
    path = run.folder / IDENTITIES
    write_json(path, (read_json(path) if path.exists() else {}) | {tracker: identity})


def flat(config: Any, place: str = "") -> dict[str, str]:
    """A nested mapping as one of texts, its keys joined by dots."""
    if not isinstance(config, Mapping):
        return {place: str(config)}
    inner = (flat(value, f"{place}.{key}" if place else str(key)) for key, value in config.items())
    return {key: text for one in inner for key, text in one.items()}
