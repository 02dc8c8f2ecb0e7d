"""Find where a module sums values by weights: the products in which a normalized tensor meets another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from attnlab.inspection.tape.contractions import Contraction, Operand, contraction_of
from attnlab.inspection.tape.dependence import Dependence
from attnlab.inspection.tape.tape import Event, Tape
from attnlab.inspection.tape.tracing import NORMALIZERS, back_to, sources_of, traceable

_MAXIMA = ("amax", "max", "logsumexp")  # what is subtracted before an exponential, for its range


@final
@dataclass(frozen=True)
class TapedSoftmax:
    """Hold one softmax, torch's own or one written out."""

    event: int  # the event whose output is normalized
    scores: Operand  # the input that holds the scores
    written_out: bool = False  # whether it is an exponential divided by a sum


@final
@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Hold one product of weights and values."""

    contraction: Contraction  # the product
    weights_left: bool  # whether the weights are its left factor
    softmaxes: tuple[TapedSoftmax, ...]  # those the weights went through, in order

    @property
    def weights(self) -> Operand:
        """Which input the weights are."""
        return self.contraction.left if self.weights_left else self.contraction.right

    @property
    def values(self) -> Operand:
        """Which input the values are."""
        return self.contraction.right if self.weights_left else self.contraction.left


@final
class Products:
    """Hold the products of a tape in which both factors depend on the input.

    Parameters
    ----------
    tape : Tape
        What was recorded.
    dependence : Dependence
        What depends on the input.
    """

    def __init__(self, tape: Tape, dependence: Dependence) -> None:
        self.tape = tape
        self.dependence = dependence
        found = [contraction_of(tape, event) for event in tape.events if event.index in dependence.on_input]
        self.all = [product for product in found if product is not None and self._both_depend(product)]
        self.ends = {product.event: product for product in self.all}
        self.starts = {product.left[0]: product for product in self.all}  # of a summed multiplication, the latter

    def _both_depend(self, product: Contraction) -> bool:
        operands = (product.left, product.right)
        return all(self.dependence.input_depends(self.tape.events[event], number) for event, number in operands)


def softmaxes(tape: Tape, dependence: Dependence) -> list[TapedSoftmax]:
    """The softmaxes of a tape whose scores depend on the input."""
    found: list[TapedSoftmax] = []
    for event in tape.events:
        if event.index not in dependence.on_input:
            continue
        if event.call in NORMALIZERS:
            found.append(TapedSoftmax(event.index, (event.index, 0)))
        elif (scores := _written_out(tape, event)) is not None:
            found.append(TapedSoftmax(event.index, scores, written_out=True))
    return found


def _written_out(tape: Tape, event: Event) -> Operand | None:
    """The scores of a softmax that is written out, given the event of its division."""
    if event.call == "exp" and (shifted := _shifted(tape, event, ("logsumexp",))) is not None:
        return shifted
    if event.call not in ("div", "mul") or len(event.inputs) != 2 or event.inputs[1].numel() == event.inputs[0].numel():
        return None
    divisor = _near(tape, (event.index, 1))
    if event.call == "mul" and not any(tape.events[index].call in ("reciprocal", "pow") for index in divisor):
        return None
    sums = [index for index in divisor if tape.events[index].call == "sum"]
    summed = {index for total in sums for index in _exponentials(tape, (total, 0))}
    for index in sorted(_exponentials(tape, (event.index, 0))):
        if any(tape.events[index].parents == tape.events[other].parents for other in summed):
            return _shifted(tape, tape.events[index], _MAXIMA) or (index, 0)
    return None


def _exponentials(tape: Tape, operand: Operand) -> set[int]:
    """The exponentials an input was made of, followed through what leaves elements in place."""
    return {index for index in _near(tape, operand) if tape.events[index].call.startswith("exp")}


def _near(tape: Tape, operand: Operand) -> set[int]:
    """The events an input was made by, followed through what leaves elements in place."""
    return back_to(tape, operand, stop=set())


def _shifted(tape: Tape, exponential: Event, shifts: tuple[str, ...]) -> Operand | None:
    """The scores of an exponential from which a maximum was subtracted."""
    parent = exponential.parents[0]
    if parent is None or tape.events[parent].call != "sub" or len(tape.events[parent].inputs) != 2:
        return None
    subtracted = _near(tape, (parent, 1))
    return (parent, 0) if any(tape.events[index].call in shifts for index in subtracted) else None


def weighted_sums(tape: Tape, dependence: Dependence, products: Products) -> list[WeightedSum]:
    """Where normalized tensors are multiplied with values, each product once, in order."""
    found: dict[int, WeightedSum] = {}
    for softmax in softmaxes(tape, dependence):
        sums = list(_sums_of(tape, products, softmax.event, through_products=False))
        sums = sums or list(_sums_of(tape, products, softmax.event, through_products=True))[:1]
        for product, left in sums:
            known = found.get(product.event)
            if known is None or known.weights_left == left:
                before = () if known is None else known.softmaxes
                found[product.event] = WeightedSum(product, left, (*before, softmax))
    return [found[index] for index in sorted(found)]


def _sums_of(
    tape: Tape, products: Products, softmax: int, *, through_products: bool
) -> Iterator[tuple[Contraction, bool]]:
    """The products one factor of which comes from a softmax, and whether it is the left one.

    `through_products` also follows products with parameters, which mix heads. What is made of the same softmax is not
    what it weighs: it is squared, or inverted, as between the factors of Nystrom attention.
    """
    reached = {softmax}
    descendants = tape.descendants(softmax)
    for index in sorted(descendants):
        event = tape.events[index]
        derived = [
            any(source in reached for source in sources_of(tape, (index, at))) for at in range(len(event.inputs))
        ]
        if not any(derived):
            continue
        product = products.ends.get(index) or products.starts.get(index)
        if product is not None and product.left[0] == index and _has_values(product, left=derived[product.left[1]]):
            other = product.right if derived[product.left[1]] else product.left
            if not derived[other[1]] and descendants.isdisjoint(sources_of(tape, other)):
                yield product, derived[product.left[1]]
            continue
        if traceable(event) or through_products:
            reached.add(index)


def _has_values(product: Contraction, *, left: bool) -> bool:
    """Whether the factor that is not the weights has features of its own; a plain sum of weights has none."""
    places = product.right_places if left else product.left_places.transpose(1, 2)  # (n, keys, features)
    return product.left[0] == product.event or places.shape[2] > 1
