from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlab.core.build import build
from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection.memory import kept_bytes
from attnlab.nn import attention as module_under_test
from attnlab.nn.attention import Attention
from attnlab.nn.axes.masks import Causal, Window
from attnlab.nn.axes.scores import SCORES, AbstractScore, AsDot
from attnlab.nn.mixers import MIXERS

BATCH, LENGTH, D_MODEL, N_HEADS = 3, 7, 20, 4


def activations(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, D_MODEL, dtype=torch.float64)


def padding() -> Tensor:
    return torch.arange(LENGTH) < torch.tensor([LENGTH, 5, 2])[:, None]


def torch_twin(attention: Attention) -> nn.MultiheadAttention:
    """Return torch's layer with the same weights."""
    twin = nn.MultiheadAttention(D_MODEL, N_HEADS, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        twin.in_proj_weight.copy_(attention.heads.packed.linear.weight)
        twin.in_proj_bias.copy_(attention.heads.packed.linear.bias)
        twin.out_proj.weight.copy_(attention.combiner.to_residual.weight)
        twin.out_proj.bias.copy_(attention.combiner.to_residual.bias)
    return twin


@pytest.mark.parametrize("path", ["readable", "fused", "products", "recomputed", "chunked"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_torch_multihead_attention(path: str, causal: bool, padded: bool) -> None:
    attention = Attention(D_MODEL, N_HEADS, causal=causal, path=path).double()
    x, real = activations(), padding() if padded else None
    forbidden = ~Causal().allowed(LENGTH, LENGTH) if causal else None  # torch's masks are the inverse: True = may not
    expected, weights = torch_twin(attention)(
        x, x, x, attn_mask=forbidden, key_padding_mask=None if real is None else ~real, average_attn_weights=False
    )
    torch.testing.assert_close(attention(x, padding=real), expected)
    torch.testing.assert_close(attention.trace(x, padding=real).weights, weights)


def test_equals_torch_on_another_sequence() -> None:
    attention, x, memory = Attention(D_MODEL, N_HEADS).double(), activations(), activations(length=11)
    torch.testing.assert_close(attention(x, memory), torch_twin(attention)(x, memory, memory)[0])


def test_heads_equal_torch_scaled_dot_product_attention() -> None:
    attention, x = Attention(D_MODEL, N_HEADS, causal=True, path="readable").double(), activations()
    trace = attention.trace(x)
    expected = F.scaled_dot_product_attention(trace.q, trace.k, trace.v, is_causal=True)
    torch.testing.assert_close(trace.head_outputs, expected)


def test_talking_heads_that_do_not_talk_are_plain() -> None:
    talking = Attention(D_MODEL, N_HEADS, combiners="talking-heads").double()
    plain = Attention(D_MODEL, N_HEADS).double()
    plain.load_state_dict(talking.state_dict(), strict=False)
    x = activations()
    torch.testing.assert_close(talking(x), plain(x))


def test_grouped_heads_with_a_group_each_are_split_heads() -> None:
    grouped = Attention(D_MODEL, N_HEADS, heads={"name": "grouped", "n_kv_heads": N_HEADS}).double()
    split = Attention(D_MODEL, N_HEADS).double()
    split.load_state_dict(grouped.state_dict())
    x = activations()
    torch.testing.assert_close(grouped(x), split(x))


def test_neighboring_query_heads_share_a_key_head() -> None:
    attention = Attention(D_MODEL, N_HEADS, heads={"name": "grouped", "n_kv_heads": 2}, path="readable").double()
    trace = attention.trace(activations())
    torch.testing.assert_close(trace.scores[:, 1], trace.q[:, 1] @ trace.k[:, 0].transpose(-2, -1) / 5**0.5)
    torch.testing.assert_close(trace.scores[:, 2], trace.q[:, 2] @ trace.k[:, 1].transpose(-2, -1) / 5**0.5)


def test_the_common_case_builds_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    real = F.scaled_dot_product_attention

    def watched(*tensors: Tensor, **options: Any) -> Tensor:
        seen.append(options)
        return real(*tensors, **options)

    monkeypatch.setattr(module_under_test.F, "scaled_dot_product_attention", watched)
    Attention(D_MODEL, N_HEADS, causal=True).double()(activations())
    assert seen == [
        {"attn_mask": None, "dropout_p": 0.0, "is_causal": True, "scale": 5**-0.5, "enable_gqa": False},
    ]


@pytest.mark.parametrize(
    "masks",
    [
        ["causal", {"name": "window", "width": 3}],
        Causal() & Window(3),
    ],
    ids=["list", "object"],
)
def test_masks_of_a_list_are_joined(masks: Any) -> None:
    attention = Attention(D_MODEL, N_HEADS, masks=masks).double()
    allowed = torch.ones(LENGTH, LENGTH).tril().triu(-2).bool()
    assert torch.equal(attention.mask.allowed(LENGTH, LENGTH), allowed)
    weights = attention.trace(activations()).weights
    assert torch.all((weights > 0) == allowed)


def test_causal_is_added_to_any_mask() -> None:
    attention = Attention(D_MODEL, N_HEADS, masks={"name": "window", "width": 3}, causal=True)
    assert torch.equal(attention.mask.allowed(5, 5), (Causal() & Window(3)).allowed(5, 5))
    assert Attention(D_MODEL, N_HEADS, masks="causal", causal=True).mask.kind == "causal"


@pytest.mark.parametrize("path", ["readable", "fused", "products", "chunked"])
def test_dropout_keeps_the_mean(path: str) -> None:
    attention = Attention(D_MODEL, N_HEADS, dropout=0.4, path=path).double()
    x = activations()
    many = x.repeat(600, 1, 1)
    spread = attention.train()(many).unflatten(0, (600, BATCH))
    error = (spread.mean(0) - attention.eval()(x)) / (spread.std(0) / 600**0.5)
    assert spread.std(0).min() > 0
    assert error.abs().max() < 6  # 420 numbers, each within 6 standard errors


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"scores": "additive"}, "score 'additive' is no dot product"),
        ({"normalizers": "sparsemax"}, "normalizer 'sparsemax' is no softmax"),
        ({"combiners": "talking-heads"}, "combiner 'talking-heads' mixes scores or weights of different heads"),
    ],
)
def test_a_fused_path_that_does_not_exist(part: dict[str, str], reason: str) -> None:
    for path in ("fused", "products", "recomputed"):
        assert Attention(D_MODEL, N_HEADS, **part).obstacle(path) == reason
        with pytest.raises(SpecError, match=f"path '{path}' is impossible: {reason}; choose path 'auto'"):
            Attention(D_MODEL, N_HEADS, path=path, **part)


@pytest.mark.parametrize(
    ("path", "spec", "reason"),
    [
        ("local", {"causal": True}, r"mask Causal\(\) lets a query see any distance"),
        ("recomputed", {"dropout": 0.1}, "dropout needs weights that are kept"),
        ("recomputed", {"positions": "relative-bias"}, "positions learn a bias, which it gives no gradient"),
    ],
)
def test_a_path_that_a_composition_does_not_have(path: str, spec: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=f"path '{path}' is impossible: {reason}; choose path 'auto'"):
        Attention(D_MODEL, N_HEADS, path=path, **spec)


def seen_way(monkeypatch: pytest.MonkeyPatch, attention: Attention, x: Tensor) -> list[str]:
    """Return what one call went through: how the matrix was cut, and which way of dot products was taken."""
    seen = []
    for name in ("in_blocks", "in_chunks"):
        real = getattr(module_under_test, name)
        monkeypatch.setattr(module_under_test, name, lambda *a, n=name, r=real, **o: (seen.append(n), r(*a, **o))[1])
    choose = module_under_test.fastest
    monkeypatch.setattr(
        module_under_test, "fastest", lambda given: (seen.append(choose(given).__name__), choose(given))[1]
    )
    attention(x)
    return seen


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ({}, ["fused"]),
        ({"masks": {"name": "window", "width": 3}}, ["in_blocks", "fused"]),
        ({"masks": {"name": "window", "width": 200}}, ["fused"]),
        ({"masks": {"name": "window", "width": 3}, "normalizers": "sigmoid"}, ["in_blocks"]),
        ({"scores": "additive"}, []),
        ({"scores": {"name": "additive", "d_hidden": 500}}, ["in_chunks"]),
    ],
)
def test_auto_takes_the_path_that_fits(monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], seen: list[str]) -> None:
    attention = Attention(D_MODEL, N_HEADS, causal=True, **spec)
    assert seen_way(monkeypatch, attention, torch.randn(1, 211, D_MODEL)) == seen


@pytest.mark.parametrize("path", ["local", "chunked"])
def test_pieces_keep_memory_that_grows_with_the_length(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(module_under_test, "LARGEST_BYTES", 10_000)
    kept = {}
    for which in (path, "readable"):
        layer = Attention(D_MODEL, N_HEADS, masks={"name": "window", "width": 3}, scores="additive", path=which)
        for length in (512, 1024):
            with kept_bytes(layer) as total:
                layer(torch.randn(1, length, D_MODEL))
            kept[which, length] = total()
    assert kept[path, 1024] / kept[path, 512] < 2.1
    assert kept["readable", 1024] / kept["readable", 512] > 3.5


def test_padding_of_another_length_is_an_error_in_every_path() -> None:
    for path in ("readable", "fused", "products", "recomputed", "chunked", "local"):
        attention = Attention(D_MODEL, N_HEADS, masks={"name": "window", "width": 3}, path=path).double()
        with pytest.raises(ModuleError, match="padding has 7 positions; got 5 keys"):
            attention(activations(length=5), padding=padding())


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"positions": "sinusoidal"}, "positions 'sinusoidal' belong to the input: give them to the model"),
        ({"dropout": 1.0}, r"dropout must be a probability in \[0, 1\); got 1.0"),
        ({"n_heads": 3}, "heads 'split': n_heads must divide d_model; got d_model=20, n_heads=3"),
        ({"scores": "dott"}, "unknown score 'dott'; did you mean 'dot'?"),
        ({"masks": ["causal", "windw"]}, "unknown mask 'windw'; did you mean 'window'?"),
        ({"scores": {"name": "additive", "d_hidden": 2.5}}, "score 'additive': 'd_hidden' must be"),
        ({"path": "quick"}, "'path' must be"),
        ({"heads": "full-width", "combiners": "concatenate"}, "n_heads \\* d_v must be d_model"),
    ],
)
def test_bad_specifications(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=f"mixer 'attention': .*{text}"):
        build({"name": "attention", "n_heads": N_HEADS, **spec}, MIXERS, axis="mixer", offered={"d_model": D_MODEL})


class DistanceScore(AbstractScore):
    """Score a pair by minus the squared distance: written for a test, the way a new entry would be."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return -torch.cdist(q, k).pow(2)

    def as_dot(self, q: Tensor, k: Tensor) -> AsDot | None:
        return None


def test_a_new_score_is_one_class_and_one_table_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, "distance", DistanceScore)
    spec = {"name": "attention", "n_heads": N_HEADS, "scores": "distance", "positions": "linear-bias"}
    attention = build(spec, MIXERS, axis="mixer", offered={"d_model": D_MODEL, "causal": True}).double()
    x = activations().requires_grad_()
    trace = attention.trace(x, padding=padding())
    torch.testing.assert_close(attention(x, padding=padding()), trace.output)
    by_hand = -(trace.q[1, 2, 5] - trace.k[1, 2, 3]).pow(2).sum() - 2 * 2**-6.0
    torch.testing.assert_close(trace.scores[1, 2, 5, 3], by_hand)
    (gradient,) = torch.autograd.grad(attention(x)[:, 3].pow(2).sum(), x)
    assert torch.all(gradient[:, 4:] == 0)
    assert attention.obstacle("fused") == "score 'distance' is no dot product"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            (torch.zeros(2, 5, 32),),
            r"x must be numbers of shape \(batch, length, 16\); got \(2, 5, 32\), torch.float32",
        ),
        ((torch.zeros(2, 16, dtype=torch.long),), r"x must be numbers of shape .*; got \(2, 16\), torch.int64"),
        ((torch.zeros(2, 5, 16), torch.zeros(2, 7, 8)), r"memory must be numbers of shape .*; got \(2, 7, 8\)"),
        ((torch.zeros(2, 5, 16), torch.zeros(3, 7, 16)), r"as many sequences; got \(2, 5, 16\) and \(3, 7, 16\)"),
        ((torch.zeros(2, 5, 16), None, torch.zeros(2, 5)), "padding must hold booleans, True at real positions; got"),
    ],
)
def test_what_cannot_be_read_is_named(given, said):
    with pytest.raises(ModuleError, match=said):
        Attention(16, 2)(*given)
