"""The parts of attention and of a block, one file per axis of variation.

Six axes make an attention layer: `heads`, `positions`, `scores`, `masks`, `normalizers`, `combiners`;
`attention` composes them. `mixers` has attention and its rivals, `feedforward`, `norms` and `init` the rest of a
block, `block` the wiring. Every such file ends with one table, name -> class, from the plainest to the strangest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.nn.attention import Attention
    from attnlab.nn.axes.combiners import COMBINERS, AbstractCombiner, Concatenate, Project, Sum, TalkingHeads
    from attnlab.nn.axes.heads import HEADS, AbstractHeads, FullWidthHeads, GroupedHeads, MultiQueryHeads, SplitHeads
    from attnlab.nn.axes.masks import MASKS, AbstractMask, Causal, Dilated, Full, Padding, Window
    from attnlab.nn.axes.normalizers import NORMALIZERS, AbstractNormalizer, Sigmoid, Softmax, SoftmaxPlusOne, Sparsemax
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
    from attnlab.nn.trace import Trace

__getattr__, __dir__ = contents(
    __name__,
    {
        "AbstractCombiner": "attnlab.nn.axes.combiners",
        "AbstractHeads": "attnlab.nn.axes.heads",
        "AbstractInputPositions": "attnlab.nn.axes.positions",
        "AbstractMask": "attnlab.nn.axes.masks",
        "AbstractNormalizer": "attnlab.nn.axes.normalizers",
        "AbstractScore": "attnlab.nn.axes.scores",
        "AbstractScorePositions": "attnlab.nn.axes.relative_positions",
        "AdditiveScore": "attnlab.nn.axes.scores",
        "Attention": "attnlab.nn.attention",
        "BLOCKS": "attnlab.nn.block",
        "BilinearScore": "attnlab.nn.axes.scores",
        "Block": "attnlab.nn.block",
        "COMBINERS": "attnlab.nn.axes.combiners",
        "Causal": "attnlab.nn.axes.masks",
        "Concatenate": "attnlab.nn.axes.combiners",
        "ConvolutionMixer": "attnlab.nn.mixers",
        "CosineScore": "attnlab.nn.axes.scores",
        "Dilated": "attnlab.nn.axes.masks",
        "DotScore": "attnlab.nn.axes.scores",
        "FEEDFORWARDS": "attnlab.nn.feedforward",
        "Fastformer": "attnlab.nn.recurrences",
        "Full": "attnlab.nn.axes.masks",
        "FullWidthHeads": "attnlab.nn.axes.heads",
        "GatedFeedForward": "attnlab.nn.feedforward",
        "GeluFeedForward": "attnlab.nn.feedforward",
        "GroupedHeads": "attnlab.nn.axes.heads",
        "HEADS": "attnlab.nn.axes.heads",
        "INITS": "attnlab.nn.init",
        "LayerNorm": "attnlab.nn.norms",
        "LearnedConcatenated": "attnlab.nn.axes.positions",
        "LearnedPositions": "attnlab.nn.axes.positions",
        "LinearAttention": "attnlab.nn.recurrences",
        "LinearBias": "attnlab.nn.axes.relative_positions",
        "LiteralBlock": "attnlab.nn.block",
        "MASKS": "attnlab.nn.axes.masks",
        "MIXERS": "attnlab.nn.mixers",
        "MixtureOfExperts": "attnlab.nn.feedforward",
        "MultiQueryHeads": "attnlab.nn.axes.heads",
        "NORMALIZERS": "attnlab.nn.axes.normalizers",
        "NORMS": "attnlab.nn.norms",
        "NoFeedForward": "attnlab.nn.feedforward",
        "NoMixer": "attnlab.nn.mixers",
        "NoPositions": "attnlab.nn.axes.relative_positions",
        "POSITIONS": "attnlab.nn.axes.positions",
        "Padding": "attnlab.nn.axes.masks",
        "PositionWise": "attnlab.nn.mixers",
        "Project": "attnlab.nn.axes.combiners",
        "RelativeBias": "attnlab.nn.axes.relative_positions",
        "ReluFeedForward": "attnlab.nn.feedforward",
        "RmsNorm": "attnlab.nn.norms",
        "RotaryPositions": "attnlab.nn.axes.relative_positions",
        "SCORES": "attnlab.nn.axes.scores",
        "ScaledDotScore": "attnlab.nn.axes.scores",
        "Sigmoid": "attnlab.nn.axes.normalizers",
        "SinusoidalConcatenated": "attnlab.nn.axes.positions",
        "SinusoidalPositions": "attnlab.nn.axes.positions",
        "Softmax": "attnlab.nn.axes.normalizers",
        "SoftmaxPlusOne": "attnlab.nn.axes.normalizers",
        "Sparsemax": "attnlab.nn.axes.normalizers",
        "SplitHeads": "attnlab.nn.axes.heads",
        "SquaredReluFeedForward": "attnlab.nn.feedforward",
        "Sum": "attnlab.nn.axes.combiners",
        "TalkingHeads": "attnlab.nn.axes.combiners",
        "Trace": "attnlab.nn.trace",
        "Window": "attnlab.nn.axes.masks",
        "adapt": "attnlab.nn.foreign",
    },
)

__all__ = [
    "BLOCKS",
    "COMBINERS",
    "FEEDFORWARDS",
    "HEADS",
    "INITS",
    "MASKS",
    "MIXERS",
    "NORMALIZERS",
    "NORMS",
    "POSITIONS",
    "SCORES",
    "AbstractCombiner",
    "AbstractHeads",
    "AbstractInputPositions",
    "AbstractMask",
    "AbstractNormalizer",
    "AbstractScore",
    "AbstractScorePositions",
    "AdditiveScore",
    "Attention",
    "BilinearScore",
    "Block",
    "Causal",
    "Concatenate",
    "ConvolutionMixer",
    "CosineScore",
    "Dilated",
    "DotScore",
    "Fastformer",
    "Full",
    "FullWidthHeads",
    "GatedFeedForward",
    "GeluFeedForward",
    "GroupedHeads",
    "LayerNorm",
    "LearnedConcatenated",
    "LearnedPositions",
    "LinearAttention",
    "LinearBias",
    "LiteralBlock",
    "MixtureOfExperts",
    "MultiQueryHeads",
    "NoFeedForward",
    "NoMixer",
    "NoPositions",
    "Padding",
    "PositionWise",
    "Project",
    "RelativeBias",
    "ReluFeedForward",
    "RmsNorm",
    "RotaryPositions",
    "ScaledDotScore",
    "Sigmoid",
    "SinusoidalConcatenated",
    "SinusoidalPositions",
    "Softmax",
    "SoftmaxPlusOne",
    "Sparsemax",
    "SplitHeads",
    "SquaredReluFeedForward",
    "Sum",
    "TalkingHeads",
    "Trace",
    "Window",
    "adapt",
]
