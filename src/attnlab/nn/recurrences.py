"""Mixers whose time is linear in the length: a recurrence, and sums over the past.

`attnlab.nn.mixers` has the table. Padding is True at real positions, which stand on the left.
"""

from __future__ import annotations

import math
from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.core.layouts import Activations, Memory, Queries, Real, RealKeys, SharedKeys, SharedValues
from attnlab.core.sizes import check_positive
from attnlab.nn.attention import Edit, Trace, unchanged
from attnlab.nn.axes.combiners import concatenate
from attnlab.nn.axes.heads import SplitHeads
from attnlab.nn.kernels.recording import is_recorded
from attnlab.nn.key_values import AbstractKeylessMixer


def refuse_memory(memory: Tensor | None, name: str) -> None:
    """Raise a `ModuleError` if a mixer that sees one sequence only is given another."""
    if memory is not None:
        raise ModuleError(f"mixer '{name}' cannot look at another sequence; use 'attention' there")


@final
class LstmMixer(AbstractKeylessMixer):
    """Mix positions with a long short-term memory that reads them as time.

    Parameters
    ----------
    d_hidden : int, optional
        Width of the state; ``d_model`` unless given.
    causal : bool
        Whether only one network reads, from left to right; else a second one reads from right to left.
    path : {"fused", "readable"}
        Which of two equal computations runs: torch's kernel, or one step after the other as in the formula.

    Notes
    -----
    ``i, f, g, o = W x_t + U h_{t-1} + b; c_t = s(f) c_{t-1} + s(i) tanh(g); h_t = s(o) tanh(c_t)``, then a linear
    map of the states of all directions. ``length`` steps that cannot run side by side. The reader from right to
    left begins at the last real position. torch's kernel has no rule for ``torch.func.vmap``: use the readable
    path there.

    References
    ----------
    .. [1] Hochreiter, Schmidhuber, 1997; with the forget gate of Gers et al., 2000.
    """

    def __init__(
        self,
        d_model: int,
        *,
        d_hidden: int | None = None,
        causal: bool = False,
        path: Literal["fused", "readable"] = "fused",
    ) -> None:
        super().__init__()
        d_hidden = d_model if d_hidden is None else d_hidden
        check_positive({"d_model": d_model, "d_hidden": d_hidden})
        self.rightward = nn.LSTM(d_model, d_hidden, batch_first=True)
        self.leftward = None if causal else nn.LSTM(d_model, d_hidden, batch_first=True)
        self.to_residual = nn.Linear(d_hidden if causal else 2 * d_hidden, d_model)
        self._read = _read_fused if path == "fused" else _read_step_by_step

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """A linear map of the states at every position."""
        refuse_memory(memory, "lstm")
        states = self._read(self.rightward, x)  # (batch, length, d_hidden)
        if self.leftward is not None:
            order = _reversed_order(x, padding)
            mirrored = self._read(self.leftward, x.gather(1, order.expand_as(x)))
            states = torch.cat((states, mirrored.gather(1, order.expand_as(mirrored))), dim=-1)
        return self.to_residual(states)


def _reversed_order(x: Tensor, padding: Tensor | None) -> Int[Tensor, "batch length 1"]:
    """For every position the one that mirrors it among the real ones; padding stays in place."""
    batch, length = x.shape[:2]
    positions = torch.arange(length, device=x.device).expand(batch, length)
    ends = length if padding is None else padding.sum(dim=-1, keepdim=True)  # (batch, 1)
    return torch.where(positions < ends, ends - 1 - positions, positions).unsqueeze(-1)


def _read_fused(reader: nn.LSTM, x: Tensor) -> Tensor:
    return reader(x)[0]


def _read_step_by_step(reader: nn.LSTM, x: Tensor) -> Tensor:
    """All states of an LSTM, computed by its formula."""
    from_x, from_state, bias_x, bias_state = reader.all_weights[0]
    gates = F.linear(x, from_x, bias_x + bias_state)  # (batch, length, 4 d_hidden)
    state = cell = x.new_zeros(x.shape[0], reader.hidden_size)
    states = []
    for step in gates.unbind(dim=1):
        i, f, g, o = (step + F.linear(state, from_state)).chunk(4, dim=-1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        states.append(state)
    return torch.stack(states, dim=1)  # (batch, length, d_hidden)


@final
class LinearAttention(AbstractKeylessMixer):
    """Attend with a kernel instead of a softmax, so that sums over keys can be shared by all queries.

    Parameters
    ----------
    chunk_size : int
        In the causal case, how many positions are computed side by side; changes speed and memory only.

    Notes
    -----
    ``y_i = sum_j f(q_i).f(k_j) v_j / sum_j f(q_i).f(k_j)`` with ``f(x) = elu(x) + 1``. Time O(heads * length *
    d_head^2), and O(heads * length * chunk_size * d_head) more when causal; sums before a chunk are kept, pairs
    inside it are computed as a matrix.

    References
    ----------
    .. [1] Katharopoulos et al., 2020, arXiv:2006.16236, equations 5, 7 and 9.
    """

    def __init__(
        self, d_model: int, *, n_heads: int = 4, d_head: int | None = None, causal: bool = False, chunk_size: int = 64
    ) -> None:
        super().__init__()
        check_positive({"chunk_size": chunk_size})
        self.heads = SplitHeads(d_model, n_heads, d_head=d_head)
        self.to_residual = nn.Linear(n_heads * self.heads.d_v, d_model)
        self.causal, self.chunk_size = causal, chunk_size
        self.edit: Edit | None = None  # set by `attnlab.inspection` while an intervention is open

    def forward(self, x: Activations, memory: Memory | None = None, padding: RealKeys | None = None) -> Activations:
        """Kernel-weighted means of values; zeros from the heads where there is no key."""
        if self.edit:
            return self.trace(x, memory, padding).output
        q, k, v = self._features(x, memory, padding)
        v = F.pad(v, (0, 1), value=1.0)  # the last feature of the sums is the divisor
        sums = _past_sums(q, k, v, self.chunk_size) if self.causal else q @ (k.transpose(-2, -1) @ v)
        return self.to_residual(concatenate(safe_divide(sums[..., :-1], sums[..., -1:])))

    def trace(self, x: Activations, memory: Memory | None = None, padding: RealKeys | None = None) -> Trace:
        """Compute the same as `forward` pair by pair and return the steps, q and k after ``f``."""
        edit = self.edit or unchanged
        q, k, v = self._features(x, memory, padding)
        q, k, v = edit("q", q), edit("k", k), edit("v", v)
        scores = edit("scores", q @ k.transpose(-2, -1))  # (batch, heads, q_len, k_len)
        seen = scores.tril() if self.causal else scores
        weights = edit("weights", safe_divide(seen, seen.sum(-1, keepdim=True)))
        head_outputs = edit("head_outputs", weights @ v)
        output = edit("output", self.to_residual(concatenate(head_outputs)))
        return Trace(q, k, v, scores, weights, head_outputs, output)

    def _features(
        self, x: Activations, memory: Memory | None, padding: RealKeys | None
    ) -> tuple[Queries, SharedKeys, SharedValues]:
        """``f(q)``, ``f(k)``, zero at padded keys, and values."""
        if self.causal:
            refuse_memory(memory, "linear-attention (causal)")
        q, k, v = self.heads.project(x, memory)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q, k if padding is None else k.masked_fill(~padding[:, None, :, None], 0), v


def safe_divide(dividend: Tensor, divisor: Tensor) -> Tensor:
    """A quotient that is zero, with zero gradient, where the divisor is not positive."""
    return dividend / divisor.masked_fill(divisor <= 0, 1)


def _past_sums(q: Tensor, k: Tensor, v: Tensor, chunk_size: int) -> Tensor:
    """Return ``sum_{j <= i} (q_i . k_j) v_j`` for every i, chunk by chunk."""
    length = q.shape[-2]
    size = length if is_recorded() else min(chunk_size, length)
    spare = -length % size
    q, k, v = (F.pad(part, (0, 0, 0, spare)).unflatten(-2, (-1, size)) for part in (q, k, v))
    states = k.transpose(-2, -1) @ v  # (batch, heads, chunks, d_head, d_v + 1)
    before = states.cumsum(dim=2).roll(1, dims=2)
    before = torch.cat((torch.zeros_like(before[:, :, :1]), before[:, :, 1:]), dim=2)
    inside = (q @ k.transpose(-2, -1)).tril() @ v
    return (q @ before + inside).flatten(2, 3)[:, :, :length]


@final
class Fastformer(AbstractKeylessMixer):
    """Attend additively: summarize all queries, then all keys, and multiply every value by the summary.

    Notes
    -----
    ``a = softmax(w_q . q_i / sqrt(d)); Q = sum_i a_i q_i; p_i = Q * k_i; b = softmax(w_k . p_i / sqrt(d));
    K = sum_i b_i p_i; y_i = W_u (K * v_i) + q_i``, then a linear map of all heads. Time O(length * d_model^2).
    Differs from [1]_: queries and values have weights of their own. The causal form is ours: both summaries run
    over the past only, and ``p_i`` takes the summary of the queries up to i; at the last position it therefore
    differs from the bidirectional form. It costs a factor of log(length) more in time.

    References
    ----------
    .. [1] Wu et al., 2021, arXiv:2108.09084, section 3.
    """

    def __init__(self, d_model: int, *, n_heads: int = 4, d_head: int | None = None, causal: bool = False) -> None:
        super().__init__()
        self.heads = SplitHeads(d_model, n_heads, d_head=d_head)
        width = self.heads.d_head
        self.score_q = nn.Parameter(torch.randn(n_heads, 1, width))
        self.score_k = nn.Parameter(torch.randn(n_heads, 1, width))
        self.transform = nn.Linear(width, width)
        self.to_residual = nn.Linear(n_heads * width, d_model)
        self._summarize = _mean_of_past if causal else _mean_of_all

    def forward(self, x: Activations, memory: Memory | None = None, padding: Real | None = None) -> Activations:
        """Values multiplied by what the sequence says as a whole, or said so far."""
        refuse_memory(memory, "fastformer")
        q, k, v = self.heads.project(x)
        scale = 1 / math.sqrt(self.heads.d_head)
        query = self._summarize((q * self.score_q).sum(-1) * scale, q, padding)
        pairs = query * k  # (batch, heads, length, d_head)
        key = self._summarize((pairs * self.score_k).sum(-1) * scale, pairs, padding)
        return self.to_residual(concatenate(self.transform(key * v) + q))


def _mean_of_all(logits: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
    """The softmax-weighted mean over all real positions, (batch, heads, 1, width)."""
    logits, weights = _start(logits, padding)
    weights = weights * (logits - logits.detach().amax(-1, keepdim=True)).exp()  # (batch, heads, length)
    return safe_divide(weights.unsqueeze(-2) @ values, weights.sum(-1)[..., None, None])


def _mean_of_past(logits: Tensor, values: Tensor, padding: Tensor | None) -> Tensor:
    """The softmax-weighted mean over the real positions up to each one, by doubling the span."""
    peak, weights = _start(logits, padding)
    sums, lowest = weights.unsqueeze(-1) * values, torch.finfo(logits.dtype).min
    span, length = 1, logits.shape[-1]
    while span < length:  # after each round, sums cover the last 2 * span positions, relative to their peak
        earlier = F.pad(peak[..., :-span], (span, 0), value=lowest)
        joint = torch.maximum(peak, earlier)
        ours, theirs = (peak - joint).exp(), (earlier - joint).exp()
        weights = ours * weights + theirs * F.pad(weights[..., :-span], (span, 0))
        sums = ours.unsqueeze(-1) * sums + theirs.unsqueeze(-1) * F.pad(sums[..., :-span, :], (0, 0, span, 0))
        peak, span = joint, 2 * span
    return safe_divide(sums, weights.unsqueeze(-1))  # (batch, heads, length, width)


def _start(logits: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits and weights in which padded positions count for nothing."""
    if padding is None:
        return logits, torch.ones_like(logits)
    forbidden = ~padding[:, None, :].expand_as(logits)
    weights = torch.ones_like(logits).masked_fill(forbidden, 0)
    return logits.masked_fill(forbidden, torch.finfo(logits.dtype).min), weights
