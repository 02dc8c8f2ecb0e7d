"""The submodules of a patient that see later positions by themselves, and the patient without that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.doctor.examination import Examination

_LEAST = 1e-5  # of the largest output: below lies rounding


def parts_that_see_ahead(exam: Examination) -> list[str]:
    """The innermost submodules that see later positions by themselves."""
    seeing = _Parts(exam).that_see_ahead()
    return [name for name in seeing if not any(other.startswith(f"{name}.") for other in seeing)]


def without_sight_ahead(exam: Examination, names: Sequence[str]) -> nn.Module:
    """A copy of the patient in which these submodules give each position what they give with zeros behind it."""
    module = exam.fresh()
    for name in names:
        hook = partial(_causal, exam.convention.length)
        module.get_submodule(name).register_forward_hook(hook, with_kwargs=True)
    return module


@final
class _Parts:
    """The first call of each submodule."""

    def __init__(self, exam: Examination) -> None:
        self._length = exam.convention.length
        self._calls: dict[str, tuple[Any, ...]] = {}
        module = exam.fresh()
        named = [(name, part) for name, part in module.named_modules() if name]
        handles = [part.register_forward_hook(partial(self._note, name), with_kwargs=True) for name, part in named]
        exam.run(exam.inputs(), module=module)
        for handle in handles:
            handle.remove()

    def _note(self, name: str, *call: Any) -> None:
        self._calls.setdefault(name, call)

    def that_see_ahead(self) -> list[str]:
        """Those that give something else for earlier positions when later ones are zero."""
        return [name for name, call in self._calls.items() if self._sees_ahead(*call)]

    def _sees_ahead(self, part: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> bool:
        try:
            with torch.no_grad():
                causal = _causal(self._length, part, given, named, output)
        except (RuntimeError, ValueError, TypeError):  # it wants more than zeros
            return False
        before, after = (_first(one) for one in (output, causal))
        return after is not before and float((after - before).abs().max()) > _LEAST * float(before.abs().max())


def _causal(length: int, part: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> Any:
    """What a submodule gives where each position is computed with zeros behind it; as it is where none has a place."""
    x, before = next(iter(given), None), _first(output)
    along, beside = _axis(x, length), _axis(before, length)
    if x is None or along is None or beside is None:
        return output
    rows = []
    for place in range(length):
        hidden = x.clone()
        hidden.narrow(along, place + 1, length - 1 - place).zero_()
        rows.append(_first(part.forward(hidden, *given[1:], **named)).select(beside, place))
    causal = torch.stack(rows, beside)
    return (causal, *output[1:]) if isinstance(output, tuple) else causal


def _axis(x: Any, length: int) -> int | None:
    """Along which axis of (batch, length, d_model), in any order, positions lie; None where that cannot be told."""
    told = isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3 and list(x.shape).count(length) == 1
    return list(x.shape).index(length) if told else None


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) and output else output
