"""New inputs through trained models: the classes of texts, and what comes of sequences of numbers or tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from attnlab.core.errors import DataError
from attnlab.models.decoding.writers import device_of
from attnlab.studies.using.trained import Trained, codec_in_common
from attnlab.studies.using.translating import listed
from attnlab.tasks.arrays.classify import answers_of
from attnlab.tasks.codecs import ClassCodec, NumbersCodec

BATCH = 64  # inputs that are read together


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
    if not texts:
        return []
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

    def chances(outputs: Tensor, inputs: Tensor) -> np.ndarray:
        return answers_of(outputs, inputs, len(codec.classes), padded=True)[:, 0].softmax(dim=-1).numpy()

    found = _mean_answers(trained, torch.tensor([codec.filled(one) for one in tokens]), chances).tolist()
    return [dict(sorted(zip(codec.classes, row, strict=True), key=lambda pair: -pair[1])) for row in found]


def predict(trained: Sequence[Trained], inputs: np.ndarray) -> np.ndarray:
    """What models make of sequences of numbers or tokens; several models as one by the mean of their answers.

    Parameters
    ----------
    trained : sequence of Trained
        Runs of ``sequences``, or of ``classify`` on numbers or tokens, with the same units and classes.
    inputs : array
        (items, length) or (items, length, features), in the units of the training data; of a model of tokens whole
        numbers (items, length), where a shorter length than in training is filled up.

    Returns
    -------
    array
        Of a regression (items, length), (items, length, outputs) or (items, outputs), as the targets were, in their
        units; of classes their probabilities, (items, length, classes) or (items, classes).

    Raises
    ------
    RunError
        If a run is of another task, or the runs have different units or classes.
    DataError
        If there are no inputs, they have another shape than those of the training data, or a token is unknown.
    """
    codec: NumbersCodec = codec_in_common(
        trained, NumbersCodec.kind, "model of numbers", differs="other units or classes"
    )
    given = np.asarray(inputs)
    if not given.size:
        raise DataError(f"there are no inputs to answer for: their shape is {given.shape}")
    read = torch.from_numpy(codec.encode(given))

    def answer(outputs: Tensor, inputs: Tensor) -> np.ndarray:
        if codec.tokens:
            outputs = answers_of(outputs, inputs, len(codec.classes), padded=True)[:, 0]
        return codec.decode(outputs.numpy())

    return _mean_answers(trained, read, answer)


@torch.no_grad()
def _mean_answers(
    trained: Sequence[Trained], inputs: Tensor, answer: Callable[[Tensor, Tensor], np.ndarray]
) -> np.ndarray:
    """The mean over models of what their outputs mean."""
    parts = [
        np.mean([answer(one.model(some.to(device_of(one.model))).float().cpu(), some) for one in trained], axis=0)
        for some in inputs.split(BATCH)
    ]
    return np.concatenate(parts)
