"""Random generators that belong to a place: seeded by several numbers, apart from the global one."""

from __future__ import annotations

import hashlib

import torch


def generator_for(*numbers: int) -> torch.Generator:
    """Return a CPU generator seeded by several numbers together.

    Parameters
    ----------
    *numbers : int
        What identifies the place, say the seed of a run and a step. Their order matters.

    Returns
    -------
    torch.Generator
        A new generator; equal numbers give equal draws.

    Notes
    -----
    The numbers are hashed, so that (seed 1, step 2) and (seed 2, step 1) or neighboring steps share
    nothing, which adding them up would not give.
    """
    digest = hashlib.sha256(",".join(map(str, numbers)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)  # 63 bits: non-negative
