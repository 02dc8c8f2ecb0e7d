"""``attnlab report``: the report of what a folder holds, finished or not."""

from __future__ import annotations

from pathlib import Path


def report(folder: Path, /, *, json: bool = False) -> int:
    """Write the report of a study's folder anew.

    Parameters
    ----------
    folder : Path
        Folder of a study, such as ``runs/shapes``, or ``s3://bucket/shapes``.
    json : bool
        Print ``report.json`` alone on standard output.

    Returns
    -------
    int
        0, or 1 if a run failed.
    """
    from attnlab.cli.run import show
    from attnlab.studies.judge.collect import read_results
    from attnlab.studies.report import write_report

    results = read_results(folder)
    show(results, write_report(results, folder), json=json)
    return int(any(alarm.check == "failed" for alarm in results.alarms))
