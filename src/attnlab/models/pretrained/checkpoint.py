"""A checkpoint on disk: its config, the model it describes, and its tensors, read one by one."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnlab.core.errors import DataError, RunError, SpecError, text_of
from attnlab.core.files import read_json, user_path, without_remedy
from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.families import FAMILIES, Family
from attnlab.models.pretrained.tensors import HeadSizes, ways

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
WEIGHT_TYPES = ("F64", "F32", "F16", "BF16")
"""What safetensors calls the numbers that are weights as they stand; others need a scale that is not read."""
MISREAD = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError, MemoryError)
"""What Python and torch raise where a file holds something else than it should."""


@final
class Stored(NamedTuple):
    """Say where a tensor is stored, and what the header of its file says of it.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Its name there.
    shape : tuple of int
        Its sizes.
    kind : str
        Of its numbers, in the words of safetensors.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: str


@final
@dataclass(frozen=True)
class Checkpoint:
    """Hold a folder of transformers' form, opened."""

    folder: Path  # where it lies
    config: Mapping[str, Any]  # its file
    family: Family  # what is known of its kind
    files: Mapping[str, Stored]  # of each tensor by the table's name
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
        stored = self.files[name]
        with safe_open(stored.path, "pt") as file:
            found = file.get_tensor(stored.name)
        if found.isnan().any():
            raise DataError(f"{stored.path} has numbers in '{stored.name}' that are none (NaN); fetch it again")
        return found

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
        Nothing but the config and the headers of the files of weights is read yet.

    Raises
    ------
    DataError
        If there is no such folder and no such name in the cache, or a file is missing or damaged.
    SpecError
        If its kind is not known, or its config has a field whose effect has no part here.
    """
    folder = folder_of(name)
    if not os.path.isdir(folder):
        raise DataError(
            f"there is no folder {name}, and no model of that name in the cache {_cache()}; "
            f"fetch it with 'hf download {name}', or give a folder"
        )
    config = _json(folder / CONFIG)
    kind = Config(config, str(folder / CONFIG), ()).take("model_type", "")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise SpecError(f"{folder / CONFIG} has model_type={kind!r}, which has no parts here; known: {known}")
    family = FAMILIES[kind]
    files = {family.named(stored.name): stored for stored in _stored_in(folder)}
    found = Config(config, str(folder / CONFIG), files)
    found.take("model_type")
    with reading(folder / CONFIG):
        usual = list(family.architectures)
        architecture = (found.take("architectures", usual) or usual)[0]
        if architecture not in family.architectures:
            raise found.no_part("architectures", [architecture], f"one of {', '.join(family.architectures)}")
        spec = {**family.spec_of(found), **family.architectures[architecture]}
        found.check_rest(family.fixed, family.harmless)
    return Checkpoint(folder, config, family, files, spec)


@contextlib.contextmanager
def reading(path: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong while the content of a file is followed into a `DataError` that names the file.

    Parameters
    ----------
    path : Path
        The file.
    *also : type
        Errors to turn beside those of Python and torch.
    """
    try:
        yield
    except (*MISREAD, *also) as error:
        said = str(error) if isinstance(error, also) else text_of(error)
        raise DataError(f"{path} says what no model can have: {said}") from error


def check_fit(checkpoint: Checkpoint, own: Mapping[str, Tensor]) -> None:
    """Raise a `DataError` that names what a checkpoint lacks of the lab's tensors, has beside them, or has otherwise.

    Parameters
    ----------
    checkpoint : Checkpoint
        What is stored.
    own : mapping of str to Tensor
        The state of the model that its config describes; only shapes are looked at.
    """
    _check_names(checkpoint, own)
    for name, tensor in own.items():
        for form, names in ways(checkpoint.family.tensors, name):
            if all(one in checkpoint.files for one in names):
                for one, wanted in zip(names, form.write(tensor, checkpoint.sizes), strict=True):
                    _check_one(checkpoint.files[one], tuple(wanted.shape), checkpoint.folder)


def _check_one(stored: Stored, wanted: tuple[int, ...], folder: Path) -> None:
    """Raise unless a stored tensor has the shape that the config asks for, and numbers that are weights."""
    if stored.shape != wanted:
        raise DataError(
            f"{stored.path} has '{stored.name}' of shape {stored.shape}; {folder / CONFIG} asks for {wanted}: one of "
            "them is of another model"
        )
    if stored.kind not in WEIGHT_TYPES:
        raise DataError(
            f"{stored.path} has '{stored.name}' as {stored.kind}, whose numbers are no weights as they stand; save the "
            f"model again in one of {', '.join(WEIGHT_TYPES)}"
        )


def _check_names(checkpoint: Checkpoint, own: Mapping[str, Tensor]) -> None:
    """Raise unless a checkpoint has each of the lab's tensors, and none beside them."""
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


def folder_of(name: str | Path) -> Path:
    """The folder that is named; where there is none, the snapshot of a model of that name in Hugging Face's cache."""
    folder = user_path(name)
    kept = _cache() / f"models--{Path(name).as_posix().replace('/', '--')}"
    head = kept / "refs" / "main"
    if os.path.exists(folder) or not os.path.isfile(head):  # also of a name that no file can have
        return folder
    return kept / "snapshots" / head.read_text(encoding="utf-8").strip()


def _cache() -> Path:
    """Where Hugging Face keeps models on this machine."""
    home = user_path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


def _json(path: Path) -> Any:
    """The content of a file that every checkpoint has."""
    if not path.is_file():
        raise DataError(f"{path.parent} is no checkpoint of transformers: it has no {path.name}")
    try:
        return read_json(path)
    except RunError as error:
        raise DataError(f"{without_remedy(error)}; fetch it again") from error


def _stored_in(folder: Path) -> list[Stored]:
    """Every stored tensor."""
    if (folder / INDEX).is_file():
        weight_map = _json(folder / INDEX).get("weight_map")
        files: list[Any] = list(weight_map.values()) if isinstance(weight_map, dict) else [None]
        if not all(isinstance(file, str) and re.fullmatch(r"[^/\\]+\.safetensors", file) for file in files):
            raise DataError(
                f"{folder / INDEX} is damaged: 'weight_map' must name files of safetensors beside it; fetch it again"
            )
        found = {path: _header_of(path) for path in {folder / file for file in files}}
        return [one for stored in found.values() for one in stored if weight_map.get(one.name) == one.path.name]
    if not (folder / WEIGHTS).is_file():
        raise DataError(
            f"{folder} has neither {WEIGHTS} nor {INDEX}; weights in another form (pytorch_model.bin) are not read: "
            "save the model again with save_pretrained"
        )
    return _header_of(folder / WEIGHTS)


def _header_of(path: Path) -> list[Stored]:
    """The tensors of one file."""
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 no mapping
            return [Stored(path, name, tuple(one.get_shape()), one.get_dtype()) for name, one in slices.items()]
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is damaged: {error}; fetch it again") from error
