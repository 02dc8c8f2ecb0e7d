"""A model as a checkpoint of transformers, where its architecture has a home there.

A config is read off the model. What `attnlab.models.pretrained` makes of that config must be the same model, part by
part: what differs has no home, and is said by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from attnlab.core.build import build, name_of
from attnlab.core.errors import SpecError
from attnlab.core.files import write_json
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.from_checkpoint import pretrained
from attnlab.models.pretrained.checkpoint import CONFIG, WEIGHTS, open_checkpoint
from attnlab.models.pretrained.config import ACTIVATIONS
from attnlab.models.pretrained.tensors import Table, to_checkpoint
from attnlab.models.stacks import Decoder, Stack
from attnlab.models.table import MODELS
from attnlab.nn.attention import Attention
from attnlab.nn.axes.heads import AbstractPackedHeads
from attnlab.nn.axes.masks import AbstractMask
from attnlab.nn.axes.positions import SinusoidalPositions
from attnlab.nn.axes.relative_positions import RotaryPositions
from attnlab.nn.block import Block
from attnlab.nn.feedforward import FEEDFORWARDS, GatedFeedForward
from attnlab.nn.norms import EPSILON, RmsNorm
from attnlab.studies.exporting.inputs import difference_of, example_inputs, longest_of, size_of
from attnlab.studies.using.trained import Trained

GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
TRIED = (3, (7, 5))
IRRELEVANT = frozenset({"training", "dropout", "p", "inplace", "order", "max_length"})
"""Attributes of modules that change no answer of a trained model, or are compared otherwise."""
TABLES: Mapping[str, str] = {"gpt2": "embedding", "llama": "embedding", "marian": "target_embedding"}
"""The embedding whose weights the logits may use."""
MOST_NAMED = 5
HOMES = "a decoder may be GPT-2 or Llama there, an encoder-decoder Marian"


def write_huggingface(trained: Trained, folder: Path) -> dict[str, float]:
    """Write a checkpoint, and say how far the model that is read from it is from this one."""
    codec = trained.task.kept
    if codec is None or codec.kind in ("trees", "classes", "numbers"):
        raise SpecError(
            f"{trained.folder} is a run of the task '{trained.task.name}', whose models transformers has no class for; "
            "export to torch-export or onnx, or a run that translates or continues texts"
        )
    config = _config_of(trained)
    write_json(folder / CONFIG, config)
    write_json(folder / TOKENIZER_CONFIG, _tokenizer_config(trained))
    write_json(folder / GENERATION, _generation(trained))
    safetensors.torch.save_file({}, folder / WEIGHTS)  # so that there is a checkpoint to open
    checkpoint = open_checkpoint(folder)
    state = _state_of(trained, checkpoint.spec, config["model_type"])
    table = _apart(checkpoint.family.tensors, trained.model)
    metadata = {"format": "pt"}
    safetensors.torch.save_file(to_checkpoint(state, table, checkpoint.sizes), folder / WEIGHTS, metadata=metadata)
    inputs = example_inputs(trained, *TRIED)
    with torch.no_grad():
        got, expected = pretrained(str(folder)).eval()(*inputs), trained.model(*inputs)
    return {size_of(inputs): difference_of(trained, inputs, got, expected)}


def _config_of(trained: Trained) -> dict[str, Any]:
    """The config of the home that is nearest to a model."""
    model = trained.model
    if isinstance(model, EncoderDecoder):
        return _marian(model, trained)
    if not isinstance(model, Decoder):
        raise SpecError(f"{type(model).__name__} has no home in transformers; {HOMES}")
    turned = [one for one in model.modules() if isinstance(one, RmsNorm | RotaryPositions | GatedFeedForward)]
    return _llama(model, trained) if turned else _gpt2(model, trained)


def _gpt2(model: Decoder, trained: Trained) -> dict[str, Any]:
    attention, feedforward = _parts_of(model.stack)
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": model.embedding.num_embeddings,
        "n_positions": longest_of(trained),
        "n_embd": model.embedding.embedding_dim,
        "n_layer": len(model.stack.blocks),
        "n_head": attention.heads.n_heads,
        "n_inner": feedforward.to_residual.in_features,
        "activation_function": _activation(name_of(feedforward, FEEDFORWARDS, "feed-forward")),
        "layer_norm_epsilon": getattr(model.stack.norm, "eps", EPSILON),
        "tie_word_embeddings": model.logits.weight is model.embedding.weight,
        **_ends(trained),
    }


def _llama(model: Decoder, trained: Trained) -> dict[str, Any]:
    attention, feedforward = _parts_of(model.stack)
    biased = [attention.heads.packed.linear, attention.combiner.to_residual]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": model.embedding.num_embeddings,
        "max_position_embeddings": longest_of(trained),
        "hidden_size": model.embedding.embedding_dim,
        "num_hidden_layers": len(model.stack.blocks),
        "num_attention_heads": attention.heads.n_heads,
        "num_key_value_heads": attention.heads.n_kv_heads,
        "head_dim": attention.heads.d_head,
        "intermediate_size": feedforward.to_residual.in_features,
        "hidden_act": _activation(getattr(feedforward, "gate", "silu")),
        "attention_bias": any(one.bias is not None for one in biased),
        "mlp_bias": feedforward.to_residual.bias is not None,
        "rms_norm_eps": getattr(model.stack.norm, "eps", EPSILON),
        "rope_parameters": {"rope_type": "default", "rope_theta": getattr(attention.positions, "base", 10000.0)},
        "tie_word_embeddings": model.logits.weight is model.embedding.weight,
        **_ends(trained),
    }


def _marian(model: EncoderDecoder, trained: Trained) -> dict[str, Any]:
    attention, feedforward = _parts_of(model.encoder)
    codec: Any = trained.task.codec
    d_model, marks = model.target_embedding.embedding_dim, codec.marks
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "layers": len(model.encoder.blocks),
            "attention_heads": attention.heads.n_heads,
            "ffn_dim": feedforward.to_residual.in_features,
        }.items()
    }
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": model.source_embedding.num_embeddings,
        "decoder_vocab_size": model.target_embedding.num_embeddings,
        "share_encoder_decoder_embeddings": model.source_embedding is model.target_embedding,
        "max_position_embeddings": longest_of(trained),
        "d_model": d_model,
        **sides,
        "activation_function": _activation(name_of(feedforward, FEEDFORWARDS, "feed-forward")),
        "scale_embedding": model.scale != 1,
        "tie_word_embeddings": model.logits.weight is model.target_embedding.weight,
        "pad_token_id": model.pad,
        "bos_token_id": marks.begin,
        "eos_token_id": marks.end,
        "decoder_start_token_id": marks.begin,
        "forced_eos_token_id": None,
    }


def _parts_of(stack: Stack) -> tuple[Any, Any]:
    """The attention and the feed-forward of the first block."""
    first: Any = stack.blocks[0]
    mixer, feedforward = (getattr(first, name, None) for name in ("mixer", "feedforward"))
    heads, combiner = (getattr(mixer, name, None) for name in ("heads", "combiner"))
    fitting = (
        (first, isinstance(first, Block)),
        (mixer, isinstance(mixer, Attention)),
        (combiner, isinstance(heads, AbstractPackedHeads) and hasattr(combiner, "to_residual")),
        (feedforward, hasattr(feedforward, "to_residual")),
    )
    for part, fits in fitting:
        if not fits:
            raise SpecError(f"{type(part).__name__} in the first block has no home in transformers; {HOMES}")
    return mixer, feedforward


def _activation(name: str) -> str:
    """Transformers' name of an activation; where it has none, one whose part differs, which is then said."""
    return next((theirs for theirs, own in ACTIVATIONS.items() if own == name), "relu")


def _ends(trained: Trained) -> dict[str, Any]:
    """The token that ends a text; None where there is none."""
    end = trained.task.codec.end  # pyrefly: ignore
    return {"bos_token_id": end, "eos_token_id": end}


def _state_of(trained: Trained, spec: Mapping[str, Any], family: str) -> dict[str, Tensor]:
    """The weights of a model in the form of its home, or an error that names what has none there."""
    model = trained.model
    with torch.device("meta"):
        home = build(spec, MODELS, axis="model")
    state, wanted = dict(model.state_dict()), home.state_dict()
    if isinstance(model, EncoderDecoder):
        state = _halved(model, state)
    differing = _differences(model, home)
    differing += [f"{name} is learned" for name in state if name not in wanted and not _is_within(name, differing)]
    if differing:
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        raise SpecError(
            f"{trained.folder} has no home in transformers as {family}: {'; '.join(differing[:MOST_NAMED])}{more}; "
            "export to torch-export or onnx, which take any part"
        )
    neutral = {name: torch.zeros if name.endswith(".bias") else torch.ones for name in wanted.keys() - state.keys()}
    state |= {name: make(wanted[name].shape) for name, make in neutral.items()}
    tied = home.logits.weight is home.get_submodule(TABLES[family]).weight
    return {name: tensor for name, tensor in state.items() if not (tied and name == "logits.weight")}


def _is_within(name: str, differing: list[str]) -> bool:
    return any(name.startswith(f"{one.split(' ')[0]}.") for one in differing)


def _differences(model: nn.Module, home: nn.Module) -> list[str]:
    own, theirs = dict(model.named_modules()), dict(home.named_modules())
    found: list[str] = []
    for name in dict.fromkeys([*own, *theirs]):
        if _is_within(name, found):
            continue
        one, other = own.get(name), theirs.get(name)
        if name and _kind(one) != _kind(other):
            found.append(f"{name} is {_kind(one)}, there {_kind(other)}")
            continue
        mine, its = _settings(one), _settings(other)
        found += [
            f"{name or type(model).__name__} has {key} {mine.get(key)!r}, there {its.get(key)!r}"
            for key in dict.fromkeys([*mine, *its])
            if mine.get(key) != its.get(key)
        ]
    return found


def _kind(part: nn.Module | None) -> str:
    """What a part is; all that project with one matrix are alike, and differ by their sizes."""
    return (
        "packed heads" if isinstance(part, AbstractPackedHeads) else "nothing" if part is None else type(part).__name__
    )


def _settings(part: nn.Module | None) -> dict[str, Any]:
    """What makes a part compute something else than another of its class."""
    plain = (int, float, str, tuple, AbstractMask)
    return {
        name: repr(value) if isinstance(value, AbstractMask) else value
        for name, value in vars(part).items()
        if isinstance(value, plain) and not name.startswith("_") and name not in IRRELEVANT
    }


def _halved(model: EncoderDecoder, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with the features of the residual stream in the order that Marian's sines and cosines have.

    It has all sines before all cosines. What reads the stream and what writes to it is reordered alike, so that
    nothing else changes.
    """
    positions = model.encoder.positions
    if not isinstance(positions, SinusoidalPositions) or positions.order == "halves":
        return dict(state)
    d_model = model.target_embedding.embedding_dim
    order = torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))
    found = {}
    for name, tensor in state.items():
        module = model.get_submodule(name.rpartition(".")[0])
        writes = name.split(".")[-2] == "to_residual"
        if writes or isinstance(module, nn.LayerNorm):
            found[name] = tensor[order]
        else:
            found[name] = tensor[:, order] if tensor.dim() > 1 else tensor
    return found


def _apart(table: Table, model: nn.Module) -> Table:
    """The table, where two embeddings are to be stored under names of their own."""
    names = ("source_embedding", "target_embedding")
    if not all(hasattr(model, name) for name in names) or model.source_embedding is model.target_embedding:
        return table
    return {**table, **{f"{name}.weight": table[f"{name}.weight"][1:] for name in names}}


def _tokenizer_config(trained: Trained) -> dict[str, Any]:
    """How ``AutoTokenizer`` reads ``tokenizer.json``."""
    codec: Any = trained.task.codec
    known: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest_of(trained)}
    known |= {"clean_up_tokenization_spaces": False}
    if codec.kind == "sentences":
        pad, begin, end = codec.tokenizer.pieces(list(codec.marks))
        return known | {"pad_token": pad, "bos_token": begin, "eos_token": end}
    return known if codec.end is None else known | {"eos_token": codec.tokenizer.wrapped.id_to_token(codec.end)}


def _generation(trained: Trained) -> dict[str, Any]:
    """How ``generate`` writes unless told otherwise: as the run's task does, as far as it can."""
    codec: Any = trained.task.codec
    if codec.kind != "sentences":
        return {"do_sample": False, **_ends(trained)}
    marks = codec.marks
    return {
        "do_sample": False,
        "num_beams": codec.beam,
        "length_penalty": codec.alpha,
        "max_length": codec.max_length,
        "pad_token_id": marks.pad,
        "bos_token_id": marks.begin,
        "eos_token_id": marks.end,
        "decoder_start_token_id": marks.begin,
    }
