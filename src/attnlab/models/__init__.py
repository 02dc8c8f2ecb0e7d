"""Whole models built from the parts, and their rivals."""

from __future__ import annotations

from torch import nn

from attnlab.models.convolutional import ConvStack
from attnlab.models.recurrent import Lstm, LstmBatchAsTime
from attnlab.models.stacks import Decoder, Encoder

MODELS: dict[str, type[nn.Module]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "cnn": ConvStack,
    "lstm": Lstm,
    "lstm-batch-as-time": LstmBatchAsTime,
}
"""Names a study may use for a model."""

__all__ = ["MODELS", "ConvStack", "Decoder", "Encoder", "Lstm", "LstmBatchAsTime"]
