"""``attnlab translate``: sentences through a trained model."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from attnlab.cli.words import Device, Weights, Whole
from attnlab.core.errors import SpecError

if TYPE_CHECKING:
    from attnlab.studies.using.trained import Trained
    from attnlab.studies.using.translating import Written

ABOUT_SENTENCES = (
    "What to translate; unless given, the lines of the file or of standard input. Before one that begins with a dash, "
    "write --."
)
"""Help of the words after the run; cyclopts reads none of ``*sentences`` in a docstring."""
MOST_MAPPED = 20
AT_A_TIME = 1000
"""Sentences that are read, and what is written for them printed, together; those of like length share a batch."""


def translate(
    run: Path,
    /,
    *sentences: Annotated[str, Parameter(help=ABOUT_SENTENCES)],
    file: Path | None = None,
    also: tuple[Path, ...] = (),
    beam: Whole | None = None,
    alpha: float | None = None,
    coverage: float | None = None,
    replace_unknown: bool | None = None,
    too_long: Literal["refuse", "skip", "cut"] = "refuse",
    weights: Weights = "last",
    maps: Path | None = None,
    device: Device = "cpu",
) -> int:
    """Translate sentences with a run of a study.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``, or of a checkpoint of transformers.
    *sentences : str
        What to translate; unless given, the lines of the file or of standard input, 1,000 at a time. Before one that
        begins with a dash, write ``--``.
    file : Path, optional
        UTF-8, one sentence a line; ``.gz`` is uncompressed.
    also : tuple of Path
        One more run of the same task, which writes together with the first: an ensemble. Once for each.
    beam : int, optional
        Beginnings that are kept of each translation; 1 takes the likeliest token each time. Unless given, as in the
        study of the run.
    alpha : float, optional
        Exponent of the length penalty, likewise; larger favors longer translations.
    coverage : float, optional
        Weight of a penalty for source tokens that the translation hardly looks at, likewise; 0.2 is usual.
    replace_unknown : bool, optional
        Put the translation of the source word that an unknown word stands for in its place, or that word itself.
    too_long : {"refuse", "skip", "cut"}
        What becomes of a line longer than the model reads: it ends the work after the lines before it are written; or
        an empty line is written for it; or its beginning is translated. The latter two are said.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    maps : Path, optional
        HTML page for the attention maps of the sentences, of which there may be 20 then.
    device : {"cpu", "cuda"}
        Where it is computed.

    Returns
    -------
    int
        0.
    """
    from attnlab.studies.using.pretrained import load_trained
    from attnlab.studies.using.trained import fitting, write
    from attnlab.studies.using.translating import Search

    if sentences and file is not None:
        raise SpecError("give sentences or --file, not both")
    for sentence in sentences:
        _check_no_path(sentence)
    if maps is not None:
        maps.open("a").close()  # before the work, so that a path that cannot be written costs nothing
    trained = [load_trained(folder, which=weights, device=device) for folder in (run, *also)]
    for first, some in some_at_a_time(sentences, file):
        if maps is not None and len(some) > MOST_MAPPED:
            raise SpecError(f"--maps takes at most {MOST_MAPPED} sentences; got more")
        fit = fitting(trained, some) if too_long == "refuse" else len(some)
        found: list[Written] = []
        for begin, part in ((first, some[:fit]), (first + fit, some[fit:])):  # the latter begins with what is refused
            with warnings_said():
                how = Search(beam, alpha, coverage, replace_unknown, first=begin, too_long=too_long)
                written = write(trained, part, how)
            found += written
            if written:
                print("\n".join(one.text for one in written), flush=True)
        if maps is not None:
            _write_maps(maps, trained, some, found)
    return 0


def _check_no_path(sentence: str) -> None:
    """Check that a sentence is not the path of a run or of a file whose lines are meant."""
    try:
        is_run, is_file = (Path(sentence) / "spec.json").is_file(), Path(sentence).is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a character that no path has
        return
    if is_run:
        raise SpecError(f"{sentence} is a run and no sentence; write --also before every run that joins in")
    if is_file:
        raise SpecError(f"{sentence} is a file and no sentence; write --file before it to translate its lines")


def _write_maps(page: Path, trained: Sequence[Trained], sentences: Sequence[str], found: Sequence[Written]) -> None:
    from attnlab.studies.report.html import sentences_page
    from attnlab.studies.using.looking import sentence_maps

    looked = [sentence_maps(trained, *pair) for pair in zip(sentences, found, strict=True) if pair[0].strip()]
    page.write_text(sentences_page(looked), encoding="utf-8")


def some_at_a_time(sentences: Sequence[str], file: Path | None) -> Iterator[tuple[int, list[str]]]:
    """Sentences that are given, or else the lines of a file or of standard input; with the number of the first."""
    lines, first = iter(sentences) if sentences else _lines(file), 1
    while some := list(itertools.islice(lines, AT_A_TIME)):
        yield first, some
        first += len(some)


def _lines(file: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input."""
    from attnlab.tasks.translation.corpus_parts import read_sentences

    if file is not None:
        return read_sentences(file)
    if sys.stdin.isatty():
        print("attnlab: one sentence a line; what was read is translated at the end (Ctrl-D)", file=sys.stderr)
    return read_sentences(sys.stdin.buffer, "standard input")


@contextlib.contextmanager
def warnings_said() -> Iterator[None]:
    """Say warnings as sentences on standard error, without the place in the code."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(one.message) for one in found):
        print(f"attnlab: {message}", file=sys.stderr)
