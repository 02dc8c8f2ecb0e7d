"""A model of the lab with the weights of a checkpoint, as it was trained or with other mixers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers as hf
import torch
from torch import nn

from attnlab.core.build import Spec, build, is_ready
from attnlab.core.errors import DataError, SpecError
from attnlab.core.sizes import require_known
from attnlab.models.pretrained.checkpoint import CONFIG, Checkpoint, check_fit, open_checkpoint, reading
from attnlab.models.pretrained.tensors import in_all_layers

TOKENIZER = "tokenizer.json"
ENDS = 1  # tokens that the lab adds to a tokenizer that has no end of a text
MIXING = {"mixer", "cross"}
TOKENS = {"embedding", "source_embedding", "target_embedding", "logits"}
"""Names of parts, by which their tensors are found."""

Start = Literal["kept", "fresh"]
open_once = functools.lru_cache(maxsize=8)(open_checkpoint)  # as many as the variants of a study may see


def pretrained(
    folder: str,
    *,
    mixer: Spec | Sequence[Spec] | None = None,
    mixers: Start = "kept",
    embeddings: Start = "kept",
    weights: Start = "kept",
    dropout: float | None = None,
    vocab_size: int | None = None,
    source_vocab_size: int | None = None,
    target_vocab_size: int | None = None,
    max_length: int | None = None,
) -> nn.Module:
    """Build the model of a checkpoint of transformers out of the lab's parts, with its weights.

    Parameters
    ----------
    folder : str
        The checkpoint: a folder, or the name of a model in Hugging Face's cache.
    mixer : Spec or list of Spec, optional
        What mixes positions instead of the checkpoint's attention. A mapping without ``name`` changes arguments of that
        attention and leaves the others.
    mixers : {"kept", "fresh"}
        Whether tensors of mixers that have a name and shape of the checkpoint's start as they are there, or all of them
        as a new model's do.
    embeddings : {"kept", "fresh"}
        Likewise for embeddings and logits, which get as many tokens as the task has if they are fresh.
    weights : {"kept", "fresh"}
        Likewise for all of it: with ``fresh``, the checkpoint gives its architecture alone.
    dropout : float, optional
        In place of the checkpoint's, at all places that take the model's.
    vocab_size, source_vocab_size, target_vocab_size : int, optional
        Tokens of a task. Those of the checkpoint's tokenizer may be fewer than its embeddings; one more than they is
        the end of a text, which the lab adds.
    max_length : int, optional
        Of a task's sequences; only checked.

    Returns
    -------
    nn.Module
        A `Decoder`, `TokenEncoder` or `EncoderDecoder`, float32.

    Raises
    ------
    DataError
        If the checkpoint is missing, damaged, or lacks a tensor, has one that no part takes, or one of another shape
        than its config says.
    SpecError
        If its config has a field without a part here, or the task has other tokens or longer sequences.

    Notes
    -----
    Weights that the checkpoint does not give start as the lab's model has them.
    """
    require_known("mixers", mixers, ("kept", "fresh"))
    require_known("embeddings", embeddings, ("kept", "fresh"))
    require_known("weights", weights, ("kept", "fresh"))
    checkpoint = open_once(folder)
    check_fit(checkpoint, _described(checkpoint))
    spec = dict(checkpoint.spec)
    sizes = {"vocab_size": vocab_size, "source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
    sizes = {name: size for name, size in sizes.items() if size is not None and name in spec}
    if embeddings == "kept":
        _check_tokens(checkpoint, sizes)
    elif "pad" in spec:
        spec["pad"] = 0  # of the lab's tokenizers
    spec |= sizes
    if max_length is not None and max_length > spec["max_length"]:
        raise SpecError(f"{folder} has positions for {spec['max_length']} tokens; the task has up to {max_length}")
    if dropout is not None:
        spec["dropout"] = dropout
    if mixer is not None:
        spec["mixer"] = _changed(spec["mixer"], mixer)
    fresh = (MIXING if mixers == "fresh" else set()) | (TOKENS if embeddings == "fresh" else set())
    model = _build(spec)
    if weights == "kept":
        _load(model, checkpoint, fresh)
    return model


def read_tokenizer(path: Path) -> hf.Tokenizer:
    """The tokenizer of a checkpoint, or a `DataError` that names its file."""
    try:
        return hf.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{path} is no tokenizer that can be read: {error}; fetch it again") from error


def _described(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """The state of the model that a checkpoint's config describes, without memory for it."""
    path, n_layers = checkpoint.folder / CONFIG, checkpoint.spec["n_layers"]
    if n_layers > len(checkpoint.files):  # before that many are made
        raise DataError(f"{path} asks for {n_layers} layers; there are but {len(checkpoint.files)} tensors beside it")
    with reading(path, SpecError), torch.device("meta"):
        return _build(checkpoint.spec).state_dict(keep_vars=True)


def _build(spec: Mapping[str, Any]) -> nn.Module:
    from attnlab.models.table import MODELS

    return cast(nn.Module, build(spec, MODELS, axis="model"))


def _check_tokens(checkpoint: Checkpoint, sizes: Mapping[str, int]) -> None:
    """Raise unless a task has the tokens of the checkpoint, as far as their number tells."""
    path = checkpoint.folder / TOKENIZER
    for name, size in sizes.items():
        known = {checkpoint.spec[name]}
        if path.is_file():
            known.add(read_tokenizer(path).get_vocab_size())
        if size not in known | {one + ENDS for one in known}:
            raise SpecError(
                f"{checkpoint.folder} has {' or '.join(map(str, sorted(known)))} tokens and the task {size}; give the "
                f"task the checkpoint's tokenizer, or say 'embeddings: fresh' to learn others"
            )


def _changed(own: Mapping[str, Any], mixer: Spec | Sequence[Spec]) -> Spec | list[Spec]:
    """The mixer that is asked for, or the checkpoint's with other arguments."""
    if isinstance(mixer, Mapping) and "name" not in mixer:
        return {**own, **mixer}
    if is_ready(mixer) and isinstance(mixer, Sequence):
        return [cast(Spec, _changed(own, one)) for one in mixer]
    return cast(Spec, mixer)


@torch.no_grad()
def _load(model: nn.Module, checkpoint: Checkpoint, fresh: set[str]) -> None:
    """Copy what fits, and let layers share what they share in the checkpoint."""
    table = checkpoint.family.tensors
    first: dict[str, nn.Parameter] = {}
    done: set[int] = set()
    for name, made in model.state_dict(keep_vars=True).items():
        places = set(name.split("."))
        if fresh & places:
            continue
        own, of_all = made, in_all_layers(table, name)
        if of_all and made.shape == first.setdefault(of_all, made).shape:
            holder, _, attribute = name.rpartition(".")
            own = first[of_all]
            setattr(model.get_submodule(holder), attribute, own)
        for stored in checkpoint.read(name):
            rows = min(len(own), len(stored)) if TOKENS & places else None  # a task may lack tokens, or have new ones
            kept, found = own[:rows], stored[:rows]
            if kept.shape != found.shape:  # of another mixer: those of the checkpoint's own model were found to fit
                continue
            if id(own) in done and not own.is_meta and not torch.equal(kept, found.to(own.dtype)):
                raise DataError(f"{checkpoint.folder} stores '{name}' twice, and differently, though it is tied")
            kept.copy_(found)
            done.add(id(own))
