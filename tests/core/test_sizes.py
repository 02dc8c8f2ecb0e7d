from __future__ import annotations

import pytest

from attnlab.core.errors import SpecError, nearest
from attnlab.core.sizes import require_known, require_positive


def test_a_size_below_one_is_named():
    require_positive("batch", 1)
    with pytest.raises(SpecError, match="batch must be at least 1; got 0"):
        require_positive("batch", 0)


def test_an_unknown_word_gets_the_nearest():
    require_known("group", "shape", ["shape", "place"])
    with pytest.raises(SpecError, match="must be one of shape, place; got 'plaice'; did you mean 'place'"):
        require_known("group", "plaice", ["shape", "place"])


def test_many_words_are_listed_in_part():
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", [f"layers.{number:02d}" for number in range(72)]).endswith("layers.29, and 42 more")
