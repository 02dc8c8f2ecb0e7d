"""What a tree is written as gives the tree again, and words have tags that they were seen with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.core.errors import DataError
from attnlab.text.trees import Tree, read_trees
from attnlab.text.trees.drawing import tree_svg
from attnlab.text.trees.linear import TagDictionary, TreeVocabulary
from attnlab.text.trees.tree import without_repeats


def some(elements):
    return st.lists(elements, min_size=1, max_size=3)


WORDS = st.builds(lambda tag, word: Tree(tag, word=word), st.sampled_from("PQR"), st.sampled_from(["a", "b", "1"]))
INSIDE = st.recursive(
    WORDS, lambda below: st.builds(lambda label, below: Tree(label, tuple(below)), st.sampled_from("STU"), some(below))
)
TREES = some(INSIDE).map(lambda below: Tree("S", tuple(below)))


@given(TREES)
def test_a_tree_comes_back_from_its_tokens(tree):
    vocabulary = TreeVocabulary.of([tree])
    tokens = vocabulary.encode(tree)
    assert vocabulary.decode(tokens, tree.words()) == tree
    assert list(read_trees([str(tree)])) == [tree]


@given(TREES)
def test_without_repeats_no_bracket_is_all_in_one_like_it_and_nothing_else_changes(tree):
    found = without_repeats(tree)
    assert found.words() == tree.words()
    assert {*found.spans()} == {*tree.spans()}
    inside = [found]
    for one in inside:
        inside += one.children
        assert [child.label for child in one.children if child.children] != [one.label] or len(one.children) > 1
    assert without_repeats(found) == found


def test_without_tags_all_words_are_written_alike():
    (tree,) = read_trees(["(S (NP (PRP I)) (VP (VBP go)))"])
    vocabulary = TreeVocabulary.of([tree], tags=False)
    assert vocabulary.pieces(vocabulary.encode(tree)) == ["(S", "(NP", "XX", ")", "(VP", "XX", ")", ")"]


def test_labels_and_tags_that_were_never_seen_have_a_token():
    known, other = read_trees(["(S (A a))", "(X (B b))"])
    vocabulary = TreeVocabulary.of([known])
    assert vocabulary.pieces(vocabulary.encode(other)) == ["(?", "?", ")"]


@pytest.mark.parametrize("wrong", [[], ["(S", "A"], ["(S", ")"], ["(S", "A", ")", ")"], ["A"], ["(S", "A", "A", ")"]])
def test_tokens_that_are_no_tree_over_the_words_are_refused(wrong):
    (tree,) = read_trees(["(S (A a))"])
    vocabulary = TreeVocabulary.of([tree])
    names = vocabulary.pieces(range(vocabulary.size))
    with pytest.raises(DataError, match="no tree over 1 words"):
        vocabulary.decode([names.index(piece) for piece in wrong], ["a"])


def test_frequent_words_keep_their_tags_and_new_ones_get_those_of_many_words():
    lines = ["(S (DT the) (NN dog) (. .))"] * 5 + [f"(S (NN n{number}) (, ,))" for number in range(60)]
    trees = list(read_trees(lines))
    vocabulary = TreeVocabulary.of(trees)
    dictionary = TagDictionary.of(trees, vocabulary)

    def tags(word):
        return vocabulary.pieces(dictionary.allowed(word))

    assert tags("the") == ["DT"]
    assert tags("unheard") == tags("n3") == ["NN"]
    assert sorted(tags("?!")) == [",", "."]
    assert TagDictionary.from_json(dictionary.to_json()) == dictionary


def test_a_picture_escapes_what_words_hold():
    picture = tree_svg(Tree("S", (Tree("<b>", word="a&b"), Tree("NP", (Tree("NN", word="dog"),)))))
    assert "&lt;b&gt;" in picture
    assert "a&amp;b" in picture
    assert "<b>" not in picture
    assert picture.count("<line") == 5
