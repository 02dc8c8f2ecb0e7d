"""``attnlab classify``: the classes of texts, by a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlab.cli.words import Device, Weights
from attnlab.core.errors import SpecError

ABOUT_TEXTS = (
    "What to classify; unless given, the lines of the file or of standard input. "
    "Before one that begins with a dash, write --."
)
"""Help of the words after the run; cyclopts reads none of ``*texts`` in a docstring."""


def classify(
    run: Path,
    /,
    *texts: Annotated[str, Parameter(help=ABOUT_TEXTS)],
    file: Path | None = None,
    also: tuple[Path, ...] = (),
    weights: Weights = "last",
    device: Device = "cpu",
    json: bool = False,
) -> int:
    """Name the classes of texts with a run of a study: a line each, the likeliest class and its probability.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``.
    *texts : str
        What to classify; unless given, the lines of the file or of standard input, 1,000 at a time. Before one that
        begins with a dash, write ``--``.
    file : Path, optional
        UTF-8, one text a line; ``.gz`` is uncompressed.
    also : tuple of Path
        One more run of the same task, whose probabilities are averaged with those of the first. Once for each.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    device : {"cpu", "cuda"}
        Where it is computed.
    json : bool
        Print the probability of every class, a JSON object a line.

    Returns
    -------
    int
        0.
    """
    from json import dumps

    from attnlab.cli.terminal import holds_all_characters
    from attnlab.cli.trained.translate import some_at_a_time, warnings_said
    from attnlab.studies.using.predicting import classify as classes_of
    from attnlab.studies.using.trained import load_run

    if texts and file is not None:
        raise SpecError("give texts or --file, not both")
    trained = [load_run(folder, which=weights, device=device) for folder in (run, *also)]
    for first, some in some_at_a_time(texts, file):
        with warnings_said():
            found = classes_of(trained, some, first=first)
        for chances in found:
            likeliest, chance = next(iter(chances.items()))
            print(
                dumps(chances, ensure_ascii=not holds_all_characters()) if json else f"{likeliest}\t{chance:.3f}",
                flush=True,
            )
    return 0
