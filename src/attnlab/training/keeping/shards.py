"""Checkpoints of which every rank writes its part: safetensors files, through ``torch.distributed.checkpoint``.

Any number of ranks reads them, one process included: each puts together what it needs from the parts.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnlab.core.errors import RunError
from attnlab.core.sharded import is_cut_often


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this rank's part of tensors; every rank must do so."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    with _in_words(folder):
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def read_shards(folder: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read tensors, or this rank's part of them where they are to be like sharded ones; every rank must do so.

    Parameters
    ----------
    folder : Path
        Where the parts lie.
    like : mapping of str to Tensor
        By the name of a tensor, or by that without its last word, what it is like if the shapes are the same; those
        without an example, or with one whose pieces lie apart, are read whole.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    reader = HuggingFaceStorageReader(str(folder))
    tensors = {}
    for name, known in reader.read_metadata().state_dict_metadata.items():
        example = like.get(name, like.get(name.rpartition(".")[0]))
        if example is None or example.shape != known.size or is_cut_often(example):  # type: ignore[union-attr]
            example = torch.empty(known.size, dtype=known.properties.dtype)  # type: ignore[union-attr]
        tensors[name] = torch.zeros_like(example, requires_grad=False)
    with _in_words(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is")  # disabled, ...: one process is meant to read alone
        load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    return tensors


def parts_of(model: nn.Module) -> dict[str, Tensor]:
    """Each parameter and persistent buffer of a model as this rank holds it; tied ones once, under their first name."""
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    again = every - {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in again}


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    """Turn what several ranks say of a failure into a `RunError` of what the first of them says."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise RunError(f"{folder} cannot be written or read: rank {rank}: {cause}") from error
