"""The report of a study: words first, then charts, then everything needed to check them.

`write_report` writes ``report.html`` (self-contained), ``report.md``, ``report.json`` and ``charts/*.png`` from
`StudyResults`; `write_figures` writes what a paper needs of it; `draw_report` shows it in a notebook; `report` is the
machine-readable form, `headline` the answer in words, `verdict_table` the terminal's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from attnlab.core.errors import RunError
from attnlab.core.files import replace_file, writing
from attnlab.core.storage.store import address
from attnlab.inspection.drawing.pieces import Drawn
from attnlab.studies.judge.results import StudyResults
from attnlab.studies.report.content import report
from attnlab.studies.report.terminal import verdict_table
from attnlab.studies.report.words import headline
from attnlab.studies.run.folder import RULES
from attnlab.studies.storage.mirror import deliver

__all__ = ["draw_report", "headline", "report", "verdict_table", "write_figures", "write_report"]


def write_report(results: StudyResults, folder: str | os.PathLike[str], *, beside_rules: bool = False) -> Path:
    """Write the report of a study in all its forms.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far; it may be incomplete.
    folder : path
        Where to write ``report.html``, ``report.md``, ``report.json`` and ``charts/``; created if missing. Of a folder
        in an object store they are written there, and into a copy on this machine.
    beside_rules : bool, default False
        Whether a folder of this machine must be a study's own: it may have been moved away since it was read.

    Returns
    -------
    Path
        The page, ``report.html``, on this machine.

    Raises
    ------
    RunError
        If the folder cannot be written, or should be a study's and is none.
    """
    from attnlab.studies.report.figures import figures
    from attnlab.studies.report.html import page
    from attnlab.studies.report.markdown import markdown

    drawn = figures(results)
    machine = json.dumps(report(results), ensure_ascii=False, allow_nan=False, indent=2)
    files = {f"charts/{figure.drawing.name}.png": figure.drawing.png for figure in drawn}
    files |= {
        "report.json": f"{machine}\n".encode(),
        "report.md": markdown(results, drawn).encode(),
        "report.html": page(results, drawn).encode(),
    }
    target = deliver(folder, files)
    if beside_rules and target == address(folder) and not (target / RULES).exists():
        raise RunError(f"{target} is no study's folder any more, so the report was not written")
    with writing(target):
        for name, content in files.items():
            replace_file(target / name, content)
    return target / "report.html"


def write_figures(results: StudyResults, folder: str | os.PathLike[str]) -> list[Path]:
    """Write what a paper shows of a study: every chart as SVG and PDF, and the verdicts as a table of LaTeX.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far; it may be incomplete.
    folder : path
        Where to write ``NAME.svg``, ``NAME.pdf`` and ``verdicts.tex``, on this machine; created if missing.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    RunError
        If the folder cannot be written.
    """
    import vl_convert

    from attnlab.studies.report.figures import figures
    from attnlab.studies.report.latex import verdict_table_latex

    drawn = {figure.drawing.name: figure.drawing.document for figure in figures(results)}
    files = {f"{name}.svg": svg.encode() for name, svg in drawn.items()}
    files |= {f"{name}.pdf": vl_convert.svg_to_pdf(svg) for name, svg in drawn.items()}
    files["verdicts.tex"] = verdict_table_latex(results).encode()
    target = Path(folder)
    with writing(target):
        for name, content in files.items():
            replace_file(target / name, content)
    return [target / name for name in files]


def draw_report(results: StudyResults) -> Drawn:
    """Draw what a study has found for a notebook.

    Parameters
    ----------
    results : StudyResults
        What the study has found so far; it may be incomplete.

    Returns
    -------
    Drawn
        What a notebook shows as the value of a cell: answer, alarms, verdicts, and all charts of the report.
    """
    from attnlab.studies.report.figures import figures
    from attnlab.studies.report.html import piece

    return piece(results, figures(results))
