"""The front door: tables of contents that cost nothing to read, say what they hold, and never change with the order."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attnlab

MOST_NAMES = 22
PACKAGE = Path(attnlab.__file__).parent
ROOMS = ("nn", "models", "tasks", "training", "inspection", "doctor", "studies")
LAZY = [
    found.name
    for found in [pkgutil.ModuleInfo(None, "attnlab", True), *pkgutil.walk_packages(attnlab.__path__, "attnlab.")]
    if found.ispkg and "= contents(" in Path(importlib.import_module(found.name).__file__).read_text(encoding="utf-8")
]


def fresh(code: str) -> str:
    """Run a program in a process that has imported nothing."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_front_door_shows_at_a_glance():
    assert 0 < len(attnlab.__all__) <= MOST_NAMES
    assert (PACKAGE / "py.typed").exists()


def test_reading_contents_imports_no_torch():
    rooms = ", ".join(LAZY)
    assert fresh(f"import {rooms}, sys; dir(attnlab), attnlab.__version__; print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize("package", LAZY)
def test_every_name_of_the_contents_is_there_for_readers_types_and_programs(package):
    room = importlib.import_module(package)
    assert sorted(room.__all__) == [name for name in dir(room) if name not in ROOMS or name in room.__all__]
    assert all(getattr(room, name) is not None for name in room.__all__)
    tree = ast.parse(Path(room.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    assert sorted(alias.name for line in guarded.body for alias in line.names) == sorted(room.__all__)


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "doctor"])
def test_rooms_need_no_import_of_their_own(room):
    assert fresh(f"import attnlab; print(attnlab.{room}.__name__)") == f"attnlab.{room}"


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'attnlab' has no attribute 'Atention'"):
        getattr(attnlab, "Atention")


@pytest.mark.parametrize(
    "before",
    [
        "import attnlab.doctor.engine",
        pytest.param("from attnlab.doctor import Finding", marks=pytest.mark.slow),
        pytest.param("import attnlab", marks=pytest.mark.slow),
        "import attnlab.inspection.capture",
    ],
)
def test_a_function_and_the_room_it_is_named_after_do_not_hide_each_other(before):
    lines = [before, "import attnlab, types"]
    for name, room in (("doctor", "attnlab.doctor"), ("capture", "attnlab.inspection")):
        lines += [
            f"from attnlab import {name}",
            f"from {room} import {name} as again",
            f"assert {name} is again is attnlab.{name} and isinstance({name}, types.FunctionType)",
            "from attnlab.doctor import Diagnosis; import attnlab.doctor.engine",
            f"assert attnlab.{name} is {name}",
        ]
    assert fresh("\n".join([*lines, "print('fine')"])) == "fine"


def test_the_version_is_the_one_that_is_shipped():
    project = tomllib.loads((PACKAGE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert attnlab.__version__ == project["version"]


def test_the_source_distribution_holds_what_its_tests_and_targets_need():
    root = PACKAGE.parent.parent
    build = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    texts = {path: path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*.py")}
    named = {name for text in texts.values() for name in re.findall(r'ROOT / "([^"]+)"', text)}
    named |= set(re.findall(r"(?<![\w./)])([\w.-]+)/", (root / "Makefile").read_text(encoding="utf-8")))
    made = {line.strip("/") for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines()}
    needed = {name for name in named - made if (root / name).exists()}
    assert {"benchmarks", ".ci", "docs"} <= needed
    assert needed <= {name.strip("/") for name in build["targets"]["sdist"]["include"]}
