"""Evaluation leaves a model as it was: in training mode, without gradients, in float32."""

from __future__ import annotations

import pytest
import torch
from tests.training.tiny import TinyTask, tiny_model

from attnlab.training.keeping.diagnosis import NonFiniteError
from attnlab.training.run.evaluation import evaluate
from attnlab.training.run.step import Caller
from attnlab.training.speed.settings import Setting


class Looks(TinyTask):
    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, []

    def evaluate(self, predict, part):
        outputs = predict(self.batch(5))
        self.seen.append((self.model.training, outputs.requires_grad, outputs.dtype))
        return {"val_mse": float(outputs.mean())}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_mode_gradient_and_type(precision):
    model = tiny_model()
    task = Looks(model)
    evaluate(Caller(model, model, torch.device("cpu")), task, "validation", Setting(precision))
    assert task.seen == [(False, False, torch.float32)]
    assert model.training


def test_training_mode_comes_back_after_an_error():
    class Nan(TinyTask):
        def evaluate(self, predict, part):
            return {"val_mse": float("inf")}

    model = tiny_model()
    with pytest.raises(NonFiniteError, match="after step 7: val_mse is inf"):
        evaluate(Caller(model, model, torch.device("cpu")), Nan(), "validation", Setting(), step=7)
    assert model.training
