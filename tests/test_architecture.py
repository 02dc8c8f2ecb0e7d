"""The layout: imports point down the layers and their rooms, never up, never sideways; nothing grows too large."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

import attnlab

PACKAGE = Path(attnlab.__file__).parent
FILES = sorted(file for file in PACKAGE.rglob("*.py") if file.parent.name != "library")
"""All but modules that studies and cases name by their path, as a person's own: they are data."""
LAYERS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("text", "strangers"),
    ("nn",),
    ("models", "tasks"),
    ("inspection",),
    ("training",),
    ("doctor",),
    ("studies", "benchmarks"),
    ("explain", "viewer"),
    ("cli",),
    ("__main__", "pytest_plugin"),
)
"""Packages that lie beside each other never import each other."""
FORBIDDEN: dict[str, set[str]] = {
    "nn": {"text"},
    "models": {"text", "strangers"},
    "tasks": {"nn", "strangers"},
    "training": {"text", "strangers", "nn", "models", "tasks"},
    "inspection": {"text", "models", "tasks"},
    "doctor": {"nn", "models", "tasks", "training"},
    "studies": {"text", "strangers", "doctor"},
    "benchmarks": {"text", "strangers", "doctor"},
    "explain": {"text", "strangers", "benchmarks"},
    "viewer": {"text", "nn", "doctor", "benchmarks"},
}
"""What a package does without although it lies below: so `train` works for any model, the doctor for any module."""
ROOMS: dict[str, tuple[str, ...]] = {
    "core": ("errors", "constructors", "", "processes", "storage"),
    "strangers": ("containment", "texts", "said", "anatomy", "patient", "loading", "calling", "trying"),
    "nn": ("axes", "kernels", ""),
    "models": ("pretrained", "wiring", "stacks", "translator", "parsers", "", "decoding"),
    "tasks": ("", "shapes", "char_lm", "lm", "arrays", "translation", "parsing"),
    "training": ("recipe", "speed", "keeping", "devices", "run", "together", "tracking"),
    "inspection": ("drawing", "", "tape", "interventions", "attribution"),
    "doctor": ("", "influence", "measures", "checks", "interview", "engine", "__main__"),
    "studies": ("define", "storage", "plan", "using", "run", "judge", "report", "exporting", "stages", "execute"),
    "benchmarks": ("contenders", "measuring", ""),
    "explain": ("metrics", "case", "trials", "causes", "", "stages", "explaining", "drawing"),
    "viewer": ("inside", ""),
}
"""Rooms of a package from the lowest to the highest: folders, single files by name, and "" for its other own files."""
MOST_MODULES = 15
LONGEST_FUNCTION = 50


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def imported(file: Path) -> set[str]:
    """Every module of the lab that a file imports, without the leading ``attnlab.``."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("attnlab.") for name in found if name.startswith("attnlab.")}


def room_of(module: str) -> str:
    package, *rest = module.split(".")
    named = rest and (rest[0] in ROOMS.get(package, ()) or (PACKAGE / package / rest[0]).is_dir())
    return rest[0] if named else ""


def upward(module: str, imports: set[str]) -> list[str]:
    """What a module imports that lies above it or beside it: in another layer, or in a higher room of its package."""
    package = module.split(".", maxsplit=1)[0]
    depth = next(depth for depth, packages in enumerate(LAYERS) if package in packages)
    allowed = {name for packages in LAYERS[:depth] for name in packages} - FORBIDDEN.get(package, set())
    wrong = [name for name in imports if name.split(".")[0] not in allowed | {package}]
    if package in ROOMS and module != package:  # a package's own __init__ is its face
        order = ROOMS[package]
        height = order.index(room_of(module))
        inside = [name for name in imports if name.split(".")[0] == package and "." in name]
        wrong += [name for name in inside if room_of(name) in order and order.index(room_of(name)) > height]
    return sorted(wrong)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file):
    if module_of(file):
        assert not upward(module_of(file), imported(file))


def test_upward_and_sideways_imports_would_be_found(tmp_path):
    file = tmp_path / "sideways.py"
    file.write_text("from attnlab.models import MODELS\nimport attnlab.studies.plan.plan\n")
    assert imported(file) == {"models.MODELS", "studies.plan.plan"}
    assert upward("training.run.loop", imported(file)) == ["models.MODELS", "studies.plan.plan"]
    assert upward("training.speed.choosing", {"training.run.step.forward"}) == ["training.run.step.forward"]
    assert upward("models.stacks", {"tasks.codecs"}) == ["tasks.codecs"]
    assert not upward("studies.judge.verdicts", {"studies.run.cell", "core.errors", "training.train"})


def test_every_room_has_its_place():
    for package, order in ROOMS.items():
        folders = {folder.name for folder in (PACKAGE / package).iterdir() if (folder / "__init__.py").exists()}
        assert folders <= set(order), f"{package} has rooms without a place: {folders - set(order)}"


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=lambda folder: folder.name)
def test_folders_show_at_a_glance(folder):
    modules = [file for file in folder.glob("*.py") if not file.name.startswith("__")]
    assert len(modules) <= MOST_MODULES


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_functions_stay_small(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node)
            length = node.end_lineno - node.lineno + 1 - (len(docstring.splitlines()) + 2 if docstring else 0)
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines of code"


def test_no_drawer_for_odds_and_ends():
    names = {file.stem for file in FILES} | {file.parent.name for file in FILES}
    assert not names & {"utils", "helpers", "misc", "common", "base"}


RULED = tuple(name for packages in LAYERS for name in packages)
"""Packages whose classes are abstract or final, and which never ask an object for its concrete class."""
SUBCLASSED = {"EncoderDecoder", "TransformerBase", "AttnlabError", "TrainingError", "RunError"}
"""What is neither: presets are a model with other defaults, and errors are kinds of errors."""


@functools.cache
def trees(packages: tuple[str, ...]) -> list[ast.Module]:
    return [ast.parse(file.read_text(encoding="utf-8")) for name in packages for file in (PACKAGE / name).rglob("*.py")]


def is_open(node: ast.ClassDef) -> bool:
    """Whether a class is neither abstract nor final."""
    bases, marks = {ast.unparse(base) for base in node.bases}, {ast.unparse(mark) for mark in node.decorator_list}
    abstract = "Abstract" in node.name or bases & {"ABC", "Protocol"}
    return not (abstract or "final" in marks or node.name in SUBCLASSED)


def test_classes_are_abstract_or_final():
    assert not [
        node.name
        for tree in trees(RULED)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and is_open(node)
    ]


def test_no_object_of_the_lab_is_asked_for_its_concrete_class():
    classes = {node.name for tree in trees(("nn", "models")) for node in tree.body if isinstance(node, ast.ClassDef)}
    concrete = {name for name in classes if not name.startswith("Abstract")}
    for tree in trees(("nn", "models")):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                assert not concrete & {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}


def test_public_functions_name_their_arguments():
    functions = [node for tree in trees(RULED) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    handed_on = [one.name for one in functions if one.args.kwarg and not one.name.startswith("_")]
    assert set(handed_on) <= {"forward"}  # of stand-ins around modules that were not written here


def test_a_class_name_has_one_meaning_in_the_whole_lab():
    names = [node.name for tree in trees(RULED) for node in tree.body if isinstance(node, ast.ClassDef)]
    public = [name for name in names if not name.startswith("_")]
    assert sorted(set(public)) == sorted(public)
