"""Whether a program is recorded that has to fit inputs of other sizes too."""

from __future__ import annotations

import torch


def is_recorded() -> bool:
    """Whether `torch.export` or `torch.jit.trace` reads along: then no size may choose a path.

    ``torch.compile`` may read along too; its programs are checked against the sizes of each call, and made anew.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()
