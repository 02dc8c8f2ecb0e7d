"""How fast a machine multiplies matrices: the rate that no training step can beat."""

from __future__ import annotations

import time

import torch

from attnlab.training.speed.settings import wait_for

SIDE = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the matrices: large enough to keep all units busy, small enough to take seconds at most."""

REPEATS = 10
TYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def matrix_rate(precision: str, device: torch.device, *, side: int | None = None) -> float:
    """Measure how many FLOPs a second the product of two large square matrices makes."""
    side = side or SIDE[device.type]
    one, other = (torch.randn(side, side, device=device, dtype=TYPES[precision]) for _ in range(2))
    product = one @ other
    seconds = []
    for _ in range(REPEATS):
        wait_for(device)
        start = time.perf_counter()
        torch.mm(one, other, out=product)
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return 2 * side**3 / min(seconds)
