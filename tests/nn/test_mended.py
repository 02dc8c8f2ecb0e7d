"""A mended mixer runs the mixer's own code, and changes on the way what is said to be wrong and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from attnlab.core.errors import SpecError
from attnlab.inspection.reach import reach
from attnlab.nn.changed_calls import LastBounded
from attnlab.nn.mended import MendedMixer, Mending
from attnlab.nn.mixers import build_mixer

WIDTH, LENGTH = 16, 9
OWN = """
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import softmax

def hidden(x, first):
    return torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).triu(first)

class Base(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.scale = 1.0

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        return self.weigh(q @ k.transpose(1, 2) * self.scale, hidden(x, 2), q, k, v)

class Method(Base):
    def weigh(self, scores, mask, q, k, v):
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v

class Imported(Base):
    def weigh(self, scores, mask, q, k, v):
        return softmax(scores.masked_fill(mask, -1e9), dim=2) @ v

class Module(Base):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.normalize = nn.Softmax(dim=-1)

    def weigh(self, scores, mask, q, k, v):
        return self.normalize(scores.masked_fill(mask, float("-inf"))) @ v

class Fused(Base):
    dropout = 0.0

    def weigh(self, scores, mask, q, k, v):
        dropped = self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=~mask, scale=self.scale, dropout_p=dropped)

class Crossed(Base):
    def weigh(self, scores, mask, q, k, v):
        return scores.softmax(dim=1) @ v

class Inverted(Base):
    def weigh(self, scores, mask, q, k, v):
        return scores.masked_fill(~hidden(v, 1), float("-inf")).softmax(-1).nan_to_num(0.0) @ v

class Dropping(Base):
    def weigh(self, scores, mask, q, k, v):
        return functional.dropout(q, 0.5) + torch.dropout(k, 0.5, True)

class Torch(nn.Module):
    weights = True

    def __init__(self, d_model):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, attn_mask=hidden(x, 2), need_weights=self.weights)[0]

class TorchFused(Torch):
    weights = False

class Recurrent(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.lstm = nn.LSTM(d_model, d_model)

    def forward(self, x):
        return self.lstm(x)[0]

class Dead(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
        nn.init.constant_(self.linear.bias, -9.0)

    def forward(self, x):
        return functional.relu(self.linear(x)) + torch.relu(self.linear(x))
"""
WITH_SOFTMAX = ("Method", "Imported", "Module", "Fused", "Torch", "TorchFused")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    file = tmp_path_factory.mktemp("mended") / "own.py"
    file.write_text(OWN)
    return file


def pair(own, name, **mending):
    """A module as it is and mended, with the same weights."""
    offered = {"d_model": WIDTH, "causal": True}
    torch.manual_seed(0)
    plain = build_mixer(f"{own}:{name}", offered)
    mended = build_mixer({"name": "mended", "part": f"{own}:{name}", "mending": mending}, offered)
    assert isinstance(mended, MendedMixer)
    mended.part.load_state_dict(plain.state_dict())
    return plain, mended


@pytest.mark.parametrize("name", WITH_SOFTMAX)
def test_without_a_mending_it_is_the_mixer(own, name):
    plain, mended = pair(own, name)
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(mended(x), plain(x))


@pytest.mark.parametrize("name", WITH_SOFTMAX)
def test_masked_scores_see_no_later_position(own, name):
    plain, mended = pair(own, name, masked=True)
    x = torch.randn(2, LENGTH, WIDTH)
    assert (reach(plain, (x,)).future, reach(mended, (x,)).future) == (1, 0)
    mended(x).sum().backward()
    assert all(parameter.grad is not None for parameter in mended.parameters())


@pytest.mark.parametrize("name", ["Method", "Imported", "Module", "Fused"])
def test_scores_are_multiplied(own, name):
    plain, mended = pair(own, name, scores_times=0.25)
    plain.module.scale = 0.25
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(mended(x), plain(x))


@pytest.mark.parametrize("name", ["Torch", "TorchFused"])
def test_scores_of_torchs_attention_are_multiplied(own, name):
    plain, mended = pair(own, name, scores_times=0.25)
    attention = plain.module.attention
    with torch.no_grad():
        attention.in_proj_weight[:WIDTH] *= 0.25
        attention.in_proj_bias[:WIDTH] *= 0.25
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(mended(x), plain(x))
    assert functional.softmax.__module__ == "torch.nn.functional"  # what was put in its place is gone


def test_a_mask_that_hides_all_but_later_positions_becomes_causal(own):
    plain, mended = pair(own, "Inverted", masked=True)
    x = torch.randn(2, LENGTH, WIDTH)
    assert (reach(plain, (x,)).future, reach(mended, (x,)).future) == (LENGTH - 1, 0)
    assert mended(x).isfinite().all()


def test_scores_are_normalized_over_the_keys(own):
    plain, mended = pair(own, "Crossed", over_keys=True)
    x, part = torch.randn(2, LENGTH, WIDTH), plain.module
    scores = part.query(x) @ part.key(x).transpose(1, 2)
    torch.testing.assert_close(mended(x), scores.softmax(-1) @ part.value(x))
    torch.testing.assert_close(plain(x), scores.softmax(1) @ part.value(x))


def test_dropout_acts_in_training_alone(own):
    plain, mended = pair(own, "Dropping", quiet=True)
    x, part = torch.randn(2, LENGTH, WIDTH), plain.module
    assert not torch.equal(mended(x), mended(x))
    torch.testing.assert_close(mended.eval()(x), part.query(x) + part.key(x))
    assert not torch.equal(plain.eval()(x), plain(x))


@pytest.mark.parametrize("name", ["Dropping", "Fused", "Torch"])
def test_nothing_is_dropped_in_training_either(own, name):
    plain, mended = pair(own, name, dropless=True)
    x = torch.randn(2, LENGTH, WIDTH)
    for part in (plain, mended):
        part.apply(lambda one: setattr(one, "dropout", 0.6) if hasattr(one, "dropout") else None)
    kept = mended(x)
    torch.testing.assert_close(mended(x), kept)
    assert not torch.allclose(plain(x), kept)
    if name != "Dropping":  # drops in evaluation too
        torch.testing.assert_close(plain.eval()(x), kept)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout, (8, 9)), (nn.Dropout1d, (4, 8, 5)), (nn.Dropout2d, (4, 8, 3, 3)), (nn.Dropout3d, (4, 8, 2, 2, 2)),
     (nn.AlphaDropout, (8, 9)), (nn.FeatureAlphaDropout, (4, 8, 5))],
)  # fmt: skip
def test_every_kind_of_dropout_is_known(layer, shape):
    x, drops = torch.randn(shape), layer(0.5)
    kept = Mending(dropless=True).call(drops, x)
    torch.testing.assert_close(kept, x)
    torch.manual_seed(1)
    called = Mending().call(drops, x)
    torch.manual_seed(1)
    torch.testing.assert_close(called, layer(0.5)(x))
    assert not torch.equal(called, x)
    torch.testing.assert_close(Mending().call(drops.eval(), x), x)


def test_swapped_it_is_given_the_other_layout(own):
    plain, mended = pair(own, "Recurrent", swapped=True)
    x = torch.randn(3, LENGTH, WIDTH)
    expected = plain.module(x)  # called as written: the batch is read as time
    torch.testing.assert_close(mended(x), expected)
    assert reach(mended, (x,)).mixes_batch
    assert not reach(plain, (x,)).mixes_batch


def test_a_leak_lets_rectifiers_learn(own):
    plain, mended = pair(own, "Dead", leak=0.1)
    x = torch.randn(2, LENGTH, WIDTH)
    assert plain(x).abs().max() == 0
    torch.testing.assert_close(mended(x), 2 * functional.leaky_relu(plain.module.linear(x), 0.1))


def test_fresh_it_starts_as_torch_draws_it(own):
    offered = {"d_model": WIDTH, "causal": True}
    mended = build_mixer({"name": "mended", "part": f"{own}:Dead", "mending": {"fresh": True}}, offered)
    assert mended.get_parameter("part.module.linear.bias").abs().max() <= WIDTH**-0.5
    assert mended(torch.randn(2, LENGTH, WIDTH)).abs().max() > 0


def test_compiled_it_gives_the_same(own):
    """The compiler leaves the changed calls alone, and what stands around them is compiled."""
    mixer = MendedMixer(WIDTH, f"{own}:Method", mending={"scores_times": 2.0, "masked": True})
    around = nn.Sequential(nn.Linear(WIDTH, WIDTH), mixer)
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(torch.compile(around, backend="aot_eager")(x), around(x))


def test_softmax_over_another_axis_is_left_alone():
    class Gate(nn.Module):
        def forward(self, x):
            return x.softmax(dim=1)

    mended = MendedMixer(LENGTH, Gate(), mending={"scores_times": 0.5})
    x = torch.randn(2, LENGTH, LENGTH)
    torch.testing.assert_close(mended(x), x.softmax(dim=1))


@pytest.mark.parametrize(
    ("mending", "sentence"),
    [
        ({"scores_times": 0.0}, "scores_times must be a positive number; got 0.0"),
        ({"scores_times": float("inf")}, "scores_times must be a positive number; got inf"),
        ({"leak": 1.0}, r"leak must be in \[0, 1\); got 1.0"),
        ({"maskd": True}, "unknown mending 'maskd'; did you mean 'masked'"),
    ],
)
def test_wrong_factors_are_said(mending, sentence):
    with pytest.raises(SpecError, match=sentence):
        MendedMixer(WIDTH, mending=mending)


@pytest.mark.parametrize(
    ("bounds", "limits"),
    [
        (torch.relu, (0.0, math.inf)),
        (lambda y: nn.ReLU(inplace=True)(y).flatten(1), (0.0, math.inf)),
        (nn.Tanh(), (-1.0, 1.0)),
        (lambda y: y.clamp(-2, 3), (-2.0, 3.0)),
        (lambda y: torch.clamp(input=y, max=0.5)[None], (-math.inf, 0.5)),
        (lambda y: 2 * torch.sigmoid(y), None),
        (lambda y: y, None),
    ],
)
def test_answers_are_given_as_before_what_bounds_them(bounds, limits):
    torch.manual_seed(0)
    linear, x = nn.Linear(4, 3), torch.randn(2, 5, 4)
    with LastBounded() as last:
        answers = bounds(linear(x))
    assert last.gave(answers) == (limits is not None)
    assert limits is None or last.limits() == limits
    free = Mending(unbounded=True).call(lambda given: bounds(linear(given)), x)
    torch.testing.assert_close(free, linear(x).reshape(free.shape) if limits else answers)
    free.sum().backward()
    assert linear.weight.grad.any()


def test_inputs_are_given_earlier():
    tokens = torch.arange(12).view(2, 6)
    given = Mending.of({"earlier": 2}).call(lambda x: x, tokens)
    assert given[:, :-2].tolist() == tokens[:, 2:].tolist()
    assert given.shape == tokens.shape
    for wrong in (-1, 1.5):
        with pytest.raises(SpecError, match="earlier must be a whole number of positions"):
            Mending.of({"earlier": wrong})


class Asked(torch.nn.Module):
    """One query to all positions, and a gate whose softmax is of no scores."""

    def __init__(self, how, scale):
        super().__init__()
        self.how, self.scale = how, scale
        self.q, self.k, self.gate = (torch.nn.Linear(WIDTH, n) for n in (WIDTH, WIDTH, 2))

    def forward(self, x):
        q, k = self.q(x[:, -1:]), self.k(x)
        gate = functional.softmax(self.gate(x), -1)
        if self.how == "fused":
            seen = functional.scaled_dot_product_attention(q, k, x, scale=self.scale)
        else:
            scores = torch.einsum("bqd,bkd->bqk", q, k) if self.how == "einsum" else torch.bmm(q, k.transpose(1, 2))
            scores = self.scale * scores if self.how == "einsum" else scores * self.scale
            scores = scores.reshape(len(x), -1) if self.how == "reshaped" else scores.squeeze(1)
            seen = functional.softmax(scores, dim=-1)[:, None] @ x
        return gate[:, :, :1] * seen


@pytest.mark.parametrize("how", ["fused", "einsum", "bmm", "reshaped"])
def test_scores_of_one_query_are_multiplied_and_gates_are_not(how):
    torch.manual_seed(0)
    module, right = Asked(how, 0.1), Asked(how, 0.4)
    right.load_state_dict(module.state_dict())
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(Mending(scores_times=4.0).call(module, x), right(x))
    assert not torch.allclose(module(x), right(x))
