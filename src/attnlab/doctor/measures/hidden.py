"""Parts a module holds without registering them: in plain lists, tuples, dicts, objects, or as plain tensors."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from attnlab.doctor.examination import Examination

_DEEPEST = 4  # lists of dicts of lists; deeper nesting is no way to keep layers
_PLUMBING = frozenset(vars(nn.Module()))  # `_parameters`, `_modules`, hooks: what every module has


@final
@dataclass(frozen=True)
class Hidden:
    """Say what is held where without being registered.

    Parameters
    ----------
    path : str
        Where it is kept, such as ``self.heads[0]``.
    numbers : int
        How many numbers that want a gradient it holds.
    what : str
        Name of its class.
    """

    path: str
    numbers: int
    what: str


def hidden_parts(module: nn.Module) -> list[Hidden]:
    """What would train but does not appear in ``module.parameters()``."""
    known = {id(parameter) for parameter in module.parameters()}
    modules = {id(part) for part in module.modules()}
    found: dict[int, Hidden] = {}
    for name, part in module.named_modules():
        prefix = f"self.{name}" if name else "self"
        for attribute, value in vars(part).items():
            if attribute in _PLUMBING:
                continue
            for path, thing in _walk(value, f"{prefix}.{attribute}", modules, _DEEPEST):
                numbers = sum(tensor.numel() for tensor in _trainable(thing) if not _comes_from(tensor, known))
                if numbers:
                    found.setdefault(id(thing), Hidden(path, numbers, type(thing).__name__))
    return list(found.values())


def _walk(value: Any, path: str, modules: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield tensors and unregistered modules inside a value, with their paths."""
    if isinstance(value, Tensor | nn.Module):
        if id(value) not in modules:
            yield path, value
        return
    if depth:
        for step, inner in _inside(value):
            yield from _walk(inner, path + step, modules, depth - 1)


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


def recomputed(exam: Examination) -> frozenset[str]:
    """The tensors among the attributes that a call computes anew from parameters.

    ``torch.nn.utils.weight_norm`` and ``spectral_norm`` keep such a ``weight``: what trains, moves and is saved is what
    it is computed from.
    """
    module = exam.copy()
    exam.run(exam.inputs(), module=module, grad=True)
    known = {id(parameter) for parameter in module.parameters()}
    return frozenset(
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor) and value.grad_fn is not None and _comes_from(value, known)
    )


def _trainable(thing: Tensor | nn.Module) -> list[Tensor]:
    tensors = [thing] if isinstance(thing, Tensor) else list(thing.parameters())
    return [tensor for tensor in tensors if tensor.requires_grad]


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


_WEIGHT = re.compile(
    r"^w$|^w_?[qkvo]\d?$|weight|kernel|proj|^(q|k|v|o|query|key|value|out)(_mat|_matrix|_w)?$", re.IGNORECASE
)


def plain_weights(module: nn.Module) -> list[Hidden]:
    """Tensors that are named and shaped as weights, but are neither parameters nor buffers."""
    found = []
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            is_plain = isinstance(value, Tensor) and value.grad_fn is None and not value.requires_grad
            if is_plain and value.is_floating_point() and value.dim() > 1 and _WEIGHT.search(attribute):
                path = f"self.{name}.{attribute}" if name else f"self.{attribute}"
                found.append(Hidden(path, value.numel(), "Tensor"))
    return found
