"""Two tasks trained beside each other, read by one encoder, of which only the first counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.contracts import Batch, Predict, StudyTask, accuracy_of, reads_bfloat16, targets_of
from attnlab.core.errors import SpecError
from attnlab.core.generators import generator_for
from attnlab.tasks.codecs import SentenceCodec, TreeCodec, codec_of
from attnlab.tasks.pairs import padded


@final
class TwoTasks:
    """Train on one task, and in a share of the steps on another one that the same encoder reads.

    Parameters
    ----------
    first : StudyTask
        The task that counts: it is evaluated, judged and kept, and what is not said here is its own.
    second : StudyTask
        The task that is trained beside it; nothing of it is held out.
    share : float
        The fraction of all steps that are the second's, between 0 and 1.

    Raises
    ------
    SpecError
        If the share is out of its range, or models of a task do not read sentences and write others, or trees.

    Notes
    -----
    The steps of the second are evenly spread, from a place that is drawn by the seed; the very first step is the
    first's. Both are read in the tokens of the first, so that its data and its numbers mean what they mean without the
    second: sources of the second are cut by the first's tokenizer, and read as far as the first reads. A batch of the
    second has three inputs: the source, nothing that the first is to write, and what the second is. Differs from [1]_:
    each step draws its task there, and one vocabulary is made for both sources.

    References
    ----------
    .. [1] Luong, Le, Sutskever, Vinyals, Kaiser, 2016, arXiv:1511.06114, sections 3.1 and 3.5.
    """

    def __init__(self, first: StudyTask, second: StudyTask, share: float) -> None:
        if isinstance(share, bool) or not (isinstance(share, int | float) and 0 < share < 1):
            raise SpecError(f"beside: share must be a fraction of the steps between 0 and 1; got {share!r}")
        if isinstance(second, TwoTasks):
            raise SpecError("beside: a task that is trained beside another cannot have one beside itself")
        self._codec, self._others = _pair_codec(first), _pair_codec(second)
        self.first, self.second, self.share = first, second, share
        self.reads_bfloat16 = reads_bfloat16(first) and reads_bfloat16(second)
        self.tokens_per_step = round((1 - share) * first.tokens_per_step + share * second.tokens_per_step)
        once = getattr(first, "steps_per_epoch", None)
        self.steps_per_epoch = None if once is None else once / (1 - share)

    def __getattr__(self, name: str) -> Any:
        """What is not said here, of the first."""
        if name == "first":  # before there is one
            raise AttributeError(name)
        return getattr(self.first, name)

    def train_batch(self, step: int, seed: int) -> Batch:
        """A batch of whichever task has its turn, each in an order of its own."""
        start = (1 - self.share) * torch.rand((), generator=generator_for(seed)).item()
        before, after = (math.floor(count * self.share + start) for count in (step, step + 1))
        return self._of_second(before, seed) if after > before else self.first.train_batch(step - before, seed)

    def _of_second(self, step: int, seed: int) -> Batch:
        batch = self.second.train_batch(step, seed)
        source, begun = batch.inputs
        tokens = self._codec.tokenizer.encode(self._others.tokenizer.decode(source.tolist()))
        rows = [np.asarray(row[: self._codec.max_length], dtype=np.int64) for row in tokens]
        return Batch((padded(rows, self._codec.marks.pad), begun[:, :0], begun), batch.targets)

    def typical_batches(self) -> list[tuple[float, Batch]]:
        """A batch of each task with its share of the steps."""
        return [(1 - self.share, self.first.train_batch(0, 0)), (self.share, self._of_second(0, 0))]

    def _owner(self, batch: Batch) -> StudyTask:
        return self.first if len(batch.inputs) == 2 else self.second

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean loss of a batch, as the task it belongs to has it."""
        return self._owner(batch).loss(outputs, batch, label_smoothing)

    def targets_of(self, batch: Batch) -> float:
        """What the mean loss is taken over, as the task it belongs to has it."""
        return targets_of(self._owner(batch), batch)

    def accuracy(self, predict: Predict, batches: Iterable[Batch]) -> float | None:
        """The share of the first's targets that are predicted right in batches of both, where it measures that."""
        own = [batch for batch in batches if self._owner(batch) is self.first]
        return accuracy_of(self.first, predict, own) if own else None

    def arguments_beside(self) -> Mapping[str, Any]:
        """What a model must know of the second, which reads in the tokens of the first."""
        read = self.first.model_arguments()["source_vocab_size"]
        return {**self.second.model_arguments(), "source_vocab_size": read}

    def describe(self) -> dict[str, Any]:
        """What identifies the data of both."""
        return {**self.first.describe(), "beside": {"share": self.share, **self.second.describe()}}


def _pair_codec(task: StudyTask) -> SentenceCodec | TreeCodec:
    """What the tokens of a task mean whose models read one sequence and write another."""
    codec = codec_of(task)
    if not isinstance(codec, SentenceCodec | TreeCodec):
        raise SpecError(
            f"beside: models of the task '{task.name}' have no encoder for two tasks to share; those of translation "
            "and parsing have one"
        )
    return codec
