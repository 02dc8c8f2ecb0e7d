"""Attention and block classes of Hugging Face's transformers, in small."""

_EAGER = "eager"


def gpt2_config():
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=53, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    config._attn_implementation = _EAGER
    return config


def bert_config():
    from transformers import BertConfig

    config = BertConfig(
        vocab_size=53,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    config._attn_implementation = _EAGER
    return config


def gpt2_attention():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    return GPT2Attention(gpt2_config(), layer_idx=0)


def gpt2_block():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    return GPT2Block(gpt2_config(), layer_idx=0)


def gpt2_model():
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel(gpt2_config())


def bert_self_attention():
    from transformers.models.bert.modeling_bert import BertSelfAttention

    return BertSelfAttention(bert_config())


def bert_attention():
    from transformers.models.bert.modeling_bert import BertAttention

    return BertAttention(bert_config())


def bert_layer():
    from transformers.models.bert.modeling_bert import BertLayer

    return BertLayer(bert_config())


def bert_model():
    from transformers import BertForMaskedLM

    return BertForMaskedLM(bert_config())


def llama_config():
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=53,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    config._attn_implementation = _EAGER
    return config


def llama_attention():
    from transformers.models.llama.modeling_llama import LlamaAttention

    return LlamaAttention(llama_config(), layer_idx=0)


def llama_decoder_layer():
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return LlamaDecoderLayer(llama_config(), layer_idx=0)


def llama_model():
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(llama_config())


def t5_config():
    from transformers import T5Config

    config = T5Config(vocab_size=53, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.1)
    config._attn_implementation = _EAGER
    return config


def t5_attention():
    from transformers.models.t5.modeling_t5 import T5Attention

    return T5Attention(t5_config(), has_relative_attention_bias=True)


def t5_self_attention():
    from transformers.models.t5.modeling_t5 import T5LayerSelfAttention

    return T5LayerSelfAttention(t5_config(), has_relative_attention_bias=True)


def t5_block():
    from transformers.models.t5.modeling_t5 import T5Block

    return T5Block(t5_config(), has_relative_attention_bias=True)
