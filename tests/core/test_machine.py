"""The environment is plain JSON and never fails."""

from __future__ import annotations

import json
import subprocess

import pytest
import torch

from attnlab.core.errors import SpecError
from attnlab.core.machine import environment, require_memory, source_commit, within_memory


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
    assert source_commit.__wrapped__() is None


def test_what_asks_for_more_memory_than_there_is_says_so(monkeypatch):
    monkeypatch.setattr("attnlab.core.machine.memory_bytes", lambda: 8 * 10**9)
    require_memory("it", 8 * 10**9)
    with pytest.raises(
        SpecError, match=r"^it would take 12 GB of memory, and this machine has 8 GB; choose smaller sizes$"
    ):
        require_memory("it", 12e9)
    with pytest.raises(SpecError, match=r"^it would take far more of memory"):
        require_memory("it", 10**40)
    for raised in (
        lambda: torch.empty(10**16),
        lambda: torch.empty(10**12, 10**12, device="meta"),
        lambda: [0] * 10**14,
    ):
        with pytest.raises(SpecError, match=r"^it asks for more memory than this machine has, 8 GB"), within_memory():
            raised()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), within_memory():
        torch.ones(2, 3) @ torch.ones(2, 3)
