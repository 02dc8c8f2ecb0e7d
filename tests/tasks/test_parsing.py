"""The task reads treebanks, gives batches that say what a tree is, and judges trees as they are written."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from attnlab.core.build import build
from attnlab.core.errors import DataError, ModuleError, SpecError
from attnlab.models.parsers.brackets import Brackets
from attnlab.tasks import TASKS
from attnlab.tasks.next_tokens import IGNORED
from attnlab.tasks.parsing.parsing import Parsing, tagged_as
from attnlab.text.tokenizers import BEGIN_TOKEN, END_TOKEN, PAD_TOKEN
from attnlab.text.trees import read_trees

DATA = os.environ.get("ATTNLAB_DATA", "")
needs_craft = pytest.mark.skipif(not (Path(DATA) / "craft").is_dir(), reason="ATTNLAB_DATA has no craft")
TRAIN = [
    "( (S (NP-SBJ (DT the) (NN dog)) (VP (VBZ barks)) (. .)) )",
    "( (S (NP-SBJ (PRP she)) (VP (VBZ sees) (NP (DT the) (NN cat))) (. .)) )",
    "( (S (NP-SBJ (-NONE- *)) (VP (VB go) (ADVP (RB home))) (. .)) )",
]
HELD_OUT = ["( (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (PRP she))) (. .)) )", "( (NP (NN dog)) )"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "train.mrg").write_text("\n".join(TRAIN))
    (tmp_path / "22.mrg").write_text("\n".join(HELD_OUT))
    return {"train": str(tmp_path / "train.mrg"), "validation": str(tmp_path / "2*.mrg")}


def task(files, **changes):
    return Parsing(**files, **{"tokenizer": "characters", "batch_tokens": 64, "max_length": 40, **changes})


def test_a_batch_is_a_sentence_and_what_to_write_of_its_tree(files):
    one = task(files)
    steps = [one.train_batch(step, seed=0) for step in range(one.steps_per_epoch)]
    written = [row[row != IGNORED].tolist() for batch in steps for row in batch.targets]
    expected = [
        ["(S", "(NP", "DT", "NN", ")", "(VP", "VBZ", ")", ".", ")"],
        ["(S", "(NP", "PRP", ")", "(VP", "VBZ", "(NP", "DT", "NN", ")", ")", ".", ")"],
        ["(S", "(VP", "VB", "(ADVP", "RB", ")", ")", ".", ")"],
    ]
    assert sorted(one.codec.vocabulary.pieces(row[:-1]) for row in written) == sorted(expected)
    assert all(row[-1] == END_TOKEN for row in written)
    source, begun = steps[0].inputs
    assert (begun[:, 0] == BEGIN_TOKEN).all()
    assert torch.equal(
        begun[:, 1:][steps[0].targets[:, :-1] > END_TOKEN], steps[0].targets[steps[0].targets > END_TOKEN]
    )
    sentence = [token for token in source[0].tolist() if token != PAD_TOKEN]
    assert one.codec.tokenizer.decode([sentence])[0].endswith(" .")
    assert torch.equal(one.train_batch(3, seed=1).targets, one.train_batch(3, seed=1).targets)


def test_perfect_trees_score_a_hundred_and_none_scores_nothing(files):
    one = task(files)
    gold = one.treebank.parts["validation"]
    perfect = one.judge(lambda _: [str(tree) for tree in gold])
    judged = ("f1", "recall", "precision", "f1_short", "exact", "tagging", "f1_1_to_10")  # no sentence is longer
    assert perfect == {f"val_{name}": 100.0 for name in judged}
    assert set(perfect) == {metric.name for metric in one.judged}
    nothing = one.judge(lambda sentences: ["" for _ in sentences])
    assert nothing["val_f1"] == nothing["val_exact"] == 0
    half = one.judge(lambda _: [str(gold[0]), ""])
    assert 0 < half["val_f1"] < 100
    assert half["val_recall"] < half["val_precision"]  # what was not found counts


def test_without_tags_trees_are_judged_with_the_right_ones(files):
    one = task(files, tags=False)
    gold = one.treebank.parts["validation"]
    bare = [one.codec.bracketed(one.codec.vocabulary.encode(tree), tree.words()) for tree in gold]
    assert all("XX" in line for line in bare)
    assert one.judge(lambda _: bare)["val_f1"] == 100
    (tree,) = read_trees(bare[:1])
    assert tagged_as(tree, gold[0]) == gold[0]


def test_what_a_model_writes_has_no_bracket_that_is_all_in_one_like_it(files):
    codec = task(files).codec
    (tree,) = read_trees(["(S (NP (NP (NP (DT the) (NN cat)))) (VP (VBZ sees)))"])
    assert codec.bracketed(codec.vocabulary.encode(tree), tree.words()) == "(S (NP (DT the) (NN cat)) (VP (VBZ sees)))"


def test_fewer_trees_may_be_judged_evenly_spread(files):
    asked = []
    task(files, judged_trees=1).judge(lambda sentences: asked.extend(sentences) or ["" for _ in sentences])
    assert asked == ["the cat sees she ."]
    seen = []
    both, one = (task(files, judged_trees=count) for count in (None, 1))
    for each in (both, one):
        size = each.codec.vocabulary.size
        each.evaluate(
            lambda batch, size=size: seen.append(len(batch.targets)) or torch.zeros(*batch.targets.shape, size),
            "validation",
        )
    assert sum(seen[:-1]) == 2
    assert seen[-1] == 1
    assert not task(files, beam=None).judged


def test_losses_are_those_of_the_tokens(files):
    one = task(files)
    found = one.evaluate(lambda batch: torch.zeros(*batch.targets.shape, one.codec.vocabulary.size), "validation")
    assert found["val_loss"] == pytest.approx(math.log(one.codec.vocabulary.size))
    (simple,) = one.floors()
    assert (simple.name, simple.metric) == ("right-branching", "val_f1")
    assert 0 < simple.value < 100


def test_losses_of_whole_trees_are_shared_among_their_tokens(files):
    one, batch = task(files), task(files).train_batch(0, seed=0)
    assert one.loss(torch.full((len(batch.targets),), 6.0), batch) == 6.0 * len(batch.targets) / one.targets_of(batch)
    found = one.evaluate(lambda batch: (batch.targets != IGNORED).sum(dim=1) * 2.0, "validation")
    assert found == {"val_loss": pytest.approx(2.0)}
    with pytest.raises(ModuleError, match="must have shape"):
        one.loss(torch.ones(len(batch.targets) + 1), batch)


def test_models_are_told_what_trees_are_written_with(files):
    (Path(files["train"])).write_text("(S (VP (VB go)) (. .))\n(S (VP (S (VP (VB go)))))\n(NP (NN dog))\n(NP (NN cat))")
    one = task(files)
    told, vocabulary = one.model_arguments(), one.codec.vocabulary
    chains = [vocabulary.pieces(chain) for chain in told["chains"]]
    assert chains == [["(NP"], ["(S"], ["(VP"], ["(S", "(VP", "(S", "(VP"]]
    brackets = Brackets.of(told["brackets"])
    assert vocabulary.pieces([*brackets.words])[1:] == [*vocabulary.tags[1:]]
    source = one.codec.encode([["a", "dog", "barks"]])[0]
    assert [place for place, token in enumerate(source) if token in told["word_starts"]] == [1, 5]


def test_models_may_add_trees_and_people_leave_some_out(files, tmp_path):
    (tmp_path / "silver.mrg").write_text("(S (NP (DT a) (JJ new) (NN cat)) (VP (VBZ barks)))\n(NP (NN dog))")
    one = task(files, labelled=2, silver=str(tmp_path / "s*.mrg"))
    assert one.unlabelled == ["go home ."]
    assert [tree.words()[0] for tree in one.treebank.parts["train"]] == ["the", "she", "a", "dog"]
    assert "JJ" not in one.codec.vocabulary.tags  # nobody said that there is such a tag
    assert "50.0% of the validation part's sentences stand in the training part" in " ".join(one.alarms())
    (tmp_path / "silver.mrg").write_text("")
    with pytest.raises(DataError, match="no trees in silver: "):
        task(files, silver=str(tmp_path / "silver.mrg"))


def test_labels_and_tags_that_no_model_can_write_are_said(files, tmp_path):
    (tmp_path / "23.mrg").write_text("\n".join([*HELD_OUT, "(FRAG (INTJ (UH oh)) (INTJ (UH well)))"]))
    (labels, tags) = [one for one in task(files).alarms() if "so that no model writes them" in one]
    assert labels.startswith("labels of the validation part that the training part has not")
    assert labels.endswith("INTJ (2), FRAG (1)")
    assert tags.endswith("UH (2)")
    assert not [one for one in task(files, tags=False).alarms() if "tags of" in one]


def test_what_was_left_out_and_what_is_shared_is_said(files, tmp_path):
    (tmp_path / "22.mrg").write_text(TRAIN[0])
    one = task(files, max_length=17)
    assert one.describe()["removed"] == {"empty elements": 1, "function tags": 3, "outer brackets": 4}
    said = " ".join(one.alarms())
    assert "100.0% of the validation part's sentences stand in the training part" in said
    assert "trees of the train part with more than 17 tokens left out: 1" in said


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"treebank": "wsj", "train": None, "validation": None}, SpecError, "treebank"),
        (
            {"treebank": "wsj/22/*.mrg", "train": None, "validation": None},
            SpecError,
            "given as train, validation and test",
        ),
        ({"validation": None}, SpecError, "a treebank of your own needs files for validation, such as wsj/22"),
        ({"test": "nowhere/*.mrg"}, DataError, "no file nowhere/.* for the test part of the treebank"),
        ({"max_length": 2}, DataError, "every tree of the train part has more than 2 tokens; raise max_length"),
        ({"batch_tokens": 5}, DataError, "does not fit into a batch of 5"),
        ({"beam": 0}, SpecError, "beam must be at least 1"),
        ({"labelled": 0}, SpecError, "labelled must be at least 1"),
        ({"labelled": 4}, DataError, "labelled is 4, and the training part has 3 trees"),
        ({"silver": "nowhere.mrg"}, DataError, "no file nowhere.mrg for the silver part of the treebank"),
    ],
)
def test_what_cannot_be_is_said(files, changes, error, said):
    with pytest.raises(error, match=said):
        Parsing(**{"tokenizer": "characters", **files, **changes})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"just sentences\n", "22.mrg, line 1, column 1: 'just' is in no bracket"),
        (b"(S (X y)", "22.mrg, line 1, column 1: this bracket is never closed"),
        (b"(S (X y))\n(S (X \xff))", "22.mrg, line 2: not UTF-8"),
        (b"\n", "the validation part has no trees"),
    ],
)
def test_a_file_that_is_no_treebank_is_refused(files, tmp_path, content, said):
    (tmp_path / "22.mrg").write_bytes(content)
    with pytest.raises(DataError, match=said):
        task(files)


def test_a_name_and_files_are_one_too_many(files):
    with pytest.raises(SpecError, match="treebank"):
        Parsing("penn", **files)


@needs_craft
def test_a_few_articles_of_craft_are_what_the_corpus_says(tmp_path):
    files = sorted((Path(DATA) / "craft/penn").glob("*.gz"))[:2]
    one = Parsing(train=str(files[0]), validation=str(files[1]), tokenizer={"name": "bpe", "vocab_size": 400})
    assert one.describe()["trees"] == {"train": 288, "validation": 361}
    tree = one.treebank.parts["train"][0]
    assert one.codec.vocabulary.decode(one.codec.vocabulary.encode(tree), tree.words()) == tree


def test_the_task_is_in_the_table(files):
    spec = {"name": "parsing", **files, "tokenizer": "characters"}
    assert isinstance(build(spec, TASKS, axis="task"), Parsing)
