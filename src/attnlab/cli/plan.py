"""``attnlab plan``: what a study would cost."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from attnlab.cli.terminal import Terminal
from attnlab.cli.words import Scale, StudyName
from attnlab.core.errors import SpecError

MANY = 999.5
"""From here on three digits would need an exponent."""
MOST_HOURS = 48
"""From here on a duration is told in days."""
MOST_NODES = 100_000
"""Of a cluster that is nowhere yet; larger ones there are none."""


def plan(
    study: StudyName,
    /,
    *,
    scale: Scale = None,
    seeds: str | None = None,
    calibrate: bool = True,
    runs: str = "runs",
    on: str | None = None,
    price: float | None = None,
    faults: float = 0.0,
    json: bool = False,
) -> int:
    """Say what a study would cost, before a second is spent.

    Parameters
    ----------
    study : str
        Name of a study of the library, or a YAML file.
    scale : str, optional
        One of the study's scales, for example ``small``.
    seeds : str, optional
        Number of seeds, instead of the study's own, or two such as ``3-20``.
    calibrate : bool
        Time a few training steps of every variant.
    runs : str
        Folder of earlier studies: how far their seeds lay apart says which differences this one will see.
    on : str, optional
        A Ray cluster, as ``attnlab run`` has it: also say what the study comes to on the nodes that are there. Or
        machines that are nowhere yet: ``1000x8`` are a thousand of eight cores.
    price : float, optional
        Price of an hour of one core, in any currency: also say what the study comes to, here or on the cluster.
    faults : float
        How often a machine of the cluster fails a day, on average; its runs go on elsewhere from their checkpoints.
        Counts with ``--on`` or ``--price``.
    json : bool
        Print the plan as JSON.

    Returns
    -------
    int
        0.
    """
    from dataclasses import asdict

    from attnlab.cli.run import own_prints_to_stderr, print_json, seed_changes
    from attnlab.studies.define.study import load_study
    from attnlab.studies.judge.alarms import alarms_before
    from attnlab.studies.judge.earlier import earlier_spread
    from attnlab.studies.plan.bill import bill
    from attnlab.studies.plan.plan import plan_study
    from attnlab.studies.storage.mirror import local

    if faults and on is None and price is None:
        raise SpecError("--faults counts in what a study comes to on machines; name them (--on), or give a --price")
    with own_prints_to_stderr(json):
        planned = plan_study(load_study(study, scale=scale, changes=seed_changes(seeds)), calibrate=calibrate)
    due = None if on is None and price is None else bill(planned, _cores(on), price=price, faults=faults)
    spread = earlier_spread(planned, local(runs)) if _compares(planned) else None
    if json:
        alarms = [asdict(alarm) for alarm in alarms_before(planned)]
        further = {"alarms": alarms, "spread": spread and spread.to_json(planned), "bill": due and due.to_json()}
        print_json(planned.to_json() | further)
    else:
        _print(planned, spread)
        if due is not None:
            Terminal().print(_told_by_bill(due), markup=False)
    return 0


def _cores(on: str | None) -> list[int]:
    """Cores of each node of a cluster, or of this machine."""
    import re

    from attnlab.cli.run import cluster_named
    from attnlab.core.machine import usable_cores

    imagined = re.fullmatch(r"(\d{1,18})x(\d{1,18})", on or "")
    if imagined:
        nodes, cores = map(int, imagined.groups())
        if nodes > MOST_NODES:
            raise SpecError(f"--on {on}: at most {MOST_NODES:,} nodes are simulated; name fewer")
        return [cores] * nodes
    with cluster_named(on) as cluster:
        return [usable_cores()] if cluster is None else cluster.cores()


def _told_by_bill(due: Any) -> str:
    """What a study comes to on machines that are there."""
    money = "" if due.price is None else f"; price {due.price:,.2f}"
    least, most = map(_duration, due.seconds_range)
    spread = "" if least == most else f" ({least} to {most} in nine of ten simulations)"
    lost = f", {due.lost_core_hours:.3g} of them once more after failures" if due.lost_core_hours else ""
    further = f"; {due.most_runs:,} runs and {_duration(due.most_seconds)} if every look is needed"
    return (
        f"{due.nodes:,} node{'' if due.nodes == 1 else 's'} with {due.cores:,} cores, {due.at_once:,} runs at once: "
        f"{due.runs:,} runs take {due.core_hours + due.lost_core_hours:.3g} core hours at this machine's pace{lost}, "
        f"{_duration(due.seconds)} on the clock{spread}, simulated, and {due.storage_bytes / 1e6:,.0f} MB of weights"
        f"{further if due.most_runs > due.runs else ''}{money}"
    )


def _compares(planned: Any) -> bool:
    """Whether a study can decide anything: it compares something, with more than one seed."""
    return planned.study.rules.looks[-1] > 1 and bool(planned.study.contrasts)


def _print(planned: Any, spread: Any) -> None:
    """Print a plan as a person reads it."""
    from attnlab.cli.progress import print_alarm
    from attnlab.studies.judge.alarms import alarms_before

    console = Terminal()
    rules = planned.study.rules
    console.print(f"{planned.study.question}\n", style="bold", markup=False, highlight=False)
    console.print(_costs(planned))
    if planned.study.published:
        console.print(_beside_paper(planned))
        console.print(f"  paper: {planned.study.published.source}", markup=False)
    for note in dict.fromkeys(note for variant in planned.variants for note in variant.notes):
        named = [variant.name for variant in planned.variants if note in variant.notes]
        of_all = len(named) == len(planned.variants) > 1
        console.print(f"  {'all variants' if of_all else ', '.join(named)}: {note}", markup=False)
    for alarm in alarms_before(planned):
        print_alarm(console, alarm)
    for floor in planned.floors:
        kind = "" if floor.kind == floor.name else f"{floor.kind}: "
        console.print(f"  {kind}{floor.name}: {floor.value:.4g} {floor.unit}", markup=False)
    (kind, amount) = next(iter(rules.budget.items()))
    variants = len(planned.variants)
    tuning = variants * rules.tuning_runs
    least, most = rules.looks[0], rules.looks[-1]
    seeds, runs = (
        str(count) if least == most else f"{count} to {other}"
        for count, other in ((least, most), (tuning + variants * least, tuning + variants * most))
    )
    console.print(
        f"\n{variants} variant{'' if variants == 1 else 's'} x {seeds} seed{'' if most == 1 else 's'} + "
        f"{tuning} tuning runs = {runs} runs of {amount:g} {kind}; "
        f"metric {planned.metric.name} [{planned.metric.unit}]; "
        f"smallest effect of interest {rules.smallest_effect:g}; match {rules.match}"
        + ("; every seed draws data of its own" if rules.split else ""),
        markup=False,
    )
    console.print(_what_can_be_told(planned), markup=False)
    if spread is not None:
        console.print(_told_by_earlier(planned, spread), markup=False)
    _print_total(planned, console)


def _what_can_be_told(planned: Any) -> str:
    """The smallest difference that the rules tell from none, and the spread above which one that matters is lost."""
    from attnlab.studies.judge.statistics import POWER, detectable_effect

    rules, comparisons = planned.study.rules, len(planned.study.contrasts)
    most = rules.looks[-1]
    if not comparisons:
        return "one variant is compared with nothing: this study measures, and decides nothing"
    if most == 1:
        return "one seed shows nothing: this study cannot decide anything; give it three or more (--seeds 3-20)"
    effect = detectable_effect(most, alpha=rules.levels(comparisons)[-1])
    told = f"{most} seeds tell a difference of {effect:.2g} standard deviations from none ({POWER:.0%} power)"
    if not rules.smallest_effect:
        return told
    spread, unit = rules.smallest_effect / effect, planned.metric.unit
    return f"{told}: the smallest effect of interest, if that is at most {spread:.2g} {unit}".rstrip()


def _told_by_earlier(planned: Any, spread: Any) -> str:
    """The smallest difference that a study will see, in its metric's unit, and whether that is small enough."""
    unit, wanted, seen = planned.metric.unit, planned.study.rules.smallest_effect, spread.detectable(planned)
    least, most = (f"{value:.2g}" for value in (spread.deviations[0], spread.deviations[-1]))
    scattered = least if least == most else f"{least} to {most}, typically {spread.typical:.2g}"
    told = (
        f"earlier runs of this task ({', '.join(spread.folders)}): over seeds, differences had a standard deviation of "
        f"{scattered} {unit}; with such a spread this study sees differences from {seen:.2g} on"
    )
    if not wanted:
        return told
    if seen <= wanted:
        return f"{told}, and so those of {wanted:g} that matter"
    needed = spread.seeds_for_smallest_effect(planned)
    remedy = f"about {needed:,} seeds" if needed else "no number of seeds worth naming"
    return f"{told}, and mostly not one of {wanted:g}, which is said to matter: {remedy} would show one so small"


def _costs(planned: Any) -> Table:
    """What every variant costs."""
    timed = any(variant.seconds_per_seed is not None for variant in planned.variants)
    table = _table("parameters", "MFLOPs\na token", "MB\na batch", "steps", *(["s a run,\n1 thread"] if timed else []))
    for variant in planned.variants:
        seconds = "" if variant.seconds_per_seed is None else _seconds(variant.seconds_per_seed)
        table.add_row(
            _named(planned, variant),
            f"{variant.parameters:,}",
            _short(variant.flops_per_token / 1e6),
            _short(variant.activation_bytes / 1e6),
            "" if variant.steps is None else f"{variant.steps:,}",
            *([seconds] if timed else []),
        )
    return table


def _beside_paper(planned: Any) -> Table:
    """The parameters beside those that a paper gives, and how far both lie from the baseline's."""
    table = _table("parameters", "paper", "minus baseline", "paper")
    said, baseline = planned.study.published.parameters, planned.study.baseline
    base = planned.variant(baseline).parameters
    for variant in planned.variants:
        if variant.name in said:
            ours, theirs = variant.parameters, said[variant.name]
            row = [_named(planned, variant), f"{ours:,}", f"{theirs / 1e6:.0f} M"]
            if baseline in said:
                row += [f"{(ours - base) / 1e6:+.1f} M", f"{(theirs - said[baseline]) / 1e6:+.0f} M"]
            table.add_row(*row)
    return table


def _table(*numbers: str) -> Table:
    """A table of variants and numbers, none of which is broken or cut."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("variant", overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _named(planned: Any, variant: Any) -> str:
    """A variant's name, and whether it is the baseline."""
    return variant.name + (" (baseline)" if variant.name == planned.study.baseline else "")


def _short(value: float) -> str:
    """A number with three digits, or all before the point where there are more."""
    return f"{value:,.0f}" if value >= MANY else f"{value:.3g}"


def _print_total(planned: Any, console: Terminal) -> None:
    """Print the estimated wall time of the whole study on this machine."""
    from attnlab.core.machine import usable_cores

    if any(variant.seconds_per_seed is None for variant in planned.variants):
        return
    runs = planned.study.rules.tuning_runs + planned.study.rules.looks[0]
    seconds = runs * sum(variant.seconds_per_seed for variant in planned.variants) / usable_cores()
    draws = runs * len(planned.variants) / usable_cores() if planned.study.rules.split else 1
    seconds += draws * planned.data_seconds
    scores = "scores of what is written, " if planned.task.judged else ""
    console.print(
        f"{_duration(seconds)} or more on this machine's {usable_cores()} cores: without starting processes, "
        f"optimizer, {scores}report, and what runs side by side take from each other",
        markup=False,
    )


def _seconds(value: float) -> str:
    """Seconds with one decimal, or none where there are many."""
    return f"{value:,.0f}" if value >= MANY else f"{value:.1f}"


def _duration(seconds: float) -> str:
    """A duration in the unit a person would use."""
    for most, unit, name in ((90, 1, "s"), (5400, 60, "minutes")):
        if seconds < most:
            return f"{seconds / unit:.0f} {name}"
    hours = seconds / 3600
    return f"{hours:.1f} hours" if hours < MOST_HOURS else f"{hours / 24:,.0f} days"
