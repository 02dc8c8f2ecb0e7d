"""A small language model around a patient: from characters to logits, whatever the patient takes and returns."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.doctor.examination import Examination
from attnlab.strangers.usage import Usage

CONTEXT = 64  # characters: longer than any n-gram by far, short enough for a moment of training
NARROWEST = 16  # features: a patient of fewer gets adapters, since characters do not fit into one number
WIDTH = 64  # of the model around such a patient
DEPTH = 2  # layers at most: two find what was written before, and more would learn too slowly for a moment
START = 0.02  # standard deviation of embeddings; Radford et al. 2019


def context_of(usage: Usage) -> int:
    """How many characters a patient is shown."""
    return min(CONTEXT, usage.longest or CONTEXT) if usage.any_length else usage.length


def causal_usage(usage: Usage) -> Usage | None:
    """How to call a patient so that it sees no later position."""
    if usage.causal:  # said to be so; where it is not, training on a text shows it
        return usage
    if usage.causal_means in ("mask", "flag", "always"):
        return replace(usage, causal=True)
    return None


def language_model(exam: Examination, usage: Usage, vocab_size: int) -> nn.Module:
    """A fresh model from (batch, length) characters to (batch, length, vocab_size) logits."""
    if usage.takes == "embeddings":
        return Stack(exam, usage, vocab_size)
    if (usage.vocab_size or 0) < vocab_size:
        raise SpecError(
            f"the text has {vocab_size} characters, the model takes {usage.vocab_size} tokens;"
            f" give --arg vocab_size={vocab_size}"
        )
    return TokenModel(exam.copy(dtype=torch.float32), usage, vocab_size)


@final
class TokenModel(nn.Module):
    """Call a patient that takes tokens; give it an output layer if it returns hidden states.

    Parameters
    ----------
    patient : nn.Module
        A copy.
    usage : Usage
        How to call it.
    vocab_size : int
        Number of characters.
    """

    def __init__(self, patient: nn.Module, usage: Usage, vocab_size: int) -> None:
        super().__init__()
        self.patient, self.usage, self.vocab_size = patient, usage, vocab_size
        self.head = nn.Identity() if usage.d_out == usage.vocab_size else nn.Linear(usage.d_out, vocab_size)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab_size"]:
        """The logits of the text's characters."""
        return self.head(self.usage.call(self.patient, tokens))[..., : self.vocab_size]


@final
class Stack(nn.Module):
    """Stack fresh copies of a layer or block between an embedding with learned positions and an output layer.

    Parameters
    ----------
    exam : Examination
        The patient, and how many layers to stack at most.
    usage : Usage
        How to call it.
    vocab_size : int
        Number of characters.

    Notes
    -----
    A bare layer stands in the usual pre-norm block, so that it is judged as such a block would use it. A block
    stands for itself.
    """

    def __init__(self, exam: Examination, usage: Usage, vocab_size: int) -> None:
        super().__init__()
        width = usage.d_in if usage.d_in >= NARROWEST else WIDTH
        self.characters, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(context_of(usage), width)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=START)
        places = [Place(_fresh(exam), usage, width) for _ in range(min(DEPTH, exam.options.depth))]
        bare = usage.kind == "layer"
        self.blocks = nn.ModuleList(PreNorm(place, width) if bare else place for place in places)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab_size"]:
        """The logits of the text's characters."""
        x = self.characters(tokens) + self.positions.weight[: tokens.size(1)]  # (batch, length, width)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@final
class Place(nn.Module):
    """Call a patient between adapters, which are there only where its widths differ from the model's.

    Parameters
    ----------
    patient : nn.Module
        A copy.
    usage : Usage
        How to call it.
    width : int
        Features of the model.
    """

    def __init__(self, patient: nn.Module, usage: Usage, width: int) -> None:
        super().__init__()
        self.patient, self.usage = patient, usage
        self.into = nn.Identity() if usage.d_in == width else nn.Linear(width, usage.d_in)
        self.out_of = nn.Identity() if usage.d_out == width else nn.Linear(usage.d_out, width)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """What the patient makes of the model's features."""
        return self.out_of(self.usage.call(self.patient, self.into(x)))


@final
class PreNorm(nn.Module):
    """Give a bare layer what a block has: norms, skips and a feed-forward.

    Parameters
    ----------
    place : nn.Module
        The layer.
    width : int
        Features of the model.
    """

    def __init__(self, place: nn.Module, width: int) -> None:
        super().__init__()
        self.place, self.norms = place, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feedforward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        """The block's output."""
        x = x + self.place(self.norms[0](x))
        return x + self.feedforward(self.norms[1](x))


def _fresh(exam: Examination) -> nn.Module:
    """Another instance of the patient, or a copy where there is only one."""
    other = exam.another()
    return exam.copy(dtype=torch.float32) if other is None else other.float()
