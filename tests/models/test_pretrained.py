"""Checkpoints of transformers become the lab's own parts, with the same numbers, or are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.checkpoints import LENGTH, PAD, VOCAB, bert, gpt2, llama, marian, saved, t5
from torch import Tensor, nn

import attnlab
from attnlab.core.errors import DataError, SpecError
from attnlab.inspection import count_parameters
from attnlab.models.from_checkpoint import open_once, pretrained
from attnlab.models.pretrained.checkpoint import open_checkpoint
from attnlab.models.pretrained.families import FAMILIES
from attnlab.models.pretrained.tensors import HeadSizes, to_checkpoint

pytest.importorskip("transformers")

CLOSE = {"rtol": 0.0, "atol": 1e-5}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
OF_ONE_SEQUENCE = [
    gpt2(),
    gpt2(tie_word_embeddings=False, scale_attn_weights=False, activation_function="silu", n_inner=17),
    gpt2(activation_function="relu", layer_norm_epsilon=0.01),
    llama(),
    llama(tie_word_embeddings=True, num_key_value_heads=4),
    llama(rope_parameters=LLAMA_3, attention_bias=True, mlp_bias=True, head_dim=8, hidden_act="gelu_pytorch_tanh"),
    llama(rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}, num_key_value_heads=1),
    bert(),
    bert("BertForPreTraining", hidden_act="gelu_new", layer_norm_eps=0.1),
    bert("BertModel", type_vocab_size=1),
]
OF_TWO = [
    t5(),
    t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    t5(feed_forward_proj="gated-silu"),
    marian(),
    marian(activation_function="swish", scale_embedding=True),
    marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=VOCAB + 4, tie_word_embeddings=False),
]


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    open_once.cache_clear()


def tokens(*, pad: int | None = None) -> Tensor:
    read = torch.randint(1, PAD, (3, 13), generator=torch.Generator().manual_seed(1))
    if pad is not None:
        read[1, 9:] = read[2, 4:] = pad
    return read


def answers(model: nn.Module, *inputs: Tensor, **named: Tensor) -> Tensor:
    with torch.no_grad():
        found = model(*inputs, **named)
    if isinstance(found, Tensor):
        return found
    return next(found[name] for name in ("logits", "prediction_logits", "last_hidden_state") if name in found)


@pytest.mark.parametrize("made", OF_ONE_SEQUENCE, ids=str)
def test_answers_of_models_of_one_sequence_are_those_of_transformers(made, tmp_path):
    theirs = saved(tmp_path, made)
    own = pretrained(str(tmp_path)).eval()
    read = tokens(pad=0)
    real = read != 0
    wanted = answers(theirs, input_ids=read, attention_mask=real.long())
    assert torch.allclose(answers(own, read)[real], wanted[real], **CLOSE)
    assert wanted.abs().max() > 0.5


@pytest.mark.parametrize("made", OF_TWO, ids=str)
def test_answers_of_models_of_two_sequences_are_those_of_transformers(made, tmp_path):
    theirs = saved(tmp_path, made)
    own = pretrained(str(tmp_path)).eval()
    pad = theirs.config.pad_token_id
    read, written = tokens(pad=pad), tokens()[:, :7]
    wanted = answers(theirs, input_ids=read, attention_mask=(read != pad).long(), decoder_input_ids=written)
    assert torch.allclose(answers(own, read, written), wanted, **CLOSE)


def test_segments_of_bert(tmp_path):
    theirs, read = saved(tmp_path, bert(type_vocab_size=3)), tokens()
    kinds = torch.arange(read.numel()).view_as(read) % 3
    wanted = answers(theirs, input_ids=read, token_type_ids=kinds)
    assert torch.allclose(answers(pretrained(str(tmp_path)).eval(), read, kinds), wanted, **CLOSE)


@pytest.mark.parametrize("made", [gpt2(), llama(), bert(), t5(), marian()], ids=str)
def test_the_table_writes_what_it_reads(made, tmp_path):
    saved(tmp_path, made)
    checkpoint, own = open_checkpoint(tmp_path), pretrained(str(tmp_path)).state_dict()
    again = to_checkpoint(own, checkpoint.family.tensors, checkpoint.sizes)
    stored = {name: checkpoint.tensor(name) for name in checkpoint.files}
    assert stored.keys() <= again.keys()
    assert all(torch.equal(again[name], one) for name, one in stored.items())


def test_a_tensor_that_no_table_knows_is_not_written():
    with pytest.raises(KeyError, match=r"mixer\.lstm"):
        to_checkpoint({"mixer.lstm": torch.ones(1)}, FAMILIES["gpt2"].tensors, HeadSizes(1, 1, 1))


def test_layers_share_the_table_of_t5_as_in_the_checkpoint(tmp_path):
    theirs = saved(tmp_path, t5())
    model = pretrained(str(tmp_path))
    assert count_parameters(model) == sum(one.numel() for one in theirs.parameters())
    for side in (model.encoder, model.decoder):
        assert len({id(block.mixer.positions.table) for block in side.blocks}) == 1


def test_weights_in_several_files(tmp_path):
    theirs = saved(tmp_path, llama(), parts="8KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert torch.allclose(answers(pretrained(str(tmp_path)).eval(), tokens()), answers(theirs, tokens()), **CLOSE)


def test_names_of_2018(tmp_path):
    theirs = saved(tmp_path, bert())
    stored = load_file(tmp_path / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): one for name, one in stored.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): one for name, one in old.items()}
    save_file(old, tmp_path / "model.safetensors")
    assert torch.allclose(answers(pretrained(str(tmp_path)).eval(), tokens()), answers(theirs, tokens()), **CLOSE)


def test_gpt2_as_it_is_published_without_the_name_of_the_model_before_each_tensor(tmp_path):
    theirs = saved(tmp_path, gpt2())
    stored = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): one for name, one in stored.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 5, 5)
    save_file(bare, tmp_path / "model.safetensors")
    assert torch.allclose(answers(pretrained(str(tmp_path)).eval(), tokens()), answers(theirs, tokens()), **CLOSE)


def test_a_config_of_older_versions_says_rotary_positions_in_two_fields(tmp_path):
    saved(tmp_path, llama(rope_parameters=LLAMA_3))
    new = answers(pretrained(str(tmp_path)).eval(), tokens())
    rest = {name: value for name, value in LLAMA_3.items() if name != "rope_theta"}
    change(tmp_path, rope_parameters=None, rope_theta=LLAMA_3["rope_theta"], rope_scaling=rest)
    assert torch.equal(answers(pretrained(str(tmp_path)).eval(), tokens()), new)


def test_a_name_is_looked_up_in_the_cache_of_hugging_face(tmp_path, monkeypatch):
    kept = tmp_path / "models--someone--tiny"
    saved(kept / "snapshots" / "abc", gpt2())
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert answers(pretrained("someone/tiny"), tokens()).shape == (3, 13, VOCAB)
    with pytest.raises(
        DataError, match=r"no folder someone/other, and no model of that name.*hf download someone/other"
    ):
        pretrained("someone/other")
    with pytest.raises(DataError, match="there is no folder x"):
        pretrained("x" * 5000)


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    open_once.cache_clear()


@pytest.mark.parametrize(
    ("made", "fields", "text"),
    [
        (gpt2(), {"model_type": "mamba"}, "model_type='mamba', which has no parts here; known: bert, gpt2, llama"),
        (gpt2(), {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True.*known is False"),
        (gpt2(), {"activation_function": "mish"}, "activation_function='mish', which has no part here.*gelu_new"),
        (gpt2(), {"hyper_scale": 3}, "not known here and may change the numbers: hyper_scale=3"),
        (gpt2(), {"vocab_size": None}, "has no 'vocab_size'"),
        (gpt2(), {"quantization_config": {"bits": 4}}, "quantization_config"),
        (llama(), {"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn', which has no part here"),
        (llama(), {"rope_parameters": {"rope_type": "linear"}}, "rope of type linear.*with factor"),
        (
            bert(),
            {"architectures": ["BertForSequenceClassification"]},
            "BertForSequenceClassification.*BertForMaskedLM",
        ),
        (bert(), {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        (llama(), {"rope_interleaved": True}, "rope_interleaved=True.*known is False"),
        (t5(), {"num_decoder_layers": 5}, "num_decoder_layers=5.*as on the encoder's side, 2|as many"),
        (marian(), {"decoder_layers": 1}, "decoder_layers=1.*encoder's side, 2"),
        (marian(), {"normalize_before": True}, "normalize_before=True"),
    ],
)
def test_what_has_no_part_here_is_said_by_name(made, fields, text, tmp_path):
    saved(tmp_path, made)
    change(tmp_path, **fields)
    with pytest.raises(SpecError, match=text):
        pretrained(str(tmp_path))


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (marian(), {"extra_pos_embeddings": VOCAB + 1, "force_bos_token_to_be_generated": False}),
        (llama(), {"_attn_implementation_autoset": True, "is_llama_config": True, "rope_interleaved": False}),
        (llama(), {"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}, "unsloth_fixed": True}),
        (gpt2(), {"output_past": True, "predict_special_tokens": True}),
    ],
)
def test_fields_of_published_checkpoints_that_change_no_number(made, fields, tmp_path):
    saved(tmp_path, made)
    plain = pretrained(str(tmp_path)).state_dict()
    change(tmp_path, **fields)
    assert all(torch.equal(one, plain[name]) for name, one in pretrained(str(tmp_path)).state_dict().items())


def test_a_checkpoint_with_other_tensors_than_its_config_asks_for(tmp_path):
    saved(tmp_path, gpt2())
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    save_file({**stored, "transformer.h.0.attn.q_norm.weight": torch.ones(4)}, path)
    with pytest.raises(DataError, match=r"tensors that no part here takes: transformer\.h\.0\.attn\.q_norm\.weight"):
        pretrained(str(tmp_path))
    open_once.cache_clear()
    save_file({name: one for name, one in stored.items() if "h.1.ln_2" not in name}, path)
    with pytest.raises(
        DataError, match=r"has no tensor transformer\.h\.1\.ln_2\.weight, transformer\.h\.1\.ln_2\.bias"
    ):
        pretrained(str(tmp_path))
    open_once.cache_clear()
    save_file({**stored, "lm_head.weight": stored["transformer.wte.weight"] + 1}, path)
    with pytest.raises(DataError, match=r"stores 'logits\.weight' twice, and differently, though it is tied"):
        pretrained(str(tmp_path))


SQUARE = r"'transformer\.h\.1\.attn\.c_attn\.weight'"
OTHERS = r"model\.safetensors has {} {}.*config\.json asks for {}"


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        (lambda one: one.T, OTHERS.format(SQUARE, r"of shape \(36, 12\)", r"\(12, 36\)")),
        (lambda one: one[:-1], OTHERS.format(SQUARE, r"of shape \(11, 36\)", r"\(12, 36\)")),
        (lambda one: one.flatten(), OTHERS.format(SQUARE, r"of shape \(432,\)", r"\(12, 36\)")),
        (lambda one: one[0, 0], OTHERS.format(SQUARE, r"of shape \(\)", r"\(12, 36\)")),
        (lambda one: one.to(torch.int8), f"{SQUARE} as I8, whose numbers are no weights"),
        (lambda one: one.to(torch.float8_e4m3fn), f"{SQUARE} as F8_E4M3, whose numbers are no weights"),
    ],
    ids=["transposed", "cut", "flat", "one number", "integers", "float8"],
)
def test_a_tensor_in_another_form(stored, text, tmp_path):
    saved(tmp_path, gpt2())
    path, name = tmp_path / "model.safetensors", "transformer.h.1.attn.c_attn.weight"
    weights = load_file(path)
    save_file({**weights, name: stored(weights[name]).contiguous()}, path)
    for more in ({}, {"mixer": {"normalizers": "sigmoid"}}, {"weights": "fresh"}):
        with pytest.raises(DataError, match=text):
            pretrained(str(tmp_path), **more)


@pytest.mark.parametrize(
    ("made", "fields", "tensor"),
    [
        (gpt2(), {"n_inner": 21}, r"transformer\.h\.0\.mlp\.c_fc\.weight"),
        (gpt2(), {"n_positions": LENGTH - 1}, r"transformer\.wpe\.weight"),
        (gpt2(), {"vocab_size": VOCAB + 1}, r"transformer\.wte\.weight"),
        (llama(), {"num_key_value_heads": 4}, r"k_proj\.weight"),
        (llama(), {"head_dim": 4}, r"q_proj\.weight"),
        (t5(), {"relative_attention_num_buckets": 10}, r"relative_attention_bias\.weight"),
        (marian(), {"d_model": 9}, r"self_attn\.q_proj\.weight"),
    ],
)
def test_a_config_of_another_size_than_its_tensors(made, fields, tensor, tmp_path):
    saved(tmp_path, made)
    change(tmp_path, **fields)
    with pytest.raises(DataError, match=rf"model\.safetensors has '[\w.]*{tensor}' of shape .*config\.json asks for"):
        pretrained(str(tmp_path))


def test_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(DataError, match=r"is no checkpoint of transformers: it has no config\.json"):
        pretrained(str(tmp_path))
    saved(tmp_path, gpt2())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"is damaged.*fetch it again"):
        pretrained(str(tmp_path))
    path.unlink()
    with pytest.raises(DataError, match=r"neither model\.safetensors nor .*save_pretrained"):
        pretrained(str(tmp_path))


HUGE = 10**12
NAMES = ["transformer.wte.weight", "transformer.wpe.weight"]


@pytest.mark.parametrize(
    ("made", "file", "content"),
    [
        *[(gpt2(), "config.json", content) for content in (b"", b"[]", b'{"model_type": "gp', b"\xff\xfe", b"NaN")],
        *[(gpt2(), "config.json", {"model_type": ["gpt2"]}), (gpt2(), "config.json", {"model_type": {}})],
        *[(gpt2(), "config.json", {"architectures": value}) for value in (5, [["x"]], {"a": 1}, [{}])],
        *[(gpt2(), "config.json", {"activation_function": value}) for value in (["x"], {}, 3)],
        *[(gpt2(), "config.json", {"n_embd": value}) for value in ({}, "x", [1], True, 1e30, -1, 0, 7, HUGE)],
        *[(gpt2(), "config.json", {"n_layer": value}) for value in ("x", -1, 0, HUGE, 1.5)],
        *[(gpt2(), "config.json", {"n_head": value}) for value in ("x", 0, 5, HUGE)],
        *[(gpt2(), "config.json", {name: HUGE}) for name in ("vocab_size", "n_positions", "n_inner")],
        *[(gpt2(), "config.json", {"vocab_size": value}) for value in ("x", [], 0, -1)],
        *[(gpt2(), "config.json", {"layer_norm_epsilon": value}) for value in ("x", [], True, -1)],
        (gpt2(), "config.json", {"tie_word_embeddings": "no"}),
        *[(llama(), "config.json", {"rope_parameters": value}) for value in ("x", [1], {"rope_type": ["x"]})],
        (llama(), "config.json", {"rope_parameters": {"rope_type": "linear", "factor": "x"}}),
        *[(llama(), "config.json", {"rope_scaling": [1]}), (llama(), "config.json", {"rms_norm_eps": -1e-6})],
        *[(t5(), "config.json", {"feed_forward_proj": value}) for value in (3, ["relu"])],
        *[(marian(), "config.json", {"encoder_layers": "x", "decoder_layers": "x"})],
        *[(marian(), "config.json", {"d_model": "x"}), (marian(), "config.json", {"scale_embedding": "x"})],
        *[(gpt2(), "tokenizer.json", content) for content in (b"", b"[]", b"{}", b'{"version": "1.0", ')],
        *[(gpt2(), "model.safetensors.index.json", content) for content in (b"[]", b"{}", b'{"weight_map": []}')],
        *[
            (gpt2(), "model.safetensors.index.json", {"weight_map": dict.fromkeys(NAMES, file)})
            for file in (5, None, [], "", "..", "../other/model.safetensors", "/model.safetensors")
        ],
        (gpt2(), "generation_config.json", {"eos_token_id": "x"}),
        (marian(), "generation_config.json", {"bad_words_ids": 3}),
    ],
)
def test_a_damaged_file_is_named(made, file, content, tmp_path):
    saved(tmp_path, made)
    path = tmp_path / file
    if isinstance(content, dict):
        known = json.loads(path.read_text()) if path.is_file() else {}
        content = json.dumps({**known, **content}).encode()
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(tmp_path))) as error:
        attnlab.load_pretrained(tmp_path).task.codec.tokenizer.encode(["a man"])
    assert file.removesuffix(".index.json") in str(error.value)


def test_an_index_names_a_file_that_is_not_there(tmp_path):
    saved(tmp_path, llama(), parts="8KB")
    next(tmp_path.glob("model-00002*")).unlink()
    with pytest.raises(DataError, match=r"model-00002-of-0\d+\.safetensors is damaged.*fetch it again"):
        pretrained(str(tmp_path))


def test_weights_that_are_no_numbers(tmp_path):
    saved(tmp_path, gpt2())
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "transformer.ln_f.bias": torch.full((12,), torch.nan)}, path)
    with pytest.raises(DataError, match=r"model\.safetensors has .*'transformer\.ln_f\.bias' that are none \(NaN\)"):
        pretrained(str(tmp_path))


def test_a_mixer_changed_in_one_argument_keeps_its_projections(tmp_path):
    saved(tmp_path, llama())
    kept, changed = (pretrained(str(tmp_path), mixer=mixer).eval() for mixer in (None, {"normalizers": "sparsemax"}))
    assert kept.state_dict().keys() == changed.state_dict().keys()
    assert all(torch.equal(one, changed.state_dict()[name]) for name, one in kept.state_dict().items())
    assert not torch.allclose(answers(kept, tokens()), answers(changed, tokens()))


def test_fresh_mixers_leave_all_else(tmp_path):
    saved(tmp_path, t5())
    kept, fresh = (pretrained(str(tmp_path), mixers=start).state_dict() for start in ("kept", "fresh"))
    for name, one in kept.items():
        mixes = {"mixer", "cross"} & set(name.split("."))
        assert torch.equal(one, fresh[name]) == (not mixes), name


def test_another_mixer_in_its_place(tmp_path):
    saved(tmp_path, gpt2())
    kept, other = pretrained(str(tmp_path)), pretrained(str(tmp_path), mixer="lstm")
    assert torch.equal(kept.stack.blocks[1].feedforward.widen.weight, other.stack.blocks[1].feedforward.widen.weight)
    assert answers(other, tokens()).shape == (3, 13, VOCAB)
    layers = pretrained(str(tmp_path), mixer=["none", {"scores": "cosine"}])
    assert layers.stack.blocks[0].mixer is None
    assert type(layers.stack.blocks[1].mixer.scores).__name__ == "CosineScore"


def test_tokens_of_a_task_are_the_checkpoints_or_learned_anew(tmp_path):
    saved(tmp_path, gpt2())
    with pytest.raises(SpecError, match=r"has 15 or 37 tokens and the task 50; .*'embeddings: fresh'"):
        pretrained(str(tmp_path), vocab_size=50)
    with pytest.raises(SpecError, match="has positions for 19 tokens; the task has up to 20"):
        pretrained(str(tmp_path), max_length=20)
    kept, grown, cut = (pretrained(str(tmp_path), vocab_size=size).eval() for size in (VOCAB, VOCAB + 1, 15))
    assert torch.equal(grown.embedding.weight[:VOCAB], kept.embedding.weight)
    assert answers(grown, tokens()).shape[-1] == VOCAB + 1
    assert torch.allclose(answers(cut, tokens() % 15), answers(kept, tokens() % 15)[..., :15])
    fresh = pretrained(str(tmp_path), vocab_size=50, embeddings="fresh")
    assert fresh.embedding.weight is fresh.logits.weight
    assert fresh.embedding.weight.std() < 0.1 < kept.embedding.weight.std()
    assert torch.equal(fresh.stack.norm.weight, kept.stack.norm.weight)
