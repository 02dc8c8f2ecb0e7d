"""Measure what a text far larger than memory costs: tokenized once, then trained from.

Use, on a quiet machine: ``python benchmarks/corpus_10gb.py --folder FOLDER``, with 21 GB of disk; writes
``corpus_10gb.json`` beside this file and the table of docs/data.md. The text is drawn from pairs of words that follow
each other in tinyshakespeare, so that it has any length and hardly repeats itself: how much it does is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "data.md"
BEGIN, END = "<!-- corpus: written by benchmarks/corpus_10gb.py -->\n", "<!-- end -->"
WALKS, WORDS = 2**13, 256  # that are drawn together, and of each of them: a passage of its own
LONGEST = 12  # letters of a word, with the blank behind it
ANY_WORD = 0.2  # of the words are drawn from all, whatever stands before: so that passages hardly repeat
STEPS, CONTEXT, BATCH, WIDTH, LAYERS = 200, 128, 32, 64, 2
EVERY_S = 0.2
MIB = 2**20


def write_corpus(file: Path, size_bytes: int, source: str) -> None:
    """Write a text of about so many bytes in which pairs of words are those of another text."""
    random = np.random.default_rng(0)
    words = [word for word in re.findall(rb"\S+\s*", source.encode("ascii")) if len(word) <= LONGEST]
    vocabulary, numbers = np.unique(words, return_inverse=True)  # padded with zeros
    spelled = np.vstack(
        (vocabulary.view(np.uint8).reshape(len(vocabulary), -1), np.zeros(vocabulary.itemsize, np.uint8))
    )
    spelled[-1, :2] = ord("\n")
    followers = numbers[1:][np.argsort(numbers[:-1], kind="stable")]
    first = np.searchsorted(np.sort(numbers[:-1]), np.arange(len(vocabulary) + 1))
    count = np.maximum(np.diff(first), 1)
    drawn = np.full((WORDS + 1, WALKS), len(vocabulary))  # the last row ends a passage
    with file.open("wb") as out:
        while out.tell() < size_bytes:
            draws = random.random((WORDS, WALKS), dtype=np.float32)
            drawn[0] = numbers[(draws[0] * len(numbers)).astype(np.int64)]
            for place in range(1, WORDS):
                draw, before = draws[place], drawn[place - 1]
                other = numbers[(draw / ANY_WORD * len(numbers)).astype(np.int64) % len(numbers)]
                after = first[before] + ((draw - ANY_WORD) / (1 - ANY_WORD) * count[before]).astype(np.int64)
                drawn[place] = np.where(draw < ANY_WORD, other, followers[np.minimum(after, len(followers) - 1)])
            letters = spelled[drawn.T.reshape(-1)].reshape(-1)
            out.write(letters[letters > 0])


def tokenize(text: str) -> dict[str, Any]:
    """Read the text into shards."""
    return {"data": _task(text).describe()}


def start(text: str) -> dict[str, Any]:
    """Make the first batch of a training that finds them."""
    return {"batch": list(_task(text).train_batch(0, 0).targets.shape)}


def judge(text: str) -> dict[str, Any]:
    """Find the n-gram floors and the overlap."""
    task = _task(text)
    floors = [
        f"{floor.name}: {floor.value:.4f} ({floor.source})" for floor in task.floors() if floor.metric == "val_loss"
    ]
    return {"floors": floors, "overlap": task.overlaps, "alarms": task.alarms()}


def train_some(text: str) -> dict[str, Any]:
    """Train a small decoder and evaluate it once."""
    import attnlab

    task = _task(text)
    model = attnlab.Decoder(**task.model_arguments(), d_model=WIDTH, n_layers=LAYERS)
    result = attnlab.train(model, task, attnlab.Recipe(budget={"steps": STEPS}, lr=2e-3, evaluate_every=STEPS))
    return {"training_s": result.seconds, "metrics": dict(result.metrics)}


PHASES: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "tokenized once": tokenize,
    "afterwards: a new process to its first batch": start,
    "floors and overlap": judge,
    f"{STEPS} steps and one evaluation": train_some,
}


def _task(text: str) -> Any:
    from attnlab.tasks.char_lm.char_lm import CharLM

    return CharLM(text, CONTEXT, batch=BATCH)


def measured(phase: Callable[[str], dict[str, Any]], text: str) -> dict[str, Any]:
    """What a phase returns in a process of its own, its seconds, and the most memory of it and its children."""
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=_answer, args=(phase, text, queue))
    began, peaks = time.perf_counter(), {"Pss": 0, "Pss_Anon": 0}
    process.start()
    while process.is_alive():
        now = [_memory(one) for one in _family(process.pid)]
        peaks = {name: max(peak, sum(one.get(name, 0) for one in now)) for name, peak in peaks.items()}
        process.join(EVERY_S)
    if process.exitcode:
        raise SystemExit(f"{phase.__name__} ended with exit code {process.exitcode}")
    return {
        "seconds": time.perf_counter() - began,
        "peak_pss_bytes": peaks["Pss"],
        "peak_anonymous_bytes": peaks["Pss_Anon"],
        "found": queue.get(),
    }


def _answer(phase: Callable[[str], dict[str, Any]], text: str, queue: Any) -> None:
    queue.put(phase(text))


def _family(process: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has ended
        return
    for child in children:
        yield from _family(int(child))


def _memory(process: int) -> dict[str, int]:
    """The proportional set size of a process in bytes: pages of files that it has mapped count, shared ones in part."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return {}
    return {name: int(size) * 1024 for name, size in re.findall(r"^(Pss|Pss_Anon): +(\d+) kB", text, re.MULTILINE)}


def table(found: Mapping[str, Any]) -> str:
    """What is shown of the measurements."""
    rows = []
    for name, one in found["phases"].items():
        peak, anonymous = (one[f"peak_{kind}_bytes"] / MIB for kind in ("pss", "anonymous"))
        rows.append(f"| {name} | {one['seconds']:.1f} | {peak:,.0f} | {anonymous:,.0f} |")
    pace = found["bytes"] / 1e6 / found["phases"]["tokenized once"]["seconds"]
    return "\n".join(
        (
            f"A text of {found['bytes'] / 1e9:.2f} GB on {found['cores']} cores ({found['environment']['cpu']}), "
            f"tokenized at {pace:.0f} MB/s{'; ' + found['note'] if 'note' in found else ''}:\n",
            "| | seconds | most memory, MiB | of it not of files, MiB |",
            "|---|---|---|---|",
            *rows,
            "",
        )
    )


def main() -> None:
    """Write the text, measure every phase, and write down what was found."""
    from attnlab.core.files import write_json
    from attnlab.core.machine import environment, usable_cores
    from attnlab.tasks.datasets import find_text

    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--folder", type=Path, required=True)
    words.add_argument("--bytes", type=int, default=10**10)
    words.add_argument("--results", type=Path, default=RESULTS)
    wanted = words.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    os.environ["ATTNLAB_CACHE"] = str(wanted.folder / "cache")
    text = wanted.folder / "text.txt"
    if not text.exists():
        write_corpus(text, wanted.bytes, Path(find_text("tinyshakespeare").files[0].path).read_text(encoding="utf-8"))
    found: dict[str, Any] = {"bytes": text.stat().st_size, "cores": usable_cores(), "environment": environment()}
    found["phases"] = {}
    for name, phase in PHASES.items():
        found["phases"][name] = measured(phase, str(text))
        print(name, json.dumps(found["phases"][name], indent=1), flush=True)
    found["stored_bytes"] = sum(one.stat().st_size for one in (wanted.folder / "cache" / "tokens").rglob("*.npy"))
    shutil.rmtree(wanted.folder)
    write_json(wanted.results, found)
    if wanted.results == RESULTS:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(found) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
