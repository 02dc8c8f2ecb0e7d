"""Tiny studies: real tasks, real models, real worker processes, seconds in all."""

from __future__ import annotations

import copy

import pytest
import torch

TINY = {
    "question": "Does a mixer in the middle help?",
    "task": {"name": "shapes", "n_train": 60, "n_test": 11, "batch": 20},
    "model": {"name": "cnn", "channels": 6, "kernel_size": 3, "n_layers": 3},
    "baseline": "plain",
    "variants": {
        "plain": {},
        "with attention": {"mixer": {"name": "attention", "n_heads": 2}, "mixer_at": 1},
    },
    "rules": {"metric": "test_mse", "budget": {"steps": 5}, "seeds": 2, "smallest_effect": 0.01},
}


@pytest.fixture(autouse=True)
def subnormal_numbers():
    """Leave no process in which numbers near zero are zero, as runs have it: other tests count with them."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def tiny():
    """Return a study as a mapping that a test may change."""
    return copy.deepcopy(TINY)


@pytest.fixture
def write_study(tmp_path):
    """Return a function that writes a study file, from YAML text."""

    def write(text: str):
        path = tmp_path / "my-study.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
