"""How long a person waits before anything happens: importing attnlab, and its help."""

from __future__ import annotations

import subprocess
import sys
import time

from attnlab.benchmarks.measuring.turns import PairedTimes, measure_in_turn

ROUNDS = 7
REFERENCE = "import torch"
CODE = {
    "python alone": "pass",
    REFERENCE: "import torch",
    "import attnlab": "import attnlab",
    "attnlab --help": "from attnlab.cli import main; main(['--help'])",
    "attnlab list": "from attnlab.cli import main; main(['list'])",
    "import attnlab.training": "import attnlab.training",
}
"""What each new interpreter runs."""


def bench_start(*, rounds: int = ROUNDS) -> PairedTimes:
    """Compare how long new interpreters take to import and to print help, from start to exit."""
    return measure_in_turn(
        "start to exit of a new interpreter",
        {name: lambda code=code: _run_ms(code) for name, code in CODE.items()},
        reference=REFERENCE,
        unit="ms",
        rounds=rounds,
    )


def _run_ms(code: str) -> float:
    """The milliseconds of one new interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return (time.perf_counter() - start) * 1e3
