"""What the training loop costs beside the bare forward, backward and step of the same model."""

from __future__ import annotations

from functools import partial

import torch

from attnlab.benchmarks.contenders.apart import Apart
from attnlab.benchmarks.contenders.peers import OURS, SIZES
from attnlab.benchmarks.contenders.steps import bare_loop, lab_run
from attnlab.benchmarks.measuring.turns import PairedTimes, measure_in_turn
from attnlab.training.speed.settings import Setting

STEPS = 40
"""Steps per round: about two seconds of each on two cores."""
ROUNDS = 7
BARE = "bare forward, backward, clip, step"


def bench_loop(*, device: str = "cpu", rounds: int = ROUNDS, steps: int = STEPS) -> PairedTimes:
    """Compare `train` with a bare loop around the same model, of size (a), in float32."""
    sizes, where = SIZES["a"], torch.device(device)
    run = Apart(partial(lab_run, sizes, where, steps * (1 + rounds)), by_command_line=True)
    bare = Apart(partial(bare_loop, OURS, sizes, Setting(), where))
    try:
        return measure_in_turn(
            f"training loop, {bare.parameters / 1e6:.2f} M parameters,"
            f" batch {sizes.batch} x {sizes.length}, {run.setting}, {steps} steps a round",
            {"attnlab train": partial(run.step_ms, steps), BARE: partial(bare.step_ms, steps)},
            reference=BARE,
            unit="ms/step",
            rounds=rounds,
            device=where,
        )
    finally:
        run.close()
        bare.close()
