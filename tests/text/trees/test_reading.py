"""Trees are read as they stand, cleaned as papers clean them, and a damaged treebank is refused by line and column."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from attnlab.core.errors import DataError
from attnlab.text.trees import Constituent, Tree, cleaned, read_trees
from attnlab.text.trees.reading import DEEPEST
from attnlab.text.trees.words import given_words, words_of

TREE = "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"


def read(*lines: str) -> list[str]:
    return [str(tree) for tree in read_trees(lines, "a.mrg")]


@pytest.mark.parametrize(
    "lines",
    [
        [TREE],
        ["(S (NP (DT the)\r\n", "       (NN dog))\r\n", " (VP (VBZ barks)))\r\n"],
        ["*x*x*x* a header *x*\n", "; a comment (with a bracket\n", "\n", f"  {TREE}\n"],
    ],
)
def test_trees_stand_on_one_line_or_on_several(lines):
    assert read(*lines) == [TREE]


def test_several_trees_stand_on_one_line():
    assert read(f"{TREE}{TREE} (X (Y z))") == [TREE, TREE, "(X (Y z))"]


def test_a_word_may_hold_what_only_unicode_takes_for_a_blank():
    (tree,) = read_trees(["(X (NN Xpd\u200aTTD) (; ;))"])
    assert tree.words() == ["Xpd\u200aTTD", ";"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["(S (NP", " (DT the)"], "a.mrg, line 1, column 1: this bracket is never closed"),
        ([TREE, ")"], "a.mrg, line 2, column 1: a bracket is closed that was never opened"),
        (["(S (NP))"], "a.mrg, line 1, column 4: a bracket without words"),
        (["(S ( ) (X y))"], "a.mrg, line 1, column 4: a bracket without words"),
        (["(NP (DT the) dog)"], "line 1, column 14: 'dog' stands beside what else is in its bracket"),
        (["(NN two words)"], "line 1, column 9: 'words' stands beside what else"),
        (["(NN dog (X y))"], "'dog' stands beside a bracket; a word has one of its own"),
        (["the dog barks"], "line 1, column 1: 'the' is in no bracket; trees look like (S"),
        (["(X " * (DEEPEST + 1)], f"more than {DEEPEST} brackets within each other"),
    ],
)
def test_what_is_no_tree_is_refused_with_its_place(lines, said):
    with pytest.raises(DataError, match=re.escape(said)):
        read(*lines)


def test_what_is_not_said_function_tags_and_outer_brackets_are_left_out_and_counted():
    line = "( (S-1 (NP-SBJ=2 (-NONE- *PRO*)) (VP (VBG go) (-LRB- -LRB-) (ADVP-TMP (RB now)))) )"
    removed = Counter()
    (tree,) = read_trees([line])
    assert str(cleaned(tree, removed)) == "(S (VP (VBG go) (-LRB- -LRB-) (ADVP (RB now))))"
    assert removed == {"empty elements": 1, "function tags": 2, "outer brackets": 1}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("(ROOT (S (X y)))", "(S (X y))"),
        ("(TOP (S1 (S (X y))))", "(S (X y))"),
        ("( (S (X y)) (. .))", "(ROOT (S (X y)) (. .))"),
        ("(PRT|ADVP (RP up))", "(PRT|ADVP (RP up))"),
    ],
)
def test_outer_brackets_say_nothing_unless_they_hold_several(line, kept):
    (tree,) = read_trees([line])
    assert str(cleaned(tree)) == kept


def test_a_tree_in_which_nothing_is_said_is_none():
    (tree,) = read_trees(["( (S (NP (-NONE- *))) )"])
    assert cleaned(tree) is None


def test_spans_are_constituents_from_the_outside_in():
    (tree,) = read_trees([TREE])
    assert tree.spans() == [Constituent(0, 3, "S"), Constituent(0, 2, "NP"), Constituent(2, 3, "VP")]
    assert Tree("NN", word="dog").spans() == []


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("It isn't 1,000 dogs' food, is it?", "It is n't 1,000 dogs ' food , is it ?"),
        ('He said "go" (now).', "He said `` go '' -LRB- now -RRB- ."),
        ("We cannot go to the U.S. today...", "We can not go to the U.S. today ..."),
        ("It's 5 p.m. - I'll wait; you've won!", "It 's 5 p.m. - I 'll wait ; you 've won !"),
    ],
)
def test_sentences_are_cut_as_treebanks_are(sentence, words):
    assert words_of(sentence) == words.split(" ")


def test_words_that_are_given_stay_and_none_holds_a_bracket():
    assert given_words("can't ( U.S.)"[:-1]) == ["can't", "-LRB-", "U.S."]
    with pytest.raises(DataError, match=re.escape("the word 'f(x' holds a bracket")):
        given_words("f(x")
    for cut in (words_of, given_words):
        with pytest.raises(DataError, match="an empty sentence has no tree"):
            cut(" \t")
