"""One training call in one number format: whether it raises, and whether what comes out is finite."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from attnlab.core.build import describe_exception
from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.padded import Side, real_positions

Refusal = Literal["kernel", "unsupported", "range", "mixed", "other"]

_REFUSALS: tuple[tuple[Refusal, str], ...] = (
    ("kernel", r"not implemented for|could not create a primitive"),
    ("unsupported", r"[Uu]nsupported dtype|only supported for|not supported|does not support"),
    ("range", r"without overflow|cannot be converted to type"),
    (
        "mixed",
        r"same dtype|scalar type|should be the same|dtypes must be|dtypes match|dtype to be equal|dtype for bias"
        r"|dtype \w+ but|but (got|found) \w*(Float|Double|Half|float)",
    ),
)
"""What a refusal means, by what torch says: nothing for this format on this processor, in this operation at all, a
number that does not fit, formats that do not mix."""


@final
@dataclass(frozen=True)
class Attempt:
    """Say how a module is called once."""

    dtype: torch.dtype  # of parameters and inputs
    scale: float = 1.0  # standard deviation of the inputs; of a token model, the factor of its embedding tables
    padded: Side | None = None  # where samples but the first end in padding; None: nowhere
    length: int | None = None  # none: the usual length and batch; else one sample of that length
    empty: int | None = None  # a position whose input is all zero, in every sample

    @property
    def format(self) -> str:
        """The name of the number format."""
        return str(self.dtype).removeprefix("torch.")

    def module(self, exam: Examination) -> nn.Module:
        """The copy that is called; parameters that are all zero hold small numbers."""
        module = exam.fresh(dtype=self.dtype)
        if exam.convention.takes == "tokens":
            with torch.no_grad():
                for part in module.modules():  # the tables stand for the inputs
                    if isinstance(part, nn.Embedding) and part.num_embeddings == exam.convention.vocab_size:
                        part.weight.mul_(self.scale)
        return module

    def inputs(self, exam: Examination) -> Shaped[Tensor, "batch length *features"]:
        """What it is called with."""
        x = exam.inputs() if self.length is None else exam.inputs(batch=1, length=self.length)
        if exam.convention.takes == "tokens":
            return x
        x = x * self.scale
        if self.empty is not None:
            x[:, self.empty] = 0
        return x.to(self.dtype)

    def padding(self, exam: Examination) -> Bool[Tensor, "batch length"] | None:
        """Which positions are real; None if all are."""
        length = exam.convention.length
        lengths = [length, max(1, length - 3), max(1, length - 1)]
        return None if self.padded is None else real_positions(lengths, length, self.padded)

    def run(self, exam: Examination) -> Outcome:
        """Call a copy of the module forward and backward, once in an examination; what it raises is part of that."""
        if self not in exam.known:
            exam.known[self] = self._outcome(exam)
        return exam.known[self]

    def _outcome(self, exam: Examination) -> Outcome:
        try:
            module, x, padding = self.module(exam), self.inputs(exam), self.padding(exam)
            leaf = x.requires_grad_() if x.is_floating_point() else x
            output = exam.run(leaf, module=module, padding=padding, grad=True)
            masked = padding is not None and output.shape[:2] == padding.shape
            read = output[padding] if masked else output  # what somebody reads: the outputs of real positions
            bad_output = 1 - read.detach().isfinite().double().mean().item() if read.numel() else 0.0
            return Outcome(self, output.detach(), bad_output, _bad_gradients(read.double(), module, leaf))
        except ModuleError as error:
            text = str(error).split(" raised ", 1)[-1]  # without the sentence around it that repeats the call
            return Outcome(self, raised=text, refusal=_refusal(text))
        except RuntimeError as error:  # the backward pass
            text = "in the backward pass: " + describe_exception(error, exam.patient.file)
            return Outcome(self, raised=text, refusal=_refusal(str(error).split(" raised ", 1)[-1]))


@final
@dataclass(frozen=True)
class Outcome:
    """Hold what came of one attempt."""

    attempt: Attempt  # how it was called
    output: Tensor | None = None  # what it returned; None if it raised
    bad_output: float = 0.0  # share of output numbers that are NaN or infinite, padded positions left out
    bad_gradients: tuple[str, ...] = ()  # names of what has a NaN or infinite gradient while the output is finite
    raised: str = ""  # what it raised, in words
    refusal: Refusal | None = None  # why it raised

    @property
    def finite(self) -> bool:
        """Whether it ran and every number is finite."""
        return not (self.raised or self.bad_output or self.bad_gradients)

    @property
    def silently_bad(self) -> bool:
        """Whether it ran, and a number is not finite."""
        return not self.raised and not self.finite


def _bad_gradients(read: Tensor, module: nn.Module, leaf: Tensor) -> tuple[str, ...]:
    """What has a gradient that is not finite where outputs are: parameters by name, or the input."""
    if not read.requires_grad or not bool(read.isfinite().all()):
        return ()
    generator = torch.Generator().manual_seed(1)
    signs = torch.randint(0, 2, read.shape, generator=generator).double() * 2 - 1
    (read * signs).sum().div(max(1, read.shape[0])).backward()
    named = {"the input": leaf, **dict(module.named_parameters())}
    return tuple(name for name, one in named.items() if one.grad is not None and not one.grad.isfinite().all())


def _refusal(raised: str) -> Refusal:
    """Why a call was refused, by what torch says."""
    return next((name for name, pattern in _REFUSALS if re.search(pattern, raised)), "other")
