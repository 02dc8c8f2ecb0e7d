"""What a run saw inside its model while it trained: the looks among its records, as curves by layer and head."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnlab.studies.report.inside.watched import TITLES
from attnlab.training.keeping.runs import METRICS
from attnlab.viewer.curves import DIGITS, MOST_BYTES

LOOKS = 60
"""Most looks that are drawn, spread evenly, the first and the last among them."""


def watched(folder: Path) -> dict[str, Any]:
    """What was watched in a run, as JSON types.

    Parameters
    ----------
    folder : Path
        The run's folder; it may be training.

    Returns
    -------
    dict
        ``quantities``: in the order of the report each with ``title`` and ``layers``, of every layer ``name`` and
        ``curves``, one a head, of [step, value]; None where a value was not finite. ``note``: why something could not
        be seen. Empty where nothing was watched.
    """
    looks = list(_looks(folder / METRICS))
    step = max(1, (len(looks) - 1) / (LOOKS - 1))
    shown = [looks[round(place * step)] for place in range(min(len(looks), LOOKS))]
    found = [{"title": title, "layers": _layers(shown, quantity)} for quantity, title in TITLES.items()]
    note = next((look["note"] for _, look in looks if "note" in look), "")
    return {"quantities": [one for one in found if one["layers"]], "note": note}


def _looks(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The looks among the last records of a file that may grow, be damaged, or not be there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        if b'"watch"' in line:
            try:
                record = json.loads(line)
                yield int(record["step"]), dict(record["watch"])
            except (ValueError, TypeError, KeyError):  # half written
                continue


def _layers(looks: list[tuple[int, Mapping[str, Any]]], quantity: str) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for _, look in looks for name in look.get(quantity, {}))
    return [{"name": name, "curves": _curves(looks, quantity, name)} for name in names]


def _curves(looks: list[tuple[int, Mapping[str, Any]]], quantity: str, layer: str) -> list[list[list[Any]]]:
    """A curve for each head, or one for the layer."""
    rows = [(step, look[quantity][layer]) for step, look in looks if layer in look.get(quantity, {})]
    values = [(step, value if isinstance(value, list) else [value]) for step, value in rows]
    count = max(len(value) for _, value in values)
    return [[[step, _short(value[head])] for step, value in values if head < len(value)] for head in range(count)]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
