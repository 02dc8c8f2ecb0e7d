"""``attnlab translate``: sentences through a trained model."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import SpecError

if TYPE_CHECKING:
    from attnlab.studies.trained import Trained

MOST_MAPPED = 20
AT_A_TIME = 1000
"""Sentences that are read, translated and printed together; those of like length share a batch."""


def translate(
    run: Path,
    /,
    *sentences: str,
    file: Path | None = None,
    also: tuple[Path, ...] = (),
    beam: int | None = None,
    alpha: float | None = None,
    weights: str = "last",
    maps: Path | None = None,
    device: str = "cpu",
) -> int:
    """Translate sentences with a run of a study.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``.
    *sentences : str
        What to translate; unless given, the lines of the file or of standard input, 1,000 at a time.
    file : Path, optional
        UTF-8, one sentence a line.
    also : tuple of Path
        More runs of the same task, which write together with the first: an ensemble.
    beam : int, optional
        Beginnings that are kept of each translation; 1 takes the likeliest token each time. Unless given, as in the
        study of the run.
    alpha : float, optional
        Exponent of the length penalty, likewise; larger favors longer translations.
    weights : str
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    maps : Path, optional
        HTML page for the attention maps of the sentences, of which there may be 20 then.
    device : str
        ``cpu`` or ``cuda``.

    Returns
    -------
    int
        0.
    """
    from attnlab.studies.trained import load_trained
    from attnlab.studies.trained import translate as translated

    if sentences and file is not None:
        raise SpecError("give sentences or --file, not both")
    trained = [load_trained(folder, which=weights, device=device) for folder in (run, *also)]
    lines = iter(sentences) if sentences else _lines(file)
    first = 1
    if maps is not None:
        some = list(itertools.islice(lines, MOST_MAPPED + 1))
        if len(some) > MOST_MAPPED:
            raise SpecError(f"--maps takes at most {MOST_MAPPED} sentences; got more")
        _write_maps(maps, trained, [line for line in some if line], beam=beam, alpha=alpha)
        lines = iter(some)
    while some := list(itertools.islice(lines, AT_A_TIME)):
        with warnings_said():
            found = translated(trained, some, beam=beam, alpha=alpha, first=first)
        print("\n".join(found), flush=True)
        first += len(some)
    return 0


def _write_maps(page: Path, trained: Sequence[Trained], sentences: Sequence[str], **search: Any) -> None:
    from attnlab.studies.looking import sentence_maps
    from attnlab.studies.report.html import sentences_page

    page.write_text(sentences_page([sentence_maps(trained, one, **search) for one in sentences]), encoding="utf-8")


def _lines(file: Path | None) -> Iterator[str]:
    """Yield the lines of a file or of standard input."""
    from attnlab.tasks.corpus_parts import read_sentences

    if file is None:
        yield from read_sentences(sys.stdin.buffer, "standard input")
        return
    with file.open("rb") as content:
        yield from read_sentences(content, str(file))


@contextlib.contextmanager
def warnings_said() -> Iterator[None]:
    """Say warnings as sentences on standard error, without the place in the code."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(one.message) for one in found):
        print(f"attnlab: {message}", file=sys.stderr)
