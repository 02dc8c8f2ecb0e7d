"""Train the models of the library on one, two and four devices, and compare the losses step by step.

Use: ``python benchmarks/devices.py``, with tinyshakespeare, Multi30k and CRAFT in ``$ATTNLAB_DATA`` or fetched; writes
``devices.json`` beside this file and a table into ``docs/devices.md``. A device is a process on the CPU with one
thread, numbers are of float64: there a difference in what is computed stands out from how sums are rounded.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from attnlab.core.build import build
from attnlab.core.contracts import Batch
from attnlab.core.errors import AttnlabError
from attnlab.core.files import write_json
from attnlab.core.machine import environment
from attnlab.models import MODELS
from attnlab.tasks import TASKS
from attnlab.training import Recipe, on_devices, train

RESULTS = Path(__file__).resolve().parent / "devices.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "devices.md"
BEGIN, END = "<!-- devices: written by benchmarks/devices.py -->\n", "<!-- end of devices -->"

# Every batch has four rows at least: fewer cannot be divided among four devices.
TEXT = {"name": "char-lm", "text": "tinyshakespeare", "context": 16, "batch": 8}
SHAPES = {"name": "shapes", "n_train": 200, "n_test": 8, "batch": 8}
PAIRS = {
    "name": "translation",
    "corpus": "multi30k",
    "tokenizer": {"name": "bpe", "vocab_size": 500},
    "batch_tokens": 512,
    "beam": None,
}
TREES = {
    "name": "parsing",
    "treebank": "craft",
    "tokenizer": {"name": "bpe", "vocab_size": 500},
    "batch_tokens": 128,
    "max_length": 30,
    "judged_trees": 4,
}
HEADS = {"name": "attention", "n_heads": 2, "dropout": 0.1}
SMALL = {"d_model": 16, "n_layers": 2, "dropout": 0.1, "mixer": HEADS}
RECURRENT = {"d_model": 16, "n_layers": 2, "dropout": 0.1}
GRAMMAR = {"splits": 1, "split_every": 500, "n_rules": 64}

CASES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "decoder": (SMALL, TEXT),
    "encoder": (SMALL, SHAPES),
    "cnn": ({"channels": 8, "kernel_size": 3, "n_layers": 3}, SHAPES),
    "lstm": ({"hidden": 8}, SHAPES),
    "lstm-batch-as-time": ({"hidden": 8}, SHAPES),
    "encoder-decoder": (SMALL, PAIRS),
    "transformer-base": (SMALL, PAIRS),
    "transformer-big": (SMALL, PAIRS),
    "rnn-additive": ({"d_model": 16, "dropout": 0.1}, PAIRS),
    "rnn-multiplicative": ({"d_model": 16, "dropout": 0.1}, PAIRS),
    "deep-att": (RECURRENT, PAIRS),
    "gnmt": (RECURRENT, PAIRS),
    "convs2s": (RECURRENT, PAIRS),
    "bytenet": ({"d_model": 16, "n_sets": 1, "dilations": [1, 2]}, PAIRS),
    "self-attentive-parser": ({**SMALL, "d_span": 8}, TREES),
    "shift-reduce": ({"beam": 4, "features": 4096}, TREES),
    "rnng": ({"d_model": 16, "n_layers": 1, "dropout": 0.1}, TREES),
    "rnng-generative": ({"d_model": 16, "n_layers": 1, "dropout": 0.1}, TREES),
    "latent-pcfg": (GRAMMAR, TREES),
    "reranked-pcfg": ({**GRAMMAR, "listed_every": 24}, TREES),
}
"""Arguments of each model, and its task; but `token-encoder`, which reads tables, and what is made of other models."""
COUNTS = (1, 2, 4)
STEPS = 200
OPTIMIZERS = ("adamw", "muon")
NEAR = 1e-9
"""Relative; float64 rounds by 1e-16."""


class InFloat64:
    """Give the batches of a task in float64, and judge nothing: training losses are what is compared."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def train_batch(self, step: int, seed: int) -> Batch:
        """The task's batch."""
        return in_float64(self.task.train_batch(step, seed))

    def evaluate(self, *_: Any) -> dict[str, float]:
        """Nothing."""
        return {one.name: 0.0 for one in self.metrics}


def in_float64(batch: Batch) -> Batch:
    """A batch whose numbers that are no whole ones are of float64."""
    inputs = tuple(one.double() if one.is_floating_point() else one for one in batch.inputs)
    targets = batch.targets.double() if batch.targets.is_floating_point() else batch.targets
    return Batch(inputs, targets)


@functools.cache
def task_of(asked: str) -> Any:
    """The task of a specification, made once."""
    return build(json.loads(asked), TASKS, axis="task")


def losses_of(name: str, dropout: bool, optimizer: str, devices: int) -> dict[str, Any]:
    """The training losses of one run, or why it cannot be."""
    sizes, asked = CASES[name]
    if not dropout:
        heads = {"mixer": {**HEADS, "dropout": 0.0}} if "mixer" in sizes else {}
        sizes = {**sizes, **heads, "dropout": 0.0}
    fields = {"budget": {"steps": STEPS}, "lr": 1e-3, "optimizer": optimizer, "clip": 1.0, "compile": False}
    try:
        task = task_of(json.dumps(asked))
        torch.manual_seed(0)
        model = build({"name": name, **sizes}, MODELS, axis="model", offered=task.model_arguments()).double()
        recipe = Recipe.parse({**fields, "devices": devices, "sharding": "none"})
        result = train(model, InFloat64(task), recipe, seed=1)
    except AttnlabError as error:
        return {"refused": str(error)}
    losses = [record["train_loss"] for record in result.curve if "train_loss" in record]
    return {"losses": losses, "said": result.environment.get("division", "")}


def all_losses(wanted: list[tuple[str, bool, str]], devices: int) -> list[dict[str, Any]]:
    """What `losses_of` gives for one case after the other."""
    whole = mock.patch.object(torch.Tensor, "float", torch.Tensor.double)  # tasks count losses in float32
    with contextlib.redirect_stderr(io.StringIO()), whole:
        return [losses_of(*case, devices) for case in wanted]


def compared(found: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """By number of devices how far the losses of any step lie from those of one device, relative to them."""
    alone, row = found[1], {}
    for count, one in found.items():
        if refused := one.get("refused", alone.get("refused")):
            row[str(count)] = refused
        elif count > 1:
            pairs = list(zip(alone["losses"], one["losses"], strict=True))
            if not all(math.isfinite(loss) for pair in pairs for loss in pair):
                raise SystemExit("a loss is not finite: nothing can be compared")
            row[str(count)] = max(abs(a - b) / max(abs(a), abs(b), 1e-300) for a, b in pairs)
            row["draws differ"] = "random numbers are others" in one["said"]
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was found, as Markdown, and why something was refused."""
    lines = ["| model | task | optimizer | dropout | 2 devices | 4 devices |", "| --- | --- | --- | --- | --- | --- |"]
    refused: dict[str, None] = {}
    for row in rows:
        found = [row[str(count)] for count in COUNTS[1:]]
        drawn = ("others, as its result says" if row["draws differ"] else "0.1") if row["dropout"] else "none"
        cells = " | ".join(map(shown, found))
        lines.append(f"| {row['model']} | {row['task']} | {row['optimizer']} | {drawn} | {cells} |")
        refused |= {f"- {row['model']}, {row['optimizer']}: {one}": None for one in found if isinstance(one, str)}
    said = ["", "Refused, in the program's words:", "", *refused] if refused else []
    return "\n".join([*lines, *said]) + "\n"


def shown(difference: float | str) -> str:
    """A difference as it stands in the table."""
    return "refused" if isinstance(difference, str) else "equal to the bit" if difference == 0 else f"{difference:.0e}"


def rows_of(wanted: list[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    """What was found of each case, on every number of devices."""
    if not wanted:
        return []
    found = {count: on_devices(count, all_losses, wanted, count) for count in COUNTS}
    rows = []
    for number, (name, dropout, kind) in enumerate(wanted):
        sizes, task = CASES[name]
        compare = compared({count: some[number] for count, some in found.items()})
        known = {"model": name, "task": task["name"], "optimizer": kind, "dropout": dropout and "dropout" in sizes}
        rows.append({**known, "draws differ": False, **compare})
    return rows


def is_far(difference: float | str) -> bool:
    """Whether a difference is more than rounding, so that runs without dropout have to say whether it is dropout's."""
    return not isinstance(difference, str) and difference > NEAR


def both_ways(names: list[str]) -> list[dict[str, Any]]:
    """What was found of some models with dropout, and without where its random numbers are others."""
    rows = rows_of([(name, True, kind) for name in names for kind in OPTIMIZERS])
    far = {row["model"] for row in rows if row["dropout"] and any(is_far(row[str(count)]) for count in COUNTS[1:])}
    return rows + rows_of([(name, False, OPTIMIZERS[0]) for name in names if name in far])


def main() -> None:
    """Train all on every number of devices, task by task, write down how far they lie apart, and fill in the page."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--only", nargs="*", default=list(CASES), help="other models keep their rows")
    asked = words.parse_args()
    for task in dict.fromkeys(task["name"] for _, task in CASES.values()):
        names = [name for name in asked.only if CASES[name][1]["name"] == task]
        kept = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
        rows = [row for row in kept if row["model"] not in names] + (both_ways(names) if names else [])
        rows.sort(key=lambda row: list(CASES).index(row["model"]))
        print(table([row for row in rows if row["model"] in names]))
        write_json(RESULTS, {"steps": STEPS, "rows": rows, "environment": environment()})
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}{table(rows)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
