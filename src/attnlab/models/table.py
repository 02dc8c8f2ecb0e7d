"""The table of models that a study may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from attnlab.core.build import Spec, build, is_path, parse
from attnlab.models.convolutional import ConvStack
from attnlab.models.convolutional_translation import ByteNet, ConvS2S
from attnlab.models.deep_lstms import DeepAtt, Gnmt
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.from_checkpoint import pretrained
from attnlab.models.mended import MendedModel
from attnlab.models.parsers.generative import GenerativeRnng
from attnlab.models.parsers.grammars.latent import LatentPcfg
from attnlab.models.parsers.grammars.reranked import RerankedPcfg
from attnlab.models.parsers.rnng import Rnng
from attnlab.models.parsers.self_attentive import SelfAttentiveParser
from attnlab.models.parsers.shift_reduce import ShiftReduceParser
from attnlab.models.presets import TransformerBase, TransformerBig
from attnlab.models.recurrent import Lstm, LstmBatchAsTime
from attnlab.models.recurrent_translation import AdditiveRnn, MultiplicativeRnn
from attnlab.models.stacks import Decoder, Encoder
from attnlab.models.token_encoder import TokenEncoder
from attnlab.nn.foreign_model import build_foreign_model

MODELS: dict[str, Callable[..., nn.Module]] = {
    "decoder": Decoder,
    "encoder": Encoder,
    "token-encoder": TokenEncoder,
    "encoder-decoder": EncoderDecoder,
    "transformer-base": TransformerBase,
    "transformer-big": TransformerBig,
    "cnn": ConvStack,
    "rnn-additive": AdditiveRnn,
    "rnn-multiplicative": MultiplicativeRnn,
    "deep-att": DeepAtt,
    "gnmt": Gnmt,
    "convs2s": ConvS2S,
    "bytenet": ByteNet,
    "latent-pcfg": LatentPcfg,
    "reranked-pcfg": RerankedPcfg,
    "self-attentive-parser": SelfAttentiveParser,
    "shift-reduce": ShiftReduceParser,
    "rnng": Rnng,
    "rnng-generative": GenerativeRnng,
    "lstm": Lstm,
    "lstm-batch-as-time": LstmBatchAsTime,
    "mended": MendedModel,
    "pretrained": pretrained,
}
"""Names a study may use for a model."""


def build_any_model(spec: Spec, offered: Mapping[str, Any]) -> nn.Module:
    """Build a model of the table, or of a person's own, for a task that offers what a model must know of it."""
    if is_path(parse(spec, "model")[0]):
        return build_foreign_model(spec, offered)
    return cast(nn.Module, build(spec, MODELS, axis="model", offered=offered))
