"""A checkpoint on disk: its config, the model it describes, and its tensors, read one by one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnlab.core.errors import DataError, SpecError
from attnlab.core.files import read_json
from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.families import FAMILIES, Family
from attnlab.models.pretrained.tensors import HeadSizes, ways

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


@final
@dataclass(frozen=True)
class Checkpoint:
    """Hold a folder of transformers' form, opened."""

    folder: Path  # where it lies
    config: Mapping[str, Any]  # its file
    family: Family  # what is known of its kind
    files: Mapping[str, tuple[Path, str]]  # of each tensor by the table's name: its file, and its name there
    spec: Mapping[str, Any]  # the lab's model

    @property
    def sizes(self) -> HeadSizes:
        """The heads of its attention."""
        mixer = self.spec["mixer"]
        heads, n_heads = mixer.get("heads", {}), mixer["n_heads"]
        d_head = heads.get("d_head", self.spec["d_model"] // n_heads)
        return HeadSizes(n_heads, heads.get("n_kv_heads", n_heads), d_head)

    def tensor(self, name: str) -> Tensor:
        """A stored tensor, by the table's name."""
        path, stored = self.files[name]
        with safe_open(path, "pt") as file:
            return file.get_tensor(stored)

    def read(self, own: str) -> list[Tensor]:
        """The lab's tensor of a name from each place that stores it: one, where nothing is stored twice."""
        return [
            form.read([self.tensor(name) for name in names], self.sizes)
            for form, names in ways(self.family.tensors, own)
            if all(name in self.files for name in names)
        ]


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has what a checkpoint of transformers has."""
    return (folder / CONFIG).is_file() and next(folder.glob("*.safetensors*"), None) is not None


def open_checkpoint(name: str | Path) -> Checkpoint:
    """Open a checkpoint.

    Parameters
    ----------
    name : str or Path
        A folder with ``config.json`` and ``model.safetensors`` (or its parts and their index), or the name of a model
        that lies in Hugging Face's cache on this machine.

    Returns
    -------
    Checkpoint
        Nothing but the config and the names of tensors is read yet.

    Raises
    ------
    DataError
        If there is no such folder and no such name in the cache, or a file is missing or damaged.
    SpecError
        If its kind is not known, or its config has a field whose effect has no part here.
    """
    folder = _folder_of(name)
    config = _json(folder / CONFIG)
    kind = config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise SpecError(f"{folder / CONFIG} has model_type={kind!r}, which has no parts here; known: {known}")
    family = FAMILIES[kind]
    files = {family.named(stored): (path, stored) for stored, path in _files_of(folder).items()}
    found = Config(config, str(folder / CONFIG), files)
    architecture = (found.take("architectures") or list(family.architectures))[0]
    found.take("model_type")
    if architecture not in family.architectures:
        raise found.no_part("architectures", [architecture], f"one of {', '.join(family.architectures)}")
    spec = {**family.spec_of(found), **family.architectures[architecture]}
    found.check_rest(family.fixed, family.harmless)
    return Checkpoint(folder, config, family, files, spec)


def check_complete(checkpoint: Checkpoint, own: Mapping[str, Tensor]) -> None:
    """Raise a `DataError` that names what a checkpoint lacks of the lab's tensors, or has beside them."""
    tensors, known = checkpoint.family.tensors, set[str]()
    places: dict[int, list[str]] = {}
    for name, tensor in own.items():
        places.setdefault(id(tensor), []).append(name)
        known |= {stored for _, names in ways(tensors, name) for stored in names}
    complete = [
        any(all(stored in checkpoint.files for stored in names) for name in same for _, names in ways(tensors, name))
        for same in places.values()
    ]
    if lost := [same[0] for same, there in zip(places.values(), complete, strict=True) if not there]:
        wanted = [names[0] for one in lost for _, names in ways(tensors, one)[:1]]
        raise DataError(f"{checkpoint.folder} has no tensor {', '.join(wanted or lost)}; its config asks for it")
    unused = re.compile("|".join(checkpoint.family.unused) or r"(?!)")
    if left := sorted(name for name in checkpoint.files if name not in known and not unused.fullmatch(name)):
        raise DataError(f"{checkpoint.folder} has tensors that no part here takes: {', '.join(left)}")


def _folder_of(name: str | Path) -> Path:
    """The folder that is named, or the snapshot in Hugging Face's cache."""
    if (folder := Path(name).expanduser()).is_dir():
        return folder
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    kept = cache / f"models--{str(name).replace('/', '--')}"
    if (head := kept / "refs" / "main").is_file():
        return kept / "snapshots" / head.read_text(encoding="utf-8").strip()
    raise DataError(
        f"there is no folder {name}, and no model of that name in the cache {cache}; "
        f"fetch it with 'hf download {name}', or give a folder"
    )


def _json(path: Path) -> Any:
    """The content of a file that every checkpoint has."""
    if not path.is_file():
        raise DataError(f"{path.parent} is no checkpoint of transformers: it has no {path.name}")
    return read_json(path)


def _files_of(folder: Path) -> dict[str, Path]:
    """Every stored tensor, and the file it lies in."""
    if (folder / INDEX).is_file():
        return {stored: folder / file for stored, file in _json(folder / INDEX)["weight_map"].items()}
    if not (folder / WEIGHTS).is_file():
        raise DataError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}; weights in another form (pytorch_model.bin) are not read: "
            "save the model again with save_pretrained"
        )
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return dict.fromkeys(file.keys(), folder / WEIGHTS)
    except SafetensorError as error:
        raise DataError(f"{folder / WEIGHTS} is damaged: {error}; fetch it again") from error
