"""The words people use for the sizes of the glossary."""

from __future__ import annotations

SIZE_ALIASES: dict[str, tuple[str, ...]] = {
    word: tuple(aliases.split())
    for word, aliases in {
        "d_model": """
            dim embed_dim emb_size emb_dim embedding_dim n_embd embed_size hidden_size model_dim d_embed embedding_size
            model_size num_hiddens d_in in_dim dim_in input_dim input_size in_channels in_features d width channels
            features query_dim hidden_dim hidden d_out out_dim dim_out output_dim output_size out_channels out_features
            dim_model size k emb embed n_embed d_emb c n_channels num_channels n_units units ninp token_dim feature_dim
            feat_dim hid_dim d_hidden n_state n_dim ndim nhid inp_dim d_input d_output model_channels
            hidden_channels""",
        "n_heads": """
            heads num_heads n_head h nhead nheads num_attention_heads n_attention_heads num_head attention_heads
            nb_heads num_q_heads n_q_heads head_num head_count heads_num attn_heads decoder_attention_heads
            encoder_attention_heads""",
        "d_head": """
            head_dim dim_head d_k head_size key_channels dk d_key dim_k key_dim key_size dim_per_head d_qk qk_dim
            dim_key d_kv kq_dim d_heads head_width d_keys""",
        "d_v": "dv d_value dim_v v_dim value_dim value_size value_channels d_values dim_value",
        "n_kv_heads": """
            num_kv_heads kv_heads num_key_value_heads n_kv_head n_kv num_kv_groups n_kv_groups num_query_groups
            n_groups groups num_groups""",
        "d_ff": """
            dim_feedforward ffn_dim ff_dim dim_ff d_ffn d_inner mlp_dim intermediate_size d_hid feedforward_dim
            hidden_features ffn_hidden ff_hidden ffn_size ff_size inner_dim dff pf_dim d_mlp ff_hidden_dim
            ffn_hidden_dim ffn_hidden_size mlp_hidden mlp_hidden_dim filter_size forward_dim feed_forward_dim
            feed_forward_size feedforward_size n_inner ffn_inner_dim ffn_num_hiddens feedforward_channels hidden_ff
            n_hidden""",
        "mlp_ratio": """
            expansion expansion_factor ff_mult forward_expansion ffn_mult mult ff_expansion mlp_mult ff_ratio
            widening_factor expand expansion_ratio ffn_expansion ffn_ratio expand_factor""",
        "n_layers": """
            n_layer num_layers depth layers nlayers n_blocks num_blocks num_hidden_layers N num_layer nb_layers n_block
            blocks layer_num num_encoder_layers num_decoder_layers n_encoder_layers n_decoder_layers encoder_layers
            decoder_layers""",
        "vocab_size": """
            vocab n_vocab num_tokens ntoken ntokens vocabulary_size n_vocabulary num_embeddings src_vocab tgt_vocab
            src_vocab_size tgt_vocab_size trg_vocab_size input_vocab_size target_vocab_size vocab_len voc_size
            vocabulary dict_size vocabsize n_words num_words""",
        "dropout": """
            p drop dropout_p p_drop attn_dropout attn_pdrop resid_pdrop dropout_rate dropout_prob drop_prob
            attention_dropout resid_dropout attn_drop proj_drop drop_rate embd_pdrop pdrop dropout_probability
            dropout_ratio residual_dropout ff_dropout ffn_dropout hidden_dropout_prob attention_probs_dropout_prob
            emb_dropout embed_dropout res_dropout attn_p resid_p""",
        "max_length": """
            max_len block_size seq_len context context_length context_size ctx_len sequence_length max_seq_len
            max_seq_length seq_length length n_ctx n_positions max_position_embeddings max_sequence_length seqlen
            maxlen max_context max_positions num_positions ctx max_T n_patches num_patches n_tokens seq context_len
            max_context_length n_context max_ctx max_position max_n_tokens sentence_length max_sentence_length T L""",
        "n_classes": """
            num_classes n_class classes num_labels n_labels nclass nb_classes num_class output_classes""",
        "causal": "is_causal",
    }.items()
}
"""Names under which people's own constructors ask for the sizes of the glossary."""


def glossary_word(name: str) -> str:
    """The glossary's word for a size, or the name itself.

    Parameters
    ----------
    name : str
        A parameter's name.

    Returns
    -------
    str
        Such as ``n_heads`` for ``num_heads``.
    """
    return next((canonical for canonical, aliases in SIZE_ALIASES.items() if name in aliases), name)


def synonyms(canonical: str) -> tuple[str, ...]:
    """A size's word in the glossary and all its aliases.

    Parameters
    ----------
    canonical : str
        A word of the glossary.

    Returns
    -------
    tuple of str
        The word itself first.
    """
    return (canonical, *SIZE_ALIASES.get(canonical, ()))
