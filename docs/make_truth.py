"""Simulate studies whose truth is known, and write how often their verdicts err: ``python docs/make_truth.py``.

Every study goes through the functions that judge real ones. The table stands in ``docs/verdicts.md``; ``make truth``
makes it anew, ``tests/studies/test_truth.py`` a short form of it.

Some of the noise is real: ``docs/pools/NAME.yaml`` trains one variant 800 times, ``NAME.json`` holds what came of it.
Anew: ``attnlab run docs/pools/NAME.yaml --out pools/NAME``, then ``python docs/make_truth.py pools/NAME``.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnlab.core.contracts import Metric
from attnlab.studies.define.looks import Seeds, levels_of, looks_of
from attnlab.studies.judge.luck import Tuned
from attnlab.studies.judge.verdicts import Look, Verdict, verdicts

PAGE = Path(__file__).resolve().parent / "verdicts.md"
POOLS = PAGE.parent / "pools"
BEGIN, END = "<!-- truth: written by docs/make_truth.py -->\n", "<!-- end of truth -->\n"
METRIC = Metric("loss", "nats", "lower")
ERROR, WRONG_SIGN, MISSED, MOST_COVERAGE = 0.05, 0.01, 0.06, 0.96
"""Aims: shares of studies with a wrong word, a wrong sign, an interval without the truth; an interval of one comparison
should not be wider than it need be either."""
STUDIES = {1: 5_000, 4: 2_000, 19: 500}
"""Simulated studies of a row, by its number of comparisons, which is what they cost."""
REPEATS = 100
MOST_SEEDS, EFFECT = 100, 0.1
"""Of a study that is begun anew as another one advised, and the smallest effect of interest, in standard deviations."""
DESIGNS: tuple[int | Seeds, ...] = (3, 5, Seeds(at_least=3, at_most=20))
RATES, CURVATURE = 5, 2.0
"""A grid of tuning: how many values, and how much is lost one of them away from the best, in standard deviations."""
BASELINE, ALONE = "baseline", "a fifth stuck, but none of the baseline's"

Drawn = tuple[np.ndarray, Sequence[Tuned]]
Noise = Callable[[np.random.Generator, tuple[int, int]], np.ndarray | Drawn]
"""Draws the metric of (variants, seeds) around zero, NaN for a run that failed; and what tuning tried, if it did."""


def normal(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Every variant alike."""
    return generator.standard_normal(shape)


def unequal(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Every variant with a spread of its own: the logarithms of the spreads have a standard deviation of 1."""
    return generator.standard_normal(shape) * np.exp(generator.standard_normal((shape[0], 1)))


def heavy(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Heavy tails."""
    return generator.standard_t(3, shape)


def skewed(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A long tail on the side of high losses."""
    return np.exp(generator.standard_normal(shape)) - np.exp(0.5)


def plateau(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A fifth of the runs get stuck five standard deviations above the others; the mean is still zero."""
    return generator.standard_normal(shape) + 5 * (generator.random(shape) < 0.2) - 1.0


def stuck_alone(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A fifth of the runs get stuck, twenty standard deviations above, but none of the baseline; means are still zero."""
    found = generator.standard_normal(shape)
    found[1:] += 20 * (generator.random((shape[0] - 1, shape[1])) < 0.2) - 4.0
    return found


def failing(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """A tenth of the runs fail."""
    return np.where(generator.random(shape) < 0.1, np.nan, generator.standard_normal(shape))


def tuned(generator: np.random.Generator, shape: tuple[int, int]) -> Drawn:
    """Every variant as good at its best value, and run at the one that tuning chose: one run each, two once more."""
    values = np.arange(RATES) - RATES // 2 + generator.uniform(-0.5, 0.5, (shape[0], 1))
    lost = CURVATURE * values**2
    lost -= lost.min(axis=1, keepdims=True)
    first = lost + generator.standard_normal(lost.shape)
    again = np.argsort(first, axis=1)[:, :2]
    second = np.take_along_axis(lost, again, 1) + generator.standard_normal(again.shape)
    means, runs = first.copy(), np.ones_like(first, dtype=int)
    np.put_along_axis(means, again, (np.take_along_axis(first, again, 1) + second) / 2, 1)
    np.put_along_axis(runs, again, 2, 1)
    chosen = np.where(runs == 2, means, np.inf).argmin(axis=1)
    drawn = lost[np.arange(len(lost)), chosen][:, None] + generator.standard_normal(shape)
    return drawn, [_tuned(*each) for each in zip(chosen, means, runs, drawn, strict=True)]


def _tuned(chosen: int, means: np.ndarray, runs: np.ndarray, drawn: np.ndarray) -> Tuned:
    """What tuning tried for one variant."""
    by_value = ({str(n): of.item() for n, of in enumerate(each)} for each in (means, runs))
    return Tuned(str(chosen), *by_value, dict(enumerate(drawn.tolist())), METRIC.better)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "normal, unequal spreads": unequal,
    "t with 3 degrees of freedom": heavy,
    "lognormal": skewed,
    "a fifth stuck": plateau,
    ALONE: stuck_alone,
    "a tenth failing": failing,
    "normal, each tuned": tuned,
}


def values_of(pool: Path) -> np.ndarray:
    """The runs of a pool, in its mean and standard deviation."""
    values = np.array(json.loads(pool.read_text(encoding="utf-8"))["values"])
    return (values - values.mean()) / values.std(ddof=1)


def drawn_from(pool: Path) -> Noise:
    """Real runs of one variant, each used once in a study."""
    values = values_of(pool)

    def draw(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return generator.choice(values, shape, replace=False)

    return draw


@dataclass(frozen=True)
class Cell:
    """Hold how one kind of study errs, as shares of studies."""

    noise: str
    seeds: int | Seeds
    comparisons: int
    wrong_difference: float  # any "better" or "worse" where nothing differs
    wrong_equivalence: float  # any "equivalent" where all differ by exactly the smallest effect
    coverage: float  # all intervals contain the true difference
    wrong_sign: float  # any "better" where all are worse, by half a standard deviation
    studies: int  # simulated


def looks_for(seeds: int | Seeds, comparisons: int) -> list[Look]:
    """The looks of a study with so many comparisons."""
    looks = looks_of(seeds)
    levels = levels_of(looks, comparisons, ERROR)
    return [Look(*each) for each in zip(looks, levels, strict=True)]


def study(
    values: np.ndarray,
    looks: Sequence[Look],
    smallest_effect: float = 0.0,
    tuning: Sequence[Tuned] = (),
    *,
    advise: bool = False,
) -> tuple[Verdict, ...]:
    """Judge made-up runs: the metric of (variants, seeds), the baseline first, NaN where a run failed."""
    names = [BASELINE, *(f"variant {index}" for index in range(1, len(values)))]
    runs: Mapping[str, dict[int, float | None]] = {
        name: {seed: None if np.isnan(v) else float(v) for seed, v in enumerate(row)}
        for name, row in zip(names, values, strict=True)
    }
    contrasts = [(name, BASELINE) for name in names[1:]]
    return verdicts(
        runs,
        contrasts,
        metric=METRIC,
        smallest_effect=smallest_effect,
        looks=looks,
        tuned=dict(zip(names, tuning, strict=False)),
        advise=advise,
    )


def runs_drawn(noise: Noise, generator: np.random.Generator, shape: tuple[int, int]) -> Drawn:
    """The runs of a study, and what tuning tried."""
    found = noise(generator, shape)
    return found if isinstance(found, tuple) else (found, ())


def cell(noise: str, seeds: int | Seeds, comparisons: int, *, studies: int) -> Cell:
    """Simulate studies of one kind: without a difference, with all at the edge of mattering, and with all worse."""
    generator, looks = np.random.default_rng(comparisons), looks_for(seeds, comparisons)
    wrong = np.zeros(4)
    for _ in range(studies):
        values, tuning = runs_drawn(NOISES[noise], generator, (comparisons + 1, looks[-1].seeds))
        found = study(values, looks, tuning=tuning)
        wrong[0] += any(one.verdict in ("better", "worse") for one in found)
        wrong[2] += any(one.comparison.low is not None and not _holds(one, 0.0) for one in found)
        edge, worse = values.copy(), values.copy()
        edge[1:] += 1.0
        worse[1:] += 0.5
        wrong[1] += any(one.verdict == "equivalent" for one in study(edge, looks, 1.0, tuning))
        wrong[3] += any(one.verdict == "better" for one in study(worse, looks, tuning=tuning))
    shares = wrong / studies
    return Cell(noise, seeds, comparisons, shares[0], shares[1], 1 - shares[2], shares[3], studies)


def _holds(one: Verdict, truth: float) -> bool:
    low, high = one.comparison.low, one.comparison.high
    return low is not None and high is not None and low <= truth <= high


def alike() -> tuple[int, int]:
    """Judge real studies of one variant under two names: how many there are, and how many said *better* or *worse*.

    No run is in two of them.
    """
    looks = looks_for(DESIGNS[-1], 1)
    pools = [values_of(pool).reshape(-1, 2, looks[-1].seeds) for pool in sorted(POOLS.glob("*.json"))]
    words = [study(pair, looks)[0].verdict for pair in np.concatenate(pools)]
    return len(words), sum(word != "undecided" for word in words)


def library_effects() -> list[list[tuple[float, float]]]:
    """Of each study in docs/studies every difference and the smallest effect, in standard deviations of differences.

    The largest of many observed effects flatter: each is taken at three quarters of its size.
    """
    studies = []
    for path in sorted(PAGE.parent.glob("studies/*/report.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        found = []
        for one in (one for one in report["verdicts"] if one["verdict"] != "exploratory"):
            values = {each["name"]: each["metrics"][one["metric"]]["values"] for each in report["variants"]}
            pairs = zip(values[one["variant"]], values[one["baseline"]], strict=False)  # of the same seeds
            differences = np.array([a - b for a, b in pairs if a is not None and b is not None])
            spread = differences.std(ddof=1) if len(differences) > 1 else 0.0
            if spread > 0:
                found.append((0.75 * differences.mean() / spread, report["rules"]["smallest_effect"] / spread))
        studies.append(found)
    return [found for found in studies if found]


def decided(seeds: int | Seeds, *, studies: int, each_tuned: bool = False) -> tuple[float, float]:
    """The share of the library's comparisons that such rules would decide, and the seeds of each, on average."""
    generator, words, looks_taken = np.random.default_rng(0), [], []
    for effects in library_effects():
        looks = looks_for(seeds, len(effects))
        for (effect, smallest), _ in itertools.product(effects, range(studies)):
            values, tuning = runs_drawn(tuned if each_tuned else normal, generator, (2, looks[-1].seeds))
            apart = math.sqrt(2)  # standard deviations of a variant in one of differences
            values[1] += effect * apart
            tuning = [*tuning[:1], *(_moved(one, effect * apart) for one in tuning[1:])]
            (one,) = study(values, looks, smallest * apart, tuning)
            words.append(one.verdict != "undecided")
            looks_taken.append(one.look)
    return float(np.mean(words)), float(np.mean(looks_taken))


def _moved(one: Tuned, by: float) -> Tuned:
    """A variant that is worse by so much, tuned alike."""
    means = {name: None if mean is None else mean + by for name, mean in one.means.items()}
    return replace(one, means=means, values={seed: value + by for seed, value in one.values.items()})


def begun_anew(seeds: int | Seeds, *, studies: int) -> float:
    """The share of single comparisons of equals with a word, where a study is begun anew as the first one advises."""
    generator, looks, wrong = np.random.default_rng(0), looks_for(seeds, 1), 0
    for _ in range(studies):
        values = normal(generator, (2, MOST_SEEDS))
        (first,) = study(values[:, : looks[-1].seeds], looks, EFFECT, advise=True)
        last = first
        if first.verdict == "undecided" and (first.seeds_needed or 0) > looks[-1].seeds:
            (last,) = study(values[:, : first.seeds_needed], looks_for(first.seeds_needed or 0, 1), EFFECT)
        wrong += last.verdict in ("better", "worse")
    return wrong / studies


def aims_met(one: Cell) -> tuple[bool, bool, bool, bool]:
    """Which of the four shares are as they should be, or miss it by no more than two standard errors."""

    def few(share: float, most: float) -> bool:
        return share <= most + 2 * math.sqrt(most * (1 - most) / one.studies)

    missed = 1 - one.coverage
    exact = one.comparisons > 1 or few(one.coverage, MOST_COVERAGE)
    return (
        few(one.wrong_difference, ERROR),
        few(one.wrong_equivalence, ERROR),
        few(missed, MISSED) and exact,
        few(one.wrong_sign, WRONG_SIGN),
    )


def table(cells: Sequence[Cell]) -> str:
    """The table of the page."""
    lines = [
        "| seeds differ by | seeds | comparisons | studies | any wrong better or worse | any wrong equivalent | "
        "all intervals hold | any better that is worse |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in cells:
        shares = (one.wrong_difference, one.wrong_equivalence, one.coverage, one.wrong_sign)
        marks = ["" if met else "**" for met in aims_met(one)]
        told = [f"{mark}{share:.1%}{mark}" for share, mark in zip(shares, marks, strict=True)]
        of = f"{_named(one.seeds)} | {one.comparisons} | {one.studies:,}"
        lines.append(f"| {one.noise} | {of} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def library_table() -> str:
    """What the effects that the library's studies found would need, were three quarters of them true."""
    head = "comparisons of the library decided | seeds of a variant, on average"
    lines = [f"| seeds | {head} | with all variants tuned: decided | seeds |", "|---|---|---|---|---|"]
    for seeds in DESIGNS:
        found = [decided(seeds, studies=REPEATS, each_tuned=each) for each in (False, True)]
        told = " | ".join(f"{share:.0%} | {taken:.1f}" for share, taken in found)
        lines.append(f"| {_named(seeds)} | {told} |")
    return "\n".join(lines) + "\n"


def anew_table() -> str:
    """How often a word comes of a study and of one that is begun anew because the first one left it open."""
    lines = ["| seeds of the first study | a word of the first or of the second |", "|---|---|"]
    lines += [f"| {_named(seeds)} | {begun_anew(seeds, studies=STUDIES[1]):.1%} |" for seeds in DESIGNS]
    return "\n".join(lines) + "\n"


def _named(seeds: int | Seeds) -> str:
    return str(seeds) if isinstance(seeds, int) else f"{seeds.at_least} to {seeds.at_most}"


def keep_pool(folder: Path) -> None:
    """Put the runs of a study of one variant into the docs."""
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    (variant,) = report["variants"]
    metric = report["rules"]["metric"]
    values = variant["metrics"][metric]["values"]
    kept = {"metric": metric, "values": [round(value, 6) for value in values]}
    (POOLS / f"{folder.name}.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")


def real_noises() -> dict[str, Noise]:
    """The noise of each pool."""
    return {f"800 runs on {path.stem}": drawn_from(path) for path in sorted(POOLS.glob("*.json"))}


def row(kind: tuple[str, int | Seeds, int]) -> Cell:
    """Simulate one row of the table."""
    NOISES.update(real_noises())
    found = cell(*kind, studies=STUDIES[kind[-1]])
    print(found, file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Keep the pools that are given, then simulate every cell and write the page."""
    for folder in sys.argv[1:]:
        keep_pool(Path(folder))
    kinds = list(itertools.product([*NOISES, *real_noises()], DESIGNS, STUDIES))
    with ProcessPoolExecutor() as processes:
        cells = list(processes.map(row, kinds))
    write(cells)


def write(cells: Sequence[Cell]) -> None:
    """Write the page anew."""
    page = PAGE.read_text(encoding="utf-8")
    words = "Shares of simulated studies; in bold what misses its aim by more than two standard errors.\n\n"
    studies, differing = alike()
    real = (
        f"Of {studies} studies of one real variant under two names, {_named(DESIGNS[-1])} seeds each and no run in\n"
        f"two of them, {differing} said *better* or *worse*.\n\n"
    )
    text = words + table(cells) + "\n" + real + library_table() + "\n" + anew_table()
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + text + page[page.index(END) :], "utf-8")


if __name__ == "__main__":
    main()
