"""Rows of a file that stand beside each other: whether they are more alike than others, as pieces of one source are."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

LOOKED_AT = 2000
"""Pairs of rows that are compared at most."""
FEWEST = 200
"""Of which something can be said: of fewer, one number of many is alike by chance."""


def alike_beside(inputs: np.ndarray, classes: np.ndarray | None = None) -> float:
    """How often a row is more like the next one than like one that is drawn.

    Parameters
    ----------
    inputs : array
        Numbers (items, length) or (items, length, features), in the order of their file.
    classes : array of int, optional
        A class of each item: then rows of one class are compared alone, as files are often sorted by class.

    Returns
    -------
    float
        A fraction, near a half for rows in any order; 0 where there is too little to compare.

    Notes
    -----
    What is compared is the size of each frequency and the spread of each feature, all together and one by one, the most
    telling of which counts: pieces of one source have them in common, wherever they begin.
    """
    generator = np.random.default_rng(0)
    first = np.sort(generator.permutation(len(inputs) - 1)[:LOOKED_AT])
    if classes is None:
        other = generator.integers(0, len(inputs), len(first))
    else:
        first = first[classes[first] == classes[first + 1]]
        alike = {one: np.flatnonzero(classes == one) for one in np.unique(classes[first])}
        other = np.array([generator.choice(alike[one]) for one in classes[first]], dtype=np.int64)
    if len(first) < FEWEST:
        return 0.0
    rows = [_spectra(inputs[chosen]) for chosen in (first, first + 1, other)]
    spread = np.maximum(rows[0].std(axis=0), 1e-12)
    near, far = (np.square((one - rows[0]) / spread) for one in rows[1:])  # (pairs, numbers)
    others = near.any(axis=1) & far.any(axis=1)  # copies are another matter
    if others.sum() < FEWEST:
        return 0.0
    by_number = _share(near[others], far[others])
    return float(max(by_number.max(), _share(near[others].sum(axis=1), far[others].sum(axis=1))))


def _share(near: np.ndarray, far: np.ndarray) -> np.ndarray:
    """How often one distance is smaller than another; equal ones count half."""
    return np.mean((near < far) + 0.5 * (near == far), axis=0)


def _spectra(items: np.ndarray) -> Float[np.ndarray, "items numbers"]:
    """The size of each frequency and the spread of each feature."""
    x = items.reshape(*items.shape[:2], -1).astype(np.float64)
    sizes = np.abs(np.fft.rfft(x, axis=1)).reshape(len(x), -1)
    return np.concatenate([sizes, x.std(axis=1)], axis=1)
