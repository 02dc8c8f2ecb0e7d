from __future__ import annotations

import json

import pytest
import torch

from attnlab.benchmarks.table_1 import KINDS, Table1Sizes, bench_table_1
from attnlab.inspection.reach import reach

SMALL = Table1Sizes(
    lengths=(16, 32),
    widths=(8, 16),
    kernels=(2, 3),
    windows=(4, 8),
    length=16,
    width=8,
    kernel=3,
    window=4,
    counted_lengths=(9, 27, 81),
    neighbors=3,
)


@pytest.fixture(scope="module")
def table():
    return bench_table_1(rounds=2, sizes=SMALL)


def counts(table, name):
    return {row.name: {n: values[0] for n, values in row.values.items()} for row in table.tables[name].rows}


def test_every_layer_is_timed_against_every_size_it_has(table):
    for name, sizes in (("n", (16, 32)), ("d", (8, 16))):
        assert [row.name for row in table.tables[name].rows] == [kind.name for kind in KINDS]
        assert all(tuple(row.values) == sizes for row in table.tables[name].rows)
    assert [row.name for row in table.tables["k"].rows] == ["convolution", "dilated convolution"]
    assert [row.name for row in table.tables["r"].rows] == ["restricted attention"]
    assert all(len(times) == 2 for row in table.tables["r"].rows for times in row.values.values())


def test_layers_are_those_of_the_source(table):
    assert counts(table, "layers") == {
        "self-attention": {9: 1, 27: 1, 81: 1},
        "recurrent (LSTM)": {9: 1, 27: 1, 81: 1},
        "convolution": {9: 4, 27: 13, 81: 40},
        "dilated convolution": {9: 2, 27: 3, 81: 4},
        "restricted attention": {9: 4, 27: 13, 81: 40},
    }


def test_steps_grow_in_the_recurrence_alone(table):
    rows = {row.name: row for row in table.tables["steps"].rows}
    for kind in KINDS:
        if kind.steps_law == "1":
            assert rows[kind.name].law == "constant"
    assert rows["recurrent (LSTM)"].growth().exponent == pytest.approx(1, abs=0.1)


def test_the_path_is_as_long_as_the_source_says(table):
    rows = {row.name: row for row in table.tables["path"].rows}
    assert rows["self-attention"].law == "constant"
    assert rows["dilated convolution"].law == "log_3.0 n"
    for linear in ("recurrent (LSTM)", "convolution", "restricted attention"):
        assert rows[linear].growth().exponent == pytest.approx(1, abs=0.1)
    assert counts(table, "path")["convolution"] == counts(table, "layers")["convolution"]


def test_the_summary_has_the_source_beside_what_was_measured(table):
    head, *lines = table.summary()
    assert [line[1] for line in lines] == ["n^2 d", "n d^2", "k n d^2", "k n d^2", "r n d"]
    assert all(len(line) == len(head) for line in lines)
    printed = str(table)
    for line in lines:
        assert line[2] in printed  # the measured exponents of time
    assert printed.index("operations") < printed.index("Milliseconds against n") < printed.index("torch")


def test_the_table_is_written_as_json(table):
    content = json.loads(json.dumps(table.to_json()))
    assert content["kind"] == "table-1"
    assert content["summary"][0]["layer"] == "self-attention"
    assert set(content["tables"]) == {"n", "d", "k", "r", "steps", "layers", "path"}
    assert content["environment"]["torch"] == torch.__version__


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_layers_read_from_left_to_right_and_see_their_neighbors(kind):
    found = reach(kind.layer(8, 3), (torch.randn(2, 11, 8),))
    assert found.future == 0
    assert found.past == (3 if kind.neighbors else 11)
