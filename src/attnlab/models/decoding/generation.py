"""Writing sequences with a model that gives the logits of each next token: the likeliest ones, or random ones.

A search knows a `Writer` only: something that is told which token was chosen for every row, and answers with the
logits of the next. Whether keys and values are kept or everything is computed again is the writer's affair, and so
is how many models it asks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.core.errors import SpecError
from attnlab.core.sizes import WIDEST_BEAM, require_not_negative, require_positive

COLDEST = 1e-6  # the lowest temperature: logits over a lower one may overflow, and it draws as 0 does


class Writer(Protocol):
    """Continue several sequences by a token each."""

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Add a token to every sequence and return the logits of the next."""
        ...

    def select(self, rows: Int[Tensor, " new"]) -> None:
        """Keep some sequences, in a new order; one may be taken several times."""
        ...


@final
@dataclass(frozen=True)
class EndMarks:
    """Say which tokens begin and end a sequence."""

    begin: int  # what every sequence starts from; it is not part of the result
    end: int  # what ends it; it is not part of the result


@final
@dataclass(frozen=True)
class Hypothesis:
    """Hold a sequence that was written."""

    tokens: tuple[int, ...]  # without begin and end
    log_probability: float  # of the sequence in nats, its end included if it came to one
    score: float  # the same over the length penalty: what hypotheses are ranked by
    ended: bool  # whether it came to an end by itself, before the longest length


def length_penalty(length: int, alpha: float) -> float:
    """What the log probability of a sequence is divided by.

    References
    ----------
    .. [1] Wu et al., 2016, arXiv:1609.08144, equation 14.
    """
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def beam_search(
    writer: Writer,
    sentences: int,
    marks: EndMarks,
    *,
    beam: int = 4,
    alpha: float = 0.6,
    max_length: int | Sequence[int] = 100,
) -> list[list[Hypothesis]]:
    """Write the likeliest sequences, keeping the best beginnings of each.

    `beam` beginnings are kept of each sentence; 1 is greedy. `alpha` is the exponent of the length penalty,
    `max_length` the longest sequence, its end included, of all or of each sentence. Gives for each sentence its
    hypotheses, the best first: as many as `beam`, or fewer where the length ran out. Those that had to be cut come
    after all that ended, since they never paid for an end.

    Notes
    -----
    A sentence is done when as many of its beginnings have ended as are kept; it then leaves the batch.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 6.1 (beam 4, alpha 0.6).
    """
    limits = [max_length] * sentences if isinstance(max_length, int) else list(max_length)
    require_positive("beam", beam, WIDEST_BEAM)
    require_not_negative("alpha", alpha)
    if any(limit < 1 for limit in limits):
        raise SpecError(f"max_length must be at least 1; got {max_length}")
    if len(limits) != sentences:
        raise SpecError(f"max_length must be one number, or one for each of {sentences} sentences; got {len(limits)}")
    if not sentences:
        return []
    search = _Beams(limits, beam, alpha, marks)
    logits = writer.advance(torch.full((sentences,), marks.begin))
    writer.select(torch.arange(sentences).repeat_interleave(beam))
    logits = logits.repeat_interleave(beam, dim=0)
    for length in range(1, max(limits) + 1):
        rows = search.extend(logits.float().log_softmax(dim=-1).cpu(), length)
        if not search.going:
            break
        writer.select(rows)
        logits = writer.advance(search.last_tokens())
    return [sorted(found, key=lambda one: (not one.ended, -one.score)) for found in search.found]


@final
class _Beams:
    """Keep the best beginnings of every sentence that is not done; each has a limit of its own for its length."""

    def __init__(self, limits: Sequence[int], beam: int, alpha: float, marks: EndMarks) -> None:
        self.limits, self.beam, self.alpha, self.marks = limits, beam, alpha, marks
        sentences = len(limits)
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]
        self.going = list(range(sentences))
        self.scores = torch.full((sentences, beam), -torch.inf)
        self.scores[:, 0] = 0.0  # all beginnings are alike at first: one of them counts
        self.tokens = torch.empty(sentences, beam, 0, dtype=torch.long)

    def extend(self, log_probabilities: Float[Tensor, "rows vocab"], length: int) -> Tensor:
        """Take the best tokens, note what has ended, and return which rows go on."""
        count, vocab = len(self.going), log_probabilities.shape[-1]
        totals = self.scores[..., None] + log_probabilities.view(count, self.beam, vocab)
        best, places = totals.flatten(1).topk(min(2 * self.beam, self.beam * vocab), dim=1)  # (sentences, candidates)
        beams, tokens = places // vocab, places % vocab
        ends = tokens == self.marks.end
        self._note_ended(best, beams, ends, length)
        kept = best.masked_fill(ends, -torch.inf).topk(min(self.beam, best.shape[1]), dim=1)
        chosen = beams.gather(1, kept.indices)
        self.scores = kept.values
        history = self.tokens.gather(1, chosen[..., None].expand(-1, -1, self.tokens.shape[-1]))
        self.tokens = torch.cat((history, tokens.gather(1, kept.indices)[..., None]), dim=-1)
        self._cut(length)
        stays = torch.tensor([len(self.found[one]) < self.beam and length < self.limits[one] for one in self.going])
        rows = (torch.arange(count)[:, None] * self.beam + chosen)[stays].flatten()
        self.going = list(itertools.compress(self.going, stays.tolist()))
        self.scores, self.tokens = self.scores[stays], self.tokens[stays]
        return rows

    def last_tokens(self) -> Int[Tensor, " rows"]:
        """The token that every beginning was extended by."""
        return self.tokens[..., -1].flatten()

    def _note_ended(self, best: Tensor, beams: Tensor, ends: Tensor, length: int) -> None:
        """Add hypotheses that end among the best candidates, as many as there are beams."""
        for place, rank in ends[:, : self.beam].nonzero().tolist():
            found = self.found[self.going[place]]
            if len(found) < self.beam and best[place, rank] > -torch.inf:
                tokens = self.tokens[place, beams[place, rank]].tolist()
                found.append(self._hypothesis(tokens, best[place, rank].item(), length, ended=True))

    def _cut(self, length: int) -> None:
        """Take what has not ended as it is, where a sentence may not become longer and has too few that have."""
        for place, sentence in enumerate(self.going):
            if length < self.limits[sentence]:
                continue
            found = self.found[sentence]
            for score, tokens in zip(self.scores[place].tolist(), self.tokens[place].tolist(), strict=True):
                if len(found) < self.beam and score > -torch.inf:
                    found.append(self._hypothesis(tokens, score, length, ended=False))

    def _hypothesis(self, tokens: Sequence[int], log_probability: float, length: int, *, ended: bool) -> Hypothesis:
        return Hypothesis(tuple(tokens), log_probability, log_probability / length_penalty(length, self.alpha), ended)


@torch.no_grad()
def sample(
    writer: Writer,
    first: Int[Tensor, " rows"],
    *,
    length: int,
    choose: Callable[[Float[Tensor, "rows vocab_size"]], Int[Tensor, " rows"]],
    end: int | None = None,
) -> Int[Tensor, "rows length"]:
    """Write sequences token by token, as many as `length`, or fewer where all rows came to an end.

    `first` is the last token that is given for each row; what stands before it the writer has seen. `choose` takes
    tokens by their logits, such as `Chooser`. After the token `end` a row is filled up with it.
    """
    written, tokens = [], first
    ended = torch.zeros(len(first), dtype=torch.bool)
    for _ in range(length):
        tokens = choose(writer.advance(tokens)).cpu()
        if end is not None:
            tokens = tokens.masked_fill(ended, end)
            ended |= tokens == end
        written.append(tokens)
        if ended.all():
            break
    return torch.stack(written, dim=1) if written else torch.empty(len(first), 0, dtype=torch.long)


@final
@dataclass(frozen=True)
class Chooser:
    """Choose a token at random by its probability.

    Raises
    ------
    SpecError
        If a value lies outside its range.

    References
    ----------
    .. [1] Fan, Lewis, Dauphin, 2018, arXiv:1805.04833 (top k).
    .. [2] Holtzman et al., 2020, arXiv:1904.09751 (top p).
    """

    temperature: float = 1.0  # logits are divided by it; 0 takes the likeliest token
    top_k: int | None = None  # only so many of the likeliest tokens may be chosen
    top_p: float | None = None
    """Only the likeliest tokens that together have this probability may be chosen, at least one."""
    generator: torch.Generator | None = None  # where random numbers come from

    def __post_init__(self) -> None:
        require_not_negative("temperature", self.temperature)
        if 0.0 < self.temperature < COLDEST:
            raise SpecError(f"temperature must be 0 or at least {COLDEST:g}; got {self.temperature:g}")
        if self.top_k is not None:
            require_positive("top_k", self.top_k)
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise SpecError(f"top_p must lie in (0, 1]; got {self.top_p}")

    def __call__(self, logits: Float[Tensor, "rows vocab_size"]) -> Int[Tensor, " rows"]:
        """One token per row."""
        logits = logits.float().cpu()
        if self.temperature == 0.0:
            return logits.argmax(dim=-1)
        logits = logits / self.temperature
        if self.top_k is not None:
            least = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None:
            logits = self._nucleus(logits, self.top_p)
        return torch.multinomial(logits.softmax(dim=-1), 1, generator=self.generator)[:, 0]

    @staticmethod
    def _nucleus(logits: Tensor, share: float) -> Tensor:
        ordered, places = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        ordered = ordered.masked_fill(before >= share, -torch.inf)
        return torch.empty_like(logits).scatter(-1, places, ordered)
