"""The environment is plain JSON and never fails."""

from __future__ import annotations

import json
import subprocess

import torch

from attnlab.core.machine import environment, source_commit


def test_environment_is_json():
    found = json.loads(json.dumps(environment()))
    assert found["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert found["cores"] >= 1
    assert found["device"] == "cpu"


def test_no_git(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", absent)
    assert source_commit() is None
