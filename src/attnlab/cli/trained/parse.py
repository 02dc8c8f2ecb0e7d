"""``attnlab parse``: the trees of sentences, by a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from attnlab.cli.words import Device, Weights, Whole
from attnlab.core.errors import SpecError

if TYPE_CHECKING:
    from rich.tree import Tree as Drawn

    from attnlab.text.trees import Tree

ABOUT_SENTENCES = (
    "What to parse; unless given, the lines of the file or of standard input. "
    "Before one that begins with a dash, write --."
)
"""Help of the words after the run; cyclopts reads none of ``*sentences`` in a docstring."""


def parse(
    run: Path,
    /,
    *sentences: Annotated[str, Parameter(help=ABOUT_SENTENCES)],
    file: Path | None = None,
    also: tuple[Path, ...] = (),
    words: bool = False,
    unlabelled: bool = False,
    beam: Whole | None = None,
    skip: bool = False,
    weights: Weights = "last",
    draw: bool = False,
    svg: Path | None = None,
    device: Device = "cpu",
) -> int:
    """Parse sentences with a run of a study: their constituents as trees in brackets.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``.
    *sentences : str
        What to parse; unless given, the lines of the file or of standard input, 1,000 at a time. Before one that begins
        with a dash, write ``--``.
    file : Path, optional
        UTF-8, one sentence a line; ``.gz`` is uncompressed.
    also : tuple of Path
        One more run of the same task, which writes together with the first: an ensemble. Once for each.
    words : bool
        Take as words what blanks divide; else sentences are cut as the Penn Treebank does.
    unlabelled : bool
        Parse the sentences of the run's training part whose trees its task left out (``labelled``).
    beam : int, optional
        Beginnings that are kept of each tree; 1 takes the likeliest token each time. Unless given, as in the study of
        the run.
    skip : bool
        Leave out a sentence that is empty, too long or holds a bracket in a word: an empty line stands in its place.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    draw : bool
        Draw trees in the terminal, instead of writing brackets.
    svg : Path, optional
        Picture of the tree of the only sentence.
    device : {"cpu", "cuda"}
        Where it is computed.

    Returns
    -------
    int
        0.
    """
    from attnlab.cli.trained.translate import some_at_a_time, warnings_said
    from attnlab.studies.using.trained import load_run
    from attnlab.studies.using.trained import parse as trees_of
    from attnlab.studies.using.trained import unlabelled as without_trees
    from attnlab.text.trees import read_trees
    from attnlab.text.trees.drawing import tree_svg

    if (bool(sentences), file is not None, unlabelled).count(True) > 1:
        raise SpecError("give sentences, --file or --unlabelled, not several of them")
    if svg is not None and len(sentences) != 1:
        raise SpecError(f"--svg draws the tree of one sentence, given after the run; got {len(sentences)}")
    if svg is not None and not svg.absolute().parent.is_dir():
        raise SpecError(f"--svg {svg}: there is no folder {svg.parent}")
    trained = [load_run(folder, which=weights, device=device) for folder in (run, *also)]
    read = without_trees(trained[0]) if unlabelled else sentences
    for first, some in some_at_a_time(read, file):
        with warnings_said():
            found = trees_of(trained, some, words=words or unlabelled, beam=beam, first=first, skip=skip)
        print("\n".join(map(_drawn_in_text, found) if draw else found), flush=True)
        if svg is not None:
            svg.write_text(tree_svg(*read_trees(found)), encoding="utf-8")
    return 0


def _drawn_in_text(brackets: str) -> str:
    """A tree as it is drawn in a terminal."""
    from rich.console import Console

    from attnlab.text.trees import read_trees

    console = Console(highlight=False, markup=False, emoji=False, width=10_000)
    with console.capture() as capture:
        console.print(*map(_drawn, read_trees([brackets])))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _drawn(tree: Tree, above: Drawn | None = None) -> Drawn:
    from rich.text import Text
    from rich.tree import Tree as Drawn

    said = Text(tree.label if tree.children else f"{tree.label} {tree.word}")
    node = Drawn(said) if above is None else above.add(said)
    for child in tree.children:
        _drawn(child, node)
    return node
