"""A second sequence: that it is looked at, and that attention over it is examined like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import VOCAB, D
from tests.doctor.bedside import examine as examined
from torch import nn

from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.normalization import check_normalization
from attnlab.doctor.influence.heads import check_heads_mixed
from attnlab.doctor.influence.padded import with_own_memory
from attnlab.strangers.calling.sources import Argument

MEMORY = (Argument("x", "x", by_name=False), Argument("memory", "memory"))


def examine(module, arguments=MEMORY, text=None, **convention):
    exam = examined(module, text=text, **convention)
    return exam.relying_on(replace(exam.convention, arguments=arguments))


class Cross(nn.Module):
    def __init__(self, d_memory=D):
        super().__init__()
        torch.manual_seed(3)
        self.q, self.kv, self.out = nn.Linear(D, D), nn.Linear(d_memory, 2 * D), nn.Linear(D, D)

    def normalize(self, scores):
        return scores.softmax(-1)

    def merge(self, heads):
        return heads.transpose(1, 2).flatten(2)

    def forward(self, x, memory):
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.q(x), *self.kv(memory).chunk(2, -1)))
        return self.out(self.merge(self.normalize(q @ k.mT / q.size(-1) ** 0.5) @ v))


class Columns(Cross):
    def normalize(self, scores):
        return scores.softmax(-2)


class Merged(Cross):
    def merge(self, heads):
        return heads.mT.reshape(heads.size(0), heads.size(2), -1)


class Deaf(Cross):
    def forward(self, x, memory):
        return super().forward(x, x)


def test_cross_attention_is_examined_like_self_attention():
    assert [found.check for found in check_normalization(examine(Columns()))] == ["normalization"]
    assert [found.check for found in check_heads_mixed(examine(Merged()))] == ["heads-mixed"]


@pytest.mark.parametrize("check", [check_normalization, check_heads_mixed, check_dead_parts])
def test_right_cross_attention_has_nothing(check):
    assert list(check(examine(Cross()))) == []


def test_a_memory_of_another_width_is_not_replaced_by_the_input():
    arguments = (MEMORY[0], Argument("memory", "memory", value=D + 4))
    assert len(list(with_own_memory(examine(Cross())))) == 2
    assert len(list(with_own_memory(examine(Cross(D + 4), arguments=arguments)))) == 1
    assert len(list(with_own_memory(examine(nn.Linear(D, D), ())))) == 1


def test_a_memory_without_influence_is_named():
    (found,) = check_dead_parts(examine(Deaf()))
    assert (found.check, found.severity) == ("dead-parts", "error")
    assert "`memory`" in found.message
    assert list(check_dead_parts(examine(Cross()))) == []


def test_a_memory_may_be_left_alone_where_the_source_says_so():
    assert [each.accepted for each in check_dead_parts(examine(Deaf(), text="memory is ignored"))] == [True]
    hidden = (Argument("x", "x", by_name=False), Argument("_memory", "memory", by_name=False))
    assert list(check_dead_parts(examine(Deaf(), arguments=hidden))) == []


class Additive(nn.Module):
    def __init__(self, bend):
        super().__init__()
        self.score, self.bend = nn.Linear(D, 1), bend

    def forward(self, query, key):
        scores = self.score(self.bend(query[:, :, None] + key[:, None])).squeeze(-1)  # (batch, q_len, k_len)
        return scores.softmax(-1) @ key


def test_a_query_that_the_softmax_takes_out_is_named():
    arguments = (Argument("query", "x"), Argument("key", "x"))
    (found,) = check_dead_parts(examine(Additive(nn.Identity()), arguments=arguments))
    assert (found.severity, "`query`" in found.message) == ("error", True)
    assert list(check_dead_parts(examine(Additive(nn.Tanh()), arguments=arguments))) == []


class Actions(nn.Module):
    """Add embeddings of two kinds of tokens, one of which may be computed and left."""

    def __init__(self, kept, *, only_trained=False):
        super().__init__()
        torch.manual_seed(3)
        self.kept, self.only_trained = kept, only_trained
        self.embed, self.out = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)

    def forward(self, states, actions):
        state, action = self.embed(states), self.embed(actions)
        return self.out(state + action if self.kept or (self.only_trained and self.training) else state)


def test_tokens_that_are_looked_up_and_left_are_named():
    arguments = (Argument("states", "x"), Argument("actions", "x"))
    how = {"takes": "tokens", "d_in": 0, "d_out": VOCAB, "vocab_size": VOCAB}
    (found,) = check_dead_parts(examine(Actions(kept=False), arguments, **how))
    assert (found.severity, "`actions`" in found.message) == ("error", True)
    for right in (Actions(kept=True), Actions(kept=False, only_trained=True)):
        assert list(check_dead_parts(examine(right, arguments, **how))) == []


class ForTheInterface(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(D, D)

    def forward(self, query, key):
        """Mix; key is what others of this interface look at."""
        return self.mix(query) + query.mean(1, keepdim=True)


class ValuesOfKeys(Cross):
    def forward(self, query, key, value):
        return super().forward(query, key)


def test_one_of_three_sequences_that_is_never_read_is_a_warning():
    arguments = tuple(Argument(name, "x") for name in ("query", "key", "value"))
    (found,) = check_dead_parts(examine(ValuesOfKeys(), text="", arguments=arguments))
    assert (found.severity, found.message) == ("warning", "`value` is asked for, and nothing reads it.")


def test_an_argument_that_is_never_read_is_not_missed():
    arguments = (Argument("query", "x"), Argument("key", "x"))
    assert list(check_dead_parts(examine(ForTheInterface(), text="", arguments=arguments))) == []


class Chosen(Cross):
    def __init__(self, alone):
        super().__init__()
        self.alone = alone

    def forward(self, x, memory):
        if self.alone:
            return super().forward(x, x)
        return super().forward(x, memory if not self.alone else x)


class ChosenByItsInput(Chosen):
    def forward(self, x, memory):
        if self.alone and x.size(1) > 1:
            return super().forward(x, x)
        return super().forward(x, memory)


def test_an_argument_that_it_was_built_not_to_read_is_not_missed():
    arguments = (Argument("x", "x"), Argument("memory", "x"))
    assert list(check_dead_parts(examine(Chosen(alone=True), arguments=arguments))) == []
    (found,) = check_dead_parts(examine(ChosenByItsInput(alone=True), arguments=arguments))
    assert "`memory`" in found.message


def test_an_output_as_wide_as_it_is_long_is_a_result():
    exam = examine(Cross())
    square = exam.relying_on(replace(exam.convention, length=D))
    assert list(check_dead_parts(square)) == []


class ForAnInterface(Cross):
    """Takes a memory that none of its methods reads."""

    def forward(self, x, memory):
        return self.mixed(x, memory)

    def mixed(self, x, others):
        return super().forward(x, x)


class ReadsIt(ForAnInterface):
    def mixed(self, x, others):
        return super().mixed(x, others) + 0 * others.mean()


def test_a_memory_that_nothing_reads_is_a_warning_and_one_without_influence_an_error():
    (unread,) = (one for one in check_dead_parts(examine(ForAnInterface())) if "memory" in one.message)
    assert (unread.severity, unread.message) == (
        "warning",
        "`memory` is asked for, and nothing reads it.",
    )
    (read,) = (one for one in check_dead_parts(examine(ReadsIt())) if "memory" in one.message)
    assert read.severity == "error"
