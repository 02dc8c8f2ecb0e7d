"""Positions: how the order of a sequence enters.

Attention without positions treats a sequence as a set. Entries of the level "input" change the activations once,
at the embedding; entries of the level "scores" act in every attention layer, on queries and keys or as a bias of
the scores: those are in `attnlab.nn.axes.relative_positions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.core.layouts import Activations
from attnlab.core.sizes import check_positive
from attnlab.nn.axes.relative_positions import (
    AbstractScorePositions,
    LinearBias,
    NoPositions,
    RelativeBias,
    RotaryPositions,
    angles_of,
)


class AbstractInputPositions(nn.Module, ABC):
    """Put positions into the activations.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    max_length : int
        Number of positions in the table.

    Raises
    ------
    SpecError
        If a size is not positive; in ``forward``, if the sequence is longer than the table.
    """

    level: ClassVar[Literal["input", "scores"]] = "input"

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, x: Activations, start: int = 0) -> Activations:
        """Activations that know where they stand."""


def sinusoids(
    length: int, d_model: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Float[Tensor, "length d_model"]:
    """The table of sines and cosines of Vaswani et al."""
    dtype = dtype or torch.get_default_dtype()
    exact = torch.promote_types(dtype, torch.float32)
    angles = angles_of(torch.arange(length, device=device, dtype=exact), d_model)
    table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (length, d_model or one more)
    return table[:, :d_model].to(dtype)


@final
class SinusoidalPositions(AbstractInputPositions):
    """Add fixed sines and cosines of many wavelengths.

    Parameters
    ----------
    order : {"interleaved", "halves"}
        Whether sine and cosine of a wavelength are neighbors, as in the source, or all sines come before all cosines.

    Notes
    -----
    ``x_p + PE_p``, see `sinusoids`. No parameters, any length. The source multiplies embeddings by
    ``sqrt(d_model)`` first; here this is left to the model. The order "halves" is Marian's.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.5.
    """

    def __init__(self, *, order: Literal["interleaved", "halves"] = "interleaved") -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Activations, start: int = 0) -> Activations:
        """The sum of activations and table."""
        table = sinusoids(start + x.shape[1], x.shape[2], dtype=x.dtype, device=x.device)[start:]
        return x + (torch.cat((table[:, ::2], table[:, 1::2]), dim=-1) if self.order == "halves" else table)


@final
class SinusoidalConcatenated(AbstractInputPositions):
    """Put fixed sines and cosines beside the activations, and map both back to the width of the model.

    Notes
    -----
    ``W [x_p; PE_p] + b``: ``2 d_model^2`` weights that the sum does not have. The sum is the special case
    ``W = [I; I]``.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.5, for the table.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        check_positive({"d_model": d_model})
        self.to_model = nn.Linear(2 * d_model, d_model)

    def forward(self, x: Activations, start: int = 0) -> Activations:
        """The mapped concatenation of activations and table."""
        table = sinusoids(start + x.shape[1], x.shape[2], dtype=x.dtype, device=x.device)[start:]
        return self.to_model(torch.cat((x, table.expand_as(x)), dim=-1))


def _rows(table: nn.Embedding, start: int, length: int) -> Float[Tensor, "length d_model"]:
    """The rows of a learned table for positions up to a length, or say that it is too short."""
    if length > table.num_embeddings:
        raise SpecError(
            f"a sequence of {length} positions is longer than max_length={table.num_embeddings} of the learned "
            "positions; give a larger max_length or positions without a table (sinusoidal, rotary, linear-bias)"
        )
    return table.weight[start:length]


@final
class LearnedPositions(AbstractInputPositions):
    """Add a learned vector per position.

    Notes
    -----
    ``x_p + E_p``; ``max_length * d_model`` parameters.

    References
    ----------
    .. [1] Gehring et al., 2017, arXiv:1705.03122, section 3.1.
    """

    def __init__(self, d_model: int, *, max_length: int) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "max_length": max_length})
        self.table = nn.Embedding(max_length, d_model)

    def forward(self, x: Activations, start: int = 0) -> Activations:
        """The sum of activations and table."""
        return x + _rows(self.table, start, start + x.shape[1])


@final
class LearnedConcatenated(AbstractInputPositions):
    """Put a learned vector per position beside the activations, and map both back to the width of the model.

    Notes
    -----
    ``W [x_p; E_p] + b``; ``max_length * d_model + 2 d_model^2 + d_model`` parameters.

    References
    ----------
    .. [1] Gehring et al., 2017, arXiv:1705.03122, section 3.1, for the table.
    """

    def __init__(self, d_model: int, *, max_length: int) -> None:
        super().__init__()
        check_positive({"d_model": d_model, "max_length": max_length})
        self.table = nn.Embedding(max_length, d_model)
        self.to_model = nn.Linear(2 * d_model, d_model)

    def forward(self, x: Activations, start: int = 0) -> Activations:
        """The mapped concatenation of activations and table."""
        return self.to_model(torch.cat((x, _rows(self.table, start, start + x.shape[1]).expand_as(x)), dim=-1))


POSITIONS: Mapping[str, Callable[..., AbstractInputPositions | AbstractScorePositions]] = {
    "none": NoPositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal-concatenated": SinusoidalConcatenated,
    "learned": LearnedPositions,
    "learned-concatenated": LearnedConcatenated,
    "rotary": RotaryPositions,
    "linear-bias": LinearBias,
    "relative-bias": RelativeBias,
}
