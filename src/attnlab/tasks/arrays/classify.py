"""The `classify` task: name the class of each sequence of numbers, of tokens, or text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.build import Spec, build
from attnlab.core.contracts import Batch, Floor, Metric, Predict
from attnlab.core.errors import DataError, ModuleError, SpecError, nearest
from attnlab.core.sizes import require_known, require_positive
from attnlab.tasks.arrays.items import DropCopies, Items, Numbers, OwnItems, Split, batch_of, cut_items
from attnlab.tasks.arrays.reading import (
    ARRAY,
    LABEL,
    TEXT,
    numbers,
    read_array,
    read_groups,
    read_table,
    require_finite,
)
from attnlab.tasks.codecs import ClassCodec, NumbersCodec
from attnlab.tasks.held_out import PREFIXES, Held, held_parts, shares_of
from attnlab.tasks.next_tokens import NextTokens, Tally
from attnlab.tasks.scale import Scale, featured, in_units, of_uneven_size
from attnlab.text.sources import clean
from attnlab.text.tokenizers import PAD_TOKEN, TOKENIZERS, Tokenizer

ONE_SIDED = 0.8  # share of one class from which on accuracy says little
CONTRADICTED = 0.01  # share of items from which on it is told that equal inputs have other classes
SHOWN = 4  # items of an example
SUREST = 0.25  # part of what is held out, of which a model is surest
OF_SUREST = "_surest"  # behind the name of an accuracy that is of these
MANY, FEWEST_ITEMS = 20, 2
"""Classes from which on there must be so many items of one, as a mean: labels of fewer are numbers or names."""


@final
class Classify:
    """Name the class of each item.

    Parameters
    ----------
    inputs : str
        An ``.npy`` file of numbers (items, length) or (items, length, features), or of tokens, whole numbers (items,
        length); or a table (CSV, TSV, JSON lines, Parquet); or a folder with a folder of texts for each class.
    labels : str
        An ``.npy`` file of whole numbers (items,), or the column of the table that holds the classes: numbers or words.
    field : str or list of str, optional
        The columns of a table that are read: one of texts, or of lists of numbers or tokens, or several of numbers,
        which stand at one position each. By default ``text``, or where there is none all but the labels.
    tokenizer : Spec
        Of texts: entry of `TOKENIZERS`, trained on the texts of the training part.
    length : int, optional
        Tokens that are read at most; what is longer is cut, and an alarm says so. By default those of the longest item.
    batch : int
        Items of one training step; every item comes once in an epoch.
    validation, test : float, str or list of str, optional
        What is held out: a share, of every class the same, or a table, or a list of two ``.npy`` files.
    normalize : bool
        Whether numbers are given with mean 0 and standard deviation 1, for each feature those of the training part.
    data_seed : int
        Seed of which items are held out.
    drop_copies : bool or "near"
        Whether the training part is left without items whose input is held out too; "near" also without their near
        copies, to which something was added: the nearest items, if all others are at least twice as far.
    split : {"random", "contiguous"}
        Whether what is held out is drawn, or stands last, as it must where items are windows of one series.
    groups : str, optional
        Which items are of one source, such as a person, and go into one part: an ``.npy`` file (items,), or a column of
        the table. The classes may then have other shares in each part.

    Raises
    ------
    SpecError
        If a size is below 1, what is held out is no share, or groups are to stand last.
    DataError
        If a file cannot be read, or holds what is no item or no class, or one that training lacks, or nothing is left
        to train on.

    Notes
    -----
    A model may answer (batch, classes), or (batch, length, classes): then its answers are averaged over the positions,
    of tokens over those that are not padding. Tokens are shifted by one where they are given as numbers: 0 is padding.
    """

    name = "classify"
    causal = False
    judged = ()

    def __init__(
        self,
        inputs: str,
        labels: str = LABEL,
        *,
        field: str | list[str] | None = None,
        tokenizer: Spec = "bpe",
        length: int | None = None,
        batch: int = 64,
        validation: Held = 0.1,
        test: Held | None = None,
        normalize: bool = True,
        data_seed: int = 0,
        drop_copies: DropCopies = False,
        split: Split = "random",
        groups: str | None = None,
    ) -> None:
        require_positive("batch", batch)
        require_positive("length", length or 1)
        self.batch, self.drop_copies = batch, drop_copies
        self._arguments = {"inputs": inputs, "labels": labels, "field": field}
        self._arguments |= {} if groups is None else {"groups": groups}
        held = held_parts(validation, test)
        files = {part: some for part, some in held.items() if not isinstance(some, float | int)}
        read = {"train": _read(inputs, labels, field, groups)}
        read |= {part: _given(some, labels, field, part, groups) for part, some in files.items()}
        self.classes = _classes(read["train"][1], labels)
        known = {part: self._numbered(part, given) for part, (_, given, _) in read.items()}
        sources = None if groups is None else read_groups(groups, inputs, len(known["train"]), read["train"][2])
        how = {"seed": data_seed, "strata": known["train"], "split": split, "groups": sources}
        trained = cut_items(len(known["train"]), shares_of(held), **how)["train"]
        found = {part: some for part, (some, _, _) in read.items()}
        items, self._tokenizer, self.cut = _encoded(found, trained, tokenizer, length)
        shares = {**shares_of(held), **{part: (items[part], known[part]) for part in files}}
        self._items = OwnItems(items["train"], known["train"], shares, drop_copies=drop_copies, **how)
        if drop_copies or split == "contiguous" or groups:
            self._require_classes()
        self._of_tokens = items["train"].dtype.kind in "iu"
        train = self._items.parts["train"]
        self._scale = Scale.of(featured(train.inputs), train.chosen) if normalize and not self._of_tokens else None
        self.vocab_size = int(max(array.max() for array in items.values())) + 1 if self._of_tokens else 0
        self.length = train.inputs.shape[1]
        self.codec = self._codec()
        self._judge = NextTokens(len(self.classes))
        self.tokens_per_step = batch
        self.steps_per_epoch = len(train) / batch
        self.parts = tuple(held)
        self.metrics = tuple(metric for part in self.parts for metric in _metrics(PREFIXES[part]))

    def _numbered(self, part: str, given: np.ndarray) -> np.ndarray:
        """The number of each item's class."""
        numbers_of = {one: number for number, one in enumerate(self.classes)}
        unknown = [one for one in dict.fromkeys(given.tolist()) if one not in numbers_of]
        if unknown:
            hint = nearest(str(unknown[0]), map(str, self.classes))
            raise DataError(f"the {part} part has the class {unknown[0]!r}, which the training part lacks; {hint}")
        return np.array([numbers_of[one] for one in given.tolist()], dtype=np.int64)

    def _codec(self) -> ClassCodec | NumbersCodec:
        """What inputs and answers mean."""
        names = tuple(map(str, self.classes))
        if self._tokenizer is not None:
            return ClassCodec(self._tokenizer, names, self.length)
        if self._of_tokens:
            return NumbersCodec(self.length, 1, each=False, classes=names, tokens=self.vocab_size)
        features = featured(self._items.parts["train"].inputs).shape[2]
        return NumbersCodec(self.length, features, each=False, classes=names, inputs=self._scale)

    def _require_classes(self) -> None:
        left = self._frequencies("train")
        if not left.all():
            lost = self.classes[int(left.argmin())]
            of_groups = "groups", "all of it is of groups that are held out"
            otherwise = ("split: contiguous", "all of it stands last") if "groups" not in self._arguments else of_groups
            how, why = ("drop_copies", "its inputs are held out too") if self.drop_copies else otherwise
            raise DataError(f"with {how} nothing of the class {lost!r} is left to train on: {why}")

    def _batch(self, inputs: np.ndarray, classes: np.ndarray) -> Batch:
        return batch_of(inputs if self._of_tokens else in_units(featured(inputs), self._scale), classes)

    def train_batch(self, step: int, seed: int) -> Batch:
        """The items of one training step."""
        return self._batch(*self._items.drawn(step, seed, self.batch))

    def _answers(self, outputs: Tensor, batch: Batch) -> Float[Tensor, "batch 1 classes"]:
        """One answer an item."""
        return answers_of(outputs, batch.inputs[0], len(self.classes), padded=self._of_tokens)

    def loss(self, outputs: Tensor, batch: Batch, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean cross-entropy of a batch in nats per item."""
        return self._judge.mean_loss(self._answers(outputs, batch), batch.targets.view(-1, 1), label_smoothing)

    def _tally(self, answer: Predict, batches: Iterable[Batch]) -> Tally:
        return self._judge.tally(answer, (Batch(batch.inputs, batch.targets.view(-1, 1)) for batch in batches))

    def accuracy(self, predict: Predict, batches: Iterable[Batch]) -> float:
        """The share of items classified right in batches of the training part."""
        return self._tally(lambda batch: self._answers(predict(batch), batch), batches).accuracy

    def evaluate(self, predict: Predict, part: str) -> dict[str, float]:
        """The metrics over a whole held-out part."""
        require_known("part", part, self.parts)
        prefix, judged = PREFIXES[part], list[tuple[Tensor, Tensor]]()

        def answer(batch: Batch) -> Tensor:
            answers = self._answers(predict(batch), batch)
            judged.append(_how_sure(answers[:, 0], batch.targets.flatten()))
            return answers

        tally = self._tally(answer, (self._batch(*some) for some in self._items.parts[part].in_turn()))
        found = {f"{prefix}_loss": tally.mean_loss, f"{prefix}_accuracy": tally.accuracy}
        return {**found, f"{prefix}_accuracy{OF_SUREST}": _accuracy_of_surest(judged)}

    def model_arguments(self) -> Mapping[str, Any]:
        """What a model must know of the task, by constructor name; a token is one of `vocab_size` features."""
        classes = len(self.classes)
        features = {"vocab_size": self.vocab_size} if self._of_tokens else {}
        d_in = self.vocab_size or featured(self._items.parts["train"].inputs).shape[2]
        return {
            **features, "d_in": d_in, "d_out": classes, "n_classes": classes, "max_length": self.length,
            "length": self.length,
        }  # fmt: skip

    def _frequencies(self, part: str) -> np.ndarray:
        items = self._items.parts[part]
        return np.bincount(items.targets[items.chosen], minlength=len(self.classes)) / len(items)

    def floors(self) -> tuple[Floor, ...]:
        """Chance, and what the frequencies of the classes in the training part give."""
        train, floors = self._frequencies("train"), []
        for part in self.parts:
            held_out = self._frequencies(part)
            loss, accuracy, _ = _metrics(PREFIXES[part])
            present = held_out > 0
            surprise = float(-(held_out[present] * np.log(np.maximum(train[present], 1e-12))).sum())
            count, source = len(self.classes), f"uniform over {len(self.classes)} classes"
            floors += [
                Floor("chance", math.log(count), loss.unit, loss.name, "chance", source=source),
                Floor("chance", 1 / count, accuracy.unit, accuracy.name, "chance", source=source),
                Floor("frequencies", surprise, loss.unit, loss.name, "simple", source="those of the training part"),
                Floor(
                    "majority class", float(held_out[train.argmax()]), accuracy.unit, accuracy.name, "simple",
                    source=f"always '{self.classes[int(train.argmax())]}', the most frequent class in training",
                ),
            ]  # fmt: skip
        return tuple(floors)

    @property
    def answers(self) -> Mapping[str, int]:
        """By held-out part, how many answers its accuracy is the share of."""
        return {part: len(self._items.parts[part]) for part in self.parts}

    @property
    def overlaps(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its inputs that are among the training inputs."""
        return self._items.copied

    @property
    def near_overlaps(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its inputs of which near copies are among the training inputs."""
        return self._items.near_copied

    @property
    def alike_beside(self) -> float:
        """How often rows that stand beside each other are more alike than others; 0 where no part was drawn."""
        return self._items.alike_beside

    @property
    def overlapping(self) -> Mapping[str, float]:
        """By held-out part, the fraction of its inputs most of which stands in a training input, at another place."""
        return self._items.overlapping

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the items and their classes."""
        train = self._items.parts["train"]
        raw = not self._of_tokens and self._scale is None
        found = (of_uneven_size(featured(train.inputs), train.chosen) if raw else []) + self._items.alarms()
        for part in ("train", *self.parts):
            shares = self._frequencies(part)
            if len(shares) == 1 or shares.max() >= ONE_SIDED:
                found.append(
                    f"{shares.max():.1%} of the {part} part are of the class '{self.classes[int(shares.argmax())]}': "
                    "an accuracy near that may be no skill at all"
                )
            if part != "train" and (missing := [str(self.classes[one]) for one in np.flatnonzero(shares == 0)]):
                found.append(f"the {part} part has no item of {len(missing)} classes: {', '.join(missing[:10])}")
        if (contradicted := _contradicted(self._items.parts.values())) >= CONTRADICTED:
            cut = f", as far as they are read ({self.length} tokens)" if self.cut else ""
            found.append(
                f"{contradicted:.1%} of the items have another class than most with the same input{cut}: at most "
                f"{1 - contradicted:.1%} can be named right by what models are given"
            )
        if self.cut:
            found.append(f"{self.cut:,} items are longer than {self.length} tokens and were cut")
        if self._of_tokens and (empty := sum(map(_without_tokens, self._items.parts.values()))):
            found.append(
                f"items that are empty: {empty:,}; nothing can be known of them but how frequent the classes are"
            )
        return tuple(found)

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        return {
            "task": self.name,
            **self._arguments,
            "length": self.length,
            "vocab_size": self.vocab_size or None,
            "normalized": self._scale.to_json() if self._scale else False,
            "classes": {
                str(one): [float(self._frequencies(part)[number]) for part in ("train", *self.parts)]
                for number, one in enumerate(self.classes)
            },
            **self._items.describe(),
        }

    def examples(self, predict: Predict) -> dict[str, Any]:
        """The first held-out items with their classes, and the probability of each class."""
        batch = self._batch(*self._items.parts[self.parts[0]].pair(slice(SHOWN)))
        chances = self._answers(predict(batch), batch).float().softmax(dim=-1)[:, 0]
        tokens = batch.inputs[0][0].tolist() if self._of_tokens else []
        read = self._tokenizer.decode(batch.inputs[0].tolist()) if self._tokenizer else []
        texts = [{"text": text} for text in read] or [{}] * len(chances)
        return {
            "kind": "classes",
            "labels": [self._tokenizer.pieces(tokens) if self._tokenizer else list(map(str, tokens))] if tokens else [],
            "items": [
                {
                    "class": str(self.classes[one]),
                    "chances": dict(zip(map(str, self.classes), some, strict=True)),
                    **text,
                }
                for one, some, text in zip(batch.targets.tolist(), chances.tolist(), texts, strict=True)
            ],
        }


def _contradicted(parts: Iterable[Items]) -> float:
    """The share of all items that have another class than the most frequent one of items with the same input."""
    counts: dict[bytes, Counter[int]] = {}
    for items in parts:
        for one, target in zip(items.hashes(), items.targets[items.chosen].tolist(), strict=True):
            counts.setdefault(one, Counter())[target] += 1
    agreeing = sum(max(of.values()) for of in counts.values())
    return 1 - agreeing / sum(of.total() for of in counts.values())


def answers_of(outputs: Tensor, inputs: Tensor, classes: int, *, padded: bool) -> Float[Tensor, "batch 1 classes"]:
    """One answer an item: that of the model, or the mean of those at its positions, of tokens but padding.

    Raises
    ------
    ModuleError
        If the model answers in another shape.
    """
    wanted = (len(inputs), classes)
    if outputs.ndim == 3 and (len(outputs), outputs.shape[2]) == wanted:
        if padded and outputs.shape[1] == inputs.shape[1]:
            real = (inputs != PAD_TOKEN).to(outputs.device, outputs.dtype)[..., None]  # (batch, length, 1)
            return (outputs * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return outputs.mean(dim=1, keepdim=True)
    if tuple(outputs.shape) != wanted:
        raise ModuleError(
            f"the model's outputs must have shape {wanted} (batch, classes), or (batch, length, classes); got "
            f"{tuple(outputs.shape)}"
        )
    return outputs[:, None]


def _how_sure(answers: Float[Tensor, "items classes"], classes: Tensor) -> tuple[Tensor, Tensor]:
    """By how much the class that is named stands above all others together, as logits, and whether it is right."""
    answers = answers.double()
    most, named = answers.max(dim=-1, keepdim=True)  # (items, 1)
    others = answers.scatter(-1, named, -math.inf).logsumexp(dim=-1)
    return (most[:, 0] - others).nan_to_num(-math.inf), named[:, 0] == classes.to(named.device)


def _accuracy_of_surest(judged: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Of the items of which a model is surest the share that is right; of those tied at the end, their mean."""
    sure, right = (torch.cat(some) for some in zip(*judged, strict=True))
    count = max(1, round(SUREST * len(sure)))
    least = sure.topk(count).values[-1]
    above, tied = sure > least, sure == least
    found = right[above].sum() + (count - above.sum()) * right[tied].double().mean()
    return float(found / count)


def _metrics(prefix: str) -> tuple[Metric, Metric, Metric]:
    return (
        Metric(f"{prefix}_loss", "nats/item", "lower", "cross-entropy"),
        Metric(f"{prefix}_accuracy", "fraction", "higher", "items classified right"),
        Metric(
            f"{prefix}_accuracy{OF_SUREST}", "fraction", "higher", "of the quarter it is surest of, classified right"
        ),
    )


def _classes(given: np.ndarray, labels: str) -> list[Any]:
    """The classes of the training part."""
    found = sorted(set(given.tolist()))
    if len(found) == 1:
        raise DataError(
            f"all {len(given):,} items are of the class {found[0]!r} ({labels}): there is nothing to tell apart"
        )
    if len(found) > max(MANY, len(given) / FEWEST_ITEMS):
        raise DataError(
            f"'{labels}' has {len(found):,} classes for {len(given):,} items, so that nothing is learned of most; name "
            "what holds classes with labels, or take the task 'sequences' for targets that are numbers"
        )
    return found


def _given(
    held: str | list[str], labels: str, field: str | list[str] | None, part: str, groups: str | None
) -> tuple[Any, np.ndarray, Any]:
    """What a part of its own holds."""
    if isinstance(held, str):
        return _read(held, labels, field, groups)
    if len(held) != 2:
        raise SpecError(f"{part} must be a share, a table, or two files, of inputs and labels; got {held}")
    return _read(held[0], held[1], field)


def _read(
    inputs: str, labels: str, field: str | list[str] | None, groups: str | None = None
) -> tuple[Any, np.ndarray, Any]:
    """Inputs, an array or a list of texts, the label of each, and the column of groups, None where there is none."""
    sources = None
    if inputs.endswith(ARRAY):
        if not labels.endswith(ARRAY):
            raise SpecError(
                f"labels must be an {ARRAY} file beside inputs of that kind; got '{labels}' (inputs {inputs})"
            )
        found, classes = read_array(inputs), read_array(labels)
        if classes.ndim != 1 or classes.dtype.kind not in "biu":
            raise DataError(f"{labels} must hold one whole number an item; got shape {classes.shape}, {classes.dtype}")
    else:
        table = read_table(inputs)
        columns = _columns(inputs, table, labels, field, groups)
        found = _values([table[one] for one in columns], f"{inputs}, column '{columns[0]}'")
        if isinstance(found, np.ndarray):
            require_finite(found, inputs)
        sources = table.get(groups or "")
        classes = np.array(_labels(table[labels], f"{inputs}, column '{labels}'"))
    if len(found) != len(classes):
        raise DataError(
            f"inputs and labels must be as many; got {len(found)} inputs and {len(classes)} labels ({inputs})"
        )
    return found, classes, sources


def _columns(
    path: str, table: Mapping[str, Any], labels: str, field: str | list[str] | None, groups: str | None
) -> list[str]:
    """The columns that are read."""
    if field is None:
        others = [name for name in table if name not in (labels, groups)]
        field = TEXT if TEXT in others else others
    columns = [field] if isinstance(field, str) else field
    of_groups = [groups] if groups and not groups.endswith(ARRAY) else []
    for name in (labels, *of_groups, *columns):
        if name not in table:
            raise DataError(f"{path} has no column '{name}'; it has {', '.join(table) or 'no rows'}")
    if not columns:
        raise DataError(f"{path} has no column to read beside '{labels}'")
    return columns


def _labels(values: Sequence[Any], where: str) -> Sequence[Any]:
    """Classes, each a word or a whole number."""
    wrong = [(row, one) for row, one in enumerate(values, 1) if not isinstance(one, str | int) or one == ""]
    if wrong:
        raise DataError(
            f"{where} must hold a class, a word or a whole number; got {wrong[0][1]!r:.60} in row {wrong[0][0]}"
        )
    return values if len({type(one) for one in values}) == 1 else [str(one) for one in values]


def _values(columns: Sequence[Sequence[Any]], where: str) -> Any:
    """The inputs in columns of a table: texts, lists of tokens, or an array of numbers."""
    if len(columns) > 1:
        return np.stack([numbers(one, where).astype(np.float64) for one in columns], axis=1)
    values = columns[0]
    if all(isinstance(one, str) for one in values):
        return values
    if all(isinstance(one, list) and all(isinstance(token, int) for token in one) for one in values):
        return values
    shapes = Counter(np.shape(one) if isinstance(one, list) else () for one in values) if _even(values) else {}
    if len(shapes) == 1 and len(next(iter(shapes))) in (1, 2):
        return np.array(values, dtype=np.float64)
    raise DataError(
        f"{where} must hold texts, lists of whole numbers (tokens), or lists of numbers all of one length, which may "
        f"be lists of features themselves; got {values[0]!r:.60} in row 1"
    )


def _even(values: Sequence[Any]) -> bool:
    """Whether nested lists of numbers have one shape and are numbers throughout."""
    try:
        return np.array(values).dtype.kind in "if"
    except ValueError:
        return False


def _without_tokens(items: Items) -> int:
    """How many of some items have no token."""
    return int((items.inputs[items.chosen] == PAD_TOKEN).all(1).sum())


def _encoded(
    inputs: Mapping[str, Any], trained: Numbers, tokenizer: Spec, length: int | None
) -> tuple[dict[str, np.ndarray], Tokenizer | None, int]:
    """Arrays of numbers, or of tokens filled up with padding; their tokenizer; how many items were cut."""
    first, made = inputs["train"], None
    if isinstance(first, np.ndarray) and not (first.dtype.kind in "iu" and first.ndim == 2):
        if any(not isinstance(one, np.ndarray) or one.ndim not in (2, 3) for one in inputs.values()):
            raise DataError(
                "inputs must be (items, length) or (items, length, features); got "
                f"{', '.join(str(np.shape(one)) for one in inputs.values())}"
            )
        return {part: one if one.dtype.kind == "f" else one.astype(np.float32) for part, one in inputs.items()}, None, 0
    if all(isinstance(one, str) for one in first):
        made = build(tokenizer, TOKENIZERS, axis="tokenizer").train(clean(first[number]) for number in trained)
        found = {part: made.encode([clean(text) for text in texts]) for part, texts in inputs.items()}
    else:
        if any(min(row, default=0) < 0 for rows in inputs.values() for row in rows):
            raise DataError("tokens must be whole numbers from 0 on; got a negative one")
        found = {part: [np.asarray(row, dtype=np.int64) + 1 for row in rows] for part, rows in inputs.items()}
    longest = max((len(row) for rows in found.values() for row in rows), default=0)
    length = max(1, min(longest, length or longest))
    cut = sum(len(row) > length for rows in found.values() for row in rows)
    arrays = {part: np.full((len(rows), length), PAD_TOKEN, dtype=np.int64) for part, rows in found.items()}
    for part, rows in found.items():
        for place, row in enumerate(rows):
            arrays[part][place, : min(len(row), length)] = row[:length]
    return arrays, made, cut
