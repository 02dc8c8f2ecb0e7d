"""Whole models built from the parts, and their rivals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.models.convolutional import ConvStack
    from attnlab.models.convolutional_translation import ByteNet, ConvS2S
    from attnlab.models.deep_lstms import DeepAtt, Gnmt
    from attnlab.models.encoder_decoder import EncoderDecoder
    from attnlab.models.huggingface import as_huggingface
    from attnlab.models.parsers.generative import GenerativeRnng
    from attnlab.models.parsers.grammars.latent import LatentPcfg
    from attnlab.models.parsers.grammars.reranked import RerankedPcfg
    from attnlab.models.parsers.rnng import Rnng
    from attnlab.models.parsers.self_attentive import SelfAttentiveParser
    from attnlab.models.parsers.shift_reduce import ShiftReduceParser
    from attnlab.models.presets import TransformerBase, TransformerBig
    from attnlab.models.recurrent import Lstm, LstmBatchAsTime
    from attnlab.models.recurrent_translation import AdditiveRnn, MultiplicativeRnn
    from attnlab.models.stacks import Decoder, Encoder, Stack
    from attnlab.models.table import MODELS
    from attnlab.models.token_encoder import TokenEncoder

__getattr__, __dir__, __all__ = contents(__name__)
