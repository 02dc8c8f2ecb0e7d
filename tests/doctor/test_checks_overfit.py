"""Twenty items by heart: what can learn learns, what is cut off is found."""

from __future__ import annotations

import pytest
import torch
from tests.doctor.bedside import examine
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.overfit import check_overfit

D, LENGTH, VOCAB = 30, 7, 29


def findings(module, **convention):
    fields = {"d_in": D, "d_out": D, "length": LENGTH} | convention
    return list(check_overfit(examine(module, text="", **fields)))


def severities(module, **convention):
    return [finding.severity for finding in findings(module, **convention)]


class Wrapped(nn.Module):
    """An attention layer with something done to its output."""

    def __init__(self, after=lambda output: output):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 3, batch_first=True)
        self.after = after

    def forward(self, x):
        return self.after(self.attention(x, x, x)[0])


class ZeroStart(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.gain = nn.Linear(D, D), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return self.gain * self.inner(x)


class Tokens(nn.Module):
    def __init__(self, mixer, *, pooled=False):
        super().__init__()
        self.embed, self.mixer, self.head, self.pooled = nn.Embedding(VOCAB, D), mixer, nn.Linear(D, VOCAB), pooled

    def forward(self, tokens):
        hidden = self.mixer(self.embed(tokens))
        return self.head(hidden.mean(1) if self.pooled else hidden)


class CausalGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(D, D, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0]


class Frozen(nn.Module):
    def forward(self, x):
        return x.softmax(-1)


class OnlyPositions(nn.Module):
    """Returns learned vectors that have nothing to do with its input."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(LENGTH, D))

    def forward(self, x):
        return self.table.expand(x.shape)


class OneNumber(nn.Module):
    """Has a single number to learn, which cannot hold twenty signs."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.gain * x


class NanSoon(nn.Module):
    """Returns NaN as soon as its weights are not those of the start."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(D, D)

    def forward(self, x):
        return self.inner(x) + torch.where(self.inner.weight.sum() == self.begin(), 0.0, float("nan"))

    def begin(self):
        if not hasattr(self, "total"):
            self.total = self.inner.weight.detach().sum()
        return self.total


RIGHT = [
    Wrapped(),
    ZeroStart(),
    CausalGru(),
    nn.TransformerEncoderLayer(D, 3, dim_feedforward=40, batch_first=True),
    nn.TransformerEncoderLayer(D, 3, dim_feedforward=40, batch_first=True, norm_first=True),
]


@pytest.mark.parametrize("module", RIGHT)
def test_layers_learn_by_heart(module):
    (fact,) = findings(module, kind="block")
    assert fact.severity == "info"
    assert "loss on 20 fixed items" in fact.evidence
    assert findings(module) == []  # of a bare layer nobody doubts it


def test_models_learn_by_heart():
    convention = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": VOCAB, "vocab_size": VOCAB}
    assert severities(Tokens(CausalGru()), causal=True, **convention) == ["info"]
    assert severities(Tokens(Wrapped()), causal=False, **convention) == ["info"]
    assert severities(Tokens(Wrapped(), pooled=True), pooled=True, causal=True, **convention) == ["info"]


def test_narrow_inputs_are_not_held_against_a_module():
    assert severities(nn.Linear(1, 2), d_in=1, d_out=2, kind="block") == ["info"]


def test_a_module_without_parameters_is_not_asked():
    assert findings(Frozen()) == []


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (torch.Tensor.detach, "its output has no gradient: see what `dead-parts` says"),
        (lambda output: output.exp().mul_(2).sqrt().add_(1), "the backward pass raises: .*modified by an inplace"),
    ],
)
def test_what_dead_parts_says_is_not_said_twice(after, said):
    with pytest.raises(ModuleError, match=said):
        findings(Wrapped(after))
    assert any(one.severity == "error" for one in check_dead_parts(examine(Wrapped(after), text="", d_in=D, d_out=D)))


class _Hidden(torch.autograd.Function):
    """Call a layer whose parameters the graph does not see, and give them their gradients on the way back."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            ctx.layer(leaf).backward(gradient)
        return leaf.grad, None


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D)

    def forward(self, x):
        return _Hidden.apply(x, self.layer)


def test_a_layer_that_has_a_gradient_only_behind_another_one_learns():
    assert severities(Recomputed(), kind="block") == ["info"]


def test_an_output_without_the_input_is_an_error():
    (error,) = findings(OnlyPositions())
    assert error.severity == "error"
    assert "same for 20 different items" in error.evidence


def test_a_loss_that_does_not_move_is_an_error():
    (error,) = findings(Wrapped(lambda output: output.detach() + 0 * output))
    assert error.severity == "error"
    assert "0.01)" in error.evidence or "0.001)" in error.evidence


def test_hardly_any_learning_is_a_warning():
    (warning,) = findings(OneNumber())
    assert (warning.severity, warning.weighs) == ("warning", "known effect")
    assert "1.000 is what the same answer" in warning.evidence


def test_nan_in_training_is_a_warning():
    (warning,) = findings(NanSoon())
    assert (warning.severity, warning.weighs) == ("warning", "set-up")
    assert "NaN" in warning.message


def test_patient_is_not_trained():
    module = Wrapped()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    findings(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_an_output_whose_mean_over_positions_a_norm_takes_away_is_learned():
    assert severities(Wrapped(lambda output: nn.functional.instance_norm(output.mT).mT)) == []


class Closing(nn.Module):
    """A weight that is negative at the first start closes the last rectifier for every input."""

    def __init__(self, weight=-1.0):
        super().__init__()
        self.weight, self.map = nn.Parameter(torch.full((1,), weight)), nn.Linear(D, D)

    def forward(self, x):
        return (self.weight * self.map(x).sigmoid()).relu()


@pytest.mark.parametrize(("weight", "severity"), [(1.0, "warning"), (-1.0, "error")])
def test_what_one_start_in_some_closes_is_a_warning(weight, severity):
    exam = examine(Closing(), lambda _: Closing(weight), text="", d_in=D, d_out=D, length=LENGTH)
    (finding,) = check_overfit(exam)
    assert finding.severity == severity
    assert ("not so at another start" in finding.evidence) is (severity == "warning")
