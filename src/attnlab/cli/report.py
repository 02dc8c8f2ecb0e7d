"""``attnlab report``: the report of what a folder holds, finished or not."""

from __future__ import annotations

import sys
from pathlib import Path


def report(folder: Path, /, *, figures: Path | None = None, json: bool = False) -> int:
    """Write the report of a study's folder anew.

    Parameters
    ----------
    folder : Path
        Folder of a study, such as ``runs/shapes``, or ``s3://bucket/shapes``.
    figures : Path, optional
        Also write what a paper shows of it into this folder: every chart as SVG and PDF, and ``verdicts.tex``.
    json : bool
        Print ``report.json`` alone on standard output.

    Returns
    -------
    int
        0, or 1 if a run failed.
    """
    from attnlab.cli.run import report_and_show
    from attnlab.studies.judge.collect import read_results
    from attnlab.studies.report import write_figures

    results = read_results(folder)
    report_and_show(results, folder, json=json)
    if figures is not None:
        print("\n".join(map(str, write_figures(results, figures))), file=sys.stderr if json else sys.stdout)
    return int(any(alarm.check == "failed" for alarm in results.alarms))
