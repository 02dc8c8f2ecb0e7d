"""Stack a patient on itself, or open up a model, and measure size, likeness and gradient layer by layer."""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import BATCH, Examination
from attnlab.doctor.measures.blocks import BENDS
from attnlab.doctor.measures.identity import INPUT, follow
from attnlab.inspection.tape.attentions import attentions

_SEED = 40  # of the inputs; any
_FIRST = 3  # layers over which a factor per layer is taken
_NUMBERED = re.compile(r"(.*?)\.?(\d+)$")


@final
@dataclass(frozen=True)
class Depths:
    """Hold what a signal and its gradient do on their way through layers."""

    sizes: tuple[float, ...]  # root mean square of the input and of each layer's output
    likeness: tuple[float, ...]  # mean cosine between two positions of a sample, in the same places
    gradients: tuple[float, ...]
    """Norm of the gradient at each layer's output; that of its weights is large where a norm follows a small input."""

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.sizes) - 1

    @property
    def factor(self) -> float:
        """The mean factor of the size per layer, over the first layers: later ones may live on their biases."""
        steps = min(self.layers, _FIRST)
        return (self.sizes[steps] / self.sizes[0]) ** (1 / steps) if self.sizes[0] > 0 else 1.0

    @property
    def settled(self) -> float:
        """The size behind the last layer over that behind the first, which adapts to its input."""
        return self.sizes[-1] / self.sizes[1] if self.sizes[1] > 0 else 1.0

    @property
    def ratio(self) -> float:
        """The gradient at the output of the last layer over that at the output of the first."""
        first, last = self.gradients[0], self.gradients[-1]
        return last / first if first > 0 else float("inf") if last > 0 else 1.0


@final
@dataclass(frozen=True)
class Stacks:
    """Hold a stack as it is, and the same with the skip added or taken away."""

    plain: Depths  # layers one after the other
    other: Depths | None
    """With ``x + layer(x)`` in place of ``layer(x)``, or with ``layer(x) - x`` where a layer adds its input itself;
    None where neither can be."""
    has_skip: bool  # whether the layers have a skip of their own
    fresh: bool  # whether every layer has a random start of its own


_known: weakref.WeakKeyDictionary[Examination, Stacks | None] = weakref.WeakKeyDictionary()


def stacks(exam: Examination) -> Stacks | None:
    """What happens by depth, None where the patient cannot be stacked and has no layers of its own."""
    if exam not in _known:
        _known[exam] = _model(exam) if exam.convention.kind == "model" else _stacked(exam)
    return _known[exam]


def is_stacked(exam: Examination) -> bool:
    """Whether people stack the patient as it is: a block, or an attention with a non-linearity behind it."""
    if exam.convention.kind != "layer":
        return True
    tape = exam.usual_tape
    behind = {index for one in attentions(tape, exam.convention) for index in tape.descendants(one.outputs_index)}
    return any(tape.events[index].call.rstrip("_") in BENDS for index in behind)


def _stacked(exam: Examination) -> Stacks | None:
    """Stack copies of a layer or block with fresh random starts."""
    convention = exam.convention
    if convention.takes != "embeddings" or convention.pooled or convention.d_in != convention.d_out:
        return None
    depth = max(1, exam.options.depth)
    layers, fresh = _layers(exam, depth)
    plain = _measure(exam, layers, times_input=0)
    own = follow(exam.usual_tape, exam.inputs()).output
    if not own.alive:
        return Stacks(plain, _measure(exam, layers, times_input=1), has_skip=False, fresh=fresh)
    is_clean = own.shares == {INPUT: 1.0}
    other = _measure(exam, layers, times_input=-1) if is_clean else None
    return Stacks(plain, other, has_skip=True, fresh=fresh)


def _layers(exam: Examination, depth: int) -> tuple[list[nn.Module], bool]:
    """Layers with random starts of their own, or copies drawn anew where the class can do it."""
    torch.default_generator.manual_seed(_SEED)
    found = [exam.another(start=layer) for layer in range(depth)]
    layers = [layer for layer in found if layer is not None]
    if len(layers) == depth:
        return layers, True
    layers = [exam.copy() for _ in range(depth)]
    redrawn = [_redraw(layer) for layer in layers]
    return layers, all(redrawn)


def _redraw(layer: nn.Module) -> bool:
    """Draw the parameters of a copy anew, by each part's own rule; return whether there was a rule."""
    rules = [(part, getattr(part, "reset_parameters", None)) for part in layer.modules()]
    rules = [(part, rule) for part, rule in rules if callable(rule)]
    torch.default_generator.manual_seed(int(torch.randint(1 << 30, (1,))))
    covered = {id(parameter) for part, _ in rules for parameter in part.parameters()}
    if any(id(parameter) not in covered and parameter.dim() > 1 for parameter in layer.parameters()):
        return False
    for _, rule in rules:
        rule()
    return bool(rules)


def _measure(exam: Examination, layers: list[nn.Module], *, times_input: int) -> Depths:
    """Send an input through layers, each output plus so many times its input, and a gradient back."""
    x = exam.inputs(batch=BATCH)
    outputs = [x.requires_grad_()]
    for layer in layers:
        output = exam.run(outputs[-1], module=layer, grad=True)
        outputs.append(output + times_input * outputs[-1] if times_input else output)
    return _depths(outputs)


def _depths(outputs: list[Tensor]) -> Depths:
    """Sizes and likeness of outputs, and the gradient of a random projection of the last at that of each layer."""
    generator = torch.Generator().manual_seed(_SEED)
    last = outputs[-1]
    weights = torch.randn(last.shape, generator=generator, dtype=torch.float64).to(last.dtype)
    made = outputs[1:]
    found: list[Tensor | None] = [None] * len(made)
    if all(output.requires_grad for output in made):
        found = list(torch.autograd.grad((last * weights).sum(), made, allow_unused=True))
    norms = [0.0 if gradient is None else float(gradient.norm()) for gradient in found]
    values = [output.detach() for output in outputs]
    return Depths(tuple(map(size, values)), tuple(map(likeness, values)), tuple(norms))


def size(values: Tensor) -> float:
    """The root mean square."""
    return float(values.detach().double().square().mean().sqrt())


def likeness(values: Float[Tensor, "batch length features"]) -> float:
    """The mean cosine between two different positions of one sample."""
    if values.dim() != 3 or values.shape[1] < 2:
        return 0.0
    unit = nn.functional.normalize(values.detach().double(), dim=-1)
    cosines = unit @ unit.transpose(1, 2)  # (batch, length, length)
    length = values.shape[1]
    return float((cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)).mean() / (length * (length - 1)))


# Models have layers of their own


def _model(exam: Examination) -> Stacks | None:
    """Measure the layers of a model where they stand."""
    module = exam.copy()  # as it starts: zero-initialized gains stay closed
    layers = _own_layers(module)
    if len(layers) < 2:
        return None
    outputs: list[Tensor] = []

    def note(_part: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if not outputs and inputs and isinstance(inputs[0], Tensor):
            outputs.append(inputs[0])
        if isinstance(first, Tensor):
            outputs.append(first)

    handles = [part.register_forward_hook(note) for part in layers]
    try:
        exam.run(exam.inputs(), module=module, grad=True)
    finally:
        for handle in handles:
            handle.remove()
    if len(outputs) != len(layers) + 1 or any(one.shape != outputs[0].shape for one in outputs):
        return None
    if not all(one.is_floating_point() and one.dim() == 3 for one in outputs):
        return None
    return Stacks(_depths(outputs), None, True, True)


def _own_layers(module: nn.Module) -> list[nn.Module]:
    """The longest numbered run of submodules of one class with weights: the blocks of a model."""
    runs: dict[tuple[str, type], list[nn.Module]] = {}
    for name, part in module.named_modules():
        numbered = _NUMBERED.match(name)
        if numbered and any(parameter.dim() > 1 for parameter in part.parameters()):
            runs.setdefault((numbered.group(1), type(part)), []).append(part)
    outermost = sorted(runs.items(), key=lambda item: (item[0][0].count("."), -len(item[1])))
    blocks = [parts for _, parts in outermost if list(parts[0].children())]
    return blocks[0] if blocks else []


def measured(exam: Examination) -> Stacks | None:
    """Return `stacks`, or None where a stack of the patient cannot run though the patient can."""
    try:
        return stacks(exam)
    except (ModuleError, RuntimeError):  # a graph kept from an earlier call, say: other checks tell of it
        return None
