"""Measure whether translators to French know what "it" refers to, and whether a head shows it.

Use: ``python docs/measure_pronouns.py runs/head-worth-translation-small-en-fr/many-heads-a-layer``. Each sentence of
`PAIRS` is read twice: a last word makes "it" the first noun or the second, whose genders differ in French. What is
asked is by how much the log-odds of "elle" against "il" move with that word, and where heads of the encoder look from
"it". Numbers are means over runs, with 95 % intervals over them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attnlab.inspection import capture
from attnlab.studies.judge.statistics import compare
from attnlab.studies.using.parts import finished_runs
from attnlab.studies.using.trained import Trained, load_run

PRONOUNS = {"m": "il", "f": "elle"}


class Pair(NamedTuple):
    """Hold a sentence of two readings, and how its translation begins."""

    english: str
    nouns: tuple[str, str]
    genders: tuple[str, str]
    last: tuple[str, str]
    """Words with which "it" is the first noun, and the second."""
    french: str


PAIRS = [
    Pair("The animal didn't cross the street because it was too {}.", ("animal", "street"), ("m", "f"),
         ("tired", "wide"), "L'animal n'a pas traversé la rue parce qu'"),
    Pair("The dog does not jump over the fence because it is too {}.", ("dog", "fence"), ("m", "f"),
         ("old", "high"), "Le chien ne saute pas par-dessus la clôture parce qu'"),
    Pair("The horse does not pull the car because it is too {}.", ("horse", "car"), ("m", "f"),
         ("small", "full"), "Le cheval ne tire pas la voiture parce qu'"),
    Pair("The cat does not sit on the table because it is {}.", ("cat", "table"), ("m", "f"),
         ("running", "broken"), "Le chat n'est pas assis sur la table parce qu'"),
    Pair("The bird does not drink the water because it is {}.", ("bird", "water"), ("m", "f"),
         ("sleeping", "dirty"), "L'oiseau ne boit pas l'eau parce qu'"),
    Pair("The cow does not cross the bridge because it is {}.", ("cow", "bridge"), ("f", "m"),
         ("eating", "closed"), "La vache ne traverse pas le pont parce qu'"),
    Pair("The car does not cross the park because it is {}.", ("car", "park"), ("f", "m"),
         ("stopped", "crowded"), "La voiture ne traverse pas le parc parce qu'"),
    Pair("The ball does not go into the basket because it is too {}.", ("ball", "basket"), ("f", "m"),
         ("big", "full"), "La balle ne va pas dans le panier parce qu'"),
    Pair("The machine is not on the truck because it is too {}.", ("machine", "truck"), ("f", "m"),
         ("large", "crowded"), "La machine n'est pas sur le camion parce qu'"),
    Pair("The boat does not cross the street because it is in the {}.", ("boat", "street"), ("m", "f"),
         ("water", "city"), "Le bateau ne traverse pas la rue parce qu'"),
]  # fmt: skip
"""The first is the pair of the best-known introductions, the others are in words of the captions of multi30k."""
ALONE = [
    ("The {} is wet because it is in the water.", f"{article} {noun} est dans l'eau parce qu'", english, gender)
    for article, noun, english, gender in (
        ("Le", "chien", "dog", "m"), ("Le", "vélo", "bike", "m"), ("Le", "bateau", "boat", "m"),
        ("Le", "cheval", "horse", "m"), ("Le", "camion", "truck", "m"), ("Le", "ballon", "balloon", "m"),
        ("La", "voiture", "car", "f"), ("La", "balle", "ball", "f"), ("La", "table", "table", "f"),
        ("La", "vache", "cow", "f"), ("La", "moto", "motorcycle", "f"), ("La", "chaise", "chair", "f"),
    )
]  # fmt: skip
"""A sentence with one noun, its translation up to the pronoun, the noun, its gender."""


@torch.no_grad()
def log_odds(trained: Trained, english: str, french: str) -> float:
    """How much likelier "elle" is than "il" behind the begin of a translation, in nats."""
    codec: Any = trained.task.codec
    source = torch.tensor(codec.encode([english]))
    found = {}
    for gender, pronoun in PRONOUNS.items():
        (written,) = codec.encode([f"{french}{pronoun}"])
        inputs = torch.tensor([[codec.marks.begin, *written[:-1]]])
        chances = trained.model(source, inputs)[0].log_softmax(dim=-1)
        found[gender] = float(chances[range(len(written)), written].sum())
    return found["f"] - found["m"]


def places(trained: Trained, sentence: str, word: str) -> list[int]:
    """The tokens of a word of a sentence."""
    codec: Any = trained.task.codec
    offsets = codec.tokenizer.wrapped.encode(sentence, add_special_tokens=False).offsets
    begin = sentence.lower().index(f" {word}") + 1
    return [number for number, (low, high) in enumerate(offsets) if low < begin + len(word) and high > begin]


@torch.no_grad()
def looks(trained: Trained, sentence: str, nouns: Sequence[str]) -> dict[str, float]:
    """By head of the encoder, the share of the first noun in what "it" gives to both."""
    codec: Any = trained.task.codec
    with capture(trained.model) as trace:
        trained.model(torch.tensor(codec.encode([sentence])), torch.tensor([[codec.marks.begin]]))
    (query, *_) = places(trained, sentence, "it")
    first, second = (places(trained, sentence, noun) for noun in nouns)
    shares = {}
    for name, captured in trace.items():
        if name.startswith("encoder") and captured.weights is not None:
            for head, row in enumerate(captured.weights[0, :, query]):
                given = [float(row[keys].sum()) for keys in (first, second)]
                shares[f"{name}:{head}"] = given[0] / (sum(given) or 1.0)
    return shares


def measured(trained: Trained) -> dict[str, float]:
    """All numbers of a run."""
    right, moved, turned = [], [], []
    changes: dict[str, list[float]] = {}
    for pair in PAIRS:
        sentences = [pair.english.format(word) for word in pair.last]
        odds = [log_odds(trained, sentence, pair.french) for sentence in sentences]
        signs = [1 if gender == "f" else -1 for gender in pair.genders]
        right += [sign * one > 0 for sign, one in zip(signs, odds, strict=True)]
        moved.append(signs[0] * (odds[0] - odds[1]))
        turned.append(moved[-1] > 0)
        shares = [looks(trained, sentence, pair.nouns) for sentence in sentences]
        for head in shares[0]:
            changes.setdefault(head, []).append(shares[0][head] - shares[1][head])
    alone = [
        (1 if gender == "f" else -1) * log_odds(trained, english.format(noun), french) > 0
        for english, french, noun, gender in ALONE
    ]
    return {
        "one noun, share right": sum(alone) / len(alone),
        "two nouns, share right": sum(right) / len(right),
        "pairs that move the right way": sum(turned) / len(turned),
        "log-odds moved the right way, nats": sum(moved) / len(moved),
        **{f"{head} looks more at the noun meant": sum(some) / len(some) for head, some in sorted(changes.items())},
    }


def main(folder: str) -> None:
    """Print every number with its interval over runs."""
    (runs,) = finished_runs([Path(folder)]).values()
    found = [measured(load_run(run)) for run in runs]
    for name in found[0]:
        values = {seed: one[name] for seed, one in enumerate(found)}
        told = compare(values, dict.fromkeys(values, 0.0), better="higher")
        print(f"{name}: {told.difference:+.3f} ({told.low:+.3f} to {told.high:+.3f}; {len(found)} runs)")


if __name__ == "__main__":
    main(*sys.argv[1:])
