"""Attention: one layer composed of an entry of each of the six axes.

`Attention.trace` is the definition: it reads like the formula and returns every step. `Attention.forward` takes
the fastest path that the composition has, and is tested to give the same. `attnlab.nn.kernels.cutting` says which
pieces of the score matrix are computed together, `attnlab.nn.kernels.dot_products` how a piece is, where the scores
are dot products.
Nothing here knows a concrete part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnlab.core.build import Spec, build, is_ready, name_of
from attnlab.core.errors import ModuleError, SpecError
from attnlab.core.layouts import Activations, Memory, Queries, RealKeys, Scores, SharedKeys, SharedValues
from attnlab.core.sharded import RankShare
from attnlab.nn.axes.combiners import COMBINERS
from attnlab.nn.axes.heads import HEADS, repeat_heads
from attnlab.nn.axes.masks import MASKS, AbstractMask, all_of, padded
from attnlab.nn.axes.normalizers import NORMALIZERS
from attnlab.nn.axes.positions import POSITIONS
from attnlab.nn.axes.scores import SCORES
from attnlab.nn.fitting import check_fit
from attnlab.nn.kernels.cutting import AbstractPiece, Whole, in_blocks, in_chunks, pays_in_blocks
from attnlab.nn.kernels.dot_products import WAYS, DotProduct, Way, fastest, is_mapped
from attnlab.nn.kernels.dropout import check_probability, dropout
from attnlab.nn.kernels.recording import is_recorded
from attnlab.nn.key_values import AbstractMixer, KeyValues

Path = Literal["auto", "readable", "fused", "products", "recomputed", "local", "chunked"]
Step = Literal["q", "k", "v", "scores", "weights", "head_outputs", "output"]
Edit = Callable[[Step, Tensor], Tensor]
"""What stands in the place of a step, of the same shape."""

LARGEST_BYTES = 256 * 2**20  # of a tensor with a number for every pair, before queries are taken in chunks


@final
@dataclass(frozen=True)
class Trace:
    """Hold every step of one call of an attention layer.

    Parameters
    ----------
    q : Tensor
        Queries with positions in them, (batch, n_heads, q_len, d_head).
    k : Tensor
        Keys with positions in them, (batch, n_kv_heads, k_len, d_head).
    v : Tensor
        Values, (batch, n_kv_heads, k_len, d_v).
    scores : Tensor
        Biased and mixed scores before masks and normalization, (batch, n_heads, q_len, k_len).
    weights : Tensor
        Weights before dropout, zero where nothing may be attended to, (batch, n_heads, q_len, k_len).
    head_outputs : Tensor
        Weighted values, (batch, n_heads, q_len, d_v).
    output : Tensor
        What the layer returns, (batch, q_len, d_model).
    """

    q: Queries
    k: SharedKeys
    v: SharedValues
    scores: Scores
    weights: Scores
    head_outputs: Float[Tensor, "batch heads q_len d_v"]
    output: Activations


@final
class Attention(AbstractMixer):
    """Let every position gather values from the positions that fit it.

    Parameters
    ----------
    d_model : int
        Width of the activations.
    n_heads : int
        Number of query heads.
    heads : Spec
        How queries, keys and values are projected; entry of `HEADS`.
    positions : Spec
        How order enters the scores; entry of `POSITIONS` of the level "scores".
    scores : Spec
        How well a query fits a key; entry of `SCORES`.
    masks : Spec, AbstractMask, or list of them
        Which key a query may attend to; entry of `MASKS`. All of a list must allow it.
    normalizers : Spec
        From scores to weights; entry of `NORMALIZERS`.
    combiners : Spec
        From the heads' outputs to the width of the model; entry of `COMBINERS`.
    dropout : float
        Probability that a weight is set to zero in training.
    causal : bool
        Whether no query may attend to a later position, whatever the masks say.
    causal_outputs : bool
        Whether no output may depend on a later query either, as where a decoder looks at a source; `causal` implies it.
    path : str
        Which of several equal computations runs. "readable": the formula, step by step. Of softmax over dot products:
        "fused" (torch's kernel), "products" (matrix products that keep the weights), "recomputed" (torch's kernel
        with a backward pass by matrix products). Where a mask has a bounded reach: "local" (only the pairs within
        it). Of any composition: "chunked" (some queries at a time, computed again in the backward pass). "auto"
        takes the fastest for this device, type and size.
    max_length : int
        Longest sequence; for positions with a table.

    Raises
    ------
    SpecError
        If a part cannot be built or does not fit the others, positions belong to the input, a probability is not in
        [0, 1), or the composition does not have the path that is asked for.
    ModuleError
        In a call: if what is read has another width or another number of sequences, or padding is not over its keys.

    Notes
    -----
    A `Spec` is a name, a mapping with ``name`` and arguments, a class, a ``functools.partial`` of one, or an object,
    which is used as it is: its own sizes count.

    ``combine(normalize(mix(score(q, k) + bias), mask) v)``. By default this is [1]_ with biases. Time
    O(heads * q_len * k_len * d_head). The paths "readable" and "products" keep O(heads * q_len * k_len) numbers for
    the backward pass, the others O(length). A query that may attend to nothing gets zeros from every head.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, section 3.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        *,
        heads: Spec = "split",
        positions: Spec = "none",
        scores: Spec = "scaled-dot",
        masks: Spec | AbstractMask | list[Spec | AbstractMask] = "none",
        normalizers: Spec = "softmax",
        combiners: Spec = "project",
        dropout: float = 0.0,
        causal: bool = False,
        causal_outputs: bool = False,
        path: Path = "auto",
        max_length: int = 1024,
    ) -> None:
        super().__init__()
        self.d_model, self.dropout = d_model, check_probability("dropout", dropout)
        self.mask = all_of([build(one, MASKS, axis="mask") for one in _listed(masks)], causal=causal)
        offered: dict[str, Any] = {"d_model": d_model, "n_heads": n_heads, "max_length": max_length}
        self.heads = build(heads, HEADS, axis="heads", offered=offered)
        offered |= {"n_heads": self.heads.n_heads, "d_head": self.heads.d_head, "d_v": self.heads.d_v}
        offered |= {"causal": self.mask.blocks_future}
        self.positions = build(positions, POSITIONS, axis="positions", offered=offered)
        if self.positions.level != "scores":
            name = name_of(positions, POSITIONS, "positions")
            raise SpecError(
                f"positions '{name}' belong to the input: give them to the model, not to an attention layer"
            )
        self.scores = build(scores, SCORES, axis="score", offered=offered)
        self.normalizer = build(normalizers, NORMALIZERS, axis="normalizer", offered=offered)
        offered["causal"] |= causal_outputs
        self.combiner = build(combiners, COMBINERS, axis="combiner", offered=offered)
        self.edit: Edit | None = None  # set by `attnlab.inspection` while an intervention is open
        self.share: RankShare | None = None  # which weights this rank computes, where ranks share them
        self.gather: Callable[[Tensor], Tensor] | None = None  # keys of all positions, where ranks share them
        self._path: Path = "readable"
        self._obstacles: dict[str, str] = {}
        if any(is_ready(spec) for spec in (heads, positions, scores, normalizers, combiners)):
            check_fit(self, d_model=d_model, causal=self.mask.blocks_future)
        self._obstacles = self._find_obstacles()
        if path in self._obstacles:
            raise SpecError(
                f"path '{path}' is impossible: {self._obstacles[path]}; choose path 'auto', or another part"
            )
        self._path = path

    def obstacle(self, path: Path) -> str | None:
        """Which part keeps this composition from a path, in words, or None."""
        return self._obstacles.get(path)

    def forward(self, x: Activations, memory: Memory | None = None, padding: RealKeys | None = None) -> Activations:
        """What every position gathered."""
        self._check_read(x, memory)
        q, k, v = self.heads.project(x, memory)
        if self.gather is not None:
            return self._combined(self._attend_here(q, self.gather(k), self.gather(v)), None)
        q, k = self.positions.rotate(q, k)
        head_outputs = self._attend(q, k, v, self._visible(padding, k.shape[-2]))
        return self._combined(head_outputs, padding if memory is None else None)

    def _check_read(self, x: Tensor, memory: Tensor | None) -> None:
        """Raise unless what is read has the layer's width, and one batch size."""
        for name, read in (("x", x), ("memory", memory)):
            if read is not None and (read.shape[-1] != self.d_model or not read.is_floating_point()):
                got = f"{tuple(read.shape)}, {read.dtype}"
                raise ModuleError(f"{name} must be numbers of shape (batch, length, {self.d_model}); got {got}")
        if memory is not None and memory.shape[:-2] != x.shape[:-2]:
            sizes = f"{tuple(x.shape)} and {tuple(memory.shape)}"
            raise ModuleError(f"x and memory must be of as many sequences; got {sizes}")

    def begin(self) -> KeyValues:
        """What `extend` starts from."""
        if not self.mask.blocks_future:
            raise ModuleError("a sequence cannot be continued where a query may attend to later positions")
        self._check_separate_outputs()
        return KeyValues()

    def extend(self, x: Activations, past: KeyValues) -> Activations:
        """What later positions gather from themselves and from those before, whose keys are kept."""
        q, k, v = self.heads.project(x)
        past.append(k, v)
        return self._gather(q, past, None)

    def keys_of(self, memory: Memory) -> KeyValues:
        """Keys and values of another sequence, to be looked at many times."""
        self._check_separate_outputs()
        kept = KeyValues()
        kept.append(*self.heads.project(memory[:, :0], memory)[1:])
        return kept

    def look(self, x: Activations, seen: KeyValues, padding: RealKeys | None = None) -> Activations:
        """What positions gather from another sequence, whose keys are kept."""
        return self._gather(self.heads.project(x, x[:, :0])[0], seen, padding)

    def _check_separate_outputs(self) -> None:
        if self.combiner.mixes_positions:
            raise ModuleError(f"{type(self.combiner).__name__} mixes positions, so that none can be added behind")

    def _gather(self, q: Tensor, kept: KeyValues, padding: Tensor | None) -> Tensor:
        q, k = self.positions.rotate(q, kept.k)
        return self._combined(self._attend(q, k, kept.v, self._visible(padding, k.shape[-2])), None)

    def _combined(self, head_outputs: Tensor, padding: Tensor | None) -> Tensor:
        output = self.combiner(head_outputs, padding)
        return self.edit("output", output) if self.edit else output

    def trace(self, x: Activations, memory: Memory | None = None, padding: RealKeys | None = None) -> Trace:
        """Compute the same as `forward` step by step and return the steps."""
        q, k, v = self.heads.project(x, memory)
        q, k = self.positions.rotate(q, k)
        steps = self._steps(q, k, v, _whole(q, k, self._visible(padding, k.shape[-2])))
        return Trace(*steps, output=self._combined(steps[-1], padding if memory is None else None))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AbstractMask) -> Tensor:
        """The heads' outputs by the path that was asked for, or by the fastest."""
        path = "readable" if self.edit else self._path if self._path != "auto" else self._fastest(q, k, mask)
        if path == "local":
            return in_blocks(self._read if self.obstacle("fused") else self._multiply, q, k, v, mask)
        if path == "chunked":
            return in_chunks(self._read, q, k, v, mask, rows=self._rows_at_a_time(q, k))
        if path == "readable":
            return self._read(q, k, v, _whole(q, k, mask))
        return self._multiply(q, k, v, _whole(q, k, mask), None if path is None else WAYS[path])

    def _fastest(self, q: Tensor, k: Tensor, mask: AbstractMask) -> Path | None:
        """The path to take, or None to multiply in the way that is fastest for the piece."""
        if is_recorded():
            return "readable" if self.obstacle("fused") else None
        if pays_in_blocks(mask.reach, k.shape[-2]):
            return "local"
        if not self.obstacle("fused"):
            return None
        large = self._rows_at_a_time(q, k) < q.shape[-2]
        return "chunked" if large and not is_mapped(q) else "readable"  # checkpoints do not work under vmap

    def _rows_at_a_time(self, q: Tensor, k: Tensor) -> int:
        """How many queries the readable path takes so that its largest tensor stays small."""
        heads = self.heads.n_heads * (self.share.count if self.share else 1)  # rows as on one device draw as there
        row = q.shape[0] * heads * k.shape[-2] * self.scores.numbers_per_pair * q.element_size()
        return max(1, LARGEST_BYTES // row)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, piece: AbstractPiece) -> Tensor:
        """The heads' outputs of a piece as the formula has them."""
        return self._steps(q, k, v, piece)[-1]

    def _steps(
        self, q: Tensor, k: Tensor, v: Tensor, piece: AbstractPiece
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The formula's steps in the order of `Trace`, each as an intervention leaves it."""
        edit = self.edit or unchanged
        q, k, v = edit("q", q), edit("k", k), edit("v", v)
        keys, values = (repeat_heads(part, self.heads.n_heads) for part in (k, v))
        scores = self.scores(q, keys)  # (batch, heads, q_len, k_len)
        bias = self._bias(q, piece)
        scores = edit("scores", self.combiner.mix_scores(scores if bias is None else scores + bias))
        weights = edit("weights", self.combiner.mix_weights(self.normalizer(scores, piece.allowed(q.device))))
        head_outputs = dropout(weights, self.dropout, self.training, self.share) @ values  # (batch, heads, q_len, d_v)
        return q, k, v, scores, weights, edit("head_outputs", head_outputs)

    def _multiply(self, q: Tensor, k: Tensor, v: Tensor, piece: AbstractPiece, way: Way | None = None) -> Tensor:
        """The heads' outputs of a piece as softmax over dot products, by a way or the fastest one."""
        bias, sinks = self._bias(q, piece), self.normalizer.sinks
        is_causal = piece.is_causal and bias is None and not sinks
        allowed = None if is_causal else piece.allowed(q.device)
        q, k, scale = self.scores.as_dot(q, k)
        if sinks:
            k, v = (F.pad(x, (0, 0, sinks, 0)) for x in (k, v))  # (batch, heads, sinks + k_len, width)
            allowed = None if allowed is None else F.pad(allowed, (sinks, 0), value=True)
            bias = None if bias is None else F.pad(bias, (sinks, 0))
        rate = self.dropout if self.training else 0.0
        given = DotProduct(
            q, k, v, scale, is_causal=is_causal, allowed=allowed, bias=bias, dropout=rate, share=self.share
        )
        return (way or fastest(given))(given)

    def _visible(self, padding: Tensor | None, k_len: int) -> AbstractMask:
        """The mask of this call."""
        mask = padded(self.mask, padding)
        mask.check_keys(k_len)
        return mask

    def _bias(self, q: Tensor, piece: AbstractPiece) -> Tensor | None:
        return self.positions.bias(piece.queries, piece.keys, dtype=q.dtype, device=q.device)

    def take_share(self, number: int, count: int) -> dict[str, int]:
        """Become one of so many equal parts, with some of the heads; as of `AbstractMixer`."""
        at = slice(0, 1)
        if self.positions.bias(at, at, dtype=torch.float32, device=torch.device("cpu")) is not None:
            raise SpecError(f"{type(self.positions).__name__} differs from head to head, and cannot be divided")
        for part in (self.scores, self.normalizer):
            if next(part.parameters(), None) is not None:
                raise SpecError(f"{type(part).__name__} has weights, which cannot be divided")
        if not self.combiner.adds_heads:
            raise SpecError(f"{type(self.combiner).__name__} does not add up heads, which cannot be divided")
        maps = {f"heads.{name}": packs for name, packs in self.heads.keep_share(count).items()}
        self.share = RankShare(-3, number, count)
        return maps | {"combiner.to_residual": 0}

    def take_positions(self, share: RankShare, gather: Callable[[Tensor], Tensor]) -> None:
        """Compute some positions, with the keys and values of all; as of `AbstractMixer`."""
        if self.combiner.mixes_positions:
            raise SpecError(f"{type(self.combiner).__name__} mixes positions, and cannot be computed at some alone")
        self.share, self.gather = share, gather

    def _attend_here(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The heads' outputs of some queries in the middle of all keys."""
        q_len, k_len = q.shape[-2], k.shape[-2]
        first = self.share.number * q_len if self.share else 0
        q, k = self.positions.rotate(F.pad(q, (0, 0, first, k_len - first - q_len)), k)
        piece = Whole(self._visible(None, k_len), slice(first, first + q_len), slice(0, k_len))
        attend = self._read if self.obstacle("fused") else self._multiply
        return attend(q.narrow(-2, first, q_len), k, v, piece)

    def _find_obstacles(self) -> dict[str, str]:
        """Return, for every path that this composition does not have, the first part that stands in the way."""
        obstacles = {}
        if no_dot := self._find_no_dot():
            obstacles = dict.fromkeys(WAYS, no_dot)
        elif self.dropout:
            obstacles["recomputed"] = "dropout needs weights that are kept"
        elif any(parameter.requires_grad for parameter in self.positions.parameters()):
            obstacles["recomputed"] = "positions learn a bias, which it gives no gradient"
        if None in self.mask.reach:
            obstacles["local"] = f"mask {self.mask!r} lets a query see any distance"
        return obstacles

    def _find_no_dot(self) -> str | None:
        """The first part that stands between this composition and softmax over dot products."""
        q = torch.zeros(1, self.heads.n_heads, 1, self.heads.d_head)
        if self.scores.as_dot(q, q) is None:
            return f"score '{name_of(self.scores, SCORES, 'score')}' is no dot product"
        if self.normalizer.sinks is None:
            return f"normalizer '{name_of(self.normalizer, NORMALIZERS, 'normalizer')}' is no softmax"
        if self.combiner.mixes_heads:
            return (
                f"combiner '{name_of(self.combiner, COMBINERS, 'combiner')}' mixes scores or weights of different heads"
            )
        return None


def _listed(masks: Spec | AbstractMask | list[Spec | AbstractMask]) -> list[Any]:
    return masks if isinstance(masks, list) else [masks]


def unchanged(_step: Step, value: Tensor) -> Tensor:
    """What no intervention changes."""
    return value


def _whole(q: Tensor, k: Tensor, mask: AbstractMask) -> Whole:
    """The score matrix in one piece; the last query stands where the last key stands."""
    q_len, k_len = q.shape[-2], k.shape[-2]
    return Whole(mask, slice(k_len - q_len, k_len), slice(0, k_len))
