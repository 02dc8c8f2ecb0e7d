"""``attnlab score``: the translations of a held-out part, and what they are worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.cli.words import Device, Weights, Whole
from attnlab.core.errors import SpecError

if TYPE_CHECKING:
    from attnlab.studies.using.scoring import Scored


def score(
    run: Path,
    /,
    *,
    part: str = "",
    file: Path | None = None,
    reference: tuple[Path, ...] = (),
    language: str | None = None,
    also: tuple[Path, ...] = (),
    against: tuple[Path, ...] = (),
    beam: Whole | None = None,
    alpha: float | None = None,
    coverage: float | None = None,
    replace_unknown: bool | None = None,
    batch: Whole = 64,
    cached: bool = True,
    weights: Weights = "last",
    out: Path | None = None,
    device: Device = "cpu",
) -> int:
    """Translate a held-out part, or a text of yours, with a run; print BLEU and chrF with their signatures.

    Parameters
    ----------
    run : Path
        Folder of a run, such as ``runs/STUDY/VARIANT/seed-0``, or of a checkpoint of transformers.
    part : str
        ``validation`` or ``test``; by default the test part, where the study's task names one.
    file : Path, optional
        What is translated in place of a part: UTF-8, one sentence a line; ``.gz`` is uncompressed.
    reference : tuple of Path
        A translation of that file by people, line by line. Once for each.
    language : str, optional
        Code of the language that is translated into, such as ``de`` or ``zh``, by which BLEU cuts words; as the study
        of the run has it, unless given.
    also : tuple of Path
        One more run of the same task, which writes together with the first: an ensemble. Once for each.
    against : tuple of Path
        A run that translates the same sentences, to see by a paired bootstrap over them how much the difference in BLEU
        and chrF depends on which sentences they are. Once for each.
    beam : int, optional
        Beginnings that are kept of each translation; 1 takes the likeliest token each time. Unless given, as in the
        study of the run.
    alpha : float, optional
        Exponent of the length penalty, likewise; larger favors longer translations.
    coverage : float, optional
        Weight of a penalty for source tokens that the translation hardly looks at, likewise; 0.2 is usual.
    replace_unknown : bool, optional
        Put the translation of the source word that an unknown word stands for in its place, or that word itself.
    batch : int
        Sentences that are translated together.
    cached : bool
        Keep keys and values of earlier tokens; without, the same comes out and takes longer.
    weights : {"last", "best"}
        ``last``, which the study judged, or ``best`` (those of the best evaluation).
    out : Path, optional
        File for the translations, one a line.
    device : {"cpu", "cuda"}
        Where it is computed.

    Returns
    -------
    int
        0.
    """
    from attnlab.cli.trained.translate import warnings_said
    from attnlab.studies.using.pretrained import load_trained
    from attnlab.studies.using.scoring import OwnText
    from attnlab.studies.using.scoring import score as scored_by
    from attnlab.tasks.translation.corpus_parts import read_sentences

    if (file is None) == bool(reference) or (file is not None and part):
        raise SpecError("a text of your own needs both --file and --reference, and no --part")
    if file is None and language is not None:
        raise SpecError("--language is of a text of your own: give it with --file and --reference")
    own = None
    if file is not None:
        own = OwnText(*(list(read_sentences(file)), [list(read_sentences(one)) for one in reference]), language)
    models, others = (
        [load_trained(folder, which=weights, device=device) for folder in folders]
        for folders in ((run, *also), against)
    )
    if out is not None:
        out.open("a").close()  # before the work, so that a path that cannot be written costs nothing
    with warnings_said():
        search = {"beam": beam, "alpha": alpha, "coverage": coverage, "replace_unknown": replace_unknown}
        scored = scored_by(models, part, own=own, against=others, **search, batch=batch, cached=cached)
    if out is not None:
        out.write_text("".join(f"{line}\n" for line in scored.translations), encoding="utf-8")
    _print(scored)
    return 0


def _print(scored: Scored) -> None:
    count = len(scored.translations)
    pace = f"{scored.seconds:.1f} s, {count / scored.seconds:.1f} a second"
    print(f"{count:,} sentences in {pace}")
    for one in scored.scores:
        print(f"{one.name:15s} {one.value:5.2f}  {one.details}".rstrip() + f"\n{'':22s}{one.signature}")
    for folder, differences in scored.above.items():
        print(f"against {folder}:")
        for one in differences:
            print(f"{one.name:15s} {one.value:+5.2f}  {one.low:+.2f} to {one.high:+.2f}")
    if scored.above:
        print("95 % intervals of a paired bootstrap over the sentences: of these models, not of other seeds")
