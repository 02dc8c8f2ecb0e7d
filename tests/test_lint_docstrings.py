"""The lint of docstrings looks for a parameter in the classes above, and for its use in those below."""

from __future__ import annotations

from attnlab.nn.axes.scores import AbstractScore, AdditiveScore
from tests.lint_docstrings import documented, is_accounted


def test_a_kind_need_not_repeat_what_its_abstract_class_says():
    assert documented(AbstractScore) == {"d_head"}
    assert documented(AdditiveScore) == {"d_hidden"}
    assert is_accounted(AdditiveScore, "PR01", "Parameters {'d_head'} not documented")
    assert not is_accounted(AdditiveScore, "PR01", "Parameters {'d_head', 'd_hidden'} not documented")


def test_an_abstract_class_documents_only_what_a_kind_asks_for():
    assert is_accounted(AbstractScore, "PR02", "Unknown parameters {'d_head'}")
    assert not is_accounted(AbstractScore, "PR02", "Unknown parameters {'d_heads'}")
    assert not is_accounted(AdditiveScore, "PR02", "Unknown parameters {'d_heads'}")
