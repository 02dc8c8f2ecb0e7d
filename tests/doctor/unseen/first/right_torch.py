"""Modules of torch and transformers, as they come."""

import torch
from torch import nn

batch_first = nn.MultiheadAttention(64, 4, batch_first=True)
sequence_first = nn.MultiheadAttention(48, 3)
post_norm = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
pre_norm_seq_first = nn.TransformerEncoderLayer(32, 4, 64, norm_first=True)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True), 2, enable_nested_tensor=False)


def gpt2():
    """A small GPT-2 (causal)."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=64, n_embd=32, n_layer=2, n_head=2))


def bert_layer():
    """One layer of BERT, bidirectional."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    return BertLayer(
        BertConfig(hidden_size=32, num_attention_heads=4, intermediate_size=64, attn_implementation="eager")
    )


def t5_encoder():
    """Encoder of T5: no scale stands in its attention, the initialization holds it."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=60, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4))


def mixer_stack(width=32):
    """Two post-norm layers in a plain nn.Sequential, bidirectional."""
    return nn.Sequential(
        nn.TransformerEncoderLayer(width, 4, 64, batch_first=True),
        nn.TransformerEncoderLayer(width, 4, 64, batch_first=True),
    )
