"""What heads, sublayers and layers of trained runs are worth: measured, judged over seeds, printed."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.contracts import Batch
from attnlab.core.errors import ModuleError, RunError, SpecError
from attnlab.core.files import sealed
from attnlab.inspection import ablate, agreement, capture, gradient_times_input
from attnlab.models import Decoder, EncoderDecoder
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.collect import read_results
from attnlab.studies.judge.worth import HEADS as KEPT
from attnlab.studies.judge.worth import judged_parts, kept_parts
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.measured import MeasuredModel, measured_run
from attnlab.studies.using.orders import orders
from attnlab.studies.using.parts import (
    attention_on,
    delimiters,
    finished_runs,
    held_out,
    kinds_beyond,
    measure_parts,
    usual_patterns,
)
from attnlab.studies.using.trained import load_run

TOKENS = 200
HEADS = ["stack.blocks.0.mixer:0", "stack.blocks.0.mixer:1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
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


def of_run(folder):
    return measured_run(load_run(folder))


@pytest.fixture(scope="module")
def measured(study):
    return [measure_parts(of_run(study / "attention" / f"seed-{seed}"), tokens=TOKENS) for seed in (0, 1)]


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
            with ablate(model, part.place, {"layer": "skip", "weights": "permute"}.get(part.kind, "zero")):
                without = float(task.loss(model(*batches[0].inputs), batches[0]))
            assert math.isclose(statistics.fmean(part.losses), without, rel_tol=1e-5)
            assert math.isclose(run.worth(part), without - statistics.fmean(run.losses), rel_tol=1e-4, abs_tol=1e-6)


def test_heads_sublayers_and_layers_are_parts(measured):
    by_kind = {kind: [part.place for part in measured[0].parts if part.kind == kind] for kind in ("head", "layer")}
    assert by_kind == {"head": HEADS, "layer": ["stack.blocks.0"]}
    sublayers = [part.place for part in measured[0].parts if part.kind == "sublayer"]
    assert sublayers == ["stack.blocks.0.mixer", "stack.blocks.0.feedforward"]
    assert [part.place for part in measured[0].parts if part.kind == "weights"] == ["stack.blocks.0.mixer:*:*->*"]


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
    assert set(found.overlaps) == {"q", "k", "v"}
    assert all(0 <= share <= 1 for pair in found.overlaps.values() for share in pair)
    same = judged_parts("attention", [measured[0], measured[0]], tolerance=0.01)
    assert same.overlaps == measured[0].overlaps
    assert same.agreement == pytest.approx(1)
    assert same.orders["stack.blocks.0.mixer"] == measured[0].orders["stack.blocks.0.mixer"]
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
    both = judged_parts("a", measured, tolerance=0.0)
    assert both.heads == 2
    assert max(both.pruned) == pytest.approx(
        statistics.fmean(max(loss for _, loss in run.pruned) - statistics.fmean(run.losses) for run in measured)
    )


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


SMALL = {"name": "encoder", "d_model": 8, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}}
TREES = ["(S (NP (DT the) (NN dog)) (VP (VBZ barks)))", "(S (NP (PRP she)) (VP (VBZ sees) (NP (DT the) (NN cat))))"]


@pytest.mark.parametrize(
    ("spec", "of_task"),
    [
        (SMALL, {"name": "classify", "inputs": "texts.jsonl", "tokenizer": "words", "validation": 0.4}),
        (SMALL, {"name": "classify", "inputs": "numbers.npy", "labels": "classes.npy", "validation": 0.4}),
        (SMALL, {"name": "sequences", "inputs": "numbers.npy", "targets": "once.npy", "validation": 0.4}),
        (SMALL, {"name": "shapes", "n_train": 8, "n_test": 8}),
        (
            {**SMALL, "name": "self-attentive-parser", "d_span": 8},
            {"name": "parsing", "train": "trees.mrg", "validation": "trees.mrg"},
        ),
    ],
    ids=["texts", "numbers", "one answer", "positions", "chart parser"],
)
def test_heads_of_models_of_every_kind_of_answer_are_measured(spec, of_task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    rows = [{"text": text, "label": text[:1]} for text in ("a cat", "the dog", "a dog", "the cat sat") * 5]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "trees.mrg").write_text("\n".join(TREES), encoding="utf-8")
    np.save(tmp_path / "numbers.npy", generator.normal(size=(20, 6)))
    np.save(tmp_path / "classes.npy", np.arange(20) % 2)
    np.save(tmp_path / "once.npy", generator.normal(size=(20, 1)))
    task = build_task(of_task)
    model = build_model(spec, task).eval()
    found = measure_parts(MeasuredModel(tmp_path, model, task, spec, of_task), tokens=10)
    heads = [one.place for one in found.parts if one.kind == "head"]
    assert [place.rpartition(":")[2] for place in heads] == ["0", "1"]
    without = {one.place: found.worth(one) for one in found.parts}
    assert all(map(math.isfinite, without.values()))
    assert any(without[place] for place in heads)


@pytest.mark.parametrize(
    "of_task", [{"name": "char-lm", "context": 8, "batch": 2}, {"name": "lm", "tokenizer": "words", "context": 4}]
)
def test_tokens_without_letter_or_digit_separate_others(of_task, tmp_path):
    (tmp_path / "text.txt").write_text("A dog, 2 cats; no end.\n" * 40, encoding="utf-8")
    codec = build_task({**of_task, "text": str(tmp_path / "text.txt")}).codec
    found = [piece for piece in codec.pieces(delimiters(codec)) if piece.strip()]
    assert set(found) >= {",", ";", "."}
    assert not any(map(str.isalnum, "".join(found)))
    assert delimiters(None) == ()


def test_a_head_that_looks_at_delimiters_is_named_so(tmp_path):
    class Separated(torch.nn.Module):
        """Each of two heads looks at what lies before: one at the blanks there, one at all of it."""

        def __init__(self, blank):
            super().__init__()
            self.blank, self.table = blank, torch.nn.Embedding(99, 4)
            self.look = torch.nn.Module()
            self.look.forward = self.looking

        def looking(self, tokens):
            past = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
            scores = torch.stack([9.0 * (tokens == self.blank), 0.0 * tokens], dim=1)[:, :, None]
            weights = scores.expand(-1, -1, tokens.shape[1], -1).masked_fill(~past, float("-inf")).softmax(dim=-1)
            return weights @ self.table(tokens)[:, None]

        def forward(self, tokens):
            return self.look(tokens).sum(dim=1)

    (tmp_path / "text.txt").write_text("a bc def ghij " * 60, encoding="utf-8")
    of_task = {"name": "char-lm", "context": 16, "batch": 4, "text": str(tmp_path / "text.txt")}
    task = build_task(of_task)
    model = Separated(*task.codec.encode(" ")).eval()
    (batch, *_) = held_out(Decoder(len(task.vocabulary), 16, d_model=8), task, "validation", 1)
    separating = delimiters(task.codec)
    trace = attention_on(model, batch)
    usual = usual_patterns(lambda: Separated(-1), batch, separating)  # of which no head looks at anything more
    found = kinds_beyond(lambda: usual, model, trace, batch, separating)
    assert next(iter(found["look:0"])) == "delimiter"
    assert "delimiter" not in found["look:1"]


def test_what_cannot_be_measured_is_said(study, tmp_path, capsys):
    with pytest.raises(ModuleError, match="no attention that can be seen"):
        measure_parts(of_run(study / "none" / "seed-0"))
    with pytest.raises(SpecError, match="how"):
        measure_parts(of_run(study / "attention" / "seed-0"), how="skip")
    with pytest.raises(SpecError, match="part"):
        measure_parts(of_run(study / "attention" / "seed-0"), part="exam")
    with pytest.raises(SpecError, match="tokens"):
        measure_parts(of_run(study / "attention" / "seed-0"), tokens=0)
    with pytest.raises(RunError, match="no finished run in"):
        finished_runs([tmp_path])
    assert call(["heads", str(tmp_path)]) == WRONG_USE
    assert "no finished run" in capsys.readouterr().err


def test_runs_are_found_in_studies_variants_and_runs(study):
    for folder in (study / "attention", study / "attention" / "seed-0", study):
        found = finished_runs([folder])
        assert [run.name for run in found[str((study / "attention").resolve())]][:1] == ["seed-0"]
    assert len(finished_runs([study])) == 2


def test_variants_are_named_as_seen_from_the_folder_that_is_worked_in(study, monkeypatch):
    monkeypatch.chdir(study)
    assert list(finished_runs([Path()])) == ["attention", "none"]
    assert list(finished_runs([study / "attention" / "seed-0"])) == ["attention"]


def test_what_a_study_s_heads_are_worth_is_kept_and_reported(study, capsys):
    assert call(["heads", str(study), "--tokens", str(TOKENS)]) == FINE
    printed = capsys.readouterr().out
    assert "none/seed-0: its model computes no attention" in printed.replace("\n", " ")
    assert "kept for the report of the study" in printed
    (kept,) = read_results(study).heads
    (judged,) = kept_parts(study)
    assert kept == judged
    assert (kept.variant, kept.runs, kept.part, kept.how) == ("attention", 2, "validation", "zero")
    assert call(["report", str(study)]) == FINE
    (told,) = json.loads((study / "report.json").read_text())["heads"]
    assert [row["place"] for row in told["parts"]] == [row.place for row in kept.parts]
    for name in ("report.md", "report.html"):
        text = (study / name).read_text().replace("\\_", "_")
        assert "What is each head worth?" in text
        assert all(f"{row.mean:+.4f}" in text for row in kept.parts)


def test_what_was_kept_of_heads_is_read_only_as_it_was_written(study):
    path = study / KEPT
    if not path.exists():
        call(["heads", str(study), "--tokens", str(TOKENS)])
    whole = path.read_text()
    content = json.loads(whole)
    try:
        path.write_text(json.dumps({**content, "variants": []}))
        with pytest.raises(RunError, match="was changed after it was written"):
            read_results(study)
        path.write_text(json.dumps(sealed({"hash": "of another", "variants": []})))
        with pytest.raises(RunError, match="was measured in another study; remove it"):
            read_results(study)
    finally:
        path.write_text(whole)


def test_orders_are_those_of_gradients_and_of_hidden_keys():
    torch.manual_seed(0)
    model = Decoder(7, 5, d_model=8, n_layers=1, mixer={"name": "attention", "n_heads": 2}).eval()
    tokens = torch.randint(7, (1, 5))
    name = "stack.blocks.0.mixer"
    with torch.no_grad(), capture(model) as trace:
        answers = model(tokens)[0]
    weights, taken = trace[name].weights.mean(dim=1)[0], answers.argmax(dim=-1)
    gradients, moved = torch.zeros(5, 5), torch.zeros(5, 5)
    for query, token in enumerate(taken.tolist()):
        gradients[query] = gradient_times_input(model, tokens, position=query, token=token).scores[0]
        for key in range(query + 1):
            with torch.no_grad(), ablate(model, f"{name}:*:*->{key}", "hide"):
                moved[query, key] = (model(tokens)[0, query, token] - answers[query, token]).abs()
    found = orders(model, Batch((tokens,), tokens))[name]
    assert found.gradient == pytest.approx(agreement(weights, gradients.tril()).mean)
    assert found.hidden == pytest.approx(agreement(weights, moved).mean)
    assert found.between == pytest.approx(agreement(gradients.tril(), moved).mean)


def test_only_attention_that_asks_where_the_model_answers_has_orders():
    torch.manual_seed(0)
    model = EncoderDecoder(9, 9, 8, d_model=8, n_layers=1, mixer={"name": "attention", "n_heads": 2}).eval()
    source, target = torch.randint(1, 9, (2, 6)), torch.randint(1, 9, (2, 4))
    found = orders(model, Batch((source, target), target))
    assert {name.rpartition(".")[2] for name in found} == {"mixer", "cross"}
    assert all(name.startswith("decoder") for name in found)
