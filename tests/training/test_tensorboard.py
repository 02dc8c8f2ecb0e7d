"""TensorBoard gets the numbers, and its absence is told in words."""

from __future__ import annotations

import sys

import pytest

from attnlab.core.errors import SpecError
from attnlab.training.run.tensorboard import tensorboard_events


def test_scalars_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tell = tensorboard_events(tmp_path)
    tell({"kind": "start", "step": 0})
    tell({"kind": "step", "step": 3, "loss": 0.5, "lr": 0.01, "rate": 7.0})
    tell({"kind": "evaluation", "step": 5, "part": "validation", "metrics": {"val_mse": 0.25}})
    tell({"kind": "done", "step": 5})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("train/loss")] == [(3, 0.5)]
    assert [(one.step, one.value) for one in events.Scalars("validation/val_mse")] == [(5, 0.25)]


def test_absent(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SpecError, match=r"attnlab\[tensorboard\]"):
        tensorboard_events(tmp_path)
