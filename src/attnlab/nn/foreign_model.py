"""A whole model of a person's own, unchanged, called as it wants to be where that is not the lab's way."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.build import Order, Spec, load_object, parse, prepare
from attnlab.core.constructors import end_word, is_required, named, signature_of
from attnlab.core.errors import ModuleError
from attnlab.nn.foreign import AbstractForeign, key_of, module_of, where_tensors_are_made
from attnlab.strangers.calling.convention import Convention, label_of
from attnlab.strangers.calling.masking import PAD_TOKEN, mask_values
from attnlab.strangers.calling.roles import role_of
from attnlab.strangers.calling.sources import Argument, Situation, laid_out
from attnlab.strangers.containment import quiet
from attnlab.strangers.patient import Declared, Patient, closes_over_parts, twin_of
from attnlab.strangers.texts import classes_of, text_of
from attnlab.strangers.trying.interview import interview
from attnlab.strangers.trying.masks_learned import PAD_WORDS

_BATCH, _LENGTH = 3, 11  # unlike each other and most widths, so that axes cannot be mistaken
_SAME = 1e-5  # by more two outputs of float32 differ
_MEMORY = "memory tokens"  # how an interview calls the sequence that is looked at
_PAD_TOKEN = 0  # of tasks whose items have different lengths
_MARKS = {
    "begin": re.compile(r"(^|_)(sos|bos|(begin|start)(?=_))(_(idx|id|index|token|token_id))?$", re.I),
    "end": re.compile(r"(^|_)(eos|end(?=_))(_(idx|id|index|token|token_id))?$", re.I),
}
"""How constructors ask for the tokens that begin and end a sentence."""
_FROM_CONFIG = re.compile(r"\b(?:configs?|cfg|conf|args|hparams|opt|params)\.(\w+)")
_LEARNED: dict[tuple[Any, ...], tuple[Convention | None, str]] = {}
"""By file, time of its last change, arguments and task the convention (None: it is called as the lab calls models) and
the part that answers."""


@final
class ForeignModel(AbstractForeign):
    """Call a person's own model like one of the lab's: with what the task reads, for one tensor.

    Parameters
    ----------
    module : nn.Module
        The person's model; its weights are under ``module.`` in the state dict.
    convention : Convention, optional
        How it wants to be called; None: with what the task reads.
    answering : str
        Its part that makes answers of what it returns, where it leaves that to whoever calls it.
    name : str, optional
        What the person called it, for error texts; the name of its class if left out.
    """

    same_draws_as = "module"

    def __init__(
        self, module: nn.Module, convention: Convention | None, *, answering: str = "", name: str | None = None
    ) -> None:
        super().__init__(module, name=name)
        self.convention, self.answering = convention, answering

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        """The model's output, (batch, length, d_out), or (batch, d_out) where it gives one for a sequence.

        Of two sequences the second asks, and the first is looked at.
        """
        returned = self._returned(first, second)
        return self.module.get_submodule(self.answering)(returned) if self.answering else returned

    def _returned(self, first: Tensor, second: Tensor | None) -> Tensor:
        convention = self.convention
        if convention is None:
            return self.module(first) if second is None else self.module(first, second)
        with where_tensors_are_made(first):
            if second is not None and all(one.source != _MEMORY for one in convention.arguments):
                # of a task of a person's own, which knows what it gives
                return convention.output_in(self.module(first, second), first, label=self.label)
            if second is not None:
                return _telling(convention, first, self.module).call(self.module, second, label=self.label)
            told = convention.takes == "tokens" and not convention.causal and convention.key_mask
            padding = first != _PAD_TOKEN if told else None
            return convention.call(self.module, first, padding=padding, label=self.label)

    def extra_repr(self) -> str:
        """How the model is called, for printing."""
        called = "" if self.convention is None else str(self.convention)
        return f"{called or 'the lab calls it'}, then {self.answering}" if self.answering else called


def _telling(convention: Convention, source: Tensor, module: nn.Module) -> Convention:
    """A convention with a source in its place, whose padding is told where it can be."""
    sources = [one.parameter for one in convention.arguments if one.source == _MEMORY]
    told: dict[str, Any] = dict.fromkeys(sources, laid_out(source, convention.layout))
    if convention.over_memory is not None:
        at = Situation(source, convention.layout, next(weight.dtype for weight in module.parameters()))
        masks = tuple(mask for mask in convention.over_memory.masks if mask.obeyed)
        told |= mask_values(masks, at, padding=source != _PAD_TOKEN, allowed=None) if masks else {}
    arguments = [
        replace(one, source="constant", value=told.pop(one.parameter)) if one.parameter in told else one
        for one in convention.arguments
    ]
    arguments += [Argument(name, "constant", value=value) for name, value in told.items()]
    return replace(convention, arguments=tuple(arguments))


def build_foreign_model(spec: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """Build a model from a person's own class.

    Parameters
    ----------
    spec : str or mapping
        ``path.py:Class``, or a mapping with that as ``name`` and constructor arguments.
    offered : mapping
        What the task tells a model: ``vocab_size`` or ``d_in``, ``d_out``, ``max_length``, ``length``; for a pair of
        sequences ``source_vocab_size``, ``target_vocab_size``, and the tokens ``pad``, ``begin`` and ``end``.

    Returns
    -------
    nn.Module
        The model itself where it takes what the task reads, returns a tensor for it, and can be copied as it is; else a
        `ForeignModel` around it.

    Raises
    ------
    SpecError
        If the file, the class or an argument is missing or wrong.
    ModuleError
        If the class raises, or no way is found to call it.

    Notes
    -----
    What a model may want beside its input is a mask, which is causal where the task asks for the next token, or
    targets, without which it answers for the last position alone; of what it returns the answers are taken. It is
    called batch first, but where its own code (and not a part of torch that was left at its default) takes the first
    axis for the length.
    """
    name, _ = parse(spec, "model")
    order = order_of(spec, offered)
    convention, answering = _learned(name, order, offered)
    module = module_of(order)
    plain = convention is None and not answering and not closes_over_parts(module)
    return module if plain else ForeignModel(module, convention, answering=answering, name=order.where)


def order_of(spec: Spec, offered: Mapping[str, Any]) -> Order:
    """A person's own class with the arguments that its constructor gets of a task, by its own names for them."""
    return prepare(spec, {}, axis="model", offered=_by_own_names(parse(spec, "model")[0], offered))


def _by_own_names(name: str, offered: Mapping[str, Any]) -> dict[str, Any]:
    """What is offered, by the constructor's own names: of what goes in and comes out, of each side's vocabulary."""
    own, read = signature_of(load_object(name)), []
    with contextlib.suppress(OSError, TypeError):  # no source, or none of a function that is called
        read = _FROM_CONFIG.findall(inspect.getsource(load_object(name)))
    ends = {one: offered[word] for one in (*own, *read) if (word := end_word(one)) in offered}
    if not {"source_vocab_size", "target_vocab_size"} <= offered.keys():
        return {**ends, **offered}
    sides = {one: "target" if role_of(one) == "target" else "source" for one in named("vocab_size", own)}
    sizes = {one: offered[f"{side}_vocab_size"] for one, side in sides.items()}
    marks = {one: offered["pad"] for one in PAD_WORDS if one in own and "pad" in offered}
    for mark, said in _MARKS.items():
        marks |= {one: offered[mark] for one in own if mark in offered and said.search(one)}
    return {**offered, **sizes, **marks}


def _learned(name: str, order: Order, offered: Mapping[str, Any]) -> tuple[Convention | None, str]:
    """The convention of a class and the part that answers, from memory where it was learned before."""
    key = key_of(name, order, sorted(offered))
    if key not in _LEARNED:
        with quiet():  # on the CPU, wherever the model is built
            inputs = _read(offered)
            _LEARNED[key] = _found_out(order, offered, inputs) if inputs else (None, "")
    return _LEARNED[key]


def _found_out(order: Order, offered: Mapping[str, Any], inputs: Sequence[Tensor]) -> tuple[Convention | None, str]:
    probe = module_of(order)
    plain = _answers(probe, inputs)
    convention = _of_length_first(probe, inputs) if plain else _asked(probe, order, offered)
    return convention, _left_over(ForeignModel(probe, convention), inputs, offered)


def _left_over(model: ForeignModel, inputs: Sequence[Tensor], offered: Mapping[str, Any]) -> str:
    """The part that a model does not call, and that makes logits over the vocabulary of what it returns; or nothing."""
    wanted, called = offered.get("target_vocab_size", offered.get("vocab_size")), set[str]()
    with contextlib.suppress(Exception), torch.no_grad():  # whatever a person's code raises is told elsewhere
        model = copy.deepcopy(model).eval()
        for name, part in model.module.named_children():
            part.register_forward_hook(lambda *_, name=name: called.add(name))
        returned = model(*inputs)
        if returned.shape[-1] != wanted and "d_out" not in offered:
            for name, part in model.module.named_children():
                if name not in called and _makes(part, returned, (*returned.shape[:-1], wanted)):
                    return name
    return ""


def _makes(part: nn.Module, given: Tensor, shape: tuple[Any, ...]) -> bool:
    with contextlib.suppress(Exception):
        return tuple(part(given).shape) == shape
    return False


def _read(offered: Mapping[str, Any]) -> list[Tensor]:
    """What a model of a task reads: tokens, or numbers at every position; nothing where that is not known."""
    length = min(offered.get("length") or _LENGTH, offered.get("max_length") or _LENGTH)
    sizes = [offered[one] for one in ("vocab_size", "source_vocab_size", "target_vocab_size") if one in offered]
    if sizes:
        return [torch.arange(_BATCH * length).view(_BATCH, length) % size for size in sizes]
    if "d_in" not in offered:
        return []
    return [torch.linspace(-1, 1, _BATCH * length * offered["d_in"]).view(_BATCH, length, -1)]


def _answers(probe: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether a model takes what a task reads and returns a tensor with an answer for each sample."""
    try:
        answer = twin_of(probe).eval()(*inputs)
    except Exception:  # whatever a person's code raises: it is asked how it wants to be called
        return False
    return isinstance(answer, Tensor) and answer.ndim > 0 and len(answer) == _BATCH


def _of_length_first(probe: nn.Module, inputs: Sequence[Tensor]) -> Convention | None:
    """The convention of a model whose own code takes the first axis of its input for the length; None of any other.

    Samples see each other if the batch comes first and do not if it comes second, nor would they only since parts of
    torch are left at their default: then code around them means the batch first, and it is a bug.
    """
    module = twin_of(probe).eval()
    if len(inputs) != 1 or _by_itself(module, inputs[0]):
        return None
    if not _by_itself(lambda x: module(x.transpose(0, 1)).transpose(0, 1), inputs[0]):
        return None
    mended = twin_of(module)
    for part in mended.modules():
        if getattr(part, "batch_first", True) is False:
            part.batch_first = True  # pyrefly: ignore
    if _by_itself(mended, inputs[0]):
        return None
    of_tokens, first = inputs[0].ndim == 2, next(iter(signature_of(module.forward)))
    with torch.no_grad():
        d_out = module(inputs[0]).shape[-1]
    return Convention(
        "model",
        "tokens" if of_tokens else "embeddings",
        0 if of_tokens else inputs[0].shape[2],
        d_out,
        layout="sequence-first",
        arguments=(Argument(first, "x", by_name=False),),
        notes=("its code takes the first axis of its input for the length",),
    )


def _by_itself(call: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether each sample has answers of its own at every position, the same wherever in the batch it stands."""
    twice = x.clone()
    twice[0] = x[1]
    try:
        with torch.no_grad():
            before, after = call(x), call(twice)
    except Exception:  # whatever a person's code raises
        return False
    if not (before.shape[:2] == after.shape[:2] == x.shape[:2]):
        return False
    return torch.allclose(before[1:], after[1:], atol=_SAME) and torch.allclose(after[0], after[1], atol=_SAME)


def _asked(probe: nn.Module, order: Order, offered: Mapping[str, Any]) -> Convention | None:
    """How a model wants to be called, found by calling it; None where a task of a person's own must know."""
    of_tokens, of_two = "d_in" not in offered or "vocab_size" in offered, "source_vocab_size" in offered
    causal = of_tokens and "d_out" not in offered  # no width of answers: they are the next tokens
    try:
        convention = _interviewed(probe, order, causal=causal, layout="batch first")
    except ModuleError:
        if sum(map(is_required, signature_of(probe.forward).values())) > 1 + of_two:
            return None
        raise
    if of_two and not _beside(convention):  # with the batch first its sides may be one
        with contextlib.suppress(ModuleError):
            other = _interviewed(probe, order, causal=causal, layout="length first")
            convention = other if _beside(other) else convention
    if (convention.takes == "tokens") != of_tokens or _beside(convention) > of_two:
        return None
    if _beside(convention) < of_two:
        raise ModuleError(f"{order.where}: it takes one sequence, {convention}, and this task gives two")
    masks = tuple(mask for mask in convention.masks if mask.encoding != PAD_TOKEN)
    # it finds padding in its data, of which nothing is replaced
    return replace(convention, masks=masks, pad_token=None)


def _interviewed(probe: nn.Module, order: Order, *, causal: bool, layout: str) -> Convention:
    """How a model wants to be called in a layout."""
    declared, text = Declared(causal=causal, layout=layout), text_of(classes_of(probe))
    return interview(Patient(order.where, probe, None, order.arguments, text, label_of(probe).file, declared=declared))


def _beside(convention: Convention) -> int:
    """How many sequences it takes beside the first."""
    return sum(one.source == _MEMORY for one in convention.arguments)
