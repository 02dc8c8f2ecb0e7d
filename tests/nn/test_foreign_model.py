"""People's own whole models, unchanged: as they return their answers, and with what they want beside their input."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from attnlab.core.draws import drawn_by_name
from attnlab.core.errors import ModuleError
from attnlab.inspection.cost import cost
from attnlab.inspection.reach import Reach, reach
from attnlab.nn.foreign_model import ForeignModel, build_foreign_model

VOCAB, LENGTH, BATCH = 13, 9, 4
NEXT = {"vocab_size": VOCAB, "max_length": LENGTH}
ONCE = {"vocab_size": VOCAB, "d_in": VOCAB, "d_out": 5, "n_classes": 5, "max_length": LENGTH, "length": LENGTH}
NUMBERS = {"d_in": 3, "d_out": 2, "max_length": LENGTH, "length": LENGTH}

CODE = """
from dataclasses import dataclass
import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 16

class Base(nn.Module):
    def __init__(self, vocab_size, max_len, n_out=None):
        super().__init__()
        self.embed, self.places = nn.Embedding(vocab_size, WIDTH), nn.Embedding(max_len, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.answer = nn.Linear(WIDTH, n_out or vocab_size)

    def read(self, ids, mask, padding=None):
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        return self.answer(self.layer(x, src_mask=mask, src_key_padding_mask=padding))

    def causal(self, ids):
        return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)

class Plain(Base):
    def forward(self, ids):
        return self.read(ids, self.causal(ids))

class WithLoss(Base):
    def forward(self, idx, targets=None):
        logits = self.read(idx, self.causal(idx))
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())

class LastUnlessTrained(Base):
    def forward(self, idx, targets=None):
        logits = self.read(idx, self.causal(idx))
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

class Named(Base):
    def forward(self, input_ids):
        return {"loss": None, "logits": self.read(input_ids, self.causal(input_ids))}

class LossAlone(Base):
    def forward(self, idx, targets):
        return F.cross_entropy(self.read(idx, self.causal(idx)).flatten(0, 1), targets.flatten())

class OwnTargets(Base):
    def forward(self, batch):
        given, wanted = batch["ids"][:, :-1], batch["ids"][:, 1:]
        return {"loss": F.cross_entropy(self.read(given, self.causal(given)).mT, wanted)}

@dataclass
class Output:
    hidden: torch.Tensor
    logits: torch.Tensor

class Described(Base):
    def forward(self, input_ids):
        logits = self.read(input_ids, self.causal(input_ids))
        return Output(self.embed(input_ids), logits)

class LengthFirst(nn.Module):
    def __init__(self, ntoken, width=WIDTH):
        super().__init__()
        self.embed, self.places = nn.Embedding(ntoken, width), nn.Embedding(100, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0)
        self.answer = nn.Linear(width, ntoken)

    def forward(self, src):
        mask = torch.ones(len(src), len(src), dtype=torch.bool, device=src.device).triu(1)
        return self.answer(self.layer(self.embed(src) + self.places.weight[: len(src), None], src_mask=mask))

class LengthFirstPair(nn.Module):
    def __init__(self, src_vocab_size, tgt_vocab_size):
        super().__init__()
        self.source, self.target = nn.Embedding(src_vocab_size, WIDTH), nn.Embedding(tgt_vocab_size, WIDTH)
        self.places = nn.Parameter(torch.randn(50, 1, WIDTH))
        self.layers = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0)
        self.answer = nn.Linear(WIDTH, tgt_vocab_size)

    def forward(self, src, tgt, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask):
        source, target = (x + self.places[: len(x)] for x in (self.source(src), self.target(tgt)))
        return self.answer(self.layers(source, target, src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask))

class LeftAtTheDefault(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(vocab_size, WIDTH), nn.LSTM(WIDTH, WIDTH)
        self.answer = nn.Linear(WIDTH, vocab_size)

    def forward(self, ids):
        return self.answer(self.lstm(self.embed(ids))[0])

class Closing(Base):
    def __init__(self, vocab_size, max_len):
        super().__init__(vocab_size, max_len)
        answer = self.answer
        self.answered = lambda x: answer(x)

    def forward(self, ids):
        return self.answered(self.embed(ids))

class Forecast(nn.Module):
    def __init__(self, input_size, hidden_size=WIDTH, output_dim=1):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(input_size, hidden_size, batch_first=True), nn.Linear(hidden_size, output_dim)

    def forward(self, x):
        return self.fc(self.lstm(x)[0])

class Flat(Base):
    def forward(self, idx):
        return self.read(idx, self.causal(idx)).flatten(0, 1)

class Masked(Base):
    def forward(self, src, src_mask):
        return self.read(src, src_mask)

@dataclass
class Settings:
    block_size: int = 64
    vocab_size: int = 50257
    n_embd: int = 16

class Configured(Base):
    def __init__(self, config):
        super().__init__(config.vocab_size, config.block_size)

    def forward(self, idx):
        return self.read(idx, self.causal(idx)), None

class Padded(Base):
    def __init__(self, vocab_size, max_len, n_classes):
        super().__init__(vocab_size, max_len, n_classes)

    def forward(self, ids, padding_mask):
        return self.read(ids, None, padding_mask)[:, 0], None

class Numbers(nn.Module):
    def __init__(self, d_in=3, d_out=2):
        super().__init__()
        self.lstm, self.answer = nn.LSTM(d_in, 8, batch_first=True), nn.Linear(8, d_out)

    def forward(self, x):
        hidden, state = self.lstm(x)
        return self.answer(hidden), state

class AsksForAValue(Plain):
    def forward(self, ids):
        return (super().forward(ids), None) if float(self.answer.bias.sum()) < 1e9 else None

class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, query, key, value, mask=None):
        q, k, v = (one(x) for one, x in zip(self.maps, (query, key, value)))
        scores = q @ k.mT / WIDTH**0.5
        return (scores if mask is None else scores.masked_fill(mask == 0, -1e9)).softmax(-1) @ v

class Translator(nn.Module):
    def __init__(self, src_vocab, tgt_vocab, src_pad_idx):
        super().__init__()
        self.src, self.tgt = nn.Embedding(src_vocab, WIDTH, src_pad_idx), nn.Embedding(tgt_vocab, WIDTH)
        self.places = nn.Parameter(torch.randn(64, WIDTH))
        self.inner, self.cross, self.answer = Heads(), Heads(), nn.Linear(WIDTH, tgt_vocab)

    def forward(self, src, tgt, src_mask, tgt_mask):
        memory, x = (one + self.places[: one.shape[1]] for one in (self.src(src), self.tgt(tgt)))
        x = x + self.inner(x, x, x, tgt_mask)
        return self.answer(x + self.cross(x, memory, memory, src_mask))

class Unanswered(Translator):
    def __init__(self, n_source_vocab, n_target_vocab, trg_sos_idx):
        super().__init__(n_source_vocab, n_target_vocab, 0)
        self.begin, self.generator, self.answer = trg_sos_idx, self.answer, nn.Identity()

class ConfiguredNumbers(nn.Module):
    def __init__(self, configs):
        super().__init__()
        self.widen, self.narrow = nn.Linear(configs.enc_in, configs.d_model), nn.Linear(configs.d_model, configs.c_out)

    def forward(self, x):
        return self.narrow(self.widen(x))

class ConfiguredWidth(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = getattr(config, "width", 21)
        self.widen, self.narrow = nn.Linear(config.d_in, width), nn.Linear(width, config.d_out)

    def forward(self, x):
        return self.narrow(self.widen(x))

class MaskingItself(Translator):
    def forward(self, src, trg):
        causal = torch.ones(1, trg.shape[1], trg.shape[1], dtype=torch.bool, device=trg.device).tril()
        return super().forward(src, trg, (src != 0)[:, None], causal), None

class WithoutMasks(MaskingItself):
    def forward(self, src, trg):
        return super().forward(src, trg)[0]

class HidingPadding(Base):
    def forward(self, ids):
        return self.read(ids, self.causal(ids), ids == 0), None

class Raises(Base):
    def forward(self, ids):
        raise ValueError("no such thing")

class Wants(Base):
    def forward(self, ids, graph):
        return self.read(ids, graph.mask)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def tokens(seed=0, low=0):
    return torch.randint(low, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def drawn(own, name, offered=NEXT):
    return drawn_by_name(lambda: build_foreign_model(f"{own}:{name}", offered), 3)


def test_a_model_that_answers_with_a_tensor_is_left_as_it_is(own):
    model = drawn(own, "Plain")
    assert type(model).__name__ == "Plain"
    assert model(tokens()).shape == (BATCH, LENGTH, VOCAB)


@pytest.mark.parametrize(
    "name",
    ["WithLoss", "LastUnlessTrained", "LossAlone", "OwnTargets", "Named", "Described", "Flat", "Masked", "Configured"],
)
def test_the_answers_are_those_of_the_plain_model(own, name):
    model, plain = drawn(own, name), drawn(own, "Plain")
    assert type(model) is ForeignModel
    assert [*model.module.state_dict()] == [*plain.state_dict()]  # drawn by the same names: the same start
    torch.testing.assert_close(model(tokens()), plain(tokens()))
    assert reach(model.eval(), (tokens(),)).future == 0


def test_gradients_reach_every_weight(own):
    model = drawn(own, "LastUnlessTrained")
    F.cross_entropy(model(tokens()).flatten(0, 1), tokens(1).flatten()).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_padding_is_told_where_a_task_pads(own):
    model = drawn(own, "Padded", ONCE)
    padded = tokens(low=1)
    padded[:, -3:] = 0
    answers = model(padded)
    assert answers.shape == (BATCH, ONCE["n_classes"])
    with torch.no_grad():
        x = model.module.embed(padded) + model.module.places.weight
        seen = model.module.layer(x, src_key_padding_mask=padded == 0)
    torch.testing.assert_close(answers, model.module.answer(seen[:, 0]))


def test_a_token_that_means_padding_to_it_is_left_in_the_data(own):
    model = drawn(own, "HidingPadding")
    x = tokens(low=1)
    x[:, -3:] = 0
    torch.testing.assert_close(model(x), model.module(x)[0])


def test_a_task_that_says_nothing_of_its_data_gets_the_model_as_it_is(own):
    assert type(drawn(own, "Numbers", {})).__name__ == "Numbers"


def test_a_model_of_numbers_may_return_its_state(own):
    model = drawn(own, "Numbers", NUMBERS)
    x = torch.randn(BATCH, LENGTH, 3)
    torch.testing.assert_close(model(x), model.module.answer(model.module.lstm(x)[0]))


def test_what_a_model_reads_is_not_how_wide_it_is_within(own):
    model = drawn(own, "ConfiguredWidth", NUMBERS)
    assert (model.widen.in_features, model.widen.out_features, model.narrow.out_features) == (3, 21, 2)


@pytest.mark.parametrize("name", ["Translator", "MaskingItself"])
def test_two_sequences_and_their_masks_are_given_where_they_are_wanted(own, name):
    offered = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB + 4, "max_length": LENGTH, "pad": 0}
    model, plain = drawn(own, name, offered), drawn(own, "WithoutMasks", offered)
    assert (type(model), type(plain).__name__) == (ForeignModel, "WithoutMasks")
    source, target = tokens(low=1), tokens(1)[:, :-2]
    source[0, -4:] = 0
    torch.testing.assert_close(model(source, target), plain(source, target))
    assert model(source, target).shape == (BATCH, LENGTH - 2, VOCAB + 4)
    other = source.clone()
    other[1] = tokens(2, low=1)[1]
    changed = (model(other, target) - model(source, target)).abs().amax((1, 2))
    assert changed[1] > 1e-3
    assert changed[[0, 2, 3]].max() == 0


def test_a_model_of_one_sequence_is_refused_where_there_are_two(own):
    offered = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB, "max_length": LENGTH, "pad": 0}
    with pytest.raises(ModuleError, match=r"takes one sequence, .* and this task gives two"):
        build_foreign_model(f"{own}:WithLoss", offered)


def test_it_is_counted_without_weights(own):
    with torch.device("meta"):
        model = build_foreign_model(f"{own}:Masked", NEXT)
    assert model(tokens().to("meta")).shape == (BATCH, LENGTH, VOCAB)


def test_one_that_asks_for_a_value_is_counted_with_weights(own):
    counted = [
        cost(lambda: build_foreign_model(f"{own}:{name}", NEXT), (tokens(),)) for name in ("AsksForAValue", "Plain")
    ]
    assert counted[0].parameters == counted[1].parameters > 0
    assert counted[0].flops_per_token == counted[1].flops_per_token
    assert ["on the CPU" in "".join(one.notes) for one in counted] == [True, False]


def test_what_a_task_of_ones_own_must_know_is_left_to_it(own):
    model = drawn(own, "Wants")
    assert type(model).__name__ == "Wants"
    mask = SimpleNamespace(mask=model.causal(tokens()))
    assert model(tokens(), mask).shape == (BATCH, LENGTH, VOCAB)
    masked, plain = drawn(own, "Masked"), drawn(own, "Plain")
    torch.testing.assert_close(masked(tokens(), plain.causal(tokens())), plain(tokens()))


def test_one_that_raises_is_refused_with_its_own_words(own):
    with pytest.raises(ModuleError, match=r"Raises'.*ValueError: no such thing"):
        build_foreign_model(f"{own}:Raises", NEXT)


def test_a_model_whose_own_code_has_the_length_first_is_given_it(own):
    model = build_foreign_model({"name": f"{own}:LengthFirst"}, NEXT).eval()
    assert str(model.convention) == "forward(src), sequence-first"
    tokens = torch.randint(VOCAB, (BATCH, LENGTH))
    torch.testing.assert_close(model(tokens), model.module(tokens.T).transpose(0, 1))
    assert reach(model, tokens) == Reach(LENGTH, 0, mixes_batch=False)


def test_a_part_that_was_left_at_its_default_is_no_layout(own):
    model = build_foreign_model({"name": f"{own}:LeftAtTheDefault"}, NEXT).eval()
    assert not isinstance(model, ForeignModel)
    assert reach(model, torch.randint(VOCAB, (BATCH, LENGTH))).mixes_batch


def test_functions_that_close_over_parts_are_copied_with_them(own):
    model = build_foreign_model({"name": f"{own}:Closing"}, NEXT).eval()
    twin = copy.deepcopy(model).double()
    tokens = torch.randint(VOCAB, (BATCH, LENGTH))
    torch.testing.assert_close(twin(tokens).float(), model(tokens))
    assert reach(model, tokens) == Reach(1, 0, mixes_batch=False)


def test_what_goes_in_and_comes_out_is_given_by_the_names_of_the_constructor(own):
    model = build_foreign_model({"name": f"{own}:Forecast"}, NUMBERS)
    assert model(torch.zeros(BATCH, LENGTH, 3)).shape == (BATCH, LENGTH, 2)
    chosen = build_foreign_model({"name": f"{own}:Forecast", "output_dim": 7}, NUMBERS)
    assert chosen(torch.zeros(BATCH, LENGTH, 3)).shape == (BATCH, LENGTH, 7)


def test_two_sequences_of_code_that_has_the_length_first(own):
    pair = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB + 2, "max_length": 30, "pad": 0}
    model = build_foreign_model({"name": f"{own}:LengthFirstPair"}, pair).eval()
    assert model.convention.layout == "sequence-first"
    source, target = torch.randint(1, VOCAB, (BATCH, LENGTH)), torch.randint(1, VOCAB, (BATCH, LENGTH - 2))
    answers = model(source, target)
    assert answers.shape == (BATCH, LENGTH - 2, VOCAB + 2)
    other, later = source.clone(), target.clone()
    other[0], later[:, -1] = other[0] % (VOCAB - 1) + 1, 1 + later[:, -1] % (VOCAB - 1)
    changed = (model(other, target) - answers).abs().amax((1, 2))
    assert changed[0] > 1e-3 > 1e-5 > changed[1:].max()  # the source is read, and by its own sample alone
    torch.testing.assert_close(model(source, later)[:, :-1], answers[:, :-1])  # causal


def test_a_part_that_is_left_to_the_caller_makes_the_answers(own):
    pair = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB + 2, "max_length": 30, "pad": 0, "begin": 7}
    model = build_foreign_model({"name": f"{own}:Unanswered"}, pair).eval()
    assert (model.answering, model.module.begin) == ("generator", 7)
    assert repr(model).splitlines()[1].endswith(", then generator")
    tokens = torch.randint(1, VOCAB, (BATCH, LENGTH))
    assert model(tokens, tokens).shape == (BATCH, LENGTH, VOCAB + 2)


def test_what_goes_in_and_comes_out_is_given_by_the_names_that_are_read_from_a_config(own):
    model = build_foreign_model({"name": f"{own}:ConfiguredNumbers", "d_model": 16}, NUMBERS)
    assert model(torch.zeros(BATCH, LENGTH, 3)).shape == (BATCH, LENGTH, 2)
