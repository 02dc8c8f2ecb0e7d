"""What ``attnlab bench`` can measure, by name; nothing heavy is imported before it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

from attnlab.core.errors import SpecError, nearest


class BenchResult(Protocol):
    """What a benchmark ends with; printed, it is read by a person."""

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON types, with the ``kind`` of result, a ``title``, and the ``environment``."""
        ...


@final
@dataclass(frozen=True)
class BenchOptions:
    """Say how to measure.

    Raises
    ------
    SpecError
        If there are less than one round, or the device is not there.
    """

    device: str = "cpu"  # ``cpu``, ``cuda`` or ``cuda:1``
    rounds: int | None = None  # how often everything is measured; None leaves it to the benchmark

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 1:
            raise SpecError(f"--rounds must be at least 1; got {self.rounds}")
        if self.device != "cpu":
            _require(self.device)

    def given(self) -> dict[str, Any]:
        """The arguments that every benchmark with a device takes, those that were given."""
        return {"device": self.device, **self.given_rounds()}

    def given_rounds(self) -> dict[str, Any]:
        """The one argument that every benchmark takes, if it was given."""
        return {} if self.rounds is None else {"rounds": self.rounds}


def _require(device: str) -> None:
    """Check that a device other than the CPU is there."""
    import torch

    kind = device.partition(":")[0]
    if kind != "cuda":
        raise SpecError(f"--device must be cpu, cuda or cuda:N; got '{device}'")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = device.partition(":")[2] or "0"
    if not number.isdigit() or int(number) >= count:
        raise SpecError(f"--device {device}: torch finds {count} CUDA devices on this machine")


@final
@dataclass(frozen=True)
class Benchmark:
    """Name one benchmark."""

    summary: str  # what it measures
    measure: Callable[[str, BenchOptions], Iterator[BenchResult]]
    """From a size and options to results, one after another."""
    sizes: tuple[str, ...] = ("",)  # what it can be measured at; one empty name where there is no choice
    cpu_only: bool = False  # whether nothing of it would run on another device


def _start(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.start import bench_start

    del size
    yield bench_start(**options.given_rounds())


def _loop(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.loop import bench_loop

    del size
    yield bench_loop(**options.given())


def _train(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.training import bench_training

    yield from bench_training(size, **options.given())


def _seeds(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.seeds import bench_seeds

    yield from bench_seeds(size, **options.given())


def _attention(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks import attention

    del size
    yield from attention.bench_layer(**options.given())
    yield attention.bench_window(**options.given())
    yield attention.bench_additive_memory(device=options.device)
    yield attention.bench_attention(**options.given())


def _translate(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.translating import bench_translating

    del size
    yield bench_translating(**options.given())


def _corpus(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.corpus import bench_corpus

    del size
    yield bench_corpus(**options.given_rounds())


def _table_1(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.table_1 import bench_table_1

    del size
    yield bench_table_1(**options.given())


def _scale(size: str, options: BenchOptions) -> Iterator[BenchResult]:
    from attnlab.benchmarks.scale import bench_scale

    yield from bench_scale(size, **options.given())


BENCHMARKS: Mapping[str, Benchmark] = {
    "start": Benchmark("importing attnlab and its --help, beside Python and torch alone", _start, cpu_only=True),
    "loop": Benchmark("the training loop, beside a bare loop of the same model", _loop),
    "train": Benchmark("training steps of one decoder, by attnlab and by its alternatives", _train, ("a", "b", "c")),
    "seeds": Benchmark(
        "many seeds together, beside one after another", _seeds, ("shapes-cnn", "shapes-attention", "a", "b")
    ),
    "attention": Benchmark("every score, mask, normalizer and heads layout, beside fused attention", _attention),
    "translate": Benchmark("beam search with keys and values kept and without, beside transformers", _translate),
    "corpus": Benchmark(
        "tokenizing parallel corpora of up to a million lines, and each start afterwards", _corpus, cpu_only=True
    ),
    "scale": Benchmark("one model on several devices: strong and weak scaling", _scale, ("a", "b")),
    "table-1": Benchmark("Table 1 of 'Attention is all you need', measured", _table_1),
}
"""Benchmarks by name, the quickest first."""

ALL = "all"


def chosen(name: str, sizes: tuple[str, ...] = (), *, device: str = "cpu") -> list[tuple[str, str]]:
    """What to measure."""
    if name == ALL:
        if sizes:
            raise SpecError("--sizes goes with one benchmark; got all of them")
        there = {each: one for each, one in BENCHMARKS.items() if device == "cpu" or not one.cpu_only}
        return [(each, size) for each, benchmark in there.items() for size in benchmark.sizes]
    if name not in BENCHMARKS:
        raise SpecError(f"unknown benchmark '{name}'; {nearest(name, [*BENCHMARKS, ALL])}")
    benchmark = BENCHMARKS[name]
    if benchmark.cpu_only and device != "cpu":
        raise SpecError(f"benchmark '{name}' computes on the CPU alone; leave out --device")
    if sizes and benchmark.sizes == ("",):
        raise SpecError(f"benchmark '{name}' has no sizes to choose from; leave out --sizes")
    unknown = [size for size in sizes if size not in benchmark.sizes]
    if unknown:
        raise SpecError(f"bench {name} has no sizes '{unknown[0]}'; {nearest(unknown[0], benchmark.sizes)}")
    return [(name, size) for size in sizes or benchmark.sizes]
