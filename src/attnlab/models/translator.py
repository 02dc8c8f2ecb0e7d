"""What every model that translates keeps to, and what the rivals of the Transformer share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import check_positive
from attnlab.models.wiring import AbstractTying
from attnlab.nn.kernels.dropout import Dropout

Source = Int[Tensor, "batch s_len"]
"""Tokens that are read, filled up with the padding token on the right."""
Target = Int[Tensor, "batch t_len"]
"""Tokens that are written, from the begin token on."""
Logits = Float[Tensor, "batch t_len target_vocab_size"]
"""Of the token after each position of what is written."""
BESIDE = "beside."
"""How the names of weights begin that are trained beside others."""


class AbstractTranslator(AbstractTying):
    """Read a sequence of tokens, and predict each next token of another one from it and from what was written before.

    Parameters
    ----------
    source_vocab_size : int
        Number of distinct tokens that are read.
    target_vocab_size : int
        Number of distinct tokens that are written.
    max_length : int
        Longest sequence it has positions for, on either side.
    pad : int, default 0
        The token that fills up short sequences; what is read of it is not looked at.

    Raises
    ------
    SpecError
        If a size is not positive, or a probability not in [0, 1).
    """

    pad: int
    reading: ClassVar[tuple[str, ...]] = ()
    """Its modules that read the source alone: its encoder, and what stands before it."""
    beside: AbstractTranslator | None
    """Another one that reads with the same modules and is trained beside this one."""

    def __init__(self) -> None:
        super().__init__()
        self.beside = None

    def forward(self, source: Source, target: Target, other: Target | None = None) -> Logits:
        """The logits of the token after each position of what is written, or of what the one beside writes."""
        if other is None:
            return self.answer(source, target)
        return cast(AbstractTranslator, self.beside).answer(source, other)

    @abstractmethod
    def answer(self, source: Source, target: Target) -> Logits:
        """The logits of the token after each position of what is written."""

    def share_reading(self, other: AbstractTranslator) -> None:
        """Let another one of the class read with this one's modules, and be trained beside it."""
        for name in self.reading:
            setattr(other, name, getattr(self, name))
        self.beside = other

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch does; what was only trained beside is left out where nothing is."""
        kept = {key: one for key, one in state_dict.items() if self.beside is not None or not key.startswith(BESIDE)}
        return super().load_state_dict(kept, strict, assign)


class AbstractRival(AbstractTranslator):
    """Translate without being a Transformer, with a table of embeddings for each side.

    Parameters
    ----------
    d_model : int
        Width of embeddings.
    dropout : float
        Of embeddings, at least.
    """

    reading = ("encoder", "source_embedding")

    def __init__(
        self, source_vocab_size: int, target_vocab_size: int, *, pad: int, d_model: int, dropout: float
    ) -> None:
        super().__init__()
        sizes = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size, "d_model": d_model}
        check_positive(sizes)
        self.pad = pad
        self.source_embedding = nn.Embedding(source_vocab_size, d_model)
        self.target_embedding = nn.Embedding(target_vocab_size, d_model)
        self.drop = Dropout(dropout)


Attended = Float[Tensor, "batch t_len s_len"]
"""How much each position of what is written looks at each token that is read; rows sum to 1."""


def gather(
    scores: Float[Tensor, "batch t_len s_len"],
    states: Float[Tensor, "batch s_len d"],
    real: Bool[Tensor, "batch s_len"],
) -> tuple[Float[Tensor, "batch t_len d"], Attended]:
    """The mean of states, weighted by the softmax of scores at real tokens; and these weights."""
    weights = scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights @ states, weights
