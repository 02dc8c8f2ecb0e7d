"""The card of an exported model: what it is, how to load it, and how it came to be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.core.errors import AttnlabError
from attnlab.inspection.cost import count_parameters
from attnlab.studies.exporting.inputs import example_inputs, longest_of, spec_of
from attnlab.studies.judge.collect import read_results
from attnlab.studies.report import tables, words
from attnlab.studies.report.markdown import emphasized, escape, table
from attnlab.studies.run.folder import RULES, STUDY, read_rules
from attnlab.studies.using.pretrained import NAME
from attnlab.studies.using.trained import Trained
from attnlab.tasks.translation.corpora import CORPORA
from attnlab.training.keeping.result import read_record

MACHINE_PATH = re.compile(r"(?<![\w:/.~])~?/(?:[^/\s,]+/)+")
"""The folders of a path on this machine, which mean nothing elsewhere."""
LOADED: Mapping[str, str] = {
    "torch-export": """\
import torch

program = torch.export.load("model.pt2").module()
inputs = [{torch_inputs}]
output = program(*inputs)""",
    "onnx": """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
inputs = [{numpy_inputs}]
names = [one.name for one in session.get_inputs()]
output = session.run(None, dict(zip(names, inputs)))[0]""",
    "huggingface": """\
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = {auto}.from_pretrained(".")
inputs = tokenizer({text!r}, return_tensors="pt")
written = model.generate(**inputs{limit})
print(tokenizer.decode(written[0], skip_special_tokens=True))""",
}
"""How the files of each target are read, in their folder."""


def card(trained: Trained, to: str, differences: Mapping[str, float]) -> str:
    """The text of ``README.md``."""
    spec, record = spec_of(trained), read_record(trained.folder) or {}
    model = type(trained.model).__name__
    origin = "read from a checkpoint" if trained.task.name == NAME else f"trained on the task `{trained.task.name}`"
    made = f"{count_parameters(trained.model):,} parameters, {origin}"
    checked = "; ".join(f"{difference:.2g} at {size}" for size, difference in differences.items())
    metrics = [(name, f"{value:.6g}") for name, value in record.get("metrics", {}).items()]
    blocks = [
        f"# {escape(_title(trained))}",
        f"A {model} of {made} by attnlab, and exported as {to}. Largest difference of its numbers from the trained "
        f"model's when the files were read again: {checked}.",
        "## How to load it",
        f"```python\n{_code(trained, to)}\n```",
        "## Data",
        _facts(_data(trained)),
        "## How it was trained",
        _facts({name: value for name, value in spec.items() if name != "task"} | {"task": spec["task"]}),
        *(["## What it reached", table(("metric", "value"), metrics)] if metrics else []),
        *_study(trained.folder.parent.parent),
        *(["## Made with", _facts(record["environment"])] if record.get("environment") else []),
    ]
    return "\n\n".join(blocks) + "\n"


def _title(trained: Trained) -> str:
    if trained.task.name == NAME:
        return trained.folder.resolve().name
    study, variant, seed = trained.folder.resolve().parts[-3:]
    return f"{study}: {variant}, {seed}"


def _facts(content: Mapping[str, Any]) -> str:
    """A nested mapping as a table; of paths on this machine the last name."""
    return table(("", ""), ([MACHINE_PATH.sub("", cell) for cell in row] for row in words.flat(content)))


def _data(trained: Trained) -> dict[str, Any]:
    """What identifies the data, with the license as its source states it."""
    data = dict(trained.task.data)
    corpus = CORPORA.get(data["corpus"]) if isinstance(data.get("corpus"), str) else None
    if corpus:
        data["license"] = next(iter(next(iter(corpus.parts.values())).values())).license
    return {"license": "not stated", **data}


def _study(folder: Path) -> list[str]:
    """Rules and verdicts of the study that a run belongs to; nothing for a run by itself."""
    if not (folder / STUDY).is_file() or not (folder / RULES).is_file():
        return []
    try:
        rules, results = read_rules(folder), read_results(folder)
    except AttnlabError as error:
        return ["## The study", escape(f"Its folder cannot be read: {error}")]
    keys = ("name", "verdict", "difference", "interval", "p", "reached", "seeds", "reason")
    judged = [[str(row[key]) for key in keys] for row in tables.verdicts(results)]
    return [
        "## The study and its verdicts",
        f"**{escape(results.question)}**",
        *map(emphasized, words.sentences(results)),
        table(("variant", "verdict", "difference", "interval", "p, adjusted", "reached", "seeds", "why"), judged),
        "## The rules, fixed before the first step",
        _facts(rules),
    ]


def _code(trained: Trained, to: str) -> str:
    """Lines that run in the folder of the files."""
    inputs = example_inputs(trained, 2, (7, 5))
    shapes = [(", ".join(map(str, one.shape)), str(one.dtype).removeprefix("torch.")) for one in inputs]
    codec: Any = trained.task.kept
    translates = codec is not None and codec.kind == "sentences"
    text = codec.vocabulary.symbols[-1] if codec is not None and codec.kind == "characters" else "two words"
    limit = "" if translates else f", max_new_tokens={min(20, (longest_of(trained) or 20) // 2)}"
    return LOADED[to].format(
        torch_inputs=", ".join(f"torch.ones({shape}, dtype=torch.{dtype})" for shape, dtype in shapes),
        numpy_inputs=", ".join(f"np.ones(({shape}), dtype=np.{dtype})" for shape, dtype in shapes),
        auto="AutoModelForSeq2SeqLM" if translates else "AutoModelForCausalLM",
        text=text,
        limit=limit,
    )
