"""Of what a search found, that is ranked lower which leaves some of the source unseen."""

from __future__ import annotations

import pytest
import torch
from tests.studies.test_unknown_words import CODEC, KINDS, SIZE, cross_maps, model_of
from tests.viewer.example_runs import translation_run

from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.errors import SpecError
from attnlab.models import ByteNet
from attnlab.models.decoding.generation import Hypothesis
from attnlab.studies.using.alignment import LEAST, by_coverage
from attnlab.studies.using.trained import load_run, translate
from attnlab.tasks.codecs import SentenceCodec

BETA = 0.7
SOURCES = [[5, 6, 4, 2], [7, 2]]
FOUND = [
    [Hypothesis((5,), -1.0, -1.0, ended=True), Hypothesis((5, 4, 6, 3), -1.2, -1.1, ended=True)],
    [Hypothesis((4,), -9.0, -9.0, ended=True), Hypothesis((4, 5, 6), -0.1, -0.1, ended=False)],
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_penalty_is_that_of_the_paper(kind):
    model = model_of(kind)
    ranked = by_coverage([model], CODEC, SOURCES, FOUND, BETA)
    for source, before, after in zip(SOURCES, FOUND, ranked, strict=True):
        for one in before:
            begun = [CODEC.marks.begin, *(one.tokens if one.ended else one.tokens[:-1])]
            looks = cross_maps(model, torch.tensor([source]), torch.tensor([begun])).mean(dim=0)
            penalty = BETA * looks.sum(dim=0).clamp(min=LEAST, max=1.0).log().sum()
            (found,) = [other for other in after if other.tokens == one.tokens]
            assert found.score == pytest.approx(one.score + float(penalty), abs=1e-5)
            assert found.log_probability == one.log_probability
        assert after == sorted(after, key=lambda one: (not one.ended, -one.score))


def test_a_model_without_attention_over_the_source_is_refused():
    with pytest.raises(SpecError, match="this one has no attention over it"):
        by_coverage([ByteNet(SIZE, SIZE, d_model=6, n_sets=1, dilations=[1])], CODEC, SOURCES, FOUND, BETA)


@pytest.mark.filterwarnings("ignore:1 of 1 translations came to no end")
def test_the_command_and_what_is_kept(tmp_path, capsys):
    run = translation_run(tmp_path)
    trained = load_run(run)
    assert call(["translate", str(run), "two dogs", "--coverage", "0.2"]) == FINE
    assert capsys.readouterr().out == translate([trained], ["two dogs"], coverage=0.2)[0] + "\n"
    assert translate([trained], ["two dogs"], coverage=0.0) == translate([trained], ["two dogs"])
    for wrong in ("-1", "nan"):
        assert call(["translate", str(run), "two dogs", "--coverage", wrong]) == WRONG_USE
        assert f"coverage must be a number of at least 0; got {float(wrong)}" in " ".join(
            capsys.readouterr().err.split()
        )
    codec = SentenceCodec(CODEC.tokenizer, ("en", "de"), 9, 2, 0.6, coverage=0.3)
    assert SentenceCodec.from_json(codec.to_json()).coverage == 0.3
