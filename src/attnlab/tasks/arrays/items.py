"""Items of a person's own, each an input and a target: cut into parts, batched, compared."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from jaxtyping import Int64

from attnlab.core.contracts import Batch
from attnlab.core.errors import DataError, SpecError
from attnlab.core.sizes import require_known
from attnlab.tasks.arrays.beside import alike_beside
from attnlab.tasks.arrays.near_copies import near_copies
from attnlab.tasks.arrays.overlapping import overlapping
from attnlab.tasks.epochs import in_epochs
from attnlab.tasks.held_out import require_shares, shares_of

Numbers = Int64[np.ndarray, " items"]
DropCopies = bool | Literal["near"]
Split = Literal["random", "contiguous"]
SUSPICIOUS_NEAR = 0.8
"""Share of held-out items with near copies; honest ones of more than one dimension are far below."""
FEWEST_OF_CLASS = 10
"""Held-out items of a class from which on the share of those with near copies tells something."""
FARTHER_OF_CLASS = 4.0
"""How many times as far as copies of one class alone all others are; on a line a third of the items has such a gap."""
SUSPICIOUS_OVERLAPPING = 0.5
"""Share of held-out items that are windows of what is trained on; honest ones are far below."""
SUSPICIOUS_BESIDE = 0.75
"""How often rows that stand beside each other may be the more alike; it is half of the time for rows in any order."""
MOST_HELD, MOST_COMPARED, MOST_HASHED = 200, 10**9, 10**6
"""Held-out items of which copies and overlaps are looked for, and how many numbers are compared with theirs, at most:
of near copies each with each."""
EVALUATION_BATCH = 250  # items at a time; bounds memory, changes no number but rounding


@final
class Items:
    """Hold the items of one part, as they lie on disk.

    Parameters
    ----------
    inputs, targets : array
        Of all items of their files; the first axis is that of items.
    chosen : array of int
        Those of the part.
    """

    def __init__(self, inputs: np.ndarray, targets: np.ndarray, chosen: Numbers) -> None:
        self.inputs, self.targets, self.chosen = inputs, targets, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def pair(self, numbers: Any) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of some items of the part."""
        chosen = self.chosen[numbers]
        return self.inputs[chosen], self.targets[chosen]

    def in_turn(self, at_once: int = EVALUATION_BATCH) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All items, some at a time."""
        for first in range(0, len(self), at_once):
            yield self.pair(slice(first, first + at_once))

    def hashes(self) -> list[bytes]:
        """One word for each item's input, equal where inputs are, number for number."""
        return [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for some, _ in self.in_turn() for row in some]


@final
class OwnItems:
    """Hold all parts of a person's items.

    Parameters
    ----------
    inputs, targets : array
        What is trained on, and what parts are cut from.
    held : mapping
        By part, the share of the items that is cut for it, or its own inputs and targets.
    seed : int
        Of which items are held out.
    strata : array of int, optional
        A class of each item; then every class is held out in the same share.
    drop_copies : bool or "near"
        Whether the training part is left without items whose input is held out too; "near" also without copies of them
        to which something was added (`near_copies`).
    split : {"random", "contiguous"}
        Whether shares are drawn, or are what stands last, and the items just before that share nothing with it.
    groups : array of int, optional
        A group of each item; then whole groups are drawn, whatever the strata are.

    Raises
    ------
    SpecError
        If what is held out is no share, the split is neither, or groups are to stand last.
    DataError
        If inputs and targets, or two parts, do not fit each other, or a part is empty.
    """

    def __init__(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        held: Mapping[str, float | tuple[np.ndarray, np.ndarray]],
        *,
        seed: int,
        strata: np.ndarray | None = None,
        drop_copies: DropCopies = False,
        split: Split = "random",
        groups: Numbers | None = None,
    ) -> None:
        shares = shares_of(held)
        self._drawn = bool(shares) and split == "random" and drop_copies != "near" and groups is None
        self._strata = strata
        chosen = cut_items(len(inputs), shares, seed=seed, strata=strata, split=split, groups=groups)
        self.parts = {"train": Items(inputs, targets, chosen["train"])}
        for part, some in held.items():
            if isinstance(some, tuple):
                self.parts[part] = Items(*some, np.arange(len(some[0])))
            else:
                self.parts[part] = Items(inputs, targets, chosen[part])
        for part, items in self.parts.items():
            for what, array in (("inputs", items.inputs), ("targets", items.targets)):
                usual = inputs if what == "inputs" else targets
                if array.shape[1:] != usual.shape[1:] or array.dtype.kind != usual.dtype.kind:
                    raise DataError(
                        f"{what} of the {part} part must be as in training: items of shape {usual.shape[1:]}, "
                        f"{usual.dtype}; got {array.shape[1:]}, {array.dtype}"
                    )
            if len(items.inputs) != len(items.targets):
                raise DataError(
                    f"inputs and targets must be as many; got {len(items.inputs)} inputs and {len(items.targets)} "
                    f"targets for the {part} part"
                )
            if not len(items):
                raise DataError(f"the {part} part is empty: there are {len(inputs)} items; give more, or other shares")
        if split == "contiguous":
            self._drop_border()
        if drop_copies:
            self._drop_copies(near=drop_copies == "near")

    @property
    def _held(self) -> dict[str, Items]:
        return {part: items for part, items in self.parts.items() if part != "train"}

    def _drop_border(self) -> None:
        """Leave out the last training items of which most stands in a held-out one too."""
        train, length = self.parts["train"], self.parts["train"].inputs[0].shape[0]
        last = train.pair(slice(-length, None))[0]
        shared = [overlapping(last, items.pair(slice(length))[0]) for items in self._held.values()]
        kept = train.chosen[-length:][~np.any(shared, axis=0)]
        self.parts["train"] = Items(train.inputs, train.targets, np.concatenate([train.chosen[:-length], kept]))

    def _drop_copies(self, *, near: bool) -> None:
        train = self.parts["train"]
        held_out = {one for items in self._held.values() for one in items.hashes()}
        kept = np.array([one not in held_out for one in train.hashes()])
        for items in self._held.values() if near and _is_of_numbers(train) else ():
            for copies in near_copies(items.pair(slice(None))[0], train.pair(slice(None))[0]):
                kept[copies] = False
        if not kept.any():
            raise DataError("with drop_copies nothing is left to train on: every training input is held out too")
        self.parts["train"] = Items(train.inputs, train.targets, train.chosen[kept])

    def drawn(self, step: int, seed: int, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one training step; every item once in each epoch."""
        train = self.parts["train"]
        return train.pair(in_epochs(len(train), batch, step, seed).numpy())

    @functools.cached_property
    def copied(self) -> dict[str, float]:
        """By held-out part, the fraction of its inputs that are among the training inputs, number for number."""
        known = set(self.parts["train"].hashes())
        held_out = {part: items.hashes() for part, items in self._held.items()}
        return {part: sum(one in known for one in some) / len(some) for part, some in held_out.items()}

    @property
    def near_copied(self) -> dict[str, float]:
        """By held-out part, the fraction of its inputs of which near copies are among the training inputs.

        It is that of the class of which most are copied, as where the items of a rare one were. Of large parts a
        sample is looked at.
        """
        return {part: max(share, of_class) for part, (share, of_class) in self._near_shares.items()}

    @functools.cached_property
    def _near_shares(self) -> dict[str, tuple[float, float]]:
        """By held-out part, that fraction of all of its inputs, and of those of the class of which most are copied."""
        if not _is_of_numbers(self.parts["train"]):
            return {}
        shares = {}
        for part, copied in self._found_among(MOST_COMPARED // MOST_HELD, _have_near_copies).items():
            of_class = 0.0 if self._strata is None else max(self._copied_of_classes(part, copied), default=0.0)
            shares[part] = float(copied.mean()), of_class
        return shares

    def _copied_of_classes(self, part: str, copied: np.ndarray) -> Iterator[float]:
        """Yield the fraction of a class's items in a part that have near copies among those of training.

        Only of classes most of whose items were found to have some at all. Those counted are nearer than is asked of
        all items, and fewer than half of their class: one class alone may well lie on a line, or close together, where
        most items have neighbors that are nearer than others.
        """
        train, held = self.parts["train"], self.parts[part]
        most = max(1, MOST_COMPARED // MOST_HELD // math.prod(train.inputs.shape[1:]))
        among, classes = train.pair(_evenly(len(train), most))
        looked_at, own = held.pair(_evenly(len(held), MOST_HELD))
        for one in np.unique(own):
            found = copied[own == one]
            if len(found) >= FEWEST_OF_CLASS and found.mean() >= SUSPICIOUS_NEAR:
                copies = near_copies(looked_at[own == one], among, farther=FARTHER_OF_CLASS)
                few = [0 < len(some) < (classes == one).sum() / 2 and (classes[some] == one).all() for some in copies]
                yield float(np.mean(few))

    @functools.cached_property
    def overlapping(self) -> dict[str, float]:
        """By held-out part, the fraction of its inputs most of which stands in a training input, at another place.

        Of large parts a sample is looked at.
        """
        return {part: float(found.mean()) for part, found in self._found_among(MOST_HASHED, overlapping).items()}

    @functools.cached_property
    def alike_beside(self) -> float:
        """How often rows that stand beside each other are the more alike; 0 where no part was drawn among them."""
        train = self.parts["train"]
        return alike_beside(train.inputs, self._strata) if self._drawn and _is_of_numbers(train) else 0.0

    def _found_among(self, most: int, find: Callable[[np.ndarray, np.ndarray], Any]) -> dict[str, np.ndarray]:
        """By held-out part, which of its inputs are found in one way among the training inputs.

        Of large parts a sample is looked at: of training inputs so many as hold at most so many numbers.
        """
        train = self.parts["train"]
        among = train.pair(_evenly(len(train), max(1, most // math.prod(train.inputs.shape[1:]))))[0]
        held_out = {part: items.pair(_evenly(len(items), MOST_HELD))[0] for part, items in self._held.items()}
        return {part: np.array(find(some, among)) for part, some in held_out.items()}

    def alarms(self) -> list[str]:
        """What is suspicious about the parts."""
        windows = (
            f"{share:.0%} of the {part} part's inputs stand for the most part in a training input, some positions "
            "earlier or later: if they are windows of one series, what is measured is partly memory; hold out "
            "what comes last (split: contiguous)"
            for part, share in self.overlapping.items()
            if share >= SUSPICIOUS_OVERLAPPING
        )
        beside = (
            f"{self.alike_beside:.0%} of rows are more like the row after them than like another of the file: "
            "if pieces of one source (a person, a day) stand together, what is measured is partly memory of it; hold "
            "out whole sources (groups), or what comes last (split: contiguous)"
        )
        near = (
            f"{share:.0%} of the {part} part's inputs{'' if of_all == share else ' of one class'} have near copies "
            "among the training inputs, a few that are at least twice as near as all others: if items were copied or "
            "augmented before parts were cut, what is measured is partly memory (drop_copies: near)"
            for part, (of_all, of_class) in self._near_shares.items()
            if (share := of_all if of_all >= SUSPICIOUS_NEAR else of_class) >= SUSPICIOUS_NEAR
        )
        copied = (
            f"{share:.1%} of the {part} part's inputs are among the training inputs: what is measured is partly memory"
            for part, share in self.copied.items()
            if share
        )
        return [*windows, *([beside] if self.alike_beside >= SUSPICIOUS_BESIDE else []), *near, *copied]

    def describe(self) -> dict[str, Any]:
        """What identifies the items."""
        digest = hashlib.sha256()
        for items in self.parts.values():
            for some in items.in_turn():
                for array in some:
                    digest.update(np.ascontiguousarray(array).tobytes())
        return {
            "sha256": digest.hexdigest(),
            "parts": {part: len(items) for part, items in self.parts.items()},
            "copied": self.copied,
        }


def _have_near_copies(held: np.ndarray, train: np.ndarray) -> list[bool]:
    """Which held-out inputs have near copies among training ones."""
    return [len(one) > 0 for one in near_copies(held, train)]


def _is_of_numbers(items: Items) -> bool:
    """Whether inputs are numbers, and no tokens."""
    return items.inputs.dtype.kind == "f"


def _evenly(count: int, most: int) -> slice:
    """At most so many of a number of items, evenly among them."""
    return slice(None, None, -(-count // most))


def cut_items(
    count: int,
    shares: Mapping[str, float],
    *,
    seed: int,
    strata: np.ndarray | None,
    split: str = "random",
    groups: Numbers | None = None,
) -> dict[str, Numbers]:
    """The items of each part, of every stratum the same share as nearly as can be; or one part after the other.

    Of groups whole ones are drawn, until a part has its share of the items.
    """
    require_shares(shares, "items")
    require_known("split", split, get_args(Split))
    if groups is not None:
        if split != "random":
            raise SpecError(f"groups are drawn; got split '{split}' beside them: leave one of the two out")
        return _of_groups(groups, shares, seed)
    if split == "contiguous":
        sizes = [round(Fraction(str(share)) * count) for share in shares.values()]
        cuts = np.split(np.arange(count), np.cumsum([count - sum(sizes), *sizes])[:-1])
        return dict(zip(("train", *shares), cuts, strict=True))
    order = np.random.default_rng(seed).permutation(count)
    layers = [order] if strata is None else [order[strata[order] == one] for one in np.unique(strata)]
    found: dict[str, list[Numbers]] = {part: [] for part in ("train", *shares)}
    for layer in layers:
        first = 0
        for part, share in shares.items():
            last = first + round(Fraction(str(share)) * len(layer))
            found[part].append(layer[first:last])
            first = last
        found["train"].append(layer[first:])
    return {part: np.sort(np.concatenate(some)) for part, some in found.items()}


def _of_groups(groups: Numbers, shares: Mapping[str, float], seed: int) -> dict[str, Numbers]:
    """The items of each part, whole groups each."""
    sizes = np.bincount(groups)
    order = np.random.default_rng(seed).permutation(len(sizes))
    behind = np.cumsum(sizes[order]) / len(groups)  # the share of the items in the groups up to each
    ends = np.searchsorted(behind, np.cumsum(list(shares.values())) - 1e-9) + 1
    drawn = dict(zip((*shares, "train"), np.split(order, ends), strict=True))
    return {part: np.flatnonzero(np.isin(groups, some)) for part, some in drawn.items()}


def batch_of(inputs: np.ndarray, targets: np.ndarray) -> Batch:
    """Arrays as a batch, copied: a module that works in place cannot spoil the data."""
    return Batch((torch.from_numpy(np.array(inputs)),), torch.from_numpy(np.array(targets)))
