"""A plugin of pytest: ``pytest --attnlab-doctor mine.py:MyAttention`` makes an examination by the doctor a test.

pytest imports it wherever attnlab is installed, so it imports nothing else; the doctor runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import Any, final

import pytest

OPTION = "--attnlab-doctor"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("attnlab").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="FILE.py:NAME",
        help="Also examine this with `attnlab doctor`, as one test; may be repeated, and hold options of the doctor: "
        f"{OPTION} 'mine.py:MyAttention --causal --accept signal'.",
    )


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among tests
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for everything that is to be examined."""
    asked = config.getoption(OPTION)
    for words in asked:
        try:
            _split(words)
        except ValueError as error:
            raise pytest.UsageError(f"{OPTION} {words}: {error}") from error
    items += [DoctorItem.from_parent(session, name=f"doctor[{words}]") for words in asked]


@final
class DoctorItem(pytest.Item):
    """Test that the doctor finds no error in a module; its name holds what follows ``attnlab doctor``."""

    @property
    def words(self) -> list[str]:
        """What follows ``attnlab doctor`` on a command line."""
        return _split(self.name.removeprefix("doctor[").removesuffix("]"))

    def runtest(self) -> None:
        """Examine it; what is wrong fails with the words of the doctor."""
        command = [sys.executable, "-m", "attnlab", "doctor", *self.words, "--json"]
        where = self.config.invocation_params.dir
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode:
            pytest.fail(_complaint(done.stdout, done.stderr), pytrace=False)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Where a failure is shown to come from."""
        return self.config.invocation_params.dir, None, f"attnlab doctor {shlex.join(self.words)}"


def _split(words: str) -> list[str]:
    return shlex.split(words, posix=os.name == "posix")


def _complaint(answer: str, said: str) -> str:
    """What the doctor found, as it says it; without a diagnosis, why there is none."""
    if not answer.lstrip().startswith("{"):
        return said.strip()
    found = json.loads(answer)
    if "error" in found:
        return found["error"]
    errors = [one for one in found["findings"] if one["severity"] == "error" and not one["accepted"]]
    return "\n\n".join([*map(_finding, errors), f"verdict: {found['verdict']}: {found['summary']}"])


def _finding(finding: dict[str, str]) -> str:
    more = [f"  {part}: {finding[part]}" for part in ("evidence", "remedy", "source") if finding[part]]
    return "\n".join([f"error {finding['check']}: {finding['message']}", *more])
