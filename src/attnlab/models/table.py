"""The table of models that a study may name."""

from __future__ import annotations

from torch import nn

from attnlab.models.convolutional import ConvStack
from attnlab.models.convolutional_translation import ByteNet, ConvS2S
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.mended import MendedModel
from attnlab.models.presets import TransformerBase, TransformerBig
from attnlab.models.recurrent import Lstm, LstmBatchAsTime
from attnlab.models.recurrent_translation import AdditiveRnn, MultiplicativeRnn
from attnlab.models.stacks import Decoder, Encoder

MODELS: dict[str, type[nn.Module]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder-decoder": EncoderDecoder,
    "transformer-base": TransformerBase,
    "transformer-big": TransformerBig,
    "cnn": ConvStack,
    "rnn-additive": AdditiveRnn,
    "rnn-multiplicative": MultiplicativeRnn,
    "convs2s": ConvS2S,
    "bytenet": ByteNet,
    "lstm": Lstm,
    "lstm-batch-as-time": LstmBatchAsTime,
    "mended": MendedModel,
}
"""Names a study may use for a model."""
