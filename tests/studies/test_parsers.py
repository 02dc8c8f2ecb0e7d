"""Trained parsers write trees over exactly the words given, and right ones where they have learned."""

from __future__ import annotations

import html
import json
import random
import re
import shutil

import pytest
import torch

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import DataError, RunError, SpecError
from attnlab.studies import load_run, parse, parse_study, run_study, translate
from attnlab.studies.run.executor import InProcess
from attnlab.studies.using.trained import unlabelled
from attnlab.tasks.parsing.parsing import Parsing
from attnlab.text.trees import Tree, compare_all, read_trees
from attnlab.viewer.inside.asked import Asked
from attnlab.viewer.inside.looking import run_in_view

CHART = {"name": "self-attentive-parser", "d_model": 32, "d_span": 32, "n_layers": 1, "dropout": 0.0}
SMALL = {"d_model": 24, "n_layers": 1, "dropout": 0.0}
COUNTING = {"optimizer": {"name": "em", "power": 0.0, "times": 10}, "lr": 0.03, "weight_decay": 0.0, "clip": None}
NOUNS, VERBS = ["dog", "cat", "gene", "mouse"], ["sees", "binds", "carries"]


def grown(count, seed):
    """Sentences of a small grammar: noun phrases that hold others, and what is done."""
    chance = random.Random(seed)

    def phrase(depth=0):
        noun = Tree("NP", (Tree("DT", word="the"), Tree("NN", word=chance.choice(NOUNS))))
        if depth < 2 and chance.random() < 0.3:
            return Tree("NP", (noun, Tree("PP", (Tree("IN", word="of"), phrase(depth + 1)))))
        return noun

    def sentence():
        verb = Tree("VP", (Tree("VBZ", word=chance.choice(VERBS)), phrase()))
        return Tree("S", (phrase(), verb, Tree(".", word=".")))

    return [sentence() for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Train one parser of each kind on 200 trees."""
    made = tmp_path_factory.mktemp("parsers")
    (made / "train.mrg").write_text("\n".join(f"( {tree} )" for tree in grown(200, 1)))
    (made / "held-out.mrg").write_text("\n".join(map(str, grown(20, 2))))
    study = {
        "question": "Do they parse?",
        "task": {
            "name": "parsing",
            "train": "./train.mrg",
            "validation": "./held-out.mrg",
            "labelled": 160,
            "tokenizer": "words",
            "batch_tokens": 300,
            "max_length": 80,
        },
        "model": {"name": "encoder-decoder", "embeddings": "separate", "d_model": 32, "n_layers": 1, "dropout": 0.0},
        "baseline": "Transformer",
        "variants": {
            "Transformer": {"norm": "pre", "mixer": {"name": "attention", "n_heads": 2}},
            "RNN": {"name": "rnn-additive", "d_model": 24, "hidden": 32, "dropout": 0.0},
            "chart": CHART,
            "perceptron": {
                "name": "shift-reduce",
                "beam": 4,
                "features": 4096,
                "training": {
                    "optimizer": {"name": "sgd", "momentum": 0.0},
                    "lr": 10.0,
                    "weight_decay": 0.0,
                    "clip": None,
                },
            },
            "grammar": {"name": "rnng-generative", **SMALL},  # beside which an ``rnng`` proposes
            "chart, likelihood": {**CHART, "objective": "likelihood"},
            "PCFG": {
                "name": "latent-pcfg",
                "splits": 1,
                "split_every": 200,
                "n_rules": 100,
                "n_words": 100,
                "training": COUNTING,
            },
            "reranked": {
                "name": "reranked-pcfg",
                "splits": 0,
                "split_every": 200,
                "n_rules": 100,
                "n_words": 100,
                "candidates": 5,
                "features": 1024,
                "training": COUNTING,
            },
        },
        "rules": {"metric": "val_f1", "tune_by": "val_loss", "budget": {"steps": 50}, "seeds": 1},
        "training": {"lr": 1e-2, "evaluate_every": 25},
    }
    study["rules"]["smallest_effect"] = 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CACHE", str(made / "cache"))
        patch.chdir(made)
        results = run_study(
            parse_study(study, name="parsers", path=made / "s.yaml"), made / "run", jobs=1, executor=InProcess()
        )
    return made, results


@pytest.fixture
def parser(folder):
    return load_run(folder[0] / "run" / "transformer" / "seed-0")


def test_both_kinds_learn_a_small_grammar(folder):
    (simple,) = [floor.value for floor in folder[1].floors if floor.metric == "val_f1"]
    for variant in folder[1].variants:
        (f1,) = variant.values("val_f1").values()
        assert f1 > simple + 20, variant.name


@pytest.mark.parametrize("beam", [1, 3])
def test_trees_are_over_the_words_and_as_good_as_the_study_says(parser, folder, beam):
    gold = grown(20, 2)
    found = [
        tree
        for line in parse([parser], [" ".join(tree.words()) for tree in gold], words=True, beam=beam)
        for tree in read_trees([line])
    ]
    assert [tree.words() for tree in found] == [tree.words() for tree in gold]
    if beam == 1:
        judged = folder[1].variants[0].values("val_f1")[0]
        assert compare_all(gold, found).f1 == pytest.approx(judged)


def test_words_that_were_never_seen_are_parsed(parser):
    (line,) = parse([parser], ["Zebras can't (quietly) eat 12 lemons!"])
    (tree,) = read_trees([line])
    assert tree.words() == ["Zebras", "ca", "n't", "-LRB-", "quietly", "-RRB-", "eat", "12", "lemons", "!"]


def test_nothing_depends_on_what_else_is_parsed_or_kept(parser):
    sentences = [" ".join(tree.words()) for tree in grown(6, 3)]
    together = parse([parser], sentences, words=True)
    assert together == [parse([parser], [sentence], words=True)[0] for sentence in sentences]
    assert parse([parser, parser], sentences, words=True) == together


def test_chart_parsers_find_trees_together_by_their_mean_scores(folder):
    one, other, grammar = (
        load_run(folder[0] / "run" / name / "seed-0") for name in ("chart", "chart-likelihood", "pcfg")
    )
    gold = grown(20, 2)
    sentences = [" ".join(tree.words()) for tree in gold]
    alone = parse([one], sentences, words=True)
    assert parse([one, one], sentences, words=True) == alone
    both = parse([one, other], sentences, words=True)
    assert both == parse([other, one], sentences, words=True)
    assert compare_all(gold, list(read_trees(both))).f1 > 80
    with pytest.raises(SpecError, match="finds trees together with others of its kind and labels alone"):
        parse([one, grammar], sentences[:1])
    with pytest.raises(SpecError, match="LatentPcfg finds whole trees and cannot find them together with others"):
        parse([grammar, one], sentences[:1])


def test_what_cannot_be_parsed_is_said(parser, folder):
    with pytest.raises(DataError, match="sentence 2: an empty sentence has no tree"):
        parse([parser], ["a dog", " "])
    with pytest.raises(
        DataError,
        match=r"sentence 1 has 90 words, too many for a model that reads and writes 80 tokens.*\(--skip leaves",
    ):
        parse([parser], ["dog " * 90])
    other = load_run(folder[0] / "run" / "rnn" / "seed-0")
    assert parse([parser, other], ["the dog sees the cat ."])
    with pytest.raises(RunError, match="is no translation run: its task is 'parsing'"):
        translate([parser], ["a dog"])


def test_the_page_of_a_run_judges_trees_bracket_by_bracket(parser):
    sentence, view = "the dog sees the cat .", run_in_view(parser.folder)
    tree = parse([parser], [sentence])[0]
    codec, told = parser.task.codec, view.look(Asked(sentence))
    (gold,), read = read_trees([tree]), codec.encode([sentence.split()])
    written = codec.vocabulary.encode(gold)
    shown = [token["text"].strip() for token in told["sides"][1]["tokens"]]
    assert shown == codec.vocabulary.pieces([codec.marks.begin, *written, codec.marks.end])
    with torch.no_grad():
        logits = parser.model(torch.tensor(read), torch.tensor([[codec.marks.begin, *written]]))[0]
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor([*written, codec.marks.end]), reduction="none")
    found = [token["loss"] for token in told["sides"][1]["tokens"]]
    assert found == [None, *(pytest.approx(loss, abs=1e-5) for loss in losses.tolist())]
    heads = tuple(f"{layer['name']}:{head}" for layer in told["layers"] for head in range(2))
    without = view.write(Asked(sentence, off=heads))
    assert without["whole"] == tree != without["text"]
    with pytest.raises(DataError, match=r"the tree is over other words, a dog; the sentence: the dog sees the cat ."):
        view.look(Asked(sentence, "(S (DT a) (NN dog))"))


def test_the_page_of_a_run_shows_trees_that_are_found_whole(folder):
    view, sentence = run_in_view(folder[0] / "run" / "chart" / "seed-0"), "the dog sees the cat ."
    told = view.look(Asked(sentence))
    assert told["vocab_size"] == 0
    assert list(told["notes"]) == ["This model finds a tree as a whole: no bracket has a loss of its own."]
    assert [layer["name"] for layer in told["layers"]] == ["stack.blocks.0.mixer"]
    assert (
        view.write(Asked(sentence))["whole"] == parse([load_run(folder[0] / "run" / "chart" / "seed-0")], [sentence])[0]
    )


def test_the_command_prints_brackets_draws_and_writes_a_picture(parser, folder, capsys, tmp_path):
    run, picture = str(parser.folder), tmp_path / "tree.svg"
    assert call(["parse", run, "The dog sees the cat.", "--svg", str(picture)]) == FINE
    line = capsys.readouterr().out
    (tree,) = read_trees([line])
    assert tree.words() == ["The", "dog", "sees", "the", "cat", "."]
    assert f"<title>{tree}</title>" in picture.read_text()
    assert call(["parse", run, "The dog sees the cat.", "--draw"]) == FINE
    drawn = capsys.readouterr().out
    assert re.sub(r"[│├└─ ]+", " ", drawn).split() == re.sub(r"[()]", " ", line).split()
    text = tmp_path / "some.txt"
    text.write_text("the dog sees the cat .\nthe gene binds the mouse .\n")
    assert call(["parse", run, "--file", str(text), "--words", "--also", run]) == FINE
    assert len(list(read_trees(capsys.readouterr().out.splitlines()))) == 2


def test_sentences_that_cannot_be_parsed_are_left_out_where_that_is_asked(parser, capsys, tmp_path):
    text = tmp_path / "some.txt"
    text.write_text("the dog sees the cat .\n\n" + "dog " * 90 + "\na f(x\nthe gene sees the mouse .\n")
    assert call(["parse", str(parser.folder), "--file", str(text), "--words", "--skip"]) == FINE
    out, err = capsys.readouterr()
    lines = out.removesuffix("\n").split("\n")
    assert [bool(line) for line in lines] == [True, False, False, False, True]
    said = " ".join(err.split())
    for number, why in ((2, "an empty sentence has no tree"), (3, "has 90 words"), (4, "holds a bracket")):
        assert f"sentence {number}" in said
        assert why in said
    assert said.count("left out: an empty line stands in its place") == 3


def test_sentences_without_trees_are_parsed_and_trained_on(folder, capsys, tmp_path):
    run = folder[0] / "run" / "chart" / "seed-0"
    assert call(["parse", str(run), "--unlabelled"]) == FINE
    (tmp_path / "silver.mrg").write_text(capsys.readouterr().out)
    files = {part: f"{folder[0]}/{part}.mrg" for part in ("train", "held-out")}
    how = {"train": files["train"], "validation": files["held-out"], "tokenizer": "words"}
    task = Parsing(**how, labelled=160, silver=str(tmp_path / "silver.mrg"))
    assert task.describe()["trees"]["train"] == 200
    assert (task.describe()["unlabelled"], task.describe()["silver"]) == (40, 40)
    words = [tree.words() for tree in grown(200, 1)]
    assert [tree.words() for tree in task.treebank.parts["train"]] == words
    assert compare_all(grown(200, 1)[160:], task.treebank.parts["train"][160:]).f1 > 80
    alone = Parsing(**how, labelled=160).codec.to_json()
    assert task.codec.to_json() == alone  # what is compared reads and writes the same tokens
    shutil.copytree(run, tmp_path / "run")
    spec = json.loads((run / "spec.json").read_text())
    del spec["task"]["labelled"]
    (tmp_path / "run" / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(RunError, match="was given the trees of all its training sentences; its task has no `labelled`"):
        unlabelled(load_run(tmp_path / "run"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a dog", "--file", "x.txt"], "give sentences, --file or --unlabelled, not several of them"),
        (["a dog", "--unlabelled"], "give sentences, --file or --unlabelled, not several of them"),
        (["--svg", "x.svg"], "--svg draws the tree of one sentence, given after the run; got 0"),
        (["f(x", "--words"], "the word 'f(x' holds a bracket"),
        ([""], "an empty sentence has no tree"),
        (["a dog", "--beam", "0"], "beam must be at least 1; got 0"),
        (["a dog", "--svg", "nowhere/x.svg"], "--svg nowhere/x.svg: there is no folder nowhere"),
    ],
)
def test_the_command_says_what_is_wrong(parser, capsys, words, said):
    assert call(["parse", str(parser.folder), *words]) == WRONG_USE
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_report_underlines_what_the_treebank_has_not(folder):
    assert call(["report", str(folder[0] / "run")]) == FINE
    page = (folder[0] / "run" / "report.html").read_text()
    assert "as the treebank has them" in page
    assert "a person did" not in page
    (rnn,) = re.findall(r'<th scope="row">RNN</th><td>(.*?)</td>', page)[:1]
    read_inside = json.loads((folder[0] / "run" / "rnn" / "seed-0" / "inside.json").read_text())
    pieces = read_inside["predictions"]["pairs"][0]["pieces"]
    shown = [text if right else f'<u class="wrong">{text}</u>' for text, right in pieces]
    assert html.unescape(rnn) == "".join(shown)
