"""Recurrent encoder-decoders with attention: what translated before the Transformer.

All read a source with recurrent networks and keep the state at every token. `AdditiveRnn` looks at these states before
every step of its decoder, so that a step must wait for the one before. `MultiplicativeRnn` looks after its decoder has
run, for all positions at once. Deep stacks stand in `deep_lstms`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, final

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from attnlab.core.sizes import check_positive
from attnlab.models.translator import AbstractRival, Attended, Logits, Source, Target, gather

Kept = tuple[Tensor, ...]
"""What is kept while a sentence is written, the batch first in each."""


class AbstractRecurrent(AbstractRival):
    """Translate by states, from which writing can go on at any token."""

    @abstractmethod
    def read(self, source: Source) -> tuple[Kept, Kept]:
        """What stays of the source, and the states in which writing begins."""

    @abstractmethod
    def write(self, target: Target, memory: Kept, states: Kept) -> tuple[Logits, Attended, Kept]:
        """Go on from states: the logits after each token, where it looked, and the states behind the last."""

    def answer(self, source: Source, target: Target) -> Logits:
        """The logits of the token after each position of what is written."""
        return self.write(target, *self.read(source))[0]


@final
class AdditiveRnn(AbstractRecurrent):
    """Translate with gated recurrent units that look at the source before every step.

    Parameters
    ----------
    d_model : int, default 256
        Width of embeddings.
    hidden : int, default 256
        Size of the state, per direction of the encoder and of the decoder, and width of the alignment model.
    dropout : float, default 0.1
        Of embeddings and of what the logits are made of.

    Notes
    -----
    ``e_ij = v^T tanh(W s_{i-1} + U h_j)``, ``c_i = sum_j softmax_j(e_ij) h_j``, ``s_i = GRU([y_{i-1}; c_i], s_{i-1})``.
    Time O(s_len * t_len) in t_len steps. Differs from [1]_: logits from tanh of a layer as wide as the embedding, not
    from maxout, and from s_i, not s_{i-1}; the GRU is torch's, which resets behind the product with the state.

    References
    ----------
    .. [1] Bahdanau, Cho, Bengio, 2015, arXiv:1409.0473, section 3 and appendix A.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        pad: int = 0,
        d_model: int = 256,
        hidden: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, pad=pad, d_model=d_model, dropout=dropout)
        check_positive({"hidden": hidden})
        self.encoder = nn.GRU(d_model, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(2 * hidden, hidden)
        self.alignment = nn.Linear(hidden, 1, bias=False)
        self.decoder = nn.GRUCell(d_model + 2 * hidden, hidden)
        self.readout = nn.Linear(3 * hidden + d_model, d_model)
        self.logits = nn.Linear(d_model, target_vocab_size)

    def read(self, source: Source) -> tuple[Kept, Kept]:
        """What stays of the source, and the state in which writing begins."""
        real = source != self.pad
        states, last = _read(self.encoder, self.drop(self.source_embedding(source)), real)
        state = self.start(last[-1]).tanh()  # of the direction that ends at the first token
        return (states, self.key(states), real), (state,)

    def write(self, target: Target, memory: Kept, states: Kept) -> tuple[Logits, Attended, Kept]:
        """Go on from a state, a step at a time."""
        (read, keys, real), (state,) = memory, states
        outputs, looks = [], []
        for y in self.drop(self.target_embedding(target)).unbind(dim=1):
            scores = self.alignment((self.query(state)[:, None] + keys).tanh())[..., 0]  # (batch, s_len)
            context, weights = gather(scores[:, None], read, real)
            state = self.decoder(torch.cat((y, context[:, 0]), dim=-1), state)
            outputs.append(torch.cat((state, context[:, 0], y), dim=-1))
            looks.append(weights)
        found = self.readout(torch.stack(outputs, dim=1)).tanh()
        return self.logits(self.drop(found)), torch.cat(looks, dim=1), (state,)


@final
class MultiplicativeRnn(AbstractRecurrent):
    """Translate with stacked LSTMs that look at the source after they have run.

    Parameters
    ----------
    d_model : int, default 256
        Width of embeddings and size of every state.
    n_layers : int, default 2
        LSTMs on top of each other, on each side.
    score : {"general", "dot"}, default "general"
        ``h_t^T W h_s`` or ``h_t^T h_s``.
    dropout : float, default 0.1
        Between layers, of embeddings and of what the logits are made of.

    Notes
    -----
    ``h~_t = tanh(W [c_t; h_t])`` with the context of global attention. Differs from [1]_: without input feeding, so
    that all positions of a training batch are computed at once; the source is read forwards.

    References
    ----------
    .. [1] Luong, Pham, Manning, 2015, arXiv:1508.04025, section 3.1.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        pad: int = 0,
        d_model: int = 256,
        n_layers: int = 2,
        score: Literal["general", "dot"] = "general",
        dropout: float = 0.1,
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, pad=pad, d_model=d_model, dropout=dropout)
        check_positive({"n_layers": n_layers})
        between = dropout if n_layers > 1 else 0.0
        self.encoder = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=between)
        self.decoder = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=between)
        self.key = nn.Linear(d_model, d_model, bias=False) if score == "general" else nn.Identity()
        self.readout = nn.Linear(2 * d_model, d_model, bias=False)
        self.logits = nn.Linear(d_model, target_vocab_size)

    def read(self, source: Source) -> tuple[Kept, Kept]:
        """What stays of the source, and the states in which writing begins: those behind the source."""
        real = source != self.pad
        states, last = _read(self.encoder, self.drop(self.source_embedding(source)), real)
        return (states, real), tuple(one.transpose(0, 1) for one in last)

    def write(self, target: Target, memory: Kept, states: Kept) -> tuple[Logits, Attended, Kept]:
        """Go on from states, at all positions at once."""
        read, real = memory
        before = tuple(one.transpose(0, 1).contiguous() for one in states)  # (layers, batch, d_model)
        found, after = self.decoder(self.drop(self.target_embedding(target)), before)
        context, weights = gather(found @ self.key(read).transpose(1, 2), read, real)
        read_out = self.readout(torch.cat((context, found), dim=-1)).tanh()
        return self.logits(self.drop(read_out)), weights, tuple(one.transpose(0, 1) for one in after)


def _read(network: nn.GRU | nn.LSTM, x: Tensor, real: Bool[Tensor, "batch s_len"]) -> tuple[Tensor, Any]:
    """The states at every token, zero at padding, and those after the last real one.

    Padding is not read at all, so that a backward direction starts at the last real token.
    """
    if x.is_meta:  # where lengths are not known; shapes are all that counts
        return network(x)
    lengths = real.sum(dim=1).clamp(min=1).cpu()
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    states, last = network(packed)
    return pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0], last
