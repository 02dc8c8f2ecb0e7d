"""Determinism: chance in evaluation mode, dropout that never acts, memory of earlier calls, and traces of a call."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.doctor.bedside import HEADS, KEYS, PAIRS, Attention, Causal, D, examine
from torch import nn

from attnlab.core.errors import SpecError
from attnlab.doctor import doctor
from attnlab.doctor.checks.determinism import check_determinism
from attnlab.doctor.influence.steady import is_steady, random_state


def found(module, **convention):
    return list(check_determinism(examine(module, **convention)))


def only(module, severity, words, **convention):
    (finding,) = found(module, **convention)
    assert (finding.check, finding.severity) == ("determinism", severity)
    assert words in finding.message
    return finding


class Dropping(Attention):
    def __init__(self, rate=0.3):
        super().__init__()
        self.drop = nn.Dropout(rate)

    def normalize(self, scores):
        return self.drop(super().normalize(scores))


class Fused(Attention):
    """Hands the rate of a dropout that is never called to a function."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def normalize(self, scores):
        return nn.functional.dropout(super().normalize(scores), self.drop.p, self.training)


class Experts(Attention):
    def __init__(self):
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(D)

    def forward(self, x, mask=None):
        self.kept = super().forward(x, mask)  # looked at by a person
        return self.batch_norm(self.kept.mT).mT


class TableByLength(Causal):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def mask(self, scores, mask):
        length = scores.size(-1)
        if length not in self.tables:
            self.tables[length] = self.blocked(length)
        return scores.masked_fill(self.tables[length], float("-inf"))


@pytest.mark.parametrize(
    "module",
    [Attention(), Causal(), Dropping(), Dropping(0.0), Fused(), Experts(), TableByLength()],
    ids=lambda module: type(module).__name__,
)
def test_right_layers_are_left_in_peace(module):
    assert not found(module)
    assert not found(module, masks=(KEYS,))


def test_torch_layers_are_left_in_peace():
    assert not found(nn.TransformerEncoderLayer(D, HEADS, 24, batch_first=True))


# Chance


class AlwaysDropping(Attention):
    def normalize(self, scores):
        return nn.functional.dropout(super().normalize(scores), 0.3)


class BuiltInForward(Attention):
    def normalize(self, scores):
        return nn.Dropout(0.3)(super().normalize(scores))


class NumpyNoise(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) + float(np.random.rand())


class PythonNoise(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) + random.random()


class Counting(Attention):
    calls = 0

    def forward(self, x, mask=None):
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize(
    "module",
    [AlwaysDropping(), BuiltInForward(), NumpyNoise(), PythonNoise()],
    ids=lambda module: type(module).__name__,
)
def test_chance_in_evaluation_mode_is_found(module):
    only(module, "error", "by chance")
    assert not is_steady(examine(module))


class Sampling(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) + torch.randn_like(x)


def test_a_sample_that_is_drawn_is_a_known_effect():
    assert "is a sample" in only(Sampling(), "warning", "by normal numbers that it draws (`randn").message


class Starting(Attention):
    def forward(self, x, mask=None):
        return super().forward(x) + x[:, torch.randint(x.size(1), (1,))]


def test_places_that_are_chosen_by_chance_are_a_set_up():
    finding = only(Starting(), "warning", "by places or pieces that it chooses by chance (`randint")
    assert finding.nature == "set-up"


class Hashing(AlwaysDropping):
    """Locality-sensitive hashing with other directions at every call."""


def test_declared_chance_is_accepted():
    assert only(Hashing(), "error", "by chance").accepted


def test_the_place_of_chance_is_named():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = AlwaysDropping()

        def forward(self, x):
            return self.inner(x)

    assert "`inner`" in only(Inside(), "error", "by chance").message


def test_what_changes_with_every_call_is_found():
    only(Counting(), "error", "it remembers an earlier call")


# Dropout that never acts


class NeverCalled(Dropping):
    def normalize(self, scores):
        return scores.softmax(-1)


class NeverTraining(Attention):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.rate = dropout

    def normalize(self, scores):
        return nn.functional.dropout(super().normalize(scores), self.rate, training=False)


class OneOfTwo(Dropping):
    def __init__(self):
        super().__init__()
        self.other = nn.Dropout(0.2)


def test_a_dropout_that_is_never_called_is_found():
    only(NeverCalled(), "error", "`drop`: p=0.3")


class Recurrent(nn.Module):
    def __init__(self, n_layers, *, beside=False):
        super().__init__()
        self.gru = nn.GRU(D, D, n_layers, dropout=0.4, batch_first=True)
        self.beside = nn.Dropout(0.2) if beside else nn.Identity()

    def forward(self, x):
        return self.gru(x)[0]


def test_dropout_between_the_layers_of_a_recurrence_with_one_is_a_matter_of_set_up():
    told = {"arguments": {"dropout": 0.4}}
    assert only(Recurrent(1), "warning", "between its layers, and it has one", **told).weighs == "set-up"
    assert not found(Recurrent(2), **told)
    only(Recurrent(1, beside=True), "error", "never acts.", **told)


class NoRate(NeverCalled):
    """Has a dropout whose rate no argument sets."""

    def __init__(self):
        super().__init__(0.3)


def test_a_dropout_that_nobody_could_ask_for_is_a_warning():
    def refuse(changes):
        raise SpecError(f"unknown {changes}")

    assert "no argument sets its rate" in only(NoRate(), "warning", "never acts: `drop`", build=refuse).evidence
    only(NeverCalled(), "error", "never acts", build=lambda changes: NeverCalled(changes["dropout"]))


def test_an_argument_that_is_never_used_is_found():
    only(NeverTraining(0.1), "error", "dropout=0.1", arguments={"dropout": 0.1})


def test_an_argument_that_is_zero_by_default_is_tried():
    only(NeverTraining(), "error", "dropout=0.5", build=lambda changes: NeverTraining(**changes))


class DroppingAlways(Attention):
    def __init__(self, share=0.0):
        super().__init__()
        self.drop, self.share = nn.Dropout(share), share

    def normalize(self, scores):
        return nn.functional.dropout(super().normalize(scores), self.share)


def test_chance_is_looked_for_where_a_rate_is_zero_by_default():
    finding = only(DroppingAlways(), "error", "by chance", build=lambda changes: DroppingAlways(**changes))
    assert "dropout 0.5" in finding.evidence
    assert not found(Dropping(0.0), build=lambda changes: Dropping(**changes))


def test_a_constructor_without_dropout_is_left_in_peace():
    def build(changes):
        raise SpecError(f"unknown {changes}")

    assert not found(Attention(), build=build)
    assert not found(Dropping(0.0), build=lambda changes: Dropping(*changes.values()))


def test_one_idle_dropout_of_several_is_a_warning():
    only(OneOfTwo(), "warning", "never acts: `other`")


# Memory


class KeptMask(Causal):
    kept = None

    def mask(self, scores, mask):
        if self.kept is None:
            self.kept = self.blocked(scores.size(-1))
        return scores.masked_fill(self.kept, float("-inf"))


class KeptPadding(Attention):
    kept = None

    def forward(self, x, mask=None):
        if self.kept is None or (mask is not None and self.kept.shape != mask.shape):
            self.kept = mask
        return super().forward(x, mask if mask is None else self.kept)


class KeptPairs(KeptPadding):
    """The first mask over pairs is kept."""


class KeptState(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.state = nn.GRU(D, D, batch_first=True), None

    def forward(self, x):
        fits = self.state is not None and self.state.size(1) == x.size(0)
        output, self.state = self.rnn(x, self.state.detach() if fits else None)
        return output


class KeptUntilReset(KeptState):
    def reset_memory(self, state=None):
        self.state = state


class KeptMean(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(D))

    def forward(self, x, mask=None):
        self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1))
        return super().forward(x - self.mean)


class KeptLongest(Attention):
    """Positions are scaled by the longest length that was seen."""

    longest = 0

    def forward(self, x, mask=None):
        self.longest = max(self.longest, x.size(1))
        return super().forward(x + torch.arange(x.size(1)).to(x.dtype)[:, None] / self.longest)


class Listing(Attention):
    def __init__(self):
        super().__init__()
        self.maps = []

    def normalize(self, scores):
        self.maps.append(super().normalize(scores))
        return self.maps[-1]


def test_a_kept_mask_of_another_length_is_found():
    finding = only(KeptMask(), "error", "remembers an earlier call")
    assert "a shorter input" in finding.message
    assert "raises" in finding.evidence


@pytest.mark.parametrize(
    ("module", "masks"), [(KeptPadding(), (KEYS,)), (KeptPairs(), (PAIRS,))], ids=["padding", "pairs"]
)
def test_a_kept_mask_of_the_same_length_is_found(module, masks):
    only(module, "error", "remembers an earlier call", masks=masks)


@pytest.mark.parametrize("module", [KeptState(), KeptMean()], ids=lambda module: type(module).__name__)
def test_a_state_that_is_kept_is_found(module):
    (finding,) = found(module)
    assert finding.severity == "error"


class KeptCache(Attention):
    """Takes the input of a second call for a step that goes on from the first, and answers for its end alone."""

    kept = None

    def forward(self, x):
        past, self.kept = self.kept, x
        return super().forward(x if past is None else torch.cat([past, x], 1)[:, -1:])


def test_what_takes_no_second_call_is_found():
    assert "it raises" in only(KeptCache(), "error", "remembers an earlier call").evidence


def test_a_state_that_can_be_reset_is_meant():
    finding = only(KeptUntilReset(), "warning", "remembers an earlier call until reset_memory() is called")
    assert finding.remedy.startswith("call reset_memory() before every batch")


def test_the_longest_length_that_was_seen_is_found():
    assert "a call on the usual input" in only(KeptLongest(), "error", "remembers an earlier call").message


def test_what_only_grows_is_a_warning():
    only(Listing(), "warning", "`maps` grows")


# Traces


class InPlace(Attention):
    def forward(self, x, mask=None):
        x += 1.0
        return super().forward(x)


class InPlaceMask(Attention):
    def forward(self, x, mask=None):
        if mask is not None:
            mask[..., -1] = True
        return super().forward(x, mask)


class Seeding(Dropping):
    def forward(self, x, mask=None):
        torch.manual_seed(0)
        return super().forward(x)


class PythonSeeding(Attention):
    def forward(self, x, mask=None):
        random.seed(0)
        np.random.seed(0)
        return super().forward(x)


class Switching(Dropping):
    def forward(self, x, mask=None):
        self.eval()
        return super().forward(x)


class Writing(Attention):
    def forward(self, x, mask=None):
        with torch.no_grad():
            self.out.weight.copy_(self.out.weight / self.out.weight.norm())
        return super().forward(x)


class Frozen(Attention):
    """A part stays in evaluation mode by its own will."""

    def train(self, mode=True):
        super().train(mode)
        self.out.eval()
        return self


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (InPlace(), "writes into its input"),
        (Seeding(), "seeds torch's global generator"),
        (PythonSeeding(), "seeds Python's random and numpy's random"),
        (Switching(), "to evaluation mode"),
        (Writing(), "changes `out.weight`"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_traces_are_found(module, words):
    errors = [finding for finding in found(module) if finding.severity == "error"]
    assert any(words in finding.message for finding in errors)


class SeesItself(Attention):
    """Lets every position see itself, in the mask of who calls."""

    def forward(self, x, mask=None):
        if mask is not None:
            mask.diagonal(dim1=-2, dim2=-1)[:] = False
        return super().forward(x)


def test_a_mask_that_is_written_to_is_found():
    assert any("(`mask`)" in finding.message for finding in found(SeesItself(), masks=(PAIRS,)))
    for mask in (PAIRS, KEYS):
        assert any("(`mask`)" in finding.message for finding in found(InPlaceMask(), masks=(mask,)))


def test_a_part_that_stays_in_evaluation_mode_is_left_in_peace():
    assert not found(Frozen())


def test_seeding_for_a_call_leaves_random_states_as_they_were():
    def states():
        return torch.random.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    before = states()
    with random_state(5):
        first = torch.rand(1), random.random(), np.random.rand()
    assert states() == before
    with random_state(5):
        assert (torch.rand(1), random.random(), np.random.rand()) == first


class Unfilled(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qk, self.v = nn.Parameter(torch.empty(d_model, d_model)), nn.Linear(d_model, d_model)
        self.filled = nn.Parameter(torch.empty(d_model).fill_(1.0))

    def forward(self, x):
        return (x @ self.qk @ x.mT).div(x.size(-1) ** 0.5).softmax(-1) @ self.v(x) * self.filled


def test_parameters_that_are_never_initialized_are_the_one_error():
    (error,) = doctor(Unfilled).errors
    assert error.message == "parameters are never initialized, and start as whatever was in memory: `qk`."
    assert not torch.are_deterministic_algorithms_enabled()


class SwitchedOff(Attention):
    def __init__(self, use_dropout=False):
        super().__init__()
        self.use_dropout, self.drop = use_dropout, nn.Dropout(0.3)

    def normalize(self, scores):
        scores = super().normalize(scores)
        return self.drop(scores) if self.use_dropout else scores


def test_dropout_that_the_constructor_switches_off_is_not_missed():
    assert only(SwitchedOff(), "error", "never acts").accepted
