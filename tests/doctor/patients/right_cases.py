"""Modules that are right, with what might be taken for a fault in them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from tests.doctor.patients.case import Case

SIZES: Mapping[str, Mapping[str, Any]] = {
    "forum.py:NoAttentionAttention": {"emb_size": 64, "head_size": 64},
    "forum.py:SimpleAttention": {"emb_size": 64, "head_size": 32},
    "forum.py:ResidualAttention": {"emb_size": 64, "head_size": 32},
    "forum.py:AttentionLayer": {"in_channels": 64, "out_channels": 64, "key_channels": 32},
    "forum.py:LSTM": {"b_in": 64, "n_out": 64},
    "attentions.py:Head": {"head_size": 16},
    "masked.py:FiniteMask": {"emb_size": 64, "head_size": 16},
}
"""Constructor arguments a person would give."""

PLAIN = {
    "attentions.py:CausalSelfAttention": "a config object, a mask buffer named bias",
    "attentions.py:Head": "one head, output narrower than the input",
    "attentions.py:MultiHeadAttention": "a list of heads, in a ModuleList",
    "attentions.py:MultiHeadedAttention": "query, key, value and a mask where 0 blocks; keeps its map for plots",
    "attentions.py:EinsumAttention": "parameters without nn.Linear",
    "attentions.py:Attention": "norm inside, optional context",
    "attentions.py:ReturnsWeights": "a loop over heads, a tuple out",
    "attentions.py:DictAttention": "a dict out",
    "attentions.py:ViTAttention": "qkv in one, unbind",
    "attentions.py:DepthMajor": "the features are ordered (depth, head): a permutation, no scrambling",
    "attentions.py:FoldedHeads": "heads folded into the batch, baddbmm",
    "forum.py:NoAttentionAttention": "mixes no positions, and does not claim to",
    "forum.py:SimpleAttention": "the forum's attention, repaired",
    "forum.py:ResidualAttention": "the forum's block, repaired",
    "forum.py:AttentionLayer": "channels first, said in a comment, scaled",
    "forum.py:cnn": "sees 21 positions, which is a matter of set-up; one channel",
    "forum.py:LSTM": "batch first",
}

MASKED = {
    "masked.py:KeyPadding": "True = ignore, smallest number of the dtype",
    "masked.py:BertStyle": "1 = keep, additive",
    "masked.py:PairMask": "True = may attend",
    "masked.py:EmptyRows": "empty rows give zeros, with clean gradients",
    "masked.py:ReplacedRows": "NaN is replaced; masked_fill keeps it out of the gradients too",
    "masked.py:DecoderAttention": "causal and padding on either side",
    "masked.py:TorchSDPA": "bool or float mask, dropout in training alone",
    "masked.py:FiniteMask": "-1e9 in float32; fp16 refuses it loudly",
    "masked.py:BertLegacy": "-10000 is far below any score",
    "masked.py:FirstGPT": "-1e4 is far below any score",
    "masked.py:MeanPooledClassifier": "masked mean",
    "masked.py:AttentionPooling": "a learned query pools",
    "masked.py:MaxPooled": "masked maximum",
    "masked.py:LastState": "the state at the last real token; padding declared to stand on the right",
    "masked.py:ConvAttention": "padding is zeroed before the convolution",
}

SCORES = {
    "scores.py:Alibi": "linear bias",
    "scores.py:Rotary": "rotary, causal",
    "scores.py:BidirectionalRotary": "rotary; softmax in float32",
    "scores.py:ComplexRotary": "rotary by complex numbers; torch scales q and k, each by the root",
    "scores.py:T5Style": "no scale, the initialization makes up for it",
    "scores.py:QKNorm": "cosine with learned temperature",
    "scores.py:MaximalUpdate": "1 / d, declared",
    "scores.py:TalkingHeads": "rows do not sum to one, on purpose",
    "scores.py:SoftmaxPlusOne": "rows do not sum to one, on purpose",
    "scores.py:SigmoidAttention": "rows do not sum to one, on purpose",
    "scores.py:AdditiveAttention": "no product of queries and keys",
    "scores.py:GroupedQuery": "fewer key heads",
    "scores.py:MultiQuery": "one key head",
    "scores.py:SlidingWindow": "a declared window",
    "scores.py:SharedQK": "queries and keys shared, declared; a penalty on the diagonal",
    "scores.py:RelativeBias": "a learned bias that starts at zero",
    "scores.py:GatedAttention": "a gate after the heads",
}

MIXERS = {
    "mixers.py:LinearAttention": "no softmax, bidirectional",
    "mixers.py:CausalLinearAttention": "prefix sums",
    "mixers.py:EfficientAttention": "softmax over positions of the keys and over features of the queries",
    "mixers.py:Retention": "decay instead of normalization",
    "mixers.py:MixerBlock": "one fixed length",
    "mixers.py:GatedMLP": "one fixed length",
    "mixers.py:FourierMixing": "no parameters in the mixing",
    "mixers.py:GRUMixer": "recurrent",
    "mixers.py:SelectiveScan": "a loop over time",
    "mixers.py:CausalConv": "padded on the left",
    "mixers.py:TokenShift": "padded, not rolled",
    "mixers.py:ConformerConv": "sees two neighbours on each side",
    "mixers.py:AttentionFree": "softmax over the positions of the keys",
    "mixers.py:PoolMixer": "no parameters in the mixing",
    "mixers.py:FixedFeatures": "random features drawn once",
    "mixers.py:ScaledDotInPlace": "bilinear scores",
    "layouts.py:SequenceFirst": "sequence first, in a shape comment",
    "layouts.py:TorchSequenceFirst": "sequence first, in the docstring",
    "layouts.py:TransposedInside": "turns its input for a time-first layer",
    "layouts.py:ChannelsFirst": "channels first",
    "layouts.py:ConvStack": "channels first, dilated",
}

BLOCKS = {
    "blocks.py:PreNorm": "pre-norm",
    "blocks.py:PostNorm": "post-norm",
    "blocks.py:ReZero": "gains start at zero, no norms",
    "blocks.py:DeepNorm": "the skip is scaled up",
    "blocks.py:Sandwich": "four norms",
    "blocks.py:Parallel": "attention and MLP side by side, one norm",
    "blocks.py:LayerScaled": "gains start at 1e-4",
    "blocks.py:Gated": "a highway instead of a sum",
    "blocks.py:SwiGLU": "Llama-like",
    "blocks.py:MixtureOfExperts": "each token chooses experts; unchosen ones have no gradient",
    "blocks.py:CapacityExperts": "tokens of the whole batch compete for room in an expert",
    "blocks.py:CrossBlock": "self- and cross-attention",
    "blocks.py:StochasticDepth": "random in training alone",
    "blocks.py:ScaledSum": "the sum is divided by sqrt(2)",
}

MODELS = {
    "models.py:GPT": "tied weights, a tuple out",
    "models.py:SinusoidalLM": "sinusoids in a buffer that is not saved",
    "models.py:MaskedLM": "bidirectional, attention mask",
    "models.py:SharedLayers": "weights shared on purpose",
    "models.py:UniversalTransformer": "weights shared on purpose",
    "models.py:VisionTransformer": "class token and positions start at zero; pooled",
    "models.py:Registers": "extra tokens inside",
    "models.py:LSTMLanguageModel": "recurrent",
    "models.py:FirstTokenClassifier": "pooled at the first token",
    "caches.py:CachedAttention": "the mask is shifted by the cache",
    "caches.py:RotaryCached": "angles go on",
    "caches.py:GeneratingGPT": "positions go on",
}

TORCH = {
    "torch_layers.py:multihead_batch_first": "batch first",
    "torch_layers.py:multihead_sequence_first": "sequence first, by its attribute",
    "torch_layers.py:multihead_dropout": "without biases",
    "torch_layers.py:encoder_layer": "post-norm",
    "torch_layers.py:encoder_layer_sequence_first": "pre-norm, sequence first",
    "torch_layers.py:encoder": "two layers",
    "torch_layers.py:decoder_layer": "needs a memory",
    "torch_layers.py:CausalEncoderLayer": "causal by an additive mask",
    "torch_layers.py:LSTMLayer": "recurrent in both directions",
    "torch_layers.py:CrossAttention": "needs a memory",
    "torch_layers.py:LatentCross": "latents ask; pooled",
}

VARIANTS = {
    "variants.py:Differential": "the difference of two maps: rows do not sum to one, weights are negative",
    "variants.py:Sinks": "a sink takes a part of each row",
    "variants.py:LatentKV": "keys and values from one latent",
    "variants.py:NormedQueries": "layer norm on queries and keys",
    "variants.py:ChunkedLocal": "a declared window",
    "variants.py:LongConvolution": "a convolution by Fourier transform leaks only rounding errors",
    "variants.py:Hourglass": "complete chunks alone are seen",
    "variants.py:SplitCat": "heads in front of the batch, masks repeated to match",
    "variants.py:ValidLengths": "lengths instead of a mask",
    "variants.py:Distance": "no product of queries and keys",
    "variants.py:Macaron": "two half feed-forwards",
    "variants.py:LayerDropEncoder": "Python's random numbers, in training alone",
    "variants.py:InducedSet": "another number of queries inside",
    "variants.py:MaskRequired": "cannot be called without a mask",
    "variants.py:SAGANBlock": "the gain starts at zero: the identity at the start",
    "variants.py:ConvClassifier": "pooled, no attention",
    "variants.py:WeightNormed": "weights are recomputed before every call, by a hook or a parametrization",
    "variants.py:SpectralNormed": "the same, with the spectral norm",
    "variants.py:SelfNormed": "the same, by hand",
}

SUBTLE = {
    "subtle.py:MixedOrders": "orders of features differ, which is a permutation of parameters",
    "subtle.py:PackedLSTM": "packed; lengths go to the CPU because they must",
    "subtle.py:WordPooling": "the pooling is masked",
    "subtle.py:KeptMask": "a mask kept between calls, which is harmless",
    "subtle.py:PartialRotary": "half of the features rotated",
    "subtle.py:FrozenPositions": "a parameter that is not trained",
    "subtle.py:LowRankAdapter": "the first factor has no gradient at the start",
    "subtle.py:SoftCapped": "tanh over the scores",
    "subtle.py:ZeroProjections": "the identity at the start",
    "subtle.py:NestedBlock": "Residual(PreNorm(...))",
    "subtle.py:OnlineSoftmax": "no matrix of weights at all",
    "subtle.py:Checkpointed": "activations are recomputed",
    "subtle.py:Counting": "counts its calls, which changes nothing",
    "subtle.py:TopOneRouter": "the gate gives the router its gradient",
    "subtle.py:PrimerAttention": "convolutions over the past",
    "subtle.py:ShiftedRelative": "positions as a second score",
    "subtle.py:TwoLayerGPT": "a cache per layer",
}

STARTS = {
    "starts.py:LogProbabilities": "log-probabilities have the loss of their logits",
    "starts.py:Probabilities": "probabilities, declared",
    "starts.py:TiedLM": "tied tables of standard deviation 0.02",
    "starts.py:ZeroHead": "the head starts at zero",
    "starts.py:SoftCapped": "logits between -30 and 30",
    "starts.py:FrequentTokens": "the bias starts at the logarithm of frequencies",
    "starts.py:UnitOutput": "outputs of length 1",
}

UNUSUAL = {
    "unusual.py:StackedParameters": "all projections in one parameter",
    "unusual.py:Functional": "the functional form; sequence first, in a comment",
    "unusual.py:LoopedQueries": "one query at a time",
    "unusual.py:ReformerShared": "queries and keys shared, keys of unit length",
    "unusual.py:LazyBuffers": "the mask grows when it must",
    "unusual.py:TimeFirstGRU": "sequence first, in docstring and comment",
    "unusual.py:Wave": "one number per position, (batch, length)",
    "unusual.py:SqueezeReLU": "four rectified units, which may be closed by chance",
}

LAB = (
    "plain",
    "causal",
    "readable",
    "rotary",
    "linear_bias",
    "relative_bias",
    "additive",
    "bilinear",
    "cosine",
    "full_width",
    "grouped",
    "multi_query",
    "plus_one",
    "sparsemax",
    "sigmoid",
    "linear",
    "talking_heads",
    "attended_heads",
    "summed_heads",
    "concatenated_heads",
    "window",
    "linear_attention",
    "fastformer",
    "lstm",
    "convolution",
    "pre_norm_block",
    "post_norm_block",
    "decoder",
    "encoder",
)

HUGGING_FACE = (
    "gpt2_attention",
    "gpt2_block",
    "gpt2_model",
    "bert_self_attention",
    "bert_attention",
    "bert_layer",
    "bert_model",
    "llama_attention",
    "llama_decoder_layer",
    "llama_model",
    "t5_attention",
    "t5_self_attention",
    "t5_block",
)

CROSSING = {
    "crossing.py:Cross": "keys and values come from a memory",
    "crossing.py:SameArguments": "a memory that it says not to look at",
    "crossing.py:TwoStreams": "the memory goes into the second result alone",
    "crossing.py:TwoKeys": "two keys of a summary",
    "crossing.py:Landmarks": "a softmax between two others, inverted",
    "crossing.py:ThinnedAgain": "the largest weights, divided by their sum",
    "crossing.py:ThinnedOnPurpose": "the largest weights, said not to be normalized again",
    "crossing.py:Twice": "the same weights applied twice",
    "crossing.py:NarrowStart": "weights of variance 1 / d_model",
    "crossing.py:DecayedScores": "a decay of distances, which are never negative",
}

MEMORY = {
    "memory.py:CrossLayer": "a mask over the memory; encoder-decoder attention is not causal",
    "memory.py:DecoderLayer": "causal, with a mask over the memory",
    "memory.py:RequiredMasks": "both masks must be given",
    "memory.py:PointerHead": "decoder states are an input, not a claim",
    "memory.py:AutoencoderDecoderBlock": "a decoder that sees all patches",
    "memory.py:TokenMask": "1 = token, said beside other ids",
    "memory.py:Latents": "as many outputs at every length",
    "memory.py:Seeds": "two vectors for a set, with a mask",
}

SAYING = {
    "saying.py:KeptForTorch": "batch first as its docstring says, with an attribute batch_first=False for torch",
    "saying.py:AsksByFlag": "causal by a flag whose name ends in mask",
    "saying.py:MissingDays": "a parameter that stands in where rows are zero",
    "saying.py:SkewedDistances": "distances that are right under a causal mask alone; nobody says which is meant",
    "saying.py:MasksTogether": "a mask over keys that acts beside a boolean one over pairs",
    "saying.py:NumberOfAClass": "a rate called like a class of its file, a feed-forward called positional",
    "saying.py:SwitchedTable": "positions that a required switch leaves out, in a method of their own",
}

WRITTEN = {
    **PLAIN,
    **MASKED,
    **SCORES,
    **MIXERS,
    **BLOCKS,
    **MODELS,
    **VARIANTS,
    **SUBTLE,
    **TORCH,
    **STARTS,
    **UNUSUAL,
    **MEMORY,
    **CROSSING,
    **SAYING,
}

RIGHT = (
    *(Case(f"right/{name}", why, arguments=SIZES.get(name, {})) for name, why in WRITTEN.items()),
    *(Case(f"right/lab.py:{name}", "a part of the lab") for name in LAB),
    *(
        Case(f"right/hugging_face.py:{name}", "Hugging Face's own")
        for name in HUGGING_FACE
        if find_spec("transformers") is not None
    ),
)
