"""``attnlab plan``: what a study would cost."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

PUBLISHED = ("published", "minus baseline: here / published")
"""Columns of a study of whose variants a paper says something."""


def plan(
    study: str,
    /,
    *,
    scale: str | None = None,
    seeds: int | None = None,
    calibrate: bool = True,
    json: bool = False,
) -> int:
    """Say what a study would cost, before a second is spent.

    Parameters
    ----------
    study : str
        Name of a study of the library, or a YAML file.
    scale : str, optional
        One of the study's scales, for example ``small``.
    seeds : int, optional
        Number of seeds, instead of the study's own.
    calibrate : bool
        Time a few training steps of every variant.
    json : bool
        Print the plan as JSON.

    Returns
    -------
    int
        0.
    """
    from attnlab.cli.run import own_prints_to_stderr, print_json, seed_changes
    from attnlab.studies.plan import make_plan
    from attnlab.studies.study import load

    with own_prints_to_stderr(json):
        planned = make_plan(load(study, scale=scale, changes=seed_changes(seeds)), calibrate=calibrate)
    if json:
        print_json(planned.to_json())
    else:
        _print(planned)
    return 0


def _print(planned: Any) -> None:
    """Print a plan as a person reads it."""
    console = Console()
    rules = planned.study.rules
    console.print(f"[bold]{planned.study.question}[/]\n")
    console.print(_table(planned))
    if planned.study.published:
        console.print(f"  published: {planned.study.published.source}", markup=False)
    for variant in planned.variants:
        for note in variant.notes:
            console.print(f"  {variant.name}: {note}", markup=False)
    for floor in planned.floors:
        console.print(f"  {floor.kind}: {floor.name}: {floor.value:.4g} {floor.unit}", markup=False)
    (kind, amount) = next(iter(rules.budget.items()))
    tuning = len(planned.tuning_cells())
    runs = tuning + len(planned.variants) * rules.seeds
    console.print(
        f"\n{len(planned.variants)} variants x {rules.seeds} seeds + {tuning} tuning runs = {runs} runs "
        f"of {amount:g} {kind}; metric {planned.metric.name} [{planned.metric.unit}]; "
        f"smallest effect of interest {rules.smallest_effect:g}; match {rules.match}",
        markup=False,
    )
    _print_total(planned, console)


def _table(planned: Any) -> Table:
    table = Table()
    costs = ("MFLOPs/token", "activations MB", "steps", "s/run (1 thread)")
    for title in ("variant", "parameters", *(PUBLISHED if planned.study.published else ()), *costs):
        table.add_column(title, justify="left" if title == "variant" else "right")
    for variant in planned.variants:
        name = variant.name + (" (baseline)" if variant.name == planned.study.baseline else "")
        seconds = "" if variant.seconds_per_seed is None else f"{variant.seconds_per_seed:.1f}"
        table.add_row(
            name,
            f"{variant.parameters:,}",
            *(_published(planned, variant) if planned.study.published else ()),
            f"{variant.flops_per_token / 1e6:.3g}",
            f"{variant.activation_bytes / 1e6:.3g}",
            "" if variant.steps is None else str(variant.steps),
            seconds,
        )
    return table


def _published(planned: Any, variant: Any) -> tuple[str, str]:
    """Return a paper's number of parameters, and how far the counted and the paper's lie from the baseline's."""
    said = planned.study.published.parameters
    if variant.name not in said:
        return "", ""
    theirs = f"{said[variant.name] / 1e6:.0f} M"
    if planned.study.baseline not in said:
        return theirs, ""
    counted = variant.parameters - planned.variant(planned.study.baseline).parameters
    claimed = said[variant.name] - said[planned.study.baseline]
    return theirs, f"{counted / 1e6:+.1f} / {claimed / 1e6:+.0f} M"


def _print_total(planned: Any, console: Console) -> None:
    """Print the estimated wall time of the whole study on this machine."""
    from attnlab.training.environment import usable_cores

    if any(variant.seconds_per_seed is None for variant in planned.variants):
        return
    runs = len(planned.tuning_cells()) // len(planned.variants) + planned.study.rules.seeds
    seconds = runs * sum(variant.seconds_per_seed for variant in planned.variants) / usable_cores()
    console.print(
        f"{_duration(seconds)} or more on this machine's {usable_cores()} cores: without optimizer, evaluation, "
        "report, and what runs side by side take from each other",
        markup=False,
    )


def _duration(seconds: float) -> str:
    """Return a duration in the unit a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
