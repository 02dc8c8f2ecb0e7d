"""From a specification to an object."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from attnlab.core.build import SIZE_ALIASES, Spec, build, check_arguments, is_path, load_object, parse, prepare
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
        ({"name": "wheel", "d_model": 5, "spokes": "lots"}, "'spokes' must be Literal['few', 'many']; got 'lots'"),
        ({"name": "wheel", "d_model": 5, "radius": -1.0}, "part 'wheel': radius must be positive; got -1.0"),
        ({"name": "cart", "wheel": "weel"}, "part 'cart': unknown wheel 'weel'; did you mean 'wheel'?"),
        ({"name": "cart", "sizes": [2, "3"]}, "'sizes' must be list[int] | None"),
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


@pytest.mark.parametrize(
    ("canonical", "alias"), [(word, alias) for word, names in SIZE_ALIASES.items() for alias in names]
)
def test_every_alias_is_understood(tmp_path, canonical, alias):
    values = OFFERED | MORE
    assert given_to(tmp_path, alias, **MORE) == {alias: values[canonical]}


def test_no_word_stands_for_two_sizes():
    words = [word for canonical, aliases in SIZE_ALIASES.items() for word in (canonical, *aliases)]
    assert len(words) == len(set(words))


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
