"""``pytest --attnlab-doctor``: an examination is a test, and costs nothing where nobody asks for one."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ("pytester",)

RIGHT = """\
from torch import nn

class Right(nn.Module):
    def __init__(self, d_model=12, n_heads=3):
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, n_heads, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]"""


@pytest.fixture
def project(pytester, monkeypatch):
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(mine=RIGHT, test_own="def test_own():\n    pass\n")
    return pytester


def test_each_target_is_a_test_beside_a_persons_own(project):
    done = project.runpytest_subprocess(
        "--attnlab-doctor", "mine.py:Right --layout 'batch first'", "--attnlab-doctor", "mine.py:Right --causal", "-v"
    )
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*error *: *", "*evidence: *", "*remedy: *", "*verdict: bug: *"])
    done.stdout.no_fnmatch_line("*Traceback*")


def test_what_cannot_be_examined_fails_with_the_reason(project):
    asked = ["mine.py:Nobody", "mine.py:Right --causl"]
    done = project.runpytest_subprocess(*(word for target in asked for word in ("--attnlab-doctor", target)))
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*defines no 'Nobody'*", "*doctor has no option --causl; did you mean*"])


def test_a_quote_that_stays_open_is_wrong_use(project):
    done = project.runpytest_subprocess("--attnlab-doctor", "mine.py:Right 'unclosed")
    done.stderr.fnmatch_lines(["ERROR: --attnlab-doctor mine.py:Right 'unclosed: No closing quotation"])
    assert done.ret == pytest.ExitCode.USAGE_ERROR


def test_keywords_choose_among_examinations(project):
    done = project.runpytest_subprocess("--attnlab-doctor", "mine.py:Right", "-k", "own")
    done.assert_outcomes(passed=1, deselected=1)


def test_nothing_is_imported_for_a_plugin_that_nobody_uses():
    script = (
        "import sys, attnlab.pytest_plugin; sys.exit(str({'torch', 'numpy', 'rich', 'cyclopts'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"
