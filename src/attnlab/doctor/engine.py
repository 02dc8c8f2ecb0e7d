"""Examine a module: load it, find out how to call it, run every check, and never trust it for a moment."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from attnlab.core.build import describe_exception, is_path, path_of
from attnlab.core.errors import AttnlabError, ModuleError, SpecError, nearest
from attnlab.doctor.checks import CHECKS, Check
from attnlab.doctor.examination import SEED, Examination, ExaminationOptions
from attnlab.doctor.findings import NOT_EXAMINED, Diagnosis, Finding, FindingText, worst_first
from attnlab.doctor.text_study import text_study
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.containment import (
    CUDA,
    OF_BYTES,
    OvertimeError,
    Traces,
    asked_for,
    contained,
    seed_all,
    time_limit,
)
from attnlab.strangers.loading.loading import ways_to_load
from attnlab.strangers.patient import Declared, Patient
from attnlab.strangers.trying.interview import interview
from attnlab.strangers.trying.starting import started_by_a_call

LOADING_S = 60.0  # a file may import large libraries
INTERVIEW_S = 30.0  # some hundred calls
WAYS_S = 12.0  # after which no other way to build it is looked for
CHECK_S = 20.0  # of computing; a layer takes a fraction of a second
ALL_S = 120.0  # what is left after that is skipped, and said
MOST_OVERTIMES = 2  # checks that do not end; the third would not either
STUCK_S = 3.0  # a call in training mode that takes longer, and that many times as long as in evaluation, is stuck
STUCK_TIMES = 20.0
OTHERWISE_TRAINED = FindingText(
    "warning",
    "in training mode a call as in evaluation mode raises: what this check asks there is open.",
    "call it in training mode yourself: right where it takes other inputs there, such as candidates for all positions",
    nature="set-up",
)
_OF_AXES = frozenset({
    "batch-independence", "causality", "padding", "mask-polarity", "masked-row", "normalization", "scale",
    "heads-mixed", "norm-placement", "positions", "receptive-field",
})  # fmt: skip
"""Checks that read the axes of what a module is given."""
_RAISED = FindingText("info", f"{NOT_EXAMINED}: the module raised an exception in this check.")
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
    layout: str | None = None,
    mask: str | None = None,
    whole: bool = False,
    accept: Sequence[str] = (),
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
    layout : {"batch first", "length first", "channels first"}, optional
        The axes of its input; None: what the class says, else batch first.
    mask : {"True = keep", "True = blocked"}, optional
        What True means in its masks; None: what the class says, else what calling it shows.
    whole : bool
        Whether it is a whole model that a task calls at its own length: what it is given need not reach its answers by
        an identity path, and it need not run at other lengths.
    accept : sequence of str
        Ids of checks whose findings are meant: they are told as accepted, and mean nothing for the verdict.
    depth : int, default 6
        Number of layers to stack where an effect grows with depth.
    text : str or Path, optional
        A text; the diagnosis then holds a study that trains the module on it.
    on_check : callable, optional
        Told about each step before it runs.

    Returns
    -------
    Diagnosis
        Findings, worst first, a verdict, and what was assumed.

    Raises
    ------
    SpecError
        If there is no such file or class, a constructor argument is missing or unknown, `depth` is below 1, `layout` or
        `mask` is none of the known ones, or `accept` names no check.
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
    if depth < 1:
        raise SpecError(f"depth must be at least 1; got {depth}")
    declared = Declared(causal, layout, mask, whole)
    _check_names(accept)
    _import_what_is_lazy()
    options = ExaminationOptions(depth=depth)
    traces = Traces()
    patient, convention = _met(traces, target, arguments, declared)
    study = None if text is None else text_study(target, patient, convention, text)
    run = _ChecksRun(Examination(patient, convention, options), traces, on_check or _silent)
    found = (*run.findings(), *_side_effects(traces))
    found = (_in_doubt(one, convention) for one in found)
    judged = [replace(one, accepted=one.accepted or one.check in accept) for one in found]
    return Diagnosis(patient.name, worst_first(judged), _assumptions(convention, traces), run.seconds, study)


def assert_healthy(
    module: nn.Module,
    *,
    causal: bool | None = None,
    layout: str | None = None,
    mask: str | None = None,
    accept: Sequence[str] = (),
) -> None:
    """Fail a test if the doctor finds an error in a module.

    Parameters
    ----------
    module : nn.Module
        An instance; it is left as it is.
    causal, layout, mask, accept : optional
        As `doctor` takes them.

    Raises
    ------
    AssertionError
        With every error, its evidence and its remedy; also if a check did not end in time, or several could not be
        examined.
    SpecError
        As `doctor`.
    """
    diagnosis = doctor(module, causal=causal, layout=layout, mask=mask, accept=accept)
    if diagnosis.grave or diagnosis.verdict == "not examined":
        told = diagnosis.grave or tuple(finding for finding in diagnosis.findings if finding.is_unfinished)
        raise AssertionError(str(Diagnosis(diagnosis.name, told, diagnosis.assumptions)))


def _check_names(accept: Sequence[str]) -> None:
    unknown = [check for check in accept if check not in CHECKS]
    if unknown:
        raise SpecError(f"unknown check '{unknown[0]}' in 'accept'; {nearest(unknown[0], CHECKS)}")


def _import_what_is_lazy() -> None:
    """Import what torch imports at the first tape: it takes seconds, and interrupted it stays broken."""
    importlib.import_module("torch._dynamo")


def _met(
    traces: Traces, target: Target, arguments: Mapping[str, Any] | None, declared: Declared
) -> tuple[Patient, Convention]:
    """The first patient that can be called, of the ways to build it, and how; with what it lacks lent to it."""
    first: AttnlabError | None = None
    while True:
        try:
            return _met_here(traces, target, arguments, declared)
        except AttnlabError as error:
            wanted = asked_for(error) or (CUDA if _names_cuda(target) else None)
            if wanted is None or wanted in traces.lent:
                raise (first or error) from error.__cause__
            first = first or (None if asked_for(error) else error)
            traces.lent.add(wanted)


def _names_cuda(target: Target) -> bool:
    """Whether a file or one beside it names CUDA: a larger class that tells how it is built may not run without."""
    beside = path_of(target).parent.glob("*.py") if isinstance(target, str) and is_path(target) else ()
    return any(b".cuda(" in path.read_bytes() for path in beside)


def _met_here(
    traces: Traces, target: Target, arguments: Mapping[str, Any] | None, declared: Declared
) -> tuple[Patient, Convention]:
    """The same with what is lent so far."""
    ways = ways_to_load(target, arguments, causal=declared.causal)
    failures: list[ModuleError] = []
    started_s = time.process_time()
    while loaded := _contain(traces, LOADING_S, "loading it", lambda: _next(ways, failures[-1] if failures else None)):
        patient = replace(loaded, declared=declared)
        try:
            return _contain(traces, INTERVIEW_S, "the first calls", functools.partial(_interviewed, patient))
        except ModuleError as error:
            notes = "".join(f"; {note}" for note in loaded.notes)
            failures.append(ModuleError(f"{error}{notes}"))
            failures[-1].__cause__ = error.__cause__
        if time.process_time() - started_s > WAYS_S:
            break
    raise failures[0]


def _interviewed(patient: Patient) -> tuple[Patient, Convention]:
    """A patient and how it is called, started by a call where that fills its parameters."""
    convention = interview(patient)
    started = started_by_a_call(patient, convention) if patient.uninitialized else patient
    return started, convention if started is patient else interview(started)


def _next(ways: Generator[Patient, BaseException | None, None], failed: ModuleError | None) -> Patient | None:
    """The next way after one that failed, loaded with the same random start every time."""
    seed_all(SEED)
    try:
        return ways.send(failed)
    except StopIteration:
        return None


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


def _in_doubt(found: Finding, convention: Convention) -> Finding:
    """An error as a question where something speaks for another layout: it may not be called as it is meant."""
    if found.severity != "error" or not convention.layout_against or found.check not in _OF_AXES:
        return found
    doubt = f"{convention.layout_against}; as {LAYOUTS[convention.layout].axes}:"
    remedy = f"say how it is called (--layout, --arg); if so: {found.remedy}"
    return replace(
        found, severity="warning", nature="set-up", message=f"{doubt} {found.message}", remedy=remedy,
    )  # fmt: skip


def _silent(_check: str, _index: int, _count: int) -> None:
    """Tell nobody."""


@final
@dataclass
class _ChecksRun:
    """Run the checks one after another, each within its time, and keep the clock."""

    exam: Examination
    traces: Traces
    on_check: OnCheck
    seconds: dict[str, float] = field(default_factory=dict)

    def findings(self) -> Iterator[Finding]:
        """What every check finds; those that cannot be finished are a finding of their own."""
        started, overtimes = time.process_time(), 0
        for index, (name, check) in enumerate(CHECKS.items()):
            self.on_check(name, index, len(CHECKS))
            computed_s = (time.process_time() - started) / torch.get_num_threads()
            if overtimes == MOST_OVERTIMES or computed_s > ALL_S:
                yield _not_examined(name, f"skipped after {computed_s:.0f} s", "the checks before it took too long")
                continue
            before = time.perf_counter()
            found, ended = self.run(name, check)
            self.seconds[name] = time.perf_counter() - before
            overtimes += not ended
            yield from found

    def run(self, name: str, check: Check) -> tuple[list[Finding], bool]:
        """What one check finds, and whether it came to its end in time."""
        found: list[Finding] = []
        limit_s = CHECK_S
        try:
            with contained(self.traces), time_limit(limit_s):
                found.extend(check(self.exam))
        except OvertimeError:
            return [*found, self.overtime(name, limit_s)], False
        except ModuleError as error:
            in_training_alone = (
                self.call_s(train=True, limit_s=limit_s) == 0.0 < self.call_s(train=False, limit_s=limit_s)
            )
            raised = OTHERWISE_TRAINED if in_training_alone else _RAISED
            found.append(raised.finding(name, str(error)))
        except AttnlabError:
            raise
        except (Exception, SystemExit) as error:
            found.append(_not_examined(name, "the check itself failed", describe_exception(error, "")))
        return found, True

    def overtime(self, name: str, limit_s: float) -> Finding:
        """The finding for a check that did not end: the module is stuck, or slow."""
        usual_s = self.call_s(train=False, limit_s=limit_s)
        patience_s = max(STUCK_S, STUCK_TIMES * usual_s)
        if usual_s < limit_s and self.call_s(train=True, limit_s=patience_s) >= patience_s:
            return Finding(
                name,
                "error",
                f"{NOT_EXAMINED}: in training mode a call does not come back.",
                f"stopped after {patience_s:.2g} s; in evaluation mode a call takes {usual_s:.2g} s",
                "look for a loop that runs only where self.training is True",
            )
        return Finding(
            name,
            "warning",
            f"{NOT_EXAMINED}: it did not end within {limit_s:g} s.",
            f"one call takes {usual_s:.2g} s",
            "give a smaller instance: fewer layers, a smaller width or vocabulary (--arg)",
            nature="set-up",
        )

    def call_s(self, *, train: bool, limit_s: float) -> float:
        """The seconds of one call, the limit if it takes longer."""
        try:
            with contained(self.traces), time_limit(limit_s), torch.no_grad():
                module, x = self.exam.copy(train=train), self.exam.inputs()
                before = time.perf_counter()
                self.exam.convention.call(module, x)
                return time.perf_counter() - before
        except OvertimeError:
            return limit_s
        except (Exception, SystemExit):
            return 0.0  # it raises, which is another matter


def _not_examined(name: str, why: str, evidence: str) -> Finding:
    return Finding(name, "info", f"{NOT_EXAMINED}: {why}.", evidence)


def _side_effects(traces: Traces) -> Iterator[Finding]:
    """What the module changed for everybody, and what it needs of the machine."""
    if CUDA in traces.lent:
        yield Finding(
            "dtype-device",
            "warning",
            "it names CUDA in its own code, so it runs on no machine without, and on one GPU alone.",
            "what it sends to CUDA was left on the CPU for this examination",
            "make tensors with device=x.device, register constants as buffers, and let the caller move the module",
            "PyTorch documentation, CUDA semantics, Best practices, Device-agnostic code",
            nature="set-up",
        )
    if OF_BYTES in traces.lent:
        yield Finding(
            "mask-polarity",
            "error",
            "it hides by a mask of bytes, which masked_fill takes no more: it raises.",
            "masked_fill with a mask of uint8; for this examination it was taken as True and False",
            "make masks of bool: mask.bool(), dtype=torch.bool, or a comparison in place of .byte()",
            "PyTorch documentation, torch.Tensor.masked_fill_: mask (BoolTensor)",
        )
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


def _assumptions(convention: Convention, traces: Traces) -> dict[str, str]:
    """What was assumed, with what the module printed meanwhile."""
    printed = traces.printed.getvalue().strip()
    said = {}
    if printed:
        first = printed.splitlines()[0]
        shown = first if len(first) <= _SHOWN_PRINTS else first[:_SHOWN_PRINTS] + " ..."
        said = {"prints": f"{len(printed.splitlines())} lines, kept from the screen; the first: {shown}"}
    return {**convention.assumptions, **said}
