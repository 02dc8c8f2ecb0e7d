"""``attnlab overfit``: whether it can learn a few items by heart."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.markup import escape

from attnlab.cli.terminal import Terminal
from attnlab.cli.words import Asked, Scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnlab.explain.overfit import Memory

BARS = " ▁▂▃▄▅▆▇█"
WIDEST = 32
"""Characters of a curve."""


def overfit(
    study: Asked,
    /,
    *,
    scale: Scale = None,
    variant: list[str] | None = None,
    items: int = 20,
    seconds: float = 60.0,
    json: bool = False,
) -> int:
    """Let the variants of a study learn a few items by heart: what cannot has a bug, or a rate that is far off.

    Parameters
    ----------
    study : str
        Name of a study or a case of the library, or a YAML file.
    scale : str, optional
        One of the study's scales, for example ``small``.
    variant : list of str, optional
        Only the variants of these names.
    items : int
        How many items of the first training batch are learned.
    seconds : float
        Training time of each variant.
    json : bool
        Print what came of each as JSON.

    Returns
    -------
    int
        0, or 1 if a variant did not learn them.
    """
    from dataclasses import asdict

    from attnlab.cli.run import own_prints_to_stderr, print_json
    from attnlab.explain.case import load_asked
    from attnlab.explain.overfit import overfit as learn

    console = Terminal(stderr=json)
    question = load_asked(study, scale=scale)
    console.print(f"[bold]Can it learn a few items by heart?[/] {seconds:g} s each", highlight=False)
    with own_prints_to_stderr(json):
        found = learn(
            question, variants=variant, items=items, seconds=seconds, on_memory=lambda one: _print(console, one)
        )
    if json:
        print_json([asdict(one) | {"by_heart": one.by_heart, "verdict": one.verdict} for one in found])
    return int(not all(one.by_heart for one in found))


def _print(console: Terminal, one: Memory) -> None:
    """Print what came of one variant, with its curve."""
    console.print(f"\n[bold]{escape(one.variant)}[/]: {one.verdict}", highlight=False)
    console.print(
        f"  loss {one.start:.4g} -> {one.end:.4g} on {one.items} items in {one.steps} steps of rate {one.lr:.2g} "
        f"({one.seconds:.1f} s); the same answer for all gives {one.same_answer:.4g}",
        highlight=False,
        markup=False,
    )
    console.print(f"  {curve([loss for _, loss in one.curve])}", highlight=False, markup=False)
    if not one.by_heart:
        console.print(
            "  see what gradients reach and what sees what: attnlab doctor FILE.py:Class", markup=False, highlight=False
        )


def curve(losses: Sequence[float]) -> str:
    """Losses as bars on a logarithmic axis, the first and the last among at most `WIDEST`.

    Examples
    --------
    >>> curve([1.0, 0.1, 0.01])
    '█▄▁'
    """
    step = max(1, math.ceil(len(losses) / WIDEST))
    kept = [*losses[:-1:step], losses[-1]] if losses else []
    logs = [math.log(max(loss, 1e-12)) if math.isfinite(loss) else math.inf for loss in kept]
    finite = [value for value in logs if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    heights = (1 + 7 * (min(value, high) - low) / ((high - low) or 1.0) for value in logs)
    return "".join(BARS[round(height)] for height in heights)
