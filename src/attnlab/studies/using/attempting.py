"""What a model writes by itself for a batch, and how good that is: for objectives that learn from it."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

from attnlab.core.contracts import Attempt, Attempts, Batch, StudyTask
from attnlab.models.decoding.generation import Chooser, sample
from attnlab.models.decoding.writers import Without, writer_for
from attnlab.studies.using.translating import LONGEST_FACTOR, LONGEST_MORE
from attnlab.tasks.codecs import SentenceCodec, codec_of
from attnlab.tasks.next_tokens import IGNORED
from attnlab.tasks.pairs import pair_batch


def attempts_of(task: StudyTask) -> Attempt | None:
    """How models of a task attempt its targets; None where they write no sentences."""
    codec = codec_of(task)
    return functools.partial(_attempt, codec) if isinstance(codec, SentenceCodec) else None


@torch.no_grad()
def _attempt(
    codec: SentenceCodec, model: nn.Module, batch: Batch, count: int, generator: torch.Generator
) -> Attempts | None:
    """Sentences drawn token by token, each with its GLEU; none of a batch of the task beside."""
    if len(batch.inputs) > 2:
        return None
    source, marks = batch.inputs[0].cpu(), codec.marks
    right = [row[row != IGNORED][:-1].tolist() for row in batch.targets.cpu()]
    longest = min(codec.max_length - 1, LONGEST_FACTOR * source.shape[1] + LONGEST_MORE)
    writer = Without(writer_for(model, source.repeat(count, 1)), [marks.pad, marks.begin])
    begin = torch.full((count * len(source),), marks.begin)
    drawn = sample(writer, begin, length=longest, choose=Chooser(generator=generator), end=marks.end).tolist()
    own = [row[: row.index(marks.end)] if marks.end in row else row for row in drawn]
    read = [row[row != marks.pad].numpy() for row in source] * (1 + count)
    found = pair_batch(read, [np.asarray(row, dtype=np.int64) for row in (*right, *own)])
    for number, row in enumerate(drawn, start=len(right)):
        if marks.end not in row:
            found.targets[number, len(row)] = IGNORED  # it never ended
    rewards = [1.0] * len(right) + [codec.reward(row, right[number % len(right)]) for number, row in enumerate(own)]
    return Attempts(found, torch.tensor(rewards).view(1 + count, -1).T)
