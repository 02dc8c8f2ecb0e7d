"""Export the model of a run: the files of a target, a tokenizer, and a card that says where it comes from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import tokenizers as hf
from tokenizers import decoders, models, normalizers

from attnlab.core.errors import RunError
from attnlab.core.files import new_name, replace_folder, write_json, write_text, writing
from attnlab.core.sizes import require_known
from attnlab.models.from_checkpoint import TOKENIZER
from attnlab.studies.exporting.card import card
from attnlab.studies.exporting.huggingface import write_huggingface
from attnlab.studies.exporting.programs import write_onnx, write_torch_export
from attnlab.studies.using.trained import Trained
from attnlab.tasks.codecs import Codec

Written = Mapping[str, float]
"""By what was tried, the largest difference between what the files compute and what the model does."""
TARGETS: Mapping[str, Callable[[Trained, Path], Written]] = {
    "torch-export": write_torch_export,
    "onnx": write_onnx,
    "huggingface": write_huggingface,
}
CARD = "README.md"
UNKNOWN = "\ufffd"  # as the vocabulary of a text has it


@final
@dataclass(frozen=True)
class Exported:
    """Hold where a model was written to, and how exact that is."""

    folder: Path  # that holds the files
    differences: Written  # from the model, after reading the files again


def export(trained: Trained, *, to: str, out: Path) -> Exported:
    """Write a trained model in a form that is used without attnlab.

    Parameters
    ----------
    trained : Trained
        From `load_run`; on the CPU.
    to : {"torch-export", "onnx", "huggingface"}
        ``model.pt2`` for `torch.export.load`, ``model.onnx``, or a checkpoint for ``from_pretrained`` of transformers.
    out : Path
        A folder that is not there yet, or empty.

    Returns
    -------
    Exported
        The folder, and how far what was read back from it is from the model.

    Raises
    ------
    SpecError
        If there is no such target, a library for it is missing, or a part of the model has no form there.
    RunError
        If the folder holds anything.
    ModuleError
        If the exported model gives other numbers than the model.
    """
    require_known("target", to, tuple(TARGETS))
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} is there already and not an empty folder; choose another with --out")
    new = new_name(out)
    with writing(out.parent):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
    try:
        differences = TARGETS[to](trained, new)
        tokenizer = _tokenizer_of(trained.task.kept)
        if tokenizer is not None:
            write_json(new / TOKENIZER, tokenizer)
        write_text(new / CARD, card(trained, to, differences))
        with writing(out.parent):
            replace_folder(new, out)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return Exported(out, differences)


def _tokenizer_of(codec: Codec | None) -> dict[str, Any] | None:
    """The content of ``tokenizer.json``; None where models do not read text."""
    if codec is None or codec.kind == "numbers":
        return None
    if codec.kind != "characters":
        return codec.tokenizer.to_json()
    numbers = {symbol: number for number, symbol in enumerate(codec.vocabulary.symbols)}
    unknown = {} if UNKNOWN not in numbers else {"unk_token": UNKNOWN}
    wrapped = hf.Tokenizer(models.BPE(numbers, [], **unknown))
    wrapped.normalizer = normalizers.Sequence(
        [normalizers.Replace("\r\n", "\n"), normalizers.Replace("\r", "\n"), normalizers.NFC()]
    )
    wrapped.decoder = decoders.Fuse()
    return json.loads(wrapped.to_str())
