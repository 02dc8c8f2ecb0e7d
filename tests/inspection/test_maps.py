"""Maps must carry the weights to a page without loss beyond one byte."""

from __future__ import annotations

import base64
import json

import numpy as np
import torch
from torch import Tensor

from attnlab.inspection import Captured, attention_maps

BATCH, HEADS, Q_LEN, K_LEN = 2, 3, 5, 7


def decoded(layer: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(layer["weights"]), dtype=np.uint8).reshape(layer["shape"])


def weights() -> Tensor:
    torch.manual_seed(3)
    return torch.rand(BATCH, HEADS, Q_LEN, K_LEN)


def test_bytes_are_the_weights_in_row_order() -> None:
    w = weights()
    maps = attention_maps({"layer": Captured(weights=w)}, [["a", "b"]], sample=1)
    (layer,) = maps["layers"]
    assert layer["name"] == "layer"
    assert layer["shape"] == [HEADS, Q_LEN, K_LEN]
    np.testing.assert_allclose(decoded(layer) / 255 * layer["max"], w[1].numpy(), atol=layer["max"] / 255)
    assert decoded(layer).max() == 255
    assert maps["labels"] == [["a", "b"]]


def test_axes_are_kept_with_their_layer() -> None:
    trace = {"across": Captured(weights=weights()), "own": Captured(weights=weights())}
    across, own = attention_maps(trace, [["a"], ["b"]], axes={"across": (1, 0)})["layers"]
    assert across["axes"] == [1, 0]
    assert "axes" not in own


def test_the_result_is_json() -> None:
    maps = attention_maps({"layer": Captured(weights=weights().requires_grad_())})
    assert json.loads(json.dumps(maps)) == maps
    assert maps["labels"] == []


def test_layers_without_weights_are_left_out() -> None:
    assert attention_maps({"unseen": Captured()})["layers"] == []


def test_zero_negative_and_infinite_weights() -> None:
    (zero,) = attention_maps({"z": Captured(weights=torch.zeros(1, 1, 2, 2))})["layers"]
    assert zero["max"] == 0
    assert not decoded(zero).any()
    odd = torch.tensor([[[[-2.0, 1.0], [float("nan"), float("-inf")]]]])
    (layer,) = attention_maps({"odd": Captured(weights=odd)})["layers"]
    assert layer["max"] == 2
    assert decoded(layer).tolist() == [[[255, 128], [0, 0]]]
