"""Decoder and encoder: sizes by hand, and every misuse named."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection import Reach, capture, count_parameters, reach
from attnlab.models import Decoder, Encoder
from attnlab.models.wiring import Unmarked
from attnlab.nn import AdditiveScore, Attention, GeluFeedForward, RelativeBias
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.foreign import ForeignMixer
from attnlab.nn.mixers import MIXERS

VOCAB, MAX_LENGTH, LENGTH, BATCH, WIDTH, LAYERS = 13, 11, 7, 3, 20, 2


def decoder(**changes: object) -> Decoder:
    torch.manual_seed(5)
    return Decoder(VOCAB, MAX_LENGTH, **({"d_model": WIDTH, "n_layers": LAYERS} | changes))


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randint(VOCAB, (BATCH, LENGTH))


def test_one_answer_is_read_off_a_whole_window() -> None:
    model = decoder(readout="window", tied=False, mixer="none", positions="none")
    tokens = torch.randint(VOCAB, (BATCH, MAX_LENGTH))
    answer = model(tokens)
    assert answer.shape == (BATCH, 1, VOCAB)
    assert reach(model, (tokens,)) == Reach(past=MAX_LENGTH, future=0, mixes_batch=False)
    states = model.stack(model.embedding(tokens))
    maps = model.logits.weight.view(VOCAB, MAX_LENGTH, WIDTH)
    torch.testing.assert_close(answer[:, 0], torch.einsum("blw,vlw->bv", states, maps) + model.logits.bias)
    with pytest.raises(ModuleError, match=f"the readout 'window' needs all of its {MAX_LENGTH} tokens; got 4"):
        model(tokens[:, :4])
    with pytest.raises(SpecError, match="logits cannot be tied"):
        decoder(readout="window")
    with pytest.raises(SpecError, match="readout must be one of position, window; got 'windows'"):
        decoder(readout="windows")


def test_parameters_of_the_defaults_by_hand() -> None:
    d = WIDTH
    attention, feedforward, norms = 4 * d * d + 4 * d, 8 * d * d + 5 * d, 4 * d
    expected = VOCAB * d + MAX_LENGTH * d + LAYERS * (attention + feedforward + norms) + 2 * d
    assert count_parameters(decoder()) == expected


def test_untied_logits_have_weights_and_a_bias_of_their_own() -> None:
    assert count_parameters(decoder(tied=False)) == count_parameters(decoder()) + VOCAB * WIDTH + VOCAB


def test_tied_logits_are_the_embedding(tokens: torch.Tensor) -> None:
    model = decoder()
    assert model.logits.weight is model.embedding.weight
    model(tokens).sum().backward()
    assert model.embedding.weight.grad is not None


@pytest.mark.parametrize("norm", ["post", "none"])
def test_only_a_pre_norm_transformer_has_a_norm_at_the_end(norm: str) -> None:
    assert type(decoder(norm="pre").stack.norm) is not nn.Identity
    assert type(decoder(norm_kind="rms").stack.norm) is not type(decoder().stack.norm)
    assert type(decoder(norm=norm).stack.norm) is nn.Identity
    assert type(decoder(block={"name": "transformer", "norm": norm}).stack.norm) is nn.Identity
    assert type(decoder(block="literal").stack.norm) is nn.Identity


def test_a_list_gives_each_layer_its_mixer() -> None:
    mixed = decoder(mixer=["position-wise", "attention"])
    plain, attention = decoder(mixer="position-wise"), decoder()
    assert 2 * count_parameters(mixed) == count_parameters(plain) + count_parameters(attention)


@pytest.mark.parametrize("positions", [name for name in POSITIONS if POSITIONS[name].level == "input"])
def test_input_positions_are_marked_at_the_embedding(positions: str, tokens: torch.Tensor) -> None:
    model = decoder(positions=positions, mixer="none").eval()
    same = torch.zeros_like(tokens)
    logits = model(same)[0]
    assert not torch.allclose(logits[0], logits[1])


@pytest.mark.parametrize("positions", ["rotary", "linear-bias", "relative-bias"])
def test_score_positions_reach_every_attention(positions: str, tokens: torch.Tensor) -> None:
    mixer = [{"name": "attention", "n_heads": 5}, {"name": "attention", "n_heads": 2}]
    model, without = decoder(positions=positions, mixer=mixer), decoder(positions="none", mixer=mixer)
    with capture(model.eval()) as trace:
        model(tokens)
    assert len(trace) == 2
    assert type(model.stack.positions) is Unmarked
    kinds = [{type(module) for module in one.modules()} for one in (model, without)]
    assert kinds[0] - kinds[1]


def test_without_positions_and_mixers_every_place_is_alike(tokens: torch.Tensor) -> None:
    model = decoder(positions="none", mixer="none").eval()
    logits = model(torch.zeros_like(tokens))[0]
    torch.testing.assert_close(logits, logits[:1].expand_as(logits))


@pytest.mark.parametrize("init", ["torch", "gpt", "xavier"])
def test_one_seed_gives_one_set_of_weights(init: str) -> None:
    first, second = (decoder(init=init).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_class_of_ones_own_as_mixer(tmp_path: Path, tokens: torch.Tensor) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n"
        "class Mean(torch.nn.Module):\n"
        "    def __init__(self, dim):\n"
        "        super().__init__()\n"
        "        self.linear = torch.nn.Linear(dim, dim)\n"
        "    def forward(self, x):\n"
        "        return self.linear(x.cumsum(1))\n"
    )
    model = decoder(mixer=f"{file}:Mean")
    assert model(tokens).shape == (BATCH, LENGTH, VOCAB)
    assert reach(model, (tokens,)).past == LENGTH


def test_forum_question_models() -> None:
    d, layers = WIDTH, 6
    literal = {"name": "literal", "residual": False, "norm": "none"}
    ends = VOCAB * d + MAX_LENGTH * d + d * VOCAB + VOCAB
    no_attention = decoder(block=literal, mixer="none", n_layers=layers, tied=False)
    assert count_parameters(no_attention) == ends + layers * (d * d + d)


def test_the_encoder_sees_both_sides() -> None:
    torch.manual_seed(3)
    model = Encoder(2, 5, MAX_LENGTH, d_model=WIDTH, n_layers=1)
    seen = reach(model, (torch.randn(BATCH, LENGTH, 2),))
    assert (seen.past, seen.future, seen.mixes_batch) == (LENGTH, LENGTH - 1, False)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_can_be_in_an_encoder(mixer: str) -> None:
    model = Encoder(2, 5, MAX_LENGTH, d_model=WIDTH, n_layers=1, mixer=mixer)
    assert model(torch.randn(BATCH, LENGTH, 2)).shape == (BATCH, LENGTH, 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 0}, "sizes must be positive integers; got n_layers=0"),
        ({"d_model": -4}, "sizes must be positive integers; got d_model=-4"),
        ({"mixer": ["attention"]}, "a list of mixers needs one entry per layer; got 1 for n_layers 2"),
        ({"mixer": "atention"}, "unknown mixer 'atention'; did you mean 'attention'?"),
        ({"block": "litteral"}, "unknown block 'litteral'; did you mean 'literal'?"),
        ({"init": "gtp"}, "unknown init 'gtp'"),
        ({"block": "literal", "feedforward": "relu"}, "block 'literal' takes no feedforward; leave it out"),
        (
            {"positions": "rotary", "mixer": "lstm"},
            "positions 'rotary' act on attention scores, but no mixer of this model takes positions",
        ),
    ],
)
def test_misuse_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        decoder(**changes)
    assert message in str(error.value)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(SpecError, match="sizes must be positive integers; got vocab_size=0"):
        Decoder(0, MAX_LENGTH)


def test_no_features_are_refused() -> None:
    with pytest.raises(SpecError, match="sizes must be positive integers; got d_out=0"):
        Encoder(3, 0, MAX_LENGTH)


def test_a_class_makes_a_mixer_of_its_own_for_every_layer() -> None:
    score = functools.partial(AdditiveScore, d_hidden=3)
    by_class = decoder(mixer=functools.partial(Attention, n_heads=5, scores=score))
    by_name = decoder(mixer={"name": "attention", "n_heads": 5, "scores": {"name": "additive", "d_hidden": 3}})
    state, other = by_class.state_dict(), by_name.state_dict()
    assert list(state) == list(other)
    assert all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize(
    "given",
    [
        {"mixer": Attention(20, 5, causal=True)},
        {"mixer": {"name": "attention", "n_heads": 5, "scores": AdditiveScore(4)}},
        {"positions": RelativeBias(5)},
        {"feedforward": GeluFeedForward(20)},
    ],
    ids=["mixer", "score within a mixer", "positions", "feed-forward"],
)
def test_one_object_with_weights_does_not_serve_several_layers(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="stands in several places, which would share its weights"):
        decoder(**{"mixer": {"name": "attention", "n_heads": 5}} | given)


def test_a_list_gives_one_object_per_layer() -> None:
    mixers = [Attention(20, 5, causal=True), Attention(20, 2, causal=True)]
    model = decoder(mixer=mixers)
    assert [block.mixer for block in model.stack.blocks] == mixers


def test_a_person_s_own_object_or_class_is_learned_like_one_from_a_file(tokens: torch.Tensor) -> None:
    for mixer in ([Doubled(20), Doubled(20)], Doubled):
        model = decoder(mixer=mixer)
        assert type(model.stack.blocks[0].mixer) is ForeignMixer
        assert model(tokens).shape == (*tokens.shape, 13)


class Doubled(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.linear(x)
