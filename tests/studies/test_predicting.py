"""Sequences of numbers through trained models, in the units of the data."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, RunError
from attnlab.studies import load_run, predict
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.run.executor import InProcess

LENGTH, SMALL = 6, {"name": "encoder", "d_model": 16, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}}
INPUTS = np.random.default_rng(0).normal(50, 20, (80, LENGTH))


def runs_of(folder, task, arrays, seeds=1):
    """Train; the files of the data are gone when it has ended."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    given = {name: str(folder / f"{name}.npy") for name in arrays}
    spec = {
        "question": "What comes of it?",
        "task": {**task, **given, "validation": 0.2},
        "model": SMALL,
        "baseline": "attention",
        "variants": {"attention": {}},
        "rules": {"metric": "val_mse" if task["name"] == "sequences" else "val_loss", "budget": {"steps": 150},
                  "seeds": seeds, "smallest_effect": 0.1},
        "training": {"lr": 1e-2},
    }  # fmt: skip
    run_study(parse_study(spec, name="it", path=folder / "it.yaml"), folder / "it", jobs=1, executor=InProcess())
    for path in given.values():
        (folder / path).unlink()
    return [folder / "it" / "attention" / f"seed-{seed}" for seed in range(seeds)]


@pytest.fixture(scope="module")
def regressions(tmp_path_factory):
    """Two seeds that give back three times each number."""
    targets = (3 * INPUTS - 100)[..., None]
    return runs_of(tmp_path_factory.mktemp("numbers"), {"name": "sequences"}, {"inputs": INPUTS, "targets": targets}, 2)


def test_answers_are_in_the_units_of_the_targets(regressions):
    trained = [load_run(run) for run in regressions]
    alone = [predict([one], INPUTS[:5]) for one in trained]
    together = predict(trained, INPUTS[:5, :, None])
    assert together.shape == (5, LENGTH, 1)
    assert np.allclose(together, np.mean(alone, axis=0))
    wanted = 3 * INPUTS[:5, :, None] - 100
    assert np.abs(together - wanted).mean() < 0.25 * wanted.std()


def test_answers_have_the_shape_of_the_targets(tmp_path):
    (run,) = runs_of(tmp_path, {"name": "sequences"}, {"inputs": INPUTS, "targets": INPUTS - 7})
    assert predict([load_run(run)], INPUTS[:3]).shape == (3, LENGTH)


def test_one_answer_a_sequence_is_the_mean_of_those_at_its_positions(tmp_path):
    (run,) = runs_of(tmp_path, {"name": "sequences"}, {"inputs": INPUTS, "targets": INPUTS.mean(1, keepdims=True)})
    trained = load_run(run)
    codec = trained.task.codec
    with torch.no_grad():
        outputs = trained.model(torch.from_numpy(codec.encode(INPUTS))).mean(dim=1).numpy()
    expected = outputs * codec.answers.std + codec.answers.mean
    assert np.allclose(predict([trained], INPUTS), expected, rtol=1e-4)
    assert np.abs(expected - INPUTS.mean(1, keepdims=True)).mean() < INPUTS.mean(1).std()


def test_of_classes_there_are_probabilities(tmp_path, capsys):
    labels = np.where(INPUTS[:, 0] > 50, 7, 4)
    (run,) = runs_of(tmp_path, {"name": "classify"}, {"inputs": INPUTS, "labels": labels})
    np.save(tmp_path / "new.npy", INPUTS)
    assert call(["predict", str(run), str(tmp_path / "new.npy"), "--out", str(tmp_path / "found.npy")]) == FINE
    assert "found.npy: (80, 2), the probability of 4, 7" in capsys.readouterr().out.replace("\n", "")
    found = np.load(tmp_path / "found.npy")
    assert np.allclose(found.sum(axis=-1), 1)
    assert (np.array([4, 7])[found.argmax(axis=-1)] == labels).mean() > 0.8


def test_tokens_are_read_as_in_training(tmp_path):
    tokens = np.random.default_rng(1).integers(0, 9, (120, LENGTH))
    (run,) = runs_of(tmp_path, {"name": "classify"}, {"inputs": tokens, "labels": (tokens == 3).any(axis=1) * 1})
    trained = load_run(run)
    found = predict([trained], tokens)
    assert np.allclose(found.sum(axis=-1), 1)
    assert (found.argmax(axis=-1) == (tokens == 3).any(axis=1)).mean() > 0.9
    few = tokens[:40, :2]
    assert (predict([trained], few).argmax(axis=-1) == (few == 3).any(axis=1)).mean() > 0.7
    for wrong, said in (
        (tokens + 1, "tokens must be from 0 to 8, as in training; got 9"),
        (tokens - 1, "tokens must be from 0 to 8, as in training; got -1"),
        (tokens * 0.5, r"whole numbers of the shape \(items, at most 6\); got \(120, 6\), float64"),
        (np.hstack([tokens, few.repeat(3, axis=0)]), r"at most 6\); got \(120, 8\)"),
    ):
        with pytest.raises(DataError, match=said):
            predict([trained], wrong)


def test_what_cannot_be_predicted_is_said(regressions, tmp_path, capsys):
    trained = load_run(regressions[0])
    with pytest.raises(DataError, match=r"inputs must have the shape \(items, 6, 1\) or \(items, 6\); got \(80, 5\)"):
        predict([trained], INPUTS[:, :5])
    with pytest.raises(DataError, match=r"there are no inputs to answer for: their shape is \(0, 6\)"):
        predict([trained], INPUTS[:0])
    other = shutil.copytree(regressions[1], tmp_path / "other")
    kept = json.loads((other / "task.json").read_text())
    kept["codec"]["inputs"]["mean"] = [0.0]
    (other / "task.json").write_text(json.dumps(kept))
    with pytest.raises(RunError, match="has other units or classes than"):
        predict([trained, load_run(other)], INPUTS)
    np.save(tmp_path / "new.npy", INPUTS)
    for words, said in (
        (
            ["classify", str(regressions[0]), "a text"],
            "is no classifier of texts: its task is 'sequences'; attnlab predict",
        ),
        (
            ["predict", str(regressions[0]), str(tmp_path / "new.npy"), "--out", "found.csv"],
            "--out must be an .npy file",
        ),
        (["predict", str(regressions[0]), str(tmp_path / "no.npy"), "--out", "found.npy"], "no.npy"),
    ):
        assert call(words) == WRONG_USE
        assert said in " ".join(capsys.readouterr().err.split())
