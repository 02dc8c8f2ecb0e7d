"""What every check works with: copies of the patient, inputs for it, calls of it, and what happens inside a call."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from attnlab.core.constructors import Settings, signature_of
from attnlab.core.errors import AttnlabError, ModuleError
from attnlab.doctor.findings import Finding
from attnlab.inspection.tape.tape import Change, Tape, record
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.containment import seed_all, wake
from attnlab.strangers.patient import Patient, in_mode
from attnlab.strangers.said.topics import declared

BATCH = 3  # differs from lengths, widths and numbers of heads, so that axes cannot be mistaken for each other
SEED = 20  # any: it makes two examinations of one module equal
MANY_PARAMETERS = 3_000_000  # above, float64 costs seconds a check


@final
@dataclass(frozen=True)
class ExaminationOptions:
    """Hold what the person asked for."""

    depth: int = 6  # number of layers to stack where an effect grows with depth


@final
class Examination:
    """Give checks everything they need, with the same random numbers at every call.

    Parameters
    ----------
    patient : Patient
        What is examined.
    convention : Convention
        How it is called.
    options : ExaminationOptions
        What the person asked for.
    """

    def __init__(self, patient: Patient, convention: Convention, options: ExaminationOptions | None = None) -> None:
        self.patient = patient
        self.convention = convention
        self.options = options or ExaminationOptions()
        self.known: dict[Any, Any] = {}  # what was measured so far, by what was asked

    # Modules

    def copy(self, *, train: bool = False, dtype: torch.dtype | None = None) -> nn.Module:
        """A copy of the patient in evaluation (or training) mode, in the examination's dtype by default."""
        wanted = dtype or self.dtype
        module = self.patient.copy()._apply(lambda each: each.to(wanted) if each.is_floating_point() else each)
        return in_mode(module, train=train)  # not by `to`, which takes complex numbers their imaginary part

    def fresh(self, *, train: bool = False, dtype: torch.dtype | None = None) -> nn.Module:
        """A copy that no call has been made of; parameters that are all zero hold small numbers.

        Zero-initialized gains would hide everything behind them.
        """
        module = self.copy(train=train, dtype=dtype)
        wake(module)
        return module

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """Float64 where the patient is small and runs in it, else float32."""
        if sum(parameter.numel() for parameter in self.patient.module.parameters()) > MANY_PARAMETERS:
            return torch.float32
        module = in_mode(self.patient.copy().double())
        try:
            with torch.no_grad():
                self._call(module, self.inputs(dtype=torch.float64))
        except ModuleError:
            return torch.float32
        return torch.float64

    @property
    def tolerance(self) -> float:
        """The relative difference below which two outputs count as equal."""
        return 1e-9 if self.dtype == torch.float64 else 1e-5  # rounding of sums of some hundred numbers, and room

    @functools.cached_property
    def eval_module(self) -> nn.Module:
        """The fresh copy in evaluation mode that `run` uses."""
        return self.fresh()

    def another(self, changes: Mapping[str, Any] | None = None, *, start: int = 0) -> nn.Module | None:
        """Another instance with changed arguments, None if there is none; equal starts give equal weights."""
        if self.patient.build is None:
            return None
        torch.default_generator.manual_seed(SEED + 1 + start)  # `run` leaves the generator where it always leaves it
        try:
            return in_mode(self.patient.build(dict(changes or {})).to(self.dtype))
        except AttnlabError:
            return None

    # Inputs

    def inputs(
        self,
        *,
        batch: int = BATCH,
        length: int | None = None,
        seed: int = 0,
        scale: float = 1.0,
        dtype: torch.dtype | None = None,
    ) -> Shaped[Tensor, "batch length *features"]:
        """Random inputs: standard normal embeddings times `scale`, or tokens; other seeds, other inputs.

        Embeddings come in the examination's dtype by default.
        """
        generator = torch.Generator().manual_seed(SEED + seed)
        length = length or self.convention.length
        if self.convention.takes == "tokens":
            return torch.randint(self.convention.vocab_size or 2, (batch, length), generator=generator)
        shape = (batch, length, self.convention.d_in)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype or self.dtype) * scale

    # Calls

    def run(
        self,
        x: Shaped[Tensor, "batch length *features"],
        *,
        module: nn.Module | None = None,
        causal: bool | None = None,
        padding: Bool[Tensor, "batch length"] | None = None,
        allowed: Bool[Tensor, "batch q_len k_len"] | None = None,
        grad: bool = False,
    ) -> Float[Tensor, "batch *length d_out"]:
        """Call the patient (or another module like it) and return its output batch first.

        See `Convention.call` for the arguments. `grad` keeps the graph. Raises `ModuleError` if it raises.
        """
        called, own = self.eval_module if module is None else module, x.clone()  # which it may write into
        with torch.set_grad_enabled(grad):
            return self._call(called, own, causal=causal, padding=padding, allowed=allowed)

    def _call(self, module: nn.Module, x: Tensor, **how: Any) -> Tensor:
        seed_all(SEED)
        return self.convention.call(module, x, **how)

    def run_from_embeddings(
        self, x: Tensor, *, module: nn.Module | None = None, causal: bool | None = None, padding: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch *length d_out"], Float[Tensor, "batch length features"]]:
        """The output and the leaf it can be differentiated by: the embeddings, for tokens what stands for them.

        The leaf of a token model is what its first `nn.Embedding` that gets the tokens returns.
        """
        called = self.eval_module if module is None else module
        if self.convention.takes == "embeddings":
            leaf = x.detach().clone().requires_grad_()
            return self.run(leaf, module=called, causal=causal, padding=padding, grad=True), leaf
        with _leaf_behind_embedding(called, x.shape) as leaves:
            output = self.run(x, module=called, causal=causal, padding=padding, grad=True)
        if not leaves:
            raise ModuleError("no nn.Embedding takes the tokens, so nothing can be differentiated")
        return output, leaves[0]

    def change(self, x: Tensor, positions: Any, *, samples: Any = slice(None), seed: int = 1) -> Tensor:
        """The inputs with those at some positions replaced by others, each by one that differs."""
        other = self.inputs(batch=x.shape[0], length=x.shape[1], seed=seed)
        return self.convention.replaced(x, other, (samples, positions))

    def tape(
        self,
        x: Tensor,
        *,
        module: nn.Module | None = None,
        causal: bool | None = None,
        padding: Tensor | None = None,
        change: Change | None = None,
    ) -> Tape:
        """What every operation of one call computed; `change` interferes with one of them."""
        called, own = self.eval_module if module is None else module, x.clone()
        with torch.no_grad():
            return record(called, lambda: self._call(called, own, causal=causal, padding=padding), change=change)

    @functools.cached_property
    def usual_tape(self) -> Tape:
        """The tape of a call on ordinary inputs."""
        return self.tape(self.inputs())

    def as_meant(self, findings: Iterable[Finding], topic: str) -> Iterator[Finding]:
        """Findings as they are; accepted where the class declares what they are about (a key of `topics.MEANT`)."""
        return accepted_by(findings, declared(self.patient.said, topic))

    def as_set(self, findings: Iterable[Finding], setting: str) -> Iterator[Finding]:
        """Findings as they are; accepted where an argument or a setting of a config, ``name=value``, fits a pattern."""
        wanted, given = signature_of(type(self.patient.module)), self.patient.arguments
        configs = [value for value in given.values() if isinstance(value, Settings)]
        settings = {name: value for config in configs for name, value in vars(config).items()}
        settings |= {name: given.get(name, one.default) for name, one in wanted.items()}
        written = (f"{name}={value!r}" for name, value in settings.items())
        said = next((one for one in written if re.match(setting, one, re.IGNORECASE)), "")
        return accepted_by(findings, said, by="it is built with")

    def relying_on(self, convention: Convention) -> Examination:
        """An examination of the same patient called in another way."""
        return Examination(self.patient, convention, self.options)

    @functools.cached_property
    def of_memory(self) -> Examination | None:
        """An examination of the same patient with its memory as the input; None where no mask is over it."""
        convention = self.convention.over_memory
        return None if convention is None else Examination(self.patient, convention, self.options)


def accepted_by(findings: Iterable[Finding], words: str, *, by: str = "its text says") -> Iterator[Finding]:
    """Findings as they are without words; with words that declare them, accepted, the words beside the evidence."""
    for finding in findings:
        evidence = f'{finding.evidence}; {by}: "{words}"'
        yield replace(finding, accepted=True, evidence=evidence) if words and finding.severity != "info" else finding


@final
class _leaf_behind_embedding:  # noqa: N801 a context manager reads like a function
    """Replace what the first embedding of the tokens returns by a leaf of the graph."""

    def __init__(self, module: nn.Module, shape: torch.Size) -> None:
        self.embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
        self.sizes = {shape, torch.Size(reversed(shape))}
        self.leaves: list[Tensor] = []
        self.handles: list[Any] = []

    def __enter__(self) -> list[Tensor]:
        self.handles = [part.register_forward_hook(self._replace) for part in self.embeddings]
        return self.leaves

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _replace(self, _module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self.leaves or not inputs or inputs[0].shape not in self.sizes:
            return None
        self.leaves.append(output.detach().clone().requires_grad_())
        return self.leaves[0]
