"""Scaling is measured on as many devices as there are, with and without the exchange of gradients."""

from __future__ import annotations

import pytest
import torch

from attnlab.benchmarks import scale


@pytest.fixture
def counts(monkeypatch):
    """Measure in this process, and note on how many devices it would be."""
    asked = []

    def on_devices(count, function, *arguments, device):
        asked.append((count, device))
        return function(*arguments)

    monkeypatch.setattr(scale, "on_devices", on_devices)
    return asked


def test_strong_and_weak_scaling_of_one_and_more_devices(counts):
    strong, weak = scale.bench_scale("a", rounds=1, steps=1)
    assert counts == [(1, "cpu"), (2, "cpu"), (4, "cpu")]
    for result in (strong, weak):
        assert list(result.rows) == ["1 device", "2 devices", "4 devices"]
        assert "communication" in result.details["4 devices"]
        assert "communication" not in result.details["1 device"]
    ((ms,), tokens) = weak.rows["4 devices"], weak.details["4 devices"]["tokens_per_second"]
    assert tokens == pytest.approx(4 * 12 * 64 / ms * 1e3)
    assert "nothing about networks or GPUs" in str(strong)


def test_cuda_devices_are_counted_by_twos(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    assert scale._counts("cuda") == [1, 2, 4]
