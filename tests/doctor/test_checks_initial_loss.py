"""The loss before training: near the logarithm of the vocabulary, or it is said why not."""

from __future__ import annotations

import math

import pytest
import torch
from tests.doctor.bedside import examine
from torch import nn

from attnlab.doctor.checks.initial_loss import check_initial_loss

D, VOCAB = 31, 53


def findings(module, **convention):
    fields = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": VOCAB, "vocab_size": VOCAB} | convention
    return list(check_initial_loss(examine(module, text=type(module).__doc__ or "", length=7, **fields)))


class Model(nn.Module):
    def __init__(self, *, spread=0.02, tied=False, last=nn.Identity(), normed=True):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        nn.init.normal_(self.embed.weight, std=spread)
        self.norm = nn.LayerNorm(D) if normed else nn.Identity()
        self.head = nn.Linear(D, VOCAB)
        if tied:
            self.head.weight = self.embed.weight
        self.last = last

    def forward(self, tokens):
        return self.last(self.head(self.norm(self.embed(tokens))))


@pytest.mark.parametrize("model", [Model(), Model(tied=True), Model(spread=1.0, normed=False)])
def test_models_that_guess_are_a_fact(model):
    (fact,) = findings(model)
    assert fact.severity == "info"
    assert f"ln {VOCAB} = {math.log(VOCAB):.3f}" in fact.evidence


def test_log_probabilities_are_as_good_as_logits():
    (fact,) = findings(Model(last=nn.LogSoftmax(-1)))
    assert fact.severity == "info"


def test_a_table_of_unit_size_used_as_output_starts_too_large():
    (error,) = findings(Model(spread=1.0, tied=True))
    assert error.severity == "error"
    assert "it is the output as well" in error.evidence
    assert "0.02" in error.remedy


def test_a_start_that_is_only_somewhat_too_large_is_a_matter_of_set_up():
    (warning,) = findings(Model(spread=0.2, tied=True))
    assert (warning.severity, warning.weighs) == ("warning", "set-up")


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Tanh()])
def test_squashed_outputs_are_no_logits(last):
    (error,) = findings(Model(last=last))
    assert error.severity == "error"
    assert "squashed" in error.message
    ends = torch.tensor([1.0] + [0.0 if isinstance(last, nn.Sigmoid) else -1.0] * (VOCAB - 1))
    assert f"below {-ends.log_softmax(0)[0].item():.2f} nats" in error.evidence


def test_small_logits_are_not_squashed():
    model = Model(spread=1e-3)
    (fact,) = findings(model)
    assert fact.severity == "info"


def test_probabilities_are_no_logits():
    (error,) = findings(Model(last=nn.Softmax(-1)))
    assert error.severity == "error"
    assert "second softmax" in error.message
    one_hot = nn.functional.one_hot(torch.arange(VOCAB)).double()
    lowest = nn.functional.cross_entropy(one_hot, torch.arange(VOCAB)).item()
    assert f"below {lowest:.2f} nats" in error.evidence


@pytest.mark.parametrize("written", ["logits", "losses"])
def test_probabilities_in_evaluation_alone_are_what_is_written_with(written):
    class Writes(nn.Module):
        def forward(self, x):
            of_training = x if written == "logits" else x.mean()
            return of_training if self.training else x.softmax(-1)

    assert findings(Model(last=Writes())) == []


def test_declared_probabilities_are_a_matter_of_set_up():
    class Declared(Model):
        """Returns the probabilities of the next token."""

    (warning,) = findings(Declared(last=nn.Softmax(-1)))
    assert (warning.severity, warning.weighs) == ("warning", "set-up")


def test_nan_is_an_error():
    model = Model()
    with torch.no_grad():
        model.head.bias[0] = math.nan
    (error,) = findings(model)
    assert error.severity == "error"
    assert f"{1 / VOCAB:.1%}" in error.evidence


def test_hidden_states_and_layers_are_not_asked():
    assert findings(Model(), d_out=D) == []
    assert findings(Model(), kind="layer") == []


def test_pooled_models_are_asked():
    class Pooled(Model):
        def forward(self, tokens):
            return super().forward(tokens).mean(1)

    assert [finding.severity for finding in findings(Pooled(), pooled=True)] == ["info"]


class Words(nn.Module):
    def __init__(self, n_words=VOCAB, width=VOCAB, *, answers=False):
        super().__init__()
        self.embed, self.map = nn.Embedding(n_words, width), nn.Linear(width, n_words if answers else width)

    def forward(self, tokens):
        return self.map(self.embed(tokens)).tanh()


@pytest.mark.parametrize("answers", [False, True])
def test_vectors_that_are_as_wide_as_the_vocabulary_by_chance_are_no_logits(answers):
    sizes = {"n_words": VOCAB, "width": VOCAB}
    exam = examine(
        Words(answers=answers), lambda changes: Words(**(sizes | changes), answers=answers), sizes,
        kind="model", takes="tokens", d_in=0, d_out=VOCAB, vocab_size=VOCAB, length=7,
    )  # fmt: skip
    assert len(list(check_initial_loss(exam))) == answers
