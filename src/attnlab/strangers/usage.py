"""How a patient is called: one `Usage` says it, its `call` keeps to it and returns batch-first outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn

from attnlab.core.errors import AttnlabError, ModuleError
from attnlab.strangers.calling.masking import PAD_TOKEN, Masking, mask_values
from attnlab.strangers.calling.sources import SOURCES, Argument, Situation
from attnlab.strangers.conventions import LAYOUTS, elements, invoke, label_of

__all__ = ["Kind", "Masking", "Usage"]

Kind = Literal["layer", "block", "model"]


@dataclass(frozen=True)
class Usage:
    """Hold everything needed to call a patient.

    Parameters
    ----------
    kind : {"layer", "block", "model"}
        An attention layer (or another mixer); a layer with feed-forward or norm and skip, described as block or
        layer; a model with several of them or from tokens to logits.
    takes : {"embeddings", "tokens"}
        What its first input is.
    d_in, d_out : int
        Features of one input position (0 for tokens) and of one output position.
    vocab_size : int or None
        Tokens are 0 ... vocab_size - 1; None for embeddings.
    length : int
        Length to examine it at.
    longest : int or None
        Longest length it takes; None: no limit met.
    any_length : bool
        Whether it takes other lengths than `length`.
    pooled : bool
        Whether the output has no length axis: (batch, d_out).
    slots : int or None
        Vectors that a sequence is pooled to where they are several, as many at every length; `call` lays them end
        to end.
    causal : bool or None
        Whether a position is meant to see no later one; None: nobody says.
    causal_by : str
        Who says so: ``"--causal"``, ``"its docstring"``, ``"its name"``, ``"its behaviour"``.
    causal_means : {"always", "mask", "flag", "nothing"}
        How it is made causal: by itself, by the mask argument, by a flag argument; or it cannot be.
    masks : tuple of Masking
        Its mask arguments: at most one over pairs, one over keys. One argument that can say both stands here twice.
    layout : str
        Key of `conventions.LAYOUTS`.
    layout_by : str
        Who says so: ``"its docstring"``, ``"a shape comment"``; nothing where nobody does.
    assumptions : mapping of str to str
        What is printed first, in words.
    arguments : tuple of Argument
        What its arguments are given, masks left out; empty: its first argument is the input.
    flag : str or None
        The argument that asks whether to be causal; it is given at every call.
    output : int, str or None
        Which element of what is returned is the output; None: the returned tensor, or the first of several.
    pad_token : int or None
        The token that means padding: where it stands in an input it is replaced by another.
    over_memory : Usage or None
        How it is called with its memory as the input and a fixed sequence that asks; None where no mask is over it.
    """

    kind: Kind
    takes: Literal["embeddings", "tokens"]
    d_in: int
    d_out: int
    vocab_size: int | None = None
    length: int = 11
    longest: int | None = None
    any_length: bool = True
    pooled: bool = False
    slots: int | None = None
    causal: bool | None = None
    causal_by: str = ""
    causal_means: Literal["always", "mask", "flag", "nothing"] = "nothing"
    masks: tuple[Masking, ...] = ()
    layout: str = "batch-first"
    layout_by: str = ""
    assumptions: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[Argument, ...] = ()
    flag: str | None = None
    output: int | str | None = None
    pad_token: int | None = None
    over_memory: Usage | None = None

    @property
    def pair_mask(self) -> Masking | None:
        """The mask argument over pairs of positions."""
        return next((mask for mask in self.masks if mask.over == "pairs"), None)

    @property
    def key_mask(self) -> Masking | None:
        """The mask argument that tells padding: over keys alone, or the one over pairs used for it."""
        return next((mask for mask in self.masks if mask.over == "keys"), None)

    def replaced(self, x: Tensor, other: Tensor, where: Any) -> Tensor:
        """Inputs with those at an index taken from others; a token becomes one that differs."""
        if self.takes == "tokens":
            size = self.vocab_size or 2
            other = (x + 1 + other % max(1, size - 1)) % size
        moved = x.clone()
        moved[where] = other[where]
        return moved

    def call(
        self,
        module: nn.Module,
        x: Shaped[Tensor, "batch length *features"],
        *,
        causal: bool | None = None,
        padding: Bool[Tensor, "batch length"] | None = None,
        allowed: Bool[Tensor, "batch q_len k_len"] | None = None,
    ) -> Tensor:
        """Call a module and return its output batch first: (batch, length, d_out), or (batch, d_out) if pooled.

        `causal` None means as declared; `padding` True = a real position; `allowed` replaces the causal mask.
        Raises `ModuleError` if it raises or returns another shape; NaN and infinity are returned as they are.
        """
        return self.output_in(self.returned(module, x, causal=causal, padding=padding, allowed=allowed), x)

    def returned(
        self,
        module: nn.Module,
        x: Tensor,
        *,
        causal: bool | None = None,
        padding: Tensor | None = None,
        allowed: Tensor | None = None,
    ) -> Any:
        """Call a module and return what it returned, in its own layout."""
        x = self._with_padding(x, padding)
        at = Situation(x, self.layout, _floating_dtype(x, module))
        arguments = self.arguments or (Argument("", "x", by_name=False),)
        positional = [SOURCES[one.source](at, one.value) for one in arguments if not one.by_name]
        named = {one.parameter: SOURCES[one.source](at, one.value) for one in arguments if one.by_name}
        causal = bool(self.causal) if causal is None else causal
        if self.flag is not None:
            named[self.flag] = causal
        if allowed is None and causal and self.causal_means == "mask":
            allowed = torch.ones(x.size(0), x.size(1), x.size(1), dtype=torch.bool, device=x.device).tril()
        named |= mask_values(self.masks, at, padding=padding, allowed=allowed)
        try:
            return invoke(module, positional, named, label=label_of(module))
        except ModuleError:
            raise
        except AttnlabError as error:  # of a part of the lab that is examined itself
            raise ModuleError(f"{label_of(module).name}: {error}") from error

    def _with_padding(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Tokens with the padding token at padded positions and nowhere else."""
        if self.pad_token is None:
            return x
        another = (self.pad_token + 1) % (self.vocab_size or 2)
        x = torch.where(x == self.pad_token, another, x)
        told = self.key_mask is not None and self.key_mask.encoding == PAD_TOKEN
        return torch.where(padding, x, self.pad_token) if told and padding is not None else x

    def output_in(self, returned: Any, x: Tensor) -> Tensor:
        """The output in what a module returned for `x`, batch first; raise `ModuleError` if it is not there."""
        found = elements(returned)
        output = found.get(self.output, next((each for each in found.values() if isinstance(each, Tensor)), None))
        if not isinstance(output, Tensor) or not output.is_floating_point():
            raise ModuleError(f"forward returned no floating tensor, but {type(returned).__name__}")
        expected = (x.size(0),) if self.pooled else (x.size(0), x.size(1))
        if self.slots is not None:
            output = self._end_to_end(output)
        if not self.pooled:
            output = output.unsqueeze(1 if self.layout == "channels-first" else 2) if output.dim() == 2 else output
            output = LAYOUTS[self.layout](output) if output.dim() == 3 else output
        if output.dim() != len(expected) + 1 or output.shape[:-1] != expected:
            words = "(batch, d_out)" if self.pooled else f"(batch, length, d_out), {self.layout}"
            raise ModuleError(
                f"forward returned {tuple(output.shape)} for an input {tuple(x.shape)}; it must return {words}"
            )
        return output

    def _end_to_end(self, output: Tensor) -> Tensor:
        """Several vectors per sequence as one."""
        output = LAYOUTS[self.layout](output) if output.dim() == 3 else output
        return output.flatten(1) if output.dim() == 3 and output.size(1) == self.slots else output


def _floating_dtype(x: Tensor, module: nn.Module) -> torch.dtype:
    """The dtype of the input, or for tokens that of the parameters."""
    if x.is_floating_point():
        return x.dtype
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
