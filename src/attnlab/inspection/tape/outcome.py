"""Whether the output of a call is computed from what a part of the module makes."""

from __future__ import annotations

import torch

from attnlab.inspection.tape.tape import Tape


def is_thrown_away(tape: Tape, name: str) -> bool:
    """Whether the output is not computed from what a part makes, though from what stands around it."""
    layer = name.rpartition(".")[0]
    return not reaches_output(tape, name) and (not layer or reaches_output(tape, layer))


def reaches_output(tape: Tape, name: str) -> bool:
    """Whether the output is computed from what a part makes last."""
    own = [event.index for event in tape.events if f"{event.where}.".startswith(f"{name}.")]
    if not own:
        return False
    later = [tape.events[index].output for index in {own[-1], *tape.descendants(own[-1])}]
    wanted = tape.output.sum()
    return any(
        value.numel() == tape.output.numel() and bool(torch.isclose(value.sum().to(wanted.dtype), wanted))
        for value in later
        if value.is_floating_point()
    )
