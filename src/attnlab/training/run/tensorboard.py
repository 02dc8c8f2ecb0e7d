"""Show a run in TensorBoard; needs the extra ``attnlab[tensorboard]``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.core.errors import SpecError
from attnlab.training.run.events import OnEvent


def tensorboard_events(folder: Path | str) -> OnEvent:
    """A listener for `train` that writes what it is told as TensorBoard scalars.

    Parameters
    ----------
    folder : Path or str
        Where the event files go; ``tensorboard --logdir`` is pointed at it or above it.

    Returns
    -------
    callable
        To be given as ``on_event``; closes its file when the run is done.

    Raises
    ------
    SpecError
        If TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SpecError("TensorBoard is not installed; pip install 'attnlab[tensorboard]'") from error
    writer = SummaryWriter(str(folder))

    def on_event(event: Mapping[str, Any]) -> None:
        for name, value in _scalars(event).items():
            writer.add_scalar(name, value, event["step"])
        if event["kind"] == "done":
            writer.close()
        elif event["kind"] != "step":
            writer.flush()

    return on_event


def _scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event under TensorBoard's names."""
    if event["kind"] == "step":
        return {"train/loss": event["loss"], "train/lr": event["lr"], "train/tokens_per_second": event["rate"]}
    if event["kind"] == "evaluation":
        return {f"{event['part']}/{name}": value for name, value in event["metrics"].items()}
    return {}
