"""Grammars that are counted: each rule has a probability, and each label has kinds that no treebank tells apart."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.sizes import require_not_negative, require_positive
from attnlab.models.parsers.brackets import Brackets, Chain, TreeSpan
from attnlab.models.parsers.chart import best_trees
from attnlab.models.parsers.counts import FREE, UNSEEN, Counts, Registry, probabilities
from attnlab.models.parsers.forest import Level, inside
from attnlab.models.parsers.parser import AbstractParser, Allowed, Losses, WordPlaces
from attnlab.models.translator import Source, Target

SPREAD = 0.05
"""By which share the halves of a count differ at most after a split."""
FIRST = 1e-6
"""Every count before training, far below that of what is seen once."""
KEPT = 1e-4
"""Share of all trees that a label must have a part in to be looked at with its kinds."""
CERTAIN = 0.25
"""Share of all trees that a constituent must have a part in to be written."""
SCALE = 16.0
"""What each word is multiplied by, beside what makes its likeliest tag 1: rules take it away again."""
BASE, BITS = 1_000_003, 2**48 - 1
"""Of the numbers that stand for words: sums of their pieces, each times a power of the base, below 2^48."""


@final
class _Keys(NamedTuple):
    """Number words and their last pieces."""

    words: Int[Tensor, "batch words"]
    endings: Int[Tensor, "batch words"]


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
    Its parameters are counts, to be learned with the optimizer ``em``; the loss is minus the logarithm of the
    probability of tree and words. Constituents of more than two parts are made binary from the right, with one symbol
    for what is left of each label. A split halves every count and moves the halves a little apart. A word that was
    never met has the probability of its last piece under a tag, which is learned from words when they are met first.
    Parsing looks for labels with the grammar without kinds, and then only at those that have a part in enough trees.
    The tree is the one whose constituents have the largest posteriors together, less 0.25 each. Differs from [1]_:
    batches, not the whole treebank, for each step of EM; splits are not merged again; the objective of [3]_ in place of
    products of rules.

    References
    ----------
    .. [1] Petrov, Barrett, Thibaux, Klein, 2006, "Learning accurate, compact, and interpretable tree annotation".
    .. [2] Matsuzaki, Miyao, Tsujii, 2005, "Probabilistic CFG with latent annotations".
    .. [3] Goodman, 1996, "Parsing algorithms and metrics", arXiv:cmp-lg/9605036.
    """

    seen: Int[Tensor, ""]

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
        self.brackets, self.splits, self.split_every = Brackets.of(brackets), splits, split_every
        self.chains = [tuple(chain) for chain in chains]
        self.n_tags, self.n_chains = self.brackets.tags, len(self.chains)
        self.symbols = {chain: self.n_tags + number for number, chain in enumerate(self.chains)}
        self.n_symbols = self.n_tags + self.n_chains + self.brackets.labels  # tags, chains, what is left of labels
        self.places = WordPlaces(source_vocab_size, word_starts=word_starts, pad=pad)
        self.rules, self.lexicon = Registry(n_rules), Registry(n_words)
        kinds = 2**splits
        self.root = nn.Parameter(torch.full((self.n_symbols, kinds), FIRST))
        self.binary = nn.Parameter(torch.full((n_rules, kinds, kinds, kinds), FIRST))
        self.unary = nn.Parameter(torch.full((self.n_chains * self.n_tags, kinds, kinds), FIRST))
        self.words = nn.Parameter(torch.full((n_words, kinds), FIRST))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, source: Source, target: Target) -> Losses:
        """Minus the logarithm of the probability of each tree with its words."""
        forest = _Forest(self)
        for tokens in target.tolist():
            forest.grow(*self.brackets.read(tokens))
        keys = self._keys(source, max(place for _, place, _ in forest.leaves) + 1)
        rows, places, tags = torch.tensor(forest.leaves, device=source.device).T
        words, endings = keys.words[rows, places] * self.n_tags + tags, keys.endings[rows, places] * self.n_tags + tags
        if self.training:
            self.rules.add(torch.tensor(forest.keys(), dtype=torch.long, device=source.device))
            self.lexicon.add(endings)
            self._split(len(source))
        known = self.lexicon.find(words)
        if self.training:
            self.lexicon.add(words)  # from now on: here they are new
        chosen = torch.where(known == self.lexicon.unknown, self.lexicon.find(endings), known)
        table = self._table(self._counts())
        leaves = table.words(chosen)
        scales = SCALE / leaves.detach().amax(dim=1)
        tops, levels = forest.levels(self.rules)
        weights = leaves.new_ones(len(leaves) + sum(level.size for level in levels))
        values = inside(leaves * scales[:, None], levels, unary=table.unary, binary=table.binary, weights=weights)
        found = (values[tops] * table.root[forest.symbols()]).sum(dim=1).clamp(min=1e-300).log()
        found = found - scales.new_zeros(len(source)).index_add(0, rows, scales.log())
        return -found.float()

    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the best tree over each sentence."""
        words = self.brackets.words
        may = allowed[..., words.start : words.stop].to(source.device)
        counts = may.any(dim=-1).sum(dim=1).tolist()
        keys = self._keys(source, max(counts))
        with torch.no_grad():
            fine = self._counts()
            tables = [self._table(fine.without_kinds())] + [self._table(fine)] * (fine.root.shape[1] > 1)
        return [
            self._tree(tables, _Keys(keys.words[row, :count], keys.endings[row, :count]), may[row, :count])
            for row, count in enumerate(counts)
        ]

    def symbol_of(self, chain: Chain) -> int:
        """The symbol of some brackets; that of the outermost, or the most frequent one, where it was never seen."""
        return self.symbols.get(chain, self.symbols.get(chain[:1], self.n_tags))

    # ---- what is counted ----

    def _counts(self) -> Counts:
        """The counts by the kinds that there are so far."""
        kinds = 2 ** min(self.splits, int(self.seen) // self.split_every)
        keys, words = self.rules.keys, self.lexicon.keys
        return Counts(
            self.root[:, :kinds],
            self.binary[:, :kinds, :kinds, :kinds],
            self.unary[:, :kinds, :kinds],
            self.words[:, :kinds],
            torch.where(keys == FREE, self.n_symbols, keys // self.n_symbols**2),
            self.n_tags + torch.arange(len(self.unary), device=keys.device) // self.n_tags,
            torch.where(words == FREE, self.n_symbols, words % self.n_tags),
        )

    def _table(self, counts: Counts) -> _Table:
        totals = counts.totals()
        of = functools.partial(probabilities, totals=totals)
        return _Table(
            counts.root.double() / counts.root.detach().double().sum(),
            lambda rules: of(counts.binary, counts.binary_parents, rules=rules),
            lambda rules: of(counts.unary, counts.unary_parents, rules=rules),
            lambda rules: of(counts.words, counts.word_parents, rules=rules),
        )

    @torch.no_grad()
    def _split(self, trees: int) -> None:
        """Count trees, and split all kinds when enough were seen."""
        kinds, more = (2 ** min(self.splits, int(seen) // self.split_every) for seen in (self.seen, self.seen + trees))
        self.seen += trees
        for counts in (self.root, self.binary, self.unary, self.words) if more > kinds else ():
            axes = range(1, counts.ndim)
            one = counts[(slice(None), *[slice(kinds)] * len(axes))]
            for axis in axes:
                one = one.repeat_interleave(more // kinds, dim=axis) * (kinds / more)
            counts[(slice(None), *[slice(more)] * len(axes))] = one * (1 + SPREAD * (2 * torch.rand_like(one) - 1))

    def _keys(self, source: Source, words: int) -> _Keys:
        """Numbers of so many words of each sentence by their pieces, and by the last of these."""
        places = self.places(source)
        real, at = places >= 0, places.clamp(0, words - 1)
        order = torch.arange(source.shape[1], device=source.device).expand_as(source)
        powers = torch.full((source.shape[1],), BASE, device=source.device).cumprod(0)
        whole = torch.zeros(len(source), words, dtype=torch.long, device=source.device)
        first = torch.full_like(whole, source.shape[1] - 1).scatter_reduce(
            1, at, torch.where(real, order, 10**9), "amin"
        )
        last = torch.zeros_like(whole).scatter_reduce(1, at, torch.where(real, order, -1), "amax")
        inner = torch.where(real, (source + 1) * powers[(order - first.gather(1, at)).clamp(min=0)], 0)
        whole = whole.scatter_add(1, at, inner) & BITS
        endings = 2 * source.gather(1, last) + (last > first)
        return _Keys(whole, endings + BITS + 1)

    # ---- the tree of a sentence ----

    def _tree(self, tables: Sequence[_Table], keys: _Keys, may: Bool[Tensor, "words tags"]) -> list[int]:
        leaves = [self._leaves(table, keys, may) for table in tables]
        posteriors = self._posteriors(tables[0], leaves[0][..., 0])
        if len(tables) > 1 and bool(posteriors.isfinite().all()):
            finer = self._posteriors_of_kinds(tables[1], leaves[1], posteriors > KEPT)
            posteriors = finer if bool(finer.isfinite().all()) else posteriors
        posteriors = posteriors.nan_to_num(0.0)  # no tree at all: the words side by side
        count, tags, chains = len(may), self.n_tags, slice(self.n_tags, self.n_tags + self.n_chains)
        best, labels = posteriors[..., chains].max(dim=-1)
        worth = (best - CERTAIN).clamp(min=0)
        found = [
            TreeSpan(start, end, self.chains[int(labels[start, end])])
            for start, end in best_trees(worth[None], [count])[0]
            if worth[start, end] > 0 or (start, end) == (0, count)
        ]
        words = torch.arange(count, device=may.device)
        likeliest = (posteriors[words, words + 1, :tags] + leaves[0][..., 0] * 1e-9).masked_fill(~may, -1).argmax(dim=1)
        return self.brackets.write(found, (likeliest + self.brackets.words.start).tolist())

    def _leaves(self, table: _Table, keys: _Keys, may: Tensor) -> Float[Tensor, "words tags kinds"]:
        """The probabilities of words under the tags that they may have, the largest of each word scaled up."""
        tags = torch.arange(self.n_tags, device=may.device)
        known = self.lexicon.find(keys.words[:, None] * self.n_tags + tags)
        new = (known == self.lexicon.unknown).all(dim=1, keepdim=True)
        chosen = torch.where(new, self.lexicon.find(keys.endings[:, None] * self.n_tags + tags), known)
        found = table.words(chosen.flatten()).unflatten(0, chosen.shape) * may[..., None]
        return found * (SCALE / found.amax(dim=(1, 2), keepdim=True).clamp(min=UNSEEN))

    @torch.no_grad()
    def _posteriors(self, table: _Table, leaves: Float[Tensor, "words tags"]) -> Float[Tensor, "places places symbols"]:
        """The share of trees that each symbol has a part in, at every span, without kinds."""
        used = (self.rules.keys != FREE).nonzero()[:, 0]
        parents, lefts, rights = self._parts(self.rules.keys[used])
        rule = table.binary(used)[:, 0, 0, 0]
        unary = table.unary(torch.arange(len(self.unary), device=leaves.device)).view(self.n_chains, self.n_tags)
        (first, lefts), (second, rights) = (side.unique(return_inverse=True) for side in (lefts, rights))
        both = lefts * len(second) + rights
        places, count, tags = len(leaves) + 1, self.n_symbols, self.n_tags
        below = leaves.new_zeros(places, places, count)
        by_start, by_end = (leaves.new_zeros(places, places, len(side)) for side in (first, second))  # as in `chart`
        for width in range(1, places):
            spans = torch.arange(places - width, device=leaves.device)
            if width > 1:
                left, right = by_start[: len(spans), 1:width], by_end[width:, 1:width].flip(1)
                ways = torch.einsum("skl,skr->slr", left, right).flatten(1).index_select(1, both) * rule
                found = leaves.new_zeros(len(spans), count).index_add(1, parents, ways)
            else:
                found = nn.functional.pad(torch.cat((leaves, leaves @ unary.T), dim=1), (0, self.brackets.labels))
            below[spans, spans + width] = found
            by_start[spans, width], by_end[spans + width, width] = found[:, first], found[:, second]
        total = below[0, -1] @ table.root[:, 0]
        posteriors = torch.zeros_like(below)
        above_start, above_end = torch.zeros_like(by_start), torch.zeros_like(by_end)
        for width in range(places - 1, 0, -1):
            spans = torch.arange(places - width, device=leaves.device)
            outside = leaves.new_zeros(len(spans), count)
            outside[:, first] += above_start[spans, width]
            outside[:, second] += above_end[spans + width, width]
            if width == places - 1:
                outside += table.root[:, 0] / total
            if width > 1:
                pairs = leaves.new_zeros(len(spans), len(first), len(second))
                pairs.view(len(spans), -1).index_add_(1, both, outside.index_select(1, parents) * rule)
                left, right = by_start[: len(spans), 1:width], by_end[width:, 1:width].flip(1)
                above_start[: len(spans), 1:width] += torch.einsum("slr,skr->skl", pairs, right)
                above_end[width:, 1:width] += torch.einsum("slr,skl->skr", pairs, left).flip(1)
            else:
                outside[:, :tags] += outside[:, tags : tags + self.n_chains] @ unary
            posteriors[spans, spans + width] = outside * below[spans, spans + width]
        return posteriors

    def _parts(self, keys: Int[Tensor, " rules"]) -> tuple[Tensor, Tensor, Tensor]:
        """Parent, left and right symbol of binary rules."""
        return keys // self.n_symbols**2, keys // self.n_symbols % self.n_symbols, keys % self.n_symbols

    def _posteriors_of_kinds(
        self, table: _Table, leaves: Float[Tensor, "words tags kinds"], alive: Bool[Tensor, "places places symbols"]
    ) -> Float[Tensor, "places places symbols"]:
        """The same with kinds, of symbols that are alive."""
        numbers = torch.full(alive.shape, -1, device=alive.device)
        used = (self.rules.keys != FREE).nonzero()[:, 0]
        parents, lefts, rights = self._parts(self.rules.keys[used])
        words = torch.arange(len(leaves), device=alive.device)
        tagged = (alive[words, words + 1] * (torch.arange(self.n_symbols, device=alive.device) < self.n_tags)).nonzero()
        numbers[tagged[:, 0], tagged[:, 0] + 1, tagged[:, 1]] = torch.arange(len(tagged), device=alive.device)
        nodes, levels = [torch.stack((tagged[:, 0], tagged[:, 0] + 1, tagged[:, 1]), dim=1)], []
        for width in range(1, len(leaves) + 1):
            starts = torch.arange(len(leaves) + 1 - width, device=alive.device)
            here = alive[starts, starts + width].clone()
            here[:, : self.n_tags] = False
            start, symbol = here.nonzero().T
            first = sum(map(len, nodes))
            numbers[start, start + width, symbol] = first + torch.arange(len(start), device=alive.device)
            nodes.append(torch.stack((start, start + width, symbol), dim=1))
            unary, binary = self._no_ways(3), self._no_ways(4)
            if width == 1:
                chain = symbol - self.n_tags
                child = numbers[start, start + 1, : self.n_tags]  # (nodes, tags)
                node, tag = ((child >= 0) & (chain < self.n_chains)[:, None]).nonzero().T
                unary = torch.stack((node, child[node, tag], chain[node] * self.n_tags + tag), dim=1)
            else:
                cuts = starts[:, None] + torch.arange(1, width, device=alive.device)
                left, right = numbers[starts[:, None], cuts], numbers[cuts, starts[:, None] + width]
                ways = (left >= 0)[..., lefts] & (right >= 0)[..., rights] & here[:, None, parents]
                start, cut, rule = ways.nonzero().T
                node = numbers[start, start + width, parents[rule]] - first
                binary = torch.stack(
                    (node, left[start, cut, lefts[rule]], right[start, cut, rights[rule]], used[rule]), 1
                )
            levels.append(Level(len(nodes[-1]), unary, binary))
        every = torch.cat(nodes)
        with torch.enable_grad():
            weights = leaves.new_ones(len(every)).requires_grad_()
            values = inside(
                leaves[tagged[:, 0], tagged[:, 1]], levels, unary=table.unary, binary=table.binary, weights=weights
            )
            tops = (every[:, 0] == 0) & (every[:, 1] == len(leaves)) & (every[:, 2] >= self.n_tags)
            total = (values[tops] * table.root[every[tops, 2]]).sum().log()
            (shares,) = torch.autograd.grad(total, weights)
        found = torch.zeros(alive.shape, dtype=shares.dtype, device=shares.device)
        found[tuple(every.T)] = shares
        return found

    def _no_ways(self, columns: int) -> Int[Tensor, "0 columns"]:
        return torch.zeros(0, columns, dtype=torch.long, device=self.seen.device)


@final
class _Table(NamedTuple):
    """Give probabilities: of a symbol and kind at the root, and of rules and words by their numbers."""

    root: Float[Tensor, "symbols kinds"]
    binary: Callable[[Tensor], Tensor]
    unary: Callable[[Tensor], Tensor]
    words: Callable[[Tensor], Tensor]


@final
class _Forest:
    """Make trees binary, and lay out their nodes so that children come first."""

    def __init__(self, model: LatentPcfg) -> None:
        self._model = model
        self.leaves: list[tuple[int, int, int]] = []  # tree, word, tag
        self._made: list[tuple[int, ...]] = []  # of every node: nothing, child and rule, or left, right and key of rule
        self._heights: list[int] = []
        self._symbols: list[int] = []
        self.tops: list[int] = []  # of every tree

    def grow(self, spans: Sequence[TreeSpan], tags: Sequence[int]) -> None:
        """Add a tree; one without a top gets the most frequent one, one without words one that is unknown."""
        tags = tags or self._model.brackets.words[:1]
        whole = bool(spans) and (spans[0].start, spans[0].end) == (0, len(tags))
        around = [] if whole else [TreeSpan(0, len(tags), self._model.chains[0])]
        waiting = iter([*around, *spans])
        self.tops.append(self._constituent(next(waiting), _Ahead(waiting), tags))

    def keys(self) -> list[int]:
        """Those of binary rules."""
        return [made[2] for made in self._made if len(made) == 3]

    def symbols(self) -> list[int]:
        """Those of the tops."""
        return [self._symbols[top] for top in self.tops]

    def levels(self, rules: Registry) -> tuple[list[int], list[Level]]:
        """The numbers of the tops, and all nodes that are no leaves, by their height."""
        device = rules.keys.device
        by_height = defaultdict(list)
        for node, height in enumerate(self._heights):
            by_height[height].append(node)
        numbers = [0] * len(self._heights)
        for number, node in enumerate(node for height in sorted(by_height) for node in by_height[height]):
            numbers[node] = number
        levels = []
        for height in sorted(by_height)[1:]:
            nodes = by_height[height]
            made = [(place, *self._made[node]) for place, node in enumerate(nodes)]
            unary = [(place, numbers[one[0]], one[1]) for place, *one in made if len(one) == 2]
            binary = [(place, numbers[one[0]], numbers[one[1]], one[2]) for place, *one in made if len(one) == 3]
            pairs = torch.tensor(binary, dtype=torch.long, device=device).view(-1, 4)
            pairs[:, 3] = rules.find(pairs[:, 3])
            singles = torch.tensor(unary, dtype=torch.long, device=device).view(-1, 3)
            levels.append(Level(len(nodes), singles, pairs))
        return [numbers[top] for top in self.tops], levels

    def _constituent(self, span: TreeSpan, ahead: _Ahead, tags: Sequence[int]) -> int:
        model, place, parts = self._model, span.start, []
        while place < span.end:
            if ahead.next and ahead.next.start == place:
                below = ahead.take()
                parts.append(self._constituent(below, ahead, tags))
                place = below.end
            else:
                tag = tags[place] - model.brackets.words.start
                self.leaves.append((len(self.tops), place, tag))
                parts.append(self._add(tag))
                place += 1
        symbol = model.symbol_of(span.chain)
        if len(parts) == 1:
            return self._add(symbol, parts[0], (symbol - model.n_tags) * model.n_tags + self._symbols[parts[0]])
        rest = model.n_tags + model.n_chains + span.chain[-1] - model.brackets.opening.start
        right = parts[-1]
        for part in reversed(parts[1:-1]):
            right = self._pair(rest, part, right)
        return self._pair(symbol, parts[0], right)

    def _pair(self, symbol: int, left: int, right: int) -> int:
        count = self._model.n_symbols
        return self._add(symbol, left, right, (symbol * count + self._symbols[left]) * count + self._symbols[right])

    def _add(self, symbol: int, *made: int) -> int:
        self._made.append(made)
        self._symbols.append(symbol)
        self._heights.append(1 + max((self._heights[child] for child in made[:-1]), default=-1))
        return len(self._made) - 1


@final
class _Ahead:
    """Look at the next of some spans before it is taken."""

    def __init__(self, spans: Iterator[TreeSpan]) -> None:
        self._spans = spans
        self.next = next(spans, None)

    def take(self) -> TreeSpan:
        """The next one."""
        taken, self.next = self.next, next(self._spans, None)
        assert taken
        return taken
