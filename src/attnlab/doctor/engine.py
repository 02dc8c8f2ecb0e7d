"""Examine a module: load it, find out how to call it, run every check, and never trust it for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from attnlab.build import describe_exception
from attnlab.doctor.calling.interview import interview
from attnlab.doctor.checks import CHECKS, Check
from attnlab.doctor.containment import OvertimeError, Traces, contained, time_limit
from attnlab.doctor.examination import Examination, Options
from attnlab.doctor.findings import Diagnosis, Finding, worst_first
from attnlab.doctor.loading.loading import load
from attnlab.doctor.usage import Usage
from attnlab.errors import AttnlabError, DataError, ModuleError
from attnlab.text.characters import decode_utf8

LOADING_S = 60.0  # a file may import large libraries
INTERVIEW_S = 30.0
CHECK_S = 10.0  # a layer takes a fraction of a second
TEXT_S = 300.0  # `text` trains for a while
ALL_S = 120.0  # what is left after that is skipped, and said
_SHOWN_PRINTS = 60  # characters of what a module printed

OnCheck = Callable[[str, int, int], None]
"""Called before each step with its name, its number, and the number of steps."""

Target = str | nn.Module | Callable[..., Any]
"""``FILE.py:Name``, an instance, a class, or a function that returns a module."""


def doctor(
    target: Target,
    *,
    arguments: Mapping[str, Any] | None = None,
    causal: bool | None = None,
    depth: int = 6,
    text: str | Path | None = None,
    on_check: OnCheck | None = None,
) -> Diagnosis:
    """Find what is wrong with a module as an attention layer, a block, or a model.

    Parameters
    ----------
    target : str, nn.Module, class or function
        ``FILE.py:Name``, an instance (which is left as it is), a class, or a function that returns a module.
    arguments : mapping, optional
        Constructor arguments; those that are missing are filled in by name.
    causal : bool, optional
        Whether a position is meant to see no later one; None: what the class says, else how it behaves.
    depth : int, default 6
        Number of layers to stack where an effect grows with depth.
    text : str or Path, optional
        A text to train on for a moment.
    on_check : callable, optional
        Told about each step before it runs.

    Returns
    -------
    Diagnosis
        Findings, worst first, a verdict, and what was assumed.

    Raises
    ------
    SpecError
        If there is no such file or class, or a constructor argument is missing or unknown.
    DataError
        If the text cannot be read.
    ModuleError
        If the module cannot be built or called.

    Examples
    --------
    >>> from torch import nn
    >>> doctor(nn.MultiheadAttention(64, 4, batch_first=True)).errors
    ()
    """
    options = Options(depth=depth, text=_readable(text))
    traces = Traces()
    patient = _contain(traces, LOADING_S, "loading it", lambda: load(target, arguments, causal=causal))
    usage = _contain(traces, INTERVIEW_S, "the first calls", lambda: interview(patient, causal=causal))
    ward = _Ward(Examination(patient, usage, options), traces, on_check or _silent)
    findings = [*ward.findings(), *_side_effects(traces)]
    return Diagnosis(patient.name, worst_first(findings), _assumptions(usage, traces), ward.seconds)


def assert_healthy(
    module: nn.Module,
    *,
    causal: bool | None = None,
    ignore: tuple[str, ...] = (),
) -> None:
    """Fail a test if the doctor finds an error in a module.

    Parameters
    ----------
    module : nn.Module
        An instance; it is left as it is.
    causal : bool, optional
        Whether a position is meant to see no later one.
    ignore : tuple of str
        Ids of checks whose errors are accepted.

    Raises
    ------
    AssertionError
        With every error, its evidence and its remedy.
    """
    diagnosis = doctor(module, causal=causal)
    errors = [finding for finding in diagnosis.errors if finding.check not in ignore]
    if errors:
        raise AssertionError(str(Diagnosis(diagnosis.name, tuple(errors), diagnosis.assumptions)))


def _readable(text: str | Path | None) -> Path | None:
    """Return the path of a text; one that cannot be read is an error before anything is examined."""
    if text is None:
        return None
    path = Path(text)
    try:
        decode_utf8(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    return path


def _contain(traces: Traces, seconds: float, doing: str, step: Callable[[], Any]) -> Any:
    """Run a step that must succeed; whatever foreign code does in it ends in one clear error."""
    try:
        with contained(traces), time_limit(seconds):
            return step()
    except AttnlabError:
        raise
    except OvertimeError:
        raise ModuleError(f"{doing} did not end within {seconds:g} s: an endless loop?") from None
    except (Exception, SystemExit) as error:
        raise ModuleError(f"{doing} raised {describe_exception(error, '')}") from error


def _silent(_check: str, _index: int, _count: int) -> None:
    """Tell nobody."""


@dataclass
class _Ward:
    """Run the checks one after another, each within its time, and keep the clock."""

    exam: Examination
    traces: Traces
    on_check: OnCheck
    seconds: dict[str, float] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """Yield what every check finds; one that cannot be finished is a finding of its own."""
        started = time.perf_counter()
        for index, (name, check) in enumerate(CHECKS.items()):
            self.on_check(name, index, len(CHECKS))
            if time.perf_counter() - started > ALL_S:
                yield _not_examined(name, f"skipped: the checks before it took {ALL_S:g} s", "")
                continue
            before = time.perf_counter()
            yield from self.run(name, check)
            self.seconds[name] = time.perf_counter() - before

    def run(self, name: str, check: Check) -> list[Finding]:
        """Return what one check finds."""
        found: list[Finding] = []
        try:
            with contained(self.traces), time_limit(TEXT_S if name == "text" else CHECK_S):
                found.extend(check(self.exam))
        except OvertimeError:
            found.append(_overtime(name))
        except ModuleError as error:
            found.append(_not_examined(name, "the module raised an exception in this check", str(error)))
        except AttnlabError:
            raise
        except (Exception, SystemExit) as error:
            found.append(_not_examined(name, "the check itself failed", describe_exception(error, "")))
        return found


def _overtime(name: str) -> Finding:
    return Finding(
        name,
        "warning",
        f"this check did not end within {CHECK_S:g} s, so it says nothing.",
        "an endless loop, or far more work per call than an attention layer has",
        "call the module once with a batch of 3 and a length of 11 and look where it stays",
        nature="set-up",
    )


def _not_examined(name: str, why: str, evidence: str) -> Finding:
    return Finding(name, "info", f"could not be examined: {why}.", evidence)


def _side_effects(traces: Traces) -> Iterator[Finding]:
    """Yield what the module changed for everybody."""
    if traces.changed:
        yield Finding(
            "determinism",
            "warning",
            "building or calling it changes global settings, which changes every other module of the program.",
            "changed (and put back): " + "; ".join(dict.fromkeys(traces.changed)),
            "set such things once in the program that uses the module, not in the module",
            "PyTorch documentation, torch.set_default_dtype",
            nature="set-up",
        )


def _assumptions(usage: Usage, traces: Traces) -> dict[str, str]:
    """Return what was assumed, with what the module printed meanwhile."""
    printed = traces.printed.getvalue().strip()
    said = {}
    if printed:
        first = printed.splitlines()[0]
        shown = first if len(first) <= _SHOWN_PRINTS else first[:_SHOWN_PRINTS] + " ..."
        said = {"prints": f"{len(printed.splitlines())} lines, kept from the screen; the first: {shown}"}
    return {**usage.assumptions, **said}
