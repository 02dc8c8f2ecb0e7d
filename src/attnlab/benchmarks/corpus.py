"""What a large parallel corpus costs: tokenizing it once, and each start of training afterwards."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TextIO

import numpy as np
import torch

from attnlab.benchmarks.measuring.growth import GrowthReport, GrowthRow, GrowthTable
from attnlab.core.machine import environment
from attnlab.models import EncoderDecoder
from attnlab.tasks.translation.translation import Translation

LINES = (10_000, 100_000, 1_000_000)
ROUNDS = 1
VOCAB, MAX_LENGTH, WIDTH, LAYERS = 8000, 128, 128, 4
WORDS = 20_000
"""Different words of a language; the n-th is n times rarer than the first (Zipf's law)."""
SHORTEST_WORD, LONGEST_WORD = 2, 10
SHORTEST_SENTENCE, LONGEST_SENTENCE = 6, 24
PAIR = ("en", "de")
AT_A_TIME = 10_000  # sentences that are written together
TOKENIZING, STARTING = "tokenizing, its BPE trained", "afterwards: a new process to its first training step"
STATUS = Path("/proc/self/status")
NO_PEAK = "only Linux tells a process its peak"
Phase = Callable[[Path], float | None]
"""Works on the corpus in a folder and returns the peak memory of its process in MiB, None where it is unknown."""


def bench_corpus(*, rounds: int = ROUNDS, lines: Sequence[int] = LINES) -> GrowthReport:
    """Measure what parallel corpora of random words take, from few lines to many."""
    phases: dict[str, Phase] = {TOKENIZING: _tokenize, STARTING: _start}
    seconds: dict[str, dict[int, tuple[float, ...]]] = {name: {} for name in phases}
    peaks: dict[str, dict[int, tuple[float, ...]]] = {name: {} for name in phases}
    for count, _ in itertools.product(lines, range(rounds)):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            _write_corpus(folder, count)
            for name, phase in phases.items():
                began = time.perf_counter()
                peak = _alone(phase, folder)
                seconds[name][count] = (*seconds[name].get(count, ()), time.perf_counter() - began)
                if peak is not None:
                    peaks[name][count] = (*peaks[name].get(count, ()), peak)
    tables = (
        GrowthTable("Seconds", "n", tuple(GrowthRow(name, row) for name, row in seconds.items()), places=1),
        GrowthTable("Peak memory of the process in MiB", "n", tuple(_peak_row(*row, lines) for row in peaks.items())),
    )
    notes = (
        f"sentences of {SHORTEST_SENTENCE} to {LONGEST_SENTENCE} words out of {WORDS:,} in each language, "
        f"{VOCAB:,} tokens; an encoder-decoder of {LAYERS} layers and width {WIDTH}",
        f"median of {rounds}",
    )
    return GrowthReport("a parallel corpus of n lines", tables, notes, environment())


def _peak_row(name: str, peaks: dict[int, tuple[float, ...]], lines: Sequence[int]) -> GrowthRow:
    return GrowthRow(name, peaks, {count: NO_PEAK for count in lines if count not in peaks})


def _alone(phase: Phase, folder: Path) -> float | None:
    """What a phase returns in a process of its own, whose memory holds nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(phase, folder).result()


def _tokenize(folder: Path) -> float | None:
    _task(folder)
    return _peak_mebibytes()


def _start(folder: Path) -> float | None:
    task = _task(folder)
    size = task.data.tokenizer.size
    model = EncoderDecoder(size, size, MAX_LENGTH, d_model=WIDTH, n_layers=LAYERS)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = task.train_batch(0, 0)
    task.loss(model(*batch.inputs), batch).backward()
    optimizer.step()
    return _peak_mebibytes()


def _task(folder: Path) -> Translation:
    os.environ["ATTNLAB_CACHE"] = str(folder / "cache")
    tokenizer = {"name": "bpe", "vocab_size": VOCAB}
    return Translation(str(folder / "pairs"), "-".join(PAIR), tokenizer=tokenizer, max_length=MAX_LENGTH)


def _peak_mebibytes() -> float | None:
    """The most memory that this process had so far."""
    found = (
        re.search(r"^VmHWM:\s*(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE) if STATUS.exists() else None
    )
    return None if found is None else int(found[1]) / 1024


def _write_corpus(folder: Path, lines: int) -> None:
    for number, language in enumerate(PAIR):
        with (folder / f"pairs.{language}").open("w", encoding="utf-8") as file:
            _write_sentences(file, lines, np.random.default_rng(number))


def _write_sentences(file: TextIO, lines: int, random: np.random.Generator) -> None:
    words = np.array(list(itertools.islice(_words(random), WORDS)))
    shares = 1.0 / np.arange(1, WORDS + 1)
    draw = functools.partial(random.choice, words, p=shares / shares.sum())
    for first in range(0, lines, AT_A_TIME):
        lengths = random.integers(SHORTEST_SENTENCE, LONGEST_SENTENCE + 1, min(AT_A_TIME, lines - first))
        ends = np.cumsum(lengths)
        drawn = draw(int(ends[-1])).tolist()
        file.writelines(
            f"{' '.join(drawn[end - length : end])}\n"
            for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
        )


def _words(random: np.random.Generator) -> Iterator[str]:
    """Yield different random words without end."""
    letters, seen = np.array(list("abcdefghijklmnopqrstuvwxyz")), set[str]()
    while True:
        word = "".join(random.choice(letters, random.integers(SHORTEST_WORD, LONGEST_WORD + 1)))
        if word not in seen:
            seen.add(word)
            yield word
