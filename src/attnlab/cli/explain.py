"""``attnlab explain``: whether a number is normal, and what made it what it is."""

from __future__ import annotations

from pathlib import Path

from attnlab.cli.terminal import Terminal, each_warning_once
from attnlab.cli.words import CaseName, Scale, Whole


def explain(
    case: CaseName,
    /,
    *,
    scale: Scale = None,
    out: Path | None = None,
    minutes: float = 15.0,
    seeds: Whole | None = None,
    jobs: Whole | None = None,
    json: bool = False,
) -> int:
    """Explain a number that surprised you: bug, known effect, set-up, noise, or a number that cannot be.

    Parameters
    ----------
    case : str
        A YAML file that says what you ran, what you saw and what you expected; or a case of the library.
    scale : str, optional
        One of the case's scales, for example ``small``: another size, where what was seen would take hours.
    out : Path, optional
        Folder of the case; ``runs/explain-CASE`` (``runs/explain-CASE-SCALE``) by default. The same command goes on
        where it stopped.
    minutes : float
        How long it may take; runs are shortened until the plan fits, which is then said.
    seeds : int, optional
        Runs of every set-up; as many as there is time for, three to five, by default.
    jobs : int, optional
        Worker processes, with one thread each; by default one a core.
    json : bool
        Print the answer as JSON.

    Returns
    -------
    int
        0.
    """
    from attnlab.cli.run import own_prints_to_stderr, print_json
    from attnlab.explain.case import load_case
    from attnlab.explain.explaining import explain as find
    from attnlab.explain.explaining import folder_of
    from attnlab.explain.page import write_answer
    from attnlab.explain.words import paragraph, what_next

    console = Terminal(stderr=json)
    question = load_case(case, scale=scale)
    folder = out or folder_of(question)
    console.print(question.study.question, style="bold", markup=False, highlight=False)

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    with own_prints_to_stderr(json), each_warning_once(tell):
        answer = find(question, folder, minutes=minutes, seeds=seeds, jobs=jobs, tell=tell)
    page = write_answer(answer, folder)
    if json:
        print_json(answer.to_json())
        return 0
    console.print(f"\n[bold]{answer.verdict}[/]", highlight=False)
    console.print(paragraph(answer), markup=False, highlight=False)
    console.print(f"\nnext: {what_next(answer)}", markup=False, highlight=False)
    console.print(f"\nanswer: {page}", markup=False, soft_wrap=True)
    return 0
