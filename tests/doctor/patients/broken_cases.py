"""What is wrong with each broken module, sorted by the check it was written for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.doctor.patients.case import Case

SIZES: Mapping[str, Mapping[str, Any]] = {
    "forum.py:SimpleAttention": {"emb_size": 64, "head_size": 64},
    "forum.py:ResidualAttention": {"emb_size": 64, "head_size": 64},
    "forum.py:LayNormResAttention": {"emb_size": 64, "head_size": 64},
    "forum.py:TorchMhAttention": {"emb_size": 64, "head_size": 64},
    "forum.py:AttentionLayer": {"in_channels": 64, "out_channels": 64, "key_channels": 32},
    "forum.py:LSTM": {"dim_in": (11, 64), "n_out": 64, "n_hidden": 32, "n_layers": 1},
    "blocks.py:SkipAttention": {"emb_size": 64, "head_size": 64},
    "numbers.py:TensorScale": {"hid_dim": 64},
}
"""Constructor arguments a person would give."""

CAUSALITY = {
    "causal_attention.py:CausalSelfAttention": "tril(diagonal=1): the next token is seen",
    "causal_attention.py:Head": "the mask is -10: leaks with large logits, a little with small ones",
    "causal_attention.py:MaskedSelfAttention": "the mask is -100: leaks with large logits alone",
    "causal_attention.py:TriangularAttention": "scores times the mask: a zero is still e^0 in the softmax",
    "causal_attention.py:DecoderSelfAttention": "the mask is transposed: the past is hidden, the future seen",
    "causal_attention.py:TorchCausal": "a 0/1 float mask is added to the scores instead of blocking",
    "causal_attention.py:FlashCausal": "is_causal=self.training: no mask in evaluation",
    "causal_attention.py:WindowedCausal": "takes the last rows of the mask: right at the full length, open below it",
    "causal_attention.py:LoopedHeads": "the last head has no mask",
    "causal_attention.py:SelfAttn": "tril(2), undeclared: neither causal nor bidirectional",
    "causal_mixers.py:CausalConv": "symmetric padding: half of the kernel sees the future",
    "causal_mixers.py:TokenShift": "roll wraps around: the first token sees the last",
    "causal_mixers.py:CausalLinearAttention": "sums over the whole sequence instead of prefix sums",
    "causal_mixers.py:NormedCausalBlock": "group norm over (channels, length): statistics of the future",
    "causal_mixers.py:GatedCausalAttention": "the gate sees the mean of the whole sequence, weighted 0.01",
    "causal_mixers.py:TinyGPT": "the boolean mask blocks the past instead of the future",
    "causal_mixers.py:CharModel": "the second layer has no mask",
    "causal_mixers.py:Retention": "decay by |distance|: the future decays but is seen",
    "language_models.py:BooleanMask": "the lower triangle is what is hidden",
    "language_models.py:BigramMixer": "the neighbour is the next token",
    "language_models.py:RecurrentLM": "the recurrent layer reads in both directions",
    "language_models.py:TrimmedConv": "padded on both sides and trimmed on the wrong one",
    "language_models.py:JointNormBlock": "layer norm over (length, features) together",
    "language_models.py:CompressedMemory": "the average of the chunk that is still running is seen",
    "language_models.py:SymmetricWindow": "the window reaches into the future",
    "lengths.py:TimeFirstCausal": "triu(2): the next token is seen; sequence first",
    "subtle.py:ConvFeedForward": "the convolution of the feed-forward sees one step ahead",
    "subtle.py:GlobalTokens": "global tokens gather from the future and are read by all",
    "subtle.py:EvalMask": "no mask in training",
    "subtle.py:SmoothedMask": "the future gets a thousandth of its weight",
}

PADDING = {
    "padding.py:SelfAttention": "masked_fill without underscore, its result is thrown away",
    "padding.py:Classifier": "mean over all positions, padding included",
    "padding.py:SentenceEncoder": "the sum of real positions is divided by the padded length",
    "padding.py:SoftMasked": "padding gets -4: less weight, not none",
    "padding.py:QuerySideMask": "the mask is laid along the queries",
    "padding.py:StackedEncoder": "the second layer does not get the mask",
    "padding.py:ConvAttention": "the convolution mixes padding into the last real positions",
    "padding.py:MultipliedMask": "scores times the mask: padding keeps the weight of score zero",
    "padding.py:MaxPooledEncoder": "padding is zeroed before the maximum: it wins over negative features",
    "padding.py:FoldedMask": "repeat instead of repeat_interleave: heads get the masks of other samples",
    "padding.py:LastState": "the state after the padding is taken",
    "padding.py:InstanceNormed": "instance norm over the length: padding is in the statistics",
    "lengths.py:ValidLengths": "step > lengths: one padded position is seen",
    "lengths.py:SqueezeExcite": "the summary averages over padding",
    "lengths.py:MaskedSequenceFirst": "the summary averages over padding; sequence first",
    "lengths.py:StackedMasks": "repeat_interleave instead of repeat: heads get the masks of other samples",
    "subtle.py:WordPooling": "the pooling's softmax runs over padding",
    "subtle.py:AverageWords": "divided by the average number of words of the batch",
}

POLARITY = {
    "masks.py:EncoderAttention": "key_padding_mask: True is kept, usual is ignored",
    "masks.py:BertAttention": "attention_mask * -10000: the real tokens are hidden",
    "masks.py:DocumentedAttention": "the docstring says True may attend, the code blocks it",
    "masks.py:SDPAWithMask": "the docstring says True is blocked, SDPA keeps it",
    "masks.py:PostNormLayer": "src_key_padding_mask is inverted on its way to nn.MultiheadAttention",
    "lengths.py:DocumentedPadding": "the docstring says 1 is padding, the code hides 0",
    "subtle.py:ForwardedMask": "1 = keep is handed on as True = ignore",
}

MASKED_ROW = {
    "masks.py:DecoderAttention": "causal and left padding with -inf: the first rows are NaN",
    "masks.py:ZeroedRows": "-inf is added and the softmax's NaN replaced: the outputs are clean, the gradients NaN",
    "masks.py:StrictlyPast": "the first position sees nothing: NaN without any mask given",
    "masks.py:PairwisePadding": "padded queries are masked too: NaN with ordinary right padding",
    "masks.py:EmptyRowAttention": "an empty row is documented to give zeros and gives NaN",
    "language_models.py:Decoder": "triu without diagonal=1: the first row sees nothing",
    "subtle.py:HandMaskedSoftmax": "an empty row is documented and gives 0 / 0",
}

BATCH = {
    "batch.py:TorchSelfAttention": "nn.MultiheadAttention without batch_first",
    "batch.py:LSTMTagger": "nn.LSTM without batch_first",
    "batch.py:SingleHead": "softmax over the batch",
    "batch.py:EinsumAttention": "the letter of the values' batch differs: values are summed over the batch",
    "batch.py:ContextMixer": "mean over the batch instead of the positions",
    "batch.py:StandardizedAttention": "mean and deviation of the scores are taken over the batch",
    "batch.py:EncoderLM": "nn.TransformerEncoder without batch_first on (batch, length) tokens",
    "forum.py:LSTM": "[bs, length, features] into nn.LSTM without batch_first, states kept between calls",
    "variants.py:FlattenedAttention": "all sequences are flattened into one",
    "variants.py:RescaledKeys": "keys are divided by the maximum over the batch",
    "lengths.py:SAGANBlock": "softmax over the batch; channels first",
    "lengths.py:WholeBatchNormalized": "queries are normalized along the batch",
    "subtle.py:TwiceTransposed": "transposed for a time-first layer, but the layer is batch first",
    "subtle.py:ViewedSequence": "reshape instead of transpose: samples are scrambled",
}

NORMALIZATION = {
    "weights.py:Attention": "softmax over the queries",
    "weights.py:HeadwiseAttention": "softmax over the heads",
    "weights.py:JointSoftmax": "softmax over all pairs at once",
    "weights.py:MaskedAfterwards": "the causal mask is applied after the softmax, without renormalizing",
    "weights.py:PaddedAttention": "the padding mask is applied after the softmax, without renormalizing",
    "variants.py:KeysTimesQueries": "keys times queries: softmax over the queries",
    "variants.py:LogWeights": "log_softmax in place of softmax",
    "lengths.py:ChannelAttention": "softmax over the queries; channels first",
    "subtle.py:BmmAttention": "softmax(dim=1) of (batch, q, k): over the queries",
}

SCALE = {
    "weights.py:UnscaledAttention": "no scale",
    "weights.py:FusedAttention": "scaled twice: by hand and inside SDPA",
    "weights.py:WidthScaled": "scaled by the width of the model, not of a head",
    "weights.py:LengthScaled": "k is transposed before k.size(-1) is read: scaled by the length",
    "weights.py:MultipliedAttention": "multiplied by d_head",
    "forum.py:AttentionLayer": "no scale",
    "variants.py:ScaledAfterwards": "divided by sqrt(d) after the softmax",
    "variants.py:HeadCountScaled": "divided by the root of the number of heads",
    "subtle.py:DividedByWidth": "divided by d_head, not its root",
    "subtle.py:BothScaled": "queries and keys are both scaled: 1 / d_head",
}

HEADS = {
    "heads.py:MultiHeadAttention": "view(B, heads, T, d) without transpose",
    "heads.py:ReshapedAttention": "heads are joined without transposing back",
    "heads.py:KeyFirstAttention": "keys are reshaped, not transposed, to columns",
    "heads.py:ViTAttention": "qkv reshaped as (B, 3, heads, N, d) from (B, N, 3 C)",
    "heads.py:AcrossHeads": "no transpose at all: every token attends over its own heads",
    "heads.py:BatchedHeads": "(B * heads, t, s) is viewed as (B, t, e)",
    "heads.py:SequenceFirstHeads": "(B * heads, T, d) is reshaped to (T, B, C)",
    "variants.py:SplitCat": "heads stacked in front of the batch are read as behind it",
    "variants.py:PermutedMerge": "permuted as (batch, d, heads, T) before the reshape",
    "subtle.py:KeysViewed": "keys alone are viewed without transpose",
    "subtle.py:ChannelMerge": "(b, n, d) is viewed as (b, d, n)",
}

DEAD = {
    "parts.py:MultiHead": "heads in a plain list: their parameters are not registered",
    "parts.py:QKVAttention": "values come from the keys' projection, v_proj is unused",
    "parts.py:TiedByName": "keys come from W_q, W_k is unused",
    "parts.py:ChainedAssignment": "keys = queries = one layer, by chained assignment",
    "parts.py:NoProjection": "out_proj is never applied",
    "parts.py:KeepsWeights": "the detached map is used: queries and keys get no gradient",
    "parts.py:DataScores": ".data cuts the scores off",
    "parts.py:HeadLoop": "the loop starts at head 1: head 0 stays zero",
    "parts.py:LayerStack": "every layer reads the input: only the last one counts",
    "parts.py:ElementwiseScores": "softmax over an axis of length one: weights are always 1",
    "parts.py:GroupedQuery": "only the first of two key-value heads is used",
    "variants.py:ItemTemperature": "float() of the temperature: it is never learned",
    "variants.py:SameIndex": "keys are the queries: a third of qkv has no influence",
    "variants.py:FirstHeadOnly": "the first head is used in place of all",
    "variants.py:DropsItself": "the sum adds x to itself, the attention is thrown away",
    "subtle.py:SavedMemory": "keys under no_grad: k_proj is never learned",
    "subtle.py:HardRouter": "argmax: the router gets no gradient",
}

RESIDUAL = {
    "blocks.py:EncoderBlock": "no skip at all",
    "blocks.py:PreNormBlock": "no skip around the feed-forward",
    "blocks.py:TransformerBlock": "the attention adds its input, the block adds it again",
    "blocks.py:SkipAttention": "the sum stands under a linear map and a ReLU",
    "blocks.py:ResidualBlock": "residual is taken after the attention",
    "blocks.py:MultiplicativeBlock": "multiplied instead of added",
    "blocks.py:RectifiedBlock": "the first sum stands under a linear map and a GELU",
    "forum.py:ResidualAttention": "the sum stands under a linear map and a ReLU",
    "forum.py:LayNormResAttention": "the sum stands under a linear map and a ReLU",
    "forum.py:TorchMhAttention": "the sum stands under a linear map and a ReLU",
    "variants.py:ReluAfterSum": "a ReLU after each sum: nothing negative passes",
}

NORM = {
    "blocks.py:OneNormBlock": "ln1 is used twice, ln2 never",
    "blocks.py:CalledNorm": "norm1 is called and its result thrown away",
    "blocks.py:NamedNorm": "norm2's result is thrown away",
    "blocks.py:FinalNormModel": "ln_f is never used",
    "blocks.py:NormPerBlock": "both normed values are thrown away",
    "subtle.py:OneNormOfMany": "the second norm is never used",
}

POSITIONS = {
    "positions.py:WordEncoder": "pe is cut by x.size(0): added along the batch",
    "positions.py:SinusoidClassifier": "positions are looked up and never added",
    "positions.py:LearnedPositions": "every token gets the vector of position 0",
    "positions.py:TokenAndPosition": "positions are looked up by the token",
    "positions.py:RotaryAttention": "rotated before the transpose: the angle grows with the head, not the position",
    "positions.py:AlibiAttention": "the bias is constant along the keys: softmax does not see it",
    "positions.py:HalfRotary": "only the queries are rotated",
    "positions.py:RelativeBias": "steps - steps: one bias for all pairs",
    "language_models.py:ForgottenEncoding": "the encoding's result is thrown away",
    "language_models.py:RoundedPositions": "(i / n).long() is 0 for every position",
    "subtle.py:CutPositions": "every patch gets the first position",
    "subtle.py:CounterRotary": "keys are rotated the other way: scores depend on the sum of positions",
}

DETERMINISM = {
    "state.py:DropoutAttention": "F.dropout without training=self.training",
    "state.py:FlashDropout": "dropout_p is passed in evaluation too",
    "state.py:RandomFeatures": "random features are drawn anew at every call",
    "state.py:StatefulGRU": "the hidden state is kept between calls",
    "state.py:MaskOnce": "the mask of the first call is kept while shapes agree",
    "state.py:PlainDropout": "dropout is built and never applied",
    "state.py:RememberingAttention": "a running mean moves in evaluation and enters the output",
    "state.py:StochasticDepthBlock": "layers are dropped in evaluation too",
    "state.py:ReusedMap": "the attention map of an earlier call is used again",
    "language_models.py:LayerDropLM": "layers are dropped in evaluation, by Python's own random numbers",
    "variants.py:FreshDropout": "nn.Dropout is made inside forward: always in training mode",
    "variants.py:Annealed": "the temperature depends on the number of calls",
    "subtle.py:Queue": "a memory of earlier calls is attended to",
    "subtle.py:UnusedDropout": "dropout is stored and never applied",
}

CACHE = {
    "caches.py:CachedAttention": "the causal mask is not shifted by the length of the cache",
    "caches.py:RotaryCached": "rotary angles start at zero again",
    "caches.py:PrependedCache": "old keys are put behind the new ones",
    "caches.py:ShortMemory": "only the newest keys are returned",
    "caches.py:GeneratingGPT": "learned positions start at zero again",
    "cached_models.py:TwoLayerGPT": "every layer gets the cache of the first",
    "cached_models.py:DoubledValues": "the keys are returned in place of the values",
}

PRECISION = {
    "numbers.py:HandSoftmax": "exp without subtracting the maximum",
    "numbers.py:BigNegative": "-1e9 becomes -inf in fp16, times zero it is NaN",
    "numbers.py:SquaredDistance": "the kernel underflows to zero in every column: 0 / 0",
}

LIMITS = {
    "numbers.py:AttentionFree": "exp of the keys overflows in fp16, on large inputs",
    "variants.py:SquaredScores": "the square of an unscaled product overflows in fp16, on large inputs",
    "variants.py:Softplus": "log(1 + exp(x)) overflows in fp16, on large inputs",
}

MIXED_DTYPES = {
    "numbers.py:FloatMask": "a float32 mask turns bf16 scores into float32: the product with v fails",
    "numbers.py:TablePositions": "a float32 table that is no buffer: bf16 fails in the next linear map",
    "variants.py:WideSoftmax": "softmax in float32, not cast back",
}

DEVICE = {
    "numbers.py:UnregisteredMask": "the mask is no buffer and stays on the CPU",
    "numbers.py:RebuiltMask": "the mask is built on the CPU at every call",
    "numbers.py:TensorScale": "a scale tensor that is no buffer",
    "numbers.py:SinusoidEachTime": "sinusoids are built on the CPU at every call",
    "numbers.py:RecurrentMixer": "first states are built on the CPU",
    "forum.py:SimpleAttention": "the mask is built on the CPU at every call",
    "subtle.py:NumpyMask": "the mask comes from numpy, on the CPU",
}

START = {
    "starts.py:SoftmaxedLM": "returns probabilities that the loss takes for logits",
    "starts.py:SigmoidLM": "logits under a sigmoid",
    "starts.py:TiedLM": "the tied table keeps a standard deviation of 1, scaled up",
}

OVERFIT = {
    "starts.py:RectifiedLM": "a ReLU behind a bias of -20: every logit is zero",
    "starts.py:DetachedLM": "the logits are detached",
    "starts.py:RoundedLM": "rounding has no gradient",
    "starts.py:InPlaceLM": "a gate is changed in place that the gradient needs",
    "starts.py:NormedToNothing": "layer norm over one number gives its bias",
}

UNUSUAL = {
    "causality": {
        "unusual.py:WaveFilter": "padded with 3 and 1; one number per position",
        "unusual.py:HalfShiftedMask": "off by one in the first half alone",
    },
    "normalization": {"unusual.py:StackedParameters": "softmax(-2) over the queries, inside einsums"},
    "batch-independence": {
        "unusual.py:StatefulTagger": "the batch is read as time, and the state is kept",
        "unusual.py:encoder": "the function's docstring says batch first, the layer is not",
    },
    "mask-polarity": {"unusual.py:SameSignature": "True is said to forbid, SDPA keeps it"},
    "residual": {"unusual.py:NoSkip": "the sum starts from the attention's output, not from the input"},
}

CROSSING = {
    "heads-mixed": {"crossing.py:CrossMerge": "heads of a cross attention are merged in the wrong order"},
    "normalization": {
        "crossing.py:CrossColumns": "softmax over the queries, where keys come from another sequence",
        "crossing.py:ThinnedRows": "said to be a distribution, not divided by what is left",
        "crossing.py:Complement": "divided by the sums over the queries, which are nearly one",
    },
    "dead-parts": {
        "crossing.py:DeafCross": "the memory is asked for and not looked at",
        "crossing.py:OneKey": "a softmax over one key gives 1, whatever the query",
    },
    "scale": {"crossing.py:LargeStart": "weights of variance 1: logits grow with the width"},
    "precision": {"crossing.py:FarDecay": "a decay to the power of minus the position"},
}

MEMORY = {
    "mask-polarity": {
        "memory.py:InvertedCross": "the mask over the memory is inverted",
        "memory.py:DecoderLayer": "the mask over the memory is inverted, behind a causal self-attention",
    },
    "padding": {
        "memory.py:ForgetfulDecoder": "padding in the memory is zeroed before keys are made",
        "memory.py:NegativeOnly": "hides where the mask is below 0, which it never is",
        "memory.py:PaddedSeeds": "the mask comes after the softmax of seeds over a set",
    },
    "masked-row": {"memory.py:EmptyMemory": "a memory that may be empty gives NaN"},
    "batch-independence": {"memory.py:BatchNormLatents": "latents are normalized over the batch"},
    "determinism": {"memory.py:NoisyLatents": "functional dropout on latents acts in evaluation mode"},
}
"""Those that look at a memory, or pool to several vectors."""

ALSO: Mapping[str, frozenset[str]] = {
    "memory.py:PaddedSeeds": frozenset({"normalization"}),
    "starts.py:RectifiedLM": frozenset({"dead-parts"}),
    "starts.py:DetachedLM": frozenset({"dead-parts"}),
    "starts.py:RoundedLM": frozenset({"dead-parts"}),
    "starts.py:InPlaceLM": frozenset({"dead-parts"}),
    "starts.py:NormedToNothing": frozenset({"dead-parts"}),
    "unusual.py:StatefulTagger": frozenset({"determinism"}),
    "causal_attention.py:TorchCausal": frozenset({"mask-polarity"}),
    "causal_mixers.py:TinyGPT": frozenset({"mask-polarity"}),
    "padding.py:QuerySideMask": frozenset({"mask-polarity"}),
    "padding.py:FoldedMask": frozenset({"batch-independence"}),
    "batch.py:SingleHead": frozenset({"normalization"}),
    "forum.py:LSTM": frozenset({"determinism"}),
    "weights.py:MaskedAfterwards": frozenset({"causality"}),
    "weights.py:PaddedAttention": frozenset({"padding"}),
    "heads.py:SequenceFirstHeads": frozenset({"batch-independence"}),
    "heads.py:AcrossHeads": frozenset({"normalization"}),
    "positions.py:SinusoidClassifier": frozenset({"dead-parts"}),
    "positions.py:RelativeBias": frozenset({"dead-parts"}),
    "positions.py:WordEncoder": frozenset({"batch-independence"}),
    "state.py:MaskOnce": frozenset({"padding"}),
    "numbers.py:FloatMask": frozenset({"dtype-device"}),
    "numbers.py:TablePositions": frozenset({"dtype-device"}),
    "numbers.py:TensorScale": frozenset({"precision"}),
    "blocks.py:FinalNormModel": frozenset({"dead-parts"}),
    "blocks.py:OneNormBlock": frozenset({"dead-parts"}),
    "language_models.py:BooleanMask": frozenset({"mask-polarity", "masked-row"}),
    "language_models.py:Decoder": frozenset({"causality"}),
    "lengths.py:SAGANBlock": frozenset({"normalization"}),
    "lengths.py:StackedMasks": frozenset({"batch-independence"}),
    "variants.py:ScaledAfterwards": frozenset({"normalization"}),
    "variants.py:SplitCat": frozenset({"batch-independence"}),
    "variants.py:DropsItself": frozenset({"residual"}),
    "variants.py:WideSoftmax": frozenset({"dtype-device"}),
    "language_models.py:ForgottenEncoding": frozenset({"dead-parts"}),
    "subtle.py:AverageWords": frozenset({"batch-independence"}),
    "subtle.py:OneNormOfMany": frozenset({"dead-parts"}),
    "subtle.py:ViewedSequence": frozenset({"heads-mixed"}),
}
"""Checks whose error names the same fault as truly."""

BATCH_NORM = {"batch.py:NormalizedBlock": "batch norm: samples see each other in training"}
OVER_BATCH = {"batch.py:ExpertChoiceFFN": "experts choose among the tokens of all samples"}
CHOSEN = {"variants.py:ChosenDevice": "the device is chosen by what the machine has, not by where the input is"}
KNOWN_EFFECTS = BATCH_NORM | OVER_BATCH | CHOSEN
"""Told as warnings: somebody may mean them."""

BY_CHECK: Mapping[str, tuple[Mapping[str, str], ...]] = {
    "causality": (CAUSALITY,),
    "padding": (PADDING,),
    "mask-polarity": (POLARITY,),
    "masked-row": (MASKED_ROW,),
    "batch-independence": (BATCH, BATCH_NORM, OVER_BATCH),
    "normalization": (NORMALIZATION,),
    "scale": (SCALE,),
    "heads-mixed": (HEADS,),
    "dead-parts": (DEAD,),
    "residual": (RESIDUAL,),
    "norm-placement": (NORM,),
    "positions": (POSITIONS,),
    "determinism": (DETERMINISM,),
    "cache": (CACHE,),
    "precision": (PRECISION, LIMITS, MIXED_DTYPES),
    "dtype-device": (DEVICE, CHOSEN),
    "initial-loss": (START,),
    "overfit": (OVERFIT,),
}

BROKEN = tuple(
    Case(
        f"broken/{name}",
        why,
        check,
        ALSO.get(name, frozenset()),
        "warning" if name in {**MIXED_DTYPES, **LIMITS, **KNOWN_EFFECTS} else "error",
        SIZES.get(name, {}),
    )
    for check, tables in BY_CHECK.items()
    for table in (*tables, UNUSUAL.get(check, {}), MEMORY.get(check, {}), CROSSING.get(check, {}))
    for name, why in table.items()
)
