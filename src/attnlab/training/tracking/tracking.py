"""Hand the events of a run to trackers: one stream, whichever of them listen."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import SpecError, nearest
from attnlab.training.run.events import OnEvent
from attnlab.training.tracking.mlflow import MlflowTracker
from attnlab.training.tracking.tensorboard import TensorboardTracker
from attnlab.training.tracking.tracker import AbstractTracker, TrackedRun
from attnlab.training.tracking.trackio import TrackioTracker
from attnlab.training.tracking.wandb import WandbTracker

TRACKERS: Mapping[str, Callable[[TrackedRun], AbstractTracker]] = {
    "tensorboard": TensorboardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
"""By the name of the package that each needs, and of the extra that installs it."""


@contextlib.contextmanager
def tracking(
    names: Sequence[str],
    *,
    folder: Path | str,
    project: str = "attnlab",
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Iterator[OnEvent]:
    """Show a run in trackers while the context is open.

    Parameters
    ----------
    names : sequence of str
        Of `TRACKERS`.
    folder : Path or str
        The run's folder. TensorBoard and offline runs of Weights & Biases lie in it.
    project : str
        What the run is listed under.
    name : str, optional
        What the run is called; by default the name of its folder.
    config : mapping, optional
        What identifies the run, in JSON types.
    warn : callable
        Told that a tracker failed.

    Yields
    ------
    callable
        To be given to `train` as ``on_event``.

    Raises
    ------
    SpecError
        If a tracker is unknown or not installed.

    Notes
    -----
    All trackers get the same: the config, what is told of steps (five a second at most), every evaluation, what the
    recipe watches, and the final metrics under ``final``. A tracker that fails is left out from there on, with
    one warning; the run goes on. A run that goes on from a checkpoint goes on in the trackers.
    """
    check_trackers(names)
    place = Path(folder)
    with contextlib.ExitStack() as open_ones:
        begun = TrackedRun(place, project, name or place.name, config or {})
        guarded = [_Guarded(one, begun, warn) for one in names]
        for one in guarded:
            open_ones.callback(one.close, failed=True)

        def on_event(event: Mapping[str, Any]) -> None:
            for one in guarded:
                one.take(event)

        yield on_event


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker that is unknown or not installed."""
    for name in names:
        if name not in TRACKERS:
            raise SpecError(f"there is no tracker '{name}'; {nearest(name, TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            raise SpecError(f"{name} is not installed; pip install 'attnlab[{name}]'")


@final
class _Guarded:
    """Hand events to one tracker, from the run's start to its end or to the tracker's first failure."""

    def __init__(self, kind: str, run: TrackedRun, warn: Callable[[str], None]) -> None:
        self._kind, self._run, self._warn = kind, run, warn
        self._tracker: AbstractTracker | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Hand on one event."""
        with self._failing_alone(f"after step {event['step']}"):
            if event["kind"] == "start":
                run = replace(self._run, step=event["step"], resumed=event["resumed"])
                run.folder.mkdir(parents=True, exist_ok=True)
                self._tracker = TRACKERS[self._kind](run)
            if self._tracker is None:
                return
            self._tracker.log(event["step"], scalars(event))
            if event["kind"] != "step":
                self._tracker.flush()
        if event["kind"] == "done":
            self.close(failed=False)

    def close(self, *, failed: bool) -> None:
        """End the run in the tracker, unless it has ended."""
        tracker, self._tracker = self._tracker, None
        with self._failing_alone("at the end"):
            if tracker is not None:
                tracker.close(failed=failed)

    @contextlib.contextmanager
    def _failing_alone(self, when: str) -> Iterator[None]:
        """Make a failure of the tracker a warning, and leave it out from there on."""
        try:
            yield
        except Exception as error:
            self._tracker = None
            text = " ".join(str(error).split()) or type(error).__name__
            self._warn(f"{self._kind} failed {when} and is left out; the run goes on: {text}")


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event, under the names that trackers show."""
    match event["kind"]:
        case "step":
            found = {"train/loss": event["loss"], "train/lr": event["lr"], "train/tokens_per_second": event["rate"]}
        case "evaluation":
            found = {f"{event['part']}/{name}": value for name, value in event["metrics"].items()}
        case "watch":
            found = {f"{quantity}/{place}": value for quantity, place, value in _seen(event["seen"])}
        case "done":
            found = {f"final/{name}": value for name, value in event["metrics"].items()}
            found["final/seconds"] = event["seconds"]
        case _:
            found = {}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def _seen(seen: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Every number of a look: its quantity, its layer or head, the number."""
    for quantity, by_layer in seen.items():
        if quantity == "note":
            continue
        for layer, value in by_layer.items():
            if isinstance(value, list):
                yield from ((quantity, f"{layer}/head {head}", one) for head, one in enumerate(value))
            else:
                yield quantity, layer, value
