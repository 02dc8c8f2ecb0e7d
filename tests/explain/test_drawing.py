"""Figures of models: what is drawn is what is computed, nothing overlaps, and a person can read it."""

from __future__ import annotations

import copy
import functools
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from tests.studies.conftest import TINY
from torch import nn

import attnlab
from attnlab.cli import FINE, WRONG_USE, call
from attnlab.core.constructors import is_required, signature_of
from attnlab.core.errors import SpecError
from attnlab.explain.drawing import attention, draw, draw_model
from attnlab.explain.drawing.attention import layers
from attnlab.explain.drawing.figure import laid_out
from attnlab.explain.drawing.letters import width_of
from attnlab.explain.drawing.masks import in_words, matrix
from attnlab.explain.drawing.models import halves
from attnlab.explain.drawing.nodes import Box, Column, Frame, Skip, children, folded, parameters_in, walk
from attnlab.explain.drawing.reading import MOST_HELD, Reading, read
from attnlab.inspection import count_parameters
from attnlab.models import ByteNet, Decoder, Encoder, EncoderDecoder
from attnlab.models.parsers.parser import AbstractParser
from attnlab.models.parsers.rnng import Rnng
from attnlab.nn import Attention
from attnlab.nn.axes.combiners import COMBINERS
from attnlab.nn.axes.heads import HEADS, AbstractHeads
from attnlab.nn.axes.masks import Causal, Full, Window
from attnlab.nn.axes.normalizers import NORMALIZERS, AbstractNormalizer
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.axes.scores import SCORES, AbstractScore
from attnlab.nn.feedforward import FEEDFORWARDS
from attnlab.nn.mixers import MIXERS
from attnlab.nn.norms import NORMS
from attnlab.studies.define.assemble import build_model_offered
from attnlab.studies.define.reading import library
from attnlab.studies.define.study import load_study, parse_study
from attnlab.studies.plan.plan import plan_study

SVG = "{http://www.w3.org/2000/svg}"
OFFERED = {
    "shapes": {"d_in": 1, "d_out": 1, "max_length": 11, "length": 11},
    "char-lm": {"vocab_size": 13, "max_length": 64},
    "repeated-tokens": {"vocab_size": 13, "max_length": 64},
    "translation": {"source_vocab_size": 101, "target_vocab_size": 101, "max_length": 64, "pad": 0},
    "parsing": {
        "source_vocab_size": 101,
        "target_vocab_size": 37,
        "max_length": 64,
        "pad": 0,
        "word_starts": [*range(3, 60)],
        "brackets": {"close": 3, "labels": 20, "tags": 13},
        "chains": [[4], [5], [4, 5]],
    },
}
"""What tasks offer to models, without their data."""
NORM, ATTENTION = "Layer norm", "Masked multi-head attention"


@functools.cache
def models(study: str) -> dict[str, nn.Module]:
    """Build the models of a study of the library without weights and without data."""
    asked = load_study(study)
    offered = OFFERED[asked.task if isinstance(asked.task, str) else asked.task["name"]]
    with torch.device("meta"):
        return {name: build_model_offered(asked.model_spec(name), offered) for name in asked.variants}


def decoder(**arguments) -> Decoder:
    sizes = {"d_model": 12, "n_layers": 2, "mixer": {"name": "attention", "n_heads": 3}}
    with torch.device("meta"):
        return Decoder(13, 11, **{**sizes, **arguments})


def encoder_decoder(**arguments) -> EncoderDecoder:
    with torch.device("meta"):
        mixer = {"name": "attention", "n_heads": 3}
        return EncoderDecoder(13, 13, 11, d_model=12, n_layers=2, mixer=mixer, **arguments)


def sheet_of(model: nn.Module):
    reading = Reading()
    found = halves(model, reading)
    return laid_out(found, layers(reading.uses), type(model).__name__, "")


def column_of(model: nn.Module) -> Column:
    return halves(model, Reading()).columns[0]


def titles(node) -> list[str]:
    return [one.title for one in walk(node) if isinstance(one, Box)]


def skips(node) -> list[Skip]:
    return [one for one in walk(node) if isinstance(one, Skip)]


# What is drawn is what is computed


@pytest.mark.parametrize("study", library())
def test_parameters_of_boxes_add_up_to_those_of_the_model_and_of_its_attention_layers(study):
    for name, model in models(study).items():
        reading = Reading()
        found = halves(model, reading)
        assert sum(map(parameters_in, found.columns)) == count_parameters(model), name
        for layer in layers(reading.uses):
            wanted = count_parameters(layer.uses[0].attention)
            assert parameters_in(layer.heads) == wanted, name
            assert parameters_in(layer.inside) <= wanted


def needs_nothing(table) -> list[str]:
    asked = {name: {key for key, one in signature_of(part).items() if is_required(one)} for name, part in table.items()}
    return [
        name for name, arguments in asked.items() if arguments <= {"d_model", "n_heads", "d_head", "d_v", "max_length"}
    ]


ATTENTIONS = [
    {"name": "attention", "n_heads": 3, axis: name}
    for axis, table in (("heads", HEADS), ("scores", SCORES), ("normalizers", NORMALIZERS), ("combiners", COMBINERS))
    for name in needs_nothing(table)
    if name != "grouped"
]


@pytest.mark.parametrize(
    "arguments",
    [
        *({"mixer": mixer} for mixer in ATTENTIONS if mixer.get("combiners") != "concatenate"),
        *({"mixer": {"name": "attention", "n_heads": 4, "heads": {"name": "grouped", "n_kv_heads": 2}}},),
        *({"mixer": name} for name in needs_nothing(MIXERS)),
        *({"positions": name} for name in POSITIONS),
        *({"feedforward": name} for name in FEEDFORWARDS),
        *({"norm_kind": name} for name in NORMS),
        {"dropout": 0.1, "tied": False},
        {"mixer": [{"name": "attention", "n_heads": 3}, "lstm"]},
    ],
    ids=str,
)
def test_every_part_is_drawn_with_its_parameters_and_in_its_place(arguments):
    model = decoder(**arguments)
    assert parameters_in(column_of(model)) == count_parameters(model)
    check_places(*sheet_of(model))


@pytest.mark.parametrize(
    "study", [pytest.param(name, marks=[pytest.mark.slow] * (name == "vaswani-table-3")) for name in library()]
)  # the rows of that one differ in sizes
def test_modules_are_called_in_the_order_in_which_they_are_drawn(study):
    built, task = models(study).items(), load_study(study).task["name"]
    as_held = (AbstractParser, Rnng)  # drawn as what they hold; the former read values too
    for name, model in ((name, one) for name, one in built if not isinstance(one, as_held)):
        called = calls(model, task)
        for column in halves(model, Reading()).columns:
            at = 0
            for path in paths_along(column):
                module = model.get_submodule(re.sub(r"(\d+)-\d+", r"\1", path))
                if module in called:
                    assert module in called[at:], f"{name}: {path}"
                    at = called.index(module, at) + 1


def calls(model: nn.Module, task: str) -> list[nn.Module]:
    """The modules that a forward pass calls, as they are called."""
    called: list[nn.Module] = []
    handles = [one.register_forward_pre_hook(lambda module, _: called.append(module)) for one in model.modules()]
    tokens = torch.zeros(2, 7, dtype=torch.long, device="meta")
    sequence = torch.zeros(2, 11, 1, device="meta")
    inputs = {
        "shapes": (sequence,),
        "char-lm": (tokens,),
        "repeated-tokens": (tokens,),
        "translation": (tokens, tokens),
        "parsing": (tokens, tokens),
    }
    with torch.no_grad():
        model(*inputs[task])
    for handle in handles:
        handle.remove()
    return called


def paths_along(node) -> list[str]:
    """The paths of the modules on the way up, those at its side and those that are used again left out."""
    main = [node.main] if hasattr(node, "main") else children(node)
    own = [node.path] if isinstance(node, Box) and node.path not in ("", "drop") and "," not in node.path else []
    return own + [path for child in main for path in paths_along(child)]


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("block", ["transformer", "literal"])
def test_an_arrow_leads_around_a_part_where_its_input_is_added(block, norm, residual):
    model = decoder(block={"name": block, "norm": norm, "residual": residual}, init="torch")
    frame = next(one for one in column_of(model).items if isinstance(one, Frame))
    wirings = [one for key, one in Decoder(13, 11, **small(block, norm, residual)).named_modules() if "around" in key]
    wirings = [one for one in wirings if hasattr(one, "residual")][: 2 if block == "transformer" else 1]
    x = torch.randn(2, 5, 12)
    added = [not torch.allclose(one(x, torch.zeros_like), torch.zeros_like(x)) for one in wirings]
    assert added == [residual] * len(wirings)
    assert len(skips(frame)) == sum(added)


def small(block, norm, residual) -> dict:
    wiring = {"name": block, "norm": norm, "residual": residual}
    return {
        "d_model": 12,
        "n_layers": 1,
        "mixer": {"name": "attention", "n_heads": 3},
        "block": wiring,
        "init": "torch",
    }


def test_pre_norm_stands_before_the_mixer_and_inside_the_arrow():
    column = column_of(decoder(norm="pre"))
    first, second = skips(column)
    assert titles(first) == [NORM, ATTENTION]
    assert titles(second) == [NORM, "Feed forward"]
    assert titles(column).count(NORM) == 3  # and one behind the last block


def test_post_norm_stands_after_the_addition():
    column = column_of(decoder(norm="post"))
    frame = next(one for one in column.items if isinstance(one, Frame))
    assert [titles(one) for one in frame.body.items] == [[ATTENTION], [NORM], ["Feed forward"], [NORM]]
    assert [type(one) for one in frame.body.items] == [Skip, Box, Skip, Box]


def test_places_of_norm_mixer_and_addition_follow_from_bottom_to_top():
    for norm in ("pre", "post"):
        sheet, _ = sheet_of(decoder(norm=norm, feedforward="none"))
        top = {one.node.title: one.y for one in reversed(sheet.rectangles) if isinstance(one.node, Box)}
        addition = min(y for _, y in sheet.circles)
        foot = max(line.points[0][1] for line in sheet.lines if len(line.points) == 4)
        inside = next(one for one in sheet.rectangles if isinstance(one.node, Frame))
        norm_y = next(one.y for one in sheet.rectangles if one.node.title == NORM and one.inside is not None)
        assert inside.y < addition < top[ATTENTION] < foot
        assert (top[ATTENTION] < norm_y < foot) if norm == "pre" else (inside.y < norm_y < addition)


@pytest.mark.parametrize("study", library())
def test_numbers_of_layers_and_heads_are_those_of_the_model(study):
    for name, model in models(study).items():
        found = halves(model, Reading())
        drawn = sum(layers_in(column) for column in found.columns)
        stacks = [one.blocks for one in model.modules() if hasattr(one, "blocks")]
        if stacks:
            assert drawn == sum(map(len, stacks)), name
        heads = [one.n_heads for one in model.modules() if isinstance(one, AbstractHeads)]
        assert {int(number) for number in re.findall(r"(\d+) heads? ", said(found))} == set(heads), name


def layers_in(node) -> int:
    inner = sum(map(layers_in, children(node)))
    return (node.times or 1) * max(1, inner) if isinstance(node, Frame) and node.times else inner


def said(found) -> str:
    return " ".join(note for column in found.columns for one in walk(column) for note in getattr(one, "notes", ()))


def test_the_heads_of_grouped_queries_are_counted_for_queries_and_for_keys():
    mixer = {"name": "attention", "n_heads": 6, "heads": {"name": "grouped", "n_kv_heads": 2}}
    (layer,) = attention_layers(decoder(mixer=mixer))
    q, k, v = (one for one in walk(layer.heads) if isinstance(one, Box) and one.kind == "linear" and one.copies > 1)
    assert (q.copies, k.copies, v.copies) == (6, 2, 2)
    assert "each for 3 query heads" in k.notes


def attention_layers(model):
    reading = Reading()
    halves(model, reading)
    return layers(reading.uses)


@pytest.mark.parametrize(
    ("mixer", "expected"),
    [
        ({}, ["MatMul", "Scale", "Mask", "Softmax", "MatMul"]),
        ({"scores": "dot"}, ["MatMul", "Mask", "Softmax", "MatMul"]),
        ({"scores": "bilinear"}, ["Linear", "MatMul", "Scale", "Mask", "Softmax", "MatMul"]),
        ({"scores": "additive"}, ["Linear", "Linear", "Add", "Tanh", "Linear", "Mask", "Softmax", "MatMul"]),
        ({"scores": "cosine"}, ["To length 1", "To length 1", "MatMul", "Scale", "Mask", "Softmax", "MatMul"]),
        ({"positions": "rotary"}, ["Rotate", "Rotate", "MatMul", "Scale", "Mask", "Softmax", "MatMul"]),
        ({"positions": "linear-bias"}, ["MatMul", "Scale", "Linear bias", "Mask", "Softmax", "MatMul"]),
        (
            {"normalizers": "sparsemax", "dropout": 0.5},
            ["MatMul", "Scale", "Mask", "Sparsemax", "Dropout 0.5", "MatMul"],
        ),
        (
            {"combiners": "talking-heads"},
            ["MatMul", "Scale", "Mix scores", "Mask", "Softmax", "Mix weights", "MatMul"],
        ),
    ],
)
def test_the_steps_inside_a_head_are_those_of_its_parts(mixer, expected):
    d_head = {"heads": {"name": "split", "d_head": 4}}
    (layer,) = attention_layers(decoder(mixer={"name": "attention", "n_heads": 3, **d_head, **mixer}, positions="none"))
    assert titles(layer.inside) == expected


@pytest.mark.parametrize(("power", "factor"), [(0.5, "1 / √7"), (1, "1 / 7"), (0.25, "1 / 7^0.25"), (2, "1 / 7^2")])
def test_the_factor_of_scores_is_the_one_of_the_module(power, factor):
    scores = {"name": "scaled-dot", "power": power}
    (layer,) = attention_layers(decoder(d_model=21, mixer={"name": "attention", "n_heads": 3, "scores": scores}))
    (scale,) = [one for one in walk(layer.inside) if getattr(one, "title", "") == "Scale"]
    assert scale.notes == (factor,)
    assert layer.uses[0].attention.scores.scale == pytest.approx(7**-power)


def test_a_product_that_is_divided_by_one_is_drawn_as_the_product_alone():
    mixer = {"name": "attention", "n_heads": 3, "normalizers": "hardmax"}
    drawn = [decoder(mixer={**mixer, "scores": scores}) for scores in ("dot", {"name": "scaled-dot", "power": 0})]
    one, other = map(draw_model, drawn)
    assert one.svg == other.svg
    assert "Dot-product attention" in one.svg


@pytest.mark.parametrize(("drawn", "table"), [(attention.NORMALIZERS, NORMALIZERS), (attention.SCORES, SCORES)])
def test_every_part_of_the_lab_has_words_in_the_drawing(drawn, table):
    assert set(drawn) == set(table.values())


def test_masks_are_drawn_as_they_are():
    mask = Causal() & Window(3)
    assert in_words(mask) == "no later key, no key 3 or more away"
    assert torch.tensor(matrix(mask)).equal(mask.allowed(8, 8))
    assert matrix(Window(20)) is None  # eight positions would look like no mask at all
    mixer = {"name": "attention", "n_heads": 3, "masks": {"name": "window", "width": 3}}
    assert draw_model(decoder(mixer=mixer)).svg.count('fill="#4a5468"') == 8 + 7 + 6
    with torch.device("meta"):
        (layer,) = attention_layers(Encoder(1, 1, 11, d_model=12, n_layers=1))
    assert (layer.uses[0].attention.mask, "Mask" in titles(layer.inside)) == (Full(), False)


def test_layers_that_differ_in_their_mask_alone_are_drawn_once_and_listed():
    model = encoder_decoder()
    (layer,) = attention_layers(model)
    assert len(layer.uses) == 6
    text = draw_model(model).svg
    for listed in ("encoder.blocks.0-1.mixer", "decoder.blocks.0-1.mixer", "decoder.blocks.0-1.cross"):
        assert f">{listed}</text>" in text
    assert "decoder.blocks.0.cross: keys and values from the encoder's output; it sees every key, no padding." in text
    assert [use.source for use in layer.uses].count("its own input") == 4
    assert len(attention_layers(encoder_decoder(positions="rotary"))) == 2  # only within a side


def test_what_the_encoder_makes_enters_every_box_that_looks_at_it():
    model = encoder_decoder()
    sheet, _ = sheet_of(model)
    (bridge,) = [line for line in sheet.lines if len(line.points) == 5]
    edge, height = bridge.points[-1]
    entered = [one for one in sheet.rectangles if one.x == pytest.approx(edge) and one.y < height < one.y + one.height]
    assert [one.node.title for one in entered] == ["Multi-head attention"]


def test_tied_weights_are_named_and_counted_once():
    boxes = [one for one in walk(column_of(decoder())) if isinstance(one, Box)]
    assert [(one.parameters, one.notes[-1]) for one in boxes if one.path == "logits"] == [
        (0, "the weights of embedding")
    ]
    boxes = [one for one in walk(column_of(decoder(tied=False))) if isinstance(one, Box)]
    assert [one.parameters for one in boxes if one.path == "logits"] == [13 * 12 + 13]


def test_layers_repeat_as_they_are_built():
    a, b, c = (Box(name) for name in "abc")
    assert [one.times for one in folded([a, a, b], "x")] == [2, 1]
    (twice,) = folded([a, b, b, a, b, b], "x")
    assert (twice.times, [one.times for one in twice.body.items]) == (2, [1, 2])
    assert folded([a, b, c], "x", framed=False) == [a, b, c]
    with torch.device("meta"):
        model = ByteNet(13, 13, d_model=12, n_sets=3, dilations=(1, 2))
    frames = [one for column in halves(model, Reading()).columns for one in walk(column) if isinstance(one, Frame)]
    assert [(one.times, len(one.body.items)) for one in frames] == [(3, 2), (3, 2)]


# Modules that nobody here knows


class Own(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.bonus = nn.Parameter(torch.zeros(2, 3))
        self.heads = nn.ModuleList(nn.Linear(d_model, 4) for _ in range(5))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return (q @ k.transpose(1, 2)).tril() @ v


class OwnScore(AbstractScore):
    def __init__(self, d_head):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_head))

    def forward(self, q, k):
        return (q * self.weight) @ k.transpose(-2, -1)

    def as_dot(self, q, k):
        return None


class MySoftmax(AbstractNormalizer):
    def forward(self, scores, allowed):
        return scores.softmax(-1)


def test_a_module_of_a_persons_own_is_drawn_as_what_it_holds():
    model = Decoder(13, 11, d_model=12, n_layers=2, mixer=Own)
    column = column_of(model)
    (own,) = [one for one in walk(column) if getattr(one, "title", "") == "Own"]
    assert (own.kind, own.note) == ("own", "734 parameters")
    assert titles(own) == ["Linear", "Linear", "bonus"]
    assert [one.times for one in walk(own) if isinstance(one, Frame) and one.times] == [5]
    assert parameters_in(column) == count_parameters(model)
    sheet, size = sheet_of(model)
    check_places(sheet, size)
    assert (
        "<title>stack.blocks.0-1.mixer.module.bonus: 6 parameters in each of 2 layers</title>" in draw_model(model).svg
    )


def test_a_part_of_a_persons_own_is_drawn_with_the_name_of_its_class():
    mixer = functools.partial(Attention, n_heads=3, scores=OwnScore, normalizers=MySoftmax)
    model = Decoder(13, 11, d_model=12, n_layers=1, mixer=mixer)
    (layer,) = attention_layers(model)
    assert titles(layer.inside) == ["OwnScore", "Mask", "MySoftmax", "MatMul"]
    assert parameters_in(layer.heads) == count_parameters(layer.uses[0].attention)
    assert "MySoftmax" in next(one.notes for one in walk(column_of(model)) if getattr(one, "title", "") == ATTENTION)


def test_a_kind_of_a_known_class_that_computes_something_else_is_not_drawn_as_that_class():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Renamed(nn.Linear):
        pass

    kinds = [one.kind for one in walk(column_of(nn.Sequential(Doubled(2, 3), Renamed(3, 2)))) if isinstance(one, Box)]
    assert kinds == ["own", "linear"]


def test_any_model_can_be_drawn_however_much_it_holds():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, batch_first=True), 2)
    column = column_of(model)
    assert parameters_in(column) == count_parameters(model)

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            for i in range(MOST_HELD + 5):
                self.add_module(f"part{i}", nn.Linear(2, i + 1))

    many = Many()
    assert titles(column_of(many)) == ["Linear"] * (MOST_HELD - 1) + ["6 more"]
    assert parameters_in(column_of(many)) == count_parameters(many)
    check_places(*sheet_of(many))


# Nothing overlaps


def overlap(one, other) -> bool:
    across = one.x < other.x + other.width and other.x < one.x + one.width
    return across and one.y < other.y + other.height and other.y < one.y + one.height


def within(one, other) -> bool:
    right, lower = one.x + one.width <= other.x + other.width, one.y + one.height <= other.y + other.height
    return other.x <= one.x and other.y <= one.y and right and lower


def around(one, rectangles) -> list[int]:
    return [] if one.inside is None else [one.inside, *around(rectangles[one.inside], rectangles)]


def crosses(start, end, box) -> bool:
    """Whether an upright or level piece of a line runs through the inside of a box."""
    (x0, x1), (y0, y1) = sorted((start[0], end[0])), sorted((start[1], end[1]))
    return x0 < box.x + box.width - 1 and x1 > box.x + 1 and y0 < box.y + box.height - 1 and y1 > box.y + 1


def check_places(sheet, size) -> None:
    """All is on the canvas, boxes stand in their frames and beside each other, no line runs through a box or a text."""
    boxes = [one for one in sheet.rectangles if isinstance(one.node, Box)]
    for one in sheet.rectangles:
        assert one.x >= 0
        assert one.y >= 0
        assert one.x + one.width <= size[0]
        assert one.y + one.height <= size[1]
        assert one.inside is None or within(one, sheet.rectangles[one.inside]), one.node
    for (i, one), (j, other) in itertools.combinations(enumerate(sheet.rectangles), 2):
        nested = i in around(other, sheet.rectangles) or j in around(one, sheet.rectangles)
        assert nested or not overlap(one, other), (one.node, other.node)
    pieces = [piece for line in sheet.lines for piece in itertools.pairwise(line.points)]
    for start, end in pieces:
        assert start[0] == pytest.approx(end[0]) or start[1] == pytest.approx(end[1])
        assert not any(crosses(start, end, box) for box in boxes), (start, end)
    for words in sheet.words:
        width = width_of(words.text, words.size, bold=words.bold)
        left = words.x - {"start": 0, "middle": width / 2, "end": width}[words.anchor]
        assert left >= 0
        assert left + width <= size[0], words
        assert 0 <= words.y <= size[1]
        for box in boxes:
            beside = left >= box.x + box.width or left + width <= box.x
            assert beside or words.y <= box.y + 3 or words.y - words.size >= box.y + box.height - 3, (words, box.node)


@pytest.mark.parametrize("study", library())
def test_boxes_of_every_variant_stand_on_the_canvas_and_beside_each_other(study):
    for model in models(study).values():
        check_places(*sheet_of(model))


def test_boxes_that_overlap_would_be_found():
    sheet, size = sheet_of(decoder())
    moved = copy.copy(sheet.rectangles[-1])
    object.__setattr__(moved, "x", moved.x + 5)
    sheet.rectangles.append(moved)
    with pytest.raises(AssertionError):
        check_places(sheet, size)


@pytest.mark.parametrize("study", library())
def test_texts_fit_in_their_boxes(study):
    for model in models(study).values():
        root = ElementTree.fromstring(draw_model(model).svg)
        for group in root.iter(f"{SVG}g"):
            front = group.findall(f"{SVG}rect")[-1]
            for text in group.findall(f"{SVG}text"):
                width = width_of(text.text, float(text.get("font-size")), bold=text.get("font-weight") is not None)
                assert width <= float(front.get("width")), text.text


# A person can read it


def test_the_picture_in_the_documentation_is_the_one_that_is_drawn():
    """Written by: attnlab draw vaswani-table-3 --variant base --out docs/images/transformer.svg"""
    written = (Path(__file__).parents[2] / "docs" / "images" / "transformer.svg").read_text(encoding="utf-8")
    assert written == draw_model(models("vaswani-table-3")["base"], title="base").svg


def test_a_figure_is_a_file_of_its_own_with_words_for_those_who_cannot_see_it():
    figure = draw_model(decoder(), title="pre & post <norm>")
    root = ElementTree.fromstring(figure.svg)
    assert root.find(f"{SVG}title").text == figure.title == "pre & post <norm>"
    assert root.find(f"{SVG}desc").text == figure.description
    for sentence in (
        "Decoder, 4,080 parameters.",
        "2 layers, each of them:",
        "Masked multi-head attention: 3 heads \N{MULTIPLICATION SIGN} 4, scaled dot-product, 624 parameters.",
        "Softmax: over the keys.",
        "stack.blocks.1.mixer: keys and values from its own input; it sees no later key.",
    ):
        assert sentence in figure.description
    boxes = [one for one in root.iter(f"{SVG}g") if one.get("class") == "box"]
    assert boxes
    assert all(re.search(r": [\d,]+ parameters?", one.find(f"{SVG}title").text) for one in boxes)
    assert "href" not in figure.svg
    assert figure._repr_svg_() == figure.svg


def test_the_same_model_gives_the_same_figure_and_stays_as_it_is():
    model = Decoder(13, 11, d_model=12, n_layers=1, mixer={"name": "attention", "n_heads": 3})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert draw_model(model) == draw_model(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_a_study_gives_the_models_that_it_would_train():
    said = copy.deepcopy(TINY)
    said["rules"]["match"] = "parameters"
    study = parse_study(said)
    figures = draw(study)
    assert list(figures) == ["plain", "with attention"]
    for variant in plan_study(study).variants:
        assert f"{variant.parameters:,} parameters." in figures[variant.name].description
    assert list(draw(study, variants=["plain"])) == ["plain"]


def test_an_unknown_variant_is_a_sentence_with_the_nearest_name():
    with pytest.raises(SpecError, match="'plane' is no variant of the study; did you mean 'plain'"):
        draw(parse_study(copy.deepcopy(TINY)), variants=["plane"])


STUDY = """\
question: "What does it look like?"
task: {name: shapes, n_train: 60, n_test: 11, batch: 20}
model: {name: cnn, channels: 6, kernel_size: 3, n_layers: 3}
baseline: plain
variants:
  plain: {}
  my own: {mixer: "./own.py:Mine", mixer_at: 1}
rules: {metric: test_mse, budget: {steps: 3}, seeds: 2, smallest_effect: 0.01}
scales: {wide: {model: {channels: 8}}}
"""
MINE = """\
import torch
import attnlab

attnlab.touched = True  # what it does to the process stays there

class Mine(torch.nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = torch.nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.linear(x).cumsum(1)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(STUDY)
    (tmp_path / "own.py").write_text(MINE)
    return tmp_path


def test_the_command_writes_a_file_for_each_variant_and_says_which(folder, capfd):
    assert call(["draw", "mine.yaml"]) == FINE
    assert capfd.readouterr().out.split() == ["mine-plain.svg", "mine-my-own.svg"]
    assert "Mine, 42 parameters, which holds:" in ElementTree.parse(folder / "mine-my-own.svg").findtext(f"{SVG}desc")
    assert not hasattr(attnlab, "touched")
    assert call(["draw", "mine.yaml", "--variant", "plain", "--scale", "wide"]) == FINE
    assert capfd.readouterr().out.split() == ["mine-wide-plain.svg"]
    assert call(["draw", "mine.yaml", "--variant", "plain", "--out", "x.svg"]) == FINE
    assert capfd.readouterr().out.split() == ["x.svg"]
    assert (folder / "x.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["mine.yaml", "--variant", "plane"], "did you mean 'plain'?"),
        (["mien.yaml"], "no study file mien.yaml"),
        (["shpaes"], "did you mean 'shapes'?"),
        (["mine.yaml", "--out", "x.svg"], "--out names one file, and there are 2 variants to draw"),
        (["mine.yaml", "--variant", "plain", "--out", "x.png"], "--out must end in .svg; got x.png"),
        (["mine.yaml", "--variant", "plain", "--out", "no/x.svg"], "No such file or directory: no/x.svg"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_use_of_the_command_is_a_sentence(arguments, expected, capfd):
    assert call(["draw", *arguments]) == WRONG_USE
    printed = capfd.readouterr()
    assert expected in " ".join(printed.err.split())
    assert "Traceback" not in printed.err + printed.out


def test_what_an_unknown_model_holds_stands_where_it_says():
    class Unknown(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])

    model = Unknown()
    paths = paths_along(read(model, "", Reading()))
    assert [model.get_submodule(path) for path in paths] == [model.first, model.second[0]]
