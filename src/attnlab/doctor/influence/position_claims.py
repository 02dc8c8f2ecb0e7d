"""What of a patient is, by its name or its docstring, there to tell positions apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.constructors import signature_of
from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.differences import relative_change
from attnlab.strangers.loading.mentions import SWITCHED, use_of
from attnlab.strangers.said.topics import positions_said

_WORDS = frozenset((
    "alibi", "cos", "freqs", "pe", "pes", "pos", "posemb", "posenc", "position", "positional", "positions",
    "posn", "posns", "rope", "rotary", "sin", "sinusoid", "sinusoidal", "sinusoids", "timing", "wpe",
))  # fmt: skip
_PAIRS = (("inv", "freq"), ("rel", "bias"), ("relative", "bias"), ("rel", "emb"), ("relative", "embeddings"))
_OTHERWISE = frozenset((
    "conv", "fc", "feed", "ff", "ffn", "forward", "id", "ids", "idx", "index", "mask", "mlp", "net", "weight",
    "wise", "wisely",
))  # fmt: skip
"""Words that make a position's name something else: ``position_wise_feed_forward``, ``position_ids``."""
_BETWEEN = re.compile(r"[._\d]+|(?<=[a-z])(?=[A-Z])")
_TITLES = re.compile(r"Position(?!al?wise|wise)|Rotary|Sinusoid|R[oO]PE")


@final
@dataclass(frozen=True)
class Claims:
    """Hold what is there to tell positions apart."""

    tensors: tuple[str, ...]  # paths of parameters, buffers and plain tensors
    modules: tuple[str, ...]  # paths of submodules
    said: str  # words of names and docstrings that claim positions; nothing where none do

    @property
    def any(self) -> bool:
        """Whether positions are built or claimed."""
        return bool(self.tensors or self.modules or self.said)

    def of(self, words: str) -> bool:
        """Whether any claim or name contains one of these words (a regular expression)."""
        return bool(re.search(words, " ".join((self.said, *self.tensors, *self.modules)), re.IGNORECASE))


def claims_of(exam: Examination) -> Claims:
    """What a patient builds and claims."""
    module = exam.patient.module
    tensors = [path for path, _ in _tensors(module) if names_position(path) and not _is_optional(module, path)]
    modules = [
        name
        for name, part in module.named_modules()
        if name and _is_position_module(name, part) and _is_called(exam, name) and not _is_optional(module, name)
    ]
    return Claims(tuple(tensors), tuple(modules), "" if _left_out(exam) else " ".join(positions_said(module)))


def _left_out(exam: Examination) -> bool:
    """Whether the constructor asks for positions and was given none, so that its words are about another instance."""
    wanted, given = signature_of(type(exam.patient.module)), exam.patient.arguments
    asked = (given.get(name, one.default) for name, one in wanted.items() if names_position(name))
    return any(value is None or value is False for value in asked)


def _is_called(exam: Examination, name: str) -> bool:
    """Whether a submodule's `forward` runs, or nothing of it does: by other methods nothing can be tried."""
    called = any(call.name == name for call in exam.usual_tape.calls)
    return called or use_of(exam.patient.module, name) == "never"


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield floating parameters, buffers and plain tensors with their paths."""
    for name, part in module.named_modules():
        own = {**part._parameters, **part._buffers}
        own |= {key: value for key, value in vars(part).items() if isinstance(value, Tensor)}
        for key, value in own.items():
            if value is not None and value.numel() and (value.is_floating_point() or value.is_complex()):
                yield f"{name}.{key}" if name else key, value


def _tokens(path: str) -> list[str]:
    return [word.lower() for word in _BETWEEN.split(path) if word]


def names_position(path: str) -> bool:
    """Whether any part of a path is a usual name for positions."""
    return any(_names_position(_tokens(part)) for part in path.split("."))


def _names_position(words: Sequence[str]) -> bool:
    if set(words) & (_OTHERWISE - {"weight"}):
        return False
    return bool(set(words) & _WORDS) or any(set(pair) <= set(words) for pair in _PAIRS)


def _is_position_module(name: str, part: nn.Module) -> bool:
    title = type(part).__name__
    if set(_tokens(title)) & _OTHERWISE:
        return False
    return _names_position(_tokens(name.rpartition(".")[2])) or bool(_TITLES.search(title))


def _is_optional(module: nn.Module, path: str) -> bool:
    return use_of(module, path) in SWITCHED


def effect(exam: Examination, *, tensors: Sequence[str] = (), modules: Sequence[str] = ()) -> float:
    """How much the output changes, relative to its size, when parts that tell positions give something else."""
    x = exam.inputs(seed=60)
    before, after = exam.fresh(), exam.fresh()
    _disturb(after, tensors)
    for name in modules:
        after.get_submodule(name).register_forward_hook(_replaced)
    old, new = exam.run(x, module=before), exam.run(x, module=after)
    return relative_change(old, new)


def _disturb(module: nn.Module, paths: Sequence[str]) -> None:
    with torch.no_grad():
        for path in paths:
            owner, _, name = path.rpartition(".")
            tensor = getattr(module.get_submodule(owner), name)
            tensor.add_(_noise(tensor))


def _noise(like: Tensor) -> Tensor:
    """Random numbers, different in every place, of the size of a tensor's own or larger."""
    generator = torch.Generator().manual_seed(61)
    kind = torch.complex128 if like.is_complex() else torch.float64
    noise = torch.randn(like.shape, generator=generator, dtype=kind).to(like.dtype)
    spread = float(like.abs().float().mean()) if like.numel() else 0.0
    return noise * max(0.5, spread)


def _replaced(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    """What a submodule returned, plus noise in every floating tensor of it."""
    if isinstance(output, Tensor):
        return output + _noise(output) if output.is_floating_point() or output.is_complex() else output
    if isinstance(output, tuple):
        return tuple(_replaced(_module, None, one) for one in output)
    return output
