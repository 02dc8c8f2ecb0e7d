"""How well heads follow relations between words: measured on heads that are known, judged over runs, shown."""

from __future__ import annotations

import json
import random

import pytest
import torch
from torch import nn

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.studies.define.study import parse_study
from attnlab.studies.execute import run_study
from attnlab.studies.judge.syntax import judged_syntax
from attnlab.studies.judge.worth import kept_parts
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.measured import MeasuredModel
from attnlab.studies.using.syntax import measure_syntax
from attnlab.tasks.parsing.dependencies import read_dependencies

WORDS, CHIEF = ("ab", "cd", "ef"), "x"
DECODER = {"name": "decoder", "d_model": 16, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}}


class Known(nn.Module):
    """Attention of two heads: one looks two tokens back, one at the token of a number."""

    def __init__(self, chief):
        super().__init__()
        self.chief, self.weight = chief, nn.Parameter(torch.ones(1))
        self.look = nn.Module()
        self.look.forward = self.looking

    def looking(self, tokens):
        place = torch.arange(tokens.shape[1])
        back = (place[:, None] - place == 2).float().expand(len(tokens), -1, -1)
        chief = (tokens == self.chief).float()[:, None].expand(-1, tokens.shape[1], -1)
        weights = (torch.stack([back, chief], dim=1) * 9).softmax(dim=-1)  # (batch, 2, length, length)
        return weights @ tokens[:, None, :, None].float()

    def forward(self, tokens):
        return self.look(tokens).sum(dim=1)


@pytest.fixture(scope="module")
def parses(tmp_path_factory):
    """Sentences in which all hangs on a word that stands anywhere, and the last hangs on the one two before."""
    draw, blocks = random.Random(0), []
    for _ in range(200):
        words = [draw.choice(WORDS) for _ in range(6)]
        chief = draw.randrange(5)
        words[chief] = CHIEF
        heads = [0 if place == chief else chief + 1 for place in range(6)]
        heads[5] = 4
        relations = ["two" if place == 5 else "root" if place == chief else "any" for place in range(6)]
        rows = zip(words, heads, relations, strict=True)
        blocks.append(
            "\n".join(
                f"{number}\t{word}\t_\t_\t_\t_\t{head}\t{name}\t_\t_"
                for number, (word, head, name) in enumerate(rows, 1)
            )
        )
    path = tmp_path_factory.mktemp("parses") / "all.conllu"
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def texts(parses):
    (parses.parent / "text.txt").write_text("\n".join(one.text for one in read_dependencies(parses)), encoding="utf-8")
    return {"name": "lm", "text": str(parses.parent / "text.txt"), "tokenizer": "words", "context": 8, "batch": 8}


@pytest.fixture(scope="module")
def found(parses, texts):
    task = build_task(texts)
    model = Known(*task.codec.tokenizer.encode([f"ab {CHIEF}"])[0][1:])
    subject = MeasuredModel(parses.parent, model, task, DECODER, texts)
    return {(one.relation, one.towards): one for one in measure_syntax(subject, read_dependencies(parses))}


def test_the_head_that_follows_a_relation_is_found(found):
    assert {name for name, _ in found} == {"any", "two"}
    two, anywhere = found["two", "head"], found["any", "head"]
    assert (two.place[-2:], two.rate, two.distance, two.distance_rate) == (":0", 1, -2, 1)
    assert (anywhere.place[-2:], anywhere.rate) == (":1", 1)
    assert anywhere.distance_rate < 0.5
    assert anywhere.untrained < 0.9
    assert anywhere.pairs == 400
    assert set(anywhere.by_head) == set(range(1, 200, 2))


def test_a_relation_counts_as_followed_where_it_beats_words_at_one_distance(found):
    judged = {(row.relation, row.towards): row for row in judged_syntax([list(found.values())])}
    assert judged["any", "head"].followed
    assert not judged["two", "head"].followed  # as right as the word two before
    assert not judged["two", "dependent"].followed
    assert judged["any", "head"].comparison.pairs == 100  # sentences of the only run
    both = judged_syntax([list(found.values())] * 2)
    assert both[0].relation == "any"
    assert both[0].comparison.pairs == 2
    assert len(both[0].places) == 2


def test_a_model_that_sees_no_later_word_is_asked_for_earlier_ones(parses, texts):
    task = build_task(texts)
    torch.manual_seed(0)
    model = build_model(DECODER, task).eval()
    rows = measure_syntax(MeasuredModel(parses.parent, model, task, DECODER, texts), read_dependencies(parses))
    by = {(one.relation, one.towards): one for one in rows}
    assert ("two", "dependent") not in by
    assert by["two", "head"].distance == -2
    assert all(one.distance < 0 for one in rows)


@pytest.mark.parametrize(
    ("of_task", "spec"),
    [
        ({"name": "char-lm", "context": 24, "batch": 8}, DECODER),
        ({"name": "lm", "tokenizer": {"name": "bpe", "vocab_size": 300}, "context": 16, "batch": 8}, DECODER),
        ({"name": "classify", "tokenizer": "words", "validation": 0.2}, {**DECODER, "name": "encoder"}),
        (
            {"name": "translation", "tokenizer": {"name": "bpe", "vocab_size": 300}, "test": None},
            {**DECODER, "name": "encoder-decoder"},
        ),
    ],
    ids=["characters", "pieces", "classes", "sentences"],
)
def test_words_are_found_in_tokens_of_every_kind(of_task, spec, parses, texts):
    folder = parses.parent
    lines = (folder / "text.txt").read_text(encoding="utf-8").splitlines()
    (folder / "texts.jsonl").write_text(
        "\n".join(json.dumps({"text": line, "label": line[:1]}) for line in lines), encoding="utf-8"
    )
    (folder / "pairs.tsv").write_text("\n".join(f"{line}\t{line.upper()}" for line in lines), encoding="utf-8")
    data = {
        "classify": {"inputs": str(folder / "texts.jsonl")},
        "translation": {"corpus": str(folder / "pairs.tsv")},
        "lm": {"text": str(folder / "texts.jsonl")},
        "char-lm": {"text": texts["text"]},
    }
    of_task = {**of_task, **data[of_task["name"]]}
    task = build_task(of_task)
    torch.manual_seed(0)
    model = build_model(spec, task).eval()
    rows = measure_syntax(MeasuredModel(folder, model, task, spec, of_task), read_dependencies(parses))
    assert {one.relation for one in rows} >= {"any", "two"}
    assert all(0 <= one.rate <= 1 and one.pairs >= 30 for one in rows)


def test_what_cannot_be_measured_is_said(parses, texts):
    sentences = read_dependencies(parses)

    def measure(spec, of_task, some=sentences):
        task = build_task(of_task)
        return measure_syntax(MeasuredModel(parses.parent, build_model(spec, task).eval(), task, spec, of_task), some)

    with pytest.raises(SpecError, match="models of the task 'shapes' read no text"):
        measure({**DECODER, "name": "encoder"}, {"name": "shapes", "n_train": 8, "n_test": 8})
    with pytest.raises(ModuleError, match="no attention over the words"):
        measure({**DECODER, "mixer": "none"}, texts)
    with pytest.raises(DataError, match="no relation between words stands 30 times"):
        measure(DECODER, texts, sentences[:20])
    with pytest.raises(DataError, match="none of the 200 sentences can be read"):
        measure(DECODER, {**texts, "context": 4})


def test_the_command_measures_syntax_beside_worth_and_the_report_shows_it(parses, texts, tmp_path, capsys):
    spec = {
        "question": "Does it follow?",
        "task": texts,
        "model": {key: value for key, value in DECODER.items() if key != "mixer"},
        "baseline": "attention",
        "variants": {"attention": {"mixer": DECODER["mixer"]}},
        "rules": {"metric": "val_loss", "budget": {"steps": 4}, "seeds": 2, "smallest_effect": 0.1},
        "training": {"lr": 1e-2},
    }
    study = tmp_path / "study"
    run_study(parse_study(spec, name="study", path=tmp_path / "study.yaml"), study, jobs=1, executor=InProcess())
    assert call(["heads", str(study), "--tokens", "100", "--parses", str(parses)]) == FINE
    printed = " ".join(capsys.readouterr().out.split())
    assert "relation to the pairs best head untrained at a distance difference, %" in printed
    assert "two head 100" in printed
    assert "relations between words: " in printed
    (kept,) = kept_parts(study)
    assert {row.relation for row in kept.syntax} == {"any", "two"}
    assert call(["report", str(study)]) == FINE
    for name in ("report.md", "report.html"):
        assert "at a distance" in (study / name).read_text(encoding="utf-8")
    capsys.readouterr()
    assert call(["heads", str(study), "--parses", str(tmp_path / "none.conllu")]) == WRONG_USE
    assert "none.conllu cannot be read" in capsys.readouterr().err
