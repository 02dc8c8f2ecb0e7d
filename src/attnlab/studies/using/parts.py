"""What a trained model loses without each of its heads, sublayers and layers, on held-out data."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.errors import ModuleError, RunError
from attnlab.core.generators import seed_generators
from attnlab.core.sizes import require_known, require_positive
from attnlab.inspection.behaviour import HeadScores, Thresholds, head_scores, kinds, thresholds
from attnlab.inspection.capture import capture
from attnlab.inspection.interventions import How, ablate
from attnlab.inspection.rank import Projected, subspace_overlap
from attnlab.inspection.watch import Captured
from attnlab.models.pretrained.checkpoint import is_checkpoint
from attnlab.nn.block import AbstractBlock
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.using.measured import MeasuredModel
from attnlab.studies.using.orders import Orders, orders
from attnlab.studies.using.translating import sides_of_maps
from attnlab.tasks.codecs import Codec, codec_of

Kind = Literal["head", "weights", "sublayer", "layer"]
Instead = Literal["zero", "mean", "resample"]
SUBLAYERS = ("mixer", "cross", "feedforward")
UNTRAINED = 19  # models of the same form, which exceed a threshold of theirs in one of twenty


@final
@dataclass(frozen=True)
class MeasuredPart:
    """Hold what a model loses without one of its parts."""

    place: str  # as `ablate` reads it
    kind: Kind
    """A head, what all heads of an attention look at, a sublayer such as a mixer or feed-forward part, or a layer."""
    losses: tuple[float, ...]  # without it, of each sequence


@final
@dataclass(frozen=True)
class MeasuredParts:
    """Hold what one trained model loses without each part."""

    folder: Path  # of the run or checkpoint
    part: str  # of the held-out data
    how: Instead  # what stood in the place of heads and sublayers
    which: str  # weights: ``last`` or ``best``
    unit: str  # of the loss
    losses: tuple[float, ...]  # with all parts, of each sequence
    parts: tuple[MeasuredPart, ...]
    pruned: tuple[tuple[str, float], ...]
    """Heads from the least valuable to the most, and the loss without it and all before it."""
    kinds: Mapping[str, Mapping[str, float]]
    """By place of a head the patterns that it follows more than heads of untrained models."""
    trace: Mapping[str, Captured]
    """Its attention on the first batch, the same for all runs of a task."""
    orders: Mapping[str, Orders]
    """By attention in which order it puts keys, beside the order in which they matter."""
    overlaps: Mapping[Projected, tuple[float, float]]
    """How much two heads of a layer read the same directions, mean over layers; and in an untrained model."""

    def worth(self, part: MeasuredPart) -> float:
        """What is lost without a part, in the loss's unit."""
        return fmean(part.losses) - fmean(self.losses)


def measure_parts(
    subject: MeasuredModel, *, how: Instead = "zero", part: str = "", tokens: int = 20_000
) -> MeasuredParts:
    """Measure what a trained model loses without each of its parts.

    It is measured on so many positions of a held-out part of its task, the first unless given, in whole batches. `how`
    says what stands in a part's place, as `ablate` has it; a layer is skipped, in whatever way, and what an attention
    looks at is permuted.

    Raises
    ------
    ModuleError
        If its model has no attention that can be seen.
    SpecError
        If the task has no such part, or a choice is unknown.

    Notes
    -----
    One pass over the data for each part, and one for each head in the order of their worth, as in [1]_.

    References
    ----------
    .. [1] Michel et al., 2019, arXiv:1905.10650, sections 3 and 4.
    """
    require_known("how", how, get_args(Instead))
    require_positive("tokens", tokens)
    model, task = subject.model, subject.task
    part = part or task.parts[0]
    batches = held_out(model, task, part, tokens)
    trace = attention_on(model, batches[0])
    if not trace:
        raise ModuleError(
            f"{subject.folder}: its model computes no attention that can be seen, so that it has no heads"
        )
    run = Ablations(model, task, batches, how)
    parts = tuple(run.part(kind, place) for kind, place in parts_of(model, trace))
    losses = run.losses()
    heads = sorted((one for one in parts if one.kind == "head"), key=lambda one: fmean(one.losses))
    return MeasuredParts(
        folder=subject.folder,
        part=part,
        how=how,
        which=subject.which,
        unit=task.metrics[0].unit,
        losses=losses,
        parts=parts,
        pruned=tuple(run.pruned([one.place for one in heads])),
        kinds=kinds_on(subject, part, trace=trace, batch=batches[0]),
        trace=trace,
        orders=orders(model, batches[0]),
        overlaps=_overlaps(trace, subject, batches[0]),
    )


def _overlaps(
    trace: Mapping[str, Captured], subject: MeasuredModel, batch: Batch
) -> dict[Projected, tuple[float, float]]:
    untrained = attention_on(subject.built_untrained(), batch)
    sides = [list(subspace_overlap(one).values()) for one in (trace, untrained)]
    steps = [step for step in get_args(Projected) if any(step in layer for layer in sides[0])]
    means = {step: [fmean(layer[step] for layer in side if step in layer) for side in sides] for step in steps}
    return {step: (trained, before) for step, (trained, before) in means.items()}


def finished_runs(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The finished runs in folders of runs, variants or studies, by variant; those that tune are left out.

    A `RunError` says that a folder has none.
    """
    found: dict[str, list[Path]] = {}
    for folder in folders:
        specs = [folder / "spec.json", *folder.glob("seed-*/spec.json"), *folder.glob("*/seed-*/spec.json")]
        runs = [path.parent for path in specs if (path.parent / "result.json").is_file()]
        if not runs:
            if is_checkpoint(folder):
                raise RunError(f"{folder} is a checkpoint, no run; --text FILE says what its heads are measured on")
            raise RunError(f"no finished run in {folder}; name the folder of a study, a variant or a run")
        for run in sorted(runs, key=by_seed):
            found.setdefault(_seen_from_here(run.resolve().parent), []).append(run)
    return found


def _seen_from_here(folder: Path) -> str:
    """A folder's path, relative where it lies below the one that is worked in."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def by_seed(run: Path) -> tuple[str, int]:
    """By what the folders of runs are put in order: a second seed comes before a tenth."""
    number = run.resolve().name.rpartition("-")[2]
    return str(run.parent), int(number) if number.isdecimal() else 0


def parts_of(model: nn.Module, trace: Mapping[str, Captured]) -> Iterator[tuple[Kind, str]]:
    """The attentions and heads of a model that were captured, its sublayers and its layers, by their places."""
    for name, captured in trace.items():
        if captured.weights is not None and "#" not in name:
            for head in range(captured.weights.shape[1]):
                yield "head", f"{name}:{head}"
            yield "weights", f"{name}:*:*->*"
    blocks = [(name, module) for name, module in model.named_modules() if isinstance(module, AbstractBlock)]
    for name, block in blocks:
        for sublayer in SUBLAYERS:
            if getattr(block, sublayer, None) is not None:
                yield "sublayer", f"{name}.{sublayer}"
    if not blocks:
        yield from (("sublayer", name) for name in trace if "#" not in name and name != "model")
    yield from (("layer", name) for name, _ in blocks)


@final
@dataclass(frozen=True)
class Ablations:
    """Measure one model on the same batches again and again, with and without its parts."""

    model: nn.Module  # in evaluation mode
    task: StudyTask  # whose loss is measured
    batches: Sequence[Batch]  # from `held_out`
    how: Instead  # what stands in the place of a head or sublayer

    @torch.no_grad()
    def losses(self) -> tuple[float, ...]:
        """The loss of each sequence."""
        return tuple(loss for batch in self.batches for loss in self._of(batch))

    def _of(self, batch: Batch) -> Iterator[float]:
        outputs = self.model(*batch.inputs).float()
        for row in range(len(batch.targets)):
            yield float(self.task.loss(outputs[row : row + 1], batch.rows(row, row + 1)))

    def part(self, kind: Kind, place: str) -> MeasuredPart:
        """The losses without a part."""
        hows: dict[Kind, How] = {"layer": "skip", "weights": "permute"}
        with ablate(self.model, place, hows.get(kind, self.how)):
            return MeasuredPart(place, kind, self.losses())

    def pruned(self, heads: Sequence[str]) -> Iterator[tuple[str, float]]:
        """The loss without the first head, without the first two, and so on."""
        for count, head in enumerate(heads, 1):
            with ablate(self.model, heads[:count], self.how):
                yield head, fmean(self.losses())


@final
class _EnoughError(Exception):
    """End an evaluation early."""


def held_out(model: nn.Module, task: StudyTask, part: str, tokens: int) -> list[Batch]:
    """The first batches that an evaluation of a part looks at."""
    require_known("part", part, task.parts)
    batches: list[Batch] = []

    def predict(batch: Batch) -> Tensor:
        batches.append(batch)
        if sum(one.targets.shape[:2].numel() for one in batches) >= tokens:
            raise _EnoughError
        return model(*batch.inputs)

    with torch.no_grad(), contextlib.suppress(_EnoughError):
        task.evaluate(predict, part)
    return batches


def kinds_on(subject: MeasuredModel, part: str, *, trace: Mapping[str, Captured], batch: Batch) -> dict[str, Any]:
    """The patterns of each head beyond those of untrained models of its form, where attention is over tokens."""
    question, separating = json.dumps([subject.untrained, subject.of_task, part]), delimiters(codec_of(subject.task))
    return kinds_beyond(lambda: _of_untrained(question), subject.model, trace, batch, separating)


def delimiters(codec: Codec | None) -> tuple[int, ...]:
    """The tokens of a text that have no letter and no digit: blanks, ends of lines, punctuation."""
    if codec is None or codec.kind in ("numbers", "trees"):
        return ()
    if codec.kind == "characters":
        pieces: Sequence[str] = codec.vocabulary.symbols
    else:
        pieces = codec.tokenizer.pieces(range(codec.tokenizer.size))
    return tuple(token for token, piece in enumerate(pieces) if piece and not any(map(str.isalnum, piece)))


def kinds_beyond(
    usual: Callable[[], Thresholds],
    model: nn.Module,
    trace: Mapping[str, Captured],
    batch: Batch,
    separating: Sequence[int] = (),
) -> dict[str, Any]:
    """The patterns of each head beyond what is usual, where attention is over tokens, some of which separate others."""
    found = _scores(model, trace, batch, separating)
    return kinds(found, usual()) if found else {}


def usual_patterns(untrained: Callable[[], nn.Module], batch: Batch, separating: Sequence[int] = ()) -> Thresholds:
    """What heads of models exceed by chance in one of twenty, which are made as untrained ones, each from its seed."""
    scores = []
    for seed in range(UNTRAINED):
        with torch.random.fork_rng(devices=[]):
            seed_generators(seed)
            model = untrained().eval()
        scores.append(_scores(model, attention_on(model, batch), batch, separating))
    return thresholds(scores)


@functools.lru_cache(maxsize=1)  # the seeds of a variant are measured one after another
def _of_untrained(question: str) -> Thresholds:
    """The usual patterns of a model, a task and one of its parts, as JSON."""
    spec, task_spec, part = json.loads(question)
    task = build_task(task_spec)
    with torch.random.fork_rng(devices=[]):
        (batch,) = held_out(build_model(spec, task).eval(), task, part, 1)
    return usual_patterns(lambda: build_model(spec, task), batch, delimiters(codec_of(task)))


def _scores(
    model: nn.Module, trace: Mapping[str, Captured], batch: Batch, separating: Sequence[int]
) -> list[HeadScores]:
    """The scores of heads that look at their own sequence of tokens."""
    sides = sides_of_maps(model, trace)
    found = []
    for number, tokens in enumerate(batch.inputs):
        if tokens.ndim != 2 or tokens.is_floating_point():
            continue
        over = (number, number), (tokens.shape[1], tokens.shape[1])  # a parser has marks of its own around the words
        own = {
            name: one
            for name, one in trace.items()
            if one.weights is not None and (sides.get(name, over[0]), tuple(one.weights.shape[2:])) == over
        }
        if own:
            found += head_scores(own, tokens, delimiters=separating)
    return found


def attention_on(model: nn.Module, batch: Batch) -> dict[str, Captured]:
    """The attentions of a model on a batch whose weights can be seen."""
    with torch.no_grad(), capture(model) as trace:
        model(*batch.inputs)
    return {name: one for name, one in trace.items() if one.weights is not None}
