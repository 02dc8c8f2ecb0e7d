"""The recurrent neural network grammar that generates sentences too, and chooses among trees of another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import check_positive
from attnlab.models.parsers.brackets import Brackets
from attnlab.models.parsers.parser import AbstractParser, Allowed, Losses, WordTable
from attnlab.models.parsers.possible import MORE, TOKENS_A_WORD, PossibleTokens
from attnlab.models.parsers.rnng import ActionReader, Rnng
from attnlab.models.translator import Source, Target
from attnlab.nn.kernels.dropout import Dropout

BEGIN, END = 1, 2  # as all vocabularies of the lab have them
SCORED = 64  # trees that are scored together


@final
class Proposed(NamedTuple):
    """Hold trees that were drawn for sentences, and how likely they are.

    Parameters
    ----------
    tokens : Tensor
        From the begin token on, filled up with the end token.
    proposal : Tensor
        Log probability of each tree where it was drawn, in nats.
    joint : Tensor
        Log probability of tree and sentence in the generative model.
    """

    tokens: Int[Tensor, "sentences samples t_len"]
    proposal: Float[Tensor, "sentences samples"]
    joint: Float[Tensor, "sentences samples"]


@final
class GenerativeRnng(AbstractParser):
    """Generate a sentence with its tree, and parse by the likeliest of some trees that a discriminative grammar draws.

    What is not said here is said of `AbstractParser`.

    Parameters
    ----------
    d_model : int, default 128
        Width of vectors and states, of either grammar.
    n_layers : int, default 2
        Of each LSTM.
    dropout : float, default 0.2
        Of vectors that are read, between layers, and of what scores are made of.
    samples : int, default 20
        Trees that are drawn for each sentence.

    Raises
    ------
    SpecError
        If a size is not positive.

    Notes
    -----
    The loss is the sum of the losses of both grammars, which share nothing. The generative one has no words to come:
    at a word it gives the tag, then the word: its pieces, each by the one before, and whether it ends there. So the tag
    is the word's class, and no word is unknown. The estimate of a sentence's probability is the mean of
    ``p(words, tree) / q(tree | words)`` over trees drawn from q; p of trees that cannot be is lost. The same random
    numbers are used for every sentence. Differs from [1]_: 20 trees where the source draws 100; words are pieces in
    classes that are tags, not clusters; the proposal's and the generative model's training are one.

    References
    ----------
    .. [1] Dyer, Kuncoro, Ballesteros, Smith, 2016, "Recurrent neural network grammars", arXiv:1602.07776, section 5.
    """

    def __init__(
        self,
        source_vocab_size: int,
        *,
        word_starts: Sequence[int],
        brackets: Mapping[str, int],
        pad: int = 0,
        d_model: int = 128,
        n_layers: int = 2,
        dropout: float = 0.2,
        samples: int = 20,
    ) -> None:
        super().__init__()
        check_positive({"samples": samples})
        self.brackets, self.samples, self.pad = Brackets.of(brackets), samples, pad
        size = self.brackets.size
        self.proposal = Rnng(
            source_vocab_size,
            size,
            word_starts=word_starts,
            brackets=brackets,
            pad=pad,
            d_model=d_model,
            n_layers=n_layers,
            dropout=dropout,
        )
        self.words = WordTable(source_vocab_size, d_model, word_starts=word_starts, pad=pad)
        nn.init.normal_(self.words.pieces.weight)
        self.reader = ActionReader(self.brackets, d_model, n_layers=n_layers, dropout=dropout)
        self.readout = nn.Linear(2 * d_model, d_model)
        self.actions = nn.Linear(d_model, size)
        self.classes = nn.Embedding(size, d_model)
        self.before = nn.Embedding(source_vocab_size, d_model)  # the padding token's is that of a word's beginning
        self.pieces = nn.Linear(d_model, source_vocab_size)
        self.ends = nn.Linear(d_model, 1)
        self.drop = Dropout(dropout)

    def forward(self, source: Source, target: Target) -> Losses:
        """Minus the log probabilities of each tree with its sentence, and of it given its sentence."""
        given = _of_actions(self.proposal(source, target[:, :-1]), target)
        return -self.joint(source, target) - given

    def joint(self, source: Source, target: Target) -> Losses:
        """The log probability of each sentence together with its tree, in nats."""
        words = self.words(source, source.shape[1])
        done, _ = self.reader(target[:, :-1], words, self.reader.begin(words))
        states = self.drop(self.readout(done).tanh())
        return _of_actions(self.actions(states), target) + self._of_words(source, target, states)

    def _of_words(self, source: Source, target: Target, states: Float[Tensor, "batch t_len d_model"]) -> Losses:
        """The log probability of the words where they stand in the trees: piece after piece, and no more."""
        is_word = self.reader.is_word(target[:, 1:])
        numbers = torch.where(is_word, is_word.cumsum(dim=1) - 1, source.shape[1]).clamp(max=source.shape[1])
        steps = torch.arange(numbers.shape[1], device=source.device).expand_as(numbers)
        at = torch.zeros(len(source), source.shape[1] + 1, dtype=torch.long, device=source.device)
        at = at.scatter(1, numbers, steps)  # the action of each word
        places = self.words.places(source)
        at = at.gather(1, places.clamp(min=0))
        rows, real = torch.arange(len(source), device=source.device)[:, None], places >= 0
        of_word = states[rows, at] + self.classes(target[rows, at + 1])
        same = (places[:, 1:] == places[:, :-1]) & real[:, 1:]  # whether a piece goes on with the word before it
        first = torch.full_like(source[:, :1], self.pad)
        before = torch.cat((first, torch.where(same, source[:, :-1], self.pad)), dim=1)
        scores = self.pieces((of_word + self.before(before)).tanh())
        found = -nn.functional.cross_entropy(scores.transpose(1, 2), source, reduction="none")
        ends = self.ends((of_word + self.before(source)).tanh())[..., 0]
        goes_on = nn.functional.pad(same, (0, 1))
        return ((found + nn.functional.logsigmoid(torch.where(goes_on, -ends, ends))) * real).sum(dim=1)

    @torch.no_grad()
    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the likeliest tree over each sentence among those that were drawn."""
        drawn = self.propose(source, allowed)
        best = drawn.tokens[torch.arange(len(source)), drawn.joint.argmax(dim=1)]
        return [[token for token in tokens[1:] if token != END] for tokens in best.tolist()]

    @torch.no_grad()
    def log_likelihoods(self, source: Source, allowed: Allowed) -> Float[Tensor, " batch"]:
        """An estimate of the log probability of each sentence, whatever its tree, in nats."""
        drawn = self.propose(source, allowed)
        return (drawn.joint - drawn.proposal).logsumexp(dim=1) - math.log(self.samples)

    def propose(self, source: Source, allowed: Allowed) -> Proposed:
        """Draw trees for each sentence."""
        counts = allowed.any(dim=-1).sum(dim=1).tolist()
        limits = [TOKENS_A_WORD * count + MORE for count in counts]
        opening = torch.zeros(self.brackets.size, dtype=torch.bool)
        opening[self.brackets.opening[1:]] = True  # not that of unknown labels
        possible = PossibleTokens(
            allowed.cpu(), counts, opening=opening, close=self.brackets.close, begin=BEGIN, end=END, limits=limits
        )
        rows = torch.arange(len(source)).repeat_interleave(self.samples)
        possible.select(rows)
        memory, states = (tuple(one[rows] for one in kept) for kept in self.proposal.read(source))
        written, likely = [torch.full((len(rows),), BEGIN)], torch.zeros(len(rows))
        generator = torch.Generator().manual_seed(0)
        while bool((written[-1] != END).any()):
            possible.add(written[-1])
            logits, states = self.proposal.write(written[-1][:, None].to(source.device), memory, states)
            scores = logits[:, 0].float().cpu().masked_fill(~possible.mask(logits.shape[-1]), -torch.inf)
            scores = scores.log_softmax(dim=-1)
            reached = scores.double().exp().cumsum(dim=-1)
            chance = torch.rand(self.samples, generator=generator, dtype=torch.double).repeat(len(source))[:, None]
            written.append((reached <= chance * reached[:, -1:]).sum(dim=-1))
            likely = likely + scores.gather(1, written[-1][:, None])[:, 0]
        tokens = torch.stack(written, dim=1).to(source.device)
        pairs = zip(source[rows].split(SCORED), tokens.split(SCORED), strict=True)
        joint = torch.cat([self.joint(sentences, trees) for sentences, trees in pairs]).cpu()
        shape = (len(source), self.samples)
        return Proposed(tokens.cpu().view(*shape, -1), likely.view(shape), joint.view(shape))


def _of_actions(logits: Float[Tensor, "batch t_len size"], target: Target) -> Losses:
    """The log probability of each tree's actions behind its begin; neither padding nor the end is one."""
    actions = target[:, 1:]
    found = nn.functional.cross_entropy(logits.transpose(1, 2), actions, reduction="none")
    return -(found * (actions > END)).sum(dim=1)
