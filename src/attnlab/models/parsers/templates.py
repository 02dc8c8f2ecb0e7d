"""What is seen of a place, as rows of a table of weights that is hashed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn


@final
class Templates:
    """Number what is seen of some places by a place in a table of weights.

    Parameters
    ----------
    names : str
        Of what there is to see, divided by blanks.
    templates : sequence of str
        Names that are seen together.
    size : int
        Rows of the table; what is seen has one by its hash.
    """

    def __init__(self, names: str, templates: Sequence[str], size: int) -> None:
        self.size = size
        order, words = names.split(), [template.split() for template in templates]
        most = max(map(len, words))
        places = [[order.index(name) for name in some] + [len(order)] * (most - len(some)) for some in words]
        draw = torch.Generator().manual_seed(0)
        self.places = torch.tensor(places)
        self.times = torch.randint(1 << 62, (most,), generator=draw) | 1
        self.plus = torch.randint(1 << 62, (len(words),), generator=draw)

    def __call__(self, seen: Int[Tensor, "*places names"]) -> Int[Tensor, "*places templates"]:
        """The places of what is seen."""
        device, seen = seen.device, nn.functional.pad(seen + 1, (0, 1))
        mixed = (seen[..., self.places.to(device)] * self.times.to(device)).sum(dim=-1) + self.plus.to(device)
        return ((mixed ^ (mixed >> 29)) * self.times[0].to(device) >> 20) % self.size
