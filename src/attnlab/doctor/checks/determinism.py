"""Whether a call depends on nothing but its inputs: not on chance in evaluation mode, not on earlier calls."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from attnlab.core.constructors import named, signature_of
from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination, wake
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.influence.differences import deviation
from attnlab.doctor.influence.steady import call_seeded
from attnlab.doctor.measures.memory import remembered
from attnlab.doctor.measures.traces import left_behind
from attnlab.strangers.loading.mentions import SWITCHED, handed_to, only_copied, use_of
from attnlab.strangers.patient import in_mode
from attnlab.strangers.said.source import source_of

ID = "determinism"
_RATE = 0.5  # of dropout, given to the constructor where the usual one is 0
_RANDOM_OPERATIONS = ("bernoulli", "dropout", "rand", "normal_", "uniform_", "multinomial", "exponential_")
_CHOOSING = ("randint", "randperm", "multinomial")
"""Operations that draw whole numbers: places to start from, or an order, and no share of what is dropped."""
_SOURCE = "Srivastava 2014, JMLR 15, section 4; PyTorch documentation, torch.nn.functional.dropout, `training`"
_DIFFER = "two calls in evaluation mode on the same input differ, "

TEXTS: Mapping[str, FindingText] = {
    "uninitialized": FindingText(
        "error",
        "parameters are never initialized, and start as whatever was in memory: {names}.",
        "fill them in the constructor: nn.init.xavier_uniform_ for matrices, zeros for biases, ones for gains",
        "PyTorch documentation, torch.empty and torch.utils.deterministic",
    ),
    "chance": FindingText(
        "error",
        _DIFFER + "by chance{place}.",
        "give `training=self.training` to functional dropout, build nn.Dropout in the constructor instead of in"
        " forward, and draw random numbers once in the constructor",
        _SOURCE,
    ),
    "sample": FindingText(
        "warning",
        _DIFFER + "by normal numbers that it draws{place}: what it returns is a sample.",
        "draw them in training alone, or give the mean in evaluation, if no sample is meant",
        "Kingma 2014, arXiv:1312.6114, section 2.4: samples as a mean and noise",
    ),
    "drawn": FindingText(
        "warning",
        _DIFFER + "by places or pieces that it chooses by chance{place}.",
        "choose them by chance in training alone, or from a generator of its own with a fixed seed",
        "PyTorch documentation, Reproducibility",
        "set-up",
    ),
    "unfilled memory": FindingText(
        "error",
        _DIFFER + "even with the same random state.",
        "make memory that is not filled (`torch.empty`) zeros; keep nothing from call to call",
        _SOURCE,
    ),
    "no dropout": FindingText(
        "error",
        "dropout is asked for ({asked}) and never acts.",
        "call the dropout in forward, with `training=self.training` where it is the functional one",
        _SOURCE,
    ),
    "between layers": FindingText(
        "warning",
        "dropout is asked for ({asked}) and never acts: that of a recurrence acts between its layers, and it has one.",
        "build more than one layer, or put nn.Dropout behind the recurrence",
        "PyTorch documentation, nn.GRU and nn.LSTM, `dropout`",
        "set-up",
    ),
    "idle dropout": FindingText(
        "warning",
        "Dropout that never acts: {names}.",
        "call it in forward, or remove it",
        _SOURCE,
        "set-up",
    ),
}
"""What -> its text; braces are filled with what was measured."""


def check_determinism(exam: Examination) -> Iterator[Finding]:
    """Call with other random states, call again after other calls, and look at what a call leaves behind."""
    if exam.patient.uninitialized:  # all else is examined with others in their place
        evidence = (
            "NaN put into memory that is not filled (torch.utils.deterministic.fill_uninitialized_memory) stays there"
            " after its constructor; for everything else here they were started as a linear map is"
        )
        yield TEXTS["uninitialized"].finding(ID, evidence, {"names": _quoted(exam.patient.uninitialized)})
    chance = list(_random_in_evaluation(exam))
    yield from chance
    yield from left_behind(exam)
    if not chance:
        yield from remembered(exam)
        yield from _dropout_acts(exam)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# Chance in evaluation mode


def _random_in_evaluation(exam: Examination) -> Iterator[Finding]:
    """An error if the same call of fresh copies gives other outputs under other random states."""
    x = exam.inputs()
    outputs = [call_seeded(exam, exam.fresh(), x, seed) for seed in (1, 2, 1)]
    apart, again = (deviation(outputs[0], other) for other in outputs[1:])
    rate = ""
    if not (apart or again) and (other := exam.another(_rates(exam))) is not None:  # the usual rate may be 0
        with contextlib.suppress(ModuleError):
            apart, rate = deviation(*(call_seeded(exam, other, x, seed) for seed in (1, 2))), f", dropout {_RATE}"
    if apart or again:
        evidence = f"outputs differ by {max(apart, again):.2g} of the largest output"
        evidence += f" (length {exam.convention.length}{rate})"
        random = (event for event in exam.usual_tape.events if any(one in event.call for one in _RANDOM_OPERATIONS))
        first = None if again else next(random, None)
        # numbers for each sample are noise that somebody wants; others are weights
        is_noise = first is not None and re.search("randn|normal", first.call) and BATCH in first.output.shape
        chooses = first is not None and any(one in first.call for one in _CHOOSING)
        text = "unfilled memory" if again else "sample" if is_noise else "drawn" if chooses else "chance"
        place = "" if first is None else f" (`{first.call}` in {f'`{first.where}`' if first.where else 'its forward'})"
        finding = TEXTS[text].finding(ID, evidence, {"place": place})
        yield from [finding] if again else exam.as_meant([finding], "chance at every call")


# Dropout in training mode


def _dropout_acts(exam: Examination) -> Iterator[Finding]:
    """An error if dropout is asked for and training mode is as fixed as evaluation mode; a warning if some of it is."""
    asked, module = _asking_for_dropout(exam)
    if module is None:
        return
    wake(module)
    x = exam.inputs()
    if not deviation(call_seeded(exam, module, x, 1), call_seeded(exam, module, x, 2)):
        evidence = "two calls in training mode under other random states give the same output"
        evidence += f" (length {exam.convention.length})"
        finding = TEXTS["no dropout"].finding(ID, evidence, {"asked": asked})
        if _rates_are_its_own(exam):
            names = _quoted(name for name, _ in _dropouts(module))
            finding = TEXTS["idle dropout"].finding(ID, f"{evidence}; no argument sets its rate", {"names": names})
        elif not any(_dropouts(module)) and any(_has_one_layer(part) for part in module.modules()):
            finding = TEXTS["between layers"].finding(ID, evidence, {"asked": asked})
        yield from exam.as_set([finding], r"\w*drop\w*=False")
    elif idle := _idle_dropouts(exam):
        evidence = "in training mode it is not called, and another rate of it changes nothing; other dropout acts"
        yield TEXTS["idle dropout"].finding(ID, evidence, {"names": _quoted(idle)})


def _rates(exam: Examination) -> dict[str, float]:
    """Another rate for every argument of the constructor that is one, by its name or by what it is handed to."""
    factory = type(exam.patient.module)
    names = [
        name for name in signature_of(factory) if name in named("dropout", [name]) or _is_dropped_by(factory, name)
    ]
    return dict.fromkeys(names or ["dropout"], _RATE)


def _is_dropped_by(factory: type, name: str) -> bool:
    return any("dropout" in f"{called} {place}".lower() for called, place in handed_to(name, source_of(factory)))


def _asking_for_dropout(exam: Examination) -> tuple[str, nn.Module | None]:
    """Who asks for dropout and a copy in training mode; where nobody does, one that was built to ask for it."""
    said = [f"`{name}`: p={part.p}" for name, part in _dropouts(exam.patient.module)]
    said += [f"{name}={value}" for name, value in exam.patient.arguments.items() if _is_rate(name, value)]
    if said:
        return said[0], exam.copy(train=True)
    other = exam.another(_rates(exam))
    return f"dropout={_RATE}", None if other is None or not _asks_for_rate(other) else in_mode(other, train=True)


def _rates_are_its_own(exam: Examination) -> bool:
    """Whether nothing that a class is built with sets the rate of a dropout, so that no one asked for it."""
    if exam.patient.build is None or any(_is_rate(name, value) for name, value in exam.patient.arguments.items()):
        return False
    other = exam.another({"dropout": _RATE})
    return other is None or not _asks_for_rate(other)


def _asks_for_rate(module: nn.Module) -> bool:
    """Whether a class has an argument for the rate of dropout, or its parts hold the one that was given.

    What ends in ``**kwargs`` is asked for by nobody.
    """
    if any("drop" in name.lower() for name in inspect.signature(type(module).__init__).parameters):
        return True
    held = (value for part in module.modules() for value in vars(part).values())
    return any(isinstance(value, float) and value == _RATE for value in held)


def _is_rate(name: str, value: object) -> bool:
    named = "drop" in name.lower() or name in ("p", "p_attn", "p_resid")
    return named and isinstance(value, float) and 0 < value < 1


def _dropouts(module: nn.Module) -> Iterator[tuple[str, nn.modules.dropout._DropoutNd]]:
    """The dropouts that drop something."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and 0 < part.p < 1:
            yield name, part


def _has_one_layer(part: nn.Module) -> bool:
    """Whether a part is a recurrence whose dropout would act behind each layer but the last."""
    return isinstance(part, nn.RNNBase) and part.dropout > 0 and part.num_layers == 1


def _idle_dropouts(exam: Examination) -> list[str]:
    """The dropouts that are never called, and another rate of which changes nothing."""
    x, module = exam.inputs(), exam.fresh(train=True)
    called = {call.name for call in exam.tape(x, module=module).calls}
    names = [name for name, _ in _dropouts(module) if name not in called]
    copied = only_copied(module, names)
    switched = {name for name in names if use_of(module, name) in SWITCHED}  # its rate may be read elsewhere
    return [name for name in names if name not in {*copied, *switched} and not _rate_matters(exam, name)]


def _rate_matters(exam: Examination, name: str) -> bool:
    """Whether a call in training mode is another one, or raises, without a dropout."""
    module = exam.fresh(train=True)
    usual = call_seeded(exam, module, exam.inputs(), 1)
    dict(_dropouts(module))[name].p = 0.0
    try:
        return bool(deviation(usual, call_seeded(exam, module, exam.inputs(), 1)))
    except ModuleError:
        return True
