"""One's own attention in models of transformers: the same answers where it is the same attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.models.checkpoints import VOCAB, bert, gpt2, llama, saved
from torch import nn

import attnlab
from attnlab.core.errors import ModuleError, SpecError

transformers = pytest.importorskip("transformers")

SEEN: list[tuple[int, ...]] = []


class Own:
    """What a person writes."""

    def __call__(self, q, k, v, allowed):
        SEEN.append(tuple(q.shape))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v


class OwnModule(nn.Module):
    def forward(self, q, k, v, allowed):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def read(*, left: bool = False) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, VOCAB, (2, 7), generator=torch.Generator().manual_seed(3))
    real = torch.ones_like(tokens)
    real[1, slice(0, 3) if left else slice(4, None)] = 0
    return {"input_ids": tokens, "attention_mask": real}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("attention", [{}, Own, OwnModule(), F.scaled_dot_product_attention], ids=str)
@pytest.mark.parametrize("made", [gpt2(), gpt2(scale_attn_weights=False), llama(), bert()], ids=str)
def test_plain_attention_gives_the_answers_of_transformers(made, attention, left, tmp_path):
    model, given = saved(tmp_path, made), read(left=left)
    real = given["attention_mask"].bool()
    with torch.no_grad():
        wanted = model(**given).logits[real]
        model.set_attn_implementation(attnlab.as_huggingface(attention, name="attnlab_test"))
        assert torch.allclose(model(**given).logits[real], wanted, rtol=0.0, atol=1e-5)


def test_the_attention_is_what_is_called_and_texts_are_continued_with_kept_keys(tmp_path):
    model, given = saved(tmp_path, llama()), read(left=True)
    how = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(**given, **how)
    model.set_attn_implementation(attnlab.as_huggingface(Own))
    SEEN.clear()
    assert torch.equal(model.generate(**given, **how), wanted)
    assert {(2, 4, 7, 6), (2, 4, 1, 6)} <= set(SEEN)


def test_other_axes_of_the_lab_give_other_answers_and_respect_masks(tmp_path):
    model, given = saved(tmp_path, gpt2()), read()
    with torch.no_grad():
        plain = model(**given).logits
        model.set_attn_implementation(attnlab.as_huggingface({"normalizers": "sparsemax"}))
        sparse = model(**given).logits
        given["input_ids"][0, 5:] += 1 - 2 * (given["input_ids"][0, 5:] > 3).long()
        assert torch.allclose(model(**given).logits[0, :5], sparse[0, :5], atol=1e-6)
    assert not torch.allclose(plain, sparse, atol=1e-3)


@pytest.mark.parametrize("made", [gpt2(), llama(), bert()], ids=str)
def test_where_nothing_is_hidden_all_is_allowed(made, tmp_path):
    model, tokens = saved(tmp_path, made), read()["input_ids"]
    with torch.no_grad():
        wanted = model(tokens).logits
        model.set_attn_implementation(attnlab.as_huggingface(Own))
        assert torch.allclose(model(tokens).logits, wanted, rtol=0.0, atol=1e-5)


def test_a_second_attention_leaves_the_first_one_where_it_is(tmp_path):
    model, given = saved(tmp_path, gpt2()), read()
    with torch.no_grad():
        model.set_attn_implementation(attnlab.as_huggingface(Own))
        before = model(**given).logits
        attnlab.as_huggingface(lambda q, k, v, allowed: torch.zeros_like(q))
        assert torch.equal(model(**given).logits, before)


class Heavy(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("attention", "text"),
    [
        (Heavy, "Heavy has weights, which a model of transformers would neither train nor save"),
        ("attention", "must be a callable, a class or a mapping of axes; got 'attention'"),
    ],
)
def test_what_cannot_be_registered(attention, text):
    with pytest.raises(SpecError, match=text):
        attnlab.as_huggingface(attention)


@pytest.mark.parametrize(
    ("attention", "error", "text"),
    [
        (
            lambda q, k, v, allowed: q[:, :1],
            ModuleError,
            r"must return the heads' outputs, \(2, 3, 7, 4\); got \(2, 1, 7, 4\)",
        ),
        (lambda q, k, v, allowed: (q, None), ModuleError, r"must return the heads' outputs.*got tuple"),
        (lambda q, k, v, allowed: q @ k, ModuleError, r"the attention 'attnlab-\d+' raised RuntimeError"),
        ({"scores": "bilinear"}, SpecError, "BilinearScore has weights"),
    ],
    ids=["shape", "tuple", "raises", "weights"],
)
def test_what_goes_wrong_while_a_model_calls(attention, error, text, tmp_path):
    model = saved(tmp_path, gpt2())
    model.set_attn_implementation(attnlab.as_huggingface(attention))
    with pytest.raises(error, match=text):
        model(**read())


def test_what_the_attention_is_not_told_of_is_refused():
    from transformers import AttentionInterface

    q = torch.randn(1, 2, 3, 4)
    forward = AttentionInterface()[attnlab.as_huggingface(Own)]
    with pytest.raises(ModuleError, match=r"Linear gives softcap to its attention, which 'attnlab-\d+' is not told"):
        forward(nn.Linear(1, 1), q, q, q, None, softcap=3.0)


def test_without_transformers(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(SpecError, match="needs a newer transformers: pip install -U transformers"):
        attnlab.as_huggingface(Own)
