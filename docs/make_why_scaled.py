"""Measure what softmax passes back of random queries and keys, and write the table: ``python docs/make_why_scaled.py``.

The table stands in ``docs/why-scaled.md``; ``tests/test_why_scaled_in_docs.py`` measures two of its rows anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from attnlab.nn.axes.scores import ScaledDotScore

PAGE = Path(__file__).resolve().parent / "why-scaled.md"
BEGIN, END = "<!-- scale: written by docs/make_why_scaled.py -->\n", "<!-- end of scale -->\n"
POWERS: Mapping[str, float] = {"1": 0.0, "sqrt(d_k)": 0.5, "d_k": 1.0}
"""What dot products are divided by, as a power of the width."""
WIDTHS = (4, 16, 64, 256, 1024)
KEYS, QUERIES = 64, 2048
"""Keys of a query, and queries that are drawn."""


class Passed(NamedTuple):
    """Hold what softmax passes back."""

    to_scores: float  # Frobenius norm of d weights / d scores, mean over queries
    to_query: float  # Frobenius norm of d weights / d query, mean over queries
    to_middle_query: float  # the same, median


def measured(d_k: int, power: float, *, queries: int = QUERIES) -> Passed:
    """Draw queries and keys of independent normal numbers of variance 1, and measure the Jacobians of the weights.

    With ``J = diag(w) - w w^T``: scores enter through J, queries through ``J K / d_k^power``.
    """
    generator = torch.Generator().manual_seed(d_k)
    q = torch.randn(queries, 1, d_k, generator=generator)
    to_scores, to_query = [], []
    for one in q.split(128):  # keys of few queries at a time: 32 MB at the largest width
        k = torch.randn(len(one), KEYS, d_k, generator=generator)
        score = ScaledDotScore(d_k, power=power)
        w = score(one[:, None], k[:, None])[:, 0, 0].softmax(-1)  # (queries, keys)
        jacobian = torch.diag_embed(w) - w[:, :, None] * w[:, None, :]  # (queries, keys, keys)
        to_scores.append(torch.linalg.matrix_norm(jacobian))
        to_query.append(torch.linalg.matrix_norm(jacobian @ k) * score.scale)
    scores, query = torch.cat(to_scores), torch.cat(to_query)
    return Passed(scores.mean().item(), query.mean().item(), query.median().item())


def table() -> str:
    """The rows by width, with three columns for each divisor."""
    heads = [f"{what}: / {name}" for what in ("to scores", "to query", "to the middle query") for name in POWERS]
    lines = ["| d_k | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    lines += [f"| {d_k} | " + " | ".join(f"{value:.2g}" for value in row(d_k)) + " |" for d_k in WIDTHS]
    return "\n".join(lines) + "\n"


def row(d_k: int) -> list[float]:
    """The numbers of a row."""
    by_divisor = [measured(d_k, power) for power in POWERS.values()]
    return [value for of_one in zip(*by_divisor, strict=True) for value in of_one]


def main() -> None:
    """Write the table into the page."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    PAGE.write_text(page[:begin] + table() + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
