"""Which values a repository gives to names, read and never run."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attnlab.strangers.loading.repository import files_around, trees_with
from attnlab.strangers.loading.sizes import supposed, usual
from attnlab.strangers.loading.values import calls_of, settings_of, value_of


@pytest.fixture
def top(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.py").write_text("WIDTH = 24\n")
    return tmp_path


def of(top: Path) -> Path:
    return top / "models" / "mine.py"


def test_the_files_of_a_repository_come_the_nearest_first_and_hidden_ones_and_packages_never(top):
    for name in ("models/beside.py", "train.py", "data/far.py", ".venv/x.py", "site-packages/y.py", "notes.txt"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text("")
    (top / "gone.py").symlink_to(top / "nowhere.py")
    assert [path.name for path in files_around(of(top))] == ["beside.py", "train.py", "far.py"]


def test_outside_of_a_repository_the_files_beside_are_all(tmp_path):
    for name in ("inner/mine.py", "inner/beside.py", "above.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [path.name for path in files_around(tmp_path / "inner" / "mine.py")] == ["beside.py"]


def test_only_files_that_hold_a_word_are_parsed_the_own_first(top):
    (top / "train.py").write_text("WIDTH\n")
    (top / "other.py").write_text("HEIGHT\n")
    assert [path.name for path, _ in trees_with(of(top), "WIDTH")] == ["mine.py", "train.py"]


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("run.py", "parser.add_argument('-w', '--model-width', default=12)", {"model_width": 12}),
        ("run.py", "parser.add_argument('--deep', action='store_true')", {"deep": False}),
        ("run.py", "@dataclass\nclass Sizes:\n    width: int = 7\n    name: str\n", {"width": 7}),
        ("run.py", "class TrainConfig:\n    def __init__(self, width=7, *, deep=2): ...\n", {"width": 7, "deep": 2}),
        (
            "run.py",
            "config = {'width': 7, 'made': f()}\nconfig.deep = 3\n_C.MODEL.HEADS = 2\n",
            {"deep": 3, "HEADS": 2},
        ),
        ("run.py", "config = {'inner': {'width': 7}}\n", {"inner": {"width": 7}, "width": 7}),
        ("run.py", "self.config = {'kinds': ['own', 'cross'] * 2, 'made': f()}", {"kinds": ["own", "cross"] * 2}),
        ("run.py", "cfg = dict(width=7, inner=dict(deep=3))\n", {"width": 7, "deep": 3}),
        ("run.py", "def usual_config():\n    return {'width': 7}\n", {"width": 7}),
        ("run.py", "args = 1\nwidth = 3 * 4\n", {"width": 12}),
        ("run.yaml", "model:\n  width: 7\n", {"model": {"width": 7}, "width": 7}),
        ("run.json", '{"width": [7, 8]}', {"width": [7, 8]}),
        ("run.yaml", "a: [", {}),
    ],
)
def test_settings_are_found_where_programs_keep_them(top, file, text, expected):
    (top / file).write_text(text)
    found = settings_of(of(top))
    assert {name: found.get(name) for name in expected} == expected


def test_zero_in_the_place_of_what_a_program_counts_is_no_value(top):
    (top / "run.yaml").write_text("n_items: 0\nn_users: 0\nwidth: 7\n")
    computed = "def train(cfg, items):\n    cfg.n_items = len(items)\n    cfg.width = f()\n    cfg.pad = 0\n"
    (top / "train.py").write_text(computed)
    found = settings_of(of(top))
    wanted = {"n_items": None, "n_users": 0, "width": 7, "pad": 0}
    assert {name: found.get(name) for name in wanted} == wanted


def test_a_table_of_settings_answers_by_attribute_also_for_what_another_file_sets(top):
    (top / "run.yaml").write_text("MODEL:\n  SPEC:\n    width: 7\n")
    (top / "defaults.py").write_text("config.MODEL.CLASSES = 10\n")
    model = settings_of(of(top))["MODEL"]
    assert (model.SPEC.width, model["SPEC"]["width"], model.CLASSES, hasattr(model, "other")) == (7, 7, 10, False)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("8", 8), ("[1, 2]", [1, 2]), ("width", 24), ("heads", 4), ("width // 2 + 1", 13), ("args.depth", 6),
        ("self.config.depth", 6), ("cfg['depth']", 6),
        ("self.config['depth']", 6), ("cfg['inner']['x']", 5), ("other.depth", None),
        ("other['depth']", None), ("f()", None),
        ("width / 0", None), ("local", 3),
    ],
)  # fmt: skip
def test_an_expression_of_what_is_known_has_a_value_and_no_other(argument, value):
    tree = ast.parse(f"width = 24\ndef build(heads=4):\n    local = 3\n    return Mine({argument})\n")
    settings = {"depth": 6, "inner": {"x": 5}}
    ((call, names),) = calls_of("Mine", tree, settings)
    assert value_of(call.args[0], names, settings) == value


def test_what_ends_in_a_word_for_a_size_is_a_whole_number():
    assert [usual(name) for name in ("act_dim", "norm_dim", "mask_size", "window_size", "act")] == [
        *(None, None, None),
        4,
        "gelu",
    ]


def test_what_may_be_a_word_or_a_function_is_a_function():
    assert usual("activation", str | Callable[[int], int]) is torch.nn.functional.gelu
    assert usual("activation", str) == "gelu"


def test_a_width_that_nothing_names_is_that_of_a_model():
    assert [usual(name, int) for name in ("question_dim", "asked_features", "asked")] == [64, 64, 4]


def test_what_is_told_what_happens_is_a_log_that_shows_nothing(capsys):
    (log,) = supposed("journal", "journal.warning('made'); self.journal = journal")
    copy.deepcopy(log).warning("made")
    assert capsys.readouterr().err == ""
