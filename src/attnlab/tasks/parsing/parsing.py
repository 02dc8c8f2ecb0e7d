"""The `parsing` task: write the constituents of a sentence as brackets, as a translator writes a translation."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from attnlab.core.build import Spec, build
from attnlab.core.contracts import Batch, Floor, Metric, Predict, Write
from attnlab.core.errors import DataError
from attnlab.core.generators import generator_for
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.codecs import TreeCodec
from attnlab.tasks.held_out import PREFIXES
from attnlab.tasks.next_tokens import IGNORED, NextTokens
from attnlab.tasks.pairs import cuts, in_order, meeting_anew, pair_batch
from attnlab.tasks.parsing.treebanks import CRAFT, find_treebank, uncollected
from attnlab.tasks.translation.translation import KEPT_EPOCHS
from attnlab.text.tokenizers import PAD_TOKEN, TOKENIZERS
from attnlab.text.trees import BracketScores, Tree, compare_all, read_trees
from attnlab.text.trees.bracketing import SIGNATURE
from attnlab.text.trees.linear import CLOSE, TagDictionary, TreeVocabulary

SHORT = 40
"""Words of the longest sentences that older papers judge."""
LONG = f"from_{SHORT + 1}"
LENGTHS = {"1_to_10": (1, 10), "11_to_20": (11, 20), f"21_to_{SHORT}": (21, SHORT), LONG: (SHORT + 1, None)}
"""By how many words sentences are also judged apart."""
SHOWN = 5  # in a report


def judged_metrics(prefix: str, gold: Sequence[Tree]) -> tuple[Metric, ...]:
    """What is judged of the trees of one held-out part; by length where it has sentences of that length."""
    named = {
        "f1": "labelled bracketing F1",
        "recall": "labelled recall",
        "precision": "labelled precision",
        "f1_short": f"labelled bracketing F1, sentences of at most {SHORT} words",
        "exact": "trees all right",
        "tagging": "tags right",
    }
    for name in _lengths_of(gold):
        named[f"f1_{name}"] = f"labelled bracketing F1, sentences of {name.replace('_', ' ')} words"
    return tuple(Metric(f"{prefix}_{name}", "%", "higher", title) for name, title in named.items())


def _lengths_of(gold: Sequence[Tree]) -> list[str]:
    """The keys of `LENGTHS` that some sentence has."""
    counts = {len(tree.words()) for tree in gold}
    return [name for name, (least, most) in LENGTHS.items() if any(least <= n <= (most or n) for n in counts)]


@final
@dataclass(frozen=True)
class Linearized:
    """Hold the tokens of the sentences and of the trees of one part."""

    sources: tuple[Int64[np.ndarray, " length"], ...]  # without marks
    targets: tuple[Int64[np.ndarray, " length"], ...]  # without marks
    longest: Int64[np.ndarray, " trees"]  # of each pair's longer side, the mark of the target counted

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Some trees, filled up on the right."""
        return pair_batch([self.sources[number] for number in numbers], [self.targets[number] for number in numbers])


@final
class Parsing:
    """Predict the next bracket or tag of a sentence's tree, from the sentence and from what stands before.

    Parameters
    ----------
    treebank : str or None
        ``craft``: biomedical articles. None where files are given.
    train, validation, test : str or list of str, optional
        Files of your own in Penn brackets, or patterns such as ``wsj/22/*.mrg``.
    labelled : int, optional
        Training trees that are used, the first ones; of the others only the sentences may be seen (`unlabelled`). All
        of them unless given.
    silver : str or list of str, optional
        Files of trees that a model found for other sentences, or patterns; they are trained on like the others.
    tokenizer : str or mapping
        Entry of `attnlab.text.tokenizers.TOKENIZERS`; trained on the sentences of the training part, silver trees left
        out.
    tags : bool
        Whether words are written by their part of speech; else all as ``XX``, and trees are judged with the right tags.
    batch_tokens : int
        Tokens of one training batch at most, padding included, on the longer side.
    max_length : int
        Tokens of the longest tree, its end included. Longer trees of the training part are left out and counted; those
        of held-out parts have no loss, and are judged as not found.
    beam : int or None
        Beginnings that are kept of each tree when studies parse the held-out parts at the end of training. None:
        nothing is parsed.
    judged_trees : int, optional
        Of each held-out part, the number of trees that are judged and have a loss, evenly spread; all of them unless
        given.

    Raises
    ------
    SpecError
        If a size is below 1, the treebank is unknown, or the tokenizer cannot be built.
    DataError
        If a file is missing or no treebank, or all trees are too long.

    Notes
    -----
    Trees are cleaned first: empty elements, function tags and outer brackets are left out. A tree is written as one
    token for each opening bracket with its label, one for each word, and one for each closing bracket. The loss is the
    mean over the tokens of a batch. What is judged is well-formed by construction (`BracketedWriter`); words have tags
    that they had in the training part, and a bracket that is all in one of the same label is left out.

    References
    ----------
    .. [1] Vinyals et al., 2015, arXiv:1412.7449.
    .. [2] Vaswani et al., 2017, arXiv:1706.03762, section 6.3.
    .. [3] McClosky, Charniak, Johnson, 2006, "Effective self-training for parsing" (trees of a model's own).
    """

    name = "parsing"
    causal = True
    reads_bfloat16 = True

    @uncollected()
    def __init__(
        self,
        treebank: str | None = CRAFT,
        *,
        train: str | list[str] | None = None,
        validation: str | list[str] | None = None,
        test: str | list[str] | None = None,
        labelled: int | None = None,
        silver: str | list[str] | None = None,
        tokenizer: Spec = "bpe",
        tags: bool = True,
        batch_tokens: int = 4096,
        max_length: int = 300,
        beam: int | None = 1,
        judged_trees: int | None = None,
    ) -> None:
        sizes = {"batch_tokens": batch_tokens, "max_length": max_length, "beam": beam, "judged_trees": judged_trees}
        for size, value in {**sizes, "labelled": labelled}.items():
            require_positive(size, 1 if value is None else value)
        own = {"train": train, "validation": validation, "test": test}
        found = find_treebank(None if treebank == CRAFT and any(own.values()) else treebank, own)
        self.treebank = found.semi_supervised(labelled, silver)
        self.batch_tokens, self.max_length, self.judged_trees = batch_tokens, max_length, judged_trees
        trees, trainer = found.parts["train"][:labelled], build(tokenizer, TOKENIZERS, axis="tokenizer")
        vocabulary = TreeVocabulary.of(trees, tags=tags)
        self.codec = TreeCodec(
            trainer.train(" ".join(tree.words()) for tree in trees),
            vocabulary,
            TagDictionary.of(trees, vocabulary),
            max_length,
            beam or 1,
        )
        self._linearized = {part: self._encode(some) for part, some in self.treebank.parts.items()}
        self._kept = {part: np.flatnonzero(one.longest <= max_length) for part, one in self._linearized.items()}
        self._next_tokens = NextTokens(vocabulary.size)
        self.parts = tuple(part for part in self.treebank.parts if part != "train")
        for part, kept in self._kept.items():
            if not len(kept):
                raise DataError(f"every tree of the {part} part has more than {max_length} tokens; raise max_length")
        self.metrics = tuple(Metric(f"{PREFIXES[part]}_loss", "nats/token", "lower", "loss") for part in self.parts)
        judged = [judged_metrics(PREFIXES[part], self._judged_of(part)) for part in self.parts if beam is not None]
        self.judged = tuple(itertools.chain.from_iterable(judged))
        lengths = self._linearized["train"].longest[self._kept["train"]]
        self._cuts = cuts(np.sort(lengths), batch_tokens)
        if int(lengths.max()) > batch_tokens:
            raise DataError(f"a tree of {int(lengths.max())} tokens does not fit into a batch of {batch_tokens}")
        written = sum(len(self._linearized["train"].targets[number]) + 1 for number in self._kept["train"])
        self.tokens_per_step = round(written / len(self._cuts))
        self.steps_per_epoch = len(self._cuts)
        self._order = functools.lru_cache(maxsize=KEPT_EPOCHS)(self._order_of)

    def _encode(self, trees: Sequence[Tree]) -> Linearized:
        codec = self.codec
        sources = codec.tokenizer.encode([" ".join(tree.words()) for tree in trees])
        targets = [codec.vocabulary.encode(tree) for tree in trees]
        longest = [max(len(source), len(target) + 1) for source, target in zip(sources, targets, strict=True)]
        read, written = (tuple(np.asarray(row, dtype=np.int64) for row in side) for side in (sources, targets))
        return Linearized(read, written, np.asarray(longest, dtype=np.int64))

    @property
    def unlabelled(self) -> list[str]:
        """The sentences of the training part whose trees are not used, words divided by blanks."""
        return [" ".join(tree.words()) for tree in self.treebank.unlabelled]

    def train_batch(self, step: int, seed: int) -> Batch:
        """Trees of like length from the training part."""
        epoch, place = divmod(step, len(self._cuts))
        return self._linearized["train"].batch(self._order(seed, epoch)[place].tolist())

    def _order_of(self, seed: int, epoch: int) -> list[Int64[np.ndarray, " trees"]]:
        """The trees of every batch of an epoch."""
        generator, kept = generator_for(seed, epoch), self._kept["train"]
        batches = meeting_anew(self._linearized["train"].longest[kept], self._cuts, generator)
        return [kept[batches[number]] for number in torch.randperm(len(batches), generator=generator).tolist()]

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean loss of a batch per token; of a model that writes tokens their cross-entropy in nats."""
        if outputs.shape == batch.targets.shape[:1]:
            return outputs.sum() / self.targets_of(batch)
        return self._next_tokens.mean_loss(outputs, batch.targets, label_smoothing)

    def targets_of(self, batch: Batch) -> int:
        """The tokens that the mean loss is taken over."""
        return int((batch.targets != IGNORED).sum())

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The loss over a held-out part, or as many of its trees as are judged."""
        require_known("part", part, self.parts)
        one, kept = self._linearized[part], self._spread(self._kept[part])
        batches = [one.batch(kept[some].tolist()) for some in in_order(one.longest[kept], self.batch_tokens)]
        counts = [self.targets_of(batch) for batch in batches]
        losses = [self.loss(predict(batch), batch).item() for batch in batches]
        total = math.fsum(loss * count for loss, count in zip(losses, counts, strict=True))
        return {f"{PREFIXES[part]}_loss": total / sum(counts)}

    def judge(self, write: Write) -> dict[str, float]:
        """What is judged of the trees that are written for the held-out parts."""
        found: dict[str, float] = {}
        for part in self.parts:
            gold = self._judged_of(part)
            lines = write([" ".join(tree.words()) for tree in gold])
            guesses = [next(read_trees([line]), None) for line in lines]
            found |= self._scores(PREFIXES[part], gold, guesses)
        return found

    def _judged_of(self, part: str) -> list[Tree]:
        trees = self.treebank.parts[part]
        return [trees[number] for number in self._spread(np.arange(len(trees)))]

    def _spread(self, numbers: Int64[np.ndarray, " trees"]) -> Int64[np.ndarray, " judged"]:
        """As many trees of a part as are judged, evenly spread."""
        count = min(self.judged_trees or len(numbers), len(numbers))
        return numbers[np.arange(count) * len(numbers) // count]

    def _scores(self, prefix: str, gold: Sequence[Tree], guesses: Sequence[Tree | None]) -> dict[str, float]:
        """The scores; a tree that was not found, or over other words, has no constituent."""
        if len(self.codec.vocabulary.tags) == 2:  # one that all words have, and one of the unknown
            guesses = [guess and tagged_as(guess, right) for guess, right in zip(guesses, gold, strict=True)]
        flat = [guess or Tree("TOP", tuple(right.leaves())) for guess, right in zip(guesses, gold, strict=True)]
        compared = {name: compare_all(gold, flat, shortest=a, longest=b) for name, (a, b) in LENGTHS.items()}
        whole = sum(compared.values(), BracketScores())
        short = sum((found for name, found in compared.items() if name != LONG), BracketScores())
        return {
            f"{prefix}_f1": whole.f1,
            f"{prefix}_recall": whole.recall,
            f"{prefix}_precision": whole.precision,
            f"{prefix}_f1_short": short.f1,
            f"{prefix}_exact": whole.exact_match,
            f"{prefix}_tagging": whole.tagging,
            **{f"{prefix}_f1_{name}": compared[name].f1 for name in _lengths_of(gold)},
        }

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name."""
        vocabulary = self.codec.vocabulary
        return {
            "source_vocab_size": self.codec.tokenizer.size,
            "target_vocab_size": vocabulary.size,
            "max_length": self.max_length,
            "pad": PAD_TOKEN,
            "word_starts": self.codec.tokenizer.word_starts(),
            "brackets": {"close": CLOSE, "labels": len(vocabulary.labels), "tags": len(vocabulary.tags)},
            "chains": self._chains,
        }

    @functools.cached_property
    def _chains(self) -> list[list[int]]:
        """The labels that stand around the same words in the training part, as they are written, the usual first."""
        opening = dict(zip(self.codec.vocabulary.labels, self.codec.vocabulary.opening, strict=True))
        counts = Counter(
            tuple(opening[span.label] for span in around)
            for tree in self.treebank.parts["train"]
            for _, around in itertools.groupby(tree.spans(), key=lambda span: (span.start, span.end))
        )
        return [list(chain) for chain, _ in counts.most_common()]

    def floors(self) -> tuple[Floor, ...]:
        """Of F1, right-branching trees with the most frequent label."""
        return self._floors

    @functools.cached_property
    def _floors(self) -> tuple[Floor, ...]:
        found = []
        for part in self.parts if self.judged else ():
            gold, prefix = self._judged_of(part), PREFIXES[part]
            f1 = self._scores(prefix, gold, [self._right_branching(tree) for tree in gold])[f"{prefix}_f1"]
            found.append(Floor("right-branching", f1, "%", f"{prefix}_f1", "simple"))
        return tuple(found)

    @functools.cached_property
    def _usual_labels(self) -> tuple[str, str]:
        trees = self.treebank.parts["train"]
        inner = Counter(span.label for tree in trees for span in tree.spans()[1:])
        outer = Counter(tree.label for tree in trees)
        return outer.most_common(1)[0][0], (inner or outer).most_common(1)[0][0]

    def _right_branching(self, gold: Tree) -> Tree:
        """Every word beside all that follow it, full stops and the like at the end outside."""
        outer, inner = self._usual_labels
        leaves = list(gold.leaves())
        ending = leaves[-1:] if len(leaves) > 1 and leaves[-1].label == "." else []
        words = leaves[: len(leaves) - len(ending)]
        tree = words[-1]
        for leaf in words[-2:0:-1]:
            tree = Tree(inner, (leaf, tree))
        return Tree(outer, (*words[: len(words) > 1], tree, *ending))

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the treebank."""
        found = list(self.treebank.alarms())
        for part, kept in self._kept.items():
            count = len(self.treebank.parts[part]) - len(kept)
            if count:
                found.append(f"trees of the {part} part with more than {self.max_length} tokens left out: {count:,}")
        for part in self.parts:
            found += self._unknown(part)
        return tuple(found)

    def _unknown(self, part: str) -> Iterator[str]:
        """What stands in a held-out part and nowhere in the training part, so that no model can write it."""
        trees, known = self.treebank.parts[part], self.codec.vocabulary
        labels = Counter(span.label for tree in trees for span in tree.spans())
        tags = Counter(leaf.label for tree in trees for leaf in tree.leaves() if len(known.tags) > 2)
        for what, counts, there in (("labels", labels, known.labels), ("tags", tags, known.tags)):
            new = {name: count for name, count in counts.most_common() if name not in there}
            if new:
                names = ", ".join(f"{name} ({count:,})" for name, count in list(new.items())[:SHOWN])
                yield f"{what} of the {part} part that the training part has not, so that no model writes them: {names}"

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        judging = {"signature": SIGNATURE, "judged_trees": self.judged_trees} if self.judged else {}
        vocabulary = self.codec.vocabulary
        return {
            "task": self.name,
            **self.treebank.describe(),
            "labels": len(vocabulary.labels) - 1,
            "tags": len(vocabulary.tags) - 1,
            "vocab_size": self.codec.tokenizer.size,
            "left_out": {part: len(self.treebank.parts[part]) - len(kept) for part, kept in self._kept.items()},
            "batch_tokens": self.batch_tokens,
            **judging,
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """A few held-out sentences with their trees and the token that the model holds likeliest at every place."""
        part, vocabulary = self.parts[0], self.codec.vocabulary
        pairs, labels = [], []
        for number in self._kept[part][:SHOWN].tolist():
            batch = self._linearized[part].batch([number])
            outputs, tree = predict(batch), self.treebank.parts[part][number]
            likeliest = outputs.argmax(dim=-1)[0].tolist() if outputs.ndim == batch.targets.ndim + 1 else ()
            predicted = " ".join(vocabulary.pieces(likeliest))
            pairs.append({"source": " ".join(tree.words()), "target": str(tree), "predicted": predicted})
            read, written = (tokens[0].tolist() for tokens in batch.inputs)
            labels.append([self.codec.tokenizer.pieces(read), vocabulary.pieces(written)])
        return {"kind": "pairs", "pairs": pairs, "labels": labels[0]}


def tagged_as(tree: Tree, other: Tree) -> Tree:
    """A tree with the tags of another one over as many words."""
    tags = (leaf.label for leaf in other.leaves())

    def tagged(one: Tree) -> Tree:
        if not one.children:
            return Tree(next(tags), word=one.word)
        return Tree(one.label, tuple(tagged(child) for child in one.children))

    return tagged(tree)
