"""Whole models built from the parts, and their rivals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.models.convolutional import ConvStack
    from attnlab.models.convolutional_translation import ByteNet, ConvS2S
    from attnlab.models.encoder_decoder import EncoderDecoder
    from attnlab.models.presets import TransformerBase, TransformerBig
    from attnlab.models.recurrent import Lstm, LstmBatchAsTime
    from attnlab.models.recurrent_translation import AdditiveRnn, MultiplicativeRnn
    from attnlab.models.stacks import Decoder, Encoder, Stack
    from attnlab.models.table import MODELS

__getattr__, __dir__ = contents(
    __name__,
    {
        "AdditiveRnn": "attnlab.models.recurrent_translation",
        "ByteNet": "attnlab.models.convolutional_translation",
        "ConvS2S": "attnlab.models.convolutional_translation",
        "ConvStack": "attnlab.models.convolutional",
        "Decoder": "attnlab.models.stacks",
        "Encoder": "attnlab.models.stacks",
        "EncoderDecoder": "attnlab.models.encoder_decoder",
        "Lstm": "attnlab.models.recurrent",
        "LstmBatchAsTime": "attnlab.models.recurrent",
        "MODELS": "attnlab.models.table",
        "MultiplicativeRnn": "attnlab.models.recurrent_translation",
        "Stack": "attnlab.models.stacks",
        "TransformerBase": "attnlab.models.presets",
        "TransformerBig": "attnlab.models.presets",
    },
)

__all__ = [
    "MODELS",
    "AdditiveRnn",
    "ByteNet",
    "ConvS2S",
    "ConvStack",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Lstm",
    "LstmBatchAsTime",
    "MultiplicativeRnn",
    "Stack",
    "TransformerBase",
    "TransformerBig",
]
