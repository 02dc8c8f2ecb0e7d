"""What heads, sublayers and layers of trained runs are worth: measured, judged over seeds, printed."""

from __future__ import annotations

import json
import math
import statistics

import pytest
import torch

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import RunError, SpecError
from attnlab.inspection import ablate
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.worth import judged_parts
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.parts import finished_runs, measure_parts
from attnlab.studies.using.trained import load_run

TOKENS = 200
HEADS = ["stack.blocks.0.mixer:0", "stack.blocks.0.mixer:1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory, one_thread):
    """Two seeds that learn which of two texts goes on, for which they must look back, and one without attention."""
    folder = tmp_path_factory.mktemp("parts")
    generator = torch.Generator().manual_seed(0)
    words = ["ab", "ac"]
    text = "".join(words[one] * 4 + "\n" for one in torch.randint(2, (400,), generator=generator).tolist())
    (folder / "text.txt").write_text(text, encoding="utf-8")
    spec = {
        "question": "What does it look at?",
        "task": {"name": "char-lm", "text": str(folder / "text.txt"), "context": 18, "batch": 16},
        "model": {"name": "decoder", "d_model": 32, "n_layers": 1},
        "baseline": "attention",
        "variants": {"attention": {"mixer": {"name": "attention", "n_heads": 2}}, "none": {"mixer": "none"}},
        "rules": {"metric": "val_loss", "budget": {"steps": 120}, "seeds": 2, "smallest_effect": 0.1},
        "training": {"lr": 1e-2},
    }
    run_study(
        parse_study(spec, name="parts", path=folder / "parts.yaml"), folder / "parts", jobs=1, executor=InProcess()
    )
    return folder / "parts"


@pytest.fixture(scope="module")
def measured(study):
    return [measure_parts(study / "attention" / f"seed-{seed}", tokens=TOKENS) for seed in (0, 1)]


def test_worth_is_the_loss_without_a_part_minus_that_with_it(study, measured):
    run = measured[0]
    model, task = load_run(run.folder).model, build_task(json.loads((run.folder / "spec.json").read_text())["task"])
    batches = []

    def predict(batch):
        batches.append(batch)
        return model(*batch.inputs)

    with torch.no_grad():
        task.evaluate(predict, "validation")
        assert math.isclose(
            statistics.fmean(run.losses), float(task.loss(predict(batches[0]), batches[0])), rel_tol=1e-5
        )
        for part in run.parts:
            with ablate(model, part.place, "skip" if part.kind == "layer" else "zero"):
                without = float(task.loss(model(*batches[0].inputs), batches[0]))
            assert math.isclose(statistics.fmean(part.losses), without, rel_tol=1e-5)
            assert math.isclose(run.worth(part), without - statistics.fmean(run.losses), rel_tol=1e-4, abs_tol=1e-6)


def test_heads_sublayers_and_layers_are_parts(measured):
    by_kind = {kind: [part.place for part in measured[0].parts if part.kind == kind] for kind in ("head", "layer")}
    assert by_kind == {"head": HEADS, "layer": ["stack.blocks.0"]}
    sublayers = [part.place for part in measured[0].parts if part.kind == "sublayer"]
    assert sublayers == ["stack.blocks.0.mixer", "stack.blocks.0.feedforward"]


def test_heads_are_pruned_from_the_least_valuable(measured):
    run = measured[0]
    worths = {part.place: run.worth(part) for part in run.parts}
    first, last = (place for place, _ in run.pruned)
    assert worths[first] <= worths[last]
    whole = next(part for part in run.parts if part.place == "stack.blocks.0.mixer")
    assert run.pruned[-1][1] > run.pruned[0][1]  # the text cannot be told without looking back
    assert run.worth(whole) > 0.1


def test_over_seeds_heads_are_matched_by_what_they_do(measured):
    found = judged_parts("attention", measured, tolerance=0.01)
    assert found.runs == 2
    assert {row.place for row in found.parts} == {part.place for part in measured[0].parts}
    assert all(len(row.worths) == 2 for row in found.parts)
    assert found.agreement is not None
    assert 0 <= found.agreement <= 1
    same = judged_parts("attention", [measured[0], measured[0]], tolerance=0.01)
    assert same.agreement == pytest.approx(1)
    assert all(row.worths[0] == row.worths[1] for row in same.parts)


def test_of_one_run_intervals_are_over_its_sequences(measured):
    found = judged_parts("attention", measured[:1], tolerance=0.01)
    layer = next(row for row in found.parts if row.kind == "layer")
    assert layer.comparison.pairs == len(measured[0].losses)
    assert layer.decided
    assert found.agreement is None


def test_the_most_heads_within_the_tolerance_can_go(measured):
    losses = [loss for _, loss in measured[0].pruned]
    above = max(losses) - statistics.fmean(measured[0].losses)
    assert judged_parts("a", measured[:1], tolerance=above + 1e-6).removable == (2,)
    assert judged_parts("a", measured[:1], tolerance=-above - 1).removable == (0,)


def test_runs_of_other_models_are_not_judged_together(measured):
    fewer = type(measured[0])(**(vars(measured[0]) | {"parts": measured[0].parts[1:]}))
    with pytest.raises(RunError, match="other parts than"):
        judged_parts("attention", [measured[0], fewer], tolerance=0.01)


def test_the_command_prints_a_row_for_each_part_and_json(study, capsys):
    assert call(["heads", str(study / "attention"), "--tokens", str(TOKENS)]) == FINE
    printed = capsys.readouterr().out
    assert all(place in printed for place in (*HEADS, "stack.blocks.0.feedforward"))
    assert "of 2 heads" in printed
    assert (
        call(["heads", str(study / "attention" / "seed-0"), "--tokens", str(TOKENS), "--how", "mean", "--json"]) == FINE
    )
    (found,) = json.loads(capsys.readouterr().out)
    assert found["runs"] == 1
    assert {row["place"] for row in found["parts"]} >= set(HEADS)


def test_what_cannot_be_measured_is_said(study, tmp_path, capsys):
    with pytest.raises(RunError, match="no attention that can be seen"):
        measure_parts(study / "none" / "seed-0")
    with pytest.raises(SpecError, match="how"):
        measure_parts(study / "attention" / "seed-0", how="skip")
    with pytest.raises(SpecError, match="part"):
        measure_parts(study / "attention" / "seed-0", part="exam")
    with pytest.raises(SpecError, match="tokens"):
        measure_parts(study / "attention" / "seed-0", tokens=0)
    with pytest.raises(RunError, match="no finished run in"):
        finished_runs([tmp_path])
    assert call(["heads", str(tmp_path)]) == WRONG_USE
    assert "no finished run" in capsys.readouterr().err


def test_runs_are_found_in_studies_variants_and_runs(study):
    for folder in (study / "attention", study / "attention" / "seed-0", study):
        found = finished_runs([folder])
        assert [run.name for run in found[str((study / "attention").resolve())]][:1] == ["seed-0"]
    assert len(finished_runs([study])) == 2
