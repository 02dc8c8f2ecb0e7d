"""Whether equal calls give equal outputs, without which no comparison of two calls says anything."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.differences import deviation
from attnlab.strangers.containment import random_states_kept, seed_all

_RANDOM = re.compile(r"bernoulli|dropout|rand|normal_|uniform_|multinomial|exponential_")
_OF_DROPOUT = frozenset(["bernoulli", "native_dropout"])
"""Operations of chance, and those that dropout is made of."""


@contextlib.contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Seed all three global generators, without gradients, and put their states back."""
    with random_states_kept(), torch.no_grad():
        seed_all(seed)
        yield


def call_seeded(exam: Examination, module: nn.Module, x: Tensor, seed: int) -> Tensor:
    """Call a copy of the patient under a random state."""
    with random_state(seed):
        return exam.convention.call(module, x.clone())


def same_course(exam: Examination, module: nn.Module, moved: Tensor) -> bool:
    """Whether a call on other inputs does the same operations on the same shapes as one on the usual inputs.

    Where tokens are sorted by what they hold, dropout draws other numbers for all of them.
    """
    courses = [
        [(event.call, event.output.shape) for event in exam.tape(x, module=module).events]
        for x in (exam.inputs(), moved)
    ]
    return courses[0] == courses[1]


def is_steady(exam: Examination) -> bool:
    """Whether neither chance nor a call in between changes the outputs of an ordinary call."""
    x = exam.inputs()
    before = call_seeded(exam, exam.eval_module, x, 1)
    call_seeded(exam, exam.eval_module, exam.inputs(seed=1), 1)
    return not deviation(before, call_seeded(exam, exam.eval_module, x, 2))


def draws_alike(exam: Examination) -> bool:
    """Whether calls under one random state differ by what they are given alone, as where dropout never stops.

    What chooses by chance, as tokens to sample, may choose by what it is given, too.
    """
    random = {event.call.rstrip("_") for event in exam.usual_tape.events if _RANDOM.search(event.call)}
    if not random <= _OF_DROPOUT:
        return False
    module, x, other = exam.eval_module, exam.inputs(), exam.inputs(seed=1)
    before = exam.run(x, module=module)
    exam.run(other, module=module)
    return not deviation(before, exam.run(x, module=module)) and same_course(exam, module, other)


def is_steady_when_fresh(exam: Examination) -> bool:
    """Whether fresh copies give equal outputs whatever the random state."""
    x = exam.inputs()
    return not deviation(*(call_seeded(exam, exam.fresh(), x, seed) for seed in (1, 2)))
