"""What every model in the table must keep."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from attnlab.core.build import build
from attnlab.core.errors import SpecError
from attnlab.inspection import count_parameters, reach
from attnlab.models import MODELS, Decoder
from attnlab.models.parsers.parser import AbstractParser
from attnlab.nn.mixers import MIXERS
from attnlab.studies.define.assemble import build_model_offered

BATCH, LENGTH, MAX_LENGTH, VOCAB, D_IN, D_OUT = 3, 7, 11, 13, 2, 5

OFFERED = {
    "vocab_size": VOCAB,
    "source_vocab_size": VOCAB,
    "target_vocab_size": VOCAB,
    "max_length": MAX_LENGTH,
    "d_in": D_IN,
    "d_out": D_OUT,
    "length": LENGTH,
}
TRANSFORMERS = ("encoder-decoder", "transformer-base", "transformer-big")
TRANSFORMER = {"d_model": 20, "n_layers": 2, "mixer": {"name": "attention", "n_heads": 2}, "dropout": 0.0}
SMALL: dict[str, dict[str, Any]] = {
    "decoder": {"d_model": 20, "n_layers": 2},
    "encoder": {"d_model": 20, "n_layers": 2},
    "token-encoder": {"d_model": 20, "n_layers": 2, "n_segments": 2},
    **dict.fromkeys(TRANSFORMERS, TRANSFORMER),
    "rnn-additive": {"d_model": 8, "hidden": 6, "dropout": 0.0},
    "rnn-multiplicative": {"d_model": 8, "dropout": 0.0},
    "deep-att": {"d_model": 6, "n_layers": 3, "n_decoder_layers": 2, "dropout": 0.0},
    "gnmt": {"d_model": 6, "n_layers": 4, "n_decoder_layers": 3, "dropout": 0.0},
    "convs2s": {"d_model": 8, "n_layers": 2, "dropout": 0.0},
    "bytenet": {"d_model": 8, "n_sets": 1, "dilations": [1, 2], "dropout": 0.0},
    "rnng": {"d_model": 6, "word_starts": [3, 4, 5], "brackets": {"close": 3, "labels": 4, "tags": 5}, "dropout": 0.0},
    "cnn": {
        "channels": 6,
        "kernel_size": 3,
        "n_layers": 3,
        "mixer": {"name": "attention", "n_heads": 2},
        "mixer_at": 1,
    },
    "lstm": {"hidden": 5},
    "lstm-batch-as-time": {"hidden": 5, "n_layers": 2},
    "mended": {"part": {"name": "decoder", "d_model": 20, "n_layers": 2}},
}
OF_TOKENS = ("decoder", "token-encoder", "mended")
TRANSLATING = {*TRANSFORMERS, "rnn-additive", "rnn-multiplicative", "deep-att", "gnmt", "convs2s", "bytenet", "rnng"}
FEATURES_OUT = dict.fromkeys((*OF_TOKENS, *TRANSLATING), VOCAB) | {"lstm-batch-as-time": D_IN}
MIXING = {"lstm-batch-as-time"}  # the mistake it is there to show


def make(name: str, seed: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return build({"name": name, **SMALL[name]}, MODELS, axis="model", offered=OFFERED)


def example(name: str) -> tuple[Tensor, ...]:
    torch.manual_seed(2)
    tokens = [torch.randint(1, VOCAB, (BATCH, LENGTH)) for _ in range(2)]
    if name in TRANSLATING:
        return tokens[1], tokens[0]
    return (tokens[0] if name in OF_TOKENS else torch.randn(BATCH, LENGTH, D_IN),)


@pytest.fixture(params=SMALL)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("asked", ["n_layers", "n_sets", "n_decoder_layers"])
def test_more_layers_than_can_be_built_are_refused_at_once(name: str, asked: str, monkeypatch) -> None:
    if asked not in inspect.signature(MODELS[name]).parameters:
        return
    monkeypatch.setattr("attnlab.core.sizes.MOST_PARTS", 200)
    with pytest.raises(SpecError, match="more than 200 modules and parameters takes too long to build"):
        build_model_offered({"name": name, **SMALL[name], asked: 10**30}, OFFERED)


def test_every_model_has_a_small_one_here() -> None:
    others = {name for name, kind in MODELS.items() if isinstance(kind, type) and issubclass(kind, AbstractParser)}
    assert {*SMALL, "pretrained"} == set(MODELS) - others  # builds another one, with the weights of a checkpoint


def test_shapes_and_types(name: str) -> None:
    model = make(name)
    output = model(*example(name))
    assert output.shape == (BATCH, LENGTH, FEATURES_OUT.get(name, D_OUT))
    assert output.dtype == torch.float32
    inputs = (one.double() if one.is_floating_point() else one for one in example(name))
    assert model.double()(*inputs).dtype == torch.float64


def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = make(name)
    model(*example(name)).square().sum().backward()
    missing = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert missing == []


def test_one_seed_gives_the_same_numbers(name: str) -> None:
    first, second, other = make(name), make(name), make(name, seed=7)
    x = example(name)
    assert torch.equal(first(*x), second(*x))
    assert not torch.equal(first(*x), other(*x))


def test_samples_do_not_see_each_other(name: str) -> None:
    model, x = make(name).eval(), example(name)
    assert reach(model, x).mixes_batch == (name in MIXING)
    alone = torch.cat([model(*(one[i : i + 1] for one in x)) for i in range(BATCH)])
    assert torch.allclose(alone, model(*x), atol=1e-5) == (name not in MIXING)


def test_save_and_load(name: str, tmp_path: Path) -> None:
    model, other, x = make(name), make(name, seed=7), example(name)
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert torch.equal(model(*x), other(*x))


def test_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = make(name)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    assert count_parameters(model) == count_parameters(make(name))
    assert model(*(one.to("meta") for one in example(name))).shape == (BATCH, LENGTH, FEATURES_OUT.get(name, D_OUT))


def test_forward_leaves_nothing_behind(name: str) -> None:
    model = make(name)
    before = {key: set(vars(module)) for key, module in model.named_modules()}
    buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}
    model(*example(name))
    assert {key: set(vars(module)) for key, module in model.named_modules()} == before
    assert all(torch.equal(buffer, buffers[key]) for key, buffer in model.named_buffers())


def test_random_numbers_are_untouched_in_evaluation(name: str) -> None:
    model, x = make(name).eval(), example(name)
    state = torch.get_rng_state()
    model(*x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture(params=MIXERS)
def mixing_decoder(request: pytest.FixtureRequest) -> Decoder:
    torch.manual_seed(5)
    return Decoder(VOCAB, MAX_LENGTH, d_model=20, n_layers=2, mixer=request.param, init="xavier").double().eval()


def test_a_decoder_with_any_mixer_sees_no_future_by_perturbation(mixing_decoder: Decoder) -> None:
    seen = reach(mixing_decoder, example("decoder"))
    assert (seen.future, seen.mixes_batch) == (0, False)
    assert seen.past >= 1


def test_a_decoder_with_any_mixer_sees_no_future_by_gradient(mixing_decoder: Decoder) -> None:
    embedded = mixing_decoder.embedding(*example("decoder")).detach().requires_grad_()
    at = LENGTH // 2
    mixing_decoder.stack(embedded)[:, at].square().sum().backward()
    assert not embedded.grad[:, at + 1 :].any()
    assert embedded.grad[:, at].any()


def test_a_decoder_with_any_mixer_learns_all_its_parameters(mixing_decoder: Decoder) -> None:
    mixing_decoder(*example("decoder")).square().sum().backward()
    missing = [key for key, parameter in mixing_decoder.named_parameters() if parameter.grad is None]
    assert missing == []


@pytest.mark.parametrize("block", ["transformer", "literal"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_is_random_in_training_only(block: str, dropout: float) -> None:
    torch.manual_seed(5)
    model, x = Decoder(VOCAB, MAX_LENGTH, d_model=20, n_layers=1, block=block, dropout=dropout), example("decoder")[0]
    assert torch.equal(model(x), model(x)) == (dropout == 0)
    model.eval()
    assert torch.equal(model(x), model(x))
