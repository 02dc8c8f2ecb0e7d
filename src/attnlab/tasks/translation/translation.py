"""The `translation` task: write a sentence of one language, given the same sentence in another."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnlab.core.build import Spec
from attnlab.core.contracts import Batch, Floor, Metric, Predict, Write
from attnlab.core.errors import DataError, SpecError
from attnlab.core.generators import generator_for
from attnlab.core.sizes import WIDEST_BEAM, require_known, require_not_negative, require_positive
from attnlab.tasks.codecs import SentenceCodec
from attnlab.tasks.held_out import PREFIXES
from attnlab.tasks.next_tokens import IGNORED, NextTokens
from attnlab.tasks.pairs import cuts, in_order, meeting_anew, pair_batch
from attnlab.tasks.translation.data import Sides, TranslationData
from attnlab.tasks.translation.scores import judged_metrics, judged_scores, signatures
from attnlab.text.tokenizers import BEGIN_TOKEN, END_TOKEN, PAD_TOKEN

USUAL_BEAM = 4  # source: Vaswani et al., 2017, section 6.1
SHOWN_PAIRS = 5  # in a report
LARGEST_EXPONENT = math.log(sys.float_info.max)
OPEN = 8  # shards whose batches are mixed: two million pairs, of which the order takes 16 MB
KEPT_EPOCHS = 4  # whose order is remembered: runs that train together are in the same epoch or the next


def translation_metrics(prefix: str) -> tuple[Metric, ...]:
    """What is measured on one held-out part."""
    return (
        Metric(f"{prefix}_loss", "nats/token", "lower", "cross-entropy"),
        Metric(f"{prefix}_perplexity", "per token", "lower", "perplexity"),
        Metric(f"{prefix}_word_perplexity", "per word", "lower", "perplexity of words"),
        Metric(f"{prefix}_accuracy", "fraction", "higher", "tokens predicted right"),
    )


@final
class Translation:
    """Predict the next token of a translation from the source and from the tokens before.

    Parameters
    ----------
    corpus : str
        Name of a corpus (``attnlab.tasks.translation.corpora.CORPORA``), or a folder with ``train.XX``, ``val.XX`` and
        perhaps ``test.XX`` for both languages, or with ``train.tsv``, ``val.tsv`` (a sentence, a tab, its translation),
        ``train.jsonl`` or ``train.tmx``; or one such file, of which some pairs are held out.
    pair : str
        Codes of the languages, from and to: ``en-de``. With tabs, those of the first and the second column.
    tokenizer : str or mapping
        Entry of `attnlab.text.tokenizers.TOKENIZERS`; trained on both sides of the training part together.
    batch_tokens : int
        Tokens of one training batch at most, padding included, on the longer side.
    max_length : int
        Tokens of the longest sentence, its end included. Longer pairs of the training part are left out and counted.
    test : str, optional
        The test part: ``test-2016`` of multi30k. None leaves it out.
    beam : int or None
        Studies translate the held-out parts at the end of training and score them: beginnings that are kept of each
        translation. None: no translation, no BLEU.
    alpha : float
        Exponent of the length penalty in that search.
    coverage : float
        Weight of the penalty for source tokens that a translation hardly looks at, in the ranking of what that search
        found; for models with attention over the source.
    replace_unknown : bool
        Whether unknown words of these translations are replaced by the translation of the word they stand for, or by
        that word itself; for tokens that are words.
    references : sequence of str
        Files with more translations of the test part, or of the validation part where there is none, a line for each
        of its lines: they are scored together with that of the corpus.
    drop_copies : bool
        Whether the training part is left without pairs whose source is held out too.

    Raises
    ------
    SpecError
        If a size is below 1, the exponent is negative or no number, the tokenizer cannot be built, or has no token for
        unknown words that are to be replaced.
    DataError
        If the corpus is missing, not UTF-8, its files differ in length, a held-out sentence is too long, or nothing is
        left to train on.

    Notes
    -----
    Sentences of like length are batched together. An epoch sees every segmentation of every pair once (there are
    several if the tokenizer has a dropout), in an order of its own; which pairs of one length meet is drawn anew. The
    loss is the mean over the tokens of a batch.
    """

    name = "translation"
    causal = True
    reads_bfloat16 = True

    def __init__(
        self,
        corpus: str = "multi30k",
        pair: str = "en-de",
        *,
        tokenizer: Spec = "bpe",
        batch_tokens: int = 4096,
        max_length: int = 128,
        test: str | None = None,
        beam: int | None = USUAL_BEAM,
        alpha: float = 0.6,
        coverage: float = 0.0,
        replace_unknown: bool = False,
        references: Sequence[str] = (),
        drop_copies: bool = False,
    ) -> None:
        require_positive("batch_tokens", batch_tokens)
        require_positive("beam", 1 if beam is None else beam, WIDEST_BEAM)
        for name, value in (("alpha", alpha), ("coverage", coverage)):
            require_not_negative(name, value)
        require_positive("max_length", max_length)
        self.data = TranslationData.load(
            corpus, pair, tokenizer=tokenizer, max_length=max_length, test=test, references=references,
            drop_copies=drop_copies,
        )  # fmt: skip
        self.batch_tokens, self.max_length, self.drop_copies = batch_tokens, max_length, drop_copies
        self._next_tokens = NextTokens(self.data.tokenizer.size, spare=True)
        self.parts = tuple(part for part in self.data.parts if part != "train")
        self.metrics = tuple(metric for part in self.parts for metric in translation_metrics(PREFIXES[part]))
        if replace_unknown and self.data.dictionary is None:
            raise SpecError(
                "replace_unknown needs tokens that are words, such as tokenizer: words; others know any word"
            )
        how = (max_length, beam or USUAL_BEAM, alpha, self.data.dictionary, replace_unknown, coverage)
        self.codec = SentenceCodec(self.data.tokenizer, self.data.languages, *how)
        self._lowercase = self.data.tokenizer.lowercase
        judged_parts = self.parts if beam is not None else ()
        self.judged = tuple(metric for part in judged_parts for metric in judged_metrics(PREFIXES[part]))
        self._cuts = self._cut_train()
        self.steps_per_epoch = sum(map(len, self._cuts))
        self.tokens_per_step = round(self.data.parts["train"].target_tokens() / self.steps_per_epoch)
        self._turns = functools.lru_cache(maxsize=KEPT_EPOCHS)(self._turns_of)
        self._order = functools.lru_cache(maxsize=KEPT_EPOCHS)(self._order_of)

    def _cut_train(self) -> list[list[int]]:
        """Where batches of each shard of the training part end, its pairs sorted by length."""
        train, longest, found = self.data.parts["train"], 0, []
        for shard in range(len(train.source.begins) - 1):
            lengths = np.sort(train.longest(shard))
            longest = max(longest, int(lengths.max(initial=0)))
            found.append(cuts(lengths, self.batch_tokens))
        if longest > self.batch_tokens:
            drawn = ", as the tokenizer's dropout cut it," if self.data.known["segmentations"] > 1 else ""
            raise DataError(
                f"a sentence of {longest} tokens{drawn} does not fit into a batch of {self.batch_tokens}; give a "
                "larger batch_tokens or a smaller max_length"
            )
        return found

    def train_batch(self, step: int, seed: int) -> Batch:
        """Pairs of like length from the training part."""
        epoch, place = divmod(step, self.steps_per_epoch)
        turns = self._turns(seed, epoch)
        begins = [0, *itertools.accumulate(sum(len(self._cuts[shard]) for shard in shards) for shards in turns)]
        turn = bisect.bisect_right(begins, place) - 1
        return _batch(self.data.parts["train"], self._order(seed, epoch, turn)[place - begins[turn]].tolist())

    def _turns_of(self, seed: int, epoch: int) -> list[list[int]]:
        """The shards whose batches are mixed, turn by turn: some at a time, in an order of the epoch."""
        count = len(self._cuts)
        order = (
            torch.randperm(count, generator=generator_for(seed, epoch, count)).tolist()
            if count > OPEN
            else range(count)
        )
        return [list(order[first : first + OPEN]) for first in range(0, count, OPEN)]

    def _order_of(self, seed: int, epoch: int, turn: int) -> list[Int64[np.ndarray, " pairs"]]:
        """The pairs of every batch of a turn."""
        generator = generator_for(seed, epoch, turn) if turn else generator_for(seed, epoch)
        train, batches = self.data.parts["train"], []
        for shard in self._turns(seed, epoch)[turn]:
            found = meeting_anew(train.longest(shard), self._cuts[shard], generator)
            batches += [train.source.begins[shard] + one for one in found]
        return [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean cross-entropy of a batch in nats per token."""
        return self._next_tokens.mean_loss(outputs, batch.targets, label_smoothing)

    def targets_of(self, batch: Batch) -> int:
        """The tokens that the mean loss is taken over."""
        return int((batch.targets != IGNORED).sum())

    def accuracy(self, predict: Predict, batches: Iterable[Batch]) -> float:
        """The share of tokens predicted right in batches of the training part."""
        return self._next_tokens.tally(predict, batches).accuracy

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics over a whole held-out part."""
        require_known("part", part, self.parts)
        sides = self.data.parts[part]
        batches = in_order(sides.longest(), self.batch_tokens)
        tally = self._next_tokens.tally(predict, (_batch(sides, some.tolist()) for some in batches))
        prefix = PREFIXES[part]
        return {
            f"{prefix}_loss": tally.mean_loss,
            f"{prefix}_perplexity": _perplexity(tally.mean_loss),
            f"{prefix}_word_perplexity": _perplexity(tally.loss / sides.target_words),
            f"{prefix}_accuracy": tally.accuracy,
        }

    def judge(self, write: Write) -> dict[str, float]:
        """What is judged of the translations of all held-out parts."""
        found: dict[str, float] = {}
        for part in self.parts:
            found |= self.score(part, write([pair.source for pair in self.data.sentences(part)]))
        return found

    def score(self, part: str, translations: Sequence[str]) -> dict[str, float]:
        """What is judged of the translations of a held-out part."""
        references, language = self.data.targets(part), self.data.languages[1]
        return judged_scores(PREFIXES[part], translations, references, language, lowercase=self._lowercase)

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        size = self.data.tokenizer.size
        return {
            "source_vocab_size": size,
            "target_vocab_size": size,
            "max_length": self.max_length,
            "pad": PAD_TOKEN,
            "begin": BEGIN_TOKEN,
            "end": END_TOKEN,
        }

    def floors(self) -> tuple[Floor, ...]:
        """Chance: every token as likely as any other."""
        chance = math.log(self.data.tokenizer.size)
        return tuple(Floor("chance", chance, "nats/token", f"{PREFIXES[part]}_loss", "chance") for part in self.parts)

    @property
    def overlaps(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its sources that are among the training sources."""
        return {part: shared / len(self.data.parts[part]) for part, shared in self.data.known["shared"].items()}

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the corpus."""
        return self.data.alarms()

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        count = 1 + len(self.data.references)
        how = signatures(self.data.languages[1], count, lowercase=self._lowercase)
        judging = {"signature": how} if self.judged else {}
        return {"task": self.name, **self.data.describe(), "batch_tokens": self.batch_tokens, **judging}

    def examples(self, predict: Predict) -> dict[str, Any]:
        """A few held-out pairs with the token that the model holds likeliest at every place."""
        part = self.parts[0]
        sides, sentences, tokenizer = self.data.parts[part], self.data.sentences(part), self.data.tokenizer
        pairs, labels = [], []
        shown = range(min(SHOWN_PAIRS, len(sides)))
        for number in sorted(shown, key=lambda one: len(sides.source[one]) == len(sides.target[one]) + 1):
            batch = _batch(sides, [number])  # alone: nothing is filled up
            likeliest = predict(batch).argmax(dim=-1)[0].tolist()
            source, target = sentences[number]
            pairs.append({"source": source, "target": target, "predicted": tokenizer.decode([likeliest])[0]})
            labels.append([tokenizer.pieces(tokens[0].tolist()) for tokens in batch.inputs])
        return {"kind": "pairs", "pairs": pairs, "labels": labels[0]}


def _perplexity(nats: float) -> float:
    """E to the power of a loss; the largest float where that is none: a run may start there and go on."""
    return math.exp(nats) if nats < LARGEST_EXPONENT else sys.float_info.max


def _batch(sides: Sides, pairs: Sequence[int]) -> Batch:
    """Some pairs, filled up on the right."""
    return pair_batch([sides.source[number] for number in pairs], [sides.target[number] for number in pairs])
