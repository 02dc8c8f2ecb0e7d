"""Constituency trees: read, cleaned, written, compared."""

from attnlab.text.trees.bracketing import BracketScores, compare_all, compare_trees
from attnlab.text.trees.reading import read_trees
from attnlab.text.trees.tree import Constituent, Tree, cleaned

__all__ = ["BracketScores", "Constituent", "Tree", "cleaned", "compare_all", "compare_trees", "read_trees"]
