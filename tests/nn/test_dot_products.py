"""Every way to compute softmax attention of dot products is the formula, in every type, batched and compiled."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from attnlab.nn.kernels.dot_products import WAYS, DotProduct, fastest, fused, products, recomputed

BATCH, HEADS, KV_HEADS, Q_LEN, K_LEN, D_HEAD, D_V = 3, 4, 2, 7, 11, 6, 5
TOLERANCES = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},  # 8 bits of mantissa, rounded after every step
}
FORMS = ("everything", "causal", "allowed", "allowed by sequence", "bias", "bias and allowed")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the backward pass need several blocks."""
    monkeypatch.setattr("attnlab.nn.kernels.recomputed.BLOCK_NUMBERS", 130)


def given(form: str = "everything", dtype: torch.dtype = torch.float64, **changes: Any) -> DotProduct:
    """Return queries, keys and values with fixed numbers; the second query may see nothing where a form can say so."""
    draw = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    q_len = K_LEN if form == "causal" else Q_LEN
    kv_heads = changes.pop("kv_heads", KV_HEADS)
    q = normal(BATCH, HEADS, q_len, D_HEAD)
    k, v = normal(BATCH, kv_heads, K_LEN, D_HEAD), normal(BATCH, kv_heads, K_LEN, D_V)
    allowed = torch.rand(BATCH, 1, q_len, K_LEN, generator=draw) > 0.4
    allowed[:, :, 1] = False
    bias = normal(HEADS, q_len, K_LEN).detach()
    options: dict[str, Any] = {"is_causal": form == "causal"}
    if "allowed" in form:
        options["allowed"] = allowed if "sequence" in form else allowed[0, 0]
    if "bias" in form:
        options["bias"] = bias
    return DotProduct(q, k, v, 0.4, **(options | changes))


def formula(asked: DotProduct) -> Tensor:
    """Return the definition, in the type of its arguments."""
    k, v = (x.repeat_interleave(HEADS // x.shape[1], dim=1) for x in (asked.k, asked.v))
    scores = asked.scale * asked.q @ k.transpose(-2, -1)
    scores = scores if asked.bias is None else scores + asked.bias
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool) if asked.allowed is None else asked.allowed
    allowed = allowed.tril() if asked.is_causal else allowed
    powers = (scores - scores.detach().amax(-1, keepdim=True)).exp() * allowed
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-30) @ v


def with_gradients(way: Any, asked: DotProduct) -> list[Tensor]:
    output = way(asked)
    return [output, *torch.autograd.grad(output.pow(2).sum(), (asked.q, asked.k, asked.v))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("kv_heads", [1, KV_HEADS, HEADS])
def test_every_way_is_the_formula(way: str, form: str, dtype: torch.dtype, kv_heads: int) -> None:
    asked = given(form, dtype, kv_heads=kv_heads)
    exact = dataclasses.replace(
        asked, **{name: getattr(asked, name).detach().double().requires_grad_() for name in "qkv"}
    )
    for found, expected in zip(with_gradients(WAYS[way], asked), with_gradients(formula, exact), strict=True):
        assert found.dtype == dtype
        scale = expected.abs().max()  # gradients of a sum of squares are as large as they are many
        torch.testing.assert_close(found.double() / scale, expected / scale, **TOLERANCES[dtype])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["allowed", "bias and allowed"])
def test_a_query_that_sees_nothing_gets_exact_zeros(way: str, dtype: torch.dtype, form: str) -> None:
    asked = given(form, dtype)
    output, toward_q, *others = with_gradients(WAYS[way], asked)
    assert torch.all(output[:, :, 1] == 0)
    assert torch.all(toward_q[:, :, 1] == 0)
    assert all(torch.isfinite(x).all() for x in (toward_q, *others))


def test_products_have_second_derivatives_and_a_gradient_of_the_bias() -> None:
    asked = given("bias and allowed")
    bias = asked.bias.clone().requires_grad_()

    def call(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
        return products(dataclasses.replace(asked, q=q, k=k, bias=bias))[:1, :, :3]

    assert torch.autograd.gradcheck(call, (asked.q, asked.k, bias))
    assert torch.autograd.gradgradcheck(call, (asked.q, asked.k, bias))


def test_recomputed_says_that_it_has_no_second_derivative() -> None:
    asked = given("causal")
    (gradient,) = torch.autograd.grad(recomputed(asked).pow(2).sum(), asked.q, create_graph=True)
    with pytest.raises(RuntimeError, match=r"attend_backward.* no autograd formula"):
        gradient.sum().backward()


@pytest.mark.parametrize(
    ("compiled", "form", "way"),
    [
        *itertools.product(["eager"], FORMS, ["products", "recomputed"]),
        *(("compiled", form, "recomputed") for form in FORMS),
        # torch's own operators throughout: two of their forms stand for all
        *(("compiled", form, "products") for form in ("causal", "bias and allowed")),
    ],
)
def test_many_at_once_are_one_by_one(compiled: str, form: str, way: str) -> None:
    asked = [given(form), given(form)]
    q, k, v = (torch.stack([getattr(one, name) * (1 + index) for index, one in enumerate(asked)]) for name in "qkv")
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))

    def many(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return vmap(lambda q, k, v: WAYS[way](dataclasses.replace(asked[0], q=q, k=k, v=v)))(q, k, v)

    torch.compiler.reset()  # each form is a program of its own, and torch keeps few of one function
    call = torch.compile(many, fullgraph=True, backend="aot_eager") if compiled == "compiled" else many
    together = call(q, k, v)
    gradients = torch.autograd.grad(together.pow(2).sum(), (q, k, v))
    for index in range(2):
        parts = [x[index].detach().requires_grad_() for x in (q, k, v)]
        alone = with_gradients(WAYS[way], dataclasses.replace(asked[0], **dict(zip("qkv", parts, strict=True))))
        for found, expected in zip((together[index], *(x[index] for x in gradients)), alone, strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("in_dims", [(0, 1, 2), (0, None, None), (None, 3, 0)])
def test_recomputed_maps_any_axis_of_any_argument(in_dims: tuple[int | None, ...]) -> None:
    asked = given("allowed by sequence")
    masks = torch.stack([asked.allowed, ~asked.allowed])
    parts = [
        getattr(asked, name) if dim is None else torch.stack([getattr(asked, name)] * 2, dim=dim)
        for name, dim in zip("qkv", in_dims, strict=True)
    ]

    def one(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        return recomputed(dataclasses.replace(asked, q=q, k=k, v=v, allowed=allowed))

    for found, allowed in zip(vmap(one, (*in_dims, 0))(*parts, masks), masks, strict=True):
        torch.testing.assert_close(found, recomputed(dataclasses.replace(asked, allowed=allowed)))


@pytest.mark.parametrize("way", ["products", "recomputed"])
def test_autocast_computes_in_its_own_type_throughout(way: str) -> None:
    asked = given("allowed", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output, *gradients = with_gradients(WAYS[way], asked)
        reference = fused(asked)
    assert output.dtype == reference.dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    torch.testing.assert_close(output, reference, **TOLERANCES[torch.bfloat16])


def test_dropout_keeps_the_mean_of_the_weights() -> None:
    asked = given("causal")
    torch.manual_seed(3)
    many = torch.stack([products(dataclasses.replace(asked, dropout=0.3)) for _ in range(900)]).detach()
    error = (many.mean(0) - products(asked)) / (many.std(0) / 900**0.5)
    assert many.std(0).min() > 0
    assert error.abs().max() < 6  # 660 numbers, each within 6 standard errors


def sized(dtype: torch.dtype, batch: int, length: int) -> DotProduct:
    x = torch.empty(batch, 8, length, 4, dtype=dtype).requires_grad_()
    return DotProduct(x, x, x, 1.0, is_causal=True)


def test_the_fastest_way_depends_on_type_and_size() -> None:
    assert fastest(sized(torch.float32, 2, 64)) is fused
    assert fastest(sized(torch.bfloat16, 2, 64)) is products
    assert fastest(sized(torch.bfloat16, 64, 256)) is recomputed
    assert fastest(sized(torch.bfloat16, 64, 1024)) is fused
    assert fastest(dataclasses.replace(sized(torch.bfloat16, 64, 256), dropout=0.1)) is products
    with torch.no_grad():
        assert fastest(sized(torch.bfloat16, 2, 64)) is fused
    with torch.autocast("cpu", torch.bfloat16):
        assert fastest(sized(torch.float32, 2, 64)) is products
        assert fastest(sized(torch.float64, 2, 64)) is fused


def test_under_vmap_the_fastest_way_has_a_batching_rule() -> None:
    chosen = []

    def one(q: Tensor) -> Tensor:
        asked = DotProduct(q, q, q, 1.0)
        chosen.append(fastest(asked))
        return chosen[-1](asked)

    vmap(one)(torch.randn(2, 3, 4, 5, 6))
    assert chosen == [products]
