"""Device and dtype: what stays on the CPU or in float32 is found without an accelerator, and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.doctor.bedside import D, examine
from torch import nn
from torch.nn import functional as F

from attnlab.doctor.checks import dtype_device as devices
from attnlab.doctor.checks.dtype_device import check_dtype_device
from attnlab.doctor.measures.unregistered import plain_tensors
from attnlab.strangers.calling.masking import Masking


def findings(module, **told):
    return list(check_dtype_device(examine(module, length=7, **told)))


def severities(module, **convention):
    return [finding.severity for finding in findings(module, **convention)]


class Attention(nn.Module):
    """A plain causal head that subclasses spoil in one place."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def mask(self, x):
        return torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()

    def add(self, x):
        return x

    def forward(self, x):
        x = self.add(x)
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(D)
        return scores.masked_fill(~self.mask(x), float("-inf")).softmax(-1) @ self.v(x)


class MaskOnTheCpu(Attention):
    def mask(self, x):
        return torch.ones(x.size(1), x.size(1)).tril() == 1


class MaskMoved(Attention):
    def mask(self, x):
        return (torch.ones(x.size(1), x.size(1)).tril() == 1).to(x.device)


class MaskFromNumpy(Attention):
    def mask(self, x):
        return torch.from_numpy(np.tril(np.ones((x.size(1), x.size(1)))) == 1)


class Buffered(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(50, D))

    def add(self, x):
        return x + self.table[: x.size(1)]


class Plain(Attention):
    def __init__(self):
        super().__init__()
        self.table = torch.ones(50, D)

    def add(self, x):
        return x + self.table[: x.size(1)]


class PlainOnAChosenDevice(Plain):
    def __init__(self, device="cpu"):
        super().__init__()
        self.table = self.table.to(device)


@dataclass
class Tables:
    """Holds a tensor that no module sees."""

    one: torch.Tensor


class PlainInAList(Attention):
    def __init__(self):
        super().__init__()
        self.tables = {"one": [torch.ones(50, D)]}

    def add(self, x):
        return x + self.tables["one"][0][: x.size(1)]


class PlainInAnObject(Attention):
    def __init__(self):
        super().__init__()
        self.tables = Tables(torch.ones(50, D))

    def add(self, x):
        return x + self.tables.one[: x.size(1)]


class PlainMoved(Plain):
    def add(self, x):
        return x + self.table[: x.size(1)].to(x)


class PlainNumber(Attention):
    """A tensor without axes may stay on the CPU; one axis of size one may not."""

    def __init__(self):
        super().__init__()
        self.factor = torch.tensor(0.5)

    def add(self, x):
        return x * self.factor


class FilledWithANumber(PlainNumber):
    def add(self, x):
        return x.masked_fill(x > 2, self.factor)


class PlainAxisOfOne(PlainNumber):
    def __init__(self):
        super().__init__()
        self.factor = torch.FloatTensor([0.5])


class PositionsOnTheCpu(Attention):
    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(50, D)

    def add(self, x):
        return x + self.positions(torch.arange(x.size(1)))


class IndexOnTheCpu(PositionsOnTheCpu):
    """An accelerator's tensor may be indexed by numbers on the CPU."""

    def add(self, x):
        return x + self.positions.weight[torch.arange(x.size(1))]


class ResultOnTheCpu(Attention):
    def forward(self, x):
        result = torch.zeros(x.shape)
        for position in range(x.size(1)):
            result[:, position] = self.v(x[:, position])
        return result


class ThroughNumpy(Attention):
    def add(self, x):
        return x * torch.from_numpy(np.ones_like(x.detach().numpy()))


class ThroughNumpyWithCare(Attention):
    def add(self, x):
        return x * torch.from_numpy(np.ones_like(x.detach().cpu().numpy())).to(x.device)


class KeepsItsMask(Attention):
    def mask(self, x):
        if getattr(self, "kept", None) is None:
            self.kept = super().mask(x)
        return self.kept


class KeepsItsMaskWithCare(Attention):
    def mask(self, x):
        if getattr(self, "kept", None) is None or self.kept.device != x.device:
            self.kept = super().mask(x)
        return self.kept


class Float32Constant(Attention):
    def add(self, x):
        return x + torch.zeros(D, device=x.device)


class Float32Product(Attention):
    def add(self, x):
        return x @ torch.eye(D, device=x.device)


class SameFormat(Attention):
    def add(self, x):
        return x + torch.zeros(D, device=x.device, dtype=x.dtype)


class LooksAtNumbers(Attention):
    def add(self, x):
        return x if x.sum().item() > 0 else -x


class LooksAtNumbersAndPlain(Plain):
    def add(self, x):
        return super().add(x) if x.sum() < 1e9 else x


class Routes(Attention):
    """Sizes of what it computes with depend on the input."""

    def add(self, x):
        tokens = x.flatten(0, 1)
        first = tokens[:, 0] > 0
        chosen = torch.zeros_like(tokens)
        chosen[first] = self.q(tokens[first])
        (places,) = torch.where(~first)
        return chosen.index_add(0, places, self.k(tokens[places])).view_as(x)


class RoutesThroughTheCpu(Routes):
    def add(self, x):
        (places,) = torch.where(x.cpu().flatten(0, 1)[:, 0] > 0)
        return super().add(x) + torch.zeros(x.numel() // D, D).index_add(0, places, torch.ones(len(places), D)).view_as(
            x
        )


class Lists(Attention):
    def add(self, x):
        return x * len(x.flatten().tolist()) / x.numel()


class PlainRandomMoved(Attention):
    def __init__(self):
        super().__init__()
        self.noise = torch.randn(D)

    def add(self, x):
        return x + self.noise.to(x)


class WithMask(nn.Module):
    """Takes its mask as an argument, as torch's own layer."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x, attn_mask=None):
        return self.attention(x, x, x, attn_mask=attn_mask)[0]


class Rounded(Attention):
    """Computes in float32 inside, and casts back."""

    def add(self, x):
        return F.layer_norm(x.float(), (D,)).to(x.dtype)


RIGHT = [
    Attention, MaskMoved, Buffered, PlainMoved, PlainNumber, FilledWithANumber, IndexOnTheCpu, KeepsItsMaskWithCare,
    SameFormat, LooksAtNumbers, Rounded, Routes, Lists, ThroughNumpyWithCare,
]  # fmt: skip
LEFT_BEHIND = [
    MaskOnTheCpu, MaskFromNumpy, Plain, PlainInAList, PlainAxisOfOne, PositionsOnTheCpu, ResultOnTheCpu, ThroughNumpy,
    LooksAtNumbersAndPlain, RoutesThroughTheCpu,
]  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
def test_what_moves_has_no_finding(kind):
    assert findings(kind()) == []


def test_torch_layers_move():
    layer = nn.TransformerEncoderLayer(D, 2, dim_feedforward=30, batch_first=True)
    assert findings(layer) == []
    assert findings(nn.LSTM(D, D, batch_first=True)) == []


def test_mask_argument_moves_with_the_input():
    mask = Masking("attn_mask", "pairs", "bool, True = blocked", "(q_len, k_len)")
    assert findings(WithMask(), masks=(mask,), causal=True, causal_means="mask") == []


@pytest.mark.parametrize("kind", LEFT_BEHIND)
def test_what_stays_on_the_cpu_is_an_error(kind):
    errors = [finding for finding in findings(kind()) if finding.severity == "error"]
    assert any("CPU" in error.message and "register_buffer" in error.remedy for error in errors)


def test_plain_attribute_is_named():
    assert "self.table (50, 20)" in findings(Plain())[0].evidence
    assert "self.tables.one (50, 20)" in findings(PlainInAnObject())[0].evidence


def test_a_device_that_the_constructor_asks_for_is_a_choice():
    warning, *_ = findings(PlainOnAChosenDevice())
    assert warning.severity == "warning"
    assert "chosen when it was built" in warning.message


def test_mask_of_an_earlier_call_is_called_so():
    (warning,) = findings(KeepsItsMask())
    assert warning.severity == "warning"
    assert "earlier call" in warning.message


def test_result_left_on_the_cpu_is_said():
    assert "output is on the cpu" in findings(ResultOnTheCpu())[0].evidence


def test_float32_constant_is_a_warning_in_bfloat16():
    (warning,) = findings(Float32Constant())
    assert warning.severity == "warning"
    assert warning.message.startswith("Moved to bfloat16 it fails")


def test_float32_product_is_a_warning_in_float64_too():
    (warning,) = findings(Float32Product())
    assert warning.severity == "warning"
    assert warning.message.startswith("Moved to bfloat16 and float64 it fails")


def test_untried_plain_tensor_is_a_warning(monkeypatch):
    monkeypatch.setattr(devices, "_move", lambda exam, module: devices._Move("unknown", "no such operation"))
    warning = next(finding for finding in findings(Plain()) if "do not move" in finding.message)
    assert warning.severity == "warning"
    assert "self.table (50, 20); could not be tried on another device: no such operation" in warning.evidence
    assert findings(PlainMoved()) == []


def test_random_plain_tensor_is_not_saved():
    torch.manual_seed(7)  # the doctor's own seed must not make the second instance like the first
    (warning,) = findings(PlainRandomMoved(), build=lambda changes: PlainRandomMoved())
    assert warning.severity == "warning"
    assert "state_dict" in warning.evidence
    assert findings(PlainMoved(), build=lambda changes: PlainMoved()) == []


def test_plain_tensors_are_found_in_collections_and_buffers_are_not():
    parts = nn.Sequential(PlainInAList(), Buffered(), nn.LSTM(D, D))  # torch's layer keeps its weights in a list too
    assert [kept.path for kept, _ in plain_tensors(parts)] == ["self.0.tables['one'][0]"]


def test_patient_stays_on_the_cpu():
    module = KeepsItsMask()
    findings(module)
    assert not hasattr(module, "kept")
    assert {parameter.device.type for parameter in module.parameters()} == {"cpu"}


class SummedForUse(Attention):
    def train(self, mode=True):
        super().train(mode)
        self.kept = None if mode else self.q.weight.sum(0)
        return self

    def add(self, x):
        return x if self.kept is None else x + self.kept


def test_what_is_made_on_the_way_to_evaluation_mode_is_made_anew_after_a_move():
    assert severities(SummedForUse().eval()) == []


CHOSEN = torch.device("cpu")  # as a file chooses one for all that it does


class MaskOnChosenDevice(Attention):
    def mask(self, x):
        return torch.ones(x.size(1), x.size(1), dtype=torch.bool, device=CHOSEN).tril()


class MaskSentToChosenDevice(Attention):
    def mask(self, x):
        return torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril().to(CHOSEN)


@pytest.mark.parametrize("kind", [MaskOnChosenDevice, MaskSentToChosenDevice])
def test_a_device_that_is_named_on_purpose_is_a_matter_of_set_up(kind):
    assert severities(kind()) == ["warning"]


class MaskAlwaysOnTheCpu(Attention):
    def mask(self, x):
        return torch.ones(x.size(1), x.size(1), dtype=torch.bool, device="cpu").tril()


def test_the_cpu_alone_is_no_choice():
    assert severities(MaskAlwaysOnTheCpu()) == ["error"]
