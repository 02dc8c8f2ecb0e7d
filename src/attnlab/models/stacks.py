"""Stacks of blocks: the decoder predicts the next token, the encoder maps sequence to sequence.

What differs between two studied models is an argument of the constructor; nothing here knows a
concrete mixer, position or norm.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.build import Spec, build, look_up
from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.layouts import Activations, Memory, Real, RealKeys
from attnlab.core.sharded import RankShare
from attnlab.core.sizes import check_positive, require_known
from attnlab.models.wiring import AbstractTying, build_input_positions, check_taken, offer_positions, one_per_layer
from attnlab.nn.block import BLOCKS, AbstractBlock, BlockCache, norm_or_nothing
from attnlab.nn.fitting import check_unshared
from attnlab.nn.init import INITS
from attnlab.nn.kernels.dropout import Dropout
from attnlab.nn.key_values import AbstractMixer

Norm = Literal["pre", "post", "none"]
Readout = Literal["position", "window"]


class AbstractTransformer(AbstractTying):
    """Embed a sequence, pass it through a stack of blocks, and answer at every position.

    Parameters
    ----------
    max_length : int
        Longest sequence it has positions for.
    d_model : int, default 128
        Width of the residual stream.
    n_layers : int, default 4
        Number of blocks.
    mixer : Spec or list of Spec, default "attention"
        What mixes positions; a list gives one per layer.
    feedforward : Spec, optional
        Feed-forward sublayer; None leaves the choice to the block.
    block : Spec, default "transformer"
        Wiring of the sublayers.
    norm : {"pre", "post", "none"}, optional
        Place of the norm; None leaves the choice to the block. A transformer block with "pre" gets one
        more norm after the last block.
    norm_kind : Spec, optional
        Which norm; None leaves the choice to the block.
    residual : bool, optional
        Whether sublayers have an identity path beside them; None leaves the choice to the block.
    dropout : float, default 0.0
        At the embedding, and whatever the block does with it.
    positions : Spec, default "learned"
        Where an element stands: added to the embedding, or, where they act on scores, given to every
        mixer that takes them.
    init : str, default "gpt"
        Scheme of the initial weights.

    Raises
    ------
    SpecError
        If a size is not positive, a list of mixers has another length than `n_layers`, an argument has no effect with
        the chosen block or mixers, or one object with weights stands in several layers.
    """

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, inputs: Tensor, /) -> Tensor:
        """One answer per position."""

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions of every sequence, as of `AbstractMixer`: here, refuse."""
        del share, gather
        raise SpecError(f"{type(self).__name__} cannot be computed at some positions alone")


@final
class Decoder(AbstractTransformer):
    """Predict each next token from the tokens before it: embedding, blocks, logits. Always causal.

    What is not said here is said of `AbstractTransformer`.

    Parameters
    ----------
    vocab_size : int
        Number of distinct tokens.
    tied : bool, default True
        Whether the logits use the embedding's weights; else a linear layer of its own.
    logits_bias : bool, optional
        Whether each token has a learned number that is added to its logit; unless given, where they are not tied.
    readout : {"position", "window"}, default "position"
        What logits are read from: each position, or all positions of a window side by side, once. A "window" is
        `max_length` tokens long, and its logits are those of the token after it: what precedes them need not mix
        positions for them to depend on all. It needs `tied` to be False, and a task that asks for the last only.

    Raises
    ------
    SpecError
        If the readout is unknown, or "window" with tied logits.
    ModuleError
        If the readout is "window" and the tokens are fewer.

    Notes
    -----
    Parameters of the defaults: vocab_size d + max_length d + n_layers (12 d^2 + 13 d) + 2 d, d = d_model.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.
    .. [2] Press, Wolf, 2017, arXiv:1608.05859 (tied embeddings).
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        *,
        d_model: int = 128,
        n_layers: int = 4,
        mixer: Spec | Sequence[Spec] = "attention",
        feedforward: Spec | None = None,
        block: Spec = "transformer",
        norm: Norm | None = None,
        norm_kind: Spec | None = None,
        residual: bool | None = None,
        dropout: float = 0.0,
        positions: Spec = "learned",
        tied: bool = True,
        logits_bias: bool | None = None,
        readout: Readout = "position",
        init: str = "gpt",
    ) -> None:
        super().__init__()
        check_positive({"vocab_size": vocab_size, "d_model": d_model})
        require_known("readout", readout, ("position", "window"))
        if readout == "window" and tied:
            raise SpecError(
                "the readout 'window' has weights for every position, the embedding has not: logits cannot be tied; "
                "got readout='window', tied=True; say tied: false"
            )
        self.embedding = nn.Embedding(vocab_size, d_model)
        wiring = {"feedforward": feedforward, "norm": norm, "norm_kind": norm_kind, "residual": residual}
        self.stack = Stack(
            d_model,
            max_length,
            n_layers=n_layers,
            mixer=mixer,
            block=block,
            wiring=wiring,
            dropout=dropout,
            positions=positions,
            causal=True,
        )
        self.window = max_length if readout == "window" else None
        biased = not tied if logits_bias is None else logits_bias
        self.logits = nn.Linear(d_model * (self.window or 1), vocab_size, bias=biased)
        if tied:
            self.logits.weight = self.embedding.weight
        look_up(init, INITS, "init")(self, n_layers)

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions of every sequence; as of `AbstractMixer`."""
        if self.window is not None:
            raise SpecError("the readout 'window' reads all positions at once, and cannot be computed at some alone")
        self.stack.take_positions(share, gather)

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch answers vocab_size"]:
        """The logits of the token after each position, or after the window."""
        x = self.stack(self.embedding(tokens))  # (batch, length, d_model)
        if self.window is None:
            return self.logits(x)
        if x.shape[1] != self.window:
            raise ModuleError(f"the readout 'window' needs all of its {self.window} tokens; got {x.shape[1]}")
        return self.logits(x.flatten(1)).unsqueeze(1)


@final
class Encoder(AbstractTransformer):
    """Map a sequence of vectors to another of the same length; every position sees all.

    What is not said here is said of `AbstractTransformer`.

    Parameters
    ----------
    d_in : int
        Features of one input position, or distinct tokens.
    d_out : int
        Features of one output position.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        max_length: int,
        *,
        d_model: int = 128,
        n_layers: int = 4,
        mixer: Spec | Sequence[Spec] = "attention",
        feedforward: Spec | None = None,
        block: Spec = "transformer",
        norm: Norm | None = None,
        norm_kind: Spec | None = None,
        residual: bool | None = None,
        dropout: float = 0.0,
        positions: Spec = "learned",
        init: str = "gpt",
    ) -> None:
        super().__init__()
        check_positive({"d_in": d_in, "d_out": d_out, "d_model": d_model})
        self.embedding = nn.Linear(d_in, d_model)
        wiring = {"feedforward": feedforward, "norm": norm, "norm_kind": norm_kind, "residual": residual}
        self.stack = Stack(
            d_model,
            max_length,
            n_layers=n_layers,
            mixer=mixer,
            block=block,
            wiring=wiring,
            dropout=dropout,
            positions=positions,
            causal=False,
        )
        self.output = nn.Linear(d_model, d_out)
        look_up(init, INITS, "init")(self, n_layers)

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions of every sequence; as of `AbstractMixer`."""
        self.stack.take_positions(share, gather)

    def forward(
        self, x: Float[Tensor, "batch length d_in"] | Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length d_out"]:
        """One output vector per position; a token stands for the vector that is 1 at its number, else 0."""
        if not x.is_floating_point():
            x = nn.functional.embedding(x, self.embedding.weight.T) + self.embedding.bias  # (batch, length, d_model)
        else:
            x = self.embedding(x)
        return self.output(self.stack(x))


@final
class Stack(nn.Module):
    """Add positions, apply the blocks one after another, and normalize at the end where needed.

    Parameters
    ----------
    d_model : int
        Width of the residual stream.
    max_length : int
        Longest sequence it has positions for.
    n_layers : int
        Number of blocks.
    mixer : Spec or list of Spec
        One for all layers, or one per layer.
    block : Spec
        Wiring of the sublayers.
    wiring : mapping
        Arguments of the block by name; those that are None are left to the block.
    dropout : float
        After the positions, and offered to the block.
    positions : Spec
        Input level positions are applied here, score level ones offered to the mixers.
    causal : bool
        Whether a position sees only itself and what is before it.
    input_norm : Spec, optional
        A norm behind the positions; entry of `NORMS`. None leaves it out.

    Raises
    ------
    SpecError
        If a size is not positive, the number of mixers is wrong, or an argument has no effect.
    """

    def __init__(
        self,
        d_model: int,
        max_length: int,
        *,
        n_layers: int,
        mixer: Spec | Sequence[Spec],
        block: Spec,
        wiring: Mapping[str, Any],
        dropout: float,
        positions: Spec,
        causal: bool,
        input_norm: Spec | None = None,
    ) -> None:
        super().__init__()
        check_positive({"max_length": max_length, "n_layers": n_layers})
        mixers = one_per_layer(mixer, n_layers)
        context = {"causal": causal, "max_length": max_length} | offer_positions(positions, mixers)
        given = {name: value for name, value in wiring.items() if value is not None}
        check_taken(given, block)
        offered = {"d_model": d_model, "dropout": dropout, "context": context} | given
        self.positions = build_input_positions(positions, {"d_model": d_model, "causal": causal} | context)
        self.input_norm = norm_or_nothing(input_norm or "layer", d_model, wanted=input_norm is not None)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            build(block, BLOCKS, axis="block", offered=offered | {"mixer": one}) for one in mixers
        )
        last = self.blocks[-1]
        self.norm = last.last_norm() if isinstance(last, AbstractBlock) else nn.Identity()
        self._share: RankShare | None = None
        check_unshared(self)

    def forward(self, x: Activations, *given: Real | Tensor | None) -> Activations:
        """The sequence after the last block."""
        start = () if self._share is None else (self._share.number * x.shape[1],)
        x = self.dropout(self.input_norm(self.positions(x, *start)))
        for block in self.blocks:
            x = block(x, *given)
        return self.norm(x)

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions of every sequence; as of `AbstractMixer`."""
        self._share = share
        for block in self.blocks:
            mixer = getattr(block, "mixer", block)
            if mixer is not None and not isinstance(mixer, AbstractMixer):
                raise SpecError(f"{type(mixer).__name__} cannot be computed at some positions alone")
        for module in self.modules():
            take_positions = getattr(module, "take_positions", None)
            if module is not self and take_positions is not None:
                take_positions(share, gather)

    def keep(self, memory: Memory | None = None) -> list[BlockCache]:
        """What `step` needs to know of positions before the first one."""
        for block in self.blocks:
            if not isinstance(block, AbstractBlock):
                raise ModuleError(f"{type(block).__name__} keeps no keys and values")
        return [cast(AbstractBlock, block).keep(memory) for block in self.blocks]

    def step(
        self,
        x: Activations,
        caches: Sequence[BlockCache],
        start: int,
        memory_padding: RealKeys | None = None,
    ) -> Activations:
        """The sequence at positions that follow those of earlier calls."""
        x = self.dropout(self.input_norm(self.positions(x, start)))
        for block, cache in zip(self.blocks, caches, strict=True):
            x = cast(AbstractBlock, block).step(x, cache, memory_padding)
        return self.norm(x)
