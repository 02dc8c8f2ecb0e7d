"""Where trained models look while they translate a sentence: attention maps with the tokens of both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from attnlab.inspection.capture import capture
from attnlab.inspection.maps import attention_maps
from attnlab.models.decoding.writers import device_of
from attnlab.studies.using.trained import Trained, sentence_codec
from attnlab.studies.using.translating import Written, sides_of_maps


@final
@dataclass(frozen=True)
class SentenceMaps:
    """Hold a sentence, its translation, and the attention maps of every model that wrote it."""

    source: str  # the sentence
    translation: str  # what the models wrote
    maps: Mapping[str, Mapping[str, Any]]
    """By folder of the run what `attention_maps` returns; of models without attention there is none."""


def sentence_maps(trained: Sequence[Trained], sentence: str, written: Written) -> SentenceMaps:
    """Record all attention weights of reading a sentence and of writing its translation."""
    codec = sentence_codec(trained)
    begun = [codec.marks.begin, *written.tokens][: codec.max_length]
    sides = [torch.tensor(codec.encode([sentence])), torch.tensor([begun])]
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
