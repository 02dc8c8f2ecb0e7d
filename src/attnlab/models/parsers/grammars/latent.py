"""Grammars that are counted: each rule has a probability, and each label has kinds that no treebank tells apart."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import require_not_negative, require_positive
from attnlab.models.parsers.brackets import Brackets, SpansAndTags, TreeSpan
from attnlab.models.parsers.chart import best_trees
from attnlab.models.parsers.grammars.counts import (
    FIRST,
    FREE,
    UNSEEN,
    Counts,
    Registry,
    probabilities,
    tally,
    totals,
)
from attnlab.models.parsers.grammars.forest import BinaryTrees, inside
from attnlab.models.parsers.grammars.lexicon import Lexicon, WordShares
from attnlab.models.parsers.grammars.n_best import Way, n_best
from attnlab.models.parsers.grammars.posteriors import Grammar, Posteriors, packed, posteriors, posteriors_of_kinds
from attnlab.models.parsers.grammars.symbols import Symbols
from attnlab.models.parsers.parser import AbstractParser, Allowed, Losses, WordKeys, WordPlaces
from attnlab.models.translator import Source, Target

SPREAD = 0.05
"""By which share the halves of a count differ at most after a split."""
BETWEEN = 4
"""Kinds of each symbol in the grammar that parses between the one without kinds and the one with all."""
KEPT = 1e-4, 3e-3
"""Shares of all trees that a label must have a part in to be looked at with a few kinds, and with all."""
RARE = 1e-6
"""Share of all trees that a rule at its place must have a part in to be in one of the best."""
CERTAIN = 0.35
"""Share of all trees that a constituent must have a part in to be written."""
SCALE = 16.0
"""What each word is multiplied by, beside what makes its likeliest tag 1: rules take it away again."""


@final
class LatentPcfg(AbstractParser):
    """Parse with a probabilistic context-free grammar whose symbols have kinds that nobody sees.

    What is not said here is said of `AbstractParser`.

    Parameters
    ----------
    chains : sequence of sequence of int
        The opening tokens of brackets that may stand around the same words: each such chain is one symbol.
    splits : int, default 3
        How often every symbol is split in two kinds; 0 is a plain grammar.
    split_every : int, default 8000
        Training trees before the first split and between two of them.
    n_rules : int, default 8192
        Binary rules that find a place; what is met later stays unknown.
    n_words : int, default 65536
        Pairs of a word and its tag, likewise.

    Raises
    ------
    SpecError
        If a size is out of its range.

    Notes
    -----
    To be learned with the optimizer ``em``. How often rules and words are seen is counted; its parameters are expected
    counts, which say how each use divides among kinds. The loss is minus the logarithm of the probability of tree and
    words. Constituents of more than two parts are made binary from the right, with one symbol for what is left of each
    label. A split halves every count and moves the halves a little apart. As in [1]_, probabilities of rules (1 %) and
    words (10 %) are drawn towards their mean over the kinds of a symbol. Rare words and new ones have tags of words
    that end in the same piece, too; see `Lexicon`. Parsing looks for labels with the grammar without kinds, and then
    only at those that have a part in enough trees. The tree is the one whose constituents have the largest posteriors
    together, less 0.35 each. Differs from [1]_: batches, not the whole treebank, for each step of EM; splits are not
    merged again; endings are the last pieces of words, in place of signatures by spelling; the objective of [3]_ in
    place of that of [4]_.

    References
    ----------
    .. [1] Petrov, Barrett, Thibaux, Klein, 2006, "Learning accurate, compact, and interpretable tree annotation".
    .. [2] Matsuzaki, Miyao, Tsujii, 2005, "Probabilistic CFG with latent annotations".
    .. [3] Goodman, 1996, "Parsing algorithms and metrics", arXiv:cmp-lg/9605036.
    .. [4] Petrov, Klein, 2007, "Improved inference for unlexicalized parsing".
    """

    seen: Int[Tensor, ""]
    seen_root: Float[Tensor, " symbols"]
    seen_binary: Float[Tensor, " n_rules"]
    seen_unary: Float[Tensor, " unary"]

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
    ) -> None:
        super().__init__()
        require_not_negative("splits", splits)
        for name, size in (("split_every", split_every), ("n_rules", n_rules), ("n_words", n_words)):
            require_positive(name, size)
        self.symbols = Symbols(Brackets.of(brackets), tuple(tuple(chain) for chain in chains))
        self.splits, self.split_every = splits, split_every
        self.places = WordPlaces(source_vocab_size, word_starts=word_starts, pad=pad)
        kinds = 2**splits
        self.rules = Registry(n_rules)
        self.lexicon = Lexicon(n_words, tags=self.symbols.tags, kinds=kinds)
        self.root = nn.Parameter(torch.full((self.symbols.count, kinds), FIRST))
        self.binary = nn.Parameter(torch.full((n_rules, kinds, kinds, kinds), FIRST))
        self.unary = nn.Parameter(torch.full((len(chains) * self.symbols.tags, kinds, kinds), FIRST))
        for name, counts in (("root", self.root), ("binary", self.binary), ("unary", self.unary)):
            self.register_buffer(f"seen_{name}", torch.full((len(counts),), FIRST, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, source: Source, target: Target) -> Losses:
        """Minus the logarithm of the probability of each tree with its words."""
        trees = [self.symbols.brackets.read(tokens) for tokens in target.tolist()]
        return self.losses(source, trees, new=len(source) if self.training else 0)

    def losses(self, source: Source, trees: Sequence[SpansAndTags], *, new: int) -> Losses:
        """Minus the logarithm of the probability of each tree with its words; `new` ones are met and counted."""
        grown = BinaryTrees(self.symbols)
        for tree in trees:
            grown.grow(*tree)
        keys = self.places.keys(source, max(place for _, place, _ in grown.leaves) + 1)
        rows, places, tags = torch.tensor(grown.leaves, device=source.device).T
        words, endings = (one[rows, places] for one in keys)
        if new:
            self._count(grown)
            self.lexicon.count(*(self.lexicon.keys(one, tags) for one in (words, endings)))
            self._split(new)
        grammar = self._grammar(self._counts())
        leaves = grammar.words(words, endings, tags)
        scales = SCALE / leaves.detach().amax(dim=1)
        tops, levels = grown.levels(self.rules)
        weights = leaves.new_ones(len(leaves) + sum(level.ways for level in levels))
        values = inside(leaves * scales[:, None], levels, unary=grammar.unary, binary=grammar.binary, weights=weights)
        found = (values[tops] * grammar.root[grown.tops()]).sum(dim=1).clamp(min=1e-300).log()
        found = found - scales.new_zeros(len(source)).index_add(0, rows, scales.log())
        return -found.float()

    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the best tree over each sentence."""
        grammars = self.grammars()
        return [self._tree(grammars, *sentence) for sentence in self.sentences(source, allowed)]

    def sentences(self, source: Source, allowed: Allowed) -> Iterator[tuple[WordKeys, Bool[Tensor, "words tags"]]]:
        """The words of each sentence, and the tags that they may have."""
        words = self.symbols.brackets.words
        may = allowed[..., words.start : words.stop].to(source.device)
        counts = may.any(dim=-1).sum(dim=1).tolist()
        keys = self.places.keys(source, max(counts))
        for row, count in enumerate(counts):
            yield WordKeys(keys.words[row, :count], keys.endings[row, :count]), may[row, :count]

    @torch.no_grad()
    def grammars(self) -> list[Grammar]:
        """The grammar without kinds and, where there are any, the one with a few of them and the one with all."""
        counts = self._counts()
        kinds = counts[0].kinds.shape[1]
        found = [self._grammar([one.merged(few) for one in counts]) for few in sorted({1, min(BETWEEN, kinds), kinds})]
        return [one._replace(binary=functools.partial(one.binary(one.used).index_select, 0)) for one in found]

    @torch.no_grad()
    def n_best(
        self, grammars: Sequence[Grammar], keys: WordKeys, may: Bool[Tensor, "words tags"], count: int
    ) -> tuple[list[SpansAndTags], Float[Tensor, "trees 2"]]:
        """The best trees of a sentence by the product of the posteriors of all their rules, and two scores of each.

        These are that product's logarithm, and the sum that `trees` maximizes. Where there is no tree at all, the words
        stand side by side.
        """
        symbols, leaves = self.symbols, self._leaves_of(grammars, keys, may)
        kept = KEPT[max(0, len(grammars) - 2)]
        alive = self._shares(grammars[:-1] or grammars, leaves) > kept  # nothing where there is no tree
        found = packed(grammars[-1], symbols, leaves[-1], alive)
        shares, symbol, (made, children) = found.shares(), found.nodes[:, 2], found.made()
        inner = (symbol >= symbols.tags) & (symbol < symbols.constituents.stop)
        tops = (inner & (found.nodes[:, 0] == 0) & (found.nodes[:, 1] == len(may)) & (shares > RARE)).nonzero()[:, 0]
        of_tops = zip(shares[tops].log().tolist(), tops.tolist(), strict=True)
        ways: list[list[Way]] = [*([] for _ in range(len(symbol))), [(score, (top,)) for score, top in of_tops]]
        kept = found.ways > RARE
        of_ways = zip(made[kept].tolist(), found.ways[kept].log().tolist(), children[kept].tolist(), strict=True)
        for node, score, below in of_ways:
            ways[node].append((score, tuple(child for child in below if child >= 0)))
        best = n_best(ways, len(symbol), count)
        if not best:
            return [symbols.brackets.read(self._tree(grammars, keys, may))], shares.new_zeros(1, 2)
        named, worth = found.nodes.tolist(), torch.where(inner, shares - CERTAIN, 0.0)
        trees = [self._of_nodes([named[node] for node in nodes[1:]]) for _, nodes in best]
        sums = [worth[nodes[1:]].sum() for _, nodes in best]
        return trees, torch.stack((shares.new_tensor([score for score, _ in best]), torch.stack(sums)), dim=1)

    def _of_nodes(self, nodes: Sequence[Sequence[int]]) -> SpansAndTags:
        symbols = self.symbols
        chains = {symbol: chain for chain, symbol in zip(symbols.chains, symbols.constituents, strict=True)}
        spans = [TreeSpan(start, end, chains[symbol]) for start, end, symbol in nodes if symbol in chains]
        return spans, [symbols.brackets.words[symbol] for _, _, symbol in nodes if symbol < symbols.tags]

    # ---- what is counted ----

    def _counts(self) -> list[Counts]:
        """Those of roots, binary and unary rules, and words, by the kinds that there are so far."""
        kinds = 2 ** min(self.splits, int(self.seen) // self.split_every)
        symbols, used = self.symbols, max(1, self.rules.used)
        keys, tops, unary = self.rules.keys[:used], *(torch.arange(len(one)) for one in (self.root, self.unary))
        parents = torch.where(keys == FREE, symbols.count, symbols.parts(keys)[0])
        chains = symbols.tags + unary.to(keys.device) // symbols.tags
        return [
            Counts(self.seen_root, self.root[:, :kinds], tops.to(keys.device)),
            Counts(self.seen_binary[:used], self.binary[:used, :kinds, :kinds, :kinds], parents),
            Counts(self.seen_unary, self.unary[:, :kinds, :kinds], chains),
            self.lexicon.counts(kinds),
        ]

    def _grammar(self, counts: Sequence[Counts]) -> Grammar:
        root, binary, unary, words = counts
        of_words = WordShares(self.lexicon, words)
        sums = totals((binary, unary), self.symbols.count)
        sums[: self.symbols.tags] = of_words.totals
        used = torch.arange(self.rules.used, device=sums.device)
        return Grammar(
            root.at(root.parents) / root.seen.sum(),
            functools.partial(probabilities, binary, sums),
            functools.partial(probabilities, unary, sums),
            of_words,
            used,
            *self.symbols.parts(self.rules.keys[used]),
        )

    @torch.no_grad()
    def _count(self, grown: BinaryTrees) -> None:
        """Count what trees are seen to be made of."""
        binary, unary, root = (
            torch.tensor(made, dtype=torch.long, device=self.rules.keys.device)
            for made in (grown.keys(), grown.singles(), grown.tops())
        )
        tally(self.seen_binary, self.rules.add(binary))
        tally(self.seen_unary, unary)
        tally(self.seen_root, root)

    @torch.no_grad()
    def _split(self, trees: int) -> None:
        """Count trees, and split all kinds when enough were seen."""
        kinds, more = (2 ** min(self.splits, int(seen) // self.split_every) for seen in (self.seen, self.seen + trees))
        self.seen += trees
        for counts in (self.root, self.binary, self.unary, self.lexicon.kinds) if more > kinds else ():
            axes = range(1, counts.ndim)
            one = counts[(slice(None), *[slice(kinds)] * len(axes))]
            for axis in axes:
                one = one.repeat_interleave(more // kinds, dim=axis) * (kinds / more)
            counts[(slice(None), *[slice(more)] * len(axes))] = one * (1 + SPREAD * (2 * torch.rand_like(one) - 1))

    # ---- the tree of a sentence ----

    def _tree(self, grammars: Sequence[Grammar], keys: WordKeys, may: Bool[Tensor, "words tags"]) -> list[int]:
        symbols, count = self.symbols, len(may)
        leaves = self._leaves_of(grammars, keys, may)
        shares = self._shares(grammars, leaves)
        best, labels = shares[..., symbols.constituents].max(dim=-1)
        worth = (best - CERTAIN).clamp(min=0)
        found = [
            TreeSpan(start, end, symbols.chains[int(labels[start, end])])
            for start, end in best_trees(worth[None], [count])[0]
            if worth[start, end] > 0 or (start, end) == (0, count)
        ]
        words = torch.arange(count, device=may.device)
        tagged = shares[words, words + 1, : symbols.tags] + leaves[0][..., 0] * UNSEEN  # where there is no tree
        tags = tagged.masked_fill(~may, -1).argmax(dim=1) + symbols.brackets.words.start
        return symbols.brackets.write(found, tags.tolist())

    def _shares(self, grammars: Sequence[Grammar], leaves: Sequence[Tensor]) -> Posteriors:
        """The posteriors of all symbols; none where there is no tree."""
        shares = posteriors(grammars[0], self.symbols, leaves[0][..., 0]).nan_to_num(0.0)
        for grammar, words, kept in zip(grammars[1:], leaves[1:], KEPT, strict=False):
            finer = posteriors_of_kinds(grammar, self.symbols, words, shares > kept)
            shares = finer if bool(finer.isfinite().all()) else shares
        return shares

    def _leaves_of(self, grammars: Sequence[Grammar], keys: WordKeys, may: Tensor) -> list[Tensor]:
        return [self._leaves(grammar, keys, may) for grammar in grammars]

    def _leaves(self, grammar: Grammar, keys: WordKeys, may: Tensor) -> Float[Tensor, "words tags kinds"]:
        """The probabilities of words under the tags that they may have, the largest of each word scaled up."""
        tags = torch.arange(self.symbols.tags, device=may.device).expand_as(may)
        words, endings = (one[:, None].expand_as(may) for one in keys)
        found = (
            grammar.words(*(one.flatten() for one in (words, endings, tags))).unflatten(0, may.shape) * may[..., None]
        )
        return found * (SCALE / found.amax(dim=(1, 2), keepdim=True).clamp(min=UNSEEN))
