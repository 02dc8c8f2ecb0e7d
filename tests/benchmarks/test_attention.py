from __future__ import annotations

import json

import pytest
import torch

from attnlab.benchmarks.attention import (
    Group,
    bench_additive_memory,
    bench_attention,
    bench_layer,
    bench_window,
    groups,
)
from attnlab.benchmarks.attention_table import AttentionTable, LayerRow, Measured
from attnlab.benchmarks.contenders.by_hand import SdpaByHand
from attnlab.benchmarks.measuring.passes import Limits
from attnlab.core.errors import AttnlabError
from attnlab.nn.attention import Attention
from attnlab.nn.axes.heads import HEADS
from attnlab.nn.axes.masks import MASKS
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.scores import SCORES

GROUPS = {group.name: group for group in groups()}
ENVIRONMENT = {"torch": "2", "threads": 1, "cpu": "c", "device": "cpu"}


@pytest.mark.parametrize("name", GROUPS)
def test_the_call_by_hand_computes_what_the_layer_does(name):
    torch.manual_seed(0)
    layer = Attention(20, 4, **GROUPS[name].shared).double()
    by_hand = SdpaByHand(layer, 139).double()  # longer than the windows reach
    x = torch.randn(2, 139, 20, dtype=torch.float64)
    torch.testing.assert_close(by_hand(x), layer(x))


def test_every_part_is_measured():
    measured = {"scores": {"scaled-dot"}, "normalizers": {"softmax"}, "heads": {"split"}, "masks": {"none", "causal"}}
    for group in groups():
        for own in group.layers.values():
            for axis, spec in {**group.shared, **own}.items():
                if axis != "causal":
                    measured[axis].add(spec["name"] if isinstance(spec, dict) else spec)
    tables = {"scores": SCORES, "normalizers": NORMALIZERS, "heads": HEADS, "masks": MASKS}
    assert measured == {axis: set(table) for axis, table in tables.items()}


def test_rows_have_names_of_their_own():
    names = [name for group in groups() for name in group.layers]
    assert len(names) == len(set(names))


def small(lengths=(5, 11, 23), **limits):
    group = Group("all keys", {}, {"all keys": {}, "score additive": {"scores": "additive"}})
    window = Group("window 3", {"masks": {"name": "window", "width": 3}}, {"window 3": {}})
    return bench_attention(lengths=lengths, rounds=2, only=[group, window], limits=Limits(**limits))


def test_time_memory_and_ratios_are_measured_at_every_length():
    table = small(seconds=60.0)
    assert [row.name for row in table.rows] == [
        "SDPA, all keys",
        "all keys",
        "score additive",
        "SDPA, window 3",
        "window 3",
    ]
    assert [row.is_reference for row in table.rows] == [True, False, False, True, False]
    for row in table.rows:
        assert list(row.measured) == [5, 11, 23]
        assert all(len(measured.milliseconds) == 2 for measured in row.measured.values())
        assert not row.missing
    additive, plain = table.rows[2], table.rows[1]
    assert additive.measured[23].peak_bytes > plain.measured[23].peak_bytes


def test_too_much_memory_is_left_out_with_its_reason():
    table = small(seconds=60.0, gibibytes=1e-9)
    for row in table.rows:
        assert not row.measured
        assert list(row.missing) == [5, 11, 23]
        assert "GiB" in row.missing[5]


def test_a_layer_is_left_out_alone_where_its_reference_can_run():
    table = small(lengths=(64, 128), seconds=60.0, gibibytes=10 / 1024)  # at 64, additive takes 6 MiB, others 0.5
    rows = {row.name: row for row in table.rows}
    assert list(rows["all keys"].measured) == [64, 128]
    assert list(rows["score additive"].measured) == [64]
    assert list(rows["score additive"].missing) == [128]
    assert "not run: score additive from n = 128 on: would take up to" in str(table)


@pytest.mark.parametrize("lengths", [(), (8, 4), (4, 4)])
def test_lengths_must_rise(lengths):
    with pytest.raises(AttnlabError, match="lengths must rise"):
        bench_attention(lengths=lengths)


def known_table():
    reference = {8: Measured((2.0, 4.0), 2**20), 16: Measured((8.0, 8.0), 2**21)}
    layer = {8: Measured((1.0, 1.0), 2**20)}
    rows = (
        LayerRow("SDPA, all keys", "all keys", True, reference),
        LayerRow("score additive", "all keys", False, layer, {16: "would take up to 40 s a pass"}),
    )
    return AttentionTable("batch 1", rows, ENVIRONMENT)


def test_ratios_are_taken_round_by_round_within_the_group():
    table = known_table()
    assert table.ratios(table.rows[1], 8) == [2.0, 4.0]
    assert table.ratios(table.rows[0], 8) == [1.0, 1.0]


def test_the_table_is_read_by_a_person():
    printed = str(known_table())
    assert "score additive  3.00 (2.00 to 4.00)  not run" in printed
    assert printed.count("would take up to 40 s") == 1
    assert "not run: score additive from n = 16 on: would take up to 40 s a pass" in printed
    assert "torch 2, 1 thread(s), c, device cpu" in printed


def test_the_table_is_written_as_json():
    content = json.loads(json.dumps(known_table().to_json()))
    assert content["kind"] == "attention"
    reference, layer = content["rows"]
    assert layer["lengths"]["8"]["times_faster"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert layer["lengths"]["8"]["peak_bytes"] == 2**20
    assert layer["missing"] == {"16": "would take up to 40 s a pass"}
    assert layer["time_growth"] is None
    assert reference["memory_growth"]["exponent"] == pytest.approx(1)


def test_the_layer_is_compared_at_each_length():
    results = list(bench_layer(lengths=(5, 11), rounds=1))
    assert ["n = 5" in result.title for result in results] == [True, False]
    assert all(set(result.rows) == {"attnlab", "SDPA by hand"} for result in results)


def test_the_window_is_compared_with_a_mask_and_with_all_keys():
    result = bench_window(length=301, rounds=1)
    assert result.reference == "SDPA by hand, (n, n) mask"
    memory = {name: details["peak_bytes"] for name, details in result.details.items()}
    assert memory["SDPA by hand, (n, n) mask"] >= memory["SDPA by hand, all keys"] + 301**2  # a byte per pair


def test_memory_of_the_additive_score_is_measured_on_both_paths():
    report = bench_additive_memory(lengths=(8, 16, 32, 64), limits=Limits(seconds=60.0))
    (table,) = report.tables
    assert [row.name for row in table.rows] == ["path auto", "path readable"]
    assert all(list(row.values) == [8, 16, 32, 64] for row in table.rows)
    assert table.rows[1].growth().exponent > 1  # (n, n, d_hidden) numbers, and what does not grow so fast


def test_memory_of_the_additive_score_says_what_was_not_run():
    report = bench_additive_memory(lengths=(8, 16), limits=Limits(seconds=60.0, gibibytes=1e-9))
    assert all("GiB" in row.missing[8] for row in report.tables[0].rows)
