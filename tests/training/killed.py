"""Code that kills its own process, case by case: each in a fork of one process, which imports torch once for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

FORKS = """
import json, os, sys
import torch._dynamo  # the first update of an optimizer imports it, which would be in every fork

codes = []
for case in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        run(*case)
        os._exit(0)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


def exit_codes(code: str, cases: Sequence[Sequence[Any]]) -> list[int]:
    """How each case ended: a call, with its arguments, of the function ``run`` that `code` defines."""
    done = subprocess.run(
        [sys.executable, "-c", code + FORKS, json.dumps(cases)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)
