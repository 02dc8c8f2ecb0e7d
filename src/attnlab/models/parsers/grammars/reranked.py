"""A grammar's best trees, chosen from by a model that sees each of them as a whole."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import check_positive
from attnlab.models.parsers.brackets import SpansAndTags, TreeSpan
from attnlab.models.parsers.grammars.latent import LatentPcfg
from attnlab.models.parsers.grammars.posteriors import Grammar
from attnlab.models.parsers.grammars.tree_features import TreeFeatures
from attnlab.models.parsers.parser import BASE, AbstractParser, Allowed, Losses, WordKeys
from attnlab.models.translator import Source, Target

OF_GRAMMAR = 3
"""Rows of the table before those of features: of a tree's log probability, and of the two scores of `LatentPcfg`."""


Candidates = tuple[list[SpansAndTags], Float[Tensor, " trees"]]
"""The best trees of a sentence in a grammar, the first of them first, and the scores that choose among them."""


@final
class RerankedPcfg(AbstractParser):
    """Choose among the best trees of a grammar with latent labels by a log-linear model of whole trees.

    What is not said here is said of `AbstractParser`.

    Parameters
    ----------
    chains : sequence of sequence of int
        The opening tokens of brackets that may stand around the same words: each such chain is one symbol.
    splits, split_every, n_rules, n_words : int
        As `LatentPcfg` takes them; `split_every` trees after the last split, choosing begins to be learned.
    candidates : int, default 20
        Trees that are chosen from.
    listed_every : int, default 8
        One in so many training sentences teaches choosing, others each time.
    features : int, default 262144
        Rows of the table of weights; what is seen has a row by its hash, so that some share one.

    Raises
    ------
    SpecError
        If a size is out of its range.

    Notes
    -----
    To be learned with the optimizer ``em``, which leaves the table of weights to AdamW. A list that is learned from
    comes from a grammar that never saw its sentence: besides the grammar that parses there are two, each of which
    learns one half of the sentences, by a hash of their tokens, and lists the trees of the other half. Memory comes to
    three times that of `LatentPcfg`, the counting of rules to two times. The loss is the sum of the losses of the
    grammars and, of sentences that are listed, minus the log probability of the trees with the highest F1 within the
    list ([1]_); in evaluation the grammar that parses makes the lists. Trees are listed by the product of the
    posteriors of their rules ([3]_). The score to begin with is the sum over constituents that `LatentPcfg` maximizes;
    it, the product and the probability of the tree have weights too. Features are rules with what is around them,
    neighbors, words and tags at the edges of constituents and around these, words with what is above them, lengths,
    distances from the end, and likeness of what is coordinated. Differs from [1]_: no heads, so no features of heads;
    features are hashed, and rare ones kept; two parts in place of twenty; 20 trees, not 50; weights are learned beside
    the grammars, in place of a numerical optimum with a penalty chosen on other sentences.

    References
    ----------
    .. [1] Charniak, Johnson, 2005, "Coarse-to-fine n-best parsing and MaxEnt discriminative reranking".
    .. [2] Collins, 2000, "Discriminative reranking for natural language parsing".
    .. [3] Petrov, Klein, 2007, "Improved inference for unlexicalized parsing".
    """

    def __init__(
        self,
        source_vocab_size: int,
        *,
        word_starts: Sequence[int],
        brackets: Mapping[str, int],
        chains: Sequence[Sequence[int]],
        pad: int = 0,
        splits: int = 3,
        split_every: int = 8000,
        n_rules: int = 8192,
        n_words: int = 65536,
        candidates: int = 20,
        listed_every: int = 8,
        features: int = 262144,
    ) -> None:
        super().__init__()
        check_positive({"candidates": candidates, "listed_every": listed_every, "features": features})
        build = functools.partial(LatentPcfg, source_vocab_size, word_starts=word_starts, brackets=brackets, pad=pad)
        build = functools.partial(build, chains=chains, splits=splits, n_rules=n_rules, n_words=n_words)
        self.grammar = build(split_every=split_every)
        self.first_half, self.second_half = (build(split_every=max(1, split_every // 2)) for _ in range(2))
        self.candidates, self.listed_every = candidates, listed_every
        self.listed_from = (splits + 1) * split_every
        self.features = TreeFeatures(self.grammar.symbols, features)
        self.table = nn.Embedding(OF_GRAMMAR + features, 1)
        nn.init.zeros_(self.table.weight)
        nn.init.ones_(self.table.weight[OF_GRAMMAR - 1])

    @property
    def halves(self) -> tuple[LatentPcfg, LatentPcfg]:
        """The grammars of the two halves of the training sentences."""
        return self.first_half, self.second_half

    def forward(self, source: Source, target: Target) -> Losses:
        """The losses of the grammars and, of sentences that are listed, of the choice."""
        losses = self.grammar(source, target)
        hashes = self.grammar.places.keys(source, 1).words[:, 0] * BASE >> 20
        halves = hashes % 2
        for half, grammar in enumerate(self.halves):
            rows = (halves == half).nonzero()[:, 0]
            if len(rows):
                losses = losses.index_add(0, rows, grammar(source[rows], target[rows]))
        listed = self._listed(hashes // 2)
        makers = self.halves[::-1] if self.training else (self.grammar, self.grammar)  # of lists of either half
        grammars = [maker.grammars() for maker in makers] if listed else []
        for row in listed:
            half = int(halves[row])
            found = self._of_choice(makers[half], grammars[half], source[row], target[row])
            losses = losses.index_add(0, torch.tensor([row], device=losses.device), found.to(losses.dtype))
        return losses

    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the best tree over each sentence."""
        brackets = self.grammar.symbols.brackets
        return [brackets.write(*trees[int(scores.argmax())]) for trees, scores in self.lists(source, allowed)]

    @torch.no_grad()
    def lists(self, source: Source, allowed: Allowed) -> list[Candidates]:
        """What each sentence's tree is chosen from."""
        grammars = self.grammar.grammars()
        rows = zip(source, self.grammar.sentences(source, allowed), strict=True)
        return [self._candidates(self.grammar, grammars, row, keys, may) for row, (keys, may) in rows]

    def _listed(self, hashes: Int[Tensor, " batch"]) -> list[int]:
        """The sentences of a batch that are listed: others of the same ones in training, always the same elsewhere."""
        seen = int(self.grammar.seen)
        turn = seen if self.training else 0
        return ((hashes + turn) % self.listed_every == 0).nonzero()[:, 0].tolist() if seen >= self.listed_from else []

    def _of_choice(
        self, maker: LatentPcfg, grammars: Sequence[Grammar], source: Int[Tensor, " s_len"], target: Tensor
    ) -> Float[Tensor, " 1"]:
        """Minus the log probability of the trees in a grammar's list that are most like the right one."""
        gold, tags = self.grammar.symbols.brackets.read(target.tolist())
        if not tags:
            return self.table.weight.new_zeros(1)
        keys = maker.places.keys(source[None], len(tags))
        may = torch.ones(len(tags), self.grammar.symbols.tags, dtype=torch.bool, device=source.device)
        keys = WordKeys(keys.words[0], keys.endings[0])
        trees, scores = self._candidates(maker, grammars, source, keys, may)
        f1 = torch.tensor([_f1(spans, gold) for spans, _ in trees], device=source.device)
        return (scores.logsumexp(dim=0) - scores[f1 == f1.max()].logsumexp(dim=0))[None]

    def _candidates(
        self, maker: LatentPcfg, grammars: Sequence[Grammar], source: Tensor, keys: WordKeys, may: Tensor
    ) -> Candidates:
        trees, worth = maker.n_best(grammars, keys, may, self.candidates)
        with torch.no_grad():
            likely = -maker.losses(source.expand(len(trees), -1), trees, new=0)
        of_grammar = torch.cat((likely[:, None], worth.to(likely.dtype)), dim=1)
        rows, tree = self.features(trees, keys.words)
        seen = self.table(rows + OF_GRAMMAR).sum(dim=(1, 2))
        scores = (of_grammar - of_grammar[:1]) @ self.table.weight[:OF_GRAMMAR, 0]
        return trees, scores.index_add(0, tree, seen)


def _f1(spans: Sequence[TreeSpan], gold: Sequence[TreeSpan]) -> float:
    """The labelled F1 of constituents, all of them counted."""
    ours, theirs = (
        Counter((start, end, label) for start, end, chain in one for label in chain) for one in (spans, gold)
    )
    return 2 * (ours & theirs).total() / max(1, ours.total() + theirs.total())
