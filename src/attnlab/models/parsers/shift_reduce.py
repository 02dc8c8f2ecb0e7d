"""The parser that shifts and reduces: from the left, by what lies on its stack, with a beam and a table of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import check_positive
from attnlab.models.parsers.brackets import Brackets
from attnlab.models.parsers.grammars.symbols import Symbols
from attnlab.models.parsers.parser import FORBIDDEN, AbstractParser, Allowed, Losses, WordPlaces
from attnlab.models.parsers.templates import Templates
from attnlab.models.parsers.transitions import BELOW, DONE, ParserStates, Tags, Transitions
from attnlab.models.translator import Source, Target

FIRST = 1e-3
"""Standard deviation of the first weights, which makes no two actions equally good."""
MARGIN = 1.0
"""By which the right beginning must lead."""
MOST = 10  # words of the longest constituent whose length is told
NEAR = "w-2 w-1 w0 w1 w2 e-1 e0 e1"
AROUND = ("w0", "w-1", "w1", "w-2", "w2", "e0", "e-1", "e1", "w-1 w0", "w0 w1", "e-1 e0", "e0 e1", "e-1 e0 e1")
"""What a tag is seen by: words and their last pieces."""
OF_STATES = "s0 s1 s2 s3 f0 f1 f2 f3 l0 l1 l2 l3 q0 q1 q2 q3 d0 d1 g0 g1 t0 t1 t2 t3 a0 a1 b0 b1 n0 n1"
SEEN = (
    "s0", "s0 f0", "s0 l0", "s0 d0", "s0 g0", "s1", "s1 f1", "s1 l1", "s2 l2", "s3 l3", "s2", "s3",
    "t0 q0", "t1 q1", "t2 q2", "t3 q3", "s0 a0", "s0 b0", "s0 a0 b0", "s1 a1", "s1 b1",
    "l1 l0", "f0 l1", "s1 s0", "s1 l0", "l1 s0", "s1 n1 s0 n0", "d1 g0", "l0 q0", "l0 t0", "s0 q0", "s0 t0",
    "q0 q1", "q0 t1", "t0 q1", "t0 t1", "l1 q0", "l1 t0", "s1 q0", "s1 t0", "t0 t1 t2",
    "s0 s1 s2", "l0 s1 s2", "s0 l1 t0", "s0 s1 l2", "s0 s1 t0", "l0 s1 t0", "s0 l1 s2", "s0 s1 q0", "s0 s1 t0 t1",
)  # fmt: skip
"""What an action is seen by. Of the stack's elements from the highest: s, symbols; f and l, first and last words; d and
g, their tags; n, lengths; a and b, the symbols they were made of. Of the words to come: q, words; t, tags."""


@final
class _Words(NamedTuple):
    """Hold what is known of the words of some sentences."""

    counts: Int[Tensor, " batch"]
    tags: Tags
    shown_keys: Int[Tensor, "batch words+2"]  # one more than each, and 0 where there is no word, also on both sides
    shown_tags: Int[Tensor, "batch words+2"]

    @staticmethod
    def shown(one: Int[Tensor, "batch words"], counts: Int[Tensor, " batch"]) -> Int[Tensor, "batch words+2"]:
        """Numbers of words as they are shown."""
        real = torch.arange(one.shape[1], device=one.device) < counts[:, None]
        return nn.functional.pad((one + 1) * real, (1, 1))

    @staticmethod
    def at(shown: Int[Tensor, "batch words+2"], places: Int[Tensor, "batch ..."]) -> Int[Tensor, "batch ..."]:
        """What is shown at some places; -1 is before the first word."""
        inside = (places + 1).clamp(0, shown.shape[1] - 1)
        return shown.gather(1, inside.flatten(1)).view_as(places)


@final
class ShiftReduceParser(AbstractParser):
    """Build trees by actions that a linear model scores, keeping the best beginnings.

    What is not said here is said of `AbstractParser`.

    Parameters
    ----------
    chains : sequence of sequence of int
        The opening tokens of brackets that may stand around the same words, the outermost first, the usual ones first.
    beam : int, default 8
        Beginnings that are kept of each tree.
    features : int, default 65536
        Rows of the table of weights; what is seen has a row by its hash, so that some share one.

    Raises
    ------
    SpecError
        If a size is not positive.

    Notes
    -----
    The loss of a tree is what the right beginning lacks to lead the best wrong one of as many actions by 1, where that
    is most ([2]_). Its gradient is the update of a perceptron, which the optimizer ``sgd`` takes as it is and ``adamw``
    by weight, and which the recipe's `average` averages. Beginnings that are done wait for the others and are scored
    on. Differs from [1]_: tags come from a linear model of the same kind, whose cross-entropy is added to the loss;
    constituents are made binary from the left, and are seen by their first and last words, as heads need rules of each
    language; a word has one unary action at most, as brackets around the same words are one symbol.

    References
    ----------
    .. [1] Zhu, Zhang, Chen, Zhang, Zhu, 2013, "Fast and accurate shift-reduce constituent parsing".
    .. [2] Huang, Fayong, Guo, 2012, "Structured perceptron with inexact search".
    """

    def __init__(
        self,
        source_vocab_size: int,
        *,
        word_starts: Sequence[int],
        brackets: Mapping[str, int],
        chains: Sequence[Sequence[int]],
        pad: int = 0,
        beam: int = 8,
        features: int = 65536,
    ) -> None:
        super().__init__()
        check_positive({"source_vocab_size": source_vocab_size, "beam": beam, "features": features})
        self.beam = beam
        self.transitions = Transitions(Symbols(Brackets.of(brackets), tuple(tuple(chain) for chain in chains)))
        self.places = WordPlaces(source_vocab_size, word_starts=word_starts, pad=pad)
        self.around, self.seen = Templates(NEAR, AROUND, features), Templates(OF_STATES, SEEN, features)
        self.tags = nn.Parameter(torch.randn(features, self.transitions.symbols.tags) * FIRST)
        self.actions = nn.Parameter(torch.randn(features, self.transitions.count) * FIRST)

    def forward(self, source: Source, target: Target) -> Losses:
        """How far the tree of each sentence falls short, and the loss of its tags."""
        brackets = self.transitions.symbols.brackets
        read = [brackets.read(tokens) for tokens in target.tolist()]
        counts = torch.tensor([len(tags) for _, tags in read], device=source.device)
        logits, words = self._words(source, counts)
        tags = [torch.tensor(found, dtype=torch.long) - brackets.words.start for _, found in read]
        right = nn.utils.rnn.pad_sequence(tags, batch_first=True, padding_value=-100).to(source.device)
        tagging = nn.functional.cross_entropy(logits.transpose(1, 2)[..., : right.shape[1]], right, reduction="none")
        built = [torch.tensor([*self.transitions.of_tree(spans, len(found)), DONE]) for spans, found in read]
        gold = nn.utils.rnn.pad_sequence(built, batch_first=True, padding_value=DONE).to(source.device)
        lengths = torch.tensor([len(actions) for actions in built], device=source.device)
        short, wrong, steps = self._worst(words, gold, lengths)
        if torch.is_grad_enabled():
            short = self._short(words, gold, wrong, steps)
        return tagging.sum(dim=1) + short

    @torch.no_grad()
    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the best tree that was found over each sentence."""
        brackets = self.transitions.symbols.brackets
        counts = allowed.any(dim=-1).sum(dim=1).to(source.device)
        may = allowed[..., brackets.words.start : brackets.words.stop].to(source.device)
        _, words = self._words(source, counts, may)
        states = self.transitions.begin(len(source), 1, words.tags.shape[1], source.device)
        totals, taken = torch.zeros(len(source), 1, device=source.device), states.symbols.new_zeros(len(source), 1, 0)
        over = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        while not bool(over.all()):
            scores = self._scores(states, words)
            scores = scores.masked_fill(over[:, None, None] & (scores > FORBIDDEN), 0.0)  # no longer sentence counts
            totals, parents, actions = self._best(totals[..., None] + scores)
            over = ((actions == DONE) | (totals <= FORBIDDEN / 2)).all(dim=1)
            states = self.transitions.advance(states.of(parents), actions, words.tags)
            taken = _went_on(taken, parents, actions)
        tags = (words.tags + brackets.words.start).tolist()
        best = zip(taken[:, 0].tolist(), tags, counts.tolist(), strict=True)
        return [brackets.write(self.transitions.spans(actions), row[:count]) for actions, row, count in best]

    def _words(
        self, source: Source, counts: Int[Tensor, " batch"], may: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch words tags"], _Words]:
        """The logits of tags, and the words with those that are likeliest of the ones they may have."""
        most = max(int(counts.max()), 1)
        words, endings = self.places.keys(source, most)
        places = torch.arange(most, device=source.device).expand(len(source), -1)[..., None]
        near, nearer = (torch.arange(-far, far + 1, device=source.device) for far in (2, 1))
        keys, endings = _Words.shown(words, counts), _Words.shown(endings, counts)
        seen = torch.cat((_Words.at(keys, places + near), _Words.at(endings, places + nearer)), dim=-1)
        logits = nn.functional.embedding_bag(self.around(seen).flatten(0, 1), self.tags, mode="sum")
        logits = logits.unflatten(0, words.shape)
        tags = (logits if may is None else logits.masked_fill(~may, FORBIDDEN)).argmax(dim=-1)
        return logits, _Words(counts, tags, keys, _Words.shown(tags, counts))

    def _rows(self, states: ParserStates, words: _Words) -> Int[Tensor, "batch paths templates"]:
        """The rows of weights of what is seen of some beginnings."""
        symbols, starts = states.top("symbols", BELOW), states.top("starts", BELOW)
        ends = torch.cat((states.read[..., None], starts[..., :-1]), dim=-1)
        full = symbols != self.transitions.nothing
        first, last = (torch.where(full, places, -1) for places in (starts, ends - 1))
        ahead = states.read[..., None] + torch.arange(BELOW, device=symbols.device)
        keys = words.at(words.shown_keys, torch.cat((first, last, ahead), dim=-1))
        tags = words.at(words.shown_tags, torch.cat((first[..., :2], last[..., :2], ahead), dim=-1))
        made_of = states.top("lefts", 2), states.top("rights", 2)
        lengths = (last - first)[..., :2].clamp(max=MOST)
        return self.seen(torch.cat((symbols, keys, tags, *made_of, lengths), dim=-1))

    def _scores(self, states: ParserStates, words: _Words) -> Float[Tensor, "batch paths actions"]:
        """The score of every action of some beginnings; `FORBIDDEN` of those that are not possible."""
        rows = self._rows(states, words)
        scores = nn.functional.embedding_bag(rows.flatten(0, 1), self.actions, mode="sum").unflatten(0, rows.shape[:2])
        return scores.masked_fill(~self.transitions.legal(states, words.counts), FORBIDDEN)

    def _best(self, scores: Float[Tensor, "batch paths actions"]) -> tuple[Tensor, Tensor, Tensor]:
        """Of the best ways to go on: their scores, which beginnings they continue, and by which actions."""
        found, places = scores.flatten(1).topk(min(self.beam, scores[0].numel()), dim=1)
        return found, places // scores.shape[2], places % scores.shape[2]

    @torch.no_grad()
    def _worst(
        self, words: _Words, gold: Int[Tensor, "batch actions"], lengths: Int[Tensor, " batch"]
    ) -> tuple[Losses, Int[Tensor, "batch actions"], Int[Tensor, " batch"]]:
        """How far right beginnings fall short, of which wrong ones, and how many actions those have."""
        batch, longest = gold.shape
        states = self.transitions.begin(batch, 1, words.tags.shape[1], gold.device)  # the right one comes last
        totals, taken = self.actions.new_zeros(batch, 1), gold.new_zeros(batch, 1, 0)
        worst, steps = totals.new_zeros(batch), gold.new_zeros(batch)
        wrong = torch.full_like(gold, DONE)
        for step in range(longest):
            right = gold[:, step : step + 1]
            scores = totals[..., None] + self._scores(states, words)
            of_right = scores[:, -1].gather(1, right)
            scores[:, -1] = (scores[:, -1] + MARGIN).scatter(1, right, FORBIDDEN)
            totals, parents, actions = self._best(scores)
            last = torch.full_like(right, states.depth.shape[1] - 1)
            parents, actions = torch.cat((parents, last), dim=1), torch.cat((actions, right), dim=1)
            states = self.transitions.advance(states.of(parents), actions, words.tags)
            taken = _went_on(taken, parents, actions)
            leads = (totals[:, 0] - of_right[:, 0] > worst) & (step < lengths)
            worst = torch.where(leads, totals[:, 0] - of_right[:, 0], worst)
            steps = torch.where(leads, step + 1, steps)
            wrong[:, : step + 1] = torch.where(leads[:, None], taken[:, 0], wrong[:, : step + 1])
            totals = torch.cat((totals, of_right), dim=1)
        return worst, wrong, steps

    def _short(self, words: _Words, gold: Tensor, wrong: Tensor, steps: Int[Tensor, " batch"]) -> Losses:
        """How far right beginnings of so many actions fall short of wrong ones, to be differentiated."""
        paths = torch.stack((wrong, gold), dim=1)
        states = self.transitions.begin(len(gold), 2, words.tags.shape[1], gold.device)
        rows = []
        for actions in paths.unbind(dim=2):
            rows.append(self._rows(states, words))
            states = self.transitions.advance(states, actions, words.tags)
        places = torch.stack(rows, dim=2) * self.transitions.count + paths[..., None]
        scores = self.actions.flatten()[places].sum(dim=-1)  # (batch, 2, actions)
        counted = torch.arange(gold.shape[1], device=gold.device) < steps[:, None]
        return ((scores[:, 0] - scores[:, 1]) * counted).sum(dim=1) + MARGIN * (steps > 0)


def _went_on(taken: Int[Tensor, "batch paths done"], parents: Tensor, actions: Tensor) -> Int[Tensor, "batch paths _"]:
    """What was done on the way to where some beginnings lead."""
    rows = torch.arange(len(parents), device=parents.device)[:, None]
    return torch.cat((taken[rows, parents], actions[..., None]), dim=2)
