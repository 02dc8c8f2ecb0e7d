"""Whether a call depends on nothing but its inputs: not on chance in evaluation mode, not on earlier calls."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination, wake
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.differences import deviation
from attnlab.doctor.influence.steady import call_seeded
from attnlab.doctor.measures.memory import remembered
from attnlab.doctor.measures.traces import left_behind

_ID = "determinism"
_RATE = 0.5  # of dropout, given to the constructor where the usual one is 0
_RANDOM_OPERATIONS = ("bernoulli", "dropout", "rand", "normal_", "uniform_", "multinomial", "exponential_")
_TRAIN_SOURCE = "Srivastava 2014, JMLR 15, section 4; PyTorch documentation, torch.nn.functional.dropout, `training`"


def check_determinism(exam: Examination) -> Iterator[Finding]:
    """Call with other random states, call again after other calls, and look at what a call leaves behind."""
    yield from _uninitialized(exam)
    chance = list(_random_in_evaluation(exam))
    yield from chance
    yield from left_behind(exam)
    if not chance:
        yield from remembered(exam)
        yield from _dropout_acts(exam)


def _uninitialized(exam: Examination) -> Iterator[Finding]:
    """An error for parameters that hold whatever was in memory; all else is examined with others in their place."""
    names = ", ".join(f"`{name}`" for name in exam.patient.uninitialized)
    if names:
        yield Finding(
            _ID,
            "error",
            f"parameters are never initialized, and start as whatever was in memory: {names}.",
            "NaN put into memory that is not filled (torch.utils.deterministic.fill_uninitialized_memory) stays there"
            " after its constructor; for everything else here they were started as a linear map is",
            "fill them in the constructor: nn.init.xavier_uniform_ for matrices, zeros for biases, ones for gains",
            "PyTorch documentation, torch.empty and torch.utils.deterministic",
        )


# Chance in evaluation mode


def _random_in_evaluation(exam: Examination) -> Iterator[Finding]:
    """An error if the same call of fresh copies gives other outputs under other random states."""
    x = exam.inputs()
    outputs = [call_seeded(exam, exam.fresh(), x, seed) for seed in (1, 2, 1)]
    apart = deviation(outputs[0], outputs[1])
    again = deviation(outputs[0], outputs[2])
    if not apart and not again:
        return
    place = _random_place(exam, exam.eval_module)
    cause = "even with the same random state" if again else f"by chance{place}"
    yield Finding(
        _ID,
        "error",
        f"two calls in evaluation mode on the same input differ, {cause}.",
        f"outputs differ by {max(apart, again):.2g} of the largest output (length {exam.convention.length})",
        "make memory that is not filled (`torch.empty`) zeros; keep nothing from call to call"
        if again
        else "give `training=self.training` to functional dropout, build nn.Dropout in the constructor instead of in"
        " forward, and draw random numbers once in the constructor",
        _TRAIN_SOURCE,
    )


def _random_place(exam: Examination, module: nn.Module) -> str:
    """Where the first random operation runs, in words."""
    events = exam.tape(exam.inputs(), module=module).events
    first = next((event for event in events if any(word in event.call for word in _RANDOM_OPERATIONS)), None)
    if first is None:
        return ""
    return f" (`{first.call}` in `{first.where}`)" if first.where else f" (`{first.call}` in its forward)"


# Dropout in training mode


def _dropout_acts(exam: Examination) -> Iterator[Finding]:
    """An error if dropout is asked for and training mode is as fixed as evaluation mode."""
    asked, module = _asking_for_dropout(exam)
    if module is None:
        return
    wake(module)
    x = exam.inputs()
    if deviation(call_seeded(exam, module, x, 1), call_seeded(exam, module, x, 2)):
        yield from _idle_dropouts(exam)
        return
    yield Finding(
        _ID,
        "error",
        f"dropout is asked for ({asked}) and never acts.",
        f"two calls in training mode under other random states give the same output (length {exam.convention.length})",
        "call the dropout in forward, with `training=self.training` where it is the functional one",
        _TRAIN_SOURCE,
    )


def _asking_for_dropout(exam: Examination) -> tuple[str, nn.Module | None]:
    """Who asks for dropout and a copy in training mode; where nobody does, one that was built to ask for it."""
    said = [f"`{name}`: p={part.p}" for name, part in _dropouts(exam.patient.module)]
    said += [f"{name}={value}" for name, value in exam.patient.arguments.items() if _is_rate(name, value)]
    if said:
        return said[0], exam.copy(train=True)
    other = exam.another({"dropout": _RATE})
    return f"dropout={_RATE}", None if other is None or not _asks_for_rate(other) else other.train()


def _asks_for_rate(module: nn.Module) -> bool:
    """Whether a class has an argument for the rate of dropout, or its parts hold the one that was given.

    What ends in ``**kwargs`` is asked for by nobody.
    """
    own = any("drop" in name.lower() for name in inspect.signature(type(module).__init__).parameters)
    return own or any(value == _RATE for part in module.modules() for value in _floats(part))


def _floats(part: nn.Module) -> list[float]:
    return [value for value in vars(part).values() if isinstance(value, float)]


def _is_rate(name: str, value: object) -> bool:
    named = "drop" in name.lower() or name in ("p", "p_attn", "p_resid")
    return named and isinstance(value, float) and 0 < value < 1


def _dropouts(module: nn.Module) -> Iterator[tuple[str, nn.modules.dropout._DropoutNd]]:
    """The dropouts that drop something."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and 0 < part.p < 1:
            yield name, part


def _idle_dropouts(exam: Examination) -> Iterator[Finding]:
    """A warning if some of several dropouts have no effect."""
    idle = [name for name, _ in _dropouts(exam.patient.module) if _is_idle(exam, name)]
    if idle:
        yield Finding(
            _ID,
            "warning",
            f"{', '.join(f'`{name}`' for name in idle)} never acts, though other dropout does.",
            "in training mode it is not called, and another rate of it changes nothing",
            "call it in forward, or remove it",
            _TRAIN_SOURCE,
            nature="set-up",
        )


def _is_idle(exam: Examination, name: str) -> bool:
    """Whether a dropout is never called and another rate of it changes nothing."""
    module = exam.fresh(train=True)
    part = dict(_dropouts(module))[name]
    calls: list[bool] = []
    with contextlib.ExitStack() as hooks:
        hooks.callback(part.register_forward_hook(lambda *_: calls.append(True)).remove)
        usual = call_seeded(exam, module, exam.inputs(), 1)
    if calls:
        return False
    part.p = 0.0
    try:
        return not deviation(usual, call_seeded(exam, module, exam.inputs(), 1))
    except ModuleError:
        return False
