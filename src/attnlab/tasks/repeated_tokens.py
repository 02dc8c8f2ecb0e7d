"""The `repeated-tokens` task: random tokens that end as an earlier place went on, so that only copying helps."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.core.contracts import Batch, Floor, Metric, Predict
from attnlab.core.errors import SpecError
from attnlab.core.generators import generator_for
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.codecs import CharacterCodec
from attnlab.tasks.next_tokens import NextTokens
from attnlab.text.characters import Vocabulary

UNIT = "nats/token"
HELD_OUT = 512  # sequences; with 64 tokens each, a standard error of 0.01 nats for guessing among 64
TOLERANCE = 0.02  # nats; as that of the bigram in `char-lm`
DIGITS = 4  # of a value in a report
FIRST_SYMBOL = ord("0")


def repeated_sequences(
    count: int, length: int, *, vocab_size: int, shortest: int, longest: int, generator: torch.Generator
) -> tuple[Int[Tensor, "count length"], Int[Tensor, "count 1"]]:
    """Draw random tokens of which the last repeat a segment that stands earlier.

    Parameters
    ----------
    count : int
        Number of sequences.
    length : int
        Tokens of one.
    vocab_size : int
        Number of distinct tokens, each as likely as any other.
    shortest, longest : int
        Length of the segment, uniform between both.
    generator : torch.Generator
        Where random numbers come from.

    Returns
    -------
    tokens : Tensor
        In int64, (count, length).
    repeated : Tensor
        Length of each segment, (count, 1).

    Notes
    -----
    The segment begins at a random place before its repetition, whole, so that both its length and how far back it
    stands differ between sequences: a head that looks a fixed distance back is rarely right.
    """
    repeated = torch.randint(shortest, longest + 1, (count, 1), generator=generator)
    places = length - 2 * repeated + 1
    back = repeated + (torch.rand(count, 1, generator=generator) * places).long()
    place = torch.arange(length)
    tokens = torch.randint(vocab_size, (count, length), generator=generator)
    return tokens.gather(1, torch.where(place < length - repeated, place, place - back)), repeated


def ideal_losses(
    tokens: Int[Tensor, "count length"], *, vocab_size: int, shortest: int, longest: int
) -> Float[Tensor, "count length"]:
    """The losses of a predictor that knows how sequences are drawn, and not which segment repeats.

    Parameters
    ----------
    tokens : Tensor
        From `repeated_sequences`.
    vocab_size, shortest, longest : int
        As they were drawn with.

    Returns
    -------
    Tensor
        In nats, float64, of each token given those before it: no other predictor has a smaller expected sum.

    Notes
    -----
    Each length and distance of a segment is a hypothesis; the probability of a token is the ratio of two marginal
    likelihoods (Bayes). Time O(count * length^2 * lengths), memory O(count * length^2).
    """
    count, length = tokens.shape
    evidence = []
    for repeated in range(shortest, longest + 1):
        begin, backs = length - repeated, range(repeated, length - repeated + 1)
        equal = [tokens[:, begin:] == tokens[:, begin - back : length - back] for back in backs]
        alive = torch.stack(equal, dim=1).double().cumprod(dim=2).mean(dim=1)  # (count, repeated)
        gained = torch.arange(1, repeated + 1, dtype=torch.float64) * math.log(vocab_size)
        evidence.append(torch.cat([torch.zeros(count, begin, dtype=torch.float64), alive.log() + gained], dim=1))
    ratio = torch.stack(evidence).logsumexp(dim=0) - math.log(len(evidence))  # (count, length), to uniform tokens
    return math.log(vocab_size) - ratio.diff(dim=1, prepend=torch.zeros(count, 1, dtype=torch.float64))


@final
class RepeatedTokens:
    """Predict each next token of random tokens that end by repeating a segment of themselves.

    Parameters
    ----------
    vocab_size : int
        Number of distinct tokens, each as likely as any other.
    context : int
        Tokens that a model is given; one more is predicted after them.
    shortest : int
        Fewest tokens of the segment.
    longest : int, optional
        Most tokens of it; half of the sequence unless given.
    batch : int
        Sequences of one training step.
    data_seed : int
        Seed of the held-out sequences; those of training are drawn anew in every step.

    Raises
    ------
    SpecError
        If a size is below 1, or a segment is shorter than 2 or does not fit into the sequence twice.

    Notes
    -----
    Where the segment stands and how long it is differs between sequences, so that neither position nor distance tells
    what comes next: a model must find where the last token stood before, and what came after it [1]_. Losses of the
    repeated part and of all before are separate metrics. The first token of the repetition, which nothing announces,
    counts to what comes before.

    References
    ----------
    .. [1] Olsson et al., 2022, arXiv:2209.11895 (induction heads; repeated random tokens).
    """

    name = "repeated-tokens"
    causal = True
    reads_bfloat16 = True
    judged = ()
    parts = ("validation",)
    metrics = (
        Metric("val_loss_repeated", UNIT, "lower", "cross-entropy of repeated tokens"),
        Metric("val_loss_first", UNIT, "lower", "cross-entropy of tokens that repeat nothing"),
        Metric("val_loss", UNIT, "lower", "cross-entropy"),
        Metric("val_accuracy_repeated", "fraction", "higher", "repeated tokens predicted right"),
    )

    def __init__(
        self,
        vocab_size: int = 64,
        context: int = 64,
        *,
        shortest: int = 8,
        longest: int | None = None,
        batch: int = 64,
        data_seed: int = 42,
    ) -> None:
        longest = (context + 1) // 2 if longest is None else longest
        for name, value in (("vocab_size", vocab_size), ("context", context), ("batch", batch)):
            require_positive(name, value)
        if not 2 <= shortest <= longest <= (context + 1) // 2:
            raise SpecError(
                "a segment needs 2 <= shortest <= longest <= (context + 1) / 2 tokens, so that it fits in twice; got "
                f"shortest={shortest}, longest={longest}, context={context}"
            )
        self.context, self.batch, self.data_seed = context, batch, data_seed
        self.tokens_per_step = batch * context
        self._drawn = {"vocab_size": vocab_size, "shortest": shortest, "longest": longest}
        every = filter(str.isalnum, map(chr, range(FIRST_SYMBOL, sys.maxunicode + 1)))
        symbols = list(itertools.islice(every, vocab_size))
        if len(symbols) < vocab_size:
            raise SpecError(f"vocab_size must be at most {len(symbols)}, the letters that there are; got {vocab_size}")
        self.codec = CharacterCodec(Vocabulary(["".join(symbols)]), context)
        self._next_tokens = NextTokens(vocab_size)
        self._tokens, repeated = self._sequences(HELD_OUT, generator_for(data_seed))
        predicted = torch.arange(1, context + 1)
        self._repeats = predicted > context + 1 - repeated  # (HELD_OUT, context)

    def _sequences(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return repeated_sequences(count, self.context + 1, **self._drawn, generator=generator)

    def train_batch(self, step: int, seed: int) -> Batch:
        """New sequences in every step."""
        return _batch(self._sequences(self.batch, generator_for(seed, step))[0])

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean cross-entropy of a batch in nats per token, those that repeat nothing included."""
        return self._next_tokens.mean_loss(outputs, batch.targets, label_smoothing)

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics over all held-out sequences."""
        require_known("part", part, self.parts)
        judged = [self._next_tokens.judge(predict, _batch(some)) for some in self._tokens.split(self.batch)]
        losses, likeliest = (torch.cat(of_each) for of_each in zip(*judged, strict=True))
        right = (likeliest == self._tokens[:, 1:])[self._repeats]
        return {**self._losses(losses.double()), "val_accuracy_repeated": right.double().mean().item()}

    def _losses(self, losses: Float[Tensor, "count context"]) -> dict[str, float]:
        """The mean losses of the held-out sequences, by metric."""
        of_part = {"_repeated": losses[self._repeats], "_first": losses[~self._repeats], "": losses}
        return {f"val_loss{part}": of_each.mean().item() for part, of_each in of_part.items()}

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        return {"vocab_size": self._drawn["vocab_size"], "max_length": self.context}

    @functools.cached_property
    def _ideal(self) -> dict[str, float]:
        return self._losses(ideal_losses(self._tokens, **self._drawn)[:, 1:])

    def floors(self) -> tuple[Floor, ...]:
        """Chance, a limit for what repeats nothing, and what a predictor reaches that knows how sequences are drawn."""
        repeated, first, whole, accuracy = (metric.name for metric in self.metrics)
        vocab_size = self._drawn["vocab_size"]
        guessing, uniform = math.log(vocab_size), f"uniform over {vocab_size} tokens"
        known = "Bayes' rule over all lengths and distances of the segment"
        return (
            *(Floor("chance", guessing, UNIT, name, "chance", source=uniform) for name in (repeated, first, whole)),
            Floor("chance", 1 / vocab_size, "fraction", accuracy, "chance", source=uniform),
            Floor("new tokens", guessing, UNIT, first, "floor", tolerance=TOLERANCE, source="drawn independently"),
            Floor(
                "one token (sees 1 token)", guessing, UNIT, repeated, "floor", reach=1, tolerance=TOLERANCE,
                source="a token by itself says nothing of the next",
            ),
            Floor("ideal predictor", self._ideal[whole], UNIT, whole, "floor", tolerance=TOLERANCE, source=known),
            *(
                Floor("ideal predictor", self._ideal[name], UNIT, name, "reference", source=f"{known}, for all tokens")
                for name in (repeated, first)
            ),
        )  # fmt: skip

    def alarms(self) -> tuple[str, ...]:
        """Nothing: there are more sequences than will ever be drawn twice."""
        return ()

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        return {
            "task": self.name,
            **self._drawn,
            "context": self.context,
            "parts": {"train": "drawn in every step", "validation": HELD_OUT},
            "data_seed": self.data_seed,
            "source": "generated",
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """The first held-out sequence as characters, with the model's surprise at each."""
        losses, likeliest = self._next_tokens.judge(predict, _batch(self._tokens[:1]))
        decode = self.codec.vocabulary.decode
        return {
            "kind": "text",
            "text": decode(self._tokens[0, 1:]),
            "loss": [round(value, DIGITS) for value in losses[0].double().tolist()],
            "predicted": list(decode(likeliest[0])),
            "labels": [list(decode(self._tokens[0, :-1]))],
        }


def _batch(tokens: Int[Tensor, "count length"]) -> Batch:
    """Sequences as what is read, and what is predicted."""
    return Batch((tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous())
