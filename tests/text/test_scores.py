"""Scores of translations: known values, what changes them and what does not, and their signatures."""

from __future__ import annotations

import math
import unicodedata

import numpy as np
import pytest

from attnlab.core.errors import DataError
from attnlab.text.scores import bleu, chrf, differences, tokenised_bleu, tokenizer_for

REFERENCES = ["Ein Mann steht im Park.", "Zwei Hunde laufen über die Wiese.", 'Er sagt: "Komm!"']


def test_the_same_text_has_all_points():
    for found in (
        bleu(REFERENCES, REFERENCES),
        chrf(REFERENCES, REFERENCES),
        tokenised_bleu(REFERENCES, REFERENCES, "de"),
    ):
        assert found.value == pytest.approx(100.0)


def test_bleu_is_the_geometric_mean_of_precisions_and_a_penalty():
    """Six tokens, the last of which is wrong: precisions 5/6, 4/5, 3/4, 2/3; the text is a word short."""
    found = bleu(["a b c d e x"], ["a b c d e f g"])
    expected = math.exp(1.0 - 7.0 / 6.0) * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert found.value == pytest.approx(100.0 * expected)
    assert found.details.startswith("83.3/80.0/75.0/66.7 (BP = 0.846")


def test_case_counts_unless_told():
    lower = [text.lower() for text in REFERENCES]
    assert bleu(lower, REFERENCES).value < 90.0
    assert chrf(lower, REFERENCES).value < 90.0
    assert tokenised_bleu(lower, REFERENCES, "de").value < 90.0
    for found in (
        bleu(lower, REFERENCES, lowercase=True),
        chrf(lower, REFERENCES, lowercase=True),
        tokenised_bleu(lower, REFERENCES, "de", lowercase=True),
    ):
        assert found.value == pytest.approx(100.0)
        assert "case:lc" in found.signature


def test_tokens_are_those_of_moses():
    """An abbreviation of the language keeps its period, and quotation marks of any kind are the same."""
    found = tokenised_bleu(["Er sagt: „Komm!“ z.B. heute, ja"], ['Er sagt: "Komm!" z.B. heute, ja'], "de")
    assert found.value == pytest.approx(100.0)
    assert "hyp_len = 11" in found.details


def test_signatures_say_how_it_was_computed():
    assert "case:mixed|eff:no|tok:13a" in bleu(REFERENCES, REFERENCES).signature
    assert "nc:6|nw:0" in chrf(REFERENCES, REFERENCES).signature
    signature = tokenised_bleu(REFERENCES, REFERENCES, "de", lowercase=True).signature
    assert "case:lc" in signature
    assert "tok:moses-de-sacremoses-" in signature


@pytest.mark.parametrize("score", [bleu, chrf, lambda one, other: tokenised_bleu(one, other, "de")])
def test_errors(score):
    with pytest.raises(DataError, match="2 translations and 1 references: one of each is needed"):
        score(["a", "b"], ["a"])
    with pytest.raises(DataError, match="there is no sentence to score"):
        score([], [])


def spoiled(share):
    """Return fifty sentences, of which some have lost their last word."""
    sentences = [f"Satz {number} hat genau sieben Wörter hier" for number in range(50)]
    cut = round(share * len(sentences))
    return sentences, [text.rsplit(" ", 1)[0] + " x" for text in sentences[:cut]] + sentences[cut:]


def test_a_difference_in_all_sentences_is_no_chance_and_in_one_it_may_be():
    references, worse = spoiled(1.0)
    found = {one.name: one for one in differences(references, worse, references)}
    assert found["BLEU"].value == pytest.approx(100.0 - bleu(worse, references).value)
    assert found["chrF"].value == pytest.approx(100.0 - chrf(worse, references).value)
    assert all(0 < one.low <= one.value <= one.high for one in found.values())
    _, hardly = spoiled(0.02)
    assert all(one.low == 0 < one.value < one.high for one in differences(references, hardly, references))


def test_the_interval_holds_the_difference_of_other_sentences_as_often_as_it_says():
    """Half of all sentences are spoiled: the difference of very many is known, and texts of fifty are drawn."""
    references, worse = spoiled(1.0)
    truth = 0.5 * (100.0 - chrf(worse, references).value)
    held = []
    for seed in range(40):
        bad = np.random.default_rng(seed).random(len(references)) < 0.5
        some = [spoilt if one else text for one, spoilt, text in zip(bad, worse, references, strict=True)]
        found = differences(references, some, references)[1]
        held.append(found.low <= truth <= found.high)
    assert sum(held) >= 33


def test_the_same_translations_do_not_differ():
    _, some = spoiled(0.5)
    references, _ = spoiled(0.0)
    assert [(one.low, one.value, one.high) for one in differences(some, some, references)] == [(0.0, 0.0, 0.0)] * 2


def test_the_other_text_needs_one_sentence_for_each():
    with pytest.raises(DataError, match="1 translations and 2 references"):
        differences(["a", "b"], ["a"], ["a", "b"])


CHINESE = ["我今天去北京的公园。"], ["我今天去了北京公园。"]


def test_each_language_is_cut_as_it_is():
    import sacrebleu

    expected = sacrebleu.corpus_bleu(CHINESE[0], [CHINESE[1]], tokenize="zh").score
    for code in ("zh", "zh-TW", "zh_Hans", "cmn"):
        found = bleu(*CHINESE, code)
        assert found.value == pytest.approx(expected)
        assert "|tok:zh|" in found.signature
    assert expected > 30 > bleu(*CHINESE).value
    for code in ("th", "km-KH", "lo", "my"):
        assert tokenizer_for(code) == "char"
    assert tokenizer_for("de") == tokenizer_for("xx") == tokenizer_for("") == "13a"
    assert differences(CHINESE[1], CHINESE[0], CHINESE[1], "zh")[0].value == pytest.approx(100 - expected)


@pytest.mark.parametrize(("code", "extra"), [("ja", "ja"), ("ko-KR", "ko")])
def test_what_cuts_words_is_missed_by_name(monkeypatch, code, extra):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=rf"BLEU of '{code}' is that of characters .* install sacrebleu\[{extra}\]"):
        assert tokenizer_for(code) == "char"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert tokenizer_for(code) == f"{extra}-mecab"


def test_composed_and_decomposed_characters_are_the_same():
    apart = [unicodedata.normalize("NFD", text) for text in REFERENCES]
    assert apart != REFERENCES
    for score in (bleu, chrf, lambda *texts: tokenised_bleu(*texts, "de")):
        assert score(apart, REFERENCES).value == score(REFERENCES, apart).value == pytest.approx(100.0)
    assert differences(REFERENCES, apart, apart)[0].value == 0


def test_several_references():
    other = ["etwas ganz anderes steht hier", *REFERENCES[1:]]
    found = bleu(other, [REFERENCES, other])
    assert found.value == pytest.approx(100.0)
    assert found.signature.startswith("nrefs:2|")
    assert bleu(other, [REFERENCES, ["", *other[1:]]]).value < 100
    assert chrf(other, [REFERENCES, other]).value == pytest.approx(100.0)
    with pytest.raises(DataError, match=f"{len(other)} translations and 1 references"):
        bleu(other, [REFERENCES, ["one"]])
