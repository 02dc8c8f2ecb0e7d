"""Where trained models look while they translate a sentence: attention maps with the tokens of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnlab.errors import DataError
from attnlab.inspection.capture import capture
from attnlab.inspection.maps import attention_maps
from attnlab.models.writers import device_of
from attnlab.studies.trained import Trained, sentence_codec
from attnlab.studies.translating import sides_of_maps, translations


@dataclass(frozen=True)
class SentenceMaps:
    """Hold a sentence, its translation, and the attention maps of every model that wrote it.

    Parameters
    ----------
    source : str
        The sentence.
    translation : str
        What the models wrote.
    maps : mapping of str to mapping
        By folder of the run what `attention_maps` returns; of models without attention there is none.
    """

    source: str
    translation: str
    maps: Mapping[str, Mapping[str, Any]]


def sentence_maps(
    trained: Sequence[Trained], sentence: str, *, beam: int | None = None, alpha: float | None = None
) -> SentenceMaps:
    """Translate a sentence, and record all attention weights of reading it and of writing the translation.

    Parameters
    ----------
    trained : sequence of Trained
        As `attnlab.studies.trained.translate` takes them.
    sentence : str
        The sentence.
    beam, alpha
        Likewise.

    Returns
    -------
    SentenceMaps
        Translation and maps.

    Raises
    ------
    RunError
        As `attnlab.studies.trained.translate`.
    DataError
        Likewise, or if the sentence is empty.
    """
    codec = sentence_codec(trained)
    tokens = codec.encode([sentence])
    if not tokens[0]:
        raise DataError("an empty sentence has no attention to look at")
    (written,) = translations([one.model for one in trained], codec, [sentence], beam=beam, alpha=alpha)
    begun = [codec.marks.begin, *written.tokens][: codec.max_length]
    sides = [torch.tensor(tokens), torch.tensor([begun])]
    labels = [codec.tokenizer.pieces(side[0].tolist()) for side in sides]
    maps = {}
    for one in trained:
        device = device_of(one.model)
        with torch.no_grad(), capture(one.model) as trace:
            one.model(*(side.to(device) for side in sides))
        found = attention_maps(trace, labels, axes=sides_of_maps(one.model, trace))
        if found["layers"]:
            maps[str(one.folder)] = found
    return SentenceMaps(sentence, written.text, maps)
