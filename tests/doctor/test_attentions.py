"""Attention is found in any code, in one canonical form."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.little import Base, causal, examined
from torch import nn
from torch.nn import functional as F

from attnlab.inspection.tape.attentions import attentions


class Masked(Base):
    def weights(self, scores):
        return F.dropout(scores.masked_fill(causal(scores), float("-inf")).softmax(-1), 0.3, self.training)


class Fused(Base):
    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class Einsum(Base):
    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.h, self.d)) for part in (self.q, self.k, self.v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / self.d**0.5
        return self.o(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))


class HeadsThenBatch(Base):
    def forward(self, x):
        q, k, v = (torch.cat(part(x).split(self.d, -1), 0) for part in (self.q, self.k, self.v))
        out = self.scores(q, k).softmax(-1) @ v
        return self.o(torch.cat(out.chunk(self.h, 0), -1))


class WrittenOut(Base):
    def weights(self, scores):
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)


class SharedKeys(Base):
    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.k(x)[..., : self.d], self.v(x)[..., : self.d]
        scores = torch.einsum("bhid,bjd->bhij", q, k) / self.d**0.5
        return self.o(self.merge(torch.einsum("bhij,bjd->bhid", scores.softmax(-1), v)))


class SequenceInside(Base):
    def forward(self, x):
        x = x.transpose(0, 1)  # (length, batch, d_model)
        length, batch, _ = x.shape
        q, k, v = (part(x).view(length, batch * self.h, self.d).transpose(0, 1) for part in (self.q, self.k, self.v))
        out = torch.bmm(torch.bmm(q / self.d**0.5, k.mT).softmax(-1), v)
        return self.o(out.transpose(0, 1).reshape(length, batch, -1)).transpose(0, 1)


class Written(Base):
    """Everything in place, into tensors made before."""

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.empty(x.shape[0], self.h, x.shape[1], x.shape[1], dtype=x.dtype)
        scores[:] = q @ k.mT
        scores /= self.d**0.5
        scores.masked_fill_(causal(scores), float("-inf"))
        return self.o(self.merge(scores.softmax(-1) @ v))


WHOLE = (Base, Masked, Fused, Einsum, HeadsThenBatch, WrittenOut, SharedKeys, SequenceInside, Written)


@pytest.mark.parametrize("written", WHOLE)
def test_one_form_for_all_ways_to_write_it(written):
    exam = examined(written)
    (found,) = attentions(exam.usual_tape, exam.convention)
    module, x = exam.eval_module, exam.inputs()
    q = module.split(module.q(x))
    assert (found.normalizer, found.normalized_over, found.along) == ("softmax", "keys", "positions")
    assert found.weights.shape == (3, 4, 11, 11)
    assert torch.allclose(found.scores.softmax(-1), found.weights)
    assert torch.allclose(found.weights @ found.v, found.head_outputs)
    assert torch.allclose(found.q @ found.k.mT, found.products)
    factor = (found.q / q).detach()  # the scale may be folded into q
    assert torch.allclose(factor, factor[0, 0, 0, 0])


@pytest.mark.parametrize("written", WHOLE)
def test_changing_a_row_changes_no_other(written):
    exam = examined(written)
    (found,) = attentions(exam.usual_tape, exam.convention)
    change = found.change_row(5, torch.neg)
    (moved,) = attentions(exam.tape(exam.inputs(), change=change), exam.convention)
    expected = found.head_outputs.clone()
    expected[:, :, 5] *= -1
    assert torch.allclose(moved.head_outputs, expected)


class Looped(Base):
    def forward(self, x):
        outputs = []
        for head in range(self.h):
            part = slice(head * self.d, (head + 1) * self.d)
            q, k, v = self.q(x)[..., part], self.k(x)[..., part], self.v(x)[..., part]
            outputs.append(self.scores(q, k).softmax(-1) @ v)
        return self.o(torch.cat(outputs, -1))


def test_heads_in_a_loop_are_attentions_of_one_head():
    exam = examined(Looped)
    found = attentions(exam.usual_tape, exam.convention)
    assert [each.weights.shape for each in found] == [(3, 1, 11, 11)] * 4
    assert all(torch.allclose(each.q @ each.k.mT, each.products) for each in found)


@pytest.mark.parametrize(("axis", "over"), [(0, "batch"), (1, "heads"), (2, "queries"), (3, "keys")])
def test_the_axis_of_a_softmax(axis, over):
    class Over(Base):
        def weights(self, scores):
            return scores.softmax(axis)

    class WrittenOver(Base):
        def weights(self, scores):
            return scores.exp() / scores.exp().sum(axis, keepdim=True)

    for written in (Over, WrittenOver):
        exam = examined(written)
        (found,) = attentions(exam.usual_tape, exam.convention)
        assert found.normalized_over == over


def test_a_softmax_over_all_pairs_is_over_no_one_axis():
    class Flat(Base):
        def weights(self, scores):
            return scores.flatten(2).softmax(-1).view_as(scores)

    exam = examined(Flat)
    (found,) = attentions(exam.usual_tape, exam.convention)
    assert found.normalized_over == "unknown"


class OverHeads(Base):
    def split(self, x):
        return x.unflatten(-1, (self.h, self.d))  # (batch, length, heads, d_head)

    split_q = split_k = split_v = split

    def merge(self, out):
        return out.flatten(2)


class BatchAsTime(Base):
    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(
    ("written", "along", "shape"), [(OverHeads, "heads", (3, 11, 4, 4)), (BatchAsTime, "samples", (11, 4, 3, 3))]
)
def test_what_the_keys_are(written, along, shape):
    exam = examined(written)
    (found,) = attentions(exam.usual_tape, exam.convention)
    assert (found.along, found.weights.shape) == (along, shape)


class Additive(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.vector = nn.Linear(self.d, 1, bias=False)

    def scores(self, q, k):
        return self.vector(torch.tanh(q[..., :, None, :] + k[..., None, :, :])).squeeze(-1)


class Pooling(Base):
    def forward(self, x):
        return ((x @ self.q.weight[0]).softmax(1)[..., None] * x).sum(1)


class Sigmoid(Base):
    def weights(self, scores):
        return scores.sigmoid()


class Retention(Base):
    def weights(self, scores):
        at = torch.arange(scores.shape[-1])
        return scores * (0.9 ** (at[:, None] - at)).tril()


@pytest.mark.parametrize(
    ("written", "normalizer", "q_len"),
    [(Additive, "softmax", 11), (Pooling, "softmax", 1), (Sigmoid, "other", 11), (Retention, "none", 11)],
)
def test_other_scores_and_other_normalizers(written, normalizer, q_len):
    exam = examined(written, pooled=written is Pooling)
    (found,) = attentions(exam.usual_tape, exam.convention)
    assert found.normalizer == normalizer
    assert found.weights.shape[2:] == (q_len, 11)
    assert torch.allclose(found.weights @ found.v, found.head_outputs)


class Linear(Base):
    def forward(self, x):
        q, k, v = (F.elu(self.split(part(x))) + 1 for part in (self.q, self.k, self.v))
        return self.o(self.merge(q @ (k.mT @ v) / (q @ k.sum(2)[..., None])))


class Efficient(Base):
    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        return self.o(self.merge(q.softmax(-1) @ (k.softmax(2).mT @ v)))


class Mixer(Base):
    def forward(self, x):
        return self.o(F.gelu(self.q(x)).softmax(-1))


@pytest.mark.parametrize("written", [Linear, Efficient, Mixer])
def test_what_has_no_weights_over_positions_is_not_found(written):
    exam = examined(written)
    assert attentions(exam.usual_tape, exam.convention) == []


def test_all_attentions_of_a_stack_with_memory():
    class Stack(nn.Module):
        def __init__(self, d_model, n_heads):
            super().__init__()
            self.one = nn.TransformerEncoderLayer(d_model, n_heads, 24, batch_first=True)
            self.two = nn.TransformerDecoderLayer(d_model, n_heads, 24, batch_first=True)

        def forward(self, x):
            return self.two(self.one(x), x)

    exam = examined(Stack)
    found = attentions(exam.usual_tape, exam.convention)
    assert [each.where for each in found] == ["one.self_attn", "two.self_attn", "two.multihead_attn"]
    assert all(each.along == "positions" and each.weights.shape == (3, 4, 11, 11) for each in found)
