"""The units in which numbers are given to models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Int64

UNEVEN = 100.0  # how many times as large as 1, or as another feature, numbers hinder training
SUMMED = 4096  # items that are summed together, so that a mapped array is never in memory whole


@final
@dataclass(frozen=True)
class Scale:
    """Say in which units numbers are given to a model.

    Parameters
    ----------
    mean, std : array (features,)
        What is taken from each feature, and what the rest is divided by.
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, array: np.ndarray, items: Int64[np.ndarray, " items"]) -> Scale:
        """Mean and standard deviation of each feature (the last axis) over some items."""
        total, squares, count = 0.0, 0.0, 0
        for first in range(0, len(items), SUMMED):
            some = array[items[first : first + SUMMED]].astype(np.float64)
            axes = tuple(range(some.ndim - 1))
            total, squares = total + some.sum(axes), squares + (some**2).sum(axes)
            count += math.prod(some.shape[:-1])
        mean = np.asarray(total / count)
        variance = np.maximum(squares / count - mean**2, 0)
        return cls(mean, np.where(variance > 1e-12 * mean**2, np.sqrt(variance), 1.0))  # what is constant stays near 0

    def apply(self, array: np.ndarray) -> np.ndarray:
        """Numbers in these units."""
        return ((array - self.mean) / self.std).astype(np.float32)

    def undo(self, array: np.ndarray) -> np.ndarray:
        """Numbers in these units, in their own."""
        return array * self.std + self.mean

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types."""
        return {"mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Scale:
        """What was kept."""
        return cls(np.array(content["mean"]), np.array(content["std"]))


def of_uneven_size(array: np.ndarray, items: Int64[np.ndarray, " items"]) -> list[str]:
    """What is suspicious about numbers that a model is given as they are."""
    scale = Scale.of(array, items)
    sizes = np.sqrt(scale.mean**2 + scale.std**2)
    smallest, largest = float(sizes.min()), float(sizes.max())
    if max(largest, 1.0) / min(smallest, 1.0) < UNEVEN:
        return []
    return [
        f"inputs are given as they are (normalize: false), of sizes from {smallest:.3g} to {largest:.3g}: training "
        "at usual rates wants sizes near 1, and a large feature hides small ones"
    ]


def in_units(array: np.ndarray, scale: Scale | None) -> np.ndarray:
    """Numbers as a model is given them; without a scale as they are."""
    return scale.apply(array) if scale else array.astype(np.float32)


def featured(inputs: np.ndarray) -> np.ndarray:
    """Numbers with an axis of features: one, where there was none."""
    return inputs if inputs.ndim == 3 else inputs[..., None]  # (items, length, features)
