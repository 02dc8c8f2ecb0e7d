"""What a module holds without registering it: parts and tensors in attributes, lists, dicts, objects, closures."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from attnlab.doctor.examination import Examination

_DEEPEST = 4  # lists of dicts of lists; deeper nesting is no way to keep layers
_PLUMBING = frozenset(vars(nn.Module()))  # `_parameters`, `_modules`, hooks: what every module has


@final
@dataclass(frozen=True, eq=False)
class Unregistered:
    """Hold a tensor or a module that `parameters()`, `to` and `state_dict` do not see."""

    path: str  # where it is kept, such as ``self.heads[0]``
    attribute: str  # the attribute that leads to it, such as ``heads``
    thing: Tensor | nn.Module  # what is kept

    @property
    def is_attribute(self) -> bool:
        """Whether it is an attribute itself, and not inside of one."""
        return self.path.endswith(f".{self.attribute}")


def unregistered(module: nn.Module) -> Iterator[Unregistered]:
    """Find the tensors and modules in the attributes of a module and of its parts that are not registered."""
    registered = {id(thing) for thing in (*module.modules(), *module.parameters(), *module.buffers())}
    for name, part in module.named_modules():
        prefix = f"self.{name}" if name else "self"
        for attribute, value in vars(part).items():
            if attribute not in _PLUMBING:
                for path, thing in _walk(value, f"{prefix}.{attribute}", _DEEPEST):
                    if id(thing) not in registered:
                        yield Unregistered(path, attribute, thing)


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Yield the tensors and modules inside a value, with their paths."""
    if isinstance(value, Tensor | nn.Module):
        yield path, value
    elif depth:
        for step, inner in _inside(value):
            yield from _walk(inner, path + step, depth - 1)


def _inside(value: Any) -> list[tuple[str, Any]]:
    """The things a value holds, each with the step that leads to it."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", inner) for key, inner in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", inner) for index, inner in enumerate(value)]
    if isinstance(value, functools.partial):
        return [("(...)", inner) for inner in (*value.args, *value.keywords.values())]
    if getattr(value, "__closure__", None):
        return [("(...)", cell.cell_contents) for cell in value.__closure__ if _is_filled(cell)]
    own = type(value).__module__.partition(".")[0] not in {"builtins", "torch", "types", "weakref", "collections"}
    if own and not isinstance(value, type) and hasattr(value, "__dict__"):
        return [(f".{name}", inner) for name, inner in vars(value).items()]
    return []


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def untrained(module: nn.Module) -> Iterator[tuple[Unregistered, int]]:
    """Find what would train but does not appear in ``module.parameters()``, with how many numbers of it."""
    known, seen = {id(parameter) for parameter in module.parameters()}, set[int]()
    for kept in unregistered(module):
        tensors = [kept.thing] if isinstance(kept.thing, Tensor) else list(kept.thing.parameters())
        numbers = sum(one.numel() for one in tensors if one.requires_grad and not _comes_from(one, known))
        if numbers and id(kept.thing) not in seen:
            seen.add(id(kept.thing))
            yield kept, numbers


def plain_tensors(module: nn.Module) -> list[tuple[Unregistered, Tensor]]:
    """Find the tensors with axes that are neither parameters nor buffers."""
    return [
        (kept, kept.thing) for kept in unregistered(module) if isinstance(kept.thing, Tensor) and kept.thing.dim() > 0
    ]


def lasting_tensors(exam: Examination) -> list[tuple[Unregistered, Tensor]]:
    """Find the plain tensors of the patient that a call does not compute anew from parameters.

    ``torch.nn.utils.weight_norm`` and ``spectral_norm`` keep such a ``weight``: what trains, moves and is saved is what
    it is computed from.
    """
    plain = plain_tensors(exam.patient.module)
    if not plain:
        return []
    module = exam.copy()
    exam.run(exam.inputs(), module=module, grad=True)
    known = {id(parameter) for parameter in module.parameters()}
    after = plain_tensors(module)
    anew = {kept.path for kept, tensor in after if tensor.grad_fn is not None and _comes_from(tensor, known)}
    return [(kept, tensor) for kept, tensor in plain if kept.path not in anew]


def _comes_from(tensor: Tensor, known: set[int]) -> bool:
    """Whether a tensor is a registered parameter, or was computed from registered ones alone."""
    if tensor.grad_fn is None:
        return id(tensor) in known
    waiting, seen, leaves = [tensor.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaves += [node.variable] if hasattr(node, "variable") else []  # only the leaves of a graph have one
        waiting += [following for following, _ in node.next_functions]
    return all(id(leaf) in known for leaf in leaves)
