"""``attnlab heads``: what each head, sublayer and layer of trained models is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.markup import escape
from rich.table import Table

from attnlab.cli.terminal import Terminal
from attnlab.cli.words import Weights, Whole
from attnlab.core.errors import SpecError

if TYPE_CHECKING:
    from attnlab.studies.judge.worth import PartsJudged
    from attnlab.studies.using.measured import MeasuredModel


def heads(
    runs: list[Path],
    /,
    *,
    how: Literal["zero", "mean", "resample"] = "zero",
    part: str = "",
    tokens: Whole = 20_000,
    tolerance: float = 0.01,
    weights: Weights = "last",
    text: Path | None = None,
    parses: Path | None = None,
    json: bool = False,
) -> int:
    """Measure what trained models lose without each head, sublayer and layer, over all seeds of a variant.

    What is found of a study is kept in its folder, where ``attnlab report`` shows it.

    Parameters
    ----------
    runs : list of Path
        Folders of runs, of variants, or of studies: all finished runs in them. With ``--text``: checkpoints of
        transformers.
    how : {"zero", "mean", "resample"}
        What stands in the place of a head or sublayer: ``zero``, ``mean`` (over the batch) or ``resample`` (that of the
        next sequence of the batch). A layer is skipped.
    part : str
        Held-out part; the first of the task by default.
    tokens : int
        Positions of it to measure on.
    tolerance : float
        Loss that may be lost by switching heads off together, in the loss's unit.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    text : Path, optional
        Of checkpoints that continue texts: a text that they were not trained on, to measure on.
    parses : Path, optional
        Sentences with their dependencies in CoNLL-U, as treebanks of Universal Dependencies and most parsers have them:
        how well heads follow each relation between words is measured too.
    json : bool
        Print what was found as JSON.

    Returns
    -------
    int
        0.
    """
    from dataclasses import asdict

    from attnlab.cli.run import own_prints_to_stderr, print_json
    from attnlab.core.errors import ModuleError
    from attnlab.studies.judge.worth import judged_parts, keep_parts
    from attnlab.studies.run.folder import RULES
    from attnlab.studies.storage.mirror import local
    from attnlab.studies.using.parts import finished_runs, measure_parts
    from attnlab.studies.using.syntax import measure_syntax
    from attnlab.tasks.parsing.dependencies import read_dependencies

    console = Terminal(stderr=json)
    sentences = [] if parses is None else read_dependencies(parses)
    copies, judged = [local(run) for run in runs], []
    variants = finished_runs(copies) if text is None else {str(copy): [copy] for copy in copies}
    for variant, folders in variants.items():
        try:
            with own_prints_to_stderr(json), console.status(f"measuring {escape(variant)}"):
                measured, syntax = [], []
                for folder in folders:
                    subject = _subject(folder, text, weights)
                    syntax += [measure_syntax(subject, sentences)] if sentences else []
                    measured += [measure_parts(subject, how=how, part=part, tokens=tokens)]  # pyrefly: ignore
        except ModuleError as error:
            if len(variants) == 1:
                raise
            console.print(f"\n{error}", markup=False, soft_wrap=True)
            continue
        judged.append(judged_parts(variant, measured, tolerance=tolerance, syntax=syntax))
        _print(console, judged[-1])
    for study, copy in zip(runs, copies, strict=True):
        if (copy / RULES).is_file():
            keep_parts(copy, judged)
            console.print(f"\nkept for the report of the study: attnlab report {study}", markup=False, soft_wrap=True)
    if json:
        print_json([asdict(one) for one in judged])
    return 0


def _subject(folder: Path, text: Path | None, weights: str) -> MeasuredModel:
    """A checkpoint where there is a text, else a run."""
    from attnlab.models.pretrained.checkpoint import folder_of
    from attnlab.studies.run.folder import RULES, SPEC
    from attnlab.studies.using.measured import measured_checkpoint, measured_run
    from attnlab.studies.using.trained import load_run

    if text is not None:
        if any((folder / file).is_file() for file in (SPEC, RULES)):
            raise SpecError(f"--text is of a checkpoint; {folder} is a run or study of attnlab: leave it out")
        return measured_checkpoint(folder_of(folder), text)
    return measured_run(load_run(folder, which=weights), weights)


def _print(console: Terminal, one: PartsJudged) -> None:
    from attnlab.studies.report.heads import COLUMNS, SYNTAX_COLUMNS, lines, syntax_table, table

    seeds = f"{one.runs} runs" if one.runs > 1 else "one run: intervals are over its sequences, not over seeds"
    console.print(
        f"\n[bold]{escape(one.variant)}[/]  loss {one.loss:.4g} {escape(one.unit)}  ({seeds})", highlight=False
    )
    shown = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        right, last = column in COLUMNS[1:3], column == COLUMNS[-1]
        shown.add_column(column, justify="right" if right else "left", no_wrap=not last)
    decided = {row.place for row in one.parts if row.decided}
    for place, *rest in table(one):
        shown.add_row(*map(escape, (place, *rest)), style=None if place in decided else "dim")
    console.print(shown)
    if one.syntax:
        console.print()
        shown = Table(*SYNTAX_COLUMNS, box=None, pad_edge=False)
        for row, cells in zip(one.syntax, syntax_table(one), strict=True):
            shown.add_row(*map(escape, cells), style=None if row.followed else "dim")
        console.print(shown)
    for line in lines(one):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
