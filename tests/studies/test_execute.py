from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.studies.conftest import TINY

from attnlab.core.errors import RunError, SpecError
from attnlab.core.files import write_json
from attnlab.core.processes.apart import LONGER, PATIENCE
from attnlab.studies.define.assemble import build_task
from attnlab.studies.define.rules import TUNING_SEED
from attnlab.studies.define.study import parse_study, slug, study_hash
from attnlab.studies.execute import run_study
from attnlab.studies.judge.collect import read_results, so_far
from attnlab.studies.judge.tuning import cells_again, record_tuning
from attnlab.studies.plan.plan import plan_study, rules_hash
from attnlab.studies.report import tables, write_report
from attnlab.studies.run import pool
from attnlab.studies.run.executor import InProcess
from attnlab.studies.run.folder import prepare, read_cell

LEAK = """
import torch
from torch import nn

class Peek(nn.Module):
    '''Look one position ahead: what no honest model does.'''
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
    def forward(self, x):
        return self.linear(torch.cat([x[:, 1:], x[:, :1] * 0], dim=1))

class Raises(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)
        self.calls = 0
    def forward(self, x):
        if x.shape[0] == 20 and x.device.type == "cpu" and self.training and torch.is_grad_enabled():
            self.calls += 1
            if self.calls > 3:
                raise RuntimeError("the cat sat on the keyboard")
        return self.linear(x)

class Dies(Raises):
    def forward(self, x):
        if x.shape[0] == 20 and x.device.type == "cpu":
            import os
            os.kill(os.getpid(), 9)
        return self.linear(x)

class Explodes(Raises):
    def forward(self, x):
        try:
            return super().forward(x)
        except RuntimeError:
            return self.linear(x) * float("inf")
"""


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(LEAK)
    return tmp_path / "mine.py"


RESTLESS = """
import os
import threading
import time
from torch import nn

class Moves(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.linear, self.steps = nn.Linear(d_model, d_model), 0

    def forward(self, x):
        self.steps += self.training and x.device.type == "cpu"
        if self.steps == 3 and self.training:
            self.act()
        return self.linear(x)

    def act(self):
        os.chdir("/")
        os.fork()
        threading.Thread(target=time.sleep, args=(999,)).start()

class Silent(Moves):
    def act(self):
        time.sleep(999)
"""


def test_what_a_module_does_to_its_process_stays_there(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PATIENCE, "8")
    monkeypatch.setattr(pool, "SILENT_STEPS", 1)
    (tmp_path / "mine.py").write_text(RESTLESS)
    names = ("Moves", "Silent")
    tiny["variants"] = {"plain": {}} | {n: {"mixer": f"{tmp_path}/mine.py:{n}", "mixer_at": 1} for n in names}
    tiny["rules"]["seeds"] = 1
    results = run_study(parse_study(tiny), Path("out"), jobs=2)
    errors = {variant.name: variant.cells[0].error for variant in results.variants}
    assert (errors["plain"], errors["Moves"]) == (None, None)
    assert "gave no sign of life for 8 s in act (mine.py, line 25) and was ended, after step " in errors["Silent"]
    assert errors["Silent"].partition("; ")[2].startswith(f"{LONGER}; see ")
    told = [alarm.message for alarm in results.alarms if (alarm.check, alarm.variant) == ("failed", "Silent")]
    assert told == [f"seed 0 failed: {errors['Silent']}"]


def numbers(out):
    """Return all final metrics of a study's folder, by cell."""
    return {
        str(path.parent.relative_to(out)): json.loads(path.read_text())["metrics"] for path in out.rglob("result.json")
    }


def test_every_seed_may_have_data_of_its_own(tiny, tmp_path):
    tiny["rules"] |= {"split": {"seed": "per run"}}
    study = parse_study(tiny)
    results = run_study(study, tmp_path / "out", executor=InProcess())
    specs = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("spec.json")]
    assert all(spec["task"]["data_seed"] == spec["seed"] for spec in specs)
    assert len({spec["seed"] for spec in specs if spec["seed"] < TUNING_SEED}) == study.rules.seeds
    assert results.task["data_seed"] == 0
    assert all("for the data of seed 0" in source for *_, source in tables.floors(results))
    assert "data of its own" in (write_report(results, tmp_path / "out").parent / "report.md").read_text()


def test_floors_are_those_of_the_data_of_seed_0(tiny, tmp_path):
    tiny["rules"] |= {"split": {"seed": "per run"}}
    out = tmp_path / "out"
    results = run_study(parse_study(tiny), out, executor=InProcess())
    noise = next(floor.value for floor in results.floors if floor.kind == "floor")
    unseal(out)
    for seed, value in ((0, 1.1 * noise), (1, 0.0)):  # the second and the mean lie below the noise
        path = out / "plain" / f"seed-{seed}" / "result.json"
        result = json.loads(path.read_text())
        write_json(path, result | {"metrics": dict.fromkeys(result["metrics"], value)})
    assert not any(alarm.check == "floor" for alarm in read_results(out).alarms)


def test_a_study_runs_ends_in_a_report_and_runs_only_what_is_missing(tiny, tmp_path):
    tiny["rules"]["tune"] = {"lr": [1e-3, 3e-3, 1e-2]}
    out = tmp_path / "study"
    results = run_study(parse_study(tiny), out, jobs=2)
    assert results.complete
    assert [len(variant.done) for variant in results.variants] == [2, 2]
    rules = json.loads((out / "rules.json").read_text())
    first_result = min(path.stat().st_mtime for path in out.rglob("metrics.jsonl"))
    assert (out / "rules.json").stat().st_mtime <= first_result
    assert len(rules["hash"]) == 64
    tuning = json.loads((out / "tuning.json").read_text())
    assert set(tuning["plain"]["scores"]) == {"0.001", "0.003", "0.01"}

    report = json.loads((write_report(results, out).parent / "report.json").read_text())
    assert {"study", "rules", "variants", "verdicts", "alarms", "environment"} <= set(report)
    assert report["verdicts"][0]["variant"] == "with attention"
    assert report["variants"][0]["metrics"]["test_mse"]["values"] == list(
        results.variants[0].values("test_mse").values()
    )
    assert results.variants[1].cells[0].attention["layers"][0]["shape"] == [2, 100, 100]

    before = numbers(out)
    gone = out / "plain" / "seed-1"
    for path in sorted(gone.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    kept = (out / "plain" / "seed-0" / "result.json").stat().st_mtime_ns
    again = run_study(parse_study(tiny), out, jobs=2, executor=InProcess())
    assert again.complete
    assert numbers(out) == before
    assert (out / "plain" / "seed-0" / "result.json").stat().st_mtime_ns == kept
    assert read_results(out) == again, "the folder alone says everything"


@pytest.mark.usefixtures("in_process")
def test_a_folder_from_before_runs_trained_together_is_reported(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 1}}
    results = run_study(parse_study(tiny), tmp_path / "study", jobs=1)
    unseal(tmp_path / "study")
    for path in (tmp_path / "study").rglob("result.json"):
        record = json.loads(path.read_text())
        later = {"together", "together_note"}  # what an earlier version did not write
        path.write_text(json.dumps({key: value for key, value in record.items() if key not in later}))
    assert read_results(tmp_path / "study").variants == results.variants


@pytest.mark.usefixtures("in_process")
def test_a_report_names_the_device_of_the_runs(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 1}}
    run_study(parse_study(tiny), tmp_path / "study", jobs=1)
    unseal(tmp_path / "study")
    for path in (tmp_path / "study").rglob("result.json"):
        record = json.loads(path.read_text())
        record["environment"]["device"] = "Some GPU"
        path.write_text(json.dumps(record))
    assert read_results(tmp_path / "study").environment["device"] == "Some GPU"


def test_a_kill_in_the_middle_changes_no_number(tiny, tmp_path):
    tiny["rules"]["budget"] = {"steps": 60}
    tiny["training"] = {"evaluate_every": 10}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_study(parse_study(tiny), whole, jobs=2, executor=InProcess())
    script = (
        "import json, sys; from pathlib import Path\n"
        "from attnlab.studies.execute import run_study; from attnlab.studies.define.study import parse_study\n"
        "if __name__ == '__main__':\n    run_study(parse_study(json.loads(sys.argv[1])), Path(sys.argv[2]), jobs=2)\n"
    )
    command = [sys.executable, "-c", script, json.dumps(tiny), str(broken)]
    child = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    deadline = time.monotonic() + 120
    while not list(broken.glob("*/seed-*/last/state.json")) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert child.returncode == -signal.SIGKILL
    for _ in range(50):  # orphans notice that their parent is gone, and let go of the cells they hold
        try:
            run_study(parse_study(tiny), broken, jobs=2, executor=InProcess())
            break
        except RunError:
            time.sleep(0.2)
    results = run_study(parse_study(tiny), broken, jobs=2, executor=InProcess())
    assert results.complete
    assert not any(variant.failed for variant in results.variants)
    assert numbers(broken) == numbers(whole)


def test_cells_that_fail_are_reported_and_the_rest_goes_on(tiny, tmp_path, mine):
    tiny["rules"]["seeds"] = 1
    for name in ("Raises", "Dies", "Explodes"):
        tiny["variants"][name.lower()] = {"mixer": f"{mine}:{name}", "mixer_at": 1}
    results = run_study(parse_study(tiny), tmp_path / "out", jobs=2)
    errors = {variant.name: variant.cells[0].error for variant in results.variants}
    assert errors["plain"] is None
    assert errors["with attention"] is None
    assert "the cat sat on the keyboard" in errors["raises"]
    assert "ended by signal 9 (killed, perhaps for lack of memory)" in errors["dies"]
    assert "step 4: the loss is" in errors["explodes"]
    assert "layers.1" in errors["explodes"]
    assert {alarm.check for alarm in results.alarms} >= {"failed", "one seed"}
    write_report(results, tmp_path / "out")


def seeds_on_disk(out, variant):
    return sorted(int(path.name.removeprefix("seed-")) for path in (out / variant).glob("seed-*"))


@pytest.mark.usefixtures("in_process")
def test_seeds_are_run_until_each_variant_is_decided(tiny, tmp_path):
    tiny["rules"] |= {"seeds": {"at_least": 2, "at_most": 5}, "budget": {"steps": 2}, "smallest_effect": 0.0}
    tiny["variants"]["alike"] = dict(tiny["variants"][tiny["baseline"]] or {})
    out = tmp_path / "out"
    results = run_study(parse_study(tiny), out, jobs=1)
    assert results.rules["looks"] == [2, 3, 4, 5]
    found = {one.variant: one for one in results.verdicts}
    assert "exactly this difference" in found["alike"].reason
    assert seeds_on_disk(out, "alike") == [0, 1]
    longest = max(one.look for one in found.values())
    for one in found.values():
        assert seeds_on_disk(out, slug(one.variant)) == list(range(one.look))
        assert one.settled or one.look == 5
    assert seeds_on_disk(out, slug(tiny["baseline"])) == list(range(longest))
    assert results.complete
    before = numbers(out)
    again = run_study(parse_study(tiny), out, jobs=1)
    assert (numbers(out), again.verdicts) == (before, results.verdicts)
    assert read_results(out).verdicts == results.verdicts
    (out / slug(tiny["baseline"]) / "seed-1" / "result.json").unlink()
    assert not read_results(out).complete


def unseal(out):
    """Make a folder one of an earlier version, whose records had no seals."""
    for path in out.rglob("*.json"):
        record = json.loads(path.read_text())
        record.pop("seal", None)
        path.write_text(json.dumps(record))
    rules, study = (json.loads((out / name).read_text()) for name in ("rules.json", "study.json"))
    own = {key: value for key, value in rules.items() if key not in ("hash", "fixed_at", "records")}
    own["hash"] = rules_hash(own, study_hash(study["content"], study["files"]), study["data"])
    (out / "rules.json").write_text(json.dumps(own | {"fixed_at": rules["fixed_at"]}))


def begun(study, out):
    """Begin a study whose results a test makes up."""
    plan = plan_study(parse_study(study))
    out.mkdir()
    prepare(plan, out)
    unseal(out)
    return plan, out


def write_result(folder, plan, value):
    """Leave what a finished run leaves that judging looks at."""
    how = {"seconds": 1.0, "precision": "float32", "compiled": False}
    write_json(folder / "result.json", {"metrics": {plan.metric.name: value}, **how})


@pytest.mark.parametrize(
    ("spread", "failed", "expected"),
    [(0.001, (), [0, 1, 2]), (0.4, (), [0, 1, 2, 3]), (0.001, (1,), [0, 1, 2])],
    ids=["decided", "open", "failing"],
)
def test_the_next_look_is_asked_for_where_the_one_before_leaves_it_open(tiny, tmp_path, spread, failed, expected):
    tiny["rules"] |= {"seeds": {"at_least": 3, "at_most": 20}, "smallest_effect": 0.01}
    plan, out = begun(tiny, tmp_path / "out")
    chosen = {variant.name: {} for variant in plan.variants}
    other = next(variant.name for variant in plan.variants if variant.name != plan.study.baseline)
    for cell in plan.judged_cells(chosen):
        folder = out / cell.folder
        folder.mkdir(parents=True)
        value = 1.0 if cell.variant != other else 0.5 + spread * (cell.seed - 1)
        if cell.variant == other and cell.seed in failed:
            write_json(folder / "failed.json", {"error": "it failed"})
        else:
            write_result(folder, plan, value)
    cells, _ = so_far(plan, chosen, out)
    assert [cell.seed for cell in cells if cell.variant == other] == expected
    assert [cell.seed for cell in cells if cell.variant == plan.study.baseline] == expected


def test_seeds_that_fall_into_two_groups_are_named(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 6}
    plan, out = begun(tiny, tmp_path / "out")
    other = next(variant.name for variant in plan.variants if variant.name != plan.study.baseline)
    for cell in plan.judged_cells({variant.name: {} for variant in plan.variants}):
        (out / cell.folder).mkdir(parents=True)
        stuck = cell.variant == other and cell.seed % 3 == 0
        write_result(out / cell.folder, plan, (0.5 if stuck else 0.1) + 0.001 * cell.seed)
    (alarm,) = [alarm for alarm in read_results(out).alarms if alarm.check == "groups"]
    assert (alarm.variant, alarm.message) == (
        other,
        "its 6 seeds fall into two groups, 4 around 0.103 and 2 around 0.5015: their mean describes neither",
    )


def test_seeds_are_spent_on_the_comparisons_of_the_rules_alone(tiny, tmp_path):
    tiny["rules"] |= {"seeds": {"at_least": 3, "at_most": 20}, "smallest_effect": 0.01}
    tiny["variants"] |= {"third": {"channels": 7}, "fourth": {"channels": 8}}
    names = list(tiny["variants"])
    tiny["compare"] = {"third": [names[1]], "fourth": names[1]}
    plan, out = begun(tiny, tmp_path / "out")
    chosen = {name: {} for name in names}
    wide = {names[1]: 0.0, "third": 0.3, "fourth": 0.0}
    for cell in plan.judged_cells(chosen, dict.fromkeys(names, 4)):
        (out / cell.folder).mkdir(parents=True)
        shift = {"fourth": -0.5}.get(cell.variant, 0.0) + 0.001 * cell.seed * names.index(cell.variant)
        write_result(out / cell.folder, plan, 1.0 + shift + wide.get(cell.variant, 0.0) * (-1) ** cell.seed)
    cells, results = so_far(plan, chosen, out)
    seeds = {name: 1 + max(cell.seed for cell in cells if cell.variant == name) for name in names}
    assert seeds == {names[0]: 3, names[1]: 5, "third": 5, "fourth": 3}
    assert [(one.variant, one.baseline) for one in results.verdicts] == [("third", names[1]), ("fourth", names[1])]
    decided = {one.variant: one.verdict for one in results.verdicts}
    assert decided == {"third": "undecided", "fourth": "better"}
    (beside,) = results.exploratory
    assert (beside.variant, beside.baseline, beside.verdict) == (names[1], names[0], "exploratory")
    rows = {row["name"]: row["verdict"] for row in tables.verdicts(results)}
    assert rows[f"fourth against {names[1]}"] == "better"
    assert rows[names[1]] == "exploratory"
    assert rows[names[0]] == "baseline"


def with_keys(**changes):
    return lambda text: json.dumps(json.loads(text) | changes)


def without(key):
    return lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != key})


def put(old, new):
    return lambda text: text.replace(old, new)


BY_HAND = {
    "rules": ("rules.json", with_keys(smallest_effect=5.0), "was changed after the study began"),
    "rules made older": ("rules.json", with_keys(smallest_effect=5.0, extended=[]), "changed after the study began"),
    "rules of old": (
        "rules.json",
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k not in ("levels", "looks", "records")}),
        "was changed after the study began",
    ),
    "study": ("study.json", put('"channels": 6', '"channels": 9'), "was changed after it was written"),
    "study made older": ("study.json", without("data"), "was changed after it was written"),
    "plan": ("study.json", put('"parameters": ', '"parameters": 1'), "was changed after it was written"),
    "tuning": ("tuning.json", put('"chosen": "', '"chosen": "1'), "was changed after it was written"),
    "inside": ("plain/seed-0/inside.json", put('"past": ', '"past": 1'), "was changed after it was written"),
    "result": ("plain/seed-0/result.json", put('"test_mse": ', '"test_mse": 1'), "after the run ended"),
    "result unsealed": ("plain/seed-0/result.json", without("seal"), "after the run ended"),
    "curve": ("plain/seed-1/metrics.jsonl", put('"val_mse": ', '"val_mse": 1'), "after the run ended"),
    "spec": ("plain/seed-1/spec.json", put('"steps": ', '"steps": 1'), "after the run ended"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a study that has run, tuning included, and its folder."""
    study = copy.deepcopy(TINY)
    study["variants"] = {"plain": {}, "wide": {"channels": 7}}
    study["rules"] |= {"budget": {"steps": 2}, "tune": {"lr": [1e-3, 1e-2, 1e-1]}}
    out = tmp_path_factory.mktemp("finished") / "out"
    run_study(parse_study(study), out, jobs=1, executor=InProcess())
    return study, out


@pytest.mark.parametrize("what", BY_HAND)
def test_what_was_changed_afterwards_is_not_judged(finished, what):
    (study, out), (file, change, told) = finished, BY_HAND[what]
    before = (out / file).read_text()
    assert change(before) != before
    (out / file).write_text(change(before))
    try:
        with pytest.raises(RunError, match=told):
            read_results(out)
        with pytest.raises(RunError, match=told):
            run_study(parse_study(study), out, jobs=1, executor=InProcess())
    finally:
        (out / file).write_text(before)
    assert read_results(out).complete


def test_a_run_put_in_the_place_of_another_is_not_judged(finished):
    _, out = finished
    for other in ("plain/seed-1", "wide/seed-0"):
        kept = shutil.copytree(out / "plain/seed-0", out / "kept")
        shutil.rmtree(out / "plain/seed-0")
        shutil.copytree(out / other, out / "plain/seed-0")
        with pytest.raises(RunError, match=r"plain/seed-0 holds another run \(it differs in: "):
            read_results(out)
        shutil.rmtree(out / "plain/seed-0")
        kept.rename(out / "plain/seed-0")


def test_a_study_whose_files_lie_elsewhere_now_says_where_they_were(finished):
    folder = finished[1] / "plain/seed-0"
    spec = json.loads((folder / "spec.json").read_text())
    moved = SimpleNamespace(folder="plain/seed-0", spec={**spec, "task": {**spec["task"], "n_train": "/new/60"}})
    with pytest.raises(RunError, match=r"trained on files elsewhere, .* where they were: task.n_train 60"):
        read_cell(finished[1], moved, required=True)


def test_what_was_seen_inside_belongs_to_its_run(finished):
    _, out = finished
    inside, other = out / "plain/seed-0/inside.json", out / "wide/seed-0/inside.json"
    before = inside.read_text()
    around = json.loads(before)["surface"]
    assert len(around["at"]) == 15
    assert [len(line) for line in around["loss"]] == [15] * 3
    assert len({line[7] for line in around["loss"]}) == 1  # all lines meet at the weights
    inside.write_text(other.read_text())
    with pytest.raises(RunError, match=r"inside\.json was seen inside another run"):
        read_results(out)
    inside.unlink()
    assert not read_results(out).complete
    inside.write_text(before)
    assert read_results(out).complete


def test_what_tuning_chose_is_missed(finished):
    _, out = finished
    kept = (out / "tuning.json").rename(out / "kept.json")
    with pytest.raises(RunError, match=r"tuning\.json is missing, which says what was chosen"):
        read_results(out)
    kept.rename(out / "tuning.json")


def test_rules_of_an_earlier_version_are_judged_and_it_is_said(tiny, tmp_path):
    plan, out = begun(tiny, tmp_path / "out")
    rules = json.loads((out / "rules.json").read_text())
    older = {name: value for name, value in rules.items() if name not in ("levels", "looks")}
    study = json.loads((out / "study.json").read_text())
    hashed = {name: value for name, value in older.items() if name not in ("hash", "fixed_at")}
    older["hash"] = rules_hash(hashed, study_hash(study["content"], study["files"]), study["data"])
    (out / "rules.json").write_text(json.dumps(older | {"extended": []}))
    for cell in plan.judged_cells({variant.name: {} for variant in plan.variants}):
        (out / cell.folder).mkdir(parents=True)
        write_result(out / cell.folder, plan, 1.0 + 0.01 * cell.seed)
    results = read_results(out)
    assert [alarm.message for alarm in results.alarms if alarm.check == "earlier rules"] == [
        "the rules are of an earlier version: they are judged here by one look, with intervals that hold together, and "
        "nothing shows whether records in the folder were changed"
    ]
    assert len(results.looks) == 1
    (out / "rules.json").write_text(json.dumps(older | {"smallest_effect": 5.0}))
    with pytest.raises(RunError, match="was changed after the study began"):
        read_results(out)


@pytest.mark.usefixtures("in_process")
def test_another_study_or_other_seeds_may_not_use_the_folder(tiny, tmp_path, monkeypatch):
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 2}}
    out = tmp_path / "out"
    first = run_study(parse_study(tiny), out, jobs=1)
    assert (first.rules["looks"], first.rules["levels"]) == ([1], [0.05])
    changed = {**tiny, "training": {"lr": 0.5}}
    with pytest.raises(RunError, match=r"another study or other rules .*training"):
        run_study(parse_study(changed), out, jobs=1)
    for seeds in (2, {"at_least": 2, "at_most": 4}):
        more = {**tiny, "rules": tiny["rules"] | {"seeds": seeds}}
        with pytest.raises(RunError, match="was begun with seeds 1, and seeds added after a look at the results"):
            run_study(parse_study(more), out, jobs=1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(RunError, match="was begun on cpu"):
        run_study(parse_study(tiny), out, device="cuda")


@pytest.mark.usefixtures("in_process")
def test_an_edited_module_is_another_study(tiny, tmp_path, mine):
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 1}}
    tiny["variants"]["mine"] = {"mixer": f"{mine}:Peek", "mixer_at": 1}
    run_study(parse_study(tiny), tmp_path / "out", jobs=1)
    mine.write_text(LEAK + "\n# edited\n")
    with pytest.raises(RunError, match=r"they differ in: file.*mine\.py"):
        run_study(parse_study(tiny), tmp_path / "out", jobs=1)


@pytest.mark.usefixtures("in_process")
def test_runs_are_shown_in_trackers(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 1}}
    run_study(parse_study(tiny), tmp_path / "out", jobs=1, trackers=["tensorboard"])
    assert list((tmp_path / "out" / "plain" / "seed-0").glob("events.out.tfevents.*"))


@pytest.mark.usefixtures("in_process")
def test_a_tracker_that_fails_is_told_and_one_that_is_not_there_is_refused_before_anything(tiny, tmp_path, monkeypatch):
    told = []
    watcher = SimpleNamespace(alarms=print, phase=print, message=lambda cell, one: told.append((cell.folder, one)))
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 1}}
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", None)
    results = run_study(parse_study(tiny), tmp_path / "out", jobs=1, trackers=["tensorboard"], watcher=watcher)
    assert results.complete
    assert not any(variant.failed for variant in results.variants)
    warned = [(folder, one["text"]) for folder, one in told if one["kind"] == "warning"]
    assert [text for folder, text in warned if folder == "plain/seed-0"] == [
        "tensorboard failed after step 0 and is left out; the run goes on: 'NoneType' object is not callable"
    ]
    with pytest.raises(SpecError, match="there is no tracker 'tensorbord'; did you mean 'tensorboard'"):
        run_study(parse_study(tiny), tmp_path / "other", trackers=["tensorbord"])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"device": "gpu"}, "--device must be auto, cpu or cuda; got 'gpu'"),
        ({"device": "cuda"}, "torch finds no CUDA device"),
        ({"jobs": -1}, "--jobs must be at least 1; got -1"),
    ],
)
def test_a_machine_that_is_not_there(tiny, tmp_path, monkeypatch, asked, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SpecError, match=expected):
        run_study(parse_study(tiny), tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_a_person_s_own_files_are_not_overwritten(tiny, tmp_path):
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(RunError, match=r"is no study's folder and holds report\.md"):
        run_study(parse_study(tiny), tmp_path)
    assert (tmp_path / "report.md").read_text() == "mine"


@pytest.mark.usefixtures("in_process")
def test_a_changed_text_is_another_study(tmp_path):
    (tmp_path / "text.txt").write_text("abcd" * 200)
    study = {
        "question": "?",
        "task": {"name": "char-lm", "text": str(tmp_path / "text.txt"), "context": 8, "batch": 2},
        "model": {"name": "decoder", "n_layers": 1, "d_model": 8},
        "baseline": "a",
        "variants": {"a": {}},
        "rules": {"budget": {"steps": 1}, "seeds": 1, "smallest_effect": 0.01},
    }
    results = run_study(parse_study(study), tmp_path / "out", jobs=1)
    (tmp_path / "text.txt").write_text("abdc" * 200)
    build_task.__globals__["_build_task"].cache_clear()  # as in a new process
    with pytest.raises(RunError, match="runs on another text"):
        run_study(parse_study(study), tmp_path / "out", jobs=1)
    (tmp_path / "text.txt").unlink()
    build_task.__globals__["_build_task"].cache_clear()
    assert read_results(tmp_path / "out") == results, "a report needs no data"


@pytest.mark.usefixtures("in_process")
def test_tuning_that_failed_altogether_gives_no_verdict_and_a_choice_stays(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 2, "budget": {"steps": 3}, "tune": {"lr": [1e-3, 1e30, 2e30]}}
    tiny["variants"]["with attention"]["training"] = {"clip": None, "warmup": 0}
    out = tmp_path / "out"
    results = run_study(parse_study(tiny), out, jobs=2)
    tuned = results.variant("with attention").tuning
    assert set(tuned["failed"]) == {"1e+30", "2e+30"}
    assert ("tuning", "with attention") in {(alarm.check, alarm.variant) for alarm in results.alarms}
    for setting in ("0.001", "1e+30", "2e+30"):  # lose what tuning reached: judged runs have begun with it
        (out / "plain" / f"tune-lr-{setting}" / f"seed-{TUNING_SEED}" / "result.json").unlink(missing_ok=True)
    assert read_results(out).variant("plain").cells[0].status == "done"
    assert numbers(out)["plain/seed-0"] == results.variant("plain").cells[0].metrics


@pytest.mark.usefixtures("in_process")
def test_tuning_looks_at_the_mean_of_its_seeds_and_leaves_out_settings_that_failed_once(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 1, "budget": {"steps": 3}, "tune": {"lr": [1e-3, 1e-2, 1e-1]}, "tune_seeds": 2}
    tiny["rules"] |= {"tune_again": 0}
    out = tmp_path / "out"
    run_study(parse_study(tiny), out, jobs=2)
    reached = numbers(out)
    of = {
        setting: [reached[f"plain/tune-lr-{setting}/seed-{TUNING_SEED + nth}"]["val_mse"] for nth in range(2)]
        for setting in ("0.001", "0.01", "0.1")
    }
    assert all(first != second for first, second in of.values())
    tuned = read_results(out).variant("plain").tuning
    assert tuned["scores"] == pytest.approx({setting: sum(pair) / 2 for setting, pair in of.items()})
    assert tuned["chosen"] == min(tuned["scores"], key=tuned["scores"].get)
    assert all(told.endswith("(2 runs)") for _, told in tables.tuning(read_results(out))[0]["tried"])

    (out / "plain" / "tune-lr-0.01" / f"seed-{TUNING_SEED + 1}" / "result.json").unlink()
    (out / "plain" / "seed-0" / "spec.json").unlink()
    tuned = record_tuning(plan_study(parse_study(tiny)), out)
    assert tuned["plain"] == {"lr": float(min((key for key in of if key != "0.01"), key=lambda key: sum(of[key])))}


def tuned_runs(plan, out, values):
    """Leave what tuning runs leave: for each learning rate the values of its seeds, the same for every variant."""
    twice = plan.tuning_cells_again({variant.name: list(plan.study.rules.grid()) for variant in plan.variants})
    for cell in [*plan.tuning_cells(), *twice]:
        reached = values[cell.tuned["lr"]][cell.tuning_run - 1 : cell.tuning_run]
        if reached:
            (out / cell.folder).mkdir(parents=True)
            write_json(out / cell.folder / "result.json", {"metrics": {plan.tune_metric.name: reached[0]}})


@pytest.mark.parametrize(
    ("values", "chosen", "at_edge", "as_good"),
    [
        ({0.1: [3.0], 0.2: [2.0, 2.0], 0.3: [1.0, 4.0]}, "0.2", False, []),
        ({0.1: [3.0], 0.2: [2.0, 2.0], 0.3: [1.0, 1.5]}, "0.3", True, []),
        ({0.1: [3.0], 0.2: [2.0, 2.0], 0.3: [1.0, 2.5]}, "0.3", False, ["0.2"]),
        ({0.1: [3.0], 0.2: [2.0, 2.0], 0.3: [1.995, 1.999]}, "0.3", False, ["0.2"]),
        ({0.1: [1.5, 9.0], 0.2: [2.0], 0.3: [1.0, 1.5]}, "0.3", True, []),
    ],
    ids=["luck of one seed", "slope", "seeds disagree", "less than matters", "neighbor not tried again"],
)
def test_the_best_settings_are_tried_again_and_an_edge_may_be_a_plateau(
    tiny, tmp_path, values, chosen, at_edge, as_good
):
    tiny["rules"] |= {"seeds": 1, "tune": {"lr": list(values)}, "smallest_effect": 0.01}
    plan = plan_study(parse_study(tiny))
    tuned_runs(plan, tmp_path, values)
    twice = [lr for lr, reached in values.items() if len(reached) == 2]
    again = cells_again(plan, tmp_path)
    assert sorted(cell.tuned["lr"] for cell in again if cell.variant == "plain") == sorted(twice)
    record_tuning(plan, tmp_path)
    record = json.loads((tmp_path / "tuning.json").read_text())["plain"]
    assert (record["chosen"], record["at_edge"], record["as_good"]) == (chosen, at_edge, as_good)
    assert record["runs"] == {f"{lr:g}": len(reached) for lr, reached in values.items()}


def test_two_processes_may_not_write_one_study(tiny, tmp_path):
    from attnlab.training.keeping.runs import lock

    with lock(tmp_path), pytest.raises(RunError, match="is being written by process"):
        run_study(parse_study(tiny), tmp_path)


def test_nothing_is_written_where_a_variant_cannot_be_built(tiny, tmp_path):
    tiny["variants"]["bad"] = {"kernel_size": 2}
    with pytest.raises(SpecError, match="variant 'bad'"):
        run_study(parse_study(tiny), tmp_path / "out")
    assert not (tmp_path / "out").exists()


RUDE = """
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
print("hello from an import")


def _constant(self):
    nn.init.constant_(self.weight, 0.01)
    if self.bias is not None:  # else it holds what the memory held, at times NaN
        nn.init.zeros_(self.bias)


nn.Conv1d.reset_parameters = nn.Linear.reset_parameters = _constant


class Rude(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
        torch.nn.functional.relu = torch.tanh
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.linear(x.to(self.linear.weight.dtype)).to(x.dtype)


class Polite(Rude):
    def __init__(self, d_model: int):
        nn.Module.__init__(self)
        self.linear = nn.Linear(d_model, d_model, dtype=torch.float32)
"""


def test_the_code_of_one_variant_touches_no_other(tiny, tmp_path):
    (tmp_path / "rude.py").write_text(RUDE)
    tiny["rules"] |= {"seeds": 1, "budget": {"flops": 8e7}}
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    run_study(parse_study(tiny), alone, jobs=1)
    for name in ("Rude", "Polite"):
        tiny["variants"] = {name: {"mixer": f"{tmp_path}/rude.py:{name}", "mixer_at": 1}, **tiny["variants"]}
    results = run_study(parse_study(tiny), beside, jobs=1)
    assert results.complete
    expected, found = numbers(alone), numbers(beside)
    assert len(expected) == 2
    assert {cell: found[cell] for cell in expected} == expected
    costs = [
        [(v.name, v.flops_per_token, v.activation_bytes) for v in read_results(out).variants] for out in (alone, beside)
    ]
    assert costs[0] == costs[1][-2:]
    assert torch.get_default_dtype() is torch.float32


def test_a_folder_without_a_study(tmp_path):
    with pytest.raises(RunError, match="holds no study"):
        read_results(tmp_path)
    run = tmp_path / "shapes" / "baseline" / "seed-0"
    run.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    with pytest.raises(RunError, match=f"is one run of a study; .* folder: {tmp_path / 'shapes'}"):
        read_results(run)


@pytest.mark.usefixtures("in_process")
def test_a_leak_raises_the_alarms(tmp_path, mine):
    text = "".join(random.Random(0).choices("abcdefgh", k=20_000))  # nothing to learn: ln 8 is the best loss
    (tmp_path / "text.txt").write_text(text)
    study = {
        "question": "Does it cheat?",
        "task": {"name": "char-lm", "text": str(tmp_path / "text.txt"), "context": 16, "batch": 20},
        "model": {"name": "decoder", "n_layers": 1, "d_model": 16, "mixer": "none"},
        "baseline": "honest",
        "variants": {"honest": {}, "leaks": {"mixer": f"{mine}:Peek"}},
        "rules": {"budget": {"steps": 150}, "seeds": 1, "smallest_effect": 0.01},
        "training": {"lr": 0.01},
    }
    results = run_study(parse_study(study), tmp_path / "out", jobs=2)
    checks = {(alarm.check, alarm.variant) for alarm in results.alarms}
    assert ("causality", "leaks") in checks
    assert ("floor", "leaks") in checks
    floor = next(alarm for alarm in results.alarms if alarm.check == "floor")
    assert "bigram" in floor.message
    assert "leak or mixing suspected" in floor.message
    assert not any(variant == "honest" for _, variant in checks)


@pytest.mark.usefixtures("in_process")
def test_a_study_that_cannot_answer_says_so(tiny, tmp_path):
    tiny["rules"] |= {"seeds": 3, "smallest_effect": 1e-6, "budget": {"steps": 1}}
    results = run_study(parse_study(tiny), tmp_path / "short", jobs=1)
    alarms = {alarm.check: alarm for alarm in results.alarms}
    assert "no variant is better than constant predictor: " in alarms["not learned"].message
    assert alarms["not learned"].variant is None
    assert "times the smallest effect of interest, which is too much to see such effects: " in alarms["spread"].message
    tiny["rules"] |= {"smallest_effect": 0.5, "budget": {"steps": 60}, "tune": {"lr": [0.02]}}
    assert not run_study(parse_study(tiny), tmp_path / "long", jobs=1).alarms


@pytest.mark.usefixtures("in_process")
def test_variants_computed_in_different_settings_are_told_apart(tiny, tmp_path):
    tiny["variants"] = {"plain": {}, "short": {"training": {"precision": "bf16"}}}
    tiny["rules"]["seeds"] = 1
    results = run_study(parse_study(tiny), tmp_path, jobs=2)
    assert [variant.settings for variant in results.variants] == [("float32",), ("bf16",)]
    alarm = next(alarm for alarm in results.alarms if alarm.check == "setting")
    assert (alarm.variant, alarm.message.split(":")[0]) == ("short", "computed in bf16, the baseline in float32")
