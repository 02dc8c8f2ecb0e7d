"""Words excuse a finding where they declare it, and names in code never do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attnlab.doctor import doctor
from attnlab.doctor.examination import accepted_by
from attnlab.doctor.findings import Finding
from attnlab.strangers.said.topics import declared, said_unused
from attnlab.strangers.texts import words_of


def errors(module):
    """Return the checks that report an error."""
    return {finding.check for finding in doctor(module).errors}


def accepted(module):
    """Return the checks that report what a class declares."""
    return {finding.check for finding in doctor(module).findings if finding.accepted}


class AheadByOne(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model=32, name=""):
        super().__init__()
        self.qkv, self.name = nn.Linear(d_model, 3 * d_model), name

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        blocked = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(2)
        return (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(blocked, -torch.inf).softmax(-1) @ v


class AheadByOneNamed(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model=32, prefix=""):
        super().__init__()
        self.qkv, self.prefix = nn.Linear(d_model, 3 * d_model), prefix

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        look_ahead = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(2)
        return (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(look_ahead, -torch.inf).softmax(-1) @ v


class OneProjection(nn.Module):
    """Self-attention."""

    def __init__(self, d_model=32):
        super().__init__()
        self.wq, self.wv = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.wq(x), self.wq(x), self.wv(x)
        s = q @ k.mT / math.sqrt(q.size(-1))
        return s.softmax(-1) @ v


class OneProjectionNamed(nn.Module):
    """Self-attention."""

    def __init__(self, d_model=32):
        super().__init__()
        self.wq, self.wv = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.wq(x), self.wq(x), self.wv(x)
        qk = q @ k.mT / math.sqrt(q.size(-1))
        return qk.softmax(-1) @ v


class OneProjectionDeclared(OneProjectionNamed):
    """Self-attention in which queries and keys share one projection."""


class OverQueries(nn.Module):
    """Self-attention."""

    def __init__(self, d_model=32):
        super().__init__()
        self.qkv, self.soft = nn.Linear(d_model, 3 * d_model), nn.Softmax(dim=1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.soft(q @ k.mT / math.sqrt(q.size(-1))) @ v


class OverQueriesNamed(nn.Module):
    """Self-attention."""

    def __init__(self, d_model=32):
        super().__init__()
        self.qkv, self.softmax1 = nn.Linear(d_model, 3 * d_model), nn.Softmax(dim=1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.softmax1(q @ k.mT / math.sqrt(q.size(-1))) @ v


class NoSoftmax(nn.Module):
    """Scaled dot-product attention with softmax."""

    def __init__(self, d_model=32):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT / math.sqrt(q.size(-1))) @ v


class NoSoftmaxNamed(nn.Module):
    """Scaled dot-product attention with softmax."""

    def __init__(self, d_model=32, kernel_size=1):
        super().__init__()
        self.qkv = nn.Conv1d(d_model, 3 * d_model, kernel_size)

    def forward(self, x):
        q, k, v = self.qkv(x.mT).mT.chunk(3, -1)
        return (q @ k.mT / math.sqrt(q.size(-1))) @ v


class Unscaled(nn.Module):
    """Self-attention."""

    def __init__(self, d_model=32, heads=2):
        super().__init__()
        self.qkv, self.h = nn.Linear(d_model, 3 * d_model), heads

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class UnscaledCommented(nn.Module):
    """Self-attention."""

    def __init__(self, d_model=32, heads=2):
        super().__init__()
        self.qkv, self.h = nn.Linear(d_model, 3 * d_model), heads  # init: uniform in +-1/d

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


class Blind(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model=32):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        allowed = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(-1)
        allowed[0, 0] = True
        return (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~allowed, -torch.inf).softmax(-1) @ v


class BlindSaid(Blind):
    """Causal self-attention. Arguments are mutually exclusive."""


class BlindDeclared(Blind):
    """Causal self-attention over the strict past: a position sees what comes before, but not itself."""


class Head(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * size)

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))


class OneHeadTimesN(nn.Module):
    """Multi-head attention."""

    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.heads = nn.ModuleList([Head(d_model, d_model // n_heads)] * n_heads)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], -1))


class OneHeadTimesNSaid(OneHeadTimesN):
    """Multi-head attention that loops over the heads; the input is shared by all."""


PAIRS = [
    ("dead-parts", OneHeadTimesN, OneHeadTimesNSaid),
    ("causality", AheadByOne, AheadByOneNamed),
    ("dead-parts", OneProjection, OneProjectionNamed),
    ("normalization", OverQueries, OverQueriesNamed),
    ("normalization", NoSoftmax, NoSoftmaxNamed),
    ("scale", Unscaled, UnscaledCommented),
    ("causality", Blind, BlindSaid),
]


@pytest.mark.parametrize(
    ("check", "plain", "named"),
    [pytest.param(*pair, marks=[] if number % 3 == 0 else pytest.mark.slow) for number, pair in enumerate(PAIRS)],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_word_that_declares_nothing_changes_nothing(check, plain, named):
    assert check in errors(plain)
    assert errors(named) == errors(plain)


def test_a_shared_projection_that_is_declared_stays_in_the_report_as_accepted():
    assert "dead-parts" not in errors(OneProjectionDeclared)
    assert "dead-parts" in accepted(OneProjectionDeclared)


def test_words_do_not_excuse_a_position_that_does_not_see_itself():
    assert "causality" in errors(BlindDeclared)


SOURCE = '''
# Above the class.
class One:
    """First line
    goes on.

    New paragraph.
    """

    def prefix(self, qk):
        """Of a method."""
        text = "a string # no comment"
        return qk  # at the end
'''


def test_words_are_docstrings_and_comments_alone():
    said = words_of(SOURCE)
    assert said.split("\n\n") == [
        "First line goes on.",
        "New paragraph.",
        "Of a method.",
        "Above the class.",
        "at the end",
    ]


def test_words_without_code_stay():
    assert words_of("queries and keys share one projection") == "queries and keys share one projection"


TOPIC = "one projection of queries and keys"


def test_the_sentence_is_quoted():
    said = "One. Queries and keys share one projection. Two."
    assert declared(said, TOPIC) == "Queries and keys share one projection"


@pytest.mark.parametrize("said", ["No shared queries and keys.", "Unlike shared queries and keys.", "Nothing."])
def test_nothing_is_quoted_where_words_take_it_back(said):
    assert not declared(said, TOPIC)


WRONG = Finding("scale", "error", "it is wrong.", "3 of 4", "mend it")


def test_what_is_meant_stays_in_the_report_as_accepted():
    (finding,) = accepted_by([WRONG], "on purpose")
    assert (finding.severity, finding.weighs, finding.accepted) == ("error", "fact", True)
    assert finding.evidence == '3 of 4; its text says: "on purpose"'
    assert list(accepted_by([WRONG], "")) == [WRONG]


@pytest.mark.parametrize(
    "said",
    [
        "mask: unused.",
        "The mask is accepted but ignored.",
        "It ignores the mask.",
        "`mask` is there for the interface.",
    ],
)
def test_an_argument_may_be_said_to_be_unused(said):
    assert said_unused(said, "", ("mask",))


@pytest.mark.parametrize(
    "said",
    [
        "mask: True where positions are ignored.",
        "mask: ignored positions are True.",
        "A drop-in with a compatible mask.",
    ],
)
def test_the_meaning_of_a_mask_is_no_excuse(said):
    assert not said_unused(said, "", ("mask",))


def test_only_deleting_the_argument_itself_says_that_it_is_unused():
    code = "class Plain:\n    def forward(self, x, mask):\n        del {}\n        return x\n"
    assert said_unused("", code.format("mask"), ("mask",))
    assert not said_unused("", code.format("scores"), ("mask",))
