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

FORMATS: dict[torch.dtype, str] = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}

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
    """Say how a module is called once.

    Parameters
    ----------
    dtype : torch.dtype
        Of parameters and inputs.
    scale : float
        Standard deviation of the inputs; of a token model, the factor of its embedding tables.
    padding : Tensor or None
        True = a real position.
    length : int or None
        None: the usual length and batch; else one sample of that length.
    empty : int or None
        A position whose input is all zero, in every sample.
    """

    dtype: torch.dtype
    scale: float = 1.0
    padding: Bool[Tensor, "batch length"] | None = None
    length: int | None = None
    empty: int | None = None

    def module(self, exam: Examination) -> nn.Module:
        """The copy that is called; parameters that are all zero hold small numbers."""
        module = exam.fresh(dtype=self.dtype)
        if exam.convention.takes == "tokens":
            _scale_embeddings(module, exam.convention.vocab_size, self.scale)
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

    def run(self, exam: Examination) -> Outcome:
        """Call the module and return what came of it; what it raises is part of that."""
        try:
            return self._call(exam, self.module(exam), self.inputs(exam))
        except ModuleError as error:
            return Outcome(self, raised=_innermost(error), refusal=_refusal(error))
        except RuntimeError as error:  # the backward pass
            text = "in the backward pass: " + describe_exception(error, exam.patient.file)
            return Outcome(self, raised=text, refusal=_refusal(error))

    def _call(self, exam: Examination, module: nn.Module, x: Tensor) -> Outcome:
        leaf = x.requires_grad_() if x.is_floating_point() else x
        output = exam.run(leaf, module=module, padding=self.padding, grad=True)
        bad = _share_not_finite(self._real(output))
        return Outcome(self, output.detach(), bad, self._bad_gradients(output, module, leaf))

    def _real(self, output: Tensor) -> Tensor:
        """The outputs somebody reads: those of real positions."""
        if self.padding is None or output.shape[:2] != self.padding.shape:
            return output
        return output[self.padding]

    def _bad_gradients(self, output: Tensor, module: nn.Module, leaf: Tensor) -> tuple[str, ...]:
        """What has a gradient that is not finite: parameters by name, or the input."""
        read = self._real(output).double()
        if not read.requires_grad or not bool(read.isfinite().all()):
            return ()
        generator = torch.Generator().manual_seed(1)
        signs = torch.randint(0, 2, read.shape, generator=generator).double() * 2 - 1
        (read * signs).sum().div(max(1, read.shape[0])).backward()
        named = {"the input": leaf, **dict(module.named_parameters())}
        return tuple(
            name for name, tensor in named.items() if tensor.grad is not None and not tensor.grad.isfinite().all()
        )


@final
@dataclass(frozen=True)
class Outcome:
    """Hold what came of one attempt.

    Parameters
    ----------
    attempt : Attempt
        How it was called.
    output : Tensor or None
        What it returned; None if it raised.
    bad_output : float
        Share of output numbers that are NaN or infinite, padded positions left out.
    bad_gradients : tuple of str
        Names of what has a NaN or infinite gradient while the output is finite.
    raised : str
        What it raised, in words.
    refusal : str or None
        Why it raised.
    """

    attempt: Attempt
    output: Tensor | None = None
    bad_output: float = 0.0
    bad_gradients: tuple[str, ...] = ()
    raised: str = ""
    refusal: Refusal | None = None

    @property
    def finite(self) -> bool:
        """Whether it ran and every number is finite."""
        return not self.raised and not self.bad_output and not self.bad_gradients

    @property
    def silently_bad(self) -> bool:
        """Whether it ran, and a number is not finite."""
        return not self.raised and not self.finite

    @property
    def format(self) -> str:
        """The name of the number format."""
        return FORMATS[self.attempt.dtype]


def _scale_embeddings(module: nn.Module, vocab_size: int | None, scale: float) -> None:
    """Multiply the token tables, which stand for the inputs of a token model."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Embedding) and part.num_embeddings == vocab_size:
                part.weight.mul_(scale)


def _share_not_finite(output: Tensor) -> float:
    return 1 - output.detach().isfinite().double().mean().item() if output.numel() else 0.0


def _refusal(error: BaseException) -> Refusal:
    """Why a call was refused, by what torch says."""
    text = _innermost(error)
    return next((name for name, pattern in _REFUSALS if re.search(pattern, text)), "other")


def _innermost(error: BaseException) -> str:
    """An exception's text without the sentence around it that repeats the call."""
    text = str(error)
    return text.split(" raised ", 1)[1] if " raised " in text else text
