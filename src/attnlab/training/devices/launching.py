"""Start a process for each device of a machine, and end all as soon as one of them dies: torchrun, called."""

from __future__ import annotations

import contextlib
import datetime
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from attnlab.core import errors
from attnlab.core.errors import AttnlabError, Interrupted, SpecError, TrainingError
from attnlab.core.machine import usable_cores, usable_threads
from attnlab.training.devices.nodes import Nodes

PATIENCE = datetime.timedelta(days=7)
"""How long ranks wait for each other, as for the first one that evaluates; one that died is noticed otherwise."""
RANKS_A_CORE = 4
"""Processes on a CPU that a core can be asked to share, as to try what is meant for more devices."""
GRACE_S = 1.0
"""How long a failed rank stays: others fail because of it when it goes, and who went first is to be seen."""
STOP_PATIENCE_S = 120
"""How long ranks may take to reach the end of a step and write their checkpoint after Ctrl-C."""
OLDEST_TORCH = (2, 13)
"""With 2.11 its launcher takes other arguments, and sharded parameters have no step of an optimizer."""
GOES_ON = "where checkpoints are kept, the same command goes on from the last one"


def on_devices(
    count: int,
    function: Callable[..., Any],
    *arguments: Any,
    device: str = "cpu",
    on_message: Callable[[Any], None] | None = None,
    nodes: Nodes | None = None,
) -> Any:
    """Call a function in several processes, one for each device, that train one model together.

    Parameters
    ----------
    count : int
        Number of processes, on all machines. On a CPU they share the cores, and may be up to 4 for each.
    function : callable
        A function that its module knows by its name; it calls `train` with a recipe of as many devices.
    *arguments : Any
        Its arguments, which can be pickled.
    device : str
        ``cpu`` or ``cuda``; in each process ``cuda`` is a device of its own.
    on_message : callable, optional
        Told what the first process passes to `tell_parent`, in a thread of its own.
    nodes : Nodes, optional
        Which of several machines this is, each of which calls this; by default the only one.

    Returns
    -------
    Any
        What the function returned in the first process, on its machine.

    Raises
    ------
    SpecError
        If there are not as many devices, or too many for the cores, machines do not divide them, or torch is older
        than 2.13.
    AttnlabError
        The error of the process that failed first; the others are ended.
    Interrupted
        If a person stopped them; each has had time to save.

    Notes
    -----
    They talk through gloo, on CUDA through NCCL. A module that calls this at its top level guards it by
    ``if __name__ == "__main__":``, since every process imports it.

    References
    ----------
    .. [1] PyTorch, "torchrun (Elastic Launch)".
    """
    nodes = nodes or Nodes()
    each = nodes.each_of(count)
    check_devices(each, device)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    how = LaunchConfig(
        min_nodes=nodes.count,
        max_nodes=nodes.count,
        nproc_per_node=each,
        run_id=str(os.getpid() if nodes.count == 1 else nodes.port),
        max_restarts=0,
        shutdown_timeout=STOP_PATIENCE_S,
        **nodes.launched(),
    )
    with _quiet(), _mailbox(on_message) as mailbox:
        try:
            return elastic_launch(how, _be_a_rank)(device, mailbox, function, arguments).get(0)
        except ChildFailedError as error:
            raise _first_error(error) from None
        except SignalException:
            raise Interrupted(f"stopped; {GOES_ON}") from None


def check_devices(count: int, device: str, name: str = "devices") -> None:
    """Refuse a number of devices that are not there."""
    import torch

    if count < 1:
        raise SpecError(f"{name} must be at least 1; got {count}")
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        raise SpecError(f"{name} {count}: several devices need torch 2.13 or later; this is {torch.__version__}")
    if device == "cpu" and count > RANKS_A_CORE * usable_cores():
        raise SpecError(
            f"{name} {count}: this machine has {usable_cores()} cores, and processes beyond {RANKS_A_CORE} a core only "
            "wait for each other; choose fewer"
        )
    there = torch.cuda.device_count() if device != "cpu" else count
    if count > there:
        raise SpecError(f"{name} {count}: torch finds {there} CUDA devices on this machine")


_mail: list[Any] = []
"""The way from this process to the one that started it, where it is a rank."""


def tell_parent(message: Any) -> None:
    """Pass a message, which can be pickled, from a rank to who started it."""
    for mailbox in _mail:
        mailbox.put((message,))


def _be_a_rank(device: str, mailbox: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Join the others and call the function."""
    import torch
    import torch.distributed as dist

    os.setpgrp()  # Ctrl-C on a terminal goes to the parent alone, which passes it on once
    sys.stdout = sys.stderr
    _mail.append(mailbox)
    count = int(os.environ["LOCAL_WORLD_SIZE"])
    if device == "cpu":
        torch.set_num_threads(usable_threads(count))
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with _staying_when_failed():
        dist.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=PATIENCE)
        found = function(*arguments)
        dist.destroy_process_group()
    return found if os.environ["RANK"] == "0" else None


@contextlib.contextmanager
def _staying_when_failed() -> Iterator[None]:
    """Let an error out a moment later, as the kind that the parent knows."""
    try:
        yield
    except AttnlabError as error:
        time.sleep(GRACE_S)
        kind = next(one for one in type(error).__mro__ if one.__name__ in vars(errors))
        raise kind(str(error)) from error
    except Exception:
        time.sleep(GRACE_S)
        raise


def _first_error(error: Any) -> AttnlabError:
    """The error of the rank that failed first, as it was raised there; of a bug there its traceback is shown."""
    rank, failure = error.get_first_failure()
    said, traceback = failure.message, ""
    if not isinstance(said, str):
        said, traceback = said["message"], said["extraInfo"]["py_callstack"]
    kind, _, text = said.partition(": ")
    known = vars(errors).get(kind)
    if known is not None:
        return known(text)
    sys.stderr.write(traceback)
    return TrainingError(f"rank {rank} (process {failure.pid}) failed: {said}; {GOES_ON}")


@contextlib.contextmanager
def _mailbox(on_message: Callable[[Any], None] | None) -> Iterator[Any]:
    """A queue for ranks, whose messages are passed on by a thread."""
    queue = multiprocessing.get_context("spawn").SimpleQueue()

    def listen() -> None:
        while (message := queue.get()) is not None:
            if on_message is not None:
                on_message(*message)

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        queue.put(None)
        thread.join()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the launcher logs of a failure from the terminal: its error says it in a sentence."""
    speakers = ("torch.distributed.elastic", "torch.multiprocessing")
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith(speakers)]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
