"""A model as a program for inputs of any number and length: torch's, and ONNX's."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from attnlab.core.errors import SpecError
from attnlab.studies.exporting.inputs import Inputs, difference_of, example_inputs, longest_of, size_of
from attnlab.studies.using.trained import Trained

Run = Callable[[Inputs], Tensor]

PROGRAM, ONNX = "model.pt2", "model.onnx"
NEEDED = ("onnx", "onnxscript", "onnxruntime")
RECORDED = (2, (7, 5))
"""Sequences and lengths of the inputs that a program is made with; of one input the first length."""
TRIED = ((3, (13, 4)), (1, (3, 11)))
"""Those that it is tried with."""
WHY_NOT: Mapping[str, str] = {
    "LSTM": "torch records as many steps as the example has",
    "GRU": "torch records as many steps as the example has",
    "GRUCell": "it is called once for every position of the example",
    "Fastformer": "its causal form doubles a span until it covers the example",
    "ByteNet": "it unfolds a source to a length that is rounded, and compares it with that of the translation",
    "MendedModel": "a fault is removed operation by operation while it runs",
    "MendedMixer": "a fault is removed operation by operation while it runs",
}
"""Parts, by the names of their classes, of which no program can be made that takes other lengths."""


def write_torch_export(trained: Trained, folder: Path) -> dict[str, float]:
    """Write ``model.pt2``, and say how far it is from the model, at lengths that it was not made with."""
    torch.export.save(_program(trained), folder / PROGRAM)
    run = torch.export.load(folder / PROGRAM).module()
    return _differences(trained, lambda inputs: run(*inputs))


def write_onnx(trained: Trained, folder: Path) -> dict[str, float]:
    """Write ``model.onnx``, and say how far onnxruntime's numbers are from the model's, at two lengths."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SpecError(f"to export to onnx, {', '.join(missing)} must be installed: pip install 'attnlab[export]'")
    program = _program(trained)
    try:
        with _quiet():
            made = torch.onnx.export(program, dynamo=True, verbose=False, output_names=["output"])
            made.save(folder / ONNX)  # pyrefly: ignore
    except torch.onnx.errors.OnnxExporterError as error:
        raise SpecError(
            f"{_called(trained)} has no form in ONNX: {_shortened(error)}; export to torch-export"
        ) from error
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> Tensor:
        given = {one.name: x.numpy() for one, x in zip(session.get_inputs(), inputs, strict=True)}
        return torch.from_numpy(session.run(None, given)[0])

    return _differences(trained, run)


def _program(trained: Trained) -> ExportedProgram:
    """The model's operations, for every number of sequences and every length that the model has positions for."""
    inputs = example_inputs(trained, *RECORDED)
    names = ["length"] if len(inputs) == 1 else ["source_length", "target_length"]
    batch, longest = Dim("batch"), longest_of(trained)
    shapes = tuple({0: batch, 1: Dim(name, max=longest) if longest else Dim(name)} for name in names)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(trained.model, inputs, dynamic_shapes=shapes)
    except Exception as error:  # torch raises errors of many kinds, some of them assertions
        raise _refusal(trained, error) from error
    return program


def _differences(trained: Trained, run: Run) -> dict[str, float]:
    """The largest difference from the model for each of two inputs."""
    found = {}
    for batch, lengths in TRIED:
        inputs = example_inputs(trained, batch, lengths)
        with torch.no_grad():
            expected = trained.model(*inputs)
        try:
            got = run(inputs)
        except Exception as error:  # as above, at a length that turned out to be another
            raise _refusal(trained, error) from error
        found[size_of(inputs)] = difference_of(trained, inputs, got, expected)
    return found


def _refusal(trained: Trained, error: Exception) -> SpecError:
    """What to say of a model that torch cannot record: by name where the part is known."""
    for name, module in trained.model.named_modules():
        why = WHY_NOT.get(type(module).__name__)
        if why:
            where = f"{type(module).__name__} ({name})" if name else type(module).__name__
            return SpecError(f"{where} has no program for inputs of other lengths: {why}; use the run with attnlab")
    return SpecError(
        f"{_called(trained)} has no program for inputs of other lengths, says torch.export: {_shortened(error)}"
    )


def _called(trained: Trained) -> str:
    return f"{type(trained.model).__name__} of {trained.folder}"


def _shortened(error: Exception) -> str:
    """The sentence that says most: the first of the cause."""
    words = str(error.__cause__ or error).strip() or type(error).__name__
    return re.split(r"(?<=[.!])\s|\n", words, maxsplit=1)[0][:300]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let torch's exporters keep their progress and their hints to developers to themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
