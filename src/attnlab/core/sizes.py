"""Checks of sizes, said in the words of the glossary."""

from __future__ import annotations

from collections.abc import Mapping

from attnlab.core.errors import SpecError


def check_positive(sizes: Mapping[str, int]) -> None:
    """Raise a `SpecError` that names every size that is not a positive integer."""
    wrong = [f"{name}={size}" for name, size in sizes.items() if size < 1]
    if wrong:
        raise SpecError(f"sizes must be positive integers; got {', '.join(wrong)}")


def share_of(d_model: int, n_heads: int) -> int:
    """The width of one head when all heads together are as wide as the model, which they must divide."""
    check_positive({"d_model": d_model, "n_heads": n_heads})
    if d_model % n_heads:
        raise SpecError(f"n_heads must divide d_model; got d_model={d_model}, n_heads={n_heads} (or give d_head)")
    return d_model // n_heads
