"""How to call a person's own module: which inputs in which layout, which mask, which part of what it returns.

A `Convention` says it, `call` keeps to it. How a convention is learned is in `probing`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.core.build import describe_exception
from attnlab.core.errors import AttnlabError, ModuleError

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "batch-first": lambda x: x,  # (batch, length, d_model)
    "channels-first": lambda x: x.transpose(1, 2).contiguous(),  # (batch, d_model, length)
    "sequence-first": lambda x: x.transpose(0, 1).contiguous(),  # (length, batch, d_model)
}
"""From (batch, length, d_model) to a layout; each is its own way back."""

AXES: dict[str, str] = {
    "batch-first": "(batch, length, d_model)",
    "channels-first": "(batch, d_model, length)",
    "sequence-first": "(length, batch, d_model)",
}

_FINITE_BLOCK = -1e9  # far below any score; for modules that multiply a mask, where -inf times 0 is NaN

ENCODINGS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "bool, True = may attend": lambda allowed, _dtype: allowed,
    "bool, True = blocked": lambda allowed, _dtype: ~allowed,
    "float, 0 or -inf added to the scores": lambda allowed, dtype: _additive(allowed, dtype, float("-inf")),
    "int, 1 = may attend": lambda allowed, _dtype: allowed.long(),
    "int, 1 = blocked": lambda allowed, _dtype: (~allowed).long(),
    "float, 1 = may attend": lambda allowed, dtype: allowed.to(dtype),
    "float, 1 = blocked": lambda allowed, dtype: (~allowed).to(dtype),
    "float, 0 or -1e9 added to the scores": lambda allowed, dtype: _additive(allowed, dtype, _FINITE_BLOCK),
}
"""What a mask's values mean: from bool, True = may attend, to what the module understands."""

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(q_len, k_len)": lambda allowed: allowed[0],
    "(1, q_len, k_len)": lambda allowed: allowed[:1],
    "(1, 1, q_len, k_len)": lambda allowed: allowed[:1, None],
    "(batch, 1, q_len, k_len)": lambda allowed: allowed[:, None],
    "(batch, q_len, k_len)": lambda allowed: allowed,
}
"""Shapes of a mask, from (batch, q_len, k_len)."""

KEY_SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "(batch, k_len)": lambda real: real,
    "(batch, 1, k_len)": lambda real: real[:, None],
    "(batch, 1, 1, k_len)": lambda real: real[:, None, None],
}
"""Shapes of a mask over keys alone, from (batch, k_len)."""
Source = Literal["x", "memory or x", "memory"]
"""What an argument is given; ``memory`` alone is left out where there is no memory."""


@dataclass(frozen=True)
class Slot:
    """Say what one argument of ``forward`` is given.

    Parameters
    ----------
    parameter, source, by_name
        Name of the parameter, which of the inputs goes there, whether it is passed by name.
    """

    parameter: str
    source: Source
    by_name: bool


@dataclass(frozen=True)
class MaskForm:
    """Say under which name, with which meaning and in which shape a mask is given.

    Parameters
    ----------
    parameter, encoding, shape : str
        Name of the mask parameter, which values keep and which block, and which axes it has.
    """

    parameter: str
    encoding: str
    shape: str


@dataclass(frozen=True)
class Convention:
    """Hold everything needed to call a module that was not written for the lab.

    Parameters
    ----------
    slots : tuple of Slot
        The sequence arguments of ``forward``, in order.
    constants : tuple of (str, bool or None)
        Flags, and masks that are given as None.
    mask : MaskForm or None
        The mask given at every call; None where the module needs none.
    padding : MaskForm or None
        How padding is told; where its parameter is the mask's own, one mask says both. None: it is not told.
    layout : str
        A key of `LAYOUTS`.
    output : int, str or None
        Which element of what is returned is the output; None: the returned tensor itself.
    causal : bool
        Whether a mask, where one is given, lets a position see no later one.
    notes : tuple of str
        What a reader of results should know, such as ``sees the future``.
    """

    slots: tuple[Slot, ...]
    constants: tuple[tuple[str, bool | None], ...] = ()
    mask: MaskForm | None = None
    padding: MaskForm | None = None
    layout: str = "batch-first"
    output: int | str | None = None
    causal: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [slot.parameter for slot in self.slots]
        forms = {form.parameter: form for form in (self.padding, self.mask) if form is not None}
        words += [f"{form.parameter}: {form.encoding}, {form.shape}" for form in forms.values()]
        words += [f"{name}={value}" for name, value in self.constants if name not in forms]
        returned = "" if self.output is None else f" -> [{self.output!r}]"
        return f"forward({'; '.join(words)}){returned}, {self.layout}"


@dataclass(frozen=True)
class Label:
    """Name a person's module in error texts.

    Parameters
    ----------
    name : str
        What the person called it, such as ``mixer './mine.py:MyAttention'``.
    file : str
        Path of the file it is defined in, or nothing.
    """

    name: str
    file: str


def label_of(module: nn.Module, name: str | None = None) -> Label:
    """The label of a module: the given name, or that of its class."""
    try:
        file = inspect.getfile(type(module))
    except (TypeError, OSError):  # defined at a prompt
        file = ""
    return Label(name or type(module).__qualname__, file)


def call(
    module: nn.Module,
    convention: Convention,
    x: Float[Tensor, "batch q_len d_model"],
    memory: Float[Tensor, "batch k_len d_model"] | None = None,
    *,
    padding: Bool[Tensor, "batch k_len"] | None = None,
    label: Label,
) -> Float[Tensor, "batch q_len d_model"]:
    """Call a module as its convention says."""
    positional, named = arguments(convention, x, memory, padding)
    returned = invoke(module, positional, named, label=label)
    expected = LAYOUTS[convention.layout](x).shape
    output = elements(returned).get(convention.output)
    if output is None or not _is_tensor_of(output, expected):
        raise wrong_output(returned, expected, convention.layout, label=label)
    return LAYOUTS[convention.layout](output)  # (batch, q_len, d_model)


def invoke(module: nn.Module, positional: Sequence[Any], named: Mapping[str, Any], *, label: Label) -> Any:
    """Call a module and put what it raises into words."""
    try:
        return module(*positional, **named)
    except (AttnlabError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        given = _describe_arguments(positional, named)
        text = describe_exception(error, label.file)
        raise ModuleError(f"{label.name}: forward({given}) raised {text}") from error


def arguments(
    convention: Convention, x: Tensor, memory: Tensor | None, padding: Tensor | None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of one call, by position and by name."""
    sources = {"x": x, "memory or x": x if memory is None else memory}
    if memory is not None:
        sources["memory"] = memory
    laid_out = {source: LAYOUTS[convention.layout](value) for source, value in sources.items()}
    slots = [slot for slot in convention.slots if slot.source in laid_out]
    positional = [laid_out[slot.source] for slot in slots if not slot.by_name]
    named: dict[str, Any] = dict(convention.constants)
    named |= {slot.parameter: laid_out[slot.source] for slot in slots if slot.by_name}
    if convention.mask is not None:
        named[convention.mask.parameter] = _mask(convention.mask, convention.causal, x, memory, None)
    if convention.padding is not None and padding is not None:
        named[convention.padding.parameter] = _mask(convention.padding, convention.causal, x, memory, padding)
    return positional, named


def _mask(form: MaskForm, causal: bool, x: Tensor, memory: Tensor | None, padding: Tensor | None) -> Tensor:
    """A mask in the form a module understands.

    A padded position may see itself: nobody reads its output, and a row that may see nothing would be NaN.
    """
    if form.shape in KEY_SHAPES and padding is not None:
        return ENCODINGS[form.encoding](KEY_SHAPES[form.shape](padding), x.dtype)
    q_len, k_len = x.size(1), x.size(1) if memory is None else memory.size(1)
    allowed = torch.ones(1, q_len, k_len, dtype=torch.bool, device=x.device)
    if causal:
        allowed = allowed.tril(k_len - q_len)
    if padding is not None:
        allowed = allowed & padding[:, None, :]  # (batch, q_len, k_len)
        if memory is None:
            allowed = allowed | torch.eye(q_len, dtype=torch.bool, device=x.device)
    return ENCODINGS[form.encoding](SHAPES[form.shape](allowed.expand(x.size(0), -1, -1)), x.dtype)


def _additive(allowed: Tensor, dtype: torch.dtype, blocked: float) -> Tensor:
    """0 where a position may attend and `blocked` elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, blocked)


def elements(returned: Any) -> dict[int | str | None, Any]:
    """What a module returned by the key each element has in it; a lone tensor has the key None."""
    if isinstance(returned, Tensor):
        return {None: returned}
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, list | tuple):
        return dict(enumerate(returned))
    if dataclasses.is_dataclass(returned):
        return {field.name: getattr(returned, field.name) for field in dataclasses.fields(returned)}
    return {}


def find_output(returned: Any, expected: torch.Size) -> tuple[int | str | None] | None:
    """The key of the first element with the expected shape, in a tuple, or None if there is none."""
    return next(((key,) for key, value in elements(returned).items() if _is_tensor_of(value, expected)), None)


def _is_tensor_of(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape and value.is_floating_point()


def wrong_output(returned: Any, expected: torch.Size, layout: str, *, label: Label) -> ModuleError:
    """The error for a module that returned something else than it must."""
    return ModuleError(
        f"{label.name}: forward returned {_describe(returned)}; it must return a floating tensor"
        f" {tuple(expected)} = {AXES[layout]}, the shape of its input, alone or in a tuple"
        " (hint: end with a projection back to d_model, or give the argument that sets the output width)"
    )


def _describe(value: Any) -> str:
    """Shape and type of a tensor, of each element of a collection, or the type of anything else."""
    if isinstance(value, Tensor):
        kind = "" if value.is_floating_point() else f" {str(value.dtype).removeprefix('torch.')}"
        return f"{tuple(value.shape)}{kind}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(_describe(element) for element in value)}"
    return type(value).__name__ if value is not None else "None"


def _describe_arguments(positional: Sequence[Any], named: Mapping[str, Any]) -> str:
    """The arguments of a call as shapes."""
    words = [_describe(value) for value in positional]
    return ", ".join(words + [f"{name}={_describe(value)}" for name, value in named.items()])
