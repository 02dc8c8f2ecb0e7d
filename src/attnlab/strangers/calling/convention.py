"""How a module that was not written for the lab is called: a `Convention` says it, its `call` keeps to it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, final

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnlab.core.build import describe_exception
from attnlab.core.constructors import is_required
from attnlab.core.errors import AttnlabError, ModuleError
from attnlab.core.exact import MasksAsExact
from attnlab.strangers.calling.fields import gathered, names_loss
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.calling.masking import LENGTHS, PAD_TOKEN, Masking, mask_values
from attnlab.strangers.calling.roles import handed_to, switches
from attnlab.strangers.calling.sources import WHERE_GIVEN, Argument, Situation, given_to, laid_out

Kind = Literal["layer", "block", "model"]
BEFORE_LOSS = "what its loss is taken of, by "
"""How the output of a module that returns its loss alone is called, before the part that made it."""
_FORGETS = re.compile(r"reset|forget|(reset|clear|empty)_(kv_)?(memory|memories|mems?|states?|caches?|hidden|history)")
_WANTS_GRADIENTS = "a tensor that doesn't require gradient"


@final
@dataclass(frozen=True)
class Label:
    """Name a person's module in error texts."""

    name: str  # what the person called it, such as ``mixer './mine.py:MyAttention'``
    file: str  # path of the file it is defined in, or nothing


def label_of(module: nn.Module, name: str | None = None) -> Label:
    """The label of a module: the given name, or that of its class."""
    try:
        file = inspect.getfile(type(module))
    except (TypeError, OSError):  # defined at a prompt
        file = ""
    return Label(name or type(module).__qualname__, file)


@final
@dataclass(frozen=True)
class Convention:
    """Hold everything needed to call a module."""

    kind: Kind
    """An attention layer (or another mixer); a layer with feed-forward or norm and skip, described as block or layer; a
    model with several of them or from tokens to logits."""
    takes: Literal["embeddings", "tokens"]  # what its first input is
    d_in: int
    d_out: int
    """Features of one input position (0 for tokens) and of one output position."""
    vocab_size: int | None = None
    """Tokens are 0 ... vocab_size - 1; None for embeddings."""
    length: int = 11  # length to examine it at
    longest: int | None = None  # longest length it takes; None: no limit met
    any_length: bool = True  # whether it takes other lengths than `length`
    pooled: bool = False  # whether the output has no length axis: (batch, d_out)
    slots: int | None = None
    """Vectors that a sequence is pooled to where they are several, as many at every length; `call` lays them end to
    end."""
    causal: bool | None = None  # whether a position is meant to see no later one; None: nobody says
    causal_by: str = ""  # who says so: ``"--causal"``, ``"its docstring"``, ``"its name"``, ``"its behaviour"``
    causal_means: Literal["always", "mask", "flag", "nothing"] = "nothing"
    """How it is made causal: by itself, by the mask argument, by a flag argument; or it cannot be."""
    masks: tuple[Masking, ...] = ()
    """Its mask arguments: at most one over pairs, one over keys. One argument that can say both stands here twice."""
    layout: str = "batch-first"  # key of `layouts.LAYOUTS`
    layout_by: str = ""  # who says so: ``"its docstring"``, ``"a shape comment"``; nothing where nobody does
    layout_against: str = ""  # what speaks for another one, in which no call was found, in words
    assumptions: Mapping[str, str] = field(default_factory=dict)  # what is printed first, in words
    arguments: tuple[Argument, ...] = ()
    """What its arguments are given, masks left out; empty: its first argument is the input."""
    flag: str | None = None  # the argument that asks whether to be causal; it is given at every call
    output: int | str | None = None
    """Which element of what is returned is the output; None: the returned tensor, or the first of several."""
    pad_token: int | None = None  # the token that means padding: where it stands in an input it is replaced by another
    returned_in: str | None = None  # key of `layouts.LAYOUTS` in which the output comes back; None: as the input
    flat: bool = False  # whether the output is (batch * length, d_out), or (batch * length), as losses want it
    over_memory: Convention | None = None
    """How it is called with its memory as the input and a fixed sequence that asks; None where no mask is over it."""
    padded_see_themselves: bool = False
    """Whether a mask over pairs lets a padded position see itself, so that no row is left with nothing to see."""
    notes: tuple[str, ...] = ()  # what a reader of results should know, such as ``sees the future``

    def __str__(self) -> str:
        returned = "" if self.output is None else f" -> [{self.output!r}]"
        return f"{self.in_words}{returned}, {self.layout}"

    @property
    def pair_mask(self) -> Masking | None:
        """The mask argument over pairs of positions."""
        return next((mask for mask in self.masks if mask.over == "pairs"), None)

    @property
    def key_mask(self) -> Masking | None:
        """The mask argument that tells padding: over keys alone, or the one over pairs used for it."""
        return next((mask for mask in self.masks if mask.over == "keys"), None)

    @property
    def of_loss(self) -> bool:
        """Whether a loss is all that is returned, and the output is what that is taken of."""
        return isinstance(self.output, str) and self.output.startswith(BEFORE_LOSS)

    @property
    def takes_memory(self) -> bool:
        """Whether another sequence can be given at a call."""
        return any(one.source in WHERE_GIVEN for one in self.arguments)

    @property
    def in_words(self) -> str:
        """The call with the names of its arguments and how its masks are given."""
        of_memory = () if self.over_memory is None else self.over_memory.masks
        masked = {mask.parameter for mask in (*self.masks, *of_memory)}
        words = [one.in_words for one in self.arguments if (one.parameter or "x") not in masked]
        words += [self._mask_in_words(name) for name in dict.fromkeys(mask.parameter for mask in self.masks)]
        words += [f"{self.flag}: asks to be causal"] if self.flag and self.causal_means == "flag" else []
        words += [f"{self.over_memory._mask_in_words(mask.parameter)} of the memory" for mask in of_memory]  # pyrefly: ignore
        return f"forward({'; '.join(words)})"

    def _mask_in_words(self, parameter: str) -> str:
        """How one mask argument is given."""
        masks = [mask for mask in self.masks if mask.parameter == parameter]
        doubt = "" if masks[0].obeyed else ", but it does not hide"
        if masks[0].encoding == PAD_TOKEN:
            return f"{parameter}, padded with token {self.pad_token}{doubt}"
        ways: dict[str, dict[str, list[str]]] = {}
        for mask in masks:
            ways.setdefault(mask.encoding, {}).setdefault(mask.shape, []).append(mask.over)
        words = []
        for encoding, shapes in ways.items():
            places = [f"{shape} over {' and '.join(over)}" for shape, over in shapes.items()]
            words.append(f"{encoding}, {' or '.join(places)}")
        return f"{parameter}: {'; or '.join(words)}{doubt}"

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
        memory: Shaped[Tensor, "batch k_len *features"] | None = None,
        causal: bool | None = None,
        padding: Bool[Tensor, "batch k_len"] | None = None,
        allowed: Bool[Tensor, "batch q_len k_len"] | None = None,
        label: Label | None = None,
    ) -> Tensor:
        """Call a module and return its output batch first: (batch, length, d_out), or (batch, d_out) if pooled.

        `memory` is another sequence to look at; `causal` None means as declared; `padding` True = a real position;
        `allowed` replaces the causal mask. Raises `ModuleError` if the module raises or returns another shape; NaN and
        infinity are returned as they are.
        """
        label = label or label_of(module)
        returned = self.returned(module, x, memory=memory, causal=causal, padding=padding, allowed=allowed, label=label)
        try:
            return self.output_in(returned, x, label=label)
        except ModuleError:
            longest = self._longest_told(padding)
            if longest == 0:
                raise
            # packed by their lengths, sequences come back without what all of them have for padding
            output = self.output_in(returned, x[:, :longest], label=label)
            return nn.functional.pad(output, (0, 0, 0, x.size(1) - longest))

    def returned(
        self,
        module: nn.Module,
        x: Tensor,
        *,
        memory: Tensor | None = None,
        causal: bool | None = None,
        padding: Tensor | None = None,
        allowed: Tensor | None = None,
        label: Label | None = None,
    ) -> Any:
        """Call a module and return what it returned, in its own layout; of several calls, stacked."""
        label = label or label_of(module)
        if self.layout == "unbatched" and x.size(0) > 1:
            samples = [
                self.returned(
                    module,
                    x[i : i + 1],
                    memory=None if memory is None else memory[i : i + 1],
                    causal=causal,
                    padding=None if padding is None else padding[i : i + 1],
                    allowed=None if allowed is None else allowed[i : i + 1],
                    label=label,
                )
                for i in range(x.size(0))
            ]
            return tree_map(_joined, *samples)
        x = self._with_padding(x, padding)
        dtype, sees = _floating_dtype(x, module), self.padded_see_themselves
        at = Situation(x, self.layout, dtype, memory, training=module.training, padded_see_themselves=sees)
        arguments = [one for one in self.arguments if memory is not None or one.source != "memory if given"]
        arguments = arguments or [Argument("", "x", by_name=False)]
        positional = [given_to(one, at) for one in arguments if not one.by_name]
        named = {one.parameter: given_to(one, at) for one in arguments if one.by_name}
        causal = bool(self.causal) if causal is None else causal
        if self.flag is not None and (causal or self.flag not in switches(type(module))):
            named[self.flag] = causal
        if allowed is None and causal and self.causal_means == "mask":
            everything = torch.ones(x.size(0), at.length, at.k_len, dtype=torch.bool, device=x.device)
            allowed = everything.tril(at.k_len - at.length)
        named |= mask_values(self.masks, at, padding=padding, allowed=allowed)
        try:
            returned = invoke(module, positional, named, label=label, of_loss=self.of_loss)
            return tree_map(_with_batch, returned) if self.layout == "unbatched" else returned
        except ModuleError:
            raise
        except AttnlabError as error:  # of a part of the lab that is examined itself
            raise ModuleError(f"{label.name}: {error}") from error

    def _longest_told(self, padding: Tensor | None) -> int:
        """The length of the longest sample where lengths are told and one vector per position is returned, else 0."""
        told = self.key_mask is not None and self.key_mask.encoding == LENGTHS and not self.pooled
        return int(padding.sum(1).max()) if told and padding is not None and not padding.is_meta else 0

    def _with_padding(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """Tokens with the padding token at padded positions and nowhere else."""
        if self.pad_token is None:
            return x
        another = (self.pad_token + 1) % (self.vocab_size or 2)
        x = torch.where(x == self.pad_token, another, x)
        told = self.key_mask is not None and self.key_mask.encoding == PAD_TOKEN
        return torch.where(padding, x, self.pad_token) if told and padding is not None else x

    def output_in(self, returned: Any, x: Tensor, *, label: Label | None = None) -> Tensor:
        """The output in what a module returned for `x`, batch first; raise `ModuleError` if it is not there."""
        found = elements(returned)
        output = found.get(self.output, next((each for each in found.values() if isinstance(each, Tensor)), None))
        expected = (x.size(0),) if self.pooled else (x.size(0), x.size(1))
        if isinstance(output, Tensor) and output.is_floating_point():
            laid_out = self._batch_first(output, x)
            if laid_out.shape[:-1] == expected and laid_out.dim() == len(expected) + 1:
                return laid_out
        raise wrong_output(returned, x, self, label=label)

    def _batch_first(self, output: Tensor, x: Tensor) -> Tensor:
        """An output in the lab's layout: (batch, length, d_out), or (batch, d_out)."""
        order = LAYOUTS[self.returned_in or self.layout]
        back, dims = order.batch_first, order.dims
        if output.dim() == dims + 1 and len(output) == 1:  # of a stack of which only the last layer is returned
            output = output[0]
        if self.slots is not None:
            output = back(output) if output.dim() == dims else output
            return output.flatten(1) if output.dim() == 3 and output.size(1) == self.slots else output
        if self.pooled and output.dim() == 1:  # one number
            return output[:, None]
        if self.pooled:  # perhaps as a sequence of one
            return back(output).squeeze(1) if output.dim() == dims == 3 and back(output).size(1) == 1 else output
        if self.flat and output.dim() in (1, 2):
            output = output[:, None] if output.dim() == 1 else output  # one number a position
            return output.unflatten(0, (x.size(0), -1)) if len(output) % x.size(0) == 0 else output
        if output.dim() == 2:  # one number per position
            output = output.unsqueeze(1 if (self.returned_in or self.layout) == "channels-first" else 2)
        return back(output) if output.dim() == dims else output


def _with_batch(value: Any) -> Any:
    return value[None] if isinstance(value, Tensor) else value


def _joined(*values: Any) -> Any:
    return torch.cat(values) if isinstance(values[0], Tensor) else values[0]


def way_to_forget(module: nn.Module) -> Callable[[], Any] | None:
    """The method by which a module forgets earlier calls, as ``reset`` or ``clear_memory``; it needs no arguments."""
    found = (getattr(module, name) for name in dir(type(module)) if _FORGETS.fullmatch(name))
    return next((one for one in found if inspect.ismethod(one) and not _needs(one)), None)


def _needs(method: Callable[..., Any]) -> bool:
    """Whether a method cannot be called without arguments."""
    return any(is_required(one) for one in inspect.signature(method).parameters.values())


def invoke(
    module: nn.Module, positional: Sequence[Any], named: Mapping[str, Any], *, label: Label, of_loss: bool = False
) -> Any:
    """Call a module, reset where it has a way to forget earlier calls, and put what it raises into words.

    Of one that returns its loss, known to or not, what that is taken of comes back.
    """
    try:
        positional, named = gathered(module, *_in_order(module, positional, named))
        try:
            returned = _before_loss(module, positional, named) if of_loss else _called(module, positional, named)
            return _before_loss(module, positional, named) if _is_loss(returned) and names_loss(module) else returned
        except RuntimeError as error:
            if _WANTS_GRADIENTS not in str(error):
                raise
            with torch.enable_grad():  # which it keeps for later, as those do that explain themselves
                return tree_map(_detached, _called(module, positional, named))
    except (AttnlabError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        words = [_described(value) for value in positional]
        given = ", ".join(words + [f"{name}={_described(value)}" for name, value in named.items()])
        text = describe_exception(error, label.file)
        raise ModuleError(f"{label.name}: forward({given}) raised {text}") from error


def _in_order(
    module: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What is given by name in the order of the part that gets it, where a ``forward(*arguments)`` knows no names."""
    inner = handed_to(module)
    if inner is None:
        return positional, named
    wanted = inspect.signature(inner.forward).parameters
    given = dict(zip(wanted, positional, strict=False)) | dict(named)
    order = [name for name in wanted if name in given]
    reached = list(wanted)[: list(wanted).index(order[-1]) + 1] if order else []
    unset = {name: None if one.default is one.empty else one.default for name, one in wanted.items()}
    return [given.get(name, unset[name]) for name in reached], {}


def _called(module: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What a module returns that has forgotten earlier calls."""
    forget = way_to_forget(module)
    if forget is not None:
        forget()
    with MasksAsExact():
        return module(*positional, **named)


def _is_loss(returned: Any) -> bool:
    """Whether all that was returned are single numbers."""
    found = [each for each in elements(returned).values() if each is not None]
    return bool(found) and all(isinstance(each, Tensor) and each.dim() == 0 for each in found)


def _before_loss(module: nn.Module, positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """What the last part of a module returned that returned vectors: its loss is taken of that."""
    names = {id(part): name for name, part in module.named_modules(remove_duplicate=False)}
    seen: list[tuple[str, Tensor]] = []

    def note(part: nn.Module, _given: Any, returned: Any) -> None:
        first = next(iter(elements(returned).values()), None)
        if isinstance(first, Tensor) and first.is_floating_point() and first.dim() > 1:
            seen.append((names[id(part)], first))

    hooks = [part.register_forward_hook(note) for part in module.modules() if part is not module]
    try:
        _called(module, positional, named)
    finally:
        for hook in hooks:
            hook.remove()
    return {f"{BEFORE_LOSS}{name}": output for name, output in seen[-1:]}


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def elements(returned: Any) -> dict[int | str | None, Any]:
    """What a module returned by the key each element has in it; a lone tensor has the key None."""
    if isinstance(returned, Tensor):
        return {None: returned}
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, list | tuple):
        return dict(enumerate(returned))
    if dataclasses.is_dataclass(returned):
        return {one.name: getattr(returned, one.name) for one in dataclasses.fields(returned)}
    return {}


def wrong_output(returned: Any, x: Tensor, convention: Convention, *, label: Label | None = None) -> ModuleError:
    """The error for a module that returned something else than it must."""
    name = "" if label is None else f"{label.name}: "
    hint = " (hint: end with a projection back to d_model, or give the argument that sets the output width)"
    if convention.pooled:
        wanted, hint = "(batch, d_out)", ""
    elif convention.d_out:
        layout = LAYOUTS[convention.layout]
        shape = layout.laid_out(torch.empty((*x.shape[:2], convention.d_out), device="meta")).shape
        wanted = f"{tuple(shape)} = {layout.axes}, alone or in a tuple"
    else:
        wanted, hint = "with one vector per position, or one per sequence", ""
    given = tuple(laid_out(x, convention.layout).shape)
    return ModuleError(
        f"{name}forward returned {_described(returned)} for an input {given}; it must return a floating tensor"
        f" {wanted}{hint}"
    )


def _described(value: Any) -> str:
    """Shape and type of a tensor, of each element of a collection, or the type of anything else."""
    if isinstance(value, Tensor):
        kind = "" if value.is_floating_point() else f" {str(value.dtype).removeprefix('torch.')}"
        return f"{tuple(value.shape)}{kind}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__} of {', '.join(_described(element) for element in value)}"
    if isinstance(value, Mapping):
        return f"dict of {', '.join(f'{key} {_described(element)}' for key, element in value.items())}"
    return type(value).__name__ if value is not None else "None"


def _floating_dtype(x: Tensor, module: nn.Module) -> torch.dtype:
    """The dtype of the input, or for tokens that of the parameters."""
    if x.is_floating_point():
        return x.dtype
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
