"""``attnlab translate``: sentences through a trained model."""

from __future__ import annotations

import sys
from pathlib import Path


def translate(
    run: Path,
    /,
    *sentences: str,
    file: Path | None = None,
    also: tuple[Path, ...] = (),
    beam: int | None = None,
    alpha: float | None = None,
    weights: str = "last",
    device: str = "cpu",
) -> int:
    """Translate sentences with a run of a study.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``.
    *sentences : str
        What to translate; unless given, the lines of the file or of standard input.
    file : Path, optional
        UTF-8, one sentence a line.
    also : tuple of Path
        More runs with the same tokenizer, which write together with the first: an ensemble.
    beam : int, optional
        Beginnings that are kept of each translation; 1 takes the likeliest token each time. Unless given, as in the
        study of the run.
    alpha : float, optional
        Exponent of the length penalty, likewise; larger favors longer translations.
    weights : str
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    device : str
        ``cpu`` or ``cuda``.

    Returns
    -------
    int
        0.
    """
    from attnlab.studies.trained import load_trained
    from attnlab.studies.trained import translate as translated

    trained = [load_trained(folder, which=weights, device=device) for folder in (run, *also)]
    for line in translated(trained, list(sentences) or _lines(file), beam=beam, alpha=alpha):
        print(line)
    return 0


def _lines(file: Path | None) -> list[str]:
    """Return the lines of a file or of standard input."""
    from attnlab.tasks.corpus_parts import read_sentences

    if file is None:
        return read_sentences(sys.stdin.buffer, "standard input")
    with file.open("rb") as content:
        return read_sentences(content, str(file))
