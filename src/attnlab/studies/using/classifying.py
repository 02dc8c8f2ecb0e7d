"""Texts through classifiers: the probability of every class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from attnlab.core.errors import DataError
from attnlab.models.decoding.writers import device_of
from attnlab.studies.using.trained import Trained, codec_in_common
from attnlab.studies.using.translating import listed
from attnlab.tasks.arrays.classify import answers_of
from attnlab.tasks.codecs import ClassCodec

BATCH = 64  # texts that are read together


def classify(trained: Sequence[Trained], texts: Sequence[str], *, first: int = 1) -> list[dict[str, float]]:
    """Name the classes of texts; several models as one by their mean probabilities.

    Parameters
    ----------
    trained : sequence of Trained
        Runs of ``classify`` on texts, with one tokenizer and the same classes.
    texts : sequence of str
        Any number.
    first : int
        Number of the first text, in what is said of texts.

    Returns
    -------
    list of dict
        For each text the probability of every class, the likeliest first.

    Raises
    ------
    RunError
        If a run is none of ``classify`` on texts, or the runs have different tokenizers or classes.
    DataError
        If a text is empty.

    Warns
    -----
    UserWarning
        If texts are longer than what the models read and were cut, as in training; which ones is said.
    """
    codec: ClassCodec = codec_in_common(
        trained, ClassCodec.kind, "classifier of texts", differs="another tokenizer or other classes"
    )
    empty = [number for number, text in enumerate(texts, first) if not text.strip()]
    if empty:
        raise DataError(f"text {listed(empty)} is empty: there is nothing to classify")
    tokens = codec.encode(texts)
    cut = [number for number, one in enumerate(tokens, first) if len(one) > codec.max_length]
    if cut:
        warnings.warn(
            f"{len(cut)} of {len(texts)} texts are longer than {codec.max_length} tokens and were cut: text "
            f"{listed(cut)}",
            stacklevel=2,
        )
    found = []
    for start in range(0, len(tokens), BATCH):
        inputs = torch.tensor([codec.filled(one) for one in tokens[start : start + BATCH]])
        found += torch.stack([_chances(one, codec, inputs) for one in trained]).mean(dim=0).tolist()
    return [dict(sorted(zip(codec.classes, row, strict=True), key=lambda pair: -pair[1])) for row in found]


@torch.no_grad()
def _chances(one: Trained, codec: ClassCodec, inputs: torch.Tensor) -> torch.Tensor:
    """The probability of each class, (batch, classes)."""
    outputs = one.model(inputs.to(device_of(one.model))).float().cpu()
    return answers_of(outputs, inputs, len(codec.classes), padded=True)[:, 0].softmax(dim=-1)
