"""What a model's tokens mean, as a file of Hugging Face's tokenizers."""

from __future__ import annotations

import json
from typing import Any

import tokenizers as hf
from tokenizers import decoders, models, normalizers

from attnlab.tasks.codecs import Codec

UNKNOWN = "\ufffd"  # as the vocabulary of a text has it


def tokenizer_of(codec: Codec | None) -> dict[str, Any] | None:
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
