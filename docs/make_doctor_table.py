"""Examine the whole collection and write what the doctor found into ``docs/doctor.md``.

``.venv/bin/python docs/make_doctor_table.py [--workers 2]`` takes a few minutes. The table stands between the marks
``<!-- collection -->`` and ``<!-- /collection -->``; ``--print`` shows it and writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

PAGE = Path(__file__).with_name("doctor.md")
ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- collection -->", "<!-- /collection -->"

sys.path.insert(0, str(ROOT))  # the collection lives among the tests, which are not installed

from tests.doctor.collection import CASES, Case, Outcome, Score, examine, score, told  # noqa: E402

REFUSED = "(could not examine)"


def outcome(case: Case) -> Outcome:
    """Examine one module.

    Parameters
    ----------
    case : Case
        The module.

    Returns
    -------
    Outcome
        Which errors were reported, and how long it took; where the doctor gives up, that is named as an error.
    """
    from attnlab.core.errors import AttnlabError

    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            errors = tuple(sorted(told(case, examine(case))))
        except AttnlabError:
            errors = (REFUSED,)
    return Outcome(case, errors, time.perf_counter() - begin)


def outcomes(cases: tuple[Case, ...], workers: int) -> Iterator[Outcome]:
    """Examine modules side by side, each worker on one thread.

    Parameters
    ----------
    cases : tuple of Case
        What is to be examined.
    workers : int
        Number of processes.

    Yields
    ------
    Outcome
        In the order of the cases.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(outcome, cases)


def table(result: Score) -> str:
    """Return the table as Markdown.

    Parameters
    ----------
    result : Score
        How the doctor did.

    Returns
    -------
    str
        One line per check, then the right modules and the time.
    """
    lines = ["| check | broken modules | found |", "|---|---|---|"]
    lines += [f"| `{check}` | {total} | {hits} |" for check, (hits, total) in sorted(result.found.items())]
    hits, total = (sum(counts[index] for counts in result.found.values()) for index in (0, 1))
    middle, longest = result.seconds
    lines += [
        f"| all | {total} | {hits} |",
        "",
        f"Right modules: {result.right}; errors reported in them: {result.wrong}.",
        f"One examination took {middle:.1f} s (median), at most {longest:.1f} s, on one core.",
    ]
    return "\n".join(lines)


def insert(page: str, text: str) -> str:
    """Return a page with the text between the marks.

    Parameters
    ----------
    page : str
        Markdown that has both marks.
    text : str
        What stands between them from now on.

    Returns
    -------
    str
        The new page.

    Raises
    ------
    SystemExit
        If the page lacks a mark.
    """
    if BEGIN not in page or END not in page:
        raise SystemExit(f"{PAGE} must have the marks {BEGIN} and {END}")
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", page, flags=re.DOTALL)


def main() -> None:
    """Run the collection, name every miss on stderr, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="examine only targets that contain this, and write nothing")
    parser.add_argument("--print", action="store_true", dest="only_print", help="write nothing")
    given = parser.parse_args()
    seen = []
    for one in outcomes(tuple(case for case in CASES if given.only in case.target), given.workers):
        seen.append(one)
        if not one.is_right:
            wanted = " or ".join(sorted(one.case.expected)) or "no error"
            print(f"{one.case.target}: {', '.join(one.errors) or 'no error'}; wanted {wanted}", file=sys.stderr)
    text = table(score(seen))
    if given.only_print or given.only:
        print(text)
    else:
        PAGE.write_text(insert(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main()
