"""The benchmark of translating: all ways write the same, equally long."""

from __future__ import annotations

import pytest
import torch

from attnlab.benchmarks import translating


@pytest.fixture
def small(monkeypatch):
    for name, value in {"VOCAB": 50, "WIDTH": 16, "HIDDEN": 16, "LAYERS": 1, "BATCH": 2, "BEAM": 2}.items():
        monkeypatch.setattr(translating, name, value)
    monkeypatch.setattr(translating, "LONGEST_SOURCE", 8)


@pytest.mark.usefixtures("small")
def test_every_way_is_measured():
    found = translating.bench_translating(rounds=1, sentences=3)
    assert list(found.rows) == [
        "attnlab, nothing kept, one at a time",
        "attnlab, kept, one at a time",
        "attnlab, nothing kept, batches of 2",
        "attnlab, kept, batches of 2",
        "transformers Marian, kept, batches of 2",
    ]
    assert all(value > 0.0 for values in found.rows.values() for value in values)
    assert found.notes[0].startswith("transformers: version ")


@pytest.mark.usefixtures("small")
def test_without_transformers_it_says_so(monkeypatch):
    monkeypatch.setattr(translating.importlib.util, "find_spec", lambda name: None)
    found = translating.bench_translating(rounds=1, sentences=2)
    assert found.notes == ("transformers is not installed: Marian not measured",)
    assert len(found.rows) == 4


@pytest.mark.usefixtures("small")
def test_all_write_equally_many_tokens(monkeypatch):
    """Of the lab the hypotheses, of transformers the tokens after the first."""
    written = {"lab": [], "marian": []}
    search = translating.beam_search

    def listening(*arguments, **named):
        found = search(*arguments, **named)
        written["lab"] += [len(one[0].tokens) for one in found]
        return found

    monkeypatch.setattr(translating, "beam_search", listening)
    marian = translating._marian().eval()
    generate = marian.generate

    def heard(*arguments, **named):
        found = generate(*arguments, **named)
        written["marian"] += [row.shape[0] - 1 for row in found]
        return found

    marian.generate = heard
    torch.manual_seed(0)
    monkeypatch.setattr(translating, "_marian", lambda: marian)
    translating.bench_translating(rounds=1, sentences=4)
    assert written["lab"][-4:] == written["marian"]
