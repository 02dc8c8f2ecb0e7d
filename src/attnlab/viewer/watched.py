"""What a run sees inside its model while it trains: the looks among its records, as they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, final

from attnlab.studies.report.inside.watched import TITLES
from attnlab.training.keeping.runs import METRICS, lost_curve
from attnlab.viewer.curves import RecordsTail
from attnlab.viewer.states import state_of_run

LOOKS = 60
"""Most looks that a page begins with, spread evenly, the first and the last among them."""
MOST_KEPT = 1000
"""Looks that are kept in memory; of more every other one is dropped. A run of so many steps has 200."""

Look = tuple[int, dict[str, dict[str, list[float | None]]]]
"""Step; by quantity and layer a number of each head, or one of the layer; None where it was not finite."""
Change = dict[str, Any]


@final
class FollowedLooks:
    """Follow what is watched in a run, for any number of viewers.

    Parameters
    ----------
    folder : Path
        The run's folder; its file of records may come into being later, be damaged, replaced, or vanish.

    Notes
    -----
    A change is a mapping of JSON types: ``looks`` that are new, ``note`` (why something could not be seen), and, once
    all looks are told, ``state`` and ``trouble``. What a new viewer begins with has ``anew``, and ``titles`` of
    quantities in the order of the report.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._tail = folder, RecordsTail(folder / METRICS)
        self._looks: list[Look] = []
        self._said: Change = {"note": ""}
        self.look()

    def look(self) -> Change | None:
        """What has changed since the last look; None if nothing has."""
        before, stands = self._said, self._stands()
        lines, anew = self._tail.lines()
        if anew:
            self._looks = []
        records = [record for line in lines if b'"watch"' in line and (record := _record(line))]
        found = [(step, seen) for step, seen, _ in records]
        self._looks += found
        while len(self._looks) > MOST_KEPT:
            del self._looks[1:-1:2]
        note = next((note for *_, note in reversed(records) if note), before["note"])
        self._said = {**before, "note": note, **({} if lines else stands)}
        if anew:
            return self.everything()
        return (self._said if self._said != before else {}) | ({"looks": found} if found else {}) or None

    def everything(self) -> Change:
        """All that is known, as the change that a new viewer begins with."""
        apart = max(1, (len(self._looks) - 1) / (LOOKS - 1))
        shown = [self._looks[round(place * apart)] for place in range(min(len(self._looks), LOOKS))]
        return {"anew": True, "titles": TITLES, "looks": shown, **self._said}

    def _stands(self) -> Change:
        if self._folder.is_dir():
            return {"state": state_of_run(self._folder), "trouble": lost_curve(self._folder)}
        return {"state": "stopped", "trouble": f"the folder {self._folder.name} is not there any more"}


def _record(line: bytes) -> tuple[int, dict[str, Any], str] | None:
    """Step, look and note of a record; None where it is damaged."""
    try:
        record = json.loads(line)
        watch = record["watch"]
        seen = {
            quantity: {layer: _numbers(value) for layer, value in watch[quantity].items()}
            for quantity in TITLES.keys() & watch.keys()
        }
        return int(record["step"]), seen, str(watch.get("note", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _numbers(value: Any) -> list[float | None]:
    """One number a head, or that of the layer."""
    return [None if one is None else float(one) for one in (value if isinstance(value, list) else [value])]
