"""Checkpoints: a folder of safetensors and JSON that is either whole or not there.

``state.json`` holds the sha256 of the files beside it, so that a cut-off or damaged one is noticed before a
number is computed from it. Nothing is unpickled.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors.torch

from attnlab.core.errors import RunError
from attnlab.core.files import (
    file_sha256,
    new_name,
    old_name,
    read_json,
    replace_folder,
    synchronize,
    without_remedy,
    write_json,
    writing,
)
from attnlab.core.sharded import is_sharded, placed_like
from attnlab.training.keeping.averaging import AVERAGE
from attnlab.training.keeping.runs import RESULT
from attnlab.training.keeping.shards import read_shards

if TYPE_CHECKING:
    from torch import Tensor, nn

MODEL, TENSORS, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
WEIGHTS = "model."
"""Before the names of weights among the tensors of a checkpoint that ranks write together."""
ANY_READ_WRITE = 0o666
SHOWN = 300  # characters of what does not fit


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy a model's parameters and persistent buffers; tied ones once, under their first name."""
    copies: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() == 0 or place not in seen:
            seen.add(place)
            copies[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return copies


def save_checkpoint(
    folder: Path,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint in the place of the one before it."""
    write_checkpoint(new_name(folder), weights, state, tensors=tensors)
    with writing(folder.parent):
        replace_folder(new_name(folder), folder)


def write_checkpoint(
    folder: Path,
    weights: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the files of a checkpoint; its state comes last, so that a folder with a whole state is complete."""
    try:
        with writing(folder.parent):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            safetensors.torch.save_file(dict(weights), folder / MODEL)
            if tensors is not None:
                safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, folder / TENSORS)
            hashes = {path.name: _hash_and_synchronize(path) for path in sorted(folder.iterdir())}
            write_json(folder / STATE, {**state, "files": hashes})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _hash_and_synchronize(path: Path) -> str:
    path.chmod(path.parent.stat().st_mode & ANY_READ_WRITE)  # safetensors makes files that only their owner can read
    synchronize(path)
    return file_sha256(path)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Read a checkpoint's state after checking that its files are whole."""
    if not folder.exists():
        return None
    try:
        state = read_json(folder / STATE)
    except RunError as error:
        raise RunError(f"{without_remedy(error)}; {_remedy(folder)}") from error
    if not isinstance(state.get("files"), dict):
        raise RunError(f"{folder / STATE} is damaged: it names no files; {_remedy(folder)}")
    for name, expected in state.pop("files").items():
        _check_file(folder / name, expected)
    return state


def _check_file(path: Path, expected: str) -> None:
    if not path.is_file():
        raise RunError(f"{path} is missing; {_remedy(path.parent)}")
    found = file_sha256(path)
    if found != expected:
        raise RunError(
            f"{path} is damaged or cut off ({path.stat().st_size:,} bytes): its sha256 is {found[:12]}..., and "
            f"{STATE} beside it says {expected[:12]}...; {_remedy(path.parent)}"
        )


def _remedy(folder: Path) -> str:
    """What helps where a checkpoint is damaged; a run that is complete is not trained again without it."""
    return f"remove {folder.parent} and run its study again, which trains this run anew"


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the tensors beside the model."""
    path = folder / TENSORS
    return safetensors.torch.load_file(path) if path.exists() else {}


def load_model_weights(model: nn.Module, folder: Path | str, *, which: str = "last") -> int:
    """Load the weights of a run into a model, also while the run is going on.

    Parameters
    ----------
    model : nn.Module
        A model built from the same spec.
    folder : Path or str
        The run folder.
    which : {"last", "best"}
        The weights at the end, or those of the best evaluation.

    Returns
    -------
    int
        After how many steps the weights were saved.

    Raises
    ------
    RunError
        If there is no such checkpoint, it is damaged, or it is of another model.
    """
    target = Path(folder) / which
    if not target.exists() and old_name(target).exists():  # it is being replaced at this moment
        target = old_name(target)
    state = read_state(target)
    if state is None:
        ended = (Path(folder) / RESULT).exists()
        why = "it has ended, so its weights were removed" if ended else "the run has not saved one yet"
        raise RunError(f"no checkpoint '{which}' in {folder}: {why}")
    load_weights(model, target)
    return state["step"]


def load_checkpoint(model: nn.Module, folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load a checkpoint's weights into a model, and return what lies beside them.

    Parameters
    ----------
    model : nn.Module
        The model; perhaps sharded, as perhaps the checkpoint is.
    folder : Path
        The checkpoint.
    parameters : mapping of str to Tensor
        Parameters of the model by what an optimizer calls them: what it keeps of each is sharded alike.
    """
    if (folder / MODEL).exists():
        load_weights(model, folder)
        return read_tensors(folder)
    like = {AVERAGE + name: parameter for name, parameter in model.named_parameters()}
    like |= {WEIGHTS + name: tensor for name, tensor in model.state_dict().items()}
    tensors = read_shards(folder, {**like, **parameters})
    weights = {name: tensors.pop(name) for name in list(tensors) if name.startswith(WEIGHTS)}
    _put_into(model, {name.removeprefix(WEIGHTS): tensor for name, tensor in weights.items()}, folder)
    return tensors


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load a checkpoint's parameters and buffers into a model."""
    if not (folder / MODEL).exists():
        load_checkpoint(model, folder, {})
    elif any(is_sharded(parameter) for parameter in model.parameters()):
        _put_into(model, safetensors.torch.load_file(folder / MODEL), folder)
    else:
        _load_file(model, folder)


def _load_file(model: nn.Module, folder: Path) -> None:
    try:
        safetensors.torch.load_model(model, folder / MODEL)
    except (RuntimeError, safetensors.SafetensorError) as error:
        raise _does_not_fit(model, folder, error) from error


def _put_into(model: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Put whole or sharded tensors into a model; of tied ones the file may hold the first alone."""
    state = model.state_dict()
    try:
        for name, tensor in weights.items():
            state[name].copy_(placed_like(tensor.to(state[name].device), state[name]))
    except (RuntimeError, KeyError) as error:
        raise _does_not_fit(model, folder, error) from error


def _does_not_fit(model: nn.Module, folder: Path, error: Exception) -> RunError:
    detail = textwrap.shorten(str(error), SHOWN, placeholder=" ...")
    return RunError(f"{folder / MODEL} does not fit {type(model).__name__}: {detail}")


def write_sharded(folder: Path, state: Mapping[str, Any]) -> None:
    """Complete a new checkpoint of which every rank has written its part, and put it in the place of the one before."""
    new = new_name(folder)
    with writing(folder.parent):
        hashes = {path.name: _hash_and_synchronize(path) for path in sorted(new.iterdir())}
        write_json(new / STATE, {**state, "files": hashes})
        replace_folder(new, folder)
