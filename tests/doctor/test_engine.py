"""The doctor as a function: never trusts a module, leaves it and the program as they were, says what failed."""

from __future__ import annotations

import random
import textwrap
import time

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.doctor import assert_healthy, doctor, engine
from attnlab.doctor.checks import CHECKS
from attnlab.doctor.findings import Finding


class Plain(nn.Module):
    """A position-wise layer, (batch, length, d_model): nothing to say about it."""

    def __init__(self, d_model: int):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x)


class Meddling(Plain):
    def forward(self, x):
        print("hello from", tuple(x.shape))
        random.seed(1)
        torch.set_default_dtype(torch.float64)
        return super().forward(x)


class Unscaled(nn.Module):
    """Self-attention over (batch, length, d_model); every position sees every other."""

    def __init__(self, d_model: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        return (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(text))
        return f"{path}:Mine"

    return write


def test_a_class_of_a_file_is_examined_by_every_check():
    diagnosis = doctor(Plain(8))
    assert set(diagnosis.seconds) == set(CHECKS)
    assert diagnosis.assumptions


def test_an_instance_is_left_as_it_is():
    module = nn.MultiheadAttention(16, 4, batch_first=True).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    states = random.getstate(), torch.random.get_rng_state()
    doctor(module)
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not module._forward_hooks
    assert random.getstate() == states[0]
    assert torch.equal(torch.random.get_rng_state(), states[1])


class Skipping(nn.Linear):
    """Leave the map out by chance in training, as layer drop does, and draw in evaluation too."""

    def forward(self, x):
        chance = random.random()
        return x if self.training and chance < 0.5 else super().forward(x) * (1 + chance)


@pytest.mark.parametrize("kind", [Unscaled, lambda width: Skipping(width, width)], ids=["a layer", "one that draws"])
def test_two_examinations_find_the_same_but_for_times(kind):
    torch.manual_seed(0)
    module, found = kind(16), []
    for seed in range(2):  # whatever a process begins with
        random.seed(seed)
        found.append([finding for finding in doctor(module).findings if finding.check != "cost"])
    first, second = found
    assert first == second


def test_what_a_module_prints_and_changes_is_reported_and_put_back(capsys):
    diagnosis = doctor(Meddling(8))
    assert capsys.readouterr().out == ""
    assert "hello from" in diagnosis.assumptions["prints"]
    assert torch.get_default_dtype() == torch.float32
    found = [finding for finding in diagnosis.findings if "global settings" in finding.message]
    assert [(finding.check, finding.severity) for finding in found] == [("determinism", "warning")]
    assert "the default dtype" in found[0].evidence


def test_a_check_without_end_is_a_warning(monkeypatch):
    def forever(_exam):
        while True:
            time.sleep(0.01)
        yield

    monkeypatch.setattr(engine, "CHECK_S", 0.1)
    monkeypatch.setattr(engine, "CHECKS", {"cost": forever})
    diagnosis = doctor(Plain(8))
    (finding,) = diagnosis.findings
    assert (finding.check, finding.severity, diagnosis.verdict) == ("cost", "warning", "set-up")
    assert "did not end within 0.1 s" in finding.message
    with pytest.raises(AssertionError, match="did not end within"):
        assert_healthy(Plain(8))


def test_after_two_checks_without_end_the_others_are_skipped(monkeypatch):
    def forever(_exam):
        while True:
            time.sleep(0.01)
        yield

    monkeypatch.setattr(engine, "CHECK_S", 0.1)
    monkeypatch.setattr(engine, "CHECKS", dict.fromkeys(["cost", "cache", "scale", "signal"], forever))
    diagnosis = doctor(Plain(8))
    severities = {finding.check: finding.severity for finding in diagnosis.findings}
    assert severities == {"cost": "warning", "cache": "warning", "scale": "info", "signal": "info"}
    assert diagnosis.summary.endswith("could not be examined: cost, cache, scale, signal")


def test_a_module_stuck_in_training_mode_is_no_healthy_module(monkeypatch):
    class Stuck(Plain):
        def forward(self, x):
            while self.training:
                pass
            return super().forward(x)

    monkeypatch.setattr(engine, "CHECK_S", 0.2)
    monkeypatch.setattr(engine, "STUCK_S", 0.2)
    with pytest.raises(AssertionError, match="in training mode a call does not come back"):
        assert_healthy(Stuck(8))


def test_what_takes_other_inputs_in_training_is_examined_in_evaluation():
    class Pairs(Plain):
        def forward(self, x):
            first, second = x if self.training else (x, x)
            return self.linear(first + second)

    findings = doctor(Pairs(8)).findings
    assert engine.OTHERWISE_TRAINED.message in {finding.message for finding in findings}
    assert not any(finding.is_unfinished for finding in findings)


def test_wrong_wishes_are_refused():
    with pytest.raises(SpecError, match="depth must be at least 1; got 0"):
        doctor(Plain(8), depth=0)
    with pytest.raises(SpecError, match=r"unknown check 'normalisation' in 'accept'.*normalization"):
        assert_healthy(Plain(8), accept=("normalisation",))


def test_what_was_found_before_a_check_failed_is_kept(monkeypatch):
    def half(_exam):
        yield Finding("cost", "info", "Found first.", "1 s")
        raise ZeroDivisionError("nothing to divide by")

    monkeypatch.setattr(engine, "CHECKS", {"cost": half})
    first, second = doctor(Plain(8)).findings
    assert first.message == "Found first."
    assert second.message == "could not be examined: the check itself failed."
    assert "nothing to divide by" in second.evidence


def test_checks_are_skipped_when_time_is_up(monkeypatch):
    def quick(_exam):
        return iter(())

    monkeypatch.setattr(engine, "ALL_S", -1.0)
    monkeypatch.setattr(engine, "CHECKS", {"cost": quick})
    (finding,) = doctor(Plain(8)).findings
    assert finding.message.startswith("could not be examined: skipped")


def test_progress_is_told_before_each_check():
    told = []
    doctor(Plain(8), on_check=lambda check, index, count: told.append((check, index, count)))
    assert [check for check, _, _ in told] == list(CHECKS)
    assert {count for _, _, count in told} == {len(CHECKS)}


def test_an_endless_loop_in_forward_is_an_error_in_words(file, monkeypatch):
    monkeypatch.setattr(engine, "INTERVIEW_S", 0.3)
    target = file("""
        class Mine(nn.Module):
            def __init__(self, d_model):
                super().__init__()
                self.linear = nn.Linear(d_model, d_model)
            def forward(self, x):
                while True:
                    try:
                        x = x + 1
                    except Exception:
                        pass
    """)
    with pytest.raises(ModuleError, match=r"the first calls did not end within 0.3 s: an endless loop\?"):
        doctor(target)


def test_a_module_that_exits_is_an_error_in_words(file):
    with pytest.raises(ModuleError, match="SystemExit"):
        doctor(file("import sys\nsys.exit('no licence')\n"))


def test_healthy_modules_pass_an_assertion_and_others_fail_with_evidence():
    torch.manual_seed(0)
    assert_healthy(nn.MultiheadAttention(32, 4, batch_first=True))
    with pytest.raises(AssertionError, match=r"(?s)error: scale: .*evidence: .*remedy: "):
        assert_healthy(Unscaled(64))
    assert_healthy(Unscaled(64), accept=("scale",))


def test_an_accepted_finding_is_told_and_does_not_count():
    diagnosis = doctor(Unscaled(64), accept=("scale",))
    (finding,) = [one for one in diagnosis.findings if one.check == "scale" and one.severity == "error"]
    assert finding.accepted
    assert finding.to_json()["accepted"]
    assert not diagnosis.errors
    assert diagnosis.verdict != "bug"
    assert "error (accepted): scale" in str(diagnosis)


class LengthFirst(nn.Module):
    """Attend along the first axis, and say nothing about it."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, mask=None):
        q, k, v = (part(x).transpose(0, 1) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(1, 2) / 4
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(0, 1)


def test_what_is_declared_is_taken_as_it_is():
    torch.manual_seed(0)
    undeclared, declared = doctor(LengthFirst()), doctor(LengthFirst(), layout="length first", mask="True = keep")
    assert not undeclared.errors  # a question, since nobody says which axis is which
    assert "layout" in " ".join(one.remedy for one in undeclared.findings if one.check == "batch-independence")
    assert "--layout" in declared.assumptions["layout"]
    assert not [one for one in declared.findings if one.check in ("batch-independence", "mask-polarity")]
    (polarity,) = doctor(LengthFirst(), layout="sequence first", mask="True = blocked").errors
    assert polarity.check == "mask-polarity"


def test_what_nobody_can_declare_is_refused():
    with pytest.raises(SpecError, match=r"layout must be 'batch first' or .* or 'channels first'; got 'time'"):
        doctor(Plain(8), layout="time")
    with pytest.raises(SpecError, match="mask must be 'True = keep' or 'True = blocked'; got 'True = drop'"):
        doctor(Plain(8), mask="True = drop")


def test_an_unknown_target_is_refused():
    with pytest.raises(SpecError):
        doctor("nowhere.py:Mine")


class AddsItsMask(nn.Module):
    """A block whose mask is added to the scores: its type is torch's own, whatever the type of the input."""

    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(20, 2, batch_first=True), nn.LayerNorm(20)

    def forward(self, x):
        mask = torch.full((x.size(1), x.size(1)), float("-inf"), device=x.device).triu(1)
        y = self.norm(x)
        return x + self.attention(y, y, y, attn_mask=mask)[0]


def test_a_mask_in_torchs_own_type_keeps_no_check_from_its_end():
    diagnosis = doctor(AddsItsMask())
    assert not [one.check for one in diagnosis.findings if one.is_unfinished]
    assert not diagnosis.errors
