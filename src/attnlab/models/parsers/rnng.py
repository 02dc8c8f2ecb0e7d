"""Recurrent neural network grammars: trees from the top, with a stack on which brackets become one vector each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import check_positive
from attnlab.models.parsers.brackets import Brackets
from attnlab.models.parsers.parser import WordTable
from attnlab.models.translator import AbstractTranslator, Logits, Source, Target
from attnlab.nn.kernels.dropout import Dropout

Words = Float[Tensor, "batch words d_model"]
Kept = tuple[Tensor, ...]
"""What is kept while a tree is written, the batch first in each."""


@final
class ActionStates(NamedTuple):
    """Hold what was done to some sentences: every element that ever stood on their stacks.

    Each action puts one element on the stack, number 0 lies below all. A bracket stays one until it is closed; then it
    and what lies above it make way for what was composed.

    Parameters
    ----------
    read : Tensor
        Words behind the last action.
    history, history_cells : Tensor
        Outputs and cells of the LSTM over actions.
    vectors : Tensor
        Of each element.
    outputs, cells : Tensor
        Of the LSTM over the stack, at each element.
    below : Tensor
        The element under each.
    bracket : Tensor
        The open bracket that each stands in; its own number of such a bracket.
    """

    read: Int[Tensor, " batch"]
    history: Float[Tensor, "batch layers d_model"]
    history_cells: Float[Tensor, "batch layers d_model"]
    vectors: Float[Tensor, "batch elements d_model"]
    outputs: Float[Tensor, "batch elements layers d_model"]
    cells: Float[Tensor, "batch elements layers d_model"]
    below: Int[Tensor, "batch elements"]
    bracket: Int[Tensor, "batch elements"]


@final
class ActionReader(nn.Module):
    """Read the actions that build a tree, with one LSTM over all of them and one over what is on the stack.

    Parameters
    ----------
    brackets : Brackets
        Which tokens are which actions.
    d_model : int
        Width of vectors and states.
    n_layers : int
        Of both LSTMs.
    dropout : float
        Of vectors that are read, and between layers.
    """

    def __init__(self, brackets: Brackets, d_model: int, *, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.brackets = brackets
        self.actions = nn.Embedding(brackets.size, d_model)
        self.symbols = nn.Embedding(brackets.size, d_model)
        self.history = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=dropout if n_layers > 1 else 0.0)
        self.stack = nn.ModuleList(nn.LSTMCell(d_model, d_model) for _ in range(n_layers))
        self.forwards = nn.LSTM(d_model, d_model, batch_first=True)
        self.backwards = nn.LSTM(d_model, d_model, batch_first=True)
        self.composed = nn.Linear(2 * d_model, d_model)
        self.drop = Dropout(dropout)

    def begin(self, words: Words) -> ActionStates:
        """Where nothing was done yet."""
        batch, _, width = words.shape
        nothing = words.new_zeros(batch, 1, width)
        state = words.new_zeros(batch, len(self.stack), width)
        lowest = torch.zeros(batch, 1, dtype=torch.long, device=words.device)
        return ActionStates(lowest[:, 0], state, state, nothing, state[:, None], state[:, None], lowest, lowest)

    def is_word(self, target: Target) -> Bool[Tensor, "batch t_len"]:
        """True where a word is put on the stack."""
        return (target >= self.brackets.words.start) & (target < self.brackets.words.stop)

    def forward(
        self, target: Target, words: Words, states: ActionStates
    ) -> tuple[Float[Tensor, "batch t_len 2*d_model"], ActionStates]:
        """The states of stack and history behind each action, and what was done up to the last."""
        is_word = self.is_word(target)
        read = states.read[:, None] + is_word.cumsum(dim=1)
        places = (read - 1).clamp(0, words.shape[1] - 1)[..., None].expand(-1, -1, words.shape[-1])
        vectors = self.drop(self.symbols(target) + words.gather(1, places) * is_word[..., None])
        before = tuple(one.transpose(0, 1).contiguous() for one in states[1:3])  # (layers, batch, d_model)
        history, (last, cells) = self.history(self.drop(self.actions(target)), before)
        states = states._replace(read=read[:, -1], history=last.transpose(0, 1), history_cells=cells.transpose(0, 1))
        found = []
        for token, vector in zip(target.unbind(dim=1), vectors.unbind(dim=1), strict=True):
            states = self._push(states, token, vector)
            found.append(states.outputs[:, -1, -1])
        return torch.cat((torch.stack(found, dim=1), history), dim=-1), states

    def _push(self, states: ActionStates, token: Int[Tensor, " batch"], vector: Tensor) -> ActionStates:
        rows, new = torch.arange(len(token), device=token.device), states.below.shape[1]
        bracket, closes = states.bracket[:, -1], token == self.brackets.close
        opens = (token >= self.brackets.opening.start) & (token < self.brackets.opening.stop)
        vector = torch.where(closes[:, None], self._compose(states, bracket, closes), vector)
        below = torch.where(closes, states.below[rows, bracket], new - 1)
        outputs, cells, x = [], [], vector
        under = states.outputs[rows, below], states.cells[rows, below]
        for cell, *before in zip(self.stack, *(one.unbind(dim=1) for one in under), strict=True):
            output, kept = cell(x, tuple(before))
            outputs.append(output)
            cells.append(kept)
            x = self.drop(output)
        added = (
            vector,
            torch.stack(outputs, dim=1),
            torch.stack(cells, dim=1),
            below,
            torch.where(opens, new, states.bracket[rows, below]),
        )
        pairs = zip(states[3:], added, strict=True)
        return ActionStates(*states[:3], *(torch.cat((old, one[:, None]), dim=1) for old, one in pairs))

    def _compose(
        self, states: ActionStates, bracket: Int[Tensor, " batch"], closes: Bool[Tensor, " batch"]
    ) -> Float[Tensor, "batch d_model"]:
        """One vector of each bracket that is closed and of what is in it, read from both sides behind its label."""
        elements = torch.arange(states.bracket.shape[1], device=bracket.device)
        inside = (states.bracket == bracket[:, None]) & (states.bracket != elements) & closes[:, None]
        counts = inside.sum(dim=1)
        most = 1 if counts.is_meta else int(counts.max())  # shapes alone count there
        order = inside.long().argsort(dim=1, descending=True, stable=True)[:, :most]
        flipped = order.gather(1, (counts[:, None] - 1 - elements[:most]).clamp(min=0))
        rows = torch.arange(len(counts), device=bracket.device)
        ends = []
        for network, children in ((self.forwards, order), (self.backwards, flipped)):
            places = torch.cat((bracket[:, None], children), dim=1)
            ends.append(network(states.vectors[rows[:, None], places])[0][rows, counts])
        return self.composed(torch.cat(ends, dim=-1)).tanh()


@final
class Rnng(AbstractTranslator):
    """Predict the next action of a parser from its stack, from all it has done and from the words to come.

    What is not said here is said of `AbstractParser`.

    Parameters
    ----------
    word_starts : sequence of int
        Tokens that begin with a blank: a word each, but for the first.
    brackets : mapping
        What trees are written with: ``close``, ``labels`` and ``tags``.
    d_model : int, default 128
        Width of vectors and states.
    n_layers : int, default 2
        Of the LSTMs over stack, actions and words to come.
    dropout : float, default 0.2
        Of vectors that are read, between layers, and of what the logits are made of.

    Notes
    -----
    The tokens of a tree are its actions: a bracket that opens, a word, with its tag, taken from the sentence, and a
    bracket that closes. The last makes of the bracket and what is in it one vector, with an LSTM from each side. Time
    O(t_len) steps, in each of which all stacks of a batch are read. Differs from [1]_: words are sums of pieces, their
    tags are predicted, not given; there are no pretrained vectors, and actions that cannot be are left out when trees
    are written (`BracketedWriter`), not in training.

    References
    ----------
    .. [1] Dyer, Kuncoro, Ballesteros, Smith, 2016, "Recurrent neural network grammars", arXiv:1602.07776, sections 3-4.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        word_starts: Sequence[int],
        brackets: Mapping[str, int],
        pad: int = 0,
        d_model: int = 128,
        n_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        check_positive({"source_vocab_size": source_vocab_size, "d_model": d_model, "n_layers": n_layers})
        self.pad = pad
        self.words = WordTable(source_vocab_size, d_model, word_starts=word_starts, pad=pad)
        nn.init.normal_(self.words.pieces.weight)  # as large as all that is read beside them
        self.reader = ActionReader(Brackets.of(brackets), d_model, n_layers=n_layers, dropout=dropout)
        self.buffer = nn.LSTM(d_model, d_model, n_layers, batch_first=True, dropout=dropout if n_layers > 1 else 0.0)
        self.no_word = nn.Parameter(torch.zeros(d_model))  # what is read before the last word
        self.readout = nn.Linear(3 * d_model, d_model)
        self.logits = nn.Linear(d_model, target_vocab_size)
        self.drop = Dropout(dropout)

    def answer(self, source: Source, target: Target) -> Logits:
        """The logits of the action after each."""
        return self.write(target, *self.read(source))[0]

    def read(self, source: Source) -> tuple[Kept, Kept]:
        """Words, states of the words to come, how many there are; and where nothing was done yet."""
        words = self.words(source, source.shape[1])
        counts = self.words.places(source).amax(dim=1) + 1
        places = (counts[:, None] - 1 - torch.arange(words.shape[1], device=source.device)).clamp(min=0)
        from_last = words.gather(1, places[..., None].expand_as(words))
        before = self.no_word.expand(len(words), 1, -1)
        to_come, _ = self.buffer(self.drop(torch.cat((before, from_last), dim=1)))  # by how many words are left
        return (words, to_come, counts), self.reader.begin(words)

    def write(self, target: Target, memory: Kept, states: Kept) -> tuple[Logits, Kept]:
        """Go on from states: the logits after each action, and what was done up to the last."""
        words, to_come, counts = memory
        before = ActionStates(*states)
        left = counts[:, None] - before.read[:, None] - self.reader.is_word(target).cumsum(dim=1)
        done, after = self.reader(target, words, before)
        ahead = to_come.gather(1, left.clamp(min=0)[..., None].expand(-1, -1, to_come.shape[-1]))
        found = self.readout(torch.cat((done, ahead), dim=-1)).tanh()
        return self.logits(self.drop(found)), after
