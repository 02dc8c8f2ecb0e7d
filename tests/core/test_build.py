"""From a specification to an object."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from attnlab.core.build import Spec, build, is_path, load_object, parse, prepare
from attnlab.core.constructors import check_arguments, glossary_word
from attnlab.core.errors import AttnlabError, ModuleError, SpecError


class Wheel:
    def __init__(self, d_model: int, radius: float = 1.0, *, spokes: Literal["few", "many"] = "few") -> None:
        if radius <= 0:
            raise SpecError(f"radius must be positive; got {radius}")
        self.d_model, self.radius, self.spokes = d_model, radius, spokes


class Cart:
    def __init__(self, wheel: Spec = "wheel", sizes: list[int] | None = None) -> None:
        self.wheel = build(wheel, TABLE, axis="wheel", offered={"d_model": 3})
        self.sizes = sizes


class Broken:
    def __init__(self) -> None:
        raise ZeroDivisionError


TABLE = {"wheel": Wheel, "cart": Cart, "broken": Broken}


def make(spec: Any, **offered: Any) -> Any:
    return build(spec, TABLE, axis="part", offered=offered)


def user_file(folder: Path, text: str, name: str = "mine.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_name_is_built_with_what_is_offered_and_asked_for():
    wheel = make("wheel", d_model=5, n_heads=7)
    assert (wheel.d_model, wheel.radius) == (5, 1.0)


def test_explicit_arguments_win_over_offered_ones():
    assert make({"name": "wheel", "d_model": 11, "radius": 2}, d_model=5).d_model == 11


def test_a_ready_made_object_is_returned_as_it_is():
    wheel = Wheel(3)
    assert make(wheel) is wheel


def test_nested_specs_are_built_by_the_constructor():
    assert make({"name": "cart", "wheel": {"name": "wheel", "radius": 3.0}, "sizes": [2, 3]}).wheel.radius == 3.0


def test_prepare_checks_without_building_and_makes_any_number():
    order = prepare({"name": "wheel", "radius": 2.0}, TABLE, axis="part", offered={"d_model": 5})
    first, second = order.make(), order.make()
    assert first is not second
    assert order.arguments == {"d_model": 5, "radius": 2.0}
    assert prepare("broken", TABLE, axis="part").factory is Broken


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("weel", "unknown part 'weel'; did you mean 'wheel'?"),
        ("xyz", "unknown part 'xyz'; known: broken, cart, wheel"),
        ({"radius": 2.0}, "part needs a 'name' beside its arguments; got {'radius': 2.0}"),
        ({"name": 3}, "part needs a 'name'"),
        ({"name": "wheel", "raduis": 2.0}, "part 'wheel': unknown argument 'raduis'; did you mean 'radius'?"),
        ("wheel", "missing argument 'd_model'; give it as d_model: ..."),
        ({"name": "wheel", "d_model": "5"}, "'d_model' must be int; got '5'"),
        ({"name": "wheel", "d_model": True}, "'d_model' must be int; got True"),
        ({"name": "wheel", "d_model": 5, "spokes": "lots"}, "'spokes' must be 'few' or 'many'; got 'lots'"),
        ({"name": "wheel", "d_model": 5, "radius": -1.0}, "part 'wheel': radius must be positive; got -1.0"),
        ({"name": "cart", "wheel": "weel"}, "part 'cart': unknown wheel 'weel'; did you mean 'wheel'?"),
        ({"name": "cart", "sizes": [2, "3"]}, "'sizes' must be list[int] or null; got [2, '3']"),
    ],
)
def test_every_mistake_is_named(spec, text):
    with pytest.raises(SpecError) as caught:
        make(spec)
    assert text in str(caught.value)


def test_all_wrong_arguments_are_named_at_once():
    with pytest.raises(SpecError) as caught:
        make({"name": "wheel", "raduis": 1, "spokes": 3})
    assert all(word in str(caught.value) for word in ("raduis", "spokes", "d_model"))


def test_parse_refuses_what_is_neither_name_nor_mapping():
    with pytest.raises(SpecError, match="part must be a name or a mapping with 'name'; got 3"):
        parse(3, "part")  # type: ignore[arg-type]


def test_an_own_part_that_breaks_is_a_bug_and_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        make("broken")


def test_arguments_are_checked_without_conversion_except_int_to_float():
    assert check_arguments(Wheel, {"d_model": 5, "radius": 2}, "wheel")["radius"] == 2.0


# A person's own file


def test_paths_are_told_from_names():
    assert is_path("./mine.py:Mine")
    assert not is_path("attention")


def test_an_own_class_is_loaded_with_its_neighbors_and_is_left_off_the_path(tmp_path):
    user_file(tmp_path, "SIZE = 13\n", "my_neighbor_of_a_test.py")
    path = user_file(tmp_path, "from my_neighbor_of_a_test import SIZE\nclass Mine:\n    size = SIZE\n")
    assert make(f"{path}:Mine").size == 13
    assert str(tmp_path) not in sys.path


def package(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("faces", [True, False], ids=["with __init__.py", "without"])
def test_a_file_inside_a_package_imports_its_neighbors_relatively(tmp_path, faces):
    files = {
        "lab__layers__mine": "from . import width\nfrom ..sizes import S\nclass Mine:\n    size = S + width.W\n",
        "lab__layers__width": "W = 2\n",
        "lab__sizes": "S = 11\n",
    }
    package(tmp_path, **files)
    if faces:  # what the package itself imports may be missing here, and nobody asked for it
        (tmp_path / "lab/__init__.py").write_text("import no_such_thing_anywhere\n")
        (tmp_path / "lab/layers/__init__.py").write_text("WIDE = 5\n")
    assert make(f"{tmp_path}/lab/layers/mine.py:Mine").size == 13


def test_a_name_that_a_package_defines_itself_is_found(tmp_path):
    package(tmp_path, face__mine="from . import WIDE\nclass Mine:\n    size = WIDE\n")
    (tmp_path / "face/__init__.py").write_text("WIDE = 5\n")
    assert make(f"{tmp_path}/face/mine.py:Mine").size == 5


def test_a_file_imports_by_the_folders_above_it_and_leaves_the_path_as_it_was(tmp_path):
    text = "from parts_of_a_test.sizes import SIZE\nclass Mine:\n    size = SIZE\n"
    package(tmp_path, parts_of_a_test__blocks__mine=text, parts_of_a_test__sizes="SIZE = 17\n")
    before = list(sys.path)
    assert make(f"{tmp_path}/parts_of_a_test/blocks/mine.py:Mine").size == 17
    assert sys.path == before


def test_a_file_beside_it_hides_no_folder_of_that_name_above(tmp_path):
    for folder in ("layers", "utils_of_a_test"):
        (tmp_path / folder).mkdir()
    (tmp_path / "utils_of_a_test/sizes.py").write_text("SIZE = 19\n")
    (tmp_path / "layers/utils_of_a_test.py").write_text("")
    path = user_file(tmp_path / "layers", "from utils_of_a_test.sizes import SIZE\nclass Mine:\n    size = SIZE\n")
    before = list(sys.path)
    assert make(f"{path}:Mine").size == 19
    assert sys.path == before


def test_a_changed_file_is_loaded_anew(tmp_path):
    path = user_file(tmp_path, "class Mine:\n    size = 2\n")
    assert load_object(f"{path}:Mine") is load_object(f"{path}:Mine")
    user_file(tmp_path, "class Mine:\n    size = 3\n")
    os.utime(path, ns=(1, 1))
    assert load_object(f"{path}:Mine").size == 3


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, SpecError, "no file "),
        ("class Min:\n    pass\n", SpecError, "defines no 'Mine'; did you mean 'Min'?"),
        (
            "import math\nfrom pathlib import Path\nclass Other:\n    pass\nready = Other()\n",
            SpecError,
            "defines no 'Mine'; known: Other, ready",
        ),
        ("def broken(:\n", ModuleError, "raised while it was imported: SyntaxError"),
        ("\nimport no_such_thing_anywhere\n", ModuleError, "ModuleNotFoundError: No module named"),
        ("x = 1\ny = x / 0\n", ModuleError, "ZeroDivisionError: division by zero (mine.py, line 2)"),
        ("raise SystemExit(3)\n", ModuleError, "SystemExit: 3"),
        ("class Mine:\n    def __init__(self):\n        1 / 0\n", ModuleError, "division by zero (mine.py, line 3)"),
        ("class Mine:\n    def __init__(self, a):\n        pass\n", SpecError, "missing argument 'a'"),
    ],
)
def test_what_is_wrong_with_an_own_file_is_said(tmp_path, text, error, message):
    path = str(tmp_path / "mine.py") if text is None else user_file(tmp_path, text)
    with pytest.raises(error) as caught:
        make(f"{path}:Mine")
    assert message in str(caught.value)
    assert "mine.py" in str(caught.value)


OWN_CLASS = (
    "class Mine:\n    def __init__(self, {parameters}):\n        self.given = dict(locals()); del self.given['self']\n"
)
OFFERED = {"d_model": 12, "n_heads": 3, "dropout": 0.1, "max_length": 17, "causal": True}
MORE = {
    "d_head": 4,
    "d_v": 5,
    "n_kv_heads": 3,
    "d_ff": 7,
    "mlp_ratio": 2,
    "n_layers": 2,
    "vocab_size": 19,
    "n_classes": 5,
}


def given_to(tmp_path: Path, parameters: str, spec: Mapping[str, Any] | None = None, **offered: Any) -> dict[str, Any]:
    path = user_file(tmp_path, OWN_CLASS.format(parameters=parameters))
    return make({"name": f"{path}:Mine"} | dict(spec or {}), **OFFERED | offered).given


ALIASES = {
    "d_model": """
        dim embed_dim emb_size emb_dim embedding_dim n_embd embed_size hidden_size model_dim d_embed
        embedding_size model_size num_hiddens d_in in_dim dim_in input_dim input_size in_channels in_features d
        width channels features query_dim hidden_dim hidden d_out out_dim dim_out output_dim output_size
        out_channels out_features dim_model size k emb embed n_embed d_emb c n_channels num_channels n_units
        units ninp token_dim feature_dim feat_dim hid_dim d_hidden n_state n_dim ndim nhid inp_dim d_input
        d_output model_channels hidden_channels
        """,
    "n_heads": """
        heads num_heads n_head h nhead nheads num_attention_heads n_attention_heads num_head attention_heads
        nb_heads num_q_heads n_q_heads head_num head_count heads_num attn_heads decoder_attention_heads
        encoder_attention_heads
        """,
    "d_head": """
        head_dim dim_head d_k head_size key_channels dk d_key dim_k key_dim key_size dim_per_head d_qk qk_dim
        dim_key d_kv kq_dim d_heads head_width d_keys
        """,
    "d_v": "dv d_value dim_v v_dim value_dim value_size value_channels d_values dim_value",
    "n_kv_heads": """
        num_kv_heads kv_heads num_key_value_heads n_kv_head n_kv num_kv_groups n_kv_groups num_query_groups
        n_groups groups num_groups
        """,
    "d_ff": """
        dim_feedforward ffn_dim ff_dim dim_ff d_ffn d_inner mlp_dim intermediate_size d_hid feedforward_dim
        hidden_features ffn_hidden ff_hidden ffn_size ff_size inner_dim dff pf_dim d_mlp ff_hidden_dim
        ffn_hidden_dim ffn_hidden_size mlp_hidden mlp_hidden_dim filter_size forward_dim feed_forward_dim
        feed_forward_size feedforward_size n_inner ffn_inner_dim ffn_num_hiddens feedforward_channels hidden_ff
        n_hidden
        """,
    "mlp_ratio": """
        expansion expansion_factor ff_mult forward_expansion ffn_mult mult ff_expansion mlp_mult ff_ratio
        widening_factor expand expansion_ratio ffn_expansion ffn_ratio expand_factor
        """,
    "n_layers": """
        n_layer num_layers depth layers nlayers n_blocks num_blocks num_hidden_layers N num_layer nb_layers
        n_block blocks layer_num num_encoder_layers num_decoder_layers n_encoder_layers n_decoder_layers
        encoder_layers decoder_layers
        """,
    "vocab_size": """
        vocab n_vocab num_tokens ntoken ntokens vocabulary_size n_vocabulary num_embeddings src_vocab tgt_vocab
        src_vocab_size tgt_vocab_size trg_vocab_size input_vocab_size target_vocab_size vocab_len voc_size
        vocabulary dict_size vocabsize n_words num_words
        """,
    "dropout": """
        p drop dropout_p p_drop attn_dropout attn_pdrop resid_pdrop dropout_rate dropout_prob drop_prob
        attention_dropout resid_dropout attn_drop proj_drop drop_rate embd_pdrop pdrop dropout_probability
        dropout_ratio residual_dropout ff_dropout ffn_dropout hidden_dropout_prob attention_probs_dropout_prob
        emb_dropout embed_dropout res_dropout attn_p resid_p
        """,
    "max_length": """
        max_len block_size seq_len context context_length context_size ctx_len sequence_length max_seq_len
        max_seq_length seq_length length n_ctx n_positions max_position_embeddings max_sequence_length seqlen
        maxlen max_context max_positions num_positions ctx max_T n_patches num_patches n_tokens seq context_len
        max_context_length n_context max_ctx max_position max_n_tokens sentence_length max_sentence_length T L
        """,
    "n_classes": "num_classes n_class classes num_labels n_labels nclass nb_classes num_class output_classes",
    "causal": "is_causal",
}
"""What well-known code calls the sizes of the glossary."""


@pytest.mark.parametrize("word", ALIASES)
def test_what_people_call_a_size_is_understood(word):
    assert {name: glossary_word(name) for name in ALIASES[word].split()} == dict.fromkeys(ALIASES[word].split(), word)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("number_of_heads", "n_heads"),
        ("encVocSize", "vocab_size"),
        ("n_src_vocab", "vocab_size"),
        ("d_word_vec", "d_model"),
        ("max_src_seq_len", "max_length"),
        ("nlayers", "n_layers"),
        ("num_key_value_groups", "n_kv_heads"),
    ],
)
def test_names_nobody_listed_are_understood_by_their_pieces(name, word):
    assert glossary_word(name) == word


@pytest.mark.parametrize(
    "name", ["layer", "head", "block", "kernel_size", "q", "key", "model", "positions", "factor", "filter"]
)
def test_what_may_mean_something_else_is_no_size(name):
    assert glossary_word(name) == name


@pytest.mark.parametrize("alias", ["dim", "num_heads", "ffn_dim", "numberOfLayers", "n_src_vocab", "p"])
def test_a_size_is_given_under_the_name_it_is_asked_for(tmp_path, alias):
    assert given_to(tmp_path, alias, **MORE) == {alias: (OFFERED | MORE)[glossary_word(alias)]}


@pytest.mark.parametrize(
    ("parameters", "spec", "expected"),
    [
        ("in_channels, out_channels, key_channels", {}, {"in_channels": 12, "out_channels": 12, "key_channels": 12}),
        ("dim, hidden=64", {}, {"dim": 12, "hidden": 64}),
        ("dim, attn_pdrop=0.5, resid_pdrop=0.5", {}, {"dim": 12, "attn_pdrop": 0.1, "resid_pdrop": 0.1}),
        ("num_heads, head_size", {}, {"num_heads": 3, "head_size": 4}),
        ("num_heads, head_size", {"n_heads": 2}, {"num_heads": 2, "head_size": 6}),
        ("n_head, d_model, d_k, d_v", {}, {"n_head": 3, "d_model": 12, "d_k": 4, "d_v": 4}),
        ("dim, dim_head=64", {}, {"dim": 12, "dim_head": 64}),
        ("emb_size, head_size", {"d_head": 7}, {"emb_size": 12, "head_size": 7}),
        ("d_in, d_out, context_length, dropout, num_heads=1",
         {}, {"d_in": 12, "d_out": 12, "context_length": 17, "dropout": 0.1, "num_heads": 3}),
        ("dim, heads", {"heads": 1}, {"dim": 12, "heads": 1}),
        ("dim, heads", {"h": 1}, {"dim": 12, "heads": 1}),
    ],
)  # fmt: skip
def test_own_constructors_are_filled_in(tmp_path, parameters, spec, expected):
    assert given_to(tmp_path, parameters, spec) == expected


def test_head_sizes_that_do_not_divide_are_not_rounded(tmp_path):
    with pytest.raises(
        SpecError, match=r"Mine': d_model 12 must be a multiple of n_heads; got 5 heads; or give head_size"
    ):
        given_to(tmp_path, "num_heads, head_size", n_heads=5)


def test_the_lab_s_own_parts_use_the_words_of_the_glossary_alone():
    with pytest.raises(SpecError, match="unknown argument 'dim'"):
        make({"name": "wheel", "dim": 5}, d_model=5)


def test_a_ready_config_of_ones_own_class_that_refuses_is_told_so(tmp_path):
    text = (
        "class Config:\n    def __init__(self, n_embd):\n        raise ValueError('too wide')\n"
        "class Mine:\n    def __init__(self, config: Config):\n        self.config = config\n"
    )
    with pytest.raises(SpecError, match=r"Mine': Config refused its values: ValueError: too wide"):
        make(f"{user_file(tmp_path, text)}:Mine", **OFFERED)


def test_a_config_can_be_given_as_a_mapping(tmp_path):
    given = given_to(tmp_path, "config, layer=0", {"config": {"n_head": 2, "own": "word"}, "layer": 4})
    assert (given["config"].n_head, given["config"].num_heads, given["config"].own, given["layer"]) == (2, 2, "word", 4)
    assert given["config"].n_embd == 12


def test_every_error_is_the_lab_s_own():
    assert issubclass(SpecError, AttnlabError)
    assert issubclass(ModuleError, AttnlabError)
