"""The command line as a person meets it: exit codes, output, errors; nothing heavy before it is needed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import typing

import pytest
from tests.studies.example_results import shapes

from attnlab import cli
from attnlab.cli import FAILED, FINE, WRONG_USE, call
from attnlab.cli.catalog import TABLES, entries
from attnlab.cli.run import report_and_show
from attnlab.core.errors import RunError
from attnlab.studies.report import headline

STUDY = """\
question: "Does a mixer in the middle help?"
task: {name: shapes, n_train: 60, n_test: 11, batch: 20}
model: {name: cnn, channels: 6, kernel_size: 3, n_layers: 3}
baseline: plain
variants:
  plain: {}
  with attention: {mixer: {name: attention, n_heads: 2}, mixer_at: 1}
rules: {metric: test_mse, budget: {steps: 3}, seeds: 2, smallest_effect: 0.01}
scales:
  small: {rules: {seeds: 1}}
"""

TRANSLATION = """\
question: "Does it translate?"
task: {name: translation, corpus: ./pairs.tsv, tokenizer: words, beam: null}
model: {name: encoder-decoder, d_model: 8, n_layers: 1, mixer: {name: attention, n_heads: 2}}
baseline: it
variants: {it: {}}
rules: {metric: val_loss, budget: {steps: 2}, seeds: 1, smallest_effect: 0.01}
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(STUDY)
    return path


def test_run_prints_the_verdict_and_the_path_of_the_report(study, capfd):
    assert call(["run", str(study), "--jobs", "1"]) == FINE
    printed = capfd.readouterr().out
    assert "with attention" in printed
    assert "runs/mine/report.html" in printed
    assert (study.parent / "runs" / "mine" / "report.html").exists()

    assert call(["run", str(study), "--json"]) == FINE
    report = json.loads(capfd.readouterr().out)
    assert {"study", "rules", "variants", "verdicts", "alarms", "environment"} <= set(report)
    assert call(["report", "runs/mine", "--json"]) == FINE
    assert json.loads(capfd.readouterr().out)["verdicts"] == report["verdicts"]


@pytest.mark.usefixtures("in_process")
def test_a_verdict_is_printed_where_no_report_can_be_written(capfd, monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise RunError("cannot write")

    monkeypatch.setattr("attnlab.studies.report.write_report", refuse)
    results = shapes()
    for json_wanted, shown in ((False, headline(results).split()[0]), (True, '"question":')):
        with pytest.raises(RunError, match="cannot write"):
            report_and_show(results, tmp_path, json=json_wanted)
        assert shown in capfd.readouterr().out


@pytest.mark.usefixtures("in_process")
def test_no_report_takes_the_place_of_a_folder_that_was_moved_away(capfd, tmp_path):
    results = shapes()
    with pytest.raises(RunError, match="no study's folder any more"):
        report_and_show(results, tmp_path / "moved", json=False)
    assert headline(results).split()[0] in capfd.readouterr().out
    assert not (tmp_path / "moved").exists()


def test_one_seed_runs_and_shows_nothing(study, capfd):
    assert call(["run", str(study), "--scale", "small", "--out", "elsewhere", "--jobs", "1", "--json"]) == FINE
    report = json.loads(capfd.readouterr().out)
    assert {verdict["verdict"] for verdict in report["verdicts"]} == {"undecided"}
    assert any(
        (alarm["check"], alarm["message"]) == ("one seed", "the difference of two runs may be noise")
        for alarm in report["alarms"]
    )
    assert (study.parent / "elsewhere" / "rules.json").exists()


@pytest.mark.usefixtures("in_process")
def test_a_failed_run_is_exit_code_1(study, capfd):
    (study.parent / "bad.py").write_text(
        "import torch\n"
        "class Bad(torch.nn.Module):\n"
        "    def __init__(self, d_model):\n        super().__init__()\n        self.calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += x.shape[0] == 20 and x.device.type == 'cpu'\n"
        "        if self.calls > 2:\n            raise RuntimeError('no more')\n"
        "        return x * 1.0\n"
    )
    study.write_text(STUDY.replace("{name: attention, n_heads: 2}", "./bad.py:Bad"))
    assert call(["run", str(study), "--jobs", "1"]) == FAILED
    assert "no more" in capfd.readouterr().out


def test_plan_with_as_many_seeds_as_it_takes(study, capfd):
    assert call(["plan", str(study), "--seeds", "3-5", "--no-calibrate", "--json"]) == FINE
    rules = json.loads(capfd.readouterr().out)["rules"]
    assert (rules["seeds"], rules["looks"]) == ({"at_least": 3, "at_most": 5}, [3, 4, 5])
    assert call(["plan", str(study), "--seeds", "3-5", "--no-calibrate"]) == FINE
    assert "x 3 to 5 seeds" in " ".join(capfd.readouterr().out.split())


def test_plan(study, capfd):
    assert call(["plan", str(study)]) == FINE
    assert "2 variants x 2 seeds" in capfd.readouterr().out
    assert call(["plan", str(study), "--json"]) == FINE
    plan = json.loads(capfd.readouterr().out)
    assert [variant["name"] for variant in plan["variants"]] == ["plain", "with attention"]
    assert plan["variants"][0]["seconds_per_seed"] > 0


@pytest.mark.usefixtures("in_process")
def test_what_is_suspicious_about_the_data_is_said_before_training(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    lines = [f"a dog runs {number}" for number in range(80)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in [*lines, ""]), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(TRANSLATION, encoding="utf-8")
    assert call(["plan", "mine.yaml", "--no-calibrate"]) == FINE
    left_out = r"! data: pairs of the \w+ part left out, one side empty: 1 \(line 81\)"
    said = re.search(left_out, " ".join(capfd.readouterr().out.split()))
    assert said
    assert call(["plan", "mine.yaml", "--no-calibrate", "--seeds", "3"]) == FINE
    assert "one variant is compared with nothing" in " ".join(capfd.readouterr().out.split())
    assert call(["run", "mine.yaml", "--jobs", "1"]) == FINE
    printed = " ".join(capfd.readouterr().out.split())
    assert printed.index(said[0]) < printed.index("judged runs: 1")


def test_a_note_about_all_variants_is_told_once_and_long_times_in_days(study, capfd, monkeypatch):
    monkeypatch.setattr("attnlab.studies.plan.plan.flops_per_second_on_one_thread", lambda precision: 1.0)
    assert call(["plan", str(study)]) == FINE
    printed = " ".join(capfd.readouterr().out.split())
    assert printed.count("a step takes too long") == printed.count("all variants: a step takes too long") == 1
    assert re.search(r" [\d,]+ days or more on this machine's \d+ cores: without starting processes, ", printed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--nodes", "0"], "--nodes must be at least 1; got 0"),
        (["--nodes", "2"], "--nodes 2 needs --rendezvous HOST:PORT, an address of one of the machines, alike on each"),
        (["--rendezvous", "here:29500"], "--rendezvous is where several machines meet; say how many with --nodes"),
        (
            ["--nodes", "2", "--rendezvous", "here:29500", "--out", "s3://bucket/mine"],
            "--nodes 2 needs a folder on a disk that all machines see; got --out s3:",
        ),
    ],
)
def test_machines_that_cannot_meet_are_a_sentence(study, capfd, options, said):
    assert call(["run", str(study), *options]) == WRONG_USE
    assert said in " ".join(capfd.readouterr().err.split())


def test_help_says_where_sentences_come_from(capfd):
    assert call(["completion", "--help"]) == FINE
    assert "in ~/.bashrc" in " ".join(capfd.readouterr().out.replace("│", "").split())
    assert call(["translate", "--help"]) == FINE
    printed = " ".join(re.sub(r"[│\s]+", " ", capfd.readouterr().out).split())
    assert "the lines of the file or of standard input" in printed
    assert "--empty" not in printed


def test_a_reader_that_has_seen_enough_is_no_error(capfd, monkeypatch):
    def closed(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("attnlab.cli.catalog.entries", closed)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    assert call(["list"]) == FINE
    assert not capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device"), "attnlab: No space left on device\n"),
        (OSError(13, "Permission denied", "runs/rules.json"), "attnlab: Permission denied: runs/rules.json\n"),
        (OSError("cannot be read"), "attnlab: cannot be read\n"),
    ],
)
def test_what_the_system_refuses_is_said_with_what_is_known(error, sentence, capfd, monkeypatch):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr("attnlab.cli.catalog.entries", refused)
    assert call(["list"]) == WRONG_USE
    assert capfd.readouterr().err == sentence


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rnu", "shapes"], "run"),
        (["run"], "STUDY"),
        (["run"], "see: attnlab run --help"),
        (["rnu", "shapes"], "see: attnlab --help"),
        (["run", "shpaes"], "did you mean 'shapes'"),
        (["run", "mine.yaml", "--sale", "small"], "--scale"),
        (["run", "mine.yaml", "--scale", "smal"], "did you mean 'small'"),
        (["run", "mine.yaml", "--seeds", "0"], "--seeds must be at least 1; got 0"),
        (["run", "mine.yaml", "--out", "mine.yaml"], "mine.yaml"),
        (["run", "mine.yaml", "--seeds", "many"], "--seeds must be a whole number, or two such as 3-20; got many"),
        (["run", "mine.yaml", "--seeds", "3..20"], "--seeds must be a whole number, or two such as 3-20; got 3..20"),
        (["run", "mine.yaml", "--seeds", "20-3"], "--seeds 20-3: at_most must not be below at_least; got 3 below 20"),
        (["report", "nowhere"], "holds no study"),
        (["list", "scroes"], "did you mean 'scores'"),
        (["bench", "lop"], "did you mean 'loop'"),
        (["run", "shapes", "--jbos", "2"], "run has no option --jbos; did you mean '--jobs'?"),
        (["heads", "--tokns=7", "runs/mine"], "heads has no option --tokns=7; did you mean '--tokens'?"),
        (["doctor", "mine.py:Mine", "--not-causl"], "did you mean '--not-causal'?"),
        (["report", "runs/mine", "-q"], "report has no option -q; known: --figures, --json"),
        (["translate", "run", "-A dog."], "translate has no option -A dog.; known: --file, "),
        (["run", "mine.yaml", "--out", ""], "must be a folder; got an empty word"),
        (["predict", "run", "x.npy", "--out", "none/a.npy"], "--out none/a.npy: there is no folder none; make it"),
        (["translate", "run", "-A dog."], "(write -- before words that begin with a dash and are no options)"),
    ],
)
@pytest.mark.usefixtures("study")
def test_wrong_use_is_exit_code_2_and_a_sentence(arguments, expected, capfd):
    assert call(arguments) == WRONG_USE
    printed = capfd.readouterr()
    assert expected in " ".join(printed.err.split())
    assert "Traceback" not in printed.err + printed.out


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "this asks for more memory than there is (MemoryError); choose smaller sizes"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "this asks for more memory than there"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply to be worked with; make it flatter"),
        (RuntimeError("can't start new thread"), "no thread can be started: there is no memory for one"),
    ],
)
def test_what_is_too_large_is_a_sentence(monkeypatch, capfd, error, expected):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert call(["list"]) == FAILED
    assert expected in " ".join(capfd.readouterr().err.split())


def test_where_memory_ends_the_sentence_is_said_without_colors(monkeypatch, capfd):
    def fail(*_, **__):
        raise MemoryError("\udc80.txt")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(cli, "_print", fail)
    assert call(["list"]) == FAILED
    assert capfd.readouterr().err.startswith(
        r"attnlab: this asks for more memory than there is (MemoryError: \udc80.txt"
    )


def test_an_error_of_the_lab_itself_keeps_its_traceback(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        call(["list"])


@pytest.mark.parametrize("kind", ["studies", *TABLES])
def test_every_entry_has_a_summary(kind):
    found = entries(kind)
    assert found
    assert all(entry.summary.endswith((".", "?")) for entry in found), found


def test_the_list_is_that_of_the_tables(capfd):
    from attnlab.nn.axes.scores import SCORES
    from attnlab.training.recipe.optim import OPTIMIZERS

    assert call(["list", "--json"]) == FINE
    listed = json.loads(capfd.readouterr().out)
    assert list(listed["scores"]) == list(SCORES)
    assert list(listed["optimizers"]) == list(OPTIMIZERS)
    assert call(["list", "scores"]) == FINE
    assert "additive" in capfd.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["run", "--help"], ["plan", "--help"]])
def test_nothing_heavy_is_imported_before_it_is_needed(arguments):
    script = (
        "import sys; from attnlab.cli import call\n"
        f"code = call({arguments!r})\n"
        "heavy = {'torch', 'scipy', 'altair', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("given", [None, "0"])
def test_large_tensors_lie_in_large_pages_unless_a_person_says_otherwise(given, monkeypatch):
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    if given is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", given)
    script = "import atexit, os; from attnlab.cli import main\n"
    script += "atexit.register(lambda: print(os.environ['THP_MEM_ALLOC_ENABLE']))\nmain(['--version'])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split()[-1] == (given or "1")


def test_list_tells_what_a_part_takes(capsys):
    assert call(["list", "rotary"]) == FINE
    out = " ".join(capsys.readouterr().out.split())
    assert "rotary of positions: Turn queries and keys" in out
    assert "base 10000.0 Base of the wavelengths." in out
    assert call(["list", "attention", "--json"]) == FINE
    told = json.loads(capsys.readouterr().out)
    assert {*told} == {"mixers", "combiners"}
    heads = told["mixers"]["attention"]["arguments"]["n_heads"]
    assert heads == {"required": False, "default": 4, "meaning": "Number of query heads."}
    assert call(["list", "rotari"]) == WRONG_USE
    assert "no table and no part 'rotari'; did you mean 'rotary'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["run", ""], {"shapes", "mine.yaml"}),
        (["explain", ""], {"blog-shapes", "mine.yaml"}),
        (["run", "shapes", "--scale", ""], {"full"}),
        (["plan", "mine.yaml", "--scale", ""], {"small"}),
        (["list", ""], {"studies", "scores", "rotary"}),
        (["bench", ""], {"loop", "all"}),
    ],
)
@pytest.mark.usefixtures("study")
def test_names_of_the_library_and_of_files_are_completed(words, some, capsys):
    assert call(["__complete", *words]) == FINE
    assert some <= {line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()}


def test_bash_completes_files_itself_and_closed_choices_are_known(capsys):
    assert call(["completion", "bash"]) == FINE
    script = capsys.readouterr().out
    assert "complete -o bashdefault -o default -F _attnlab attnlab" in script
    assert "compgen -f" not in script
    assert all(f"_c=({choices})" in script for choices in ('"cpu" "cuda"', '"last" "best"', '"zero" "mean" "resample"'))
    assert '_c=("torch-export" "onnx" "huggingface")' in script


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ("fpath=(. $fpath); autoload -Uz _attnlab; _attnlab; _attnlab", ["asked for arguments"] * 2),
        ('eval "$(< _attnlab)"', ["known: _cyclopts_attnlab attnlab"]),
    ],
)
def test_zsh_calls_what_completes_however_it_is_loaded(loaded, said, tmp_path, capsys):
    assert call(["completion", "zsh"]) == FINE
    (tmp_path / "_attnlab").write_text(capsys.readouterr().out, encoding="utf-8")
    stubs = "_arguments() { print asked for arguments }; compdef() { print known: $* }; words=(attnlab ru); CURRENT=2; "
    found = subprocess.check_output(["zsh", "-f", "-c", stubs + loaded], cwd=tmp_path, text=True)
    assert found.splitlines() == said


def test_zsh_completes_files_where_a_name_of_one_stands_first(capsys):
    assert call(["completion", "zsh"]) == FINE
    first = re.findall(r"^ +'1:.*' \\$", capsys.readouterr().out, flags=re.MULTILINE)
    actions = ("->cmds", ":_files", ":_cyclopts_attnlab_complete")
    assert [one for one in first if not one.removesuffix("' \\").endswith(actions)] == []
    assert any(one.lstrip().startswith("'1:FILE.py") for one in first)


def test_choices_on_the_command_line_are_those_of_the_library():
    from attnlab.cli.trained.export import To
    from attnlab.studies.exporting.export import TARGETS

    assert set(typing.get_args(To)) == set(TARGETS)


@pytest.mark.parametrize("command", [name for name in cli.app if not name.startswith("-")])
def test_help_has_no_option_that_empties_a_list_and_no_empty_default(command, capsys):
    assert call([command, "--help"]) == FINE
    out = capsys.readouterr().out
    assert "--empty" not in out
    assert not re.search(r'default: *(""|\(\))', out)
    if "[ARGS...]" in out:
        assert "begins with a dash, write --" in " ".join(out.replace("\u2502", " ").split())


def test_sigterm_is_as_ctrl_c():
    script = (
        "import os, signal, attnlab.cli as cli\n"
        "cli.app = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli.main(['run', 'shapes'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


ENDLESS = """
question: Does it end?
task: {name: shapes, n_train: 60, n_test: 20, batch: 20}
model: {name: cnn, channels: 4, kernel_size: 3, n_layers: 2}
baseline: one
variants: {one: {}}
rules: {metric: test_mse, budget: {steps: 100000000}, seeds: 1, smallest_effect: 0.01}
"""


def test_sigterm_stops_a_study_at_its_checkpoints_where_a_shell_lets_ctrl_c_be_ignored(tmp_path):
    (tmp_path / "endless.yaml").write_text(ENDLESS)
    command = [sys.executable, "-m", "attnlab", "run", "endless.yaml", "--out", "out"]
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what shells do for what they start with &
    try:
        study = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    finally:
        signal.signal(signal.SIGINT, ignored)
    try:
        while study.poll() is None and not (tmp_path / "out/one/seed-0/metrics.jsonl").exists():
            time.sleep(0.1)
        study.send_signal(signal.SIGTERM)
        _, said = study.communicate(timeout=300)
    finally:
        study.kill()
    assert study.returncode == 130
    assert "The same command goes on from there" in said
    assert (tmp_path / "out/one/seed-0/last/state.json").exists()
