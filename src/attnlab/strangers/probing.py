"""Learn how a person's own module wants to be called, by reading its signature and calling it on small inputs.

What can be seen by calling is seen by calling; what a class declares (`batch_first`, its docstring)
counts where calling cannot tell. What stays open is taken as the lab has it and said in the notes.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnlab.core.build import describe_exception
from attnlab.core.errors import ModuleError
from attnlab.strangers.conventions import (
    ENCODINGS,
    KEY_SHAPES,
    LAYOUTS,
    SHAPES,
    Convention,
    Label,
    MaskForm,
    arguments,
    call,
    find_output,
    invoke,
    wrong_output,
)
from attnlab.strangers.signatures import Reading, declared_layout, read_forward

_LENGTHS = (5, 7, 3, 2)  # short, and unlike d_model and batch, so that axes cannot be mistaken for each other
_BATCHES = (3, 2)
_LONGEST = 2048  # a module that insists on its full length is probed at that length up to here
_ALL_CUTS = 12  # up to this length the future is hidden at every position, above it at three
_SEED = 20
_TOLERANCE = 1e-5  # of the largest output: far above float32 rounding, far below what one position weighs
_NUDGE = 0.1  # replaces parameters that start at zero, on the probe alone: behind them nothing could be seen
_FUTURE = "sees the future: it has no mask argument, and its output depends on later positions"


def learn(module: nn.Module, *, d_model: int, causal: bool, label: Label, max_length: int | None = None) -> Convention:
    """Learn how to call a module, from an instance that is used for nothing else."""
    failure: ModuleError | None = None
    module.eval()
    with quiet():
        _wake(module)
        for length in _lengths(d_model, max_length):
            try:
                return _Probe(module, d_model, length, label).learn(causal)
            except ModuleError as error:
                failure = failure or error
    raise failure or ModuleError(f"{label.name}: max_length must be at least 1; got {max_length}")


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the states of all three random generators, Python's, NumPy's and torch's on the CPU, as they were."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Compute on the CPU without gradients, and leave the random states of all three generators as they were."""
    with random_states_kept(), torch.no_grad(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wrong guesses warn
        torch.default_generator.manual_seed(_SEED)
        yield


def _wake(module: nn.Module) -> None:
    """Give parameters that are all zero small random values."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.is_floating_point() and not parameter.any():
            parameter.normal_(std=_NUDGE)


def _lengths(d_model: int, max_length: int | None) -> list[int]:
    """The lengths to probe at: a short one, then the full one for modules that take no other."""
    short = [
        length for length in _LENGTHS if length not in (d_model, _batch(d_model)) and length <= (max_length or length)
    ]
    full = [max_length] if max_length is not None and 0 < max_length <= _LONGEST else []
    return [*short[:1], *(length for length in full if length not in short[:1])]


def _batch(d_model: int) -> int:
    return next(batch for batch in _BATCHES if batch != d_model)


@dataclass(frozen=True)
class _Attempt:
    """Hold a way to call the module that ran, or the error it ended in."""

    convention: Convention
    error: ModuleError | None = None


class _Probe:
    """Call one module in many ways and look at what depends on what."""

    def __init__(self, module: nn.Module, d_model: int, length: int, label: Label) -> None:
        self.module = module
        self.label = label
        self.length = length
        self.reading: Reading = read_forward(module, label)
        kind = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
        generator = torch.Generator().manual_seed(_SEED)
        shape = (_batch(d_model), length, d_model)
        self.x = torch.randn(shape, generator=generator).to(kind)
        self.other = torch.randn(shape, generator=generator).to(kind)

    def learn(self, causal: bool) -> Convention:
        """The convention for a place that is causal or not."""
        convention = self.with_layout()
        convention = self.with_causality(convention) if causal else self.without_causality(convention)
        return self.with_padding(convention)

    # Layout and output

    def with_layout(self) -> Convention:
        """The first way to call the module that runs, in the layout in which samples do not see each other."""
        failures: list[ModuleError] = []
        for opening in self.reading.openings():
            attempts = [self.attempt(replace(opening, layout=layout)) for layout in declared_layout(self.module)]
            running = [attempt.convention for attempt in attempts if attempt.error is None]
            failures += [attempt.error for attempt in attempts if attempt.error is not None]
            if running:
                return self.cleanest(running)
        raise _summary(failures)

    def attempt(self, convention: Convention) -> _Attempt:
        """Call the module, find the output in what it returns, and reject NaN."""
        positional, named = arguments(convention, self.x, None, None)
        torch.default_generator.manual_seed(_SEED)
        try:
            returned = invoke(self.module, positional, named, label=self.label)
            expected = LAYOUTS[convention.layout](self.x).shape
            key = find_output(returned, expected)
            if key is None:
                raise wrong_output(returned, expected, convention.layout, label=self.label)
            found = replace(convention, output=key[0])
            self.run(found, self.x)
        except ModuleError as error:
            return _Attempt(convention, error)
        return _Attempt(found)

    def cleanest(self, running: list[Convention]) -> Convention:
        """The first layout in which samples do not see each other, or the first of all with a note."""
        clean = [convention for convention in running if not self.mixes_samples(convention)]
        if not clean:
            return _noted(running[0], "samples of a batch see each other, in every layout in which it runs")
        if clean[0] is not running[0]:
            return _noted(clean[0], f"taken as {clean[0].layout}: samples would see each other {running[0].layout}")
        return clean[0]

    def mixes_samples(self, convention: Convention) -> bool:
        """Whether the first or the last sample changes the output of another."""
        last = self.x.size(0) - 1
        changed = [self.reaction(convention, sample, slice(None)) for sample in (0, last)]
        return bool(changed[0][1:].any() or changed[1][:last].any())

    # Causality

    def with_causality(self, convention: Convention) -> Convention:
        """A way to call the module in which no position sees a later one, or note that there is none."""
        if convention.mask is None and not self.sees_future(convention):
            return replace(convention, causal=True)
        guesses = list(self.causal_guesses(replace(convention, causal=True)))
        if not guesses:
            return _noted(convention, _FUTURE)
        return self.first_causal(guesses)

    def causal_guesses(self, convention: Convention) -> Iterator[Convention]:
        """The ways in which the module could be told to be causal: by mask, by flag, by both."""
        masks = [] if self.reading.mask is None else _forms(self.reading.mask, SHAPES)
        flags = tuple((name, True) for name in self.reading.flags)
        flagged = replace(convention, constants=(*convention.constants, *flags))
        yield from (replace(convention, mask=form) for form in masks)
        if flags:
            yield replace(flagged, mask=None)
            yield from (replace(flagged, mask=form) for form in masks)

    def first_causal(self, guesses: list[Convention]) -> Convention:
        """The first guess under which the output is causal."""
        tried: dict[str, str] = {}
        for guess in guesses:
            problem = self.problem_of(guess)
            if not problem:
                return guess
            words = guess.mask.encoding if guess.mask is not None else "flag alone"
            tried.setdefault(words, problem)
        names = "', '".join(name for name in (self.reading.mask, *self.reading.flags) if name is not None)
        problems = dict.fromkeys(tried.values())
        listed = "; ".join(
            f"[{' | '.join(words for words in tried if tried[words] == problem)}] {problem}" for problem in problems
        )
        raise ModuleError(
            f"{self.label.name}: forward takes '{names}', but nothing given there makes it causal."
            f" Tried in shapes {', '.join(SHAPES)}: {listed}"
            " (hint: apply the mask to the scores before the softmax, so that blocked positions weigh nothing)"
        )

    def problem_of(self, guess: Convention) -> str:
        """What is wrong with the output under a causal mask, or nothing."""
        try:
            if self.sees_future(guess):
                return "the output depends on later positions"
            if not self.reaction(guess, slice(None), slice(0, 1))[:, 0].any():
                return "the first position does not see itself"
        except ModuleError as error:
            cause = error.__cause__
            return (
                describe_exception(cause, self.label.file) if cause else str(error).removeprefix(f"{self.label.name}: ")
            )
        return ""

    def sees_future(self, convention: Convention) -> bool:
        """Whether any position reacts when everything after it is replaced."""
        cuts = range(1, self.length) if self.length <= _ALL_CUTS else (1, self.length // 2, self.length - 1)
        return any(self.reaction(convention, slice(None), slice(cut, None))[:, :cut].any() for cut in cuts)

    def without_causality(self, convention: Convention) -> Convention:
        """The way to call the module where all may be seen."""
        if convention.mask is not None:  # it insists on a mask: learn what its values mean from a causal one
            learned = self.first_causal([g for g in self.causal_guesses(replace(convention, causal=True)) if g.mask])
            return replace(learned, causal=False)
        flags = tuple((name, False) for name in self.reading.flags)
        convention = replace(convention, constants=(*convention.constants, *flags))
        reacts_to_first = self.reaction(convention, slice(None), slice(0, 1))[:, 1:].any()
        if reacts_to_first and not self.sees_future(convention):
            return _noted(convention, "causal by itself: it sees no later position, though its place would let it")
        return convention

    # Padding

    def with_padding(self, convention: Convention) -> Convention:
        """The convention with a way to tell padding, or a note that there is none."""
        for form in self.padding_guesses(convention):
            guess = replace(convention, padding=form)
            if self.hides_padding(guess):
                return guess
        return _noted(convention, "padding is not told to it: it has no mask argument that hides single positions")

    def padding_guesses(self, convention: Convention) -> Iterator[MaskForm]:
        """The ways in which the module could be told what is padding."""
        for parameter in self.reading.padding:
            yield from _forms(parameter, KEY_SHAPES)
        if self.reading.mask is not None:
            known = None if convention.mask is None else convention.mask.encoding
            shapes = {name: shape for name, shape in SHAPES.items() if "batch" in name}
            shapes |= {} if known else KEY_SHAPES
            yield from (f for f in _forms(self.reading.mask, shapes) if known in (None, f.encoding))

    def hides_padding(self, guess: Convention) -> bool:
        """Whether a padded position is seen by itself alone, and all-real padding changes nothing."""
        if self.length < 2:
            return False
        real = torch.ones(self.x.shape[:2], dtype=torch.bool)
        try:
            plain, told = self.run(guess, self.x), self.run(guess, self.x, real)
            real[0, 1] = False
            reacting = self.reaction(guess, 0, slice(1, 2), padding=real)
            alive = self.reaction(guess, 0, slice(0, 1), padding=real)[0, 0]
        except ModuleError:
            return False
        reacting[0, 1] = False
        return bool(torch.allclose(plain, told, atol=_TOLERANCE, rtol=1e-3) and alive and not reacting.any())

    # Calling

    def run(self, convention: Convention, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """The output, with the same random numbers at every call."""
        torch.default_generator.manual_seed(_SEED)
        output = call(self.module, convention, x, padding=padding, label=self.label)
        if not output.isfinite().all():
            raise ModuleError(
                f"{self.label.name}: forward returned NaN or infinite values for ordinary input {tuple(x.shape)}"
                " (hint: a row of scores where all is masked, a division by zero, or torch.empty left uninitialized)"
            )
        return output

    def reaction(self, convention: Convention, samples: Any, positions: Any, padding: Tensor | None = None) -> Tensor:
        """At which (batch, length) the output changes when some inputs are replaced."""
        moved = self.x.clone()
        moved[samples, positions] = self.other[samples, positions]
        before, after = self.run(convention, self.x, padding), self.run(convention, moved, padding)
        return (after - before).abs().amax(-1) > _TOLERANCE * before.abs().max()


def _forms(parameter: str, shapes: dict[str, Any]) -> list[MaskForm]:
    """Every meaning in every shape."""
    return [MaskForm(parameter, encoding, shape) for encoding in ENCODINGS for shape in shapes]


def _noted(convention: Convention, note: str) -> Convention:
    return replace(convention, notes=(*convention.notes, note))


def _summary(failures: list[ModuleError]) -> ModuleError:
    """The failure that says most, and how the call in the lab's own layout ended where that is another."""
    best = min(failures, key=_distance)  # the first of equals
    lab, others = failures[0], len({str(failure) for failure in failures}) - 1
    tried = f" ({others} other ways to call it, in other layouts or with other masks, failed too)" if others else ""
    first = f"; as it stands, {str(lab).partition(': ')[2]}" if best is not lab else ""
    error = ModuleError(f"{best}{first}{tried}")
    error.__cause__ = best.__cause__
    return error


def _distance(failure: ModuleError) -> int:
    """How far a call was from success: its own exception, a wrong output, a mismatch of shapes inside."""
    if failure.__cause__ is None:
        return 1
    return 2 if isinstance(failure.__cause__, RuntimeError) else 0
