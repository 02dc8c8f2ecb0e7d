"""``attnlab bench``: attnlab beside its alternatives, measured in turn within one run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from attnlab.cli.words import Whole


def _measured(_: object) -> list[str]:
    """What can be measured."""
    from attnlab.benchmarks.catalog import ALL, BENCHMARKS

    return [*BENCHMARKS, ALL]


def bench(
    what: Annotated[str, Parameter(completer=_measured)],
    /,
    *,
    sizes: tuple[str, ...] = (),
    device: str = "cpu",
    rounds: Whole | None = None,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Measure attnlab beside its alternatives, in turn within one run.

    Parameters
    ----------
    what : str
        ``start``: importing and ``--help``. ``loop``: the training loop beside a bare one. ``train``: training steps of
        one decoder, beside torch, x-transformers, transformers and a loop by hand. ``seeds``: many seeds together,
        beside one after another. ``attention``: every part of attention, beside fused attention. ``translate``:
        beam search with keys and values kept and without, beside transformers. ``corpus``: tokenizing
        a parallel corpus of up to a million lines, and starting from it. ``scale``: one model on 1, 2 and 4 processes,
        or on all CUDA devices. ``table-1``: Table 1 of "Attention is all you need". ``all``: all of them; on a GPU
        without ``start`` and ``corpus``, which compute on the CPU alone.
    sizes : tuple of str
        Which sizes, where there is a choice; may be given several times. ``train``: a, b, c.
        ``seeds``: shapes-cnn, shapes-attention, a, b. ``scale``: a, b. All of them by default.
    device : str
        ``cpu``, ``cuda`` or ``cuda:1``.
    rounds : int, optional
        How often everything is measured; each benchmark has its own number.
    out : Path, optional
        Folder for results as JSON, ``DEVICE-NAME.json``.
    json : bool
        Print the results as JSON alone.

    Returns
    -------
    int
        0.
    """
    from attnlab.benchmarks.catalog import BENCHMARKS, BenchOptions, chosen
    from attnlab.cli.run import print_json

    options = BenchOptions(device, rounds)
    found = {}
    for name, size in chosen(what, sizes, device=device):
        content: dict[str, Any] = {"benchmark": name, "size": size, "results": []}
        label = "-".join(filter(None, (name, size)))
        found[label] = content
        for result in BENCHMARKS[name].measure(size, options):
            content["results"].append(result.to_json())
            if not json:
                print(f"{result}\n", flush=True)
            if out is not None:  # what was measured stays, whatever comes next
                _save(content, out, label)
    if json:
        print_json(found)
    return 0


def _save(content: dict[str, Any], folder: Path, label: str) -> None:
    """Write a benchmark's results under the name of the device they were measured on."""
    from attnlab.core.files import write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{_slug(content['results'])}-{label}.json", content)


def _slug(results: Iterable[dict[str, Any]]) -> str:
    """The name of the device as a part of a file name."""
    (device,) = {result["environment"]["device"] for result in results}
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
