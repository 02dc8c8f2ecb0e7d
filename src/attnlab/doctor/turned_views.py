"""Whether a view puts the axes of a tensor in another order, by the names that the code itself gives them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.inspection.tape.tape import Event
from attnlab.strangers.said.source import is_torchs_own, parsed, source_of_forward

VIEWS_MOVE_NOTHING = "torch.Tensor.view: the order of elements stays, so axes cannot be exchanged; reczoo/FuxiCTR#30"
"""Source of findings about views that stand for a permutation."""
_VIEWS = ("view", "reshape")
_TEXT = FindingText(
    "error",
    "`{view}` does not exchange the axes ({axes}): every number stays where it is, and positions and features are"
    " scrambled.",
    "exchange axes by `permute` or `transpose`, x.permute(0, 3, 1, 2), and view afterwards",
    VIEWS_MOVE_NOTHING,
)


@final
@dataclass(frozen=True)
class TurnedView:
    """Hold a view of a tensor to its own axes in another order."""

    view: str  # the code
    axes: tuple[str, ...]  # as the tensor was taken apart
    order: tuple[int, ...]  # where each axis of the view stood before


def scrambled_axes(exam: Examination, check: str) -> Iterator[Finding]:
    """Yield an error for the first view of the patient that stands for a permutation, and was called as one."""
    for path, part in exam.eval_module.named_modules():
        for turned in turned_views(part):
            event = next(
                (one for one in exam.usual_tape.events if one.where == path and _is_call_of(one, turned)), None
            )
            if event is not None:
                before, after = tuple(event.inputs[0].shape), tuple(event.output.shape)
                evidence = (
                    f"{before} = ({', '.join(turned.axes)}) is viewed as {after}{f' in {path!r}' if path else ''}"
                )
                words = {"view": turned.view, "axes": ", ".join(turned.axes)}
                yield _TEXT.finding(check, evidence, words)
                return


def turned_views(module: nn.Module) -> list[TurnedView]:
    """The views in a module's ``forward`` to the axes that the same tensor was taken apart to, in another order."""
    source = "" if is_torchs_own(module) else source_of_forward(module)
    known: dict[str, list[str]] = {}
    return [found for function in parsed(source) for found in _in_order(getattr(function, "body", []), known)]


def _in_order(statements: Sequence[ast.stmt], known: dict[str, list[str]]) -> Iterator[TurnedView]:
    """Yield them statement by statement; what gets a new value is no longer known."""
    for statement in statements:
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if not any(inner):
            yield from (found for node in ast.walk(statement) if (found := _turned(node, known)) is not None)
        set_anew = {
            one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        for body in inner:
            yield from _in_order(body, known)
        for name in [name for name, axes in known.items() if {name, *axes} & set_anew]:
            del known[name]
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=axes)], value=ast.Attribute(value=ast.Name(id=name), attr="shape")):
                known[name] = [one.id for one in axes if isinstance(one, ast.Name)]
            case ast.Assign(
                targets=[ast.Tuple(elts=axes)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[]),
            ):
                known[name] = [one.id for one in axes if isinstance(one, ast.Name)]


def _turned(node: ast.AST, known: dict[str, list[str]]) -> TurnedView | None:
    """What a call views otherwise than it was taken apart, None where it does not."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=kind), args=given) if kind in _VIEWS:
            axes, names = known.get(name, []), [getattr(one, "id", "") for one in given]
            if axes != names and sorted(axes) == sorted(names) and len({*axes}) == len(axes):
                return TurnedView(ast.unparse(node), tuple(axes), tuple(axes.index(one) for one in names))
    return None


def _is_call_of(event: Event, turned: TurnedView) -> bool:
    """Whether an operation views a tensor so, and more than one of the axes that moved are longer than one."""
    if not event.inputs or event.inputs[0].dim() != len(turned.order):
        return False
    before = event.inputs[0].shape
    moved = [at for place, at in enumerate(turned.order) if place != at and before[at] > 1]
    as_viewed = tuple(before[at] for at in turned.order)
    return "view" in event.call and len(moved) > 1 and tuple(event.output.shape) == as_viewed
