"""The questions that a page asks about what it shows, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from attnlab.core.errors import RunError
from attnlab.inspection.interventions import How
from attnlab.viewer.inside.asked import asked_in, field
from attnlab.viewer.inside.kept import KeptMaps
from attnlab.viewer.inside.looking import ModelInView

Viewed = ModelInView | KeptMaps
Body = Mapping[str, Any]


class Answering(Protocol):
    """Answer questions about a model, in this process or in another."""

    def __call__(self, question: str, body: Body) -> dict[str, Any]:
        """The answer in JSON types; raise an `AttnlabError` where there is none."""


def answering(viewed: Viewed) -> Answering:
    """Answer from what is in this process."""
    return lambda question, body: QUESTIONS[question](viewed, body)


def _look(viewed: Viewed, body: Body) -> dict[str, Any]:
    return viewed.look(asked_in(body))


def _map(viewed: Viewed, body: Body) -> dict[str, Any]:
    layer, head = _head(body)
    return viewed.head_map(asked_in(body), layer, head, shown=field(body, "shown", str, "weights"))


def _write(viewed: Viewed, body: Body) -> dict[str, Any]:
    return _model(viewed).write(asked_in(body))


def _explain(viewed: Viewed, body: Body) -> dict[str, Any]:
    return _model(viewed).explain(asked_in(body), field(body, "piece", int, 0), *_head(body))


def _heads(viewed: Viewed, _: Body) -> dict[str, Any]:
    return _model(viewed).heads()


def _worth(viewed: Viewed, body: Body) -> dict[str, Any]:
    return _model(viewed).worth(field(body, "place", str, ""), cast(How, field(body, "how", str, "zero")))


def _cost(viewed: Viewed, body: Body) -> dict[str, Any]:
    return _model(viewed).cost(asked_in(body))


def _head(body: Body) -> tuple[str, int]:
    return field(body, "layer", str, ""), field(body, "head", int, 0)


def _model(viewed: Viewed) -> ModelInView:
    if isinstance(viewed, KeptMaps):
        raise RunError("the maps of this run were kept; there is no model to ask more than where it looked")
    return viewed


QUESTIONS: Mapping[str, Callable[[Viewed, Body], dict[str, Any]]] = {
    "look": _look,
    "map": _map,
    "write": _write,
    "explain": _explain,
    "heads": _heads,
    "worth": _worth,
    "cost": _cost,
}
MEASURED = ("heads", "worth", "cost")
"""Questions that are answered from held-out data and take longer than a person waits for a look."""
