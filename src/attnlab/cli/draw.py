"""``attnlab draw``: the figures of a study's models."""

from __future__ import annotations

import sys
from pathlib import Path

from attnlab.cli.words import Asked, Scale
from attnlab.core.errors import SpecError


def draw(
    study: Asked,
    /,
    *,
    variant: list[str] | None = None,
    scale: Scale = None,
    out: Path | None = None,
) -> int:
    """Draw the models of a study as the figures of papers are, each read off the model that is built.

    Parameters
    ----------
    study : str
        Name of a study or a case of the library, or a YAML file.
    variant : list of str, optional
        Only the variants of these names.
    scale : str, optional
        One of the study's scales, for example ``small``.
    out : Path, optional
        The SVG file of a single variant; by default ``STUDY-VARIANT.svg``, or ``STUDY-SCALE-VARIANT.svg``, in the
        current folder.

    Returns
    -------
    int
        0.
    """
    from attnlab.explain.case import load_asked
    from attnlab.explain.drawing import draw as figures_of
    from attnlab.studies.define.study import slug

    question = load_asked(study, scale=scale)
    chosen = variant or list(question.variants)
    if out is not None and len(chosen) > 1:
        raise SpecError(
            f"--out names one file, and there are {len(chosen)} variants to draw; choose one with --variant"
        )
    if out is not None and out.suffix != ".svg":
        raise SpecError(f"--out must end in .svg; got {out}")
    name = f"{question.name}-{scale}" if scale else question.name
    for one, figure in figures_of(question, variants=chosen).items():
        path = out or Path(f"{name}-{slug(one)}.svg")
        path.write_text(figure.svg, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0
