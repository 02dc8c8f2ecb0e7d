"""What is held out: what its parts are called, how shares of data are asked for, and when a part is partly memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.core.errors import SpecError

PREFIXES = {"validation": "val", "test": "test"}
"""By held-out part, how the names of its metrics begin."""
Held = float | str | list[str]
"""What a part is: a share of the data, or files."""
SUSPICIOUS_OVERLAP = 0.05
"""Share in the training part; far above that of an honest split of one author's text, far below leaks (near 1)."""


def held_parts(validation: Held, test: Held | None) -> dict[str, Held]:
    """What is held out, by part; there may be no test part."""
    return {"validation": validation} | ({} if test is None else {"test": test})


def part_of(metric: str) -> str:
    """The held-out part that a metric of this name is measured on; nothing where it is of none."""
    return next((part for part, prefix in PREFIXES.items() if metric.startswith(f"{prefix}_")), "")


def shares_of(held: Mapping[str, Any]) -> dict[str, float]:
    """The parts that are a share."""
    return {part: float(some) for part, some in held.items() if isinstance(some, int | float)}


def require_shares(shares: Mapping[str, float], of: str) -> None:
    """Raise unless something is left to train on."""
    wrong = {part: share for part, share in shares.items() if not 0 < share < 1}
    if wrong or sum(shares.values()) >= 1:
        said = ", ".join(f"{part}: {share}" for part, share in (wrong or shares).items())
        raise SpecError(
            f"what is held out must be a share between 0 and 1 of the {of}, together below 1, or files; got {said}"
        )


def partly_memory(share: float | None, part: str, what: str) -> list[str]:
    """The alarm that much of a held-out part stands in the training part; none where it is little, or not known."""
    if share is None or share < SUSPICIOUS_OVERLAP:
        return []
    return [
        f"{share:.1%} of the {part} part's {what} in the training part (suspicious from {SUSPICIOUS_OVERLAP:.0%}): "
        "what is measured is partly memory"
    ]
