"""From what a person names to a patient: files, constructors, configs, and every mistake in one sentence."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from attnlab.core.errors import AttnlabError, ModuleError, SpecError
from attnlab.strangers.anatomy import is_block
from attnlab.strangers.loading.loading import load, twin_of, ways_to_load
from attnlab.strangers.loading.mentions import use_of
from attnlab.strangers.said.source import source_of_forward
from attnlab.strangers.trying.interview import interview

HEADER = "import torch\nfrom dataclasses import dataclass\nfrom torch import nn\n\n"


def file(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEADER + text)
    return str(path)


CLASS = """class Mine(nn.Module):
    def __init__(self, {parameters}):
        given = dict(locals())
        super().__init__()
        self.given = {{name: value for name, value in given.items() if name not in ("self", "__class__")}}
        self.map = nn.Linear({width}, {width})

    def forward(self, x):
        return self.map(x)
"""


def taking(folder: Path, parameters: str, *, width: str = "8") -> str:
    return f"{file(folder, CLASS.format(parameters=parameters, width=width))}:Mine"


@pytest.mark.parametrize(
    ("parameters", "given", "expected"),
    [
        ("d_model, n_heads", {}, {"d_model": 64, "n_heads": 4}),
        ("dim, heads=8, dropout=0.0", {}, {"dim": 64, "heads": 8, "dropout": 0.0}),
        ("dim, heads=12", {}, {"dim": 192, "heads": 12}),
        ("dim, heads", {"heads": 6}, {"dim": 96, "heads": 6}),
        ("dim, heads", {"n_heads": 8}, {"dim": 64, "heads": 8}),
        ("dim, heads", {"d_model": 30}, {"dim": 30, "heads": 2}),
        ("emb_size, head_size", {}, {"emb_size": 64, "head_size": 64}),
        ("num_heads, head_size", {}, {"num_heads": 4, "head_size": 16}),
        ("in_dim, out_dim", {"d_model": 32}, {"in_dim": 32, "out_dim": 32}),
        ("vocab_size, block_size, n_layer", {}, {"vocab_size": 53, "block_size": 48, "n_layer": 2}),
        ("d_model, d_ff, n_kv_heads, p", {}, {"d_model": 64, "d_ff": 128, "n_kv_heads": 2, "p": 0.1}),
        ("dim, bias, activation, layer_idx", {}, {"dim": 64, "bias": True, "activation": "gelu", "layer_idx": 0}),
        ("dim, dropout: float", {"dropout": 0}, {"dim": 64, "dropout": 0.0}),
        ("dim=16", {}, {"dim": 16}),
        ("n_embeddings, width", {}, {"n_embeddings": 53, "width": 64}),
        ("vocab_size, n_embeddings, heads", {}, {"vocab_size": 53, "n_embeddings": 64, "heads": 4}),
        ("num_features, d_token", {}, {"num_features": 24, "d_token": 64}),
        ("N, layers, dim", {}, {"N": 48, "layers": 2, "dim": 64}),
    ],
)
def test_arguments_nobody_gave_are_guessed_by_name_and_defaults_stay(tmp_path, parameters, given, expected):
    patient = load(taking(tmp_path, parameters), given)
    assert patient.module.given == expected
    assert {name: patient.module.given[name] for name in patient.arguments} == dict(patient.arguments)


def test_a_size_of_heads_that_divides_the_width_makes_several(tmp_path):
    text = CLASS.format(parameters="n_embd, h_size", width="8").replace(
        "self.map", "self.n = n_embd // h_size; self.map", 1
    )
    assert load(f"{file(tmp_path, text)}:Mine").module.given == {"n_embd": 64, "h_size": 16}


def test_a_constructor_that_asks_whether_to_be_causal_is_told(tmp_path):
    target = taking(tmp_path, "dim, causal=False")
    assert load(target).module.given["causal"] is False
    assert load(target, causal=True).module.given["causal"] is True
    assert load(target, {"causal": False}, causal=True).module.given["causal"] is False


def test_other_instances_are_built_with_changes_by_glossary_words(tmp_path):
    patient = load(taking(tmp_path, "emb_size, num_heads=2", width="emb_size"))
    assert patient.build is not None
    other = patient.build({"d_model": 32, "n_heads": 8})
    assert (other.given, other.map.in_features) == ({"emb_size": 32, "num_heads": 8}, 32)
    assert not torch.equal(patient.build({}).map.weight, patient.build({}).map.weight)
    with pytest.raises(AttnlabError, match="unknown argument 'd_head'"):
        patient.build({"d_head": 4})


def test_sizes_that_stand_in_the_file_are_taken_where_an_argument_has_their_name(tmp_path):
    text = "n_embd = 48\nn_head = 'four'\n\n" + CLASS.format(
        parameters="n_embd, n_head, block_size=n_embd", width="n_embd"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert patient.module.given == {"n_embd": 48, "n_head": 4, "block_size": 48}
    assert load(f"{tmp_path}/mine.py:Mine", {"d_model": 32}).module.given["n_embd"] == 32


CONFIGURED = """
{config}
class MineBlock(nn.Module):
    def __init__(self, {parameter}):
        super().__init__()
        self.map = nn.Linear({width}, {width})
        self.heads = {heads}
    def forward(self, x):
        return self.map(x)
"""
DATACLASS = "@dataclass\nclass {name}:\n    n_embd: int = {width}\n    n_head: int = 2\n"


@pytest.mark.parametrize(
    ("config", "parameter", "width", "heads", "expected"),
    [
        ("", "config", "config.n_embd", "config.n_head", (64, 4)),
        ("", "cfg", "cfg['emb_dim']", "cfg['n_heads']", (64, 4)),
        ("", "cfg: dict", "cfg['emb_dim']", "cfg.get('n_heads', 3)", (64, 4)),
        (DATACLASS.format(name="Config", width=16), "config", "config.n_embd", "config.n_head", (16, 2)),
        (DATACLASS.format(name="Config", width=768), "config: Config", "config.n_embd", "config.n_head", (64, 4)),
        (DATACLASS.format(name="MineConfig", width=16) + DATACLASS.format(name="TrainConfig", width=32),
         "config", "config.n_embd", "config.n_head", (16, 2)),
        ("@dataclass\nclass TrainConfig:\n    lr: float\n", "config", "config.n_embd", "config.n_head", (64, 4)),
    ],
)  # fmt: skip
def test_a_config_is_built(tmp_path, config, parameter, width, heads, expected):
    text = CONFIGURED.format(config=config, parameter=parameter, width=width, heads=heads)
    patient = load(f"{file(tmp_path, text)}:MineBlock")
    assert (patient.module.map.in_features, patient.module.heads) == expected
    assert patient.build is not None
    assert patient.build({"d_model": 24}).map.in_features == 24
    with pytest.raises(AttnlabError, match="d_head"):
        patient.build({"d_head": 5})


def test_a_function_and_an_instance_are_patients(tmp_path):
    text = "def make(d_model=32, depth=1):\n    return nn.Linear(d_model, d_model)\n\nready = make()\n"
    path = file(tmp_path, text)
    made, ready = load(f"{path}:make"), load(f"{path}:ready")
    assert made.build is not None
    assert made.build({"d_model": 8}).in_features == 8
    assert ready.build is None
    assert "def make" in made.text


def test_objects_of_python_are_patients():
    module = nn.Linear(8, 8)
    patient = load(module)
    assert patient.module is not module
    assert torch.equal(patient.module.weight, module.weight)
    assert load(nn.MultiheadAttention, {"batch_first": True}).module.batch_first
    assert load(lambda d_model: nn.Linear(d_model, 3)).module.in_features == 64


def test_blocks_are_small_where_long_ones_do_not_run(tmp_path):
    text = CLASS.format(parameters="dim, block_size, halo_size", width="dim")
    found = ways_to_load(f"{file(tmp_path, text)}:Mine")
    assert [(way.arguments["block_size"], way.arguments["halo_size"]) for way in found] == [(48, 1), (4, 1)]


def test_a_large_model_is_made_narrow_and_shallow_with_few_tokens_and_says_so(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, vocab_size=9000, d_model=256, num_layers=12):\n"
        "        super().__init__()\n        self.embed = nn.Embedding(vocab_size, d_model)\n"
        "        self.layers = nn.ModuleList(nn.Linear(d_model, 4 * d_model) for _ in range(num_layers))\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert dict(patient.arguments) == {"vocab_size": 53, "d_model": 64, "num_layers": 2}
    assert patient.module.embed.weight.shape == (53, 64)
    assert patient.notes == (
        "d_model made 64, to be quick",
        "num_layers made 2, to be quick",
        "vocab_size made 53, to be quick",
    )
    asked = load(f"{tmp_path}/mine.py:Mine", {"num_layers": 5})
    assert len(asked.module.layers) == 5


def test_a_large_model_has_few_blocks_of_any_kind(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, n_speech_blocks=12, sizes_of_blocks=(2, 6), d_model=512):\n"
        "        super().__init__()\n        self.depths = sizes_of_blocks\n"
        "        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(n_speech_blocks))\n"
    )
    assert dict(load(f"{file(tmp_path, text)}:Mine").arguments) == {"d_model": 64, "n_speech_blocks": 2}


def test_what_is_small_by_default_is_not_made_larger_to_be_quick(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, d_model=512, mlp_num=3):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(mlp_num))\n"
    )
    assert dict(load(f"{file(tmp_path, text)}:Mine").arguments) == {"d_model": 64}


def test_a_large_model_that_insists_on_its_width_is_made_shallow_alone(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, d_model=512, num_layers=12):\n"
        "        super().__init__()\n        assert d_model > 500\n"
        "        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(num_layers))\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert dict(patient.arguments) == {"num_layers": 2}


def test_a_model_of_large_images_is_made_for_small_ones(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, img_size=224, patch_size=16):\n        super().__init__()\n"
        "        self.table = nn.Parameter(torch.zeros((img_size // patch_size) ** 2, 8))\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert patient.module.table.shape == (4, 8)
    assert patient.notes == ("img_size made 32, to be quick",)


def test_words_that_the_source_knows_and_sizes_left_at_none_are_tried(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim, task, seq_len=None):\n        super().__init__()\n"
        "        assert task in ('copy', 'sort')\n        assert seq_len is not None, 'say how long'\n"
        "        self.map = nn.Linear(dim, seq_len)\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert dict(patient.arguments) == {"dim": 64, "task": "copy", "seq_len": 48}
    assert dict(load(f"{tmp_path}/mine.py:Mine", {"task": "sort"}).arguments)["task"] == "sort"


def test_sizes_are_guessed_by_the_pieces_of_their_names_and_given_as_pairs_where_that_is_wanted(tmp_path):
    text = (
        "class Part(nn.Module):\n    def __init__(self, dim, heads):\n        super().__init__()\n"
        "        self.map = nn.Linear(dim, dim * heads)\n\n"
        "class Mine(nn.Module):\n    def __init__(self, dim, window_size, conv_stride, part: Part, pad_token, "
        "verbose_log):\n        super().__init__()\n        self.part = part\n"
        "        self.table = nn.Parameter(torch.zeros(window_size[0], window_size[1], dim))\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert patient.module.table.shape == (4, 4, 64)
    assert patient.module.part.map.out_features == 256
    assert {name: patient.arguments[name] for name in ("conv_stride", "pad_token", "verbose_log")} == {
        "conv_stride": 1,
        "pad_token": 0,
        "verbose_log": False,
    }


def test_sizes_that_are_taken_apart_are_those_of_the_repository_where_it_tells_them(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim, conv_kernel, conv_margin):\n        super().__init__()\n"
        "        self.map = nn.Conv1d(dim, dim, conv_kernel[0], padding=conv_margin[0])\n"
    )
    (tmp_path / "config.json").write_text('{"model": {"conv_kernel": [9, 1], "conv_margin": [4, 0]}}')
    module = load(f"{file(tmp_path, text)}:Mine").module
    assert (module.map.kernel_size, module.map.padding) == ((9,), (4,))


def test_lazy_layers_have_the_sizes_of_a_first_call(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.norm, self.spare = nn.LayerNorm(dim), nn.LazyLinear(dim)\n"
        "        self.map = nn.Sequential(nn.LazyLinear(2 * dim), nn.GELU(), nn.LazyLinear(dim))\n\n"
        "    def forward(self, x, context):\n        return self.map(self.norm(x)) + context\n"
    )
    module = load(f"{file(tmp_path, text)}:Mine", {"dim": 32}).module
    assert [one.in_features for one in (module.map[0], module.map[2], module.spare)] == [32, 64, 32]
    assert module.training
    assert interview(load(f"{file(tmp_path, text)}:Mine")).d_out == 64


def test_sizes_that_are_read_from_a_table_are_pairs_where_that_is_wanted(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, settings):\n        super().__init__()\n"
        "        side, piece = settings['img_size'], settings['patch_size']\n        patch_size = piece\n"
        "        places = (settings['img_size'][0] // settings['patch_size'][0]) ** 2\n"
        "        self.table = nn.Parameter(torch.zeros(places, settings['hidden_size']))\n"
    )
    assert load(f"{file(tmp_path, text)}:Mine").module.table.shape == (16, 64)


def test_a_name_that_says_nothing_is_the_size_under_whose_name_it_is_handed_on(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, breadth: int, n_heads: int = 8):\n        super().__init__()\n"
        "        self.layer = nn.TransformerEncoderLayer(d_model=breadth, nhead=n_heads)\n"
    )
    assert load(f"{file(tmp_path, text)}:Mine").arguments["breadth"] == 64


ONE_HEAD = """
class Mine(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.map, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(self.map(x).unflatten(-1, (self.heads, -1))).flatten(2)
"""


def test_what_fails_with_several_heads_is_called_with_one(tmp_path):
    path = f"{file(tmp_path, ONE_HEAD)}:Mine"
    *_, last = ways_to_load(path)
    assert (last.arguments["heads"], interview(last).d_in) == (1, 64)
    assert "with one head, as no call was found that runs with several" in last.notes
    assert all(way.arguments["heads"] == 2 for way in ways_to_load(path, {"n_heads": 2}))


def test_what_is_dropped_of_patches_is_a_share_and_layers_are_few(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim, patch_emb_drop, bert_layers):\n"
        "        super().__init__()\n        self.drop = nn.Dropout(patch_emb_drop)\n"
        "        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(bert_layers))\n"
    )
    module = load(f"{file(tmp_path, text)}:Mine").module
    assert (module.drop.p, len(module.layers)) == (0.1, 2)


def test_code_says_what_is_taken_apart_and_an_annotation_does_not(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim: int, window_size: int):\n"
        "        super().__init__()\n        self.map = nn.Linear(dim, window_size[0] * window_size[1])\n"
    )
    assert load(f"{file(tmp_path, text)}:Mine").module.map.out_features == 16


def test_small_parts_of_a_missing_library_of_vision_transformers_are_replaced_by_equals(tmp_path):
    text = (
        "from timm.models.layers import DropPath, FusedLayerNorm, Mlp, _private, to_2tuple, trunc_normal_\n\n"
        "class Mine(nn.Module):\n    def __init__(self, dim, window):\n        super().__init__()\n"
        "        self.window, self.drop, self.mlp = to_2tuple(window), DropPath(0.5), Mlp(dim, 2 * dim)\n"
        "        trunc_normal_(self.mlp[0].weight, std=0.02)\n\n"
        "    def forward(self, x):\n        return x + self.drop(self.mlp(FusedLayerNorm(x.size(-1))(x)))\n"
    )
    patient = load(f"{file(tmp_path, text.replace('timm', 'timm_absent'))}:Mine")
    assert (patient.module.window, patient.module.mlp[0].out_features) == ((4, 4), 128)
    assert patient.notes == (
        "imported without timm_absent, timm_absent.models, timm_absent.models.layers, not installed here: what needs it"
        " fails",
    )
    x, module = torch.ones(40, 2, 64), patient.copy()
    changed = (module(x) != x).flatten(1)
    assert torch.equal(changed.any(1), changed.all(1))  # a sample is dropped as a whole
    assert 0 < int(changed.any(1).sum()) < 40


def test_a_library_that_is_missing_matters_only_to_what_needs_it(tmp_path):
    text = (
        "import not_here.deep as deep\nfrom not_here import Layer, register\n\n"
        "@register\nclass Mine(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.map = nn.Linear(dim, dim)\n\n"
        "class Needs(nn.Module):\n    def __init__(self, dim):\n"
        "        super().__init__()\n        self.map = Layer(dim)\n"
        "        deep.log.debug('made')\n\n    def forward(self, x):\n        return self.map(x)\n"
    )
    path = file(tmp_path, text)
    patient = load(f"{path}:Mine")
    assert patient.module.map.in_features == 64
    assert any("without not_here" in note for note in patient.notes)
    with pytest.raises(ModuleError, match=r"raised ImportError: not_here is not installed \(mine.py, line \d+\)"):
        interview(load(f"{path}:Needs"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_here")


@pytest.mark.parametrize("bases", ["Base", "Keeps, nn.Module"])
def test_what_the_class_above_of_a_missing_library_does_for_its_effect_is_left_out(tmp_path, bases):
    text = (
        f"from not_here import Base, Keeps\n\nclass Mine({bases}):\n    def __init__(self, dim):\n"
        "        super().__init__()\n        self.keep_arguments()\n        self.map = nn.Linear(dim, dim)\n\n"
        "    def forward(self, x):\n        self.note('here', x)\n        return self.map(x)\n\n"
        f"class Needs({bases}):\n    def __init__(self, dim):\n"
        "        super().__init__()\n        self.map = nn.Linear(dim, self.kept())\n"
    )
    path = file(tmp_path, text)
    assert interview(load(f"{path}:Mine")).d_out == 64
    with pytest.raises(ModuleError, match="'Needs' object has no attribute 'kept'"):
        load(f"{path}:Needs")


@pytest.mark.parametrize("kind", ["nn.Linear(dim, dim)", "nn.LazyLinear(dim)"], ids=["linear", "lazy"])
def test_parts_keep_the_modes_that_they_were_built_in(kind, tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        f"        self.map, self.back = {kind}, nn.Dropout(0.5).eval()\n\n"
        "    def forward(self, x):\n        return self.back(self.map(x))\n"
    )
    module = load(f"{file(tmp_path, text)}:Mine").module
    assert (module.training, module.back.training) == (True, False)


def test_the_device_that_a_class_above_of_a_missing_library_would_tell_is_that_of_the_parameters(tmp_path):
    text = (
        "from not_here import Base\n\nclass Mine(Base):\n    def __init__(self, dim):\n"
        "        super().__init__()\n        self.start = torch.zeros(1, device=self.device)\n"
        "        self.map = nn.Linear(dim, dim)\n\n    def forward(self, x):\n"
        "        return self.map(x) + torch.arange(x.size(1), device=self.device)[:, None]\n"
    )
    assert interview(load(f"{file(tmp_path, text)}:Mine")).d_out == 64


@pytest.mark.parametrize("wanted", ["img_size=256", "img_size"])
def test_images_that_were_made_too_small_are_made_wider(tmp_path, wanted):
    text = (
        f"class Mine(nn.Module):\n    def __init__(self, {wanted}):\n        super().__init__()\n"
        "        self.deep, self.least = nn.Conv2d(3, 8, 32, 32), img_size\n\n"
        "    def forward(self, x):\n        assert x.size(-1) == self.least and x.size(-1) > 32\n"
        "        return self.deep(x).mean((2, 3))\n\n"
        "def build():\n    return Mine(img_size=224)\n"
    )
    built = {patient.arguments["img_size"]: patient for patient in ways_to_load(f"{file(tmp_path, text)}:Mine")}
    assert min(built) <= 32
    assert interview(built[64]).length == 64**2


def test_what_is_lacking_of_a_class_above_and_gives_a_value_is_still_lacking(tmp_path):
    text = (
        "import not_here\n\nclass Mine(not_here.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.map = nn.Linear(dim, dim)\n\n    def forward(self, x):\n"
        "        self.log('x', x)\n        return torch.cat([\n            self.embed(x),\n            self.map(x)])\n"
    )
    module = load(f"{file(tmp_path, text)}:Mine").module
    assert module.log("x", 1) is None
    with pytest.raises(AttributeError, match="'Mine' object has no attribute 'embed'"):
        _ = module.embed


def test_what_another_class_above_gives_stands_before_what_a_missing_one_would(tmp_path):
    text = (
        "import not_here\n\nclass Lent(nn.Module):\n    def __getattr__(self, word):\n"
        "        return 7 if word == 'magic' else super().__getattr__(word)\n\n"
        "class Mine(not_here.Mixin, Lent):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.map = nn.Linear(dim, dim)\n\n    def forward(self, x):\n        return self.map(x)\n"
    )
    assert load(f"{file(tmp_path, text)}:Mine").module.magic == 7


@pytest.mark.parametrize(("name", "kind"), [("encoder", nn.Linear), ("encoder_layer", nn.TransformerEncoderLayer)])
def test_layers_of_torch_that_are_put_in_have_the_batch_first(tmp_path, name, kind):
    text = (
        f"class Mine(nn.Module):\n    def __init__(self, {name}, dim):\n        super().__init__()\n"
        f"        self.{name}, self.map = {name}, nn.Linear(dim, dim)\n\n"
        f"    def forward(self, x):\n        return self.map(self.{name}(x))\n"
    )
    part = getattr(load(f"{file(tmp_path, text)}:Mine").module, name)
    assert type(part) is kind
    assert kind is nn.Linear or part.self_attn.batch_first


def test_a_layer_that_torch_has_under_its_name_is_built(tmp_path):
    text = (
        "import copy\n\nclass Mine(nn.Module):\n    def __init__(self, decoder_layer, num_layers):\n"
        "        super().__init__()\n"
        "        self.layers = nn.ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers))\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert [type(layer) for layer in patient.module.layers] == [nn.TransformerDecoderLayer] * 2


def test_a_method_that_sets_what_is_used_is_called_after_the_constructor(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
        "        self.dim, self.map = dim, nn.Linear(dim, dim)\n\n"
        "    def of(self, dim):\n        self.head = nn.Linear(dim, dim)\n\n"
        "    def finish(self, bias=False):\n        self.head = nn.Linear(self.dim, 7, bias=bias)\n\n"
        "    def forward(self, x):\n        return self.head(self.map(x))\n"
    )
    ways = ways_to_load(f"{file(tmp_path, text)}:Mine")
    first = next(ways)
    with pytest.raises(ModuleError) as raised:
        interview(first)
    second = ways.send(raised.value)
    assert interview(second).d_out == 7
    assert "finish() of Mine called, as it sets what is used" in second.notes


def test_a_class_above_of_a_missing_library_is_taken_for_a_module(tmp_path):
    text = (
        "from not_here import Base\n\n"
        "class Mine(Base):\n    def __init__(self, dim):\n        super().__init__({'of': 'not_here'})\n"
        "        self.map = nn.Linear(dim, dim)\n\n    def forward(self, x):\n        return self.map(x)\n"
    )
    assert interview(load(f"{file(tmp_path, text)}:Mine")).d_in == 64


def test_names_that_a_file_sets_only_as_a_script_have_their_values(tmp_path):
    text = (
        "class Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.table = nn.Embedding(vocab_size, width)\n\n"
        "if __name__ == '__main__':\n    words = ['a', 'b']\n    vocab_size = len(words)\n    width = depth = 24\n"
    )
    patient = load(f"{file(tmp_path, text)}:Mine")
    assert patient.module.table.weight.shape == (53, 24)
    assert [note.partition(" set")[0] for note in patient.notes] == ["width=24, depth=24", "vocab_size=53"]


def test_a_config_that_leaves_its_sizes_open_gets_small_ones(tmp_path):
    text = (
        "from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    n_embd: int = None\n"
        "    n_layer: int = None\n    head_dim: int = None\n\n"
        "class Mine(nn.Module):\n    def __init__(self, config: Config):\n"
        "        super().__init__()\n        assert config.head_dim is None\n"
        "        width = config.n_embd or 4096\n        self.map = nn.Linear(width, width)\n"
    )
    assert load(f"{file(tmp_path, text)}:Mine").module.map.in_features == 64


def test_a_module_of_another_folder_is_found_where_one_of_its_name_is_nearer(tmp_path):
    for name, text in (
        ("utils/__init__.py", ""),
        ("utils/utils.py", "WIDTH = 20\n"),
        (
            "models/own.py",
            "from torch import nn\nfrom utils import WIDTH\n\nclass Mine(nn.Linear):\n"
            "    def __init__(self):\n        super().__init__(WIDTH, WIDTH)\n",
        ),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load(f"{tmp_path}/models/own.py:Mine").module.in_features == 20


def test_a_file_with_the_name_of_its_package_finds_its_neighbors_in_the_package(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("from mine.mine import Mine\n")
    (folder / "parts.py").write_text("WIDTH = 24\n")
    text = (
        "from mine.parts import WIDTH\n\n"
        "class Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.map = nn.Linear(WIDTH, WIDTH)\n"
    )
    assert load(f"{file(folder, text)}:Mine").module.map.in_features == 24


def test_the_text_is_what_the_class_uses_with_its_comments(tmp_path):
    text = (
        "SIZE = 7\n\n# scales the scores\ndef scale(x):\n    return x / SIZE\n\n\ndef unused(x):\n    return x\n\n\n"
        "# takes (length, batch, width)\nclass Mine(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.map = nn.Linear(8, 8)  # one map\n\n"
        "    def forward(self, x):\n        return scale(self.map(x))\n"
    )
    said = load(f"{file(tmp_path, text)}:Mine").text
    assert all(words in said for words in ("SIZE = 7", "# scales the scores", "# takes (length", "# one map"))
    assert "unused" not in said


def test_what_a_constructor_leaves_behind_can_be_copied():
    module = nn.Linear(8, 8)
    module.doubled = module.weight * 2
    twin = twin_of(module)
    assert torch.equal(twin.doubled, module.doubled)
    assert load(module).module.weight is not module.weight


HALF = "class Mine(nn.Module):\n    def __init__(self, {parameters}):\n        super().__init__()\n        {body}\n"


@pytest.mark.parametrize(
    ("text", "name", "arguments", "error", "message"),
    [
        ("x = 1\n", ":Mine", {}, SpecError, "defines no 'Mine'"),
        ("class Min(nn.Module):\n    pass\n", ":Mine", {}, SpecError, "did you mean 'Min'?"),
        ("class Mine(nn.Module):\n    pass\n", "", {}, SpecError, "mine.py:Name; it defines Mine"),
        ("x = 1 / 0\n", ":Mine", {}, ModuleError, "ZeroDivisionError: division by zero (mine.py, line 5)"),
        ("def broken(:\n", ":Mine", {}, ModuleError, "SyntaxError: invalid syntax (mine.py, line 5)"),
        ("import no_such_thing\n", ":Mine", {}, ModuleError, "No module named 'no_such_thing' (mine.py, line 5)"),
        ("Mine = 3\n", ":Mine", {}, SpecError, "is of type int; it must be a class of torch.nn.Module"),
        ("class Mine:\n    pass\n", ":Mine", {}, SpecError, "is no torch.nn.Module"),
        ("def Mine():\n    return 3\n", ":Mine", {}, SpecError, "returned int; it must return a torch.nn.Module"),
        (
            HALF.format(parameters="dim, graph", body="graph.nodes()"),
            ":Mine",
            {},
            SpecError,
            "needs 'graph', which nothing tells: what is meant? Give --arg graph=...",
        ),
        (HALF.format(parameters="dim", body="pass"), ":Mine", {"rank": 3}, SpecError, "unknown argument 'rank'"),
        (HALF.format(parameters="dim", body="pass"), ":Mine", {"dmi": 3}, SpecError, "did you mean 'dim'?"),
        (HALF.format(parameters="dim: int", body="pass"), ":Mine", {"dim": "a"}, SpecError, "'dim' must be int"),
        (HALF.format(parameters="dim", body="1 / 0"), ":Mine", {}, ModuleError, "constructor raised ZeroDivisionError"),
        (
            HALF.format(parameters="cfg", body="nn.Linear(cfg.odd - 70, 3)"),
            ":Mine",
            {},
            SpecError,
            "'odd' from its config: what is meant? Give --arg odd=",
        ),
        ("Mine = nn.Linear(3, 3)\n", ":Mine", {"dim": 3}, SpecError, "ready instance, so it takes no constructor"),
        ("Mine = nn.Linear(3, 3, device='meta')\n", ":Mine", {}, ModuleError, "meta device"),
    ],
)
def test_every_mistake_is_one_clear_sentence(tmp_path, text, name, arguments, error, message):
    with pytest.raises(error) as caught:
        load(file(tmp_path, text) + name, arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [("nowhere.py:Mine", "no file "), ("nowhere.py", "no file "), ("mine", "must be FILE.py:Name")],
)
def test_what_is_no_file_is_said(target, message):
    with pytest.raises(SpecError, match=message):
        load(target)


def test_forgotten_heads_are_something_to_examine(tmp_path):
    body = "self.heads = [nn.Linear(dim, dim)]"
    assert load(f"{file(tmp_path, HALF.format(parameters='dim', body=body))}:Mine").module.heads


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
class TestHuggingFace:
    def test_parts_are_built_small_and_start_as_their_models_do(self):
        from transformers.models.t5.modeling_t5 import T5Attention

        patient = load(T5Attention)
        config = patient.module.config
        assert (config.d_model, config.num_heads, config._attn_implementation) == (64, 4, "eager")
        assert float(patient.module.q.weight.detach().std()) == pytest.approx((64 * config.d_kv) ** -0.5, rel=0.1)
        assert patient.build is not None
        assert patient.build({"n_heads": 2}).n_heads == 2

    def test_what_was_trained_is_left_alone(self):
        from transformers.models.t5.modeling_t5 import T5Attention

        module = load(T5Attention).module
        with torch.no_grad():
            module.q.weight.normal_()
        assert torch.equal(load(module).module.q.weight, module.q.weight)


READS = """class Mine(nn.Module):
    def __init__(self, {name}, {more}):
        super().__init__()
        self.setup = {name}
        self.map = nn.Linear({name}.HIDDEN_SIZE, {name}.HIDDEN_SIZE * {name}.GLIMPSES)

    def forward(self, x):
        heads = x.unflatten(-1, (-1, self.setup.HIDDEN_SIZE_HEAD)).to(self.setup.device)
        return self.map(heads.flatten(-2))
"""
VALUES = """class Config:
    def __init__(self):
        self.GLIMPSES = 1
"""


@pytest.mark.parametrize("name", ["__C", "world"])
def test_what_settings_are_read_from_is_a_config_whatever_its_name(tmp_path, name):
    (tmp_path / "values.py").write_text(VALUES)
    patient = load(f"{file(tmp_path, READS.format(name=name, more='p=0.1'))}:Mine")
    assert patient.module.map.out_features == 64
    assert interview(patient).d_in == 64


def test_a_choice_is_the_first_that_its_annotation_has(tmp_path):
    text = (
        "import enum\nfrom typing import Literal\nclass Kind(enum.Enum):\n    LOCAL = 1\n    GLOBAL = 2\n"
        + CLASS.format(parameters="dim, kind: Kind, order: Literal['pre', 'post']", width="dim")
    )
    given = load(f"{file(tmp_path, text)}:Mine").module.given
    assert (given["kind"].name, given["order"]) == ("LOCAL", "pre")


def test_a_device_is_given_where_an_annotation_asks_for_one(tmp_path):
    given = load(taking(tmp_path, "dim, device: torch.device, place='gpu'", width="dim")).module.given
    assert (given["device"], given["place"]) == (torch.device("cpu"), "gpu")


def test_settings_in_two_arguments_and_under_another_name_are_read_from_one_config(tmp_path):
    text = CLASS.format(parameters="cfg, ctx", width="self.kept['hidden_size']")
    text = text.replace(
        "self.map", "self.kept = ctx\n        self.rate = ctx['dropout'] + cfg.dropout\n        self.map", 1
    )
    module = load(f"{file(tmp_path, text)}:Mine").module
    assert (module.map.in_features, module.given["cfg"] is module.given["ctx"]) == (64, True)


def test_a_file_named_like_torch_is_not_taken_for_what_torch_no_longer_has(tmp_path):
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "torch.py").write_text("raise RuntimeError\n")
    text = "from torch.nn.modules.linear import _LinearWithBias\n" + CLASS.format(parameters="dim=24", width="dim")
    module = load(f"{file(tmp_path, text.replace('nn.Linear', '_LinearWithBias'))}:Mine").module
    assert type(module.map) is nn.Linear


def test_a_package_is_found_behind_a_file_of_its_name_in_a_folder_already_searched(tmp_path):
    for name, text in (
        ("models/tools.py", "from tools.sizes import DIM"),
        ("tools/sizes.py", "DIM = 24"),
        ("tools/__init__.py", ""),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    text = HEADER + "from models.tools import DIM\n" + CLASS.format(parameters="dim=DIM", width="dim")
    (tmp_path / "models" / "mine.py").write_text(text)
    assert load(f"{tmp_path / 'models' / 'mine.py'}:Mine").module.map.in_features == 24


MOVED = """
from moving_library.old import gone, twice
from not_there_at_all import Shape, __version__

newer = float(__version__.split(".")[1]) > 7

class Mine(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x: Shape["batch", "length"]):
        return twice(self.map(x))
"""


def test_names_that_a_library_has_elsewhere_or_no_more_matter_only_to_what_needs_them(tmp_path):
    library = tmp_path / "moving_library"
    library.mkdir()
    (library / "__init__.py").write_text("from moving_library import new, old\n")
    (library / "new.py").write_text("def twice(x):\n    return 2 * x\n")
    (library / "old.py").touch()
    patient = load(f"{file(tmp_path, MOVED)}:Mine")
    x = torch.randn(2, 3, 24)
    assert torch.equal(patient.module(x), 2 * patient.module.map(x))
    assert "without moving_library.old.gone, not_there_at_all," in patient.notes[-1]


def test_a_class_is_examined_although_its_file_raises_below_it(tmp_path):
    path = file(tmp_path, UNFINISHED)
    assert (
        load(f"{path}:Mine")
        .notes[-1]
        .startswith("left out of its file or of one beside it: what raised FileNotFoundError")
    )
    with pytest.raises(ModuleError, match="raised while it was imported: FileNotFoundError"):
        load(f"{path}:Other")


UNFINISHED = """
class Mine(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        return self.map(x)

text = open("no-such-text.txt").read()

class Other(Mine):
    pass
"""


def test_a_number_that_is_annotated_as_a_list_is_one(tmp_path):
    text = CLASS.format(parameters="dim, layers: list[int], sizes: tuple[int, int]", width="dim * len(layers + [1])")
    arguments = load(f"{file(tmp_path, text)}:Mine").arguments
    assert (type(arguments["layers"]), type(arguments["sizes"])) == (list, tuple)


def test_what_a_file_beside_it_makes_by_raising_is_left_out_and_refuses_where_it_is_used(tmp_path):
    (tmp_path / "beside.py").write_text(BESIDE)
    path = file(tmp_path, "from beside import TABLE, WIDE, wide_of\n\n" + USING)
    patient = load(f"{path}:Mine")
    assert patient.module.map.in_features == 24
    assert "what raised KeyError: 'NOT_SET_ANYWHERE' (beside.py, line 7)" in patient.notes[-1]
    with pytest.raises(ModuleError, match="ImportError: 'TABLE' was left out, as its statement raised KeyError: "):
        load(f"{path}:Other")
    with pytest.raises(ModuleError, match="raised while it was imported: TypeError"):
        load(f"{path}:Broken")


BESIDE = """
import argparse, os
import not_there_at_all
parser = argparse.ArgumentParser()
parser.add_argument("--wide", type=int, default=24)
WIDE = parser.parse_args().wide
TABLE = os.environ["NOT_SET_ANYWHERE"].split()
def wide_of(x):
    return len(TABLE)
"""

USING = """
class Mine(nn.Module):
    def __init__(self, dim=WIDE):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        return self.map(x)

class Other(Mine):
    def __init__(self, dim=WIDE):
        super().__init__(dim * len(TABLE))

class Broken(Mine, 1):
    pass
"""


def test_what_a_package_that_moved_should_hold_is_looked_for_beside_the_file(tmp_path):
    (tmp_path / "models" / "now").mkdir(parents=True)
    (tmp_path / "models" / "now" / "parts.py").write_text(HEADER + "def part(dim):\n    return nn.Linear(dim, dim)\n")
    text = "from models.before.parts import part\n\n" + CLASS.format(parameters="dim", width="dim")
    (tmp_path / "models" / "now" / "mine.py").write_text(HEADER + text.replace("nn.Linear(dim, dim)", "part(dim)"))
    assert load(f"{tmp_path / 'models' / 'now' / 'mine.py'}:Mine").module.map.in_features == 64


COPIED = """class Mine(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x):
        return F.softmax(self.map(x) @ x.mT / math.sqrt(x.size(-1)), -1) @ x
"""


def test_what_a_copied_class_does_not_import_is_taken_as_usual_and_named(tmp_path):
    path = tmp_path / "copied.py"
    path.write_text(COPIED)
    patient = load(f"{path}:Mine")
    assert patient.module(torch.randn(2, 3, 64)).shape == (2, 3, 64)
    assert patient.notes == ("its file does not import nn, which is taken as usual",)


def test_a_share_may_be_annotated_as_a_whole_number(tmp_path):
    assert load(taking(tmp_path, "dropout: int")).arguments == {"dropout": 0.1}


def test_what_a_part_lacks_is_said_of_the_part(tmp_path):
    text = "class Mine(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
    text += "        self.qkv = nn.Conv2d(dim, 3 * dim)\n"
    with pytest.raises(ModuleError, match=r"Conv2d.*'kernel_size' \(mine.py"):
        load(f"{file(tmp_path, text)}:Mine")


PARTS = """class MultiHeadedAttention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.map(x)

class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn):
        super().__init__()
        self.size, self.self_attn = size, self_attn

    def forward(self, x):
        return x + self.self_attn(x)

class Encoder(nn.Module):
    def __init__(self, layer, N):
        super().__init__()
        self.layers = nn.ModuleList([layer for _ in range(N)])
        self.norm = nn.LayerNorm(layer.size)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
"""


def test_a_part_is_of_the_class_whose_name_holds_that_of_the_argument(tmp_path):
    module = load(f"{file(tmp_path, PARTS)}:Encoder").module
    assert type(module.layers[0]).__name__ == "EncoderLayer"
    assert type(module.layers[0].self_attn).__name__ == "MultiHeadedAttention"


GRID = """class Mine(nn.Module):
    def __init__(self, input_size: tuple[int, int, int], window_size: tuple[int, int, int], dim: int):
        super().__init__()
        self.input_size, self.window_size, self.map = input_size, window_size, nn.Linear(dim, dim)
"""
CONFIG = """@dataclass
class MineConfig:
    d_model: int = 768

class Mine(nn.Module):
    def __init__(self, config: MineConfig = MineConfig()):
        super().__init__()
        self.map = nn.Linear(config.d_model, config.d_model)
"""


def test_a_grid_has_as_many_sides_as_its_annotation(tmp_path):
    patient = load(f"{file(tmp_path, GRID)}:Mine")
    assert (patient.module.input_size, patient.module.window_size) == ((4, 4, 4), (4, 4, 4))


def test_images_are_made_as_high_as_wide(tmp_path):
    assert load(taking(tmp_path, "img_height=32, img_width=64, img_channels=4")).module.given == {
        "img_height": 32,
        "img_width": 32,
        "img_channels": 4,
    }


def test_a_large_config_that_is_a_default_is_made_small(tmp_path):
    assert load(f"{file(tmp_path, CONFIG)}:Mine").module.map.in_features == 64


CONFIG_OF_ITS_OWN = """class MineConfig:
    def __init__(self):
        self.hidden_size, self.num_attention_heads, self.num_layers, self.beside = 768, 12, 3, 5

class Mine(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.maps = nn.ModuleList(nn.Linear(config.hidden_size, config.hidden_size) for _ in range(config.num_layers))

    def forward(self, x):
        return self.maps[0](x)
"""


def test_what_a_config_sets_by_itself_is_made_small_and_said(tmp_path):
    patient = load(f"{file(tmp_path, CONFIG_OF_ITS_OWN)}:Mine")
    small = {"hidden_size": 64, "num_attention_heads": 4, "num_layers": 2}
    assert vars(patient.module.config) == {**small, "beside": 5}
    assert [note for note in patient.notes if note.endswith("to be quick")] == [
        f"{name} made {value}, to be quick" for name, value in small.items()
    ]


def test_a_list_of_layers_that_a_class_makes_itself_is_left_to_it(tmp_path):
    assert load(taking(tmp_path, "dim, layers=None")).module.given == {"dim": 64, "layers": None}


def test_an_einsum_of_a_missing_library_sums_over_named_axes(tmp_path):
    text = "from no_such_library import einsum\n" + CLASS.format(parameters="dim", width="dim")
    text += "    def both(self, a, b):\n"
    text += (
        '        return einsum("in out, batch in -> batch out", a, b), einsum(b, a, "batch in, in out -> batch out")\n'
    )
    a, b = torch.randn(3, 5), torch.randn(2, 3)
    for product in load(f"{file(tmp_path, text)}:Mine").module.both(a, b):
        torch.testing.assert_close(product, b @ a)


SIDES = """class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x):
        image = x.transpose(1, 2).unflatten(2, (self.H, self.W))
        return x + self.map(image).flatten(2).transpose(1, 2)
"""


def test_sides_that_only_a_larger_module_sets_are_set(tmp_path):
    ways = ways_to_load(f"{file(tmp_path, SIDES)}:Mine")
    first = next(ways)
    failed = ModuleError("it cannot be called")
    for word in ("H", "W"):
        failed.__cause__ = AttributeError(f"'Mine' object has no attribute '{word}'")
        first = ways.send(failed)
    assert interview(first).assumptions["lengths"] == "16 only"
    assert any("H of Mine set to 4" in note for note in first.notes)


def test_comments_may_lie_farther_to_the_left_than_code(tmp_path):
    lines = ("import torch", "class It(torch.nn.Module):", "  def __init__(self, d_model):", "    super().__init__()")
    lines += ("    self.map = torch.nn.Linear(d_model, d_model)", "  def forward(self, x):", "\t# x", "# y")
    (tmp_path / "it.py").write_text("\n".join((*lines, "    return self.map(x)", "")))
    patient = load(f"{tmp_path / 'it.py'}:It", {})
    assert ast.parse(source_of_forward(patient.module)).body
    assert not is_block(patient.module)


OF_A_TABLE = """KINDS = {"soft": torch.softmax, "hard": None}

class Mine(nn.Module):
    def __init__(self, config, time_steps=None, beside=None):
        super().__init__()
        self.kind = KINDS[config.kind]
        self.places = nn.Embedding(
            time_steps, config.dim
        )

    def forward(self, x):
        return x + self.places.weight[:x.size(1)]
"""


def test_a_key_of_a_table_is_its_first_and_a_size_left_at_none_is_the_one_in_the_statement_that_fails(tmp_path):
    patient = load(f"{file(tmp_path, OF_A_TABLE)}:Mine")
    assert patient.module.kind is torch.softmax
    assert patient.arguments["time_steps"] == 48
    assert "beside" not in patient.arguments


NESTED = """class Inner(nn.Module):
    def __init__(self, dim, how):
        super().__init__()
        self.heads = how["n_head"]
        self.map = nn.Linear(dim, how["d_k"] * self.heads)

class Mine(nn.Module):
    def __init__(self, dim, decoder_args):
        super().__init__()
        self.inner, self.rate = Inner(dim, decoder_args["first_part"]), decoder_args["dropout"]

    def forward(self, x):
        return self.inner.map(x)
"""


def test_a_config_of_a_part_within_a_config_is_one(tmp_path):
    module = load(f"{file(tmp_path, NESTED)}:Mine").module
    assert (module.inner.heads, module.inner.map.out_features, module.rate) == (4, 64, 0.1)


WITH_WORDS = """class Mine(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.start, self.pad = vocab["<s>"], vocab["<pad>"]
        self.embed = nn.Embedding(len(vocab), dim)

    def forward(self, tokens):
        return self.embed(tokens)
"""


def test_a_vocabulary_that_is_asked_for_words_has_a_number_for_each(tmp_path):
    patient = load(f"{file(tmp_path, WITH_WORDS)}:Mine")
    numbers = [patient.module.start, patient.module.pad]
    assert len({*numbers}) == 2
    assert all(0 <= number < patient.module.embed.num_embeddings for number in numbers)
    assert repr(patient.arguments["vocab"]) == "a table of 53 words"
    assert interview(patient).assumptions["input"] == "tokens below 53"


PARTS_OF_PARTS = """class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.keys, self.rest, self.norm = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.LayerNorm(dim)

    def forward(self, x):
        return x

class Caller(nn.Module):
    def __init__(self):
        self.inner = Mine(64)

    def forward(self, x):
        return self.inner(self.inner.keys(x).norm(dim=-1))

class Other(nn.Module):
    def forward(self, x):
        return self.inner.rest(x)
"""


def test_parts_that_another_class_reads_are_used_elsewhere_but_no_methods_of_tensors(tmp_path):
    module = load(f"{file(tmp_path, PARTS_OF_PARTS)}:Mine").module
    assert [use_of(module, name) for name in ("keys", "rest", "norm")] == ["elsewhere", "never", "never"]


LOOPS = """class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers, self.experts, self.few, self.more, self.each = (
            nn.ModuleList([nn.Linear(dim, dim)]) for _ in range(5)
        )
        self.table = nn.Embedding(9, dim)

    def forward(self, x, chosen):
        maps = [self.table.weight.sum() if chosen is None else self.table(chosen)]
        for layer in self.layers:
            x = layer(x)
            if chosen is not None:
                maps.append(x)
        for expert in self.experts:
            if chosen.any():
                x = expert(x)
        for index, expert in enumerate(self.few):
            if not (chosen == index).any():
                continue
            x = expert(x)
        for layer, adapter in zip(self.more, self.each):
            x = layer(x)
            if chosen is not None:
                x = adapter(x)
        return x + self.table(chosen), maps
"""


def test_a_loop_uses_its_items_under_a_condition_only_where_it_calls_them_under_one(tmp_path):
    module = load(f"{file(tmp_path, LOOPS)}:Mine").module
    assert [use_of(module, name) for name in ("layers.0", "experts.0", "few.0", "each.0", "table")] == [
        "always",
        "under a condition",
        "under a condition",
        "under a condition",
        "always",
    ]


def test_colors_stay_as_they_are_where_a_model_is_made_small(tmp_path):
    text = CLASS.format(parameters="image_size=64, in_channels=3, dim=1024", width="dim")
    given = load(f"{file(tmp_path, text)}:Mine").module.given
    assert (given["in_channels"], given["dim"]) == (3, 64)


ASKED = """
from torch import nn
from torch.nn import functional as F

class Mine(nn.Module):
    def __init__(self, config, dropouts):
        super().__init__()
        self.dropouts = dropouts
        if config.train_it == False:
            raise ValueError("frozen")
        if config.kind.upper() == "WIDE":
            self.map = nn.Linear(config.hidden, config.hidden)

    def forward(self, x):
        return F.dropout(self.map(F.dropout(x, self.dropouts[0], self.training)), self.dropouts[1], self.training)
"""


def test_words_in_capitals_switches_compared_and_lists_of_rates_are_told_by_their_use(tmp_path):
    (tmp_path / "mine.py").write_text(ASKED)
    patient = load(f"{tmp_path / 'mine.py'}:Mine")
    assert patient.module.map.in_features == patient.module.map.out_features
    assert patient.arguments["dropouts"] == (0.1, 0.1)
