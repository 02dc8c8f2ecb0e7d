"""Whole models built from the parts, and their rivals."""

from __future__ import annotations

from torch import nn

from attnlab.models.convolutional import ConvStack
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.recurrent import Lstm, LstmBatchAsTime
from attnlab.models.recurrent_translation import AdditiveRnn, MultiplicativeRnn
from attnlab.models.stacks import Decoder, Encoder

MODELS: dict[str, type[nn.Module]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder-decoder": EncoderDecoder,
    "cnn": ConvStack,
    "rnn-additive": AdditiveRnn,
    "rnn-multiplicative": MultiplicativeRnn,
    "lstm": Lstm,
    "lstm-batch-as-time": LstmBatchAsTime,
}
"""Names a study may use for a model."""

__all__ = [
    "MODELS",
    "AdditiveRnn",
    "ConvStack",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Lstm",
    "LstmBatchAsTime",
    "MultiplicativeRnn",
]
