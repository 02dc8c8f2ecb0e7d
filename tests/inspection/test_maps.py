"""Maps must carry the weights to a page without loss beyond one byte."""

from __future__ import annotations

import base64
import json

import numpy as np
import torch
from torch import Tensor

from attnlab.inspection import Captured, attention_maps, attention_rank, capture
from attnlab.models.recurrent_translation import AdditiveRnn

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
    pieces = Captured(weights=torch.rand(BATCH, 6, HEADS, Q_LEN, K_LEN))
    assert attention_maps({"in pieces": pieces})["layers"] == []
    assert attention_rank(pieces) is None


def test_steps_with_one_query_each_are_rows_of_one_map() -> None:
    w = weights()
    steps = {"rnn" if i == 0 else f"rnn#{i + 1}": Captured(weights=w[:, :, i : i + 1]) for i in range(Q_LEN)}
    twice = {"conv": Captured(weights=w), "conv#2": Captured(weights=w)}
    found = {layer["name"]: layer for layer in attention_maps(steps | twice)["layers"]}
    assert list(found) == ["rnn", "conv", "conv#2"]
    assert (decoded(found["rnn"]) == decoded(found["conv"])).all()
    growing = {"cached": Captured(weights=w[:, :, :1, :2]), "cached#2": Captured(weights=w[:, :, :1, :3])}
    assert len(attention_maps(growing)["layers"]) == 2, "no rows of one length"


def test_a_recurrent_decoder_has_one_map_of_the_source() -> None:
    model = AdditiveRnn(10, 11, d_model=8, hidden=8).eval()
    with torch.no_grad(), capture(model) as trace:
        model(torch.randint(3, 10, (1, K_LEN)), torch.randint(3, 11, (1, Q_LEN)))
    (layer,) = attention_maps(trace)["layers"]
    assert layer["shape"] == [1, Q_LEN, K_LEN]


def test_zero_negative_and_infinite_weights() -> None:
    (zero,) = attention_maps({"z": Captured(weights=torch.zeros(1, 1, 2, 2))})["layers"]
    assert zero["max"] == 0
    assert not decoded(zero).any()
    odd = torch.tensor([[[[-2.0, 1.0], [float("nan"), float("-inf")]]]])
    (layer,) = attention_maps({"odd": Captured(weights=odd)})["layers"]
    assert layer["max"] == 2
    assert decoded(layer).tolist() == [[[255, 128], [0, 0]]]


def test_ranks_stand_beside_the_weights() -> None:
    eye, same = torch.eye(Q_LEN), torch.full((Q_LEN, Q_LEN), 1 / Q_LEN)
    both = torch.stack([eye, same])[None]
    (layer,) = attention_maps({"both": Captured(weights=both, scores=both, q=torch.zeros(1, 2, Q_LEN, 4))})["layers"]
    assert (layer["rank"]["d_head"], layer["rank"]["length"]) == (4, Q_LEN)
    np.testing.assert_allclose(layer["rank"]["weights"], [Q_LEN, 1])
    np.testing.assert_allclose(layer["rank"]["scores"], [Q_LEN - 1, 0])  # less the mean of their row
    steps = {"rnn" if i == 0 else f"rnn#{i + 1}": Captured(weights=both[:, :, i : i + 1]) for i in range(Q_LEN)}
    (joined,) = attention_maps(steps)["layers"]
    np.testing.assert_allclose(joined["rank"]["weights"], [Q_LEN, 1])
    assert joined["rank"]["scores"] is None
    (odd,) = attention_maps({"odd": Captured(weights=torch.full((1, 1, 2, 2), float("nan")))})["layers"]
    assert odd["rank"]["weights"] == [None]
    (zero,) = attention_maps({"zero": Captured(weights=torch.zeros(1, 1, 2, 2))})["layers"]
    assert "rank" not in zero
