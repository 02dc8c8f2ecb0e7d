"""The parts of attention and of a block, one file per axis of variation.

Six axes make an attention layer: `heads`, `positions`, `scores`, `masks`, `normalizers`, `combiners`;
`attention` composes them. `mixers` has attention and its rivals, `feedforward`, `norms` and `init` the rest of a
block, `block` the wiring. Every such file ends with one table, name -> class, from the plainest to the strangest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.nn.attention import Attention, Trace
    from attnlab.nn.axes.combiners import (
        COMBINERS,
        AbstractCombiner,
        AttentionOverHeads,
        Concatenate,
        Convolution,
        Project,
        Sum,
        TalkingHeads,
    )
    from attnlab.nn.axes.heads import HEADS, AbstractHeads, FullWidthHeads, GroupedHeads, MultiQueryHeads, SplitHeads
    from attnlab.nn.axes.masks import MASKS, AbstractMask, Causal, Dilated, Full, Padding, Window
    from attnlab.nn.axes.normalizers import (
        NORMALIZERS,
        AbstractNormalizer,
        Hardmax,
        Sigmoid,
        Softmax,
        SoftmaxPlusOne,
        Sparsemax,
        UniformWeights,
    )
    from attnlab.nn.axes.positions import (
        POSITIONS,
        AbstractInputPositions,
        LearnedConcatenated,
        LearnedPositions,
        SinusoidalConcatenated,
        SinusoidalPositions,
    )
    from attnlab.nn.axes.relative_positions import (
        AbstractScorePositions,
        LinearBias,
        NoPositions,
        RelativeBias,
        RotaryPositions,
    )
    from attnlab.nn.axes.scores import (
        SCORES,
        AbstractScore,
        AdditiveScore,
        BilinearScore,
        CosineScore,
        DotScore,
        ScaledDotScore,
    )
    from attnlab.nn.block import BLOCKS, Block, LiteralBlock
    from attnlab.nn.feedforward import (
        FEEDFORWARDS,
        GatedFeedForward,
        GeluFeedForward,
        MixtureOfExperts,
        NoFeedForward,
        ReluFeedForward,
        SquaredReluFeedForward,
    )
    from attnlab.nn.foreign import adapt
    from attnlab.nn.init import INITS
    from attnlab.nn.mixers import MIXERS, ConvolutionMixer, NoMixer, PositionWise
    from attnlab.nn.norms import NORMS, LayerNorm, RmsNorm
    from attnlab.nn.recurrences import Fastformer, LinearAttention

__getattr__, __dir__, __all__ = contents(__name__)
