"""Find the attentions on a tape, whatever the code they were written in, in one canonical form.

An attention is a product of weights and values in which the weights went through a softmax, or come from products of
queries and keys. Its axes are told by behaviour: an entry belongs to the sample whose replacement changes it. Linear
attention, which never has weights, is not found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float, Int
from torch import Tensor

from attnlab.inspection.tape.contractions import Operand
from attnlab.inspection.tape.dependence import dependence_of
from attnlab.inspection.tape.folding import Along, folding_of, heads_in_rows
from attnlab.inspection.tape.pairing import Over, Pairing, pairing_of
from attnlab.inspection.tape.tape import Change, Event, Tape
from attnlab.inspection.tape.tracing import back_to
from attnlab.inspection.tape.weighted_sums import Products, TapedSoftmax, WeightedSum, weighted_sums
from attnlab.strangers.calling.convention import Convention

_NONLINEAR = frozenset(
    {
        *("sigmoid", "relu", "exp", "pow", "tanh", "softplus", "gelu", "silu", "abs", "clamp", "clamp_min", "elu"),
        *(
            "leaky_relu",
            "threshold",
            "hardtanh",
            "hardsigmoid",
            "exp2",
            "square",
            "sqrt",
            "rsqrt",
            "log_sigmoid_forward",
        ),
    }
)
"""Operations that make weights of scores in place of a softmax."""


@final
@dataclass(frozen=True, eq=False)
class Sources:
    """Hold where on the tape an attention's tensors are inputs, and where in them the canonical elements lie."""

    weights: Operand
    values: Operand
    """Event and input."""
    weight_places: Int[Tensor, "batch heads q_len k_len"]
    value_places: Int[Tensor, "batch heads k_len d_v"]
    """Places in the flattened input."""
    pairing: Pairing  # the same for scores, products, queries and keys


@final
@dataclass(frozen=True, eq=False)
class TapedAttention:
    """Hold one attention of a recorded call."""

    weights: Float[Tensor, "batch heads q_len k_len"]  # what multiplies the values, (batch, heads, q_len, k_len)
    scores: Float[Tensor, "batch heads q_len k_len"] | None
    """What went into the first softmax, mask and scale applied; None where there is none, or it cannot be traced."""
    products: Float[Tensor, "batch heads q_len k_len"] | None
    """The products of queries and keys alone, before scale and mask; None where scores are no such products."""
    q: Float[Tensor, "batch heads q_len d_head"] | None
    k: Float[Tensor, "batch heads k_len d_head"] | None
    """The factors of these products, (batch, heads, length, d_head), repeated for grouped heads."""
    v: Float[Tensor, "batch heads k_len d_v"]  # what is summed, (batch, heads, k_len, d_v)
    head_outputs: Float[Tensor, "batch heads q_len d_v"]  # (batch, heads, q_len, d_v)
    normalizer: Literal["softmax", "other", "none"]
    """``other``: something else non-linear; ``none``: the products are the weights, but for factors and masks."""
    normalized_over: Over  # axis the last softmax ran over; ``unknown`` where there is none, or it ran over several
    along: Along  # what the keys are
    softmaxes: tuple[TapedSoftmax, ...]  # all that the weights went through, in order
    outputs_index: int  # event that made the head outputs
    weights_index: int | None
    scores_index: int | None
    products_index: int | None
    q_index: int | None
    k_index: int | None
    v_index: int | None
    """Events that made the others, in the layout of the code."""
    sources: Sources  # where all this lies on the tape
    output_places: Int[Tensor, "batch heads q_len d_v"]
    """Where the head outputs lie in the output of their event, (batch, heads, q_len, d_v)."""
    where: str  # dotted path of the submodule

    @property
    def n_heads(self) -> int:
        """The number of heads; where code calls one head after the other, each is an attention of one head."""
        return self.weights.shape[1]

    def change_row(self, row: int, function: Callable[[Tensor], Tensor]) -> Change:
        """A change of one query's outputs in all heads; the function is given them as (batch, heads, d_v)."""
        return self._change(self.output_places[:, :, row], function)

    def _change(self, places: Tensor, function: Callable[[Tensor], Tensor]) -> Change:
        def changed(output: Tensor) -> Tensor:
            flat = output.flatten()
            flat[places.flatten()] = function(flat[places]).flatten().to(flat.dtype)
            return flat.view(output.shape)

        return self.outputs_index, changed


def attentions(tape: Tape, convention: Convention) -> list[TapedAttention]:
    """The attentions on a tape, in order.

    Notes
    -----
    Products whose weights come from a softmax count if queries and keys were multiplied before it, or if they weigh
    positions. Products without softmax count if a product of queries and keys over positions leads to them.
    """
    if "attentions" not in tape.known:
        tape.known["attentions"] = _Search(tape, convention).found()
    return list(tape.known["attentions"])


@final
class _Search:
    """Bring the weighted sums of one tape into canonical form."""

    def __init__(self, tape: Tape, convention: Convention) -> None:
        self.tape = tape
        self.dependence = dependence_of(tape, convention)
        self.products = Products(tape, self.dependence)

    def found(self) -> list[TapedAttention]:
        """All attentions in order."""
        normalized = weighted_sums(self.tape, self.dependence, self.products)
        taken = {found.contraction.event for found in normalized}
        taken |= {index for found in normalized for index in self._products_before(found)}
        others = [
            WeightedSum(product, left, ())
            for product in self.products.all
            for left in (True, False)
            if product.event not in taken
        ]
        made = [self._attention(found) for found in (*normalized, *others)]
        kept = {attention.outputs_index: attention for attention in made if attention is not None}
        return [kept[index] for index in sorted(kept)]

    def _products_before(self, found: WeightedSum) -> list[int]:
        """The products of queries and keys that lead to a weighted sum."""
        start = found.softmaxes[0].scores if found.softmaxes else found.weights
        reached = back_to(self.tape, start, stop=set(self.products.ends))
        if not reached & set(self.products.ends) and found.softmaxes:  # heads may be mixed in between
            reached = self._mixed_before(start)
        return sorted((reached & set(self.products.ends)) - {found.contraction.event}, reverse=True)

    def _mixed_before(self, scores: Operand) -> set[int]:
        """The last product before scores that has as many elements as they have."""
        size = self.tape.events[scores[0]].inputs[scores[1]].numel()
        before = self.tape.ancestors(scores[0])
        alike = [
            index for index in self.products.ends if index in before and self.tape.events[index].output.numel() == size
        ]
        return set(alike[-1:])

    def _attention(self, found: WeightedSum) -> TapedAttention | None:
        """A weighted sum as an attention, None if it is none."""
        weights, values, outputs = _oriented(found)
        folding = folding_of(self.dependence, found.values, values)
        weights, values, outputs = weights[folding.order], values[folding.order], outputs[folding.order]
        pairing = self._pairing(found, weights)
        rows = heads_in_rows(self.dependence, pairing.queries, pairing.query_places, keys=weights.shape[3])
        if rows is not None:
            weights, outputs = rows(weights), rows(outputs)
            values = values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
            pairing = self._pairing(found, weights)
        if not self._is_attention(found, pairing, folding.along, q_len=weights.shape[2]):
            return None
        event = self.tape.events[found.contraction.event]
        return TapedAttention(
            weights=self._taken(found.weights, weights),
            scores=self._maybe(pairing.scores, pairing.score_places),
            products=self._products(pairing),
            q=self._maybe(pairing.queries, pairing.query_places),
            k=self._maybe(pairing.keys, pairing.key_places),
            v=self._taken(found.values, values),
            head_outputs=event.output.flatten()[outputs],
            normalizer=self._normalizer(found),
            normalized_over=pairing.over,
            along=folding.along,
            softmaxes=found.softmaxes,
            outputs_index=event.index,
            weights_index=self._made_by(found.weights),
            scores_index=self._made_by(pairing.scores),
            products_index=pairing.products,
            q_index=self._made_by(pairing.queries),
            k_index=self._made_by(pairing.keys),
            v_index=self._made_by(found.values),
            sources=Sources(found.weights, found.values, weights, values, pairing),
            output_places=outputs,
            where=event.where,
        )

    def _pairing(self, found: WeightedSum, places: Tensor) -> Pairing:
        """What weights were made of."""
        before = [self.products.ends[index] for index in self._products_before(found)]
        return pairing_of(self.tape, found.weights, places=places, softmaxes=found.softmaxes, candidates=before)

    def _is_attention(self, found: WeightedSum, pairing: Pairing, along: Along, *, q_len: int) -> bool:
        """Whether a weighted sum weighs what an attention weighs; see the notes of `attentions`."""
        length = self.dependence.length
        if found.softmaxes:
            return pairing.products is not None or (along != "unknown" and q_len in (1, length))
        return pairing.products is not None and along != "unknown" and q_len == length

    def _normalizer(self, found: WeightedSum) -> Literal["softmax", "other", "none"]:
        """What happened to the products on the way to the weights."""
        if found.softmaxes:
            return "softmax"
        ends = set(self.products.ends)
        passed = [self.tape.events[index] for index in back_to(self.tape, found.weights, stop=ends) - ends]
        bent = any(event.call.rstrip("_") in _NONLINEAR and event.index in self.dependence.on_input for event in passed)
        divided = any(event.call == "div" and self._divisor_depends(event) for event in passed)
        return "other" if bent or divided else "none"

    def _divisor_depends(self, event: Event) -> bool:
        return len(event.inputs) == 2 and self.dependence.input_depends(event, 1)

    def _taken(self, operand: Operand, places: Tensor) -> Tensor:
        """Elements of an input of an event."""
        return self.tape.events[operand[0]].inputs[operand[1]].flatten()[places]

    def _maybe(self, operand: Operand | None, places: Tensor | None) -> Tensor | None:
        return None if operand is None or places is None else self._taken(operand, places)

    def _products(self, pairing: Pairing) -> Tensor | None:
        if pairing.products is None or pairing.product_places is None:
            return None
        return self.tape.events[pairing.products].output.flatten()[pairing.product_places]

    def _made_by(self, operand: Operand | None) -> int | None:
        """The event that made an input."""
        return None if operand is None else self.tape.events[operand[0]].parents[operand[1]]


def _oriented(found: WeightedSum) -> tuple[Tensor, Tensor, Tensor]:
    """The places of weights (n, q_len, k_len), values (n, k_len, d_v) and outputs (n, q_len, d_v)."""
    product = found.contraction
    if found.weights_left:
        return product.left_places, product.right_places, product.out_places
    left, right, out = product.left_places, product.right_places, product.out_places
    return right.transpose(1, 2), left.transpose(1, 2), out.transpose(1, 2)
