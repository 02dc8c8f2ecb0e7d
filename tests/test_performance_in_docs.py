"""Numbers in docs/performance.md and docs/scale.md are those of the files that ``attnlab bench`` wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attnlab.benchmarks.measuring.turns import PairedTimes
from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[1]
make_performance = loaded("docs/make_performance.py")
RESULTS = make_performance.Results(make_performance.RESULTS)
CPU = {"torch": "2.13.0", "threads": 2, "cpu": "a processor", "device": "cpu"}


@pytest.mark.parametrize("page", make_performance.PAGES, ids=lambda page: page.name)
def test_pages_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert make_performance.BLOCK.search(text)
    assert make_performance.filled(text, RESULTS) == text, "run .venv/bin/python docs/make_performance.py"


def test_every_result_on_the_cpu_has_a_place_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in make_performance.PAGES)
    places = set(re.findall(r"<!-- bench: ([\w -]+) -->", text))
    for path in make_performance.RESULTS.glob("cpu-*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert " ".join(filter(None, ("cpu", content["benchmark"], content["size"]))) in places


def written(folder, name, benchmark, size, *results):
    content = {"benchmark": benchmark, "size": size, "results": results}
    (folder / f"{name}.json").write_text(json.dumps(content))


def training(title, attnlab, plain, other, setting=""):
    rows = {
        f"attnlab{setting}": (attnlab, attnlab),
        f"plain loop{setting}": (plain, plain),
        f"x{setting}": (other, 2.0),
    }
    details = {name: {"tokens_per_second": 1234.5, "utilization": 0.125} for name in rows}
    return PairedTimes(title, "ms/step", f"plain loop{setting}", rows, ("x: skipped",), details, CPU).to_json()


@pytest.fixture
def results(tmp_path):
    written(
        tmp_path, "cpu-train-a", "train", "a", training("t0", 2.0, 4.0, 3.0), training("t1", 4.0, 6.0, 2.0, ", bf16")
    )
    slow = [
        {**training("s", 2.0, 1.0, 3.0), "rows": [{"name": "n", "seeds": n, "times_faster": {"median": n / 2}}]}
        for n in (1, 2, 4)
    ]
    times = {
        "one after another, float32": (10.0,),
        "one after another, bf16": (6.0,),
        "together, float32": (8.0,),
        "together, bf16": (4.0,),
    }
    details = {name: {"seeds": 4} for name in times}
    best = PairedTimes("4 seeds of a, in every setting", "ms", next(iter(times)), times, (), details, CPU).to_json()
    written(tmp_path, "cpu-seeds-a", "seeds", "a", *slow, best)
    gpu = training("g", 1.0, 1.0, 1.0)
    gpu["environment"] = {**CPU, "device": "Some GPU 9000"}
    written(tmp_path, "some-gpu-9000-loop", "loop", "", gpu)
    return make_performance.Results(tmp_path)


def test_a_comparison_becomes_a_table_with_what_must_be_known(results):
    page = make_performance.filled("<!-- bench: cpu train a -->\nold\n<!-- end -->", results)
    assert "old" not in page
    assert "| attnlab | 2 | 1,234 | 12% | 2.00x (2.00 to 2.00) |" in page
    assert "| plain loop | 4 | 1,234 | 12% | reference |" in page
    assert "2 rounds in turn; torch 2.13.0; 2 threads; a processor; x: skipped." in page
    assert page.index("**t0**") < page.index("**t1**")


def test_what_was_not_measured_is_said_and_gpus_are_told_apart(results):
    assert "Not yet measured." in make_performance.filled("<!-- bench: gpu train a -->\n<!-- end -->", results)
    assert "Some GPU 9000 (a processor)" in make_performance.filled("<!-- bench: gpu loop -->\n<!-- end -->", results)


def test_aims_are_judged_from_the_numbers(results):
    lines = {line.split(" | ")[0].strip("| "): line for line in make_performance.aims(results).splitlines()}
    assert lines["(a), same model in float32: beside the plain loop"].endswith("| 2.00x (attnlab; plain loop) | yes |")
    assert lines["(a), same model in float32: beside the fastest package"].endswith("| 1.25x (attnlab; x) | yes |")
    assert "| 1.50x (attnlab, bf16; plain loop, bf16) | yes |" in lines["(a), at best: beside the plain float32 loop"]
    worst = lines["(a), at best: beside the best of all others at its best"]
    assert worst.endswith("| 0.50x (attnlab, bf16; x, bf16) | no |")
    same = "n seeds of a on a CPU: beside one after another in the same setting"
    assert lines[same].endswith("| 1.00x for 2, 2.00x for 4 | no |")
    in_float32, at_best = (line for name, line in lines.items() if name.startswith("seeds of a on a CPU"))
    assert in_float32.endswith("| 2.50x for 4 (together, bf16; one after another, float32) | yes |")
    assert at_best.endswith("| 1.50x for 4 (together, bf16; one after another, bf16) | no |")
    assert lines["(b), at best: beside the plain float32 loop"].endswith("| Not yet measured. |  |")


def test_growth_names_its_law_and_what_was_left_out():
    row = {
        "name": "layer",
        "medians": {"128": 1.0, "512": 123.4},
        "missing": {"2048": "too long"},
        "expected": "n",
        "law": "",
    }
    law = {"exponent": 1.98, "standard_error": 0.01}
    tables = [{"title": "time", "size": "n", "rows": [{**row, "growth": law}]}]
    text = make_performance.growth({"title": "t", "tables": tables, "notes": [], "environment": CPU})
    assert "| layer | 1 | 123 | not run | n^1.98 ± 0.01 | n |" in text
    assert "not run: layer, n = 2048: too long." in text
    assert make_performance.exponent([None, law], 2.0) == ("n^1.98 ± 0.01", True)


@pytest.mark.parametrize(
    ("seconds", "exponent", "verdicts"),
    [(9.9, 0.1, ("9.9 s | yes", "n^0.10 | yes")), (61, 0.5, ("61 s | no", "n^0.50 | no"))],
)
def test_aims_of_large_corpora_are_judged_at_a_million_lines(tmp_path, seconds, exponent, verdicts):
    row = {"name": "afterwards: a process", "medians": {"10": 1.0, "1000000": seconds}}
    memory = {"name": "tokenizing", "growth": {"exponent": exponent, "standard_error": None}}
    first = {"name": "tokenizing", "medians": {"1000000": 1000.0}}
    result = {"tables": [{"rows": [first, row]}, {"rows": [memory]}], "environment": CPU}
    written(tmp_path, "cpu-corpus", "corpus", "", result)
    aims = make_performance.aims(make_performance.Results(tmp_path)).splitlines()
    found = [line for line in aims if "parallel corpus" in line]
    assert [line.endswith(f"| {words} |") for line, words in zip(found, verdicts, strict=True)] == [True, True]


def test_attention_shows_time_ratio_memory_and_growth():
    measured = {"median_ms": 2.0, "times_faster": {"median": 0.5}, "peak_bytes": 3 * 2**20}
    row = {
        "group": "all keys",
        "lengths": {"128": measured},
        "missing": {"512": "too long"},
        "time_growth": None,
        "memory_growth": None,
    }
    rows = [{**row, "name": "SDPA by hand", "is_reference": True}, {**row, "name": "attnlab", "is_reference": False}]
    text = make_performance.attention({"title": "t", "setting": "s", "rows": rows, "environment": CPU})
    assert "| all keys | attnlab | 2 (0.50x) | not run | not run |" in text
    assert "| all keys | SDPA by hand | 2 | not run | not run |" in text
    assert "too long" in text


def test_table_1_is_shown_as_its_summary():
    summary = [{"layer": "self-attention", "time": "n^2.00"}]
    text = make_performance.table_1({"title": "t", "summary": summary, "environment": CPU})
    assert "| layer | time |" in text
    assert "| self-attention | n^2.00 |" in text
