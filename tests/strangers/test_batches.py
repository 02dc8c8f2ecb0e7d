"""Models as their training loops call them: one batch for everything, and a loss for an answer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnlab.core.errors import ModuleError
from attnlab.doctor import doctor
from attnlab.strangers.calling.fields import fields_of, learned_from
from attnlab.strangers.loading.loading import load
from attnlab.strangers.trying.interview import interview


class Tokens(nn.Module):
    """Hold an encoder of tokens and what reads it off."""

    def __init__(self, vocab_size=50, d_model=32, n_classes=3):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.head = nn.Linear(d_model, n_classes)

    def pooled(self, ids, keep):
        x = self.embed(ids)
        x = x + self.attention(x, x, x, key_padding_mask=~keep.bool())[0]
        return self.head((x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True))


class ByKey(Tokens):
    def forward(self, batch):
        return self.pooled(batch["input_ids"], batch["attention_mask"])


class ByAttribute(Tokens):
    def ids_of(self, batch):
        return batch.input_ids

    def forward(self, batch):
        return self.pooled(self.ids_of(batch), batch.attention_mask)


class WithLabels(Tokens):
    def forward(self, batch):
        logits = self.pooled(batch["input_ids"], batch["attention_mask"])
        if batch.get("labels") is None:
            return logits
        return logits, F.cross_entropy(logits, batch["labels"])


class Pair(Tokens):
    def __init__(self):
        super().__init__(d_model=32)
        self.embed = nn.Linear(6, 32)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, batch):
        x, y = batch
        x = self.embed(x)
        return self.criterion(self.head((x + self.attention(x, x, x)[0]).mean(1)), y)


class Language(nn.Module):
    """Hold a causal language model, or one that forgot its mask."""

    def __init__(self, vocab_size=50, d_model=32, masked: bool = True):
        super().__init__()
        self.masked = masked
        self.embed = nn.Embedding(vocab_size, d_model)
        self.place = nn.Embedding(64, d_model)
        self.attention = nn.MultiheadAttention(d_model, 4, batch_first=True)
        self.head = nn.Linear(d_model, vocab_size)

    def logits(self, ids):
        n = ids.shape[1]
        hidden = torch.ones(n, n, dtype=torch.bool, device=ids.device).triu(1) if self.masked else None
        x = self.embed(ids) + self.place(torch.arange(n, device=ids.device))
        return self.head(x + self.attention(x, x, x, attn_mask=hidden)[0])


class Targets(Language):
    def forward(self, ids, targets):
        return F.cross_entropy(self.logits(ids).flatten(0, 1), targets.flatten())


class Shifted(Language):
    def forward(self, ids):
        logits = self.logits(ids)
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())}


class Cut(Language):
    def forward(self, ids):
        return F.cross_entropy(self.logits(ids[:, :-1]).mT, ids[:, 1:])


class Cache(Tokens):
    def forward(self, x, cache=None):
        past = [] if cache is None else [cache["k"], cache["v"]]
        return self.attention(x, x, x)[0] + len(past)


@pytest.mark.parametrize("kind", [ByKey, ByAttribute])
def test_what_a_batch_holds_is_given_as_if_it_were_asked_for_by_name(kind):
    convention = interview(load(kind))
    assert (convention.takes, convention.vocab_size, convention.pooled) == ("tokens", 50, True)
    assert convention.key_mask is not None
    assert convention.key_mask.obeyed
    module, ids = kind().eval(), torch.randint(50, (4, 9))
    real = torch.arange(9) < torch.tensor([9, 5, 7, 3])[:, None]
    assert torch.equal(convention.call(module, ids, padding=real), module.pooled(ids, real.long()))


def test_what_is_asked_for_first_may_be_missing():
    fields = fields_of(WithLabels)
    assert fields is not None
    optional = {name: one.default is None for name, one in fields.named.items()}
    assert optional == {"input_ids": False, "attention_mask": False, "labels": True}
    assert not doctor(WithLabels).errors


def test_a_tuple_of_inputs_and_labels_is_told_by_the_loss_that_labels_alone_go_to():
    convention = interview(load(Pair))
    assert (convention.d_in, convention.d_out, convention.pooled) == (6, 3, True)
    assert "y=the number 0 for every sequence" in str(convention)
    assert fields_of(Cache) is None


def test_names_that_go_elsewhere_too_are_not_what_is_learned():
    assert learned_from("def forward(self, x, y):\n    return mse_loss(self.net(x), y)") == {"y"}
    assert learned_from(
        "def forward(self, x, y=None):\n    if y is not None:\n        return self.criterion(x, y)"
    ) == {
        "x",
        "y",
    }
    assert learned_from("def forward(self, x, y):\n    return self.loss(self.net(x, y), y)") == {"y"} - {"y"}


@pytest.mark.parametrize("kind", [Targets, Shifted, Cut])
def test_of_a_model_that_returns_its_loss_what_that_is_taken_of_is_examined(kind):
    convention = interview(load(kind))
    assert convention.output == "what its loss is taken of, by head"
    module, ids = kind(), torch.randint(50, (2, 9))
    assert torch.allclose(convention.call(module, ids), module.logits(ids), atol=1e-6)
    assert not doctor(kind, causal=True).errors
    leaky = doctor(kind, causal=True, arguments={"masked": False})
    assert [finding.check for finding in leaky.errors] == ["causality"]


def test_a_mean_of_what_no_loss_is_taken_of_is_no_output():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(16, 16)

        def forward(self, x):
            return self.map(x).mean()

    with pytest.raises(ModuleError, match=r"returned \(\) for an input"):
        interview(load(Mean))


def test_a_softmax_over_one_number_is_why_what_scores_is_dead():
    class Pooled(nn.Module):
        def __init__(self, d_model=32):
            super().__init__()
            self.score = nn.Linear(d_model, 1)
            self.out = nn.Linear(d_model, d_model)

        def forward(self, x):  # (batch, length, d_model)
            return self.out((self.score(x).softmax(-1) * x).sum(1))

    dead = [finding for finding in doctor(Pooled).errors if finding.check == "dead-parts"]
    assert [finding.message for finding in dead] == [
        "score: learn nothing, as a softmax over an axis of one number gives 1 whatever that number is."
    ]
