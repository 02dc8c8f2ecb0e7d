"""Ranks for tests: forks of one process that has imported torch once for all of them, joined by gloo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

Case = tuple[int, str, list[Any]]
"""So many ranks call a function of a module by its name, with arguments in JSON types."""

CODE = """
import importlib, json, sys
import torch._dynamo, torch.distributed.fsdp  # so that they are in no fork
from tests.training.forked import fork_ranks

module, cases = importlib.import_module(sys.argv[1]), json.loads(sys.argv[2])
print(json.dumps([fork_ranks(count, getattr(module, name), arguments) for count, name, arguments in cases]))
"""


def on_forks(module: str, cases: Sequence[Case]) -> list[list[Any]]:
    """What every rank of every case returned, in JSON types; None of one that died."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, module, json.dumps(cases)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def fork_ranks(count: int, function: Any, arguments: list[Any]) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        children = [fork(rank, count, Path(folder), function, arguments) for rank in range(count)]
        for child in children:
            os.waitpid(child, 0)
        answers = [Path(folder, str(rank)) for rank in range(count)]
        return [json.loads(answer.read_text()) if answer.exists() else None for answer in answers]


def fork(rank: int, count: int, folder: Path, function: Any, arguments: list[Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        if count > 1:
            store = dist.FileStore(str(folder / "store"), count)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
        (folder / str(rank)).write_text(json.dumps(function(*arguments)))
        if count > 1:
            dist.barrier()  # one that goes first cuts off those that still join a group of theirs
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def one_fails(how: str) -> None:
    """Fail on one rank while the others wait for it."""
    if dist.get_rank() == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("this rank has its own trouble")
    dist.barrier()
