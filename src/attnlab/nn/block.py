"""Blocks: how a mixer and a feed-forward part are wired with residual, norm and dropout."""

# ruff: noqa: ARG002 -- a block that keeps no keys has the signatures of one that does

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, final

import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from attnlab.core.build import Spec, build, name_of
from attnlab.core.errors import ModuleError
from attnlab.core.layouts import Activations, Memory, Real, RealKeys
from attnlab.core.sizes import check_positive
from attnlab.nn.feedforward import FEEDFORWARDS
from attnlab.nn.fitting import check_unshared
from attnlab.nn.kernels.dropout import Dropout
from attnlab.nn.key_values import AbstractMixer, KeyValues
from attnlab.nn.mixers import MIXERS, build_mixer
from attnlab.nn.norms import NORMS

ABSENT = "none"
"""The name under which a sublayer is left out altogether."""


@final
@dataclass(frozen=True)
class BlockCache:
    """Hold what a block knows of positions that were seen."""

    own: KeyValues  # of the sequence that is continued
    other: KeyValues | None  # of the sequence that is looked at

    def select(self, rows: Int[Tensor, " new"], *, same_other: bool = False) -> None:
        """Keep some rows of the batch, in a new order."""
        self.own.select(rows)
        if self.other is not None and not same_other:
            self.other.select(rows)


def norm_or_nothing(norm_kind: Spec, d_model: int, *, wanted: bool) -> nn.Module:
    """A norm where one is wanted, else the identity."""
    return build(norm_kind, NORMS, axis="norm", offered={"d_model": d_model}) if wanted else nn.Identity()


class AbstractBlock(nn.Module, ABC):
    """Wire parts into one layer of a stack.

    Parameters
    ----------
    d_model : int
        Width of the residual stream.
    mixer : Spec
        What mixes positions; entry of `MIXERS` or ``path.py:Class``. With "none" the sublayer is left out.
    norm_kind : Spec
        Which norm; entry of `NORMS`.
    context : mapping, optional
        What else the mixer may ask for: ``causal``, ``max_length``, ``positions``, ``n_heads``.

    Raises
    ------
    SpecError
        If a part cannot be built.
    """

    def __init__(self) -> None:
        super().__init__()

    @abstractmethod
    def last_norm(self) -> nn.Module:
        """A new norm to stand behind the last block of a stack; the identity where none belongs there."""

    @abstractmethod
    def keep(self, memory: Memory | None = None) -> BlockCache:
        """What `step` needs to know of positions before the first one."""

    @abstractmethod
    def step(self, x: Activations, cache: BlockCache, memory_padding: RealKeys | None = None) -> Activations:
        """The stream at positions that follow those of earlier calls."""


@final
class Wiring(nn.Module):
    """Wire a part into the residual stream.

    Parameters
    ----------
    d_model : int
        Width of the stream.
    norm : {"pre", "post", "none"}
        Where the norm stands.
    norm_kind : Spec
        Which norm; entry of `NORMS`.
    residual : bool
        Whether the part's input is added to its output.
    dropout : float
        Probability that a feature of the output is set to zero in training.

    Raises
    ------
    SpecError
        If the norm cannot be built, or the probability is not in [0, 1).

    Notes
    -----
    pre: ``x + drop(part(norm(x)))`` [1]_; post: ``norm(x + drop(part(x)))`` [2]_; without residual the ``x +``
    is gone.

    References
    ----------
    .. [1] Xiong et al., 2020, arXiv:2002.04745, section 3.
    .. [2] Vaswani et al., 2017, arXiv:1706.03762, sections 3.1 and 5.4.
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm: Literal["pre", "post", "none"] = "pre",
        norm_kind: Spec = "layer",
        residual: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.before = norm_or_nothing(norm_kind, d_model, wanted=norm == "pre")
        self.drop = Dropout(dropout)
        self.after = norm_or_nothing(norm_kind, d_model, wanted=norm == "post")
        self.residual = residual

    def forward(self, x: Activations, part: Callable[[Tensor], Tensor]) -> Activations:
        """The stream after `part`, which maps activations to activations."""
        found = self.drop(part(self.before(x)))
        return self.after(x + found if self.residual else found)


@final
class Block(AbstractBlock):
    """Mix positions, perhaps look at another sequence, then map each position on its own: the block of a Transformer.

    What is not said here is said of `AbstractBlock`.

    Parameters
    ----------
    feedforward : Spec
        What maps each position; entry of `FEEDFORWARDS`. With "none" the sublayer is left out.
    cross : Spec
        What gathers from another sequence, between the two; entry of `MIXERS` that takes a memory. With "none" the
        sublayer is left out.
    norm : {"pre", "post", "none"}
        Where the norms stand.
    residual : bool
        Whether each sublayer adds its input to its output.
    dropout : float
        Probability at the end of each sublayer; offered to the mixer too (attention: of its weights).

    Raises
    ------
    SpecError
        If a part cannot be built, or one object with weights stands in two places.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        mixer: Spec = "attention",
        *,
        feedforward: Spec = "gelu",
        cross: Spec = "none",
        norm: Literal["pre", "post", "none"] = "pre",
        norm_kind: Spec = "layer",
        residual: bool = True,
        dropout: float = 0.0,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_positive({"d_model": d_model})
        offered = {"d_model": d_model, "dropout": dropout, **(context or {})}
        wire = functools.partial(Wiring, d_model, norm=norm, norm_kind=norm_kind, residual=residual, dropout=dropout)
        self.mixer = self.cross = self.feedforward = None
        if not is_absent(mixer, MIXERS):
            self.mixer, self.around_mixer = build_mixer(mixer, offered), wire()
        if not is_absent(cross, MIXERS):
            across = {name: value for name, value in offered.items() if name != "positions"}
            across |= {"causal": False, "causal_outputs": offered.get("causal", False)}
            self.cross, self.around_cross = build_mixer(cross, across), wire()
        if not is_absent(feedforward, FEEDFORWARDS):
            self.feedforward = build(feedforward, FEEDFORWARDS, axis="feed-forward", offered={"d_model": d_model})
            self.around_feedforward = wire()
        self._last_norm = functools.partial(norm_or_nothing, norm_kind, d_model, wanted=norm == "pre")
        check_unshared(self)

    def forward(
        self,
        x: Activations,
        padding: Real | None = None,
        memory: Memory | None = None,
        memory_padding: RealKeys | None = None,
    ) -> Activations:
        """The residual stream after all sublayers."""
        if self.mixer is not None:
            x = self.around_mixer(x, functools.partial(self.mixer, padding=padding))
        if self.cross is not None:
            x = self.around_cross(x, functools.partial(self.cross, memory=memory, padding=memory_padding))
        return x if self.feedforward is None else self.around_feedforward(x, self.feedforward)

    def last_norm(self) -> nn.Module:
        """One more norm where it stands before each sublayer, for the stream that the last of them leaves."""
        return self._last_norm()

    def keep(self, memory: Memory | None = None) -> BlockCache:
        """What `step` needs to know of positions before the first one."""
        own = KeyValues() if self.mixer is None else cast(AbstractMixer, self.mixer).begin()
        if self.cross is None:
            return BlockCache(own, None)
        if memory is None:
            raise ModuleError("a block with a cross mixer needs the sequence that it looks at")
        return BlockCache(own, cast(AbstractMixer, self.cross).keys_of(memory))

    def step(self, x: Activations, cache: BlockCache, memory_padding: RealKeys | None = None) -> Activations:
        """The stream at positions that follow those of earlier calls."""
        if self.mixer is not None:
            x = self.around_mixer(x, functools.partial(cast(AbstractMixer, self.mixer).extend, past=cache.own))
        if self.cross is not None and cache.other is not None:
            look = functools.partial(cast(AbstractMixer, self.cross).look, seen=cache.other, padding=memory_padding)
            x = self.around_cross(x, look)
        return x if self.feedforward is None else self.around_feedforward(x, self.feedforward)


@final
class LiteralBlock(AbstractBlock):
    """Wire a layer as beginners do when they write attention by hand: everything passes a linear map and a ReLU.

    Parameters
    ----------
    norm : {"pre", "post", "none"}
        Where a norm stands around the mixer; "post" is layer norm of the sum.
    residual : bool
        Whether the mixer's input is added to its output.
    dropout : float
        Probability that a feature of the output is set to zero in training; offered to the mixer too.

    Notes
    -----
    ``y = drop(relu(W norm(x + mix(x)) + b))``. There is no path around W and the ReLU, so no identity through
    the stack, whatever is called residual inside: with torch's default start the signal shrinks in every block.
    With one head and the combiner "concatenate" the mixer is ``softmax(q k^T / sqrt(d_model)) v`` literally.
    """

    def __init__(
        self,
        d_model: int,
        mixer: Spec = "attention",
        *,
        norm: Literal["pre", "post", "none"] = "none",
        norm_kind: Spec = "layer",
        residual: bool = True,
        dropout: float = 0.0,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        check_positive({"d_model": d_model})
        offered = {"d_model": d_model, "dropout": dropout, **(context or {})}
        self.mixer = None
        if not is_absent(mixer, MIXERS):
            self.mixer = build_mixer(mixer, offered)
            self.around_mixer = Wiring(d_model, norm=norm, norm_kind=norm_kind, residual=residual)
        self.linear = nn.Linear(d_model, d_model)
        self.drop = Dropout(dropout)

    def forward(self, x: Activations, padding: Real | None = None) -> Activations:
        """The rectified map of what the mixer left."""
        if self.mixer is not None:
            x = self.around_mixer(x, functools.partial(self.mixer, padding=padding))
        return self.drop(F.relu(self.linear(x)))

    def last_norm(self) -> nn.Module:
        """The identity."""
        return nn.Identity()

    def keep(self, memory: Memory | None = None) -> BlockCache:
        """Raise a `ModuleError`."""
        raise ModuleError(f"{type(self).__name__} keeps no keys and values")

    def step(self, x: Activations, cache: BlockCache, memory_padding: RealKeys | None = None) -> Activations:
        """Raise a `ModuleError`."""
        raise ModuleError(f"{type(self).__name__} keeps no keys and values")


def is_absent(spec: Spec, table: Mapping[str, Callable[..., nn.Module]]) -> bool:
    """Whether a specification leaves a sublayer out."""
    return name_of(spec, table, "part") == ABSENT


BLOCKS: Mapping[str, Callable[..., AbstractBlock]] = {
    "transformer": Block,
    "literal": LiteralBlock,
}
