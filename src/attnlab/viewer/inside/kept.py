"""Maps that a study kept of a run whose model reads nothing that a person could type."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import read_json
from attnlab.core.sizes import require_known
from attnlab.inspection.maps import LARGEST_BYTE
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.heads import Heads, full_map, small_maps


@final
class KeptMaps:
    """Show the attention maps that a study kept of a run whose model reads neither text nor a sequence of numbers.

    Parameters
    ----------
    attention : mapping
        What `attnlab.inspection.attention_maps` returned.
    """

    def __init__(self, attention: Mapping[str, Any]) -> None:
        self._labels = attention["labels"]
        self._layers = {layer["name"]: layer for layer in attention["layers"]}

    @classmethod
    def read(cls, path: Path) -> KeptMaps:
        """The maps in a file of a run."""
        attention = read_json(path).get("attention")
        if not attention:
            raise RunError(
                f"the model of {path.parent} reads no text and has no attention: there is nothing to look at"
            )
        return cls(attention)

    def look(self, asked: Asked) -> dict[str, Any]:
        """All maps, as `ModelInView.look` tells them, of the sample that was kept."""
        if asked.off:
            raise SpecError("heads of this run cannot be switched off: its maps were kept, its model reads no text")
        tokens = [[{"text": text, "span": None} for text in label] for label in self._labels]
        layers = [
            small_maps(name, Heads(self._weights(name)), layer.get("axes") or [0, 0])
            for name, layer in self._layers.items()
        ]
        sides = [{"name": "positions", "tokens": one} for one in tokens]
        return {"sides": sides, "layers": layers, "vocab_size": 0, "notes": [], "ms": 0}

    def head_map(self, _: Asked, layer: str, head: int, *, shown: str = "weights") -> dict[str, Any]:
        """The map of one head, as `ModelInView.head_map` tells it; weights alone were kept."""
        require_known("shown", shown, ("weights",))
        require_known("layer", layer, self._layers)
        return full_map(layer, Heads(self._weights(layer)), head, shown)

    def _weights(self, layer: str) -> Float[Tensor, "heads q_len k_len"]:
        kept = self._layers[layer]
        numbers = torch.frombuffer(bytearray(base64.b64decode(kept["weights"])), dtype=torch.uint8)
        return numbers.view(kept["shape"]) * (kept["max"] / LARGEST_BYTE)
