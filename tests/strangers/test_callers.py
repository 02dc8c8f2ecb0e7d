"""A class is built as its repository builds it, where its own words do not tell how, and called until one way runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.doctor import doctor
from attnlab.strangers.loading.callers import callers_of, literal_calls, watched
from attnlab.strangers.loading.loading import load, ways_to_load
from attnlab.strangers.trying.interview import interview

HEADER = "import torch\nfrom torch import nn\n\n"

UNCLEAR = """
class Mine(nn.Module):
    def __init__(self, dim, c_m, {more}):
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, c_m), nn.Linear(c_m, dim)
    def forward(self, x):
        return self.outer(self.inner(x))
"""
CALLED = "\nif __name__ == '__main__':\n    width = 24\n    mine = Mine(8, c_m=width)\n"

PARTED = """
class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim)
    def forward(self, x):
        return self.map(x)

class Layer(nn.Module):
    def __init__(self, {parameters}):
        super().__init__()
        self.part, self.size = {part}, {size}
    def forward(self, x):
        return self.part(x)
"""
WHOLE = """
class Whole(nn.Module):
    def __init__(self, d_model=40):
        super().__init__()
        self.layer = Layer(Attention(d_model), d_model)
    def forward(self, x):
        return self.layer(x)
"""


def file(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(HEADER + text)
    return str(path)


@pytest.mark.parametrize("beside", [False, True])
def test_what_no_name_tells_is_taken_from_a_call_in_the_file_or_beside_it(tmp_path, beside):
    path = file(tmp_path, UNCLEAR.format(more="p=0.1") + ("" if beside else CALLED))
    (tmp_path / "other.py").write_text(CALLED if beside else "")
    assert dict(load(f"{path}:Mine").arguments) == {"dim": 8, "c_m": 24}
    assert load(f"{path}:Mine", {"c_m": 5}).module.inner.out_features == 5


def test_without_such_a_call_a_value_is_taken_that_the_source_allows_or_it_is_asked_for(tmp_path):
    path = file(tmp_path, UNCLEAR.format(more="p=0.1"))
    assert dict(load(f"{path}:Mine").arguments) == {"dim": 64, "c_m": 64}
    path = file(tmp_path, UNCLEAR.format(more="p=0.1").replace("(c_m,", "(c_m.wide,"))
    with pytest.raises(SpecError, match=r"Mine needs 'c_m', which nothing tells: what is meant\? Give --arg c_m="):
        load(f"{path}:Mine")


@pytest.mark.parametrize(
    ("use", "value"),
    [
        ("self.kept = [nn.Linear(one, dim) for one in odd]", (64, 64)),
        ("self.kept = nn.Linear(odd[0], odd[1])", (64, 64)),
        ("self.kept = nn.ModuleList(nn.Linear(dim, dim) for _ in range(odd))", 2),
        ("self.kept = nn.Linear(dim, dim) if odd else None", False),
        ("self.kept = nn.Identity() if dim in odd else None", []),
        ("self.kept = nn.Linear(odd // 2, dim)", 64),
    ],
)
def test_what_nothing_names_is_taken_by_what_the_source_does_with_it(tmp_path, use, value):
    text = UNCLEAR.format(more="odd, p=0.1").replace("self.inner,", f"{use}\n        self.inner,")
    assert load(f"{file(tmp_path, text)}:Mine").arguments["odd"] == value


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("sharing: str | None", None),
        ("shift_idx: slice | None", None),
        ("grid_size: tuple[int, int]", (8, 8)),
        ("dtype", torch.float32),
        ("latent_dim", 64),
    ],
)
def test_what_is_guessed_is_what_an_annotation_allows(tmp_path, argument, value):
    text = UNCLEAR.format(more=f"{argument}, p=0.1")
    assert load(f"{file(tmp_path, text)}:Mine", {"c_m": 24}).arguments[argument.partition(":")[0]] == value


def test_a_word_is_one_that_the_part_knows_which_it_is_handed_on_to(tmp_path):
    part = "class Part(nn.Module):\n    def __init__(self, start):\n        super().__init__()\n"
    part += "        if start not in ('small', 'large'):\n            raise ValueError(start)\n"
    text = UNCLEAR.format(more="part_start, p=0.1").replace(
        "self.inner,", "Part(start=part_start)\n        self.inner,", 1
    )
    assert load(f"{file(tmp_path, part + text)}:Mine", {"c_m": 24}).arguments["part_start"] == "small"


def test_what_a_constructor_insists_on_though_its_default_is_none_is_given(tmp_path):
    text = UNCLEAR.format(more="sparse=None").replace("super", "assert sparse is not None, 'say it'\n        super", 1)
    text = text.replace("self.inner,", "self.kept = nn.Identity() if sparse else None\n        self.inner,", 1)
    found = ways_to_load(f"{file(tmp_path, text)}:Mine", {"c_m": 24})
    assert next(found).arguments["sparse"] is False


def test_what_is_called_under_the_name_that_it_is_kept_as_is_a_module(tmp_path):
    text = UNCLEAR.format(more="attention").replace("self.inner,", "self.within = attention\n        self.inner,", 1)
    text = text.replace("return self", "x = self.within(x, x, x)[0]\n        return self")
    assert isinstance(load(f"{file(tmp_path, text)}:Mine", {"c_m": 24}).module.within, nn.MultiheadAttention)


def test_a_table_of_numbers_that_a_constructor_wants_is_a_tensor(tmp_path):
    text = UNCLEAR.format(more="odd, p=0.1").replace("return self", "return self.odd[:, : x.size(1)] + self")
    text = text.replace("self.inner,", "self.odd = odd\n        self.inner,", 1)
    assert load(f"{file(tmp_path, text)}:Mine").module.odd.shape[-1] == 64


@pytest.mark.parametrize("read", ["cfg.part.width", "cfg['part']['width']"])
def test_a_config_in_a_config_answers_to_the_same_words(tmp_path, read):
    text = UNCLEAR.replace("dim, c_m, {more}", "cfg").replace("super", f"dim = c_m = {read}\n        super")
    assert load(f"{file(tmp_path, text)}:Mine", {"d_model": 24}).module.inner.in_features == 24


@pytest.mark.parametrize(
    ("given", "width", "order"),
    [("config", "config.dim", "config.order"), ("**options", "options['dim']", "self.options['order']")],
)
def test_settings_that_only_forward_reads_are_given_once_it_asked_for_them(tmp_path, given, width, order):
    text = f"""
import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, {given}):
        super().__init__()
        self.{given.strip("*")} = {given.strip("*")}
        self.inner = nn.Linear({width}, {width})

    def forward(self, x):
        if {order.replace("config", "self.config")} == "twice":
            x = self.inner(x)
        return self.inner(x)
"""
    found = ways_to_load(f"{file(tmp_path, text)}:Mine")
    with pytest.raises(ModuleError, match="order") as asked:
        interview(next(found))
    patient = found.send(asked.value)
    assert interview(patient).in_words == "forward(x)"
    assert "'order': 'twice'" in str(patient.arguments) or patient.arguments["config"].order == "twice"


def test_a_call_of_another_class_of_that_name_says_nothing(tmp_path):
    path = file(tmp_path, UNCLEAR.format(more="p=0.1") + "\ndef other():\n    return Mine(1, 2, 3, 4, 5)\n")
    assert list(literal_calls(ways(path))) == []


def ways(path: str) -> type:
    return type(next(ways_to_load(f"{path}:Mine", {"c_m": 3})).module)


def test_a_part_is_built_as_a_larger_class_of_its_file_builds_it(tmp_path):
    text = PARTED.format(parameters="attending, breadth", part="attending", size="breadth") + WHOLE
    patient = load(f"{file(tmp_path, text)}:Layer")
    assert (type(patient.module.part).__name__, patient.module.size) == ("Attention", 40)
    assert patient.notes == ("as Whole builds it",)
    assert patient.build({"d_model": 12}).part.map.in_features == 12


def test_a_class_is_as_it_was_once_its_instances_were_noted():
    class Derived(nn.Linear):
        pass

    with watched(Derived) as seen:
        Derived(3, out_features=4, bias=False)
    assert seen == [{"in_features": 3, "out_features": 4, "bias": False}]
    assert "__init__" not in vars(Derived)
    assert list(callers_of(Derived)) == []


@pytest.mark.parametrize(
    ("parameters", "part", "kind"),
    [("attention", "attention", "Attention"), ("encoder_fn", "encoder_fn", "Linear"), ("fn", "nn.Sequential(fn)", "")],
)
def test_a_required_module_is_of_the_class_it_is_named_after_or_a_linear_map_where_it_is_called(
    tmp_path, parameters, part, kind
):
    text = PARTED.format(parameters=parameters, part=part, size=64).replace("self.part(x)", f"self.{parameters}(x)")
    target = f"{file(tmp_path, text.replace('self.part,', f'self.{parameters},'))}:Layer"
    made = load(target).module if kind else load(target).module.fn[0]
    assert type(getattr(made, parameters, made)).__name__ == (kind or "Linear")


def test_what_a_constructor_hands_on_by_name_is_guessed_too(tmp_path):
    text = PARTED.format(parameters="*, dim, depth", part="Attention(dim)", size="depth")
    text += "\nclass Outer(nn.Module):\n    def __init__(self, **others):\n        super().__init__()\n"
    text += "        self.layer = Layer(**others)\n    def forward(self, x):\n        return self.layer(x)\n"
    layer = load(f"{file(tmp_path, text)}:Outer").module.layer
    assert (layer.part.map.in_features, layer.size) == (64, 2)


def test_a_wide_default_of_any_name_is_made_narrow(tmp_path):
    text = UNCLEAR.format(more="breadth=2048").replace("nn.Linear(dim, c_m)", "nn.Linear(breadth, breadth)")
    patient = load(f"{file(tmp_path, text)}:Mine", {"c_m": 16})
    assert patient.module.inner.in_features == 64
    assert "breadth made 64, to be quick" in patient.notes


def test_the_next_way_is_taken_where_the_first_cannot_be_called(tmp_path):
    text = UNCLEAR.format(more="p=0.1").replace("c_m, p", "heads, p").replace("c_m)", "dim)").replace("c_m,", "dim,")
    text = text.replace("return self.outer", "assert self.heads == 3\n        return self.outer")
    text = text.replace("self.inner, self", "self.heads = heads\n        self.inner, self") + "\nmine = Mine(8, 3)\n"
    assert "heads=3" in doctor(f"{file(tmp_path, text)}:Mine").assumptions["sizes"]


LISTED = """
class ReaderLayer(nn.Module):
    def __init__(self, mixing, d_model):
        super().__init__()
        self.mixing, self.map = mixing, nn.Linear(d_model, d_model)
    def forward(self, x, mask=None):
        y, weights = self.mixing(x, x, x, attn_mask=mask)
        return self.map(y)

class Reader(nn.Module):
    def __init__(self, attn_layers, norm_layer=None):
        super().__init__()
        self.attn_layers = nn.ModuleList(attn_layers)
    def forward(self, x):
        for layer in self.attn_layers:
            x = layer(x)
        return x
"""


def test_a_list_of_layers_is_of_the_class_that_is_named_so_and_what_gets_three_tensors_attends(tmp_path):
    layers = load(f"{file(tmp_path, LISTED)}:Reader").module.attn_layers
    assert [type(layer).__name__ for layer in layers] == ["ReaderLayer", "ReaderLayer"]
    assert type(layers[0].mixing) is nn.MultiheadAttention


ELSEWHERE = """
from .mine import Attention, Layer

class Elsewhere(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.layer = Layer(Attention(width), width)
    def forward(self, x):
        return self.layer(x)
"""


@pytest.fixture
def repository(tmp_path):
    """A class in a package, and another file two folders away that builds it."""
    (tmp_path / "README.md").write_text("")
    for folder in ("package", "package/parts", "package/parts/deep"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    text = PARTED.format(parameters="attending, breadth", part="attending", size="breadth")
    return tmp_path, file(tmp_path / "package/parts/deep", text)


def test_a_part_is_built_as_a_class_of_another_file_of_its_repository_builds_it(repository):
    top, path = repository
    (top / "package/whole.py").write_text(HEADER + ELSEWHERE.replace(".mine", ".parts.deep.mine"))
    patient = load(f"{path}:Layer")
    assert (type(patient.module.part).__name__, patient.module.size) == ("Attention", 40)
    assert patient.notes == ("as Elsewhere builds it",)


def test_a_file_that_runs_something_is_read_and_never_imported(repository):
    top, path = repository
    script = f"from package.parts.deep.mine import *\n{ELSEWHERE.partition('Layer')[2]}\nopen('{top}/ran', 'w')\n"
    (top / "train.py").write_text(HEADER + script + "Layer(None, breadth=24)\n")
    assert type(load(f"{path}:Layer").module.part).__name__ != "Attention"
    assert list(literal_calls(type(load(f"{path}:Attention").module))) == [{"dim": 40}]
    assert not (top / "ran").exists()


def test_what_no_name_tells_is_as_the_repository_sets_it(repository):
    top, path = repository
    Path(path).write_text(HEADER + UNCLEAR.format(more="kind, p=0.1"))
    (top / "options.py").write_text("parser.add_argument('--c_m', type=int, default=12)\n")
    (top / "model.yaml").write_text("model:\n  kind: plain\n")
    assert dict(load(f"{path}:Mine").arguments) == {"dim": 64, "c_m": 12, "kind": "plain"}


DERIVED = """
class Small(Mine):
    def __init__(self, p=0.3):
        super().__init__(8, c_m=20, p=p)

class Smaller(Small):
    def __init__(self):
        super(Smaller, self).__init__(p=0.4)
"""


def test_what_no_name_tells_is_taken_from_how_a_derived_class_calls_it(tmp_path):
    patient = load(f"{file(tmp_path, UNCLEAR.format(more='p') + DERIVED)}:Mine")
    assert patient.module.inner.out_features == 20
    assert patient.arguments["p"] == 0.3


KEYWORDS = """
class Mine(nn.Module):
    def __init__(self, dim, wanted, **more):
        super().__init__()
        self.causal, self.map = more["causal_mask"], nn.Linear(dim, {width})
    def forward(self, x):
        return self.map(x)
"""


def test_what_a_constructor_reads_from_its_keywords_is_guessed_by_name(tmp_path):
    assert load(f"{file(tmp_path, KEYWORDS.format(width='dim'))}:Mine").arguments["causal_mask"] is True


def test_a_refusal_says_what_was_supposed_and_how_it_failed(tmp_path):
    with pytest.raises(SpecError, match=r"Give --arg wanted=64 .*tried with wanted=64: .*ZeroDivisionError"):
        load(f"{file(tmp_path, KEYWORDS.format(width='dim // 0'))}:Mine")


def test_the_name_of_a_file_is_no_config(tmp_path):
    text = """
class Mine(nn.Module):
    def __init__(self, conf):
        super().__init__()
        self.map = nn.Linear(conf["wide"], conf["wide"])
    def forward(self, x):
        return self.map(x)

def run():
    conf = "conf.yaml"
    return Mine(conf)
"""
    (tmp_path / "README.md").touch()
    (tmp_path / "settings.yaml").write_text("wide: 24\n")
    assert load(f"{file(tmp_path, text)}:Mine").module.map.in_features == 24
