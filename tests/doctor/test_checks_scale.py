"""Logits that grow or shrink with the size of a head are errors, whatever the code looks like; excuses are excuses."""

from __future__ import annotations

import math

import pytest
import torch
from tests.doctor.bedside import examine
from tests.doctor.little import Base, examined
from torch import nn
from torch.nn import functional as F

from attnlab.doctor.checks.scale import check_scale
from attnlab.doctor.measures.logit_size import logit_sizes


class Missing(Base):
    def scores(self, q, k):
        return q @ k.mT


class Doubled(Base):
    def scores(self, q, k):
        return q @ k.mT / self.d


class RootForgotten(Base):
    """Attention with scores scaled by 1 / d_k ** 0.5."""

    def scores(self, q, k):
        factor = 1 / self.d
        return q @ k.mT * factor


class Inverted(Base):
    def scores(self, q, k):
        return q @ k.mT / self.d**-0.5


class FusedAndByHand(Base):
    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.o(self.merge(F.scaled_dot_product_attention(q / self.d**0.5, k, v)))


class ByWidth(Base):
    def scores(self, q, k):
        return q @ k.mT / self.q.out_features**0.5


class ByLength(Base):
    def scores(self, q, k):
        return q @ k.mT / k.shape[-2] ** 0.5


class Fixed(Base):
    def scores(self, q, k):
        return q @ k.mT / 8


class MissingWithBias(Base):
    """A bias as large as the products must not hide them."""

    def scores(self, q, k):
        at = torch.arange(q.shape[-2])
        return q @ k.mT - 3.0 * (at[:, None] - at).abs()


class MissingSmallStart(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        for part in (self.q, self.k):
            nn.init.normal_(part.weight, std=0.02)

    def scores(self, q, k):
        return q @ k.mT


BROKEN = {
    Missing: "are not scaled: the logits grow",
    Doubled: "twice: the logits shrink",
    RootForgotten: "twice: the logits shrink",
    Inverted: "divided by what must multiply them: the logits grow",
    FusedAndByHand: "twice: the logits shrink",
    ByWidth: "by the width of the model, not of a head: the logits grow",
    ByLength: "by the length: the logits grow",
    Fixed: "not scaled by d_head ** -0.5: the logits grow",
    MissingWithBias: "are not scaled",
    MissingSmallStart: "are not scaled",
}


@pytest.mark.parametrize("written", BROKEN)
def test_a_wrong_scale_is_an_error_that_names_it(written):
    (found,) = check_scale(examined(written))
    assert (found.check, found.severity) == ("scale", "error")
    assert BROKEN[written] in found.message
    assert "slope" in found.evidence
    assert "d_head ** -0.5" in found.remedy


def test_the_width_is_named_where_its_root_is_the_size_of_a_head():
    sizes = {"d_model": 64, "n_heads": 8}  # both would explain the factor, and only one that logits grow
    (found,) = check_scale(examined(ByWidth, sizes=sizes, d_in=64, d_out=64))
    assert BROKEN[ByWidth] in found.message


class ScaledQueries(Base):
    def scores(self, q, k):
        return (q / self.d**0.5) @ k.mT


class Fused(Base):
    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v)))


class ScaleInTheStart(Base):
    """No factor: the queries start smaller instead."""

    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        nn.init.normal_(self.q.weight, std=(d_model * self.d) ** -0.5)
        nn.init.normal_(self.k.weight, std=d_model**-0.5)
        nn.init.zeros_(self.q.bias)

    def scores(self, q, k):
        return q @ k.mT


class Cosine(Base):
    def scores(self, q, k):
        return 10.0 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT


class NormedQueriesAndKeys(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.q_norm, self.k_norm = nn.RMSNorm(self.d), nn.LayerNorm(self.d)

    def scores(self, q, k):
        return self.q_norm(q) @ self.k_norm(k).mT


class Temperature(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.temperature = nn.Parameter(torch.zeros(n_heads, 1, 1))

    def scores(self, q, k):
        return q @ k.mT * self.temperature.exp()


class MaximalUpdate(Base):
    """Scaled by 1 / d_head, on purpose."""

    def scores(self, q, k):
        return q @ k.mT / self.d


class Additive(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.vector = nn.Linear(self.d, 1, bias=False)

    def scores(self, q, k):
        return self.vector(torch.tanh(q[..., :, None, :] + k[..., None, :, :])).squeeze(-1)


class LayerEach(Base):
    """A projection for each head, with a start that depends on its width."""

    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.queries = nn.ModuleList(nn.Linear(d_model, self.d) for _ in range(n_heads))
        self.keys = nn.ModuleList(nn.Linear(d_model, self.d) for _ in range(n_heads))
        for part in (*self.queries, *self.keys):
            nn.init.xavier_uniform_(part.weight)

    def forward(self, x):
        q = torch.stack([part(x) for part in self.queries], 1)
        k = torch.stack([part(x) for part in self.keys], 1)
        return self.o(self.merge(self.scores(q, k).softmax(-1) @ self.split(self.v(x))))


class SmallStart(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        for part in (self.q, self.k):
            nn.init.normal_(part.weight, std=0.02)


class Biased(Base):
    def scores(self, q, k):
        at = torch.arange(q.shape[-2])
        return q @ k.mT / self.d**0.5 - 3.0 * (at[:, None] - at).abs()


class SharedQueriesAndKeys(Base):
    def forward(self, x):
        q = self.split(self.q(x))
        return self.o(self.merge(self.scores(q, q).softmax(-1) @ self.split(self.v(x))))


class Rotated(Base):
    def scores(self, q, k):
        angle = torch.arange(q.shape[-2])[:, None] * 0.5 ** torch.arange(self.d // 2)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

        def turned(x):
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin

        return turned(q) @ turned(k).mT / self.d**0.5


class RotatedAsComplex(Base):
    """Rotary positions by complex numbers; what torch fuses scales queries and keys, each by the root."""

    def forward(self, x):
        q, k = self.turned(self.split(self.q(x))), self.turned(self.split(self.k(x)))
        return self.o(self.merge(self.attended(q, k, self.split(self.v(x)))))

    def turned(self, x):
        angle = torch.arange(x.shape[-2])[:, None] * 0.5 ** torch.arange(self.d // 2)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def attended(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class RotatedAsComplexUnscaled(RotatedAsComplex):
    def attended(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v


class OfTwoParts(Base):
    """Queries and keys that are laid together of a larger and a smaller part, as rotary positions beside content."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.smaller = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(2))
        for part in self.smaller:
            nn.init.uniform_(part.weight, -0.4 * d_model**-0.5, 0.4 * d_model**-0.5)

    def forward(self, x):
        larger = zip((self.q, self.k), self.smaller, strict=True)
        q, k = (torch.cat([self.split(one(x)), self.split(other(x))], -1) for one, other in larger)
        return self.o(self.merge((q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ self.split(self.v(x))))


class NoAttention(Base):
    def forward(self, x):
        return self.o(F.gelu(self.q(x)))


RIGHT = (
    *(Base, ScaledQueries, Fused, ScaleInTheStart, Cosine, NormedQueriesAndKeys, Temperature, MaximalUpdate, Additive),
    *(LayerEach, SmallStart, Biased, SharedQueriesAndKeys, Rotated, RotatedAsComplex, NoAttention),
)


@pytest.mark.parametrize("written", RIGHT)
def test_a_right_scale_and_a_good_reason_are_no_finding(written):
    declared = written is MaximalUpdate  # by its docstring
    assert [finding.accepted for finding in check_scale(examined(written))] == [True] * declared


class OneHead(nn.Module):
    def __init__(self, emb_size, head_size):
        super().__init__()
        self.emb_size = emb_size
        self.q, self.k, self.v = (nn.Linear(emb_size, head_size) for _ in range(3))

    def forward(self, x):
        weights = (self.q(x) @ self.k(x).mT * self.factor()).softmax(-1)
        return weights @ self.v(x)

    def factor(self):
        return self.emb_size**-0.5


class OneUnscaledHead(OneHead):
    def factor(self):
        return 1.0


def one_head(written, width, head):
    """Return the examination of a class with words of its own."""

    def made(d_model=width, d_head=head):
        return written(emb_size=d_model, head_size=d_head)

    return examined(made, sizes={"d_model": width}, text="x * self.emb_size ** -0.5", d_out=head)


def test_a_scale_by_the_width_is_right_for_one_head_of_that_width():
    (found,) = check_scale(one_head(OneHead, 48, 48))
    assert found.severity == "info"
    assert "right for one head only" in found.message


@pytest.mark.parametrize(("written", "head"), [(OneHead, 12), (OneUnscaledHead, 48)])
def test_a_lone_head_with_another_scale_is_an_error(written, head):
    (found,) = check_scale(one_head(written, 48, head))
    assert found.severity == "error"


@pytest.mark.parametrize(
    ("written", "count"),
    [
        *((Base, 0), (Missing, 1), (Doubled, 1), (ByWidth, 1), (Temperature, 0), (Cosine, 0), (ScaleInTheStart, 0)),
        *((RotatedAsComplex, 0), (RotatedAsComplexUnscaled, 1), (OfTwoParts, 0)),
    ],
)
def test_a_ready_instance_is_judged_by_its_factor(written, count):
    torch.manual_seed(0)
    findings = list(check_scale(examined(written(96, 6), d_in=96)))
    assert [found.severity for found in findings] == ["error"] * count


class OfNarrowInput(ByWidth):
    """Queries, keys and values are wider than what they are made of."""

    def __init__(self):
        super().__init__(96, 6)
        self.q, self.k, self.v = (nn.Linear(16, 96) for _ in range(3))


def test_the_width_of_the_model_is_that_of_all_heads_where_its_input_is_narrower():
    torch.manual_seed(0)
    (found,) = check_scale(examined(OfNarrowInput(), d_in=16, d_out=96))
    assert "by the width of the model" in found.message


class HeadsOfTheirOwn(nn.Module):
    """Each head is an attention of its own, side by side with the others."""

    def __init__(self, scaled_by):
        super().__init__()
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(96, 16) for _ in "qkv") for _ in range(6))
        self.scaled_by = scaled_by

    def forward(self, x):
        made = [[part(x) for part in head] for head in self.heads]
        return torch.cat([(q @ k.mT / self.scaled_by**0.5).softmax(-1) @ v for q, k, v in made], -1)


@pytest.mark.parametrize(("scaled_by", "messages"), [(16, 0), (96, 1)])
def test_heads_in_modules_of_their_own_are_several_of_one_width(scaled_by, messages):
    torch.manual_seed(0)
    found = list(check_scale(examined(HeadsOfTheirOwn(scaled_by), d_in=96)))
    assert [one.severity for one in found] == ["error"] * messages
    assert all("by the width of the model" in one.message for one in found)


def test_masks_and_biases_are_no_part_of_the_logits():
    class Masked(Base):
        def scores(self, q, k):
            blocked = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
            return (super().scores(q, k) + 5.0).masked_fill(blocked, -1e9)

    plain, masked = examined(Base), examined(Masked)
    (first,), (second,) = (logit_sizes(exam.usual_tape, exam.convention) for exam in (plain, masked))
    assert second.std == pytest.approx(first.std, rel=0.1)  # half of the pairs are left
    assert (second.q_std, second.d_head, second.n_heads) == (first.q_std, 12, 4)


class LargeStart(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        for part in (self.q, self.k):
            nn.init.normal_(part.weight)


def test_a_start_that_saturates_the_softmax_is_an_error_where_it_grows_with_the_width():
    (found,) = check_scale(examined(LargeStart))
    assert (found.check, found.severity) == ("scale", "error")
    assert "with the width" in found.message


def test_a_start_that_saturates_the_softmax_is_a_warning_where_only_one_size_is_known():
    torch.manual_seed(0)
    (found,) = check_scale(examined(LargeStart(), d_in=48))
    assert found.severity == "warning"
    assert "xavier" in found.remedy


class Bare(nn.Module):
    """Fused attention that is given its queries and keys: the scale stands before their product."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def test_queries_that_nothing_projects_are_as_large_as_they_were_given():
    exam = examined(Bare())
    (logits,) = logit_sizes(exam.usual_tape, exam.convention)
    assert logits.relative == pytest.approx(1.0, abs=0.15)


class OfStates(nn.Module):
    """The general score of a recurrent decoder's states with those of its encoder."""

    def __init__(self, d_model=48):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x):
        return (self.map(x) @ x.mT).softmax(-1) @ x


class OfPixels(OfStates):
    def __init__(self, d_model=48):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(d_model, d_model, 1) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).flatten(2) for part in (self.q, self.k, self.v))
        return ((q.mT @ k).softmax(-1) @ v.mT).mT.view_as(x)


@pytest.mark.parametrize(("kind", "layout", "length"), [(OfStates, "batch-first", 11), (OfPixels, "image", 16)])
def test_no_scale_where_the_papers_have_none_is_a_known_effect(kind, layout, length):
    (finding,) = check_scale(examined(kind, sizes={"d_model": 48}, layout=layout, length=length))
    assert finding.severity == "warning"
    assert "not scaled" in finding.message
    assert "Luong 2015" in finding.source


class ScaleGiven(Base):
    """Attention whose scores are divided by what it is given."""

    def __init__(self, d_model=48, n_heads=4, scale=1.0):
        super().__init__(d_model, n_heads)
        self.scale = scale

    def scores(self, q, k):
        return q @ k.mT / self.scale


def test_a_scale_that_is_an_argument_is_for_the_caller_to_choose():
    (found,) = check_scale(examined(ScaleGiven))
    assert (found.severity, found.accepted) == ("error", True)
    assert '"scale=1.0"' in found.evidence


class ByLengthToo(Base):
    """Scaled rightly for heads of every size, at one length alone."""

    power = -0.5

    def scores(self, q, k):
        return super().scores(q, k) * (k.shape[-2] / 11) ** self.power


class ByItsLogarithm(ByLengthToo):
    """Scores grow with the logarithm of the length, so that long sequences do not blur."""

    def scores(self, q, k):
        return Base.scores(self, q, k) * math.log(k.shape[-2])


class ByDistance(Base):
    """Scores of positions that lie far apart are small, whatever the length."""

    def scores(self, q, k):
        apart = (torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs()
        return super().scores(q, k) / (1 + apart)


def test_scores_that_shrink_with_the_length_of_the_sequence_are_an_error():
    (finding,) = check_scale(examined(ByLengthToo, length=11))
    assert (finding.severity, "scaled by the length of the sequence" in finding.message) == ("error", True)
    assert "to the power -0.5" in finding.evidence
    assert not list(check_scale(examined(ByItsLogarithm, length=11)))
    assert not [one for one in check_scale(examined(ByDistance, length=11)) if "length" in one.message]
    assert not list(check_scale(examined(ByLengthToo, length=11, any_length=False)))


class Readers(nn.Module):
    """Learned queries read a sequence. x: (batch, length, d_model)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.queries, self.key, self.value = nn.Parameter(torch.randn(3, 16)), nn.Linear(20, 16), nn.Linear(20, 16)
        self.out = nn.Linear(48, 20)

    def scale(self, keys):
        return keys.shape[-1] ** -0.5

    def forward(self, x):
        keys = self.key(x)
        scores = torch.einsum("rc,btc->brt", self.queries, keys) * self.scale(keys)
        return self.out((scores.softmax(-1) @ self.value(x)).flatten(1))


class ReadersByNumber(Readers):
    def scale(self, keys):
        return 1 / keys[0].numel()


class ReaderByHand(ReadersByNumber):
    def forward(self, x):
        keys = self.key(x)
        scores = (self.queries[0] * keys).sum(-1, keepdim=True) * self.scale(keys) + self.queries[0, 0]
        return self.out((scores.softmax(1) * self.value(x)).sum(1).repeat(1, 3))


def test_scores_of_learned_queries_that_shrink_with_the_length_are_an_error():
    pooled = {"pooled": True, "length": 11}
    for module in (ReadersByNumber(), ReaderByHand()):
        (finding,) = check_scale(examine(module, **pooled))
        assert (finding.severity, "scaled by the length of the sequence" in finding.message) == ("error", True)
        assert "multiplied by 0.00568 at length 11 and by 0.00142 at length 44" in finding.evidence
    assert not list(check_scale(examine(Readers(), **pooled)))


class InParts(Base):
    """Scores are summed over the features of a head in two products, as where some of them are rotated."""

    power = -0.5

    def scores(self, q, k):
        part = self.d // 4
        apart = q[..., part:] @ k[..., part:].mT + q[..., :part] @ k[..., :part].mT
        return apart * self.d**self.power


@pytest.mark.parametrize(("power", "words"), [(-0.5, ""), (0, "are not scaled"), (-1, "are scaled twice")])
def test_products_that_are_added_are_of_one_head(power, words):
    module = type("Powered", (InParts,), {"power": power})()
    width = module.q.in_features
    messages = [one.message for one in check_scale(examine(module, text="", d_in=width, d_out=width))]
    assert len(messages) == bool(words)
    assert all(words in message for message in messages)
