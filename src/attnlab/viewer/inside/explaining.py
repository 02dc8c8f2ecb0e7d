"""Why a token was predicted: layer by layer, part by part, and by what was read, beside where a head looked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import AttnlabError, DataError, SpecError
from attnlab.inspection import (
    ablate,
    agreement,
    gradient_times_input,
    integrated_gradients,
    logit_attribution,
    logit_lens,
)
from attnlab.models.decoding.writers import device_of
from attnlab.viewer.inside.reading import AbstractReader, Side

PARTS = 12
"""Parts of a logit that are told; the others as one."""
HIDDEN = 8
"""Keys that are hidden from a head one after another: those that it looks at most."""
FEWEST, ENOUGH_S = 2, 5.0
"""Keys that are hidden in any case, and seconds after which no more are: attention by hand is slow to change."""
NOTHING = 0.01  # nats: a change of a loss that nobody would see
STEPS, TOKENS = (8, 32), 4096
"""Of integrated gradients: the fewest and the most, and for how many tokens in all. Each costs what training does."""


@final
@dataclass(frozen=True)
class Chosen:
    """Hold the head whose weights are compared."""

    layer: str  # name of its attention
    head: int  # counted from 0
    weights: Float[Tensor, "q_len k_len"]  # of one sequence
    axes: Sequence[int | None]  # which sequence asks, which is looked at


@final
@dataclass(frozen=True)
class Prediction:
    """Hold one prediction of a model, and how it is made again."""

    model: nn.Module  # as it is now
    inputs: list[Tensor]  # by side
    query: int  # position of the last sequence at which it is made
    answer: int  # the same, counted among the model's answers
    token: int  # that is explained

    def chance(self) -> float:
        """Its log-probability, with whatever is changed now."""
        with torch.no_grad():
            return float(self.model(*self.inputs)[0, self.answer].float().log_softmax(dim=-1)[self.token])


def explanation(
    model: nn.Module,
    reader: AbstractReader,
    *,
    sides: Sequence[Side],
    logits: Float[Tensor, "answers vocab_size"],
    piece: int,
    chosen: Chosen | None,
) -> dict[str, Any]:
    """What a prediction is made of, and what it hangs on, as JSON types.

    Parameters
    ----------
    model : nn.Module
        Switched off in it is what shall be.
    reader : AbstractReader
        What tokens mean.
    sides : sequence of Side
        What the model read.
    logits : Tensor
        What it answered.
    piece : int
        Which piece of the last side is explained; one that nobody knows is taken to be the likeliest.
    chosen : Chosen, optional
        A head to compare with.

    Returns
    -------
    dict
        ``token`` and ``probability``. ``lens``: by layer, the embedding first, the token's probability if that were the
        last, and the likeliest token with its own. ``parts``: ``logit`` and what adds up to it, the largest first.
        ``inputs``: for the side that the head looks at, ``attention``, ``gradient`` and ``integrated`` by position, and
        ``tau``, how far their orders agree with that of attention. ``edges``: what hiding the keys that the head looks
        at most changes, and a ``sentence``. Each is ``{"error": sentence}`` where it cannot be told.

    Raises
    ------
    DataError
        If nothing was predicted there.
    """
    wanted = sides[-1].wanted
    query, answer = piece - 1, piece - 1 - (len(wanted) - len(logits))
    if not (reader.vocab_size and 0 <= answer < len(logits)):
        raise DataError("nothing was predicted there; choose a token that has a loss")
    known = wanted[query]
    token = int(logits[answer, : reader.vocab_size].argmax()) if known is None else known
    inputs = [one.to(device_of(model)) for one in reader.inputs(sides)]
    asked = Prediction(model, inputs, query, answer, token)
    told: dict[str, Any] = {"token": reader.pieces([token])[0], "probability": float(logits[answer].softmax(-1)[token])}
    told["lens"] = _or_error(lambda: list(_lens(asked, reader)))
    told["parts"] = _or_error(lambda: _parts(asked))
    if chosen is not None:
        told["inputs"] = _or_error(lambda: _inputs(asked, sides, chosen))
        told["edges"] = _or_error(lambda: _edges(asked, sides, chosen))
    return told


def _or_error(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except AttnlabError as error:
        return {"error": str(error)}


def _lens(asked: Prediction, reader: AbstractReader) -> Iterator[dict[str, Any]]:
    streams = logit_lens(asked.model, *asked.inputs)[:, 0, asked.answer].float()  # (streams, vocab_size)
    guesses = reader.guesses(streams, count=1)
    for row, chance in enumerate(streams.softmax(dim=-1)[:, asked.token].tolist()):
        ((guess, likeliest),) = guesses[row]
        yield {"layer": row, "probability": chance, "guess": guess, "likeliest": likeliest}


def _parts(asked: Prediction) -> dict[str, Any]:
    found = logit_attribution(asked.model, *asked.inputs, position=asked.answer, token=asked.token)
    values = {name: float(value) for name, value in found.parts.items()}
    ordered = sorted(values, key=lambda name: -abs(values[name]))
    parts = [{"name": name, "value": values[name]} for name in ordered[:PARTS]]
    if ordered[PARTS:]:
        parts.append({"name": f"{len(ordered) - PARTS} others", "value": sum(values[one] for one in ordered[PARTS:])})
    return {"logit": float(found.logit), "parts": parts}


def _inputs(asked: Prediction, sides: Sequence[Side], chosen: Chosen) -> dict[str, Any]:
    row, side = _row(asked, sides, chosen), chosen.axes[1] or 0
    where: Mapping[str, Any] = {"position": asked.answer, "token": asked.token, "of": side}
    fewest, most = STEPS
    steps = max(fewest, min(most, TOKENS // len(row)))
    scores = {
        "gradient": gradient_times_input(asked.model, *asked.inputs, **where),
        "integrated": integrated_gradients(asked.model, *asked.inputs, **where, steps=steps),
    }
    found = {name: one.scores[0].detach().float().cpu() for name, one in scores.items()}
    tau = {name: _tau(row, one) for name, one in found.items()}
    values = {name: one.tolist() for name, one in found.items()}
    return {"side": side, "attention": row.tolist(), **values, "tau": tau}


def _edges(asked: Prediction, sides: Sequence[Side], chosen: Chosen) -> dict[str, Any]:
    row, names = _row(asked, sides, chosen), sides[chosen.axes[1] or 0].pieces
    keys = [key for key in row.argsort(descending=True)[:HIDDEN].tolist() if row[key] > 0]
    before, began = asked.chance(), time.perf_counter()
    told: list[dict[str, Any]] = []
    while keys[len(told) :] and (len(told) < FEWEST or time.perf_counter() - began < ENOUGH_S):
        key = keys[len(told)]
        with ablate(asked.model, f"{chosen.layer}:{chosen.head}:{asked.query}->{key}", "hide"):
            told.append({"key": key, "weight": float(row[key]), "change": before - asked.chance()})
    changes = torch.tensor([one["change"] for one in told])
    return {"keys": told, "tau": _tau(row[keys[: len(told)]], changes), "sentence": _sentence(told, names)}


def _row(asked: Prediction, sides: Sequence[Side], chosen: Chosen) -> Float[Tensor, " k_len"]:
    """Where the head looked when the prediction was made."""
    if chosen.axes[0] != len(sides) - 1:
        raise SpecError(f"{chosen.layer} does not ask at the positions of what is predicted; choose another head")
    rows = len(sides[-1].inputs) - len(chosen.weights)  # a decoder may not ask at all of them
    if not asked.query - rows >= 0:
        raise SpecError(f"{chosen.layer} asks nothing at this position")
    return chosen.weights[asked.query - rows].detach().float().cpu()


def _tau(one: Tensor, other: Tensor) -> float | None:
    """Kendall's tau of absolute values; None where there is nothing to order."""
    try:
        return agreement(one, other).mean
    except SpecError:
        return None


def _sentence(told: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Whether what the head looks at most is what matters to the prediction."""
    if len(told) < 2:
        return "This head looks at a single key here, so there is no order to compare."

    def named(one: Mapping[str, Any]) -> str:
        return f"“{names[one['key']]}” ({one['key']})"

    most, strongest = told[0], max(told, key=lambda one: abs(one["change"]))
    if abs(strongest["change"]) < NOTHING:
        return (
            f"Attention and intervention disagree: it looks most at {named(most)}, yet hiding any of its {len(told)} "
            f"strongest keys changes the loss by less than {NOTHING} nats."
        )
    if most is strongest:
        return f"It looks most at {named(most)}, and hiding that changes the loss most: {_signed(most['change'])} nats."
    return (
        f"Attention and intervention disagree: it looks most at {named(most)}, yet hiding {named(strongest)} changes "
        f"the loss more, {_signed(strongest['change'])} nats against {_signed(most['change'])}."
    )


def _signed(change: float) -> str:
    return f"{round(change, 3) + 0:+.3f}".replace("-", "\N{MINUS SIGN}")
