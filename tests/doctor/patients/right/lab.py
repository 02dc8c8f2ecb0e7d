"""The lab's own parts, composed in many ways."""

from attnlab.models import Decoder, Encoder
from attnlab.nn.attention import Attention
from attnlab.nn.block import Block
from attnlab.nn.mixers import ConvolutionMixer
from attnlab.nn.recurrences import Fastformer, LinearAttention, LstmMixer


def plain():
    return Attention(64, 4)


def causal():
    return Attention(64, 4, causal=True, dropout=0.1)


def readable():
    return Attention(64, 4, causal=True, path="readable")


def rotary():
    return Attention(64, 4, positions="rotary", causal=True)


def linear_bias():
    return Attention(64, 4, positions="linear-bias", causal=True)


def relative_bias():
    return Attention(64, 4, positions="relative-bias")


def additive():
    return Attention(64, 4, scores="additive")


def bilinear():
    return Attention(64, 4, scores="bilinear")


def cosine():
    return Attention(64, 4, scores="cosine")


def full_width():
    return Attention(64, 4, heads="full-width")


def grouped():
    return Attention(64, 4, heads={"name": "grouped", "n_kv_heads": 2}, causal=True)


def multi_query():
    return Attention(64, 4, heads="multi-query")


def plus_one():
    return Attention(64, 4, normalizers="softmax-plus-one")


def sparsemax():
    return Attention(64, 4, normalizers="sparsemax")


def sigmoid():
    return Attention(64, 4, normalizers="sigmoid", causal=True)


def linear():
    return Attention(64, 4, normalizers="linear")


def talking_heads():
    return Attention(64, 4, combiners="talking-heads")


def attended_heads():
    return Attention(64, 4, combiners="attention", causal=True)


def summed_heads():
    return Attention(64, 4, combiners="sum")


def concatenated_heads():
    return Attention(64, 4, combiners="concatenate")


def window():
    return Attention(64, 4, masks={"name": "window", "width": 3}, causal=True)


def linear_attention():
    return LinearAttention(64, n_heads=4, causal=True)


def fastformer():
    return Fastformer(64, n_heads=4)


def lstm():
    return LstmMixer(64, causal=True)


def convolution():
    return ConvolutionMixer(64, causal=True)


def pre_norm_block():
    return Block(64, context={"causal": True, "n_heads": 4}, dropout=0.1)


def post_norm_block():
    return Block(64, norm="post", norm_kind="rms", feedforward="gated")


def decoder():
    return Decoder(53, 64, d_model=64, n_layers=2)


def encoder():
    return Encoder(64, 8, 64, d_model=64, n_layers=2)
