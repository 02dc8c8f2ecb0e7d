"""Scores are those of evalb, column by column, on its own sample and where sentences are harder."""

from __future__ import annotations

import pytest

from attnlab.core.errors import DataError
from attnlab.text.trees import BracketScores, Tree, compare_all, compare_trees, read_trees
from attnlab.text.trees.bracketing import beside

GOLD = "(S (A (P this)) (B (Q is) (A (R a) (T test))))"
CLAUSES = " ".join([GOLD[3:-1]] * 11)
SAMPLE = [
    # gold, guess, then what evalb -p COLLINS.prm prints of its sample: matched, gold, guessed, crossing, words, tags
    (GOLD, GOLD, (4, 4, 4, 0, 4, 4)),
    (GOLD, "(S (A (P this)) (B (Q is) (C (R a) (T test))))", (3, 4, 4, 0, 4, 4)),
    (GOLD, "(S (A (P this)) (B (Q is) (A (R a) (U test))))", (4, 4, 4, 0, 4, 3)),
    (GOLD, "(S (C (P this)) (B (Q is) (A (R a) (U test))))", (3, 4, 4, 0, 4, 3)),
    (GOLD, "(S (A (P this)) (B (Q is) (R a) (A (T test))))", (3, 4, 4, 0, 4, 4)),
    (GOLD, "(S (A (P this) (Q is)) (A (R a) (T test)))", (2, 4, 3, 1, 4, 4)),
    (GOLD, "(S (P this) (Q is) (R a) (T test))", (1, 4, 1, 0, 4, 4)),
    (GOLD, "(P this) (Q is) (R a) (T test)", (0, 4, 0, 0, 4, 4)),
    (GOLD, "(S (A (P this)) (B (Q is) (A (A (R a) (T test)))))", (4, 4, 5, 0, 4, 4)),
    (GOLD, "(S (A (P this)) (B (Q is) (A (A (A (A (A (R a) (T test))))))))", (4, 4, 8, 0, 4, 4)),
    (GOLD, "", "skipped"),
    (GOLD, "(S (A (P this)) (B (Q was) (A (A (R a) (T test)))))", "failed"),
    (GOLD, "(S (A (P this)) (B (Q is) (U not) (A (A (R a) (T test)))))", "failed"),
    (GOLD, "", "skipped"),
    (GOLD, f"(TOP {GOLD})", (4, 4, 4, 0, 4, 4)),
    (GOLD, "(S (A (P this)) (NONE *) (B (Q is) (A (R a) (T test))))", "failed"),
    (GOLD, "(S (A (P this)) (S (NONE abc) (A (NONE *))) (B (Q is) (A (R a) (T test))))", "failed"),
    (GOLD, "(S (A (P this)) (B (Q is) (A (R a) (TT test))))", (4, 4, 4, 0, 4, 3)),
    (GOLD, "(S (A (P This)) (B (Q is) (A (R a) (T test))))", "failed"),
    (GOLD, "(S (A (P That)) (B (Q is) (A (R a) (T test))))", "failed"),
    ("(S (A-SBJ-1 (P this)) (B-WHATEVER (Q is) (A (R a) (T test))))", GOLD, (4, 4, 4, 0, 4, 4)),
    (f"(S {CLAUSES})", f"(S {CLAUSES})", (34, 34, 34, 0, 44, 44)),
    (GOLD[:-1] + " (-NONE- *))", GOLD[:-1] + " (-NONE- *))", (4, 4, 4, 0, 4, 4)),
    (GOLD[:-1] + " (: *))", GOLD[:-1] + " (: *))", (4, 4, 4, 0, 4, 4)),
]


def forest(line: str) -> Tree | None:
    """Return what stands on a line as one tree, as evalb reads it."""
    trees = tuple(read_trees([line]))
    return Tree("TOP", trees) if trees else None


@pytest.mark.parametrize(("gold", "guess", "expected"), SAMPLE, ids=range(1, len(SAMPLE) + 1))
def test_every_column_is_that_of_evalb(gold, guess, expected):
    found = compare_trees(forest(gold), forest(guess))
    if isinstance(expected, str):
        assert found == BracketScores(**{expected: 1})
    else:
        got = (found.matched, found.gold, found.guessed, found.crossing, found.words, found.tags)
        assert got == expected


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        # recall, precision, F, complete match, average crossing, no crossing, tagging, as evalb prints them
        (None, (87.23, 90.11, 88.65, 50.00, 0.06, 93.75, 97.12)),
        (40, (80.00, 84.21, 82.05, 46.67, 0.07, 93.33, 95.00)),
    ],
)
def test_the_summary_is_that_of_evalb(longest, expected):
    golds, guesses = ([forest(row[side]) for row in SAMPLE] for side in (0, 1))
    found = compare_all(golds, guesses, longest=longest)
    crossing, uncrossed = found.crossing / found.sentences, 100 * found.uncrossed / found.sentences
    got = (found.recall, found.precision, found.f1, found.exact_match, crossing, uncrossed, found.tagging)
    assert tuple(round(value, 2) for value in got) == expected
    assert (found.skipped, found.failed) == (2, 6)
    assert found.nearly == found.sentences
    longer = compare_all(golds, guesses, shortest=(longest or 10**6) + 1)
    assert found + longer == compare_all(golds, guesses), "every sentence is of one length"


def test_particles_are_adverbs_and_punctuation_is_in_no_constituent():
    (gold,) = read_trees(["(S (NP (PRP I)) (VP (VBP give) (PRT (RP up))) (. .))"])
    (guess,) = read_trees(["(S (NP (PRP I)) (VP (VBP give) (ADVP (RP up)) (. .)))"])
    found = compare_trees(gold, guess)
    assert (found.f1, found.exact, found.words) == (100, 1, 3)


def test_a_tag_that_makes_punctuation_of_a_word_leaves_a_sentence_unjudged():
    (gold,) = read_trees(["(S (NP (PRP I)) (VP (VBP go)))"])
    (guess,) = read_trees(["(S (NP (PRP I)) (VP (. go)))"])
    assert compare_trees(gold, guess) == BracketScores(failed=1)


def test_nothing_found_is_nothing_and_unequal_numbers_are_refused():
    assert (BracketScores().f1, BracketScores().recall, BracketScores().tagging) == (0, 0, 0)
    with pytest.raises(DataError, match="1 trees cannot be compared with 0"):
        compare_all([], [None])


def test_a_tree_beside_the_right_one_is_cut_where_it_is_wrong():
    (gold,) = read_trees(["(S (NP (DT the) (NN dog)) (VP (VBZ barks)))"])
    assert beside(gold, gold) == [(str(gold), True)]
    (guess,) = read_trees(["(S (NP (DT the)) (VP (NN dog) (VP (NN barks))))"])
    found = beside(guess, gold)
    assert "".join(text for text, _ in found) == str(guess)
    assert found == [
        ("(S", True),
        (" (NP", False),
        (" (DT the)", True),
        (") (VP", False),
        (" (NN dog) (VP", True),
        (" (NN barks)", False),
        (")", True),
        (")", False),
        (")", True),
    ]
    twice = beside(*read_trees(["(NP (NP (NN a)))", "(NP (NN a))"]))
    assert [right for _, right in twice] == [True, False, True, False, True]
