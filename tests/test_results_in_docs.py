"""Numbers in README and docs are those of the reports that lie beside them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
make_results = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_results)


@pytest.mark.parametrize("page", make_results.PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_reports(page):
    text = page.read_text(encoding="utf-8")
    assert make_results.BLOCK.search(text)
    assert make_results.filled(text) == text


def test_times_have_the_digits_of_a_clock():
    measured = {"seconds_to_target": {"mean": 6.54321, "std": 0.12345}}
    variants = [{"name": "fast", "metrics": measured, "parameters": 9, "seconds": 6.0}]
    variants[0] |= {"flops_per_token": 1.25e6, "activation_bytes": 3 * 2**20}
    report = {"rules": {"metric": "seconds_to_target"}, "verdicts": [], "variants": variants}
    assert "| fast | 6.54 ± 0.12 | 0 | 9 | 1.25 | 3 | 6.0 |" in make_results.table(report)


def test_a_sign_is_told_where_the_interval_tells_it():
    intervals = {"open": (0.1, -0.1, 0.3), "the same": (-0.1, -0.3, -0.1), "the other": (0.1, -0.3, -0.1)}
    assert {word: make_results.same_sign(*one) for word, one in intervals.items()} == {word: word for word in intervals}
    assert make_results.same_sign(0.0, 0.1, 0.2) == "none in the paper"
    assert make_results.same_sign(0.3, None, None) == "open"


def test_scores_of_a_paper_stand_beside_what_is_judged_of_its_systems():
    judged = {"difference": 10.0, "low": 8.0, "high": 12.0}
    verdicts = [{"variant": "chart", "baseline": other, **judged} for other in ("RNN", "one that the paper has not")]
    found = make_results.beside_scores(
        {"rules": {"baseline": "RNN"}, "verdicts": verdicts}, {"RNN": 88.3, "chart": 93.5}
    )
    assert "| chart against RNN | 93.5 - 88.3 = +5.2 | +10.0 [+8.0, +12.0] | the same |" in found
    assert "has not" not in found


def test_a_study_that_has_not_run_has_no_numbers():
    block = "<!-- results: never-run -->\n| 1 |\n<!-- end -->"
    assert make_results.filled(block) == f"<!-- results: never-run -->\n{make_results.NOT_RUN}\n<!-- end -->"


def test_what_a_command_printed_is_shown_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(make_results, "DOCS", tmp_path)
    block = "<!-- printed: tiny/score.txt -->\nBLEU 99\n<!-- end -->"
    assert make_results.NOT_RUN in make_results.filled(block)
    (tmp_path / "studies" / "tiny").mkdir(parents=True)
    (tmp_path / "studies" / "tiny" / "score.txt").write_text("BLEU  41.5\n", encoding="utf-8")
    assert make_results.filled(block) == "<!-- printed: tiny/score.txt -->\n```text\nBLEU  41.5\n```\n<!-- end -->"


def test_a_changed_number_would_be_found():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = text.replace("| better |", "| worse |", 1)
    assert changed != text
    assert make_results.filled(changed) == text


ANSWERS = ROOT / "docs" / "answers.md"
LABELS = {"In words.", "How sure."}
VERDICTS = {"better", "worse", "equivalent", "undecided"}
BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
HELD = re.compile(r"<!-- (verdict|alarm) \| ([\w-]+) \| ([\w-]+) \| (.+?) -->")


def claims(page: str) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return the bold words of each paragraph and bullet under *In words*, with what they are held against."""
    found = []
    for section in page.split("\n## "):
        _, _, words = section.partition("**In words.**")
        for item in re.split(r"\n\n|\n(?=- )", words):
            bold = " ".join(run for run in BOLD.findall(item) if run not in LABELS)
            if bold or HELD.search(item):
                found.append((bold, HELD.findall(item)))
    return found


def reported(kind: str, study: str, word: str, about: str) -> bool:
    """Return whether the report of a study has a verdict or an alarm."""
    report = json.loads((ROOT / "docs" / "studies" / study / "report.json").read_text(encoding="utf-8"))
    if kind == "alarm":
        return any(alarm["check"] == word and alarm["variant"] == about for alarm in report["alarms"])
    return any(
        f"{one['variant']} against {one.get('baseline') or report['rules']['baseline']}" == about
        and one["verdict"] == word
        for one in report["verdicts"]
    )


def wrong(page: str) -> list[str]:
    """Return every bold claim that the reports do not carry."""
    found = []
    for bold, held in claims(page):
        said = VERDICTS & set(re.findall(r"\w+", bold))
        if said != {word for kind, _, word, _ in held if kind == "verdict"} or not held:
            found.append(f"says {sorted(said)}, held against {held}: {bold}")
        found += [f"not in the report: {one}" for one in held if not reported(*one)]
    return found


def test_what_the_answers_say_in_bold_is_a_verdict_of_the_report():
    page = ANSWERS.read_text(encoding="utf-8")
    assert len(claims(page)) > 20
    assert not wrong(page)


@pytest.mark.parametrize(
    "claim",
    [
        "**Attention is better.**",
        "**Attention is worse.** <!-- verdict | shapes | worse | CNN + attention against CNN (sees 21 of 100) -->",
        "**Attention wins.** <!-- verdict | shapes | better | CNN + attention against CNN (sees 21 of 100) -->",
        "**Better, or worse.** <!-- verdict | shapes | better | CNN + attention against CNN (sees 21 of 100) -->",
        "**Its samples see each other.** <!-- alarm | shapes | batch | CNN + attention -->",
    ],
    ids=["held against nothing", "another verdict", "no verdict", "two of them", "no such alarm"],
)
def test_a_bold_claim_that_no_report_carries_would_be_found(claim):
    assert wrong(f"## shapes\n\n**In words.**\n\n- {claim}\n")
