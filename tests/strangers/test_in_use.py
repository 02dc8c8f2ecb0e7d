"""A part is called as the larger module calls it, where its own words do not tell what it is given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnlab.strangers.calling.sources import HANDED_ON, Kept, Situation
from attnlab.strangers.patient import Patient
from attnlab.strangers.trying.interview import interview

WIDTH, VOCABULARY, BATCH, LENGTH = 24, 53, 5, 9


class Part(nn.Module):
    """Wants a table that nothing says anything of, in a list beside a number."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.given = []

    def forward(self, x, extras):
        table, count = extras
        assert (*table.shape, count) == (len(x), 7, 2, 4)
        self.given.append(table)
        return self.map(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.part = nn.Embedding(VOCABULARY, WIDTH), Part()

    def forward(self, tokens):
        table = torch.arange(7 * 2.0 * len(tokens)).view(-1, 7, 2)
        return self.part(self.embed(tokens), [table, 4])


class Sequential(Whole):
    """Hands on its sequence transposed."""

    def forward(self, tokens):
        return self.part(self.embed(tokens).transpose(0, 1), [torch.zeros(tokens.size(1), 7, 2), 4]).transpose(0, 1)


class Unused(Whole):
    def forward(self, tokens):
        return self.embed(tokens)


def patient(kind: type[Whole]) -> Patient:
    whole = Patient("Whole", kind(), None, {}, "", "")
    return Patient("Part", Part(), None, {}, "", "", whole=lambda: whole)


def test_what_nobody_can_guess_is_as_the_larger_module_hands_it_on():
    convention = interview(patient(Whole))
    assert convention.assumptions["called as"] == "forward(x; extras=as the larger module hands it on)"
    assert (convention.takes, convention.d_in, convention.layout) == ("embeddings", WIDTH, "batch-first")
    module = Part()
    assert convention.call(module, torch.randn(BATCH, LENGTH, WIDTH)).shape == (BATCH, LENGTH, WIDTH)
    (table,) = module.given
    assert torch.equal(table, table[:1].expand(BATCH, -1, -1))  # the same for every sample


def test_the_layout_is_the_one_that_the_larger_module_uses():
    convention = interview(patient(Sequential))
    assert (convention.layout, convention.any_length) == ("sequence-first", False)


class Masked(nn.Module):
    """Takes a mask whose name does not tell what True means: here, a position that is blocked."""

    def __init__(self):
        super().__init__()
        self.part = MaskedPart()

    def forward(self, x, mask):
        return self.part(x, told=mask)


class MaskedPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, *, told):
        scores = (x @ x.mT / WIDTH).masked_fill(told[:, None], -1e9)
        return self.map(scores.softmax(-1) @ x).masked_fill(told[..., None], 0)


def test_a_mask_is_handed_on_as_the_larger_module_means_it():
    whole = Patient("Masked", Masked(), None, {}, "", "")
    convention = interview(Patient("MaskedPart", MaskedPart(), None, {}, "", "", whole=lambda: whole))
    assert convention.assumptions["called as"] == "forward(x; told=as the larger module hands it on)"
    assert convention.call(MaskedPart(), torch.randn(3, convention.length, WIDTH)).any()


@pytest.mark.parametrize("kind", [Unused, nn.Identity])
def test_where_the_larger_module_does_not_tell_the_part_is_called_by_its_own_words(kind):
    class Plain(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    whole = Patient("Whole", kind(), None, {}, "", "")
    part = Patient("Plain", Plain(WIDTH, WIDTH), None, {}, "", "", whole=lambda: whole)
    assert interview(part).assumptions["called as"] == "forward(x)"


def test_the_input_is_replaced_wherever_it_was_handed_on():
    handed = torch.randn(3, LENGTH, WIDTH)
    kept = Kept({"first": handed.clone(), "mask": torch.ones(3, 1, LENGTH).bool(), "flag": True}, handed, 3)
    x = torch.randn(BATCH, 4, WIDTH)
    given = kept.with_input(Situation(x, "batch-first", x.dtype))
    assert torch.equal(given["first"], x)
    assert (given["mask"].shape, given["mask"].dtype, given["flag"]) == ((BATCH, 1, LENGTH), torch.bool, True)


class Layers(nn.Module):
    """A model whose part is given all its layers, of which the last counts."""

    def __init__(self):
        super().__init__()
        self.first, self.part = nn.Linear(WIDTH, WIDTH), LastLayer()

    def forward(self, x):
        return self.part([x, self.first(x)])


class LastLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, layers):
        return self.map(layers[-1])


def test_of_several_tensors_that_are_handed_on_the_one_that_counts_is_the_input():
    whole = Patient("Layers", Layers(), None, {}, "", "")
    convention = interview(Patient("LastLayer", LastLayer(), None, {}, "", "", whole=lambda: whole))
    first, second = torch.randn(2, 3, convention.length, WIDTH)
    part = LastLayer()
    assert not torch.equal(convention.call(part, first), convention.call(part, second))


class Beginning(Whole):
    """Hands on a state that starts at zero."""

    def forward(self, tokens):
        return self.part(self.embed(tokens), [torch.zeros(len(tokens), 7, 2), 4])


class Unmasked(nn.Module):
    """Hands on a mask of zeros, which hides nothing."""

    def __init__(self):
        super().__init__()
        self.part = Adding()

    def forward(self, x):
        return self.part(x, told=torch.zeros(len(x), 7, 2), mask=torch.zeros(x.size(1), x.size(1)))


class Adding(Part):
    def forward(self, x, *, told, mask):
        return super().forward(x + mask.sum(), [told, 4])


def test_zeros_in_a_mask_stay_zeros():
    whole = Patient("Whole", Unmasked(), None, {}, "", "")
    convention = interview(Patient("Part", Adding(), None, {}, "", "", whole=lambda: whole))
    kept = {one.parameter: one.value.value for one in convention.arguments if one.source == HANDED_ON}
    assert {name: bool(value.any()) for name, value in kept.items()} == {"told": True, "mask": False}


class OfTwo(Part):
    def forward(self, x, first, second):
        return super().forward(x + (first + second).sum(), [first, 4])


class Twice(nn.Module):
    """Hands on one state, which starts at zero, in two places."""

    def __init__(self):
        super().__init__()
        self.part = OfTwo()

    def forward(self, x):
        state = torch.zeros(len(x), 7, 2)
        return self.part(x, state, state)


def test_a_state_that_is_handed_on_twice_stays_one():
    whole = Patient("Whole", Twice(), None, {}, "", "")
    convention = interview(Patient("Part", OfTwo(), None, {}, "", "", whole=lambda: whole))
    first, second = (one.value.value for one in convention.arguments if one.source == HANDED_ON)
    assert first.any()
    assert torch.equal(first, second)


def test_a_state_that_starts_at_zero_is_given_as_one_that_has_begun():
    module = Part()
    interview(patient(Beginning)).call(module, torch.randn(BATCH, LENGTH, WIDTH))
    assert module.given[0].all()
