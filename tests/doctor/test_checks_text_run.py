"""Training on a text: the split is honest, the ladder has the right rungs, and each outcome is said in its words."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from attnlab.core.errors import DataError, SpecError
from attnlab.doctor.checks import text as text_run
from attnlab.doctor.checks.text import Run, check_text, judge
from attnlab.doctor.examination import Examination, Options
from attnlab.doctor.measures import text_training
from attnlab.doctor.measures.text_corpus import Corpus, read_corpus
from attnlab.doctor.measures.text_stack import Stack, causal_usage, context_of, language_model
from attnlab.doctor.measures.text_training import Course, Measured, measure, train
from attnlab.strangers.patient import Patient
from attnlab.strangers.usage import Masking, Usage
from attnlab.text.characters import Vocabulary
from attnlab.text.ngrams import Rung

D, CONTEXT = 20, 11


class Attention(nn.Module):
    """A head that sees `ahead` positions too many."""

    def __init__(self, ahead=0):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.ahead = ahead

    def forward(self, x):
        allowed = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(self.ahead)
        scores = self.q(x) @ self.k(x).transpose(-2, -1) / math.sqrt(D)
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ self.v(x)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x, attn_mask=None):
        return self.attention(x, x, x, attn_mask=attn_mask)[0]


class Tokens(nn.Module):
    def __init__(self, vocab_size, d_out):
        super().__init__()
        self.embed, self.mixer, self.head = nn.Embedding(vocab_size, D), Attention(), nn.Linear(D, d_out)

    def forward(self, tokens):
        return self.head(self.mixer(self.embed(tokens)))


def examine(module, *, path=None, depth=6, **usage):
    fields = {"kind": "layer", "takes": "embeddings", "d_in": D, "d_out": D, "longest": CONTEXT}
    fields |= {"causal": True, "causal_means": "always"} | usage
    options = Options(depth=depth, text=None if path is None else Path(path))
    return Examination(Patient("it", module, None, {}, "", ""), Usage(**fields), options)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(text_training, "MOST_STEPS", 80)


# The corpus


def test_corpus_is_split_before_windows_and_predicts_each_character_once(text_file, words):
    corpus = read_corpus(Path(text_file), CONTEXT)
    vocabulary = Vocabulary([words[: len(words) * 9 // 10], words[len(words) * 9 // 10 :]])
    assert vocabulary.decode(corpus.train) == words[: len(words) * 9 // 10]
    predicted = vocabulary.decode(corpus.held_out[:, 1:].flatten())
    held_out = words[len(words) * 9 // 10 :]
    assert predicted == held_out[1 : 1 + len(predicted)]
    assert len(held_out) - len(predicted) <= CONTEXT
    assert corpus.context == CONTEXT


def test_bad_texts_are_said(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(tmp_path / "nowhere.txt", CONTEXT)
    empty, binary, short = (tmp_path / name for name in ("empty", "binary", "short"))
    empty.write_bytes(b"")
    binary.write_bytes(b"abc\xff")
    short.write_text("abc" * 20)
    with pytest.raises(DataError, match="is empty"):
        read_corpus(empty, CONTEXT)
    with pytest.raises(DataError, match="must be UTF-8"):
        read_corpus(binary, CONTEXT)
    with pytest.raises(DataError, match=f"{10 * (2 * CONTEXT + 1)} characters are needed; got 60"):
        read_corpus(short, CONTEXT)


# The model around it


def test_layers_are_stacked_in_blocks_and_blocks_stand_for_themselves():
    layer = language_model(examine(Attention()), examine(Attention()).usage, 7)
    block = language_model(examine(Attention(), kind="block"), examine(Attention(), kind="block").usage, 7)
    tokens = torch.randint(7, (3, CONTEXT))
    assert layer(tokens).shape == block(tokens).shape == (3, CONTEXT, 7)
    assert sum(isinstance(part, nn.GELU) for part in layer.modules()) == 2
    assert not any(isinstance(part, nn.GELU) for part in block.modules())


def test_depth_is_at_most_what_was_asked():
    exam = examine(Attention(), depth=1)
    model = language_model(exam, exam.usage, 7)
    assert sum(isinstance(part, Attention) for part in model.modules()) == 1


def test_narrow_patients_get_adapters():
    exam = examine(nn.GRU(1, 3, batch_first=True), d_in=1, d_out=3)
    assert Stack(exam, exam.usage, 7)(torch.randint(7, (3, CONTEXT))).shape == (3, CONTEXT, 7)


def test_stack_sees_no_later_character():
    exam = examine(Masked(), causal=None, causal_means="mask", masks=MASKS)
    model = language_model(exam, causal_usage(exam.usage), 7).eval()
    tokens = torch.randint(7, (3, CONTEXT))
    other = torch.cat((tokens[:, :4], (tokens[:, 4:] + 1) % 7), 1)
    assert torch.equal(model(tokens)[:, :4], model(other)[:, :4])
    assert not torch.equal(model(tokens)[:, 4:], model(other)[:, 4:])


def test_token_models_need_room_for_the_characters():
    exam = examine(Tokens(13, 13), kind="model", takes="tokens", d_in=0, d_out=13, vocab_size=13)
    assert language_model(exam, exam.usage, 7)(torch.randint(7, (3, CONTEXT))).shape == (3, CONTEXT, 7)
    with pytest.raises(SpecError, match=r"17 characters, the model takes 13 tokens; give --arg vocab_size=17"):
        language_model(exam, exam.usage, 17)


def test_hidden_states_get_an_output_layer():
    exam = examine(Tokens(13, D), kind="model", takes="tokens", d_in=0, d_out=D, vocab_size=13)
    assert language_model(exam, exam.usage, 7)(torch.randint(7, (3, CONTEXT))).shape == (3, CONTEXT, 7)


def test_context_is_what_the_patient_takes():
    usage = examine(Attention()).usage
    assert context_of(usage) == CONTEXT
    assert context_of(replace(usage, longest=None)) == 64
    assert context_of(replace(usage, any_length=False, length=9)) == 9


MASKS = (Masking("attn_mask", "pairs", "bool, True = blocked", "(q_len, k_len)"),)

# Training and measuring


def test_training_is_cut_to_its_time_and_lowers_the_loss(text_file):
    exam, corpus = examine(Attention()), read_corpus(Path(text_file), CONTEXT)
    model = language_model(exam, exam.usage, corpus.vocab_size)
    before = measure(model.eval(), corpus)
    assert train(model.train(), corpus, seconds=0.0).steps == text_training.PROBE_STEPS
    course = train(model, corpus, seconds=600.0)
    assert course.steps == 80
    assert course.characters == 80 * text_training.BATCH * CONTEXT
    assert measure(model.eval(), corpus).loss < before.loss


def test_what_a_clean_model_cannot_see_is_worth_exactly_nothing(text_file):
    exam, corpus = examine(Attention()), read_corpus(Path(text_file), CONTEXT)
    measured = measure(language_model(exam, exam.usage, corpus.vocab_size).eval(), corpus)
    assert measured.after == 0
    assert measured.before != 0


def test_loss_is_the_mean_over_every_prediction(text_file):
    corpus = read_corpus(Path(text_file), CONTEXT)
    constant = torch.zeros(corpus.vocab_size)

    class Uniform(nn.Module):
        def forward(self, tokens):
            return constant.expand(*tokens.shape, -1)

    measured = measure(Uniform(), corpus)
    assert measured.loss == pytest.approx(math.log(corpus.vocab_size))
    assert measured.uncertainty == pytest.approx(0, abs=1e-9)
    assert (measured.before, measured.long_before, measured.after) == (0, 0, 0)


# The whole check


def test_without_a_text_nothing_is_said():
    assert list(check_text(examine(Attention()))) == []


def test_a_leak_is_an_error(text_file, monkeypatch):
    monkeypatch.setattr(text_training, "MOST_STEPS", 300)
    (error,) = check_text(examine(Attention(ahead=1), path=text_file))
    assert (error.check, error.severity) == ("text", "error")
    assert "it is to predict" in error.message


def test_what_only_claims_to_be_causal_is_trained_too(text_file, monkeypatch):
    monkeypatch.setattr(text_training, "MOST_STEPS", 300)
    (error,) = check_text(examine(Attention(ahead=CONTEXT), path=text_file, causal=True, causal_means="nothing"))
    assert error.severity == "error"


def test_a_clean_layer_has_no_error(text_file):
    (finding,) = check_text(examine(Attention(), path=text_file))
    assert finding.severity != "error"
    assert "bigram" in finding.evidence


def test_bidirectional_and_pooled_patients_are_not_trained(text_file):
    for usage in ({"causal": False, "causal_means": "nothing"}, {"pooled": True}):
        (fact,) = check_text(examine(Attention(), path=text_file, **usage))
        assert fact.severity == "info"
        assert "not trained" in fact.message


def test_person_random_numbers_do_not_matter(text_file):
    """Two runs end the same, whatever was drawn before."""
    measured, layer = [], Attention()
    for seed in (1, 2):
        torch.manual_seed(seed)
        (finding,) = check_text(examine(layer, path=text_file))
        measured.append(finding.evidence.split(" nats")[0])
    assert measured[0] == measured[1]


# What is said


RUNGS = tuple(
    Rung(order, loss, 0.3, loss - 0.3, 0.4, 0.001) for order, loss in enumerate((3.35, 2.49, 2.05, 1.77, 1.67, 1.7))
)
CORPUS = Corpus("book.txt", torch.zeros(9).long(), torch.zeros(3, CONTEXT + 1).long(), 65, RUNGS, 0.0)
COURSE = Course(1000, 1000, 20.0)


def said(corpus=CORPUS, course=COURSE, **measured):
    values = {"loss": 2.19, "uncertainty": 0.01, "before": 0.9, "long_before": 0.4, "after": 0.0} | measured
    return judge(Run(corpus, course, Measured(**values)))


def place(loss):
    return Run(CORPUS, COURSE, Measured(loss, 0.01, 0.9, 0.4, 0.0)).place


def test_places_on_the_ladder():
    assert place(2.19) == "lies between bigram (2.49) and trigram (2.05)"
    assert place(1.69) == "lies between 6-gram (1.70) and 5-gram (1.67)"
    assert place(4.0).startswith("lies above unigram (3.35)")
    assert place(1.1) == "lies below every n-gram; the lowest is 5-gram (1.67)"


def test_context_that_is_used_is_a_fact():
    finding = said()
    assert (finding.severity, finding.weighs) == ("info", "fact")
    assert finding.message.startswith("2.19 nats per character lies between bigram (2.49) and trigram (2.05)")


def test_context_that_is_not_used_is_the_set_up():
    finding = said(before=0.0, long_before=0.0)
    assert (finding.severity, finding.weighs) == ("warning", "set-up")
    assert "2.19 lies between bigram (2.49) and trigram (2.05): context is not used" in finding.message
    assert "hardly used" in said(long_before=0.0).message


def test_too_few_steps_are_no_proof():
    finding = said(course=Course(30, 30, 20.0), before=0.0, long_before=0.0)
    assert finding.severity == "info"
    assert "too few" in finding.message


def test_too_good_is_suspected_and_memory_told_apart():
    finding = said(loss=1.14)
    assert (finding.severity, finding.weighs) == ("warning", "set-up")
    assert "look for a leak" in finding.message
    assert "repeats itself" in said(corpus=replace(CORPUS, shared=0.9), loss=1.14).message
    assert said(loss=1.65).severity == "info"


def test_leak_not_finite_and_nothing_learned():
    assert said(after=0.1).severity == "error"
    assert said(loss=math.nan).severity == "error"
    nothing = said(loss=3.6)
    assert nothing.severity == "warning"
    assert "learned nothing" in nothing.message


def test_exactly_one_finding_names_its_source():
    assert said().source == text_run.LADDER
