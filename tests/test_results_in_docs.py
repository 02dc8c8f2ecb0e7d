"""Numbers in README and docs are those of the reports that lie beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from attnlab.core.contracts import Metric
from attnlab.studies.define.looks import Seeds, levels_of, looks_of
from attnlab.studies.define.study import load_study
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.verdicts import Look, verdicts
from tests.scripts import loaded

ROOT = Path(__file__).resolve().parents[1]
make_results = loaded("docs/make_results.py")


@pytest.mark.parametrize("page", make_results.PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_reports(page):
    text = page.read_text(encoding="utf-8")
    assert make_results.BLOCK.search(text) or make_results.OVERVIEW.search(text)
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


def test_an_overview_counts_what_was_decided_and_names_the_largest_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(make_results, "DOCS", tmp_path)
    kinds = {"far": ("worse", 0.3, 0.5), "near": ("better", -0.2, -0.1), "alike": ("equivalent", -0.01, 0.01)}
    kinds |= {"open": ("undecided", -2.0, 1.0), "shown": ("exploratory", 3.0, 4.0)}
    verdicts = [
        {"variant": name, "metric": "loss"} | dict(zip(("verdict", "low", "high"), one, strict=True))
        for name, one in kinds.items()
    ]
    report = {"question": "Which?", "rules": {"baseline": "base"}, "verdicts": verdicts}
    (tmp_path / "studies" / "tiny").mkdir(parents=True)
    (tmp_path / "studies" / "tiny" / "report.json").write_text(json.dumps(report), encoding="utf-8")
    found = make_results.overview({"one.md": "## tiny: which?\n<!-- results: tiny -->\n<!-- results: never-run -->\n"})
    assert "| [tiny](one.md#tiny-which) | Which? | 3 of 4 | far against base: worse, by 0.3 or more (loss) |" in found
    assert found.endswith("| all |  | 3 of 4 |  |")


def test_a_changed_number_would_be_found():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = text.replace("| better |", "| worse |", 1)
    assert changed != text
    assert make_results.filled(changed) == text


def test_the_demo_decides_what_it_compares():
    demo, seeds = load_study("shapes", scale="demo"), Seeds(at_least=3, at_most=5)
    assert f"attnlab run {demo.name} --scale {demo.scale}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert demo.rules.seeds == seeds
    report = json.loads((ROOT / "docs" / "studies" / "shapes" / "report.json").read_text(encoding="utf-8"))
    looks = looks_of(seeds)
    runs, tuned = {}, {}
    for one in report["variants"]:
        runs[one["name"]] = dict(enumerate(one["metrics"]["test_mse"]["values"]))
        chosen, scores, tried = (one["tuning"][key] for key in ("chosen", "scores", "runs"))
        tuned[one["name"]] = Tuned(chosen, scores, tried, dict(enumerate(one["metrics"]["val_mse"]["values"])), "lower")
    found = verdicts(
        runs,
        demo.contrasts,
        metric=Metric("test_mse", "", "lower"),
        smallest_effect=report["rules"]["smallest_effect"],
        looks=tuple(map(Look, looks, levels_of(looks, len(demo.contrasts), 0.05))),
        tuned=tuned,
    )
    plain = "CNN (sees 21 of 100)"
    assert [(one.variant, one.baseline, one.verdict) for one in found] == [
        ("CNN + attention", plain, "better"),
        ("dilated CNN (sees all 100)", plain, "better"),
    ]


LABELS = {"In words.", "How sure."}
VERDICTS = {"better", "worse", "equivalent", "undecided"}
BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
HELD = re.compile(r"<!-- (verdict|alarm) \| ([\w-]+) \| ([\w-]+) \| (.+?) -->")
DENIED = re.compile(rf"\b(?:not|never|nor|neither)\s+(?:\w+\s+){{0,3}}(?:{'|'.join(VERDICTS)})|\bno\s+(?:better|worse)")
COMMON = {"a", "all", "and", "as", "in", "of", "on", "than", "that", "the", "to", "with"}
SAID_AS = {
    "no": {"none", "without"},
    "none": {"without"},
    "not": {"nothing"},
    "cnn": {"convolution", "network"},
    "1": {"one"},
    "2": {"two"},
    "4": {"four"},
    "8": {"eight"},
}
"""How a page says a word of a variant's name otherwise."""


class Claim(NamedTuple):
    """Hold one paragraph or bullet under *In words* that says a word in bold, or is held against a report."""

    bold: str
    held: list[tuple[str, ...]]
    text: str  # all of it, without what it is held against
    studies: set[str]  # those that it may be about


def anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def studies_of(section: str, part: str, page: str) -> set[str]:
    """Return the studies of a section, and those that a part of it names by a link."""
    linked = set(re.findall(r"\((?:answers[\w-]*\.md)?#([\w-]+)\)", part))
    for other in page.split("\n## "):
        if other == section or linked & {anchor(title) for title in re.findall(r"^(?:#+ )?(.+)$", other, re.MULTILINE)}:
            linked.update(re.findall(r"<!-- results: ([\w-]+) -->", other))
    return linked | set(re.findall(r"\(studies/([\w-]+)/", part))


def claims(page: str) -> list[Claim]:
    """Return every paragraph and bullet under *In words* with a bold word, or with something it is held against."""
    found = []
    for section in page.split("\n## "):
        _, _, words = section.partition("**In words.**")
        for part in words.split("\n### "):
            studies = studies_of(section, part, page)
            for item in re.split(r"\n\n|\n(?=- )", part):
                bold = " ".join(run for run in BOLD.findall(item) if run not in LABELS)
                if bold or HELD.search(item):
                    found.append(Claim(bold, HELD.findall(item), HELD.sub("", item), studies))
    return found


def words_of(text: str) -> set[str]:
    """Return the words and numbers of a text, without the s of a plural."""
    return {word if len(word) < 4 else word.removesuffix("s") for word in re.findall(r"[a-z_]+|\d+", text.lower())}


def unnamed(contrast: str, text: str) -> list[str]:
    """Return the sides of a contrast of which a text says no word that the other side has not."""
    sides, said = [words_of(side) for side in contrast.split(" against ")], words_of(text)
    beginnings = {word[:5] for word in said if len(word) > 3}
    missing = []
    for own, other in (sides, sides[::-1]):
        telling = own - other - COMMON
        if telling and not any({one, *SAID_AS.get(one, ())} & said or one[:5] in beginnings for one in telling):
            missing.append(" ".join(sorted(telling)))
    return missing


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
    for bold, held, text, studies in claims(page):
        said = VERDICTS & set(re.findall(r"\w+", DENIED.sub("", bold.lower())))
        if said != {word for kind, _, word, _ in held if kind == "verdict"} or not held:
            found.append(f"says {sorted(said)}, held against {held}: {bold}")
        found += [f"not in the report: {one}" for one in held if not reported(*one)]
        found += [f"a study of elsewhere: {one}" for one in held if one[1] not in studies]
        for kind, study, _, about in held:
            missing = unnamed(about, text) if kind == "verdict" else []
            found += [f"{study}, {about}: says nothing of {one}: {' '.join(text.split())}" for one in missing]
    return found


def test_what_the_answers_say_in_bold_is_a_verdict_of_the_report():
    pages = (ROOT / "docs" / "answers.md", *make_results.ANSWERS)
    page = "\n".join(one.read_text(encoding="utf-8") for one in pages)
    assert len(claims(page)) > 20
    assert not wrong(page)


HOLDS = "**Attention is better than a network that sees 21 of 100.**"
BETTER = "<!-- verdict | shapes | better | CNN + attention against CNN (sees 21 of 100) -->"


def shapes(claim: str) -> str:
    return f"## shapes\n\n<!-- results: shapes -->\n\n**In words.**\n\n- {claim}\n"


def test_a_bold_claim_that_a_report_carries_is_none_of_the_wrong_ones():
    assert not wrong(shapes(f"{HOLDS} {BETTER}"))


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (HOLDS, "held against []"),
        (f"{HOLDS} {BETTER.replace('better', 'worse')}", "not in the report"),
        (f"**Attention wins against a network.** {BETTER}", "says []"),
        (f"**Attention is better than a network, or worse.** {BETTER}", "says ['better', 'worse']"),
        ("**Its samples see each other.** <!-- alarm | shapes | batch | CNN + attention -->", "not in the report"),
        (f"**Attention is not better than a network.** {BETTER}", "says []"),
        (f"**Neither is attention any better than a network.** {BETTER}", "says []"),
        (f"**A dilated network is better.** {BETTER}", "says nothing of attention"),
        (f"**Attention is better than an LSTM.** {BETTER}", "says nothing of 100 21 see"),
    ],
    ids=[
        "bare",
        "other word",
        "no word",
        "two words",
        "no such alarm",
        "not",
        "neither",
        "other variant",
        "other baseline",
    ],
)
def test_a_bold_claim_that_no_report_carries_would_be_found(claim, said):
    assert any(said in one for one in wrong(shapes(claim)))


def test_a_verdict_of_another_section_would_be_found_unless_it_is_linked():
    page = shapes(f"{HOLDS} {BETTER}")
    elsewhere = page.replace("<!-- results: shapes -->", "<!-- results: parts-small -->")
    assert any("a study of elsewhere" in one for one in wrong(elsewhere))
    linked = elsewhere.replace("network", "[network](studies/shapes/report.md)")
    assert not wrong(linked)
    section = elsewhere.replace("network", "[network](#shapes-and-more)")
    assert not wrong(f"{section}\n## shapes: and more\n\n<!-- results: shapes -->\n")


def test_systems_of_a_paper_stand_beside_those_here_with_what_training_took(tmp_path, monkeypatch):
    """Reports of before do not tell the cost of training: there it is what a token takes, by the tokens of a run."""
    run = {
        "flops_per_token": 2e6,
        "seconds": 12.4,
        "metrics": {"test_bleu": {"mean": 20.0, "std": 1.0, "values": [19.0, 21.0]}},
    }
    for name, of in {"old": {}, "new": {"training_flops": 5e12}}.items():
        (tmp_path / "studies" / name).mkdir(parents=True)
        report = {"variants": [{"name": "base", **run, **of}]}
        (tmp_path / "studies" / name / "report.json").write_text(json.dumps(report))
    monkeypatch.setattr(make_results, "DOCS", tmp_path)
    asked = {
        "studies": {"old": {"pair": "en-de", "tokens": 1000}, "new": {"pair": "en-fr"}, "to come": {"pair": "en-fr"}},
        "rows": {"base": {"en-de": [27.3, 3.3e18]}, "big": {"en-fr": [41.8, None]}},
    }
    here = "20.0 ± 1.0 (2)"
    assert make_results.systems(asked).splitlines()[2:] == [
        f"| base | 27.3 | 3.3e+18 | {here} | 2.0e+09 | 12 |  |  | {here} | 5.0e+12 | 12 |",
        "| big |  |  |  |  |  | 41.8 |  |  |  |  |",
    ]
