"""The chart parser that reads with attention: a score for every label of every span, and the best tree of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.build import Spec, look_up
from attnlab.core.errors import SpecError
from attnlab.core.sizes import check_positive, require_known
from attnlab.models.parsers.brackets import Brackets, TreeSpan
from attnlab.models.parsers.chart import best_trees, inside
from attnlab.models.parsers.parser import FORBIDDEN, AbstractParser, Allowed, Losses, WordTable
from attnlab.models.stacks import Norm, Stack
from attnlab.models.translator import Source, Target
from attnlab.nn.init import INITS
from attnlab.nn.kernels.dropout import Dropout

NO_LABEL = 0
"""Number of what is no constituent; it has the score 0 everywhere."""
Objective = Literal["margin", "likelihood"]
LabelScores = Float[Tensor, "batch places places labels"]


@final
class SelfAttentiveParser(AbstractParser):
    """Score every label of every span from what an encoder with attention makes of its ends.

    What is not said here is said of `AbstractParser`.

    Parameters
    ----------
    chains : sequence of sequence of int
        The opening tokens of brackets that may stand around the same words, the outermost first.
    max_length : int
        Words of the longest sentence, at least.
    d_model : int, default 256
        Width of the residual stream.
    n_layers : int, default 4
        Number of blocks.
    mixer : Spec or list of Spec, default "attention"
        What mixes positions; a list gives one per layer.
    feedforward : Spec, default "relu"
        Feed-forward sublayer.
    norm : {"pre", "post", "none"}, default "pre"
        Place of the norm.
    d_span : int, default 128
        Width of the layer between a span and its scores.
    dropout : float, default 0.1
        At the words, of spans, and whatever a block does with it.
    positions : Spec, default "learned"
        Where a word stands.
    objective : {"margin", "likelihood"}, default "margin"
        The loss of a tree: how far the best other one comes too near to it, each wrong label counting 1, or minus the
        logarithm of its share of all trees.
    init : str, default "xavier"
        Scheme of the initial weights.

    Raises
    ------
    SpecError
        If a size is not positive, the objective is unknown, or a part cannot be built.

    Notes
    -----
    A tree's score is the sum over its spans; one around no constituent has 0, so that trees need not be binary. Of the
    state of each word one half says what is before a place, the other what is behind it; a span is the difference of
    its ends. Tags are scored from the states, and their cross-entropy is added to the loss. Differs from [1]_: words
    are sums of pieces, content and position are not kept apart, and tags are learned, not read. "likelihood" is that of
    [2]_ and counts a tree once for each way to make it binary.

    References
    ----------
    .. [1] Kitaev, Klein, 2018, "Constituency parsing with a self-attentive encoder", arXiv:1805.01052.
    .. [2] Zhang, Zhou, Li, 2020, "Fast and accurate neural CRF constituency parsing", arXiv:2008.03736.
    """

    def __init__(
        self,
        source_vocab_size: int,
        max_length: int,
        *,
        word_starts: Sequence[int],
        brackets: Mapping[str, int],
        chains: Sequence[Sequence[int]],
        pad: int = 0,
        d_model: int = 256,
        n_layers: int = 4,
        mixer: Spec | Sequence[Spec] = "attention",
        feedforward: Spec = "relu",
        norm: Norm = "pre",
        d_span: int = 128,
        dropout: float = 0.1,
        positions: Spec = "learned",
        objective: Objective = "margin",
        init: str = "xavier",
    ) -> None:
        super().__init__()
        check_positive({"source_vocab_size": source_vocab_size, "d_model": d_model, "d_span": d_span})
        require_known("objective", objective, ("margin", "likelihood"))
        self.brackets, self.objective = Brackets.of(brackets), objective
        self.chains = [tuple(chain) for chain in chains]
        self.numbers = {chain: number for number, chain in enumerate(self.chains, NO_LABEL + 1)}
        self.stack = Stack(
            d_model,
            max_length + 2,
            n_layers=n_layers,
            mixer=mixer,
            block="transformer",
            wiring={"feedforward": feedforward, "norm": norm},
            dropout=dropout,
            positions=positions,
            causal=False,
        )
        half = d_model // 2
        self.tags = nn.Linear(d_model, self.brackets.tags)
        self.labels = nn.Sequential(
            nn.Linear(2 * half, d_span), nn.LayerNorm(d_span), nn.ReLU(), nn.Linear(d_span, len(self.chains))
        )
        look_up(init, INITS, "init")(self, n_layers)
        self.words = WordTable(source_vocab_size, d_model, word_starts=word_starts, pad=pad)
        self.ends = nn.Parameter(torch.randn(2, d_model) * d_model**-0.5)  # what stands before and behind a sentence
        self.drop = Dropout(dropout)

    def forward(self, source: Source, target: Target) -> Losses:
        """How far the tree of each sentence falls short."""
        read = [self.brackets.read(tokens) for tokens in target.tolist()]
        counts = [max(len(tags), 1) for _, tags in read]
        states, scores = self._scores(source, counts)
        tags = torch.full((len(read), max(counts)), -100)
        for row, (_, found) in zip(tags, read, strict=True):
            row[: len(found)] = torch.tensor(found) - self.brackets.words.start
        tagging = nn.functional.cross_entropy(
            self.tags(states).transpose(1, 2), tags.to(source.device), reduction="none"
        ).sum(dim=1)
        gold = self._gold([spans for spans, _ in read], max(counts) + 1).to(source.device)
        return tagging + self._tree_losses(scores, gold, counts)

    def trees(self, source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the best tree over each sentence."""
        return self.trees_with((), source, allowed)

    @torch.no_grad()
    def trees_with(self, others: Sequence[nn.Module], source: Source, allowed: Allowed) -> list[list[int]]:
        """The tokens of the tree over each sentence that has the highest mean score of this model and others."""
        models: list[Any] = [self, *others]
        if any(type(one) is not type(self) or one.chains != self.chains for one in models):
            raise SpecError("SelfAttentiveParser finds trees together with others of its kind and labels alone")
        counts = allowed.any(dim=-1).sum(dim=1).tolist()
        read = [(one, *one._scores(source, counts)) for one in models]
        best, labels = torch.stack([scores for _, _, scores in read]).mean(dim=0).max(dim=-1)
        spans, labels = best_trees(best, counts), labels.cpu().numpy()
        tagged = torch.stack([one.tags(states).log_softmax(dim=-1) for one, states, _ in read]).mean(dim=0)
        words = self.brackets.words
        masked = tagged.masked_fill(~allowed[..., words.start : words.stop].to(tagged.device), FORBIDDEN)
        tags = (masked.argmax(dim=-1) + words.start).tolist()
        found = []
        for row, (some, count) in enumerate(zip(spans, counts, strict=True)):
            named = [(start, end, labels[row, start, end]) for start, end in some]
            kept = [TreeSpan(start, end, self.chains[one - 1]) for start, end, one in named if one != NO_LABEL]
            found.append(self.brackets.write(kept, tags[row][:count]))
        return found

    def _scores(self, source: Source, counts: Sequence[int]) -> tuple[Float[Tensor, "batch words d"], LabelScores]:
        """The states of the words, and the scores of every label of every span."""
        words = self.words(source, most := max(counts))
        lengths = torch.tensor(counts, device=source.device)[:, None]
        sides = self.ends[:, None, None].expand(-1, len(source), 1, -1)
        x = torch.cat((sides[0], words, torch.zeros_like(sides[0])), dim=1)
        places = torch.arange(most + 2, device=source.device)
        x = torch.where((places == lengths + 1)[..., None], sides[1], x)
        x = self.stack(self.drop(x), places <= lengths + 1)
        half = x.shape[-1] // 2
        place = torch.cat((x[:, :-1, :half], x[:, 1:, half : 2 * half]), dim=-1)  # (batch, places, 2 half)
        starts, ends = torch.triu_indices(most + 1, most + 1, 1, device=source.device)
        scored = self.labels(self.drop(place[:, ends] - place[:, starts]))  # (batch, spans, labels)
        scores = scored.new_zeros(len(source), most + 1, most + 1, len(self.chains) + 1)
        scores[:, starts, ends, NO_LABEL + 1 :] = scored
        scores[torch.arange(len(source)), 0, lengths[:, 0], NO_LABEL] = FORBIDDEN
        return x[:, 1:-1], scores

    def _gold(self, trees: Sequence[Sequence[TreeSpan]], places: int) -> Int[Tensor, "batch places places"]:
        """The label of every span; brackets that were never seen together count as none, but for a whole sentence."""
        found = torch.zeros(len(trees), places, places, dtype=torch.long)
        for row, spans in zip(found, trees, strict=True):
            for span in spans:
                row[span.start, span.end] = self.numbers.get(span.chain, NO_LABEL)
            if spans and row[spans[0].start, spans[0].end] == NO_LABEL:
                row[spans[0].start, spans[0].end] = NO_LABEL + 1
        return found

    def _tree_losses(self, scores: LabelScores, gold: Int[Tensor, "b p p"], counts: Sequence[int]) -> Losses:
        rows = torch.arange(len(counts))
        of_gold = scores.gather(-1, gold[..., None])[..., 0]
        is_label = gold != NO_LABEL
        right = (of_gold * is_label).flatten(1).sum(dim=1)
        if self.objective == "likelihood":
            totals = inside(scores.logsumexp(dim=-1), lambda ways: ways.logsumexp(dim=-1))
            return totals[rows, 0, counts] - right
        best, labels = (
            scores.detach().scatter_add(-1, gold[..., None], -torch.ones_like(of_gold)[..., None]).max(dim=-1)
        )
        taken = torch.zeros_like(is_label)
        for row, spans in zip(taken, best_trees(best + 1, counts), strict=True):
            row[tuple(torch.tensor(spans, device=row.device).T)] = True
        picked = scores.gather(-1, labels[..., None])[..., 0] + (labels != gold)
        return (picked * taken).flatten(1).sum(dim=1) - right
