"""Published models as their papers build them: the same classes with other defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from attnlab.core.build import Spec
from attnlab.models.encoder_decoder import EncoderDecoder
from attnlab.models.stacks import Norm

BASE_MIXER: Mapping[str, Any] = {"name": "attention", "n_heads": 8, "dropout": 0.0}
BIG_MIXER: Mapping[str, Any] = {"name": "attention", "n_heads": 16, "dropout": 0.0}


class TransformerBase(EncoderDecoder):
    """The base model of "Attention is all you need": 6 + 6 layers of width 512, 8 heads, feed-forward 2,048.

    Notes
    -----
    63.1 million parameters with 37,000 shared tokens, where the paper says 65; no size of the vocabulary fits all rows
    of its Table 3. Dropout acts where the paper says: on sums of embedding and position and on sublayers, not on
    attention weights.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, Table 3, row "base".
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        max_length: int,
        *,
        pad: int = 0,
        d_model: int = 512,
        n_layers: int = 6,
        mixer: Spec | Sequence[Spec] = BASE_MIXER,
        feedforward: Spec = "relu",
        norm: Norm = "post",
        dropout: float = 0.1,
        positions: Spec = "sinusoidal",
    ) -> None:
        super().__init__(
            source_vocab_size,
            target_vocab_size,
            max_length,
            pad=pad,
            d_model=d_model,
            n_layers=n_layers,
            mixer=mixer,
            feedforward=feedforward,
            norm=norm,
            dropout=dropout,
            positions=positions,
        )


@final
class TransformerBig(TransformerBase):
    """The big model of "Attention is all you need": 6 + 6 layers of width 1,024, 16 heads, feed-forward 4,096.

    Notes
    -----
    214.2 million parameters with 37,000 shared tokens, where the paper says 213.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, Table 3, row "big".
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        max_length: int,
        *,
        pad: int = 0,
        d_model: int = 1024,
        n_layers: int = 6,
        mixer: Spec | Sequence[Spec] = BIG_MIXER,
        feedforward: Spec = "relu",
        norm: Norm = "post",
        dropout: float = 0.3,
        positions: Spec = "sinusoidal",
    ) -> None:
        super().__init__(
            source_vocab_size,
            target_vocab_size,
            max_length,
            pad=pad,
            d_model=d_model,
            n_layers=n_layers,
            mixer=mixer,
            feedforward=feedforward,
            norm=norm,
            dropout=dropout,
            positions=positions,
        )
