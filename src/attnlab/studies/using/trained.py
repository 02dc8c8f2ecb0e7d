"""Trained models of a study put to use: sentences translated, texts continued."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from attnlab.core.errors import DataError, RunError, SpecError, did_you_mean
from attnlab.core.files import read_json
from attnlab.core.machine import require_device
from attnlab.core.sizes import require_known, require_positive
from attnlab.inspection.cost import count_parameters
from attnlab.inspection.drawing.pieces import curve, drawn, facts
from attnlab.models.decoding.generation import Chooser, sample
from attnlab.models.decoding.writers import TextWriter
from attnlab.studies.define.assemble import build_model_offered, build_task
from attnlab.studies.storage.mirror import local, with_checkpoints
from attnlab.studies.using.kept_task import KeptTask, kept_task
from attnlab.studies.using.parsing import fitting as fitting_trees
from attnlab.studies.using.parsing import parses
from attnlab.studies.using.translating import BATCH, Search, TooLong, Written, listed, translations
from attnlab.tasks.codecs import SentenceCodec, TreeCodec
from attnlab.training.keeping.checkpoints import load_model_weights
from attnlab.training.keeping.runs import RESULT, lost_curve, read_metrics

LARGEST_SEED = 2**63 - 1  # what torch takes
MOST_TEXTS = 10**4  # that are written together
LONGEST_TEXT = 10**6  # tokens of a text that is written: more than anyone waits for
WRITES = {"sentences": "translate", "trees": "parse", "classes": "classify", "numbers": "predict"}
WRITES |= dict.fromkeys(("text", "characters"), "generate")
"""Which command lets a model write, by the kind of its codec."""


@final
@dataclass(frozen=True)
class Trained:
    """Hold a trained model, and what its run says of the task."""

    folder: Path  # where it comes from
    model: nn.Module  # in evaluation mode
    task: KeptTask  # what tokens mean, and which data there were

    def _repr_html_(self) -> str:
        """What the model is, what it reached, and how its loss fell."""
        known = {"model": type(self.model).__name__, "parameters": f"{count_parameters(self.model):,}"}
        path = self.folder / RESULT
        reached = read_json(path)["metrics"] if path.exists() else {}
        known |= {"training loss": lost} if (lost := lost_curve(self.folder)) else {}
        points = [(one["step"], one["train_loss"]) for one in read_metrics(self.folder) if one.get("train_loss")]
        line = [curve(points, along="step", up="training loss")] if points else []
        numbers = {name: f"{value:.4g}" for name, value in reached.items()}
        return drawn(f"{self.task.name}: {self.folder}", facts(known | numbers), *line).html


def load_run(folder: Path, *, which: str = "last", device: str = "cpu") -> Trained:
    """The model of a run with its weights; where it writes, the data of its task are not needed.

    Parameters
    ----------
    folder : Path
        Folder of a run: ``runs/STUDY/VARIANT/seed-0``; also one in an object store.
    which : {"last", "best"}
        The weights at the end, which a study judges, or those of the best evaluation.
    device : str
        Where to put the model.

    Returns
    -------
    Trained
        Model and task.

    Raises
    ------
    RunError
        If the folder is no run, has no such weights, they are damaged, or it does not say what its tokens mean.
    SpecError
        If there is no such device, or the weights are neither "last" nor "best".

    Notes
    -----
    The task of a model that does not write, such as `shapes`, is built again as the run's specification has it, and
    raises what its constructor raises.
    """
    require_device(device)
    require_known("weights", which, ("last", "best"))
    folder = local(folder)
    path = folder / "spec.json"
    if not path.is_file():
        found = itertools.chain(folder.glob("seed-*/spec.json"), folder.glob("*/seed-*/spec.json"))
        runs = sorted(str(one.parent) for one in found)
        beside = folder.parent.parent.glob("*/seed-*/spec.json")
        near = did_you_mean(str(folder), [str(one.parent) for one in beside])
        hint = f"; runs in it: {', '.join(runs)}" if runs else f"; {near}" if near else ""
        raise RunError(f"{folder} is no run (no spec.json in it){hint}")
    task = kept_task(folder)
    model = build_model_offered(read_json(path)["model"], task.model_arguments)
    load_model_weights(model, with_checkpoints(folder), which=which)
    return Trained(folder, model.to(device).eval(), task)


def translate(
    trained: Sequence[Trained],
    sentences: Sequence[str],
    *,
    beam: int | None = None,
    alpha: float | None = None,
    coverage: float | None = None,
    replace_unknown: bool | None = None,
    batch: int = BATCH,
    cached: bool = True,
    first: int = 1,
    too_long: TooLong = "refuse",
) -> list[str]:
    """Translate sentences; several models as one by their mean probabilities.

    Parameters
    ----------
    trained : sequence of Trained
        Translation models of one tokenizer and pair of languages.
    sentences : sequence of str
        Any number, in any order; an empty one stays empty.
    beam : int, optional
        Beginnings that are kept of each translation; 1 is greedy. Unless given, as the first run's task has it.
    alpha : float, optional
        Exponent of the length penalty; likewise.
    coverage : float, optional
        Weight of the penalty for passing over some of the source; likewise.
    replace_unknown : bool, optional
        Whether unknown words are replaced by the translation of what they stand for; likewise.
    batch : int
        Sentences that are translated together.
    cached : bool
        Whether keys and values are kept; without, the result is the same and takes longer.
    first : int
        Number of the first sentence, in what is said of sentences.
    too_long : {"refuse", "skip", "cut"}
        What becomes of a sentence longer than the model reads: an error, an empty translation, or that of its
        beginning.

    Returns
    -------
    list of str
        One translation per sentence.

    Raises
    ------
    RunError
        If a run is none of translation, or the runs have different tokenizers or languages.
    DataError
        If a sentence is longer than the model's longest and that is refused.
    SpecError
        If unknown words are to be replaced and tokens are no words, or the run keeps no dictionary; or if coverage is
        asked of a model without attention over the source.

    Warns
    -----
    UserWarning
        If a translation came to no end and was cut, or a sentence was skipped or cut; which ones is said.
    """
    how = Search(beam, alpha, coverage, replace_unknown, batch, cached, first, too_long)
    return [one.text for one in write(trained, sentences, how)]


def write(trained: Sequence[Trained], sentences: Sequence[str], how: Search) -> list[Written]:
    """Translate sentences as `translate` does, and return the tokens that were written too."""
    found = translations([one.model for one in trained], sentence_codec(trained), sentences, how)
    cut = [how.first + number for number, one in enumerate(found) if not one.ended]
    if cut:
        warnings.warn(
            f"{len(cut)} of {len(found)} translations came to no end and were cut: sentence {listed(cut)}", stacklevel=2
        )
    return found


def fitting(trained: Sequence[Trained], sentences: Sequence[str]) -> int:
    """How many sentences stand before the first that is longer than the models read."""
    codec = sentence_codec(trained)
    longer = (number for number, one in enumerate(codec.encode(sentences)) if len(one) > codec.max_length)
    return next(longer, len(sentences))


def unlabelled(trained: Trained) -> list[str]:
    """The sentences of a parser's training part whose trees it was not given, as far as it can read them.

    Their words are divided by blanks. A `RunError` says that it was given all of them, or that the run is none of
    parsing.
    """
    codec: TreeCodec = codec_in_common([trained], TreeCodec.kind, "parser", differs="")
    found = getattr(build_task(read_json(trained.folder / "spec.json")["task"]), "unlabelled", [])
    if not found:
        raise RunError(
            f"{trained.folder} was given the trees of all its training sentences; its task has no `labelled`"
        )
    words = [one.split() for one in found]
    return [found[number] for number in fitting_trees(codec, words, codec.encode(words))]


def parse(
    trained: Sequence[Trained],
    sentences: Sequence[str],
    *,
    words: bool = False,
    beam: int | None = None,
    cached: bool = True,
    first: int = 1,
    skip: bool = False,
) -> list[str]:
    """Find the constituents of sentences; several models as one by their mean probabilities.

    Parameters
    ----------
    trained : sequence of Trained
        Models that write trees of one vocabulary.
    sentences : sequence of str
        Any number, in any order.
    words : bool
        Whether blanks divide the words; else sentences are cut as the Penn Treebank does.
    beam : int, optional
        Beginnings that are kept of each tree; 1 is greedy. Unless given, as the first run's task has it.
    cached : bool
        Whether keys and values are kept; without, the result is the same and takes longer.
    first : int
        Number of the first sentence, in what is said of sentences.
    skip : bool
        Whether a sentence that cannot be parsed is left out, with a warning: an empty line stands in its place.

    Returns
    -------
    list of str
        A tree in brackets for each sentence, over its words.

    Raises
    ------
    RunError
        If a run is none of parsing, or the runs have different tokenizers or labels.
    DataError
        If a sentence is empty, has more words than the model writes, or a word holds a bracket.
    """
    codec: TreeCodec = codec_in_common(trained, TreeCodec.kind, "parser", differs="other words or labels")
    cut: list[list[str]] = []
    wrong: dict[int, str] = {}
    for number, sentence in enumerate(sentences):
        try:
            cut.append(codec.words_of(sentence, given=words))
        except DataError as error:
            cut.append([])
            wrong[number] = f"sentence {first + number}: {error}"
    _refuse_or_warn(wrong, skip=skip)
    found = parses([one.model for one in trained], codec, cut, beam=beam, cached=cached)
    long = {
        number: f"sentence {first + number} has {len(cut[number])} words, too many for a model that reads and writes "
        f"{codec.max_length} tokens; cut it into sentences"
        for number, tree in enumerate(found)
        if tree is None and number not in wrong
    }
    _refuse_or_warn(long, skip=skip)
    return [tree or "" for tree in found]


def _refuse_or_warn(wrong: Mapping[int, str], *, skip: bool) -> None:
    """Refuse the first of some sentences that cannot be parsed, or say of each that it is left out."""
    for message in wrong.values():
        if not skip:
            raise DataError(f"{message} (--skip leaves such sentences out)")
        warnings.warn(f"{message} (left out: an empty line stands in its place)", stacklevel=3)


def sentence_codec(trained: Sequence[Trained]) -> SentenceCodec:
    """What tokens mean to models that write together, and how the first of them searches."""
    return codec_in_common(
        trained, SentenceCodec.kind, "translation run", differs="another tokenizer or pair of languages"
    )


def codec_in_common(trained: Sequence[Trained], kind: str, called: str, *, differs: str) -> Any:
    """The codec of a kind that models have in common, which read and write no more than the shortest of them."""
    codecs: list[Any] = []
    for one in trained:
        codec = one.task.codec
        if codec.kind != kind:
            raise _is_no(one, called)
        codecs.append(codec)
    for one, codec in zip(trained[1:], codecs[1:], strict=True):
        if not codec.writes_with(codecs[0]):
            raise RunError(f"{one.folder} has {differs} than {trained[0].folder}: they cannot write together")
    return dataclasses.replace(codecs[0], max_length=min(codec.max_length for codec in codecs))


def _is_no(trained: Trained, called: str) -> RunError:
    """That a model does something else, and the command that lets it."""
    command = WRITES.get(trained.task.codec.kind)
    hint = f"; attnlab {command} uses it" if command else ""
    return RunError(f"{trained.folder} is no {called}: its task is '{trained.task.name}'{hint}")


def generate(
    trained: Trained,
    prompt: str | None,
    *,
    length: int,
    samples: int = 1,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[str]:
    """Continue a text.

    Parameters
    ----------
    trained : Trained
        A language model.
    prompt : str or None
        What the text begins with; at least one character. None: a line break, or what a model of characters that knows
        none has first.
    length : int
        Tokens to write at most, which are characters where the task has those; a text may end before.
    samples : int
        Number of texts.
    seed : int
        Seed of the random choices.
    temperature, top_k, top_p
        As `attnlab.models.decoding.generation.Chooser` takes them.

    Returns
    -------
    list of str
        The texts, the prompt as the model read it included.

    Raises
    ------
    RunError
        If the run is none of a language model.
    DataError
        If the prompt is empty or has a character that the model does not know.
    SpecError
        If there is nothing to write, or the seed or another number is out of range.
    """
    codec = trained.task.codec
    if codec.kind not in ("characters", "text"):
        raise _is_no(trained, "language model")
    if prompt is None:
        prompt = "\n" if codec.kind == "text" or "\n" in codec.vocabulary.symbols else codec.decode([0])
    if not prompt:
        raise DataError("a prompt of at least one character is needed, such as a line break")
    require_positive("length", length, LONGEST_TEXT)
    require_positive("samples", samples, MOST_TEXTS)
    if not 0 <= seed <= LARGEST_SEED:
        raise SpecError(f"seed must lie in [0, {LARGEST_SEED}]; got {seed}")
    read = codec.encode(prompt)
    if not read:
        raise DataError(f"the tokenizer of {trained.folder} gives no token for the prompt {prompt!r}; give another one")
    tokens = torch.tensor(read).expand(samples, -1)
    choose = Chooser(temperature, top_k, top_p, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        writer = TextWriter(trained.model, codec.context)
        writer.read(tokens[:, :-1])
        written = sample(writer, tokens[:, -1], length=length, choose=choose, end=codec.end)
    return [codec.decode(row) for row in torch.cat((tokens, written), dim=1).tolist()]
