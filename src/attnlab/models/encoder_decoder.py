"""The Transformer of its first paper: an encoder reads a sequence, a decoder writes another one."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnlab.core.build import Spec, is_ready, look_up, opened
from attnlab.core.errors import SpecError
from attnlab.core.sizes import check_positive
from attnlab.models.stacks import Norm, Stack
from attnlab.models.translator import AbstractTranslator, Logits, Source, Target
from attnlab.nn.fitting import check_unshared
from attnlab.nn.init import INITS
from attnlab.nn.mixers import MIXERS

ATTENTION = "attention"
PLACES = ("masks", "positions", "causal")
"""Arguments of attention that compare places, which those of two sequences cannot be."""
WITHIN_ONE = frozenset({*PLACES, "path"})
"""Arguments of the mixer that its attention to another sequence does not take over."""

Embeddings = Literal["shared", "separate"]


class EncoderDecoder(AbstractTranslator):
    """Read a sequence of tokens, and predict each next token of another one from it and from what was written before.

    What is not said here is said of `AbstractTranslator`.

    Parameters
    ----------
    d_model : int, default 512
        Width of the residual stream.
    n_layers : int, default 6
        Number of blocks on each side.
    mixer : Spec or list of Spec, default "attention"
        What mixes positions on each side; a list gives one per layer.
    cross : Spec, optional
        What the decoder's blocks gather from the encoder's output with; unless given, the mixer's attention without its
        masks and positions, or plain attention where the mixer is no attention. Needed where the attentions of a list
        differ.
    feedforward : Spec, default "relu"
        Feed-forward sublayer.
    norm : {"pre", "post", "none"}, default "post"
        Place of the norm; "pre" gets one more norm after the last block of each side.
    norm_kind : Spec, optional
        Which norm; None leaves the choice to the block.
    dropout : float, default 0.1
        At the sum of embedding and position, at the end of every sublayer, and offered to mixers.
    positions : Spec, default "sinusoidal"
        Where a token stands: added to the embedding, or, where they act on scores, given to mixers within a side.
    embeddings : {"shared", "separate"}, default "shared"
        Whether both sides use one table; they need one vocabulary then.
    tied : bool, default True
        Whether the logits use the decoder's table; else a linear layer of its own.
    logits_bias : bool, optional
        Whether each token has a learned number that is added to its logit; unless given, where they are not tied.
    embedding_scale : float, optional
        What embeddings are multiplied by; ``sqrt(d_model)`` unless given.
    logits_scale : float, default 1.0
        What the decoder's output is multiplied by before the logits.
    init : str, default "xavier"
        Scheme of the initial weights. Tables start from N(0, 1 / d_model) whatever the scheme.

    Raises
    ------
    SpecError
        If a size is not positive, a part cannot be built, tables are to be shared by vocabularies of two sizes, or an
        argument has no effect.

    Notes
    -----
    With the defaults, d = d_model, V tokens and ReLU layers 4 d wide:
    V d + n_layers (28 d^2 + 30 d) parameters. Differs from [1]_: projections of attention have biases, as in most
    implementations, and the dropout acts on attention weights too, unless the mixer sets its own to 0, as in the
    presets.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.
    .. [2] Press, Wolf, 2017, arXiv:1608.05859 (tied embeddings).
    """

    reading = ("encoder", "source_embedding")

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        max_length: int,
        *,
        pad: int = 0,
        d_model: int = 512,
        n_layers: int = 6,
        mixer: Spec | Sequence[Spec] = "attention",
        cross: Spec | None = None,
        feedforward: Spec = "relu",
        norm: Norm = "post",
        norm_kind: Spec | None = None,
        dropout: float = 0.1,
        positions: Spec = "sinusoidal",
        embeddings: Embeddings = "shared",
        tied: bool = True,
        logits_bias: bool | None = None,
        embedding_scale: float | None = None,
        logits_scale: float = 1.0,
        init: str = "xavier",
    ) -> None:
        super().__init__()
        tokens = {"source_vocab_size": source_vocab_size, "target_vocab_size": target_vocab_size}
        check_positive(tokens | {"d_model": d_model})
        _check_vocabularies(source_vocab_size, target_vocab_size, shared=(shared := embeddings == "shared"))
        self.pad, self.logits_scale = pad, logits_scale
        self.scale = math.sqrt(d_model) if embedding_scale is None else embedding_scale
        wiring = {"feedforward": feedforward, "norm": norm, "norm_kind": norm_kind}
        stack = functools.partial(
            Stack,
            d_model,
            max_length,
            n_layers=n_layers,
            mixer=mixer,
            block="transformer",
            dropout=dropout,
            positions=positions,
        )
        self.encoder = stack(wiring=wiring, causal=False)
        across = _across(mixer) if cross is None else _without_places(cross)
        self.decoder = stack(wiring=wiring | {"cross": across}, causal=True)
        check_unshared(self.encoder, self.decoder)
        self.logits = nn.Linear(d_model, target_vocab_size, bias=not tied if logits_bias is None else logits_bias)
        look_up(init, INITS, "init")(self, n_layers)
        self.target_embedding = _table(target_vocab_size, d_model)
        self.source_embedding = self.target_embedding if shared else _table(source_vocab_size, d_model)
        if tied:
            self.logits.weight = self.target_embedding.weight

    def answer(self, source: Source, target: Target) -> Logits:
        """The logits of the token after each position of what is written."""
        memory, real = self.encode(source)
        return self.decode(target, memory, real)

    def encode(self, source: Source) -> tuple[Float[Tensor, "batch s_len d_model"], Bool[Tensor, "batch s_len"]]:
        """What the encoder makes of the tokens, and where they are real."""
        real = source != self.pad
        return self.encoder(self.source_embedding(source) * self.scale, real), real

    def decode(
        self, target: Target, memory: Float[Tensor, "batch s_len d_model"], real: Bool[Tensor, "batch s_len"]
    ) -> Logits:
        """The logits of the token after each position, from what `encode` gives.

        Padding on the right of the target needs no mask: nothing before it may attend to it.
        """
        return self.read_out(self.decoder(self.target_embedding(target) * self.scale, None, memory, real))

    def read_out(self, x: Float[Tensor, "*places d_model"]) -> Float[Tensor, "*places target_vocab_size"]:
        """The logits of what the decoder leaves."""
        return self.logits(x if self.logits_scale == 1 else x * self.logits_scale)


def _check_vocabularies(source: int, target: int, *, shared: bool) -> None:
    if shared and source != target:
        raise SpecError(
            f"shared embeddings need one vocabulary; got {source} tokens to read and "
            f"{target} to write; set embeddings: separate, or train a joint tokenizer"
        )


def _across(mixer: Spec | Sequence[Spec]) -> Spec:
    """Attention to another sequence that is like the attention within one."""
    mixers = list(mixer) if isinstance(mixer, list | tuple) else [mixer]
    if any(is_ready(one) for one in mixers):
        raise SpecError("a mixer that is an object says nothing of another one; say by 'cross' how the source is read")
    parsed = [opened(one, MIXERS, "mixer") for one in mixers]
    attentions = [arguments for name, _, arguments in parsed if name == ATTENTION] or [{}]
    first, *others = [
        {key: value for key, value in arguments.items() if key not in WITHIN_ONE} for arguments in attentions
    ]
    if any(other != first for other in others):
        raise SpecError("the attentions of 'mixer' differ from layer to layer; say by 'cross' how the source is read")
    return {"name": ATTENTION} | first


def _without_places(cross: Spec) -> Spec:
    """Attention to another sequence as it is, if it compares no places."""
    if is_ready(cross):
        return cross
    name, _, arguments = opened(cross, MIXERS, "cross")
    given = [key for key in PLACES if key in arguments]
    if name == ATTENTION and given:
        raise SpecError(
            f"'cross' cannot have {given[0]}: it compares places, and those of two sequences have nothing in common"
        )
    return cross


def _table(vocab_size: int, d_model: int) -> nn.Embedding:
    """An embedding of tokens whose vectors have a length near 1."""
    table = nn.Embedding(vocab_size, d_model)
    nn.init.normal_(table.weight, std=d_model**-0.5)
    return table
