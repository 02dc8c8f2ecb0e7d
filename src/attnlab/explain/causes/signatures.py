"""Known effects as measurements: what a model does to signal, gradients, scores and rectifiers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from attnlab.core.contracts import Batch, StudyTask
from attnlab.core.draws import drawn_by_name
from attnlab.core.exact import InFloat64
from attnlab.core.processes.apart import call_apart, names_own_code
from attnlab.doctor.examination import wake
from attnlab.doctor.measures.stacks import likeness, size
from attnlab.explain.trials.setups import Setup
from attnlab.inspection.activity import dead_share, relative_entropy
from attnlab.inspection.order import by_chance, sees_order
from attnlab.inspection.reach import reach
from attnlab.nn.attention import Attention
from attnlab.nn.changed_calls import FAR, ChangedCalls, LastBounded
from attnlab.nn.init import start_far_above
from attnlab.nn.kernels.dropout import Dropout
from attnlab.nn.mended import Mending, layers_of, layers_with_norm_behind, register_parts
from attnlab.studies.define.assemble import build_model, build_task
from attnlab.training.keeping.checkpoints import load_model_weights

ITEMS = 8
"""Sequences that are looked at."""
SHRINKS, GROWS = 0.7, 1.5
"""Factor of the size of the signal per layer, from the first on, beyond which it is said to shrink or to grow."""
DROWNED = 0.05
"""Size of what the first layer adds over that of its input, below which the layers drown in it."""
FAINT = 0.1
"""Standard deviation over inputs at a position, over that of the mean inputs of the positions."""
ALIKE, ROSE = 0.95, 0.3
"""Mean cosine of two positions from which they count as one direction, and how much of it the layers must have made."""
LOPSIDED = 10.0
"""Gradient at the output of the last layer over that at the output of the first, or the reverse."""
LARGE_SCORES = 5.0
"""Standard deviation of scores: of a dozen keys the largest then holds most of the weight."""
PEAKED = 0.2
"""Mean entropy of attention weights, as a part of that of equal weights."""
FLAT = 0.1
"""Standard deviation of scores below which all weights are nearly equal, as if no score had been learned."""
VANISHED = 1e-6
"""Gradient, for one weight and as a part of that of the weights with the largest, below which nothing is learned."""
SATURATED = 0.05
"""Share of the weights; a bias of the keys, which a softmax takes out again, is always among them."""
ROUNDING = 1e-5
"""Difference of answers, as a part of the largest of them, up to which other steps of the same sums may lead."""
STEP = 0.01
"""Length of the step of each weight tensor after which it is asked again which ones have a gradient."""
SHARPER, GAINED = 4, 0.2
"""Factor of the answers, and part of the loss that goes with it, from which on they are too small."""
LEARNED = 0.1
"""Part of the loss of equal answers below which the loss counts as no smaller: larger answers always lower the rest."""
LOST = 1e-6
"""Change of answers by a number added to all inputs, as a part of that by other inputs, from which down it is none."""
HEAVY = 0.4
"""Share that is dropped at once: a Transformer of the first paper drops 0.1, its largest 0.3."""
VARIES = 0.01
"""Difference of two calls in training, as a part of their size, from which on they are taken to differ by chance."""
BOUNDLESS = 1e30
"""Gradient of the last layer over that of the first where the first has none."""
DEAD = 0.5
"""Share of rectified units that are zero at every position of every item."""

_FAR: Mapping[str, float] = {"low": FAR, "high": FAR, "gradient": BOUNDLESS}
"""By what is measured what is taken for no limit."""
Measured = Mapping[str, float]
"""What was measured, by name; what a model does not have is not there."""


@final
@dataclass(frozen=True)
class Signature:
    """Name a known effect by what is measured where it is at work."""

    name: str  # what it is called
    holds: Callable[[Measured], bool]  # whether it is at work, from what was measured
    evidence: str  # what was measured, in words with places for the values
    source: str  # where it is described

    def of(self, measured: Measured) -> str:
        """The evidence, empty where the effect is not at work."""
        limits = {name: _limit(measured[name], far) for name, far in _FAR.items() if name in measured}
        try:
            return self.evidence.format(**{**measured, **limits}) if self.holds(measured) else ""
        except KeyError:
            return ""

    def is_at_work(self, measured: Measured) -> bool:
        """Whether there is evidence of it."""
        return bool(self.of(measured))


def _limit(value: float, far: float) -> str:
    """What may be without a limit, in words."""
    return f"{value:.3g}" if abs(value) < far else f"{'-' if value < 0 else ''}infinity"


SIGNATURES: tuple[Signature, ...] = (
    Signature("signal shrink", lambda m: m["signal"] < SHRINKS,
        "every layer after the first leaves {signal:.2g} of the size of the signal",
        "He 2023, arXiv:2302.10322; Noci 2022, arXiv:2206.03126"),
    Signature("signal growth", lambda m: m["signal"] > GROWS,
        "every layer after the first makes the signal {signal:.3g} times as large",
        "He 2023, arXiv:2302.10322"),
    Signature("a large entry", lambda m: m["adds"] < DROWNED and m["entry"] > 1,
        "what enters the first layer has a size of {entry:.3g}, beside which what it adds is {adds:.2%}",
        "Vaswani 2017, arXiv:1706.03762, section 3.4"),
    Signature("closed branches", lambda m: m["trained"] > 0 and m["adds"] < DROWNED,
        "what the first layer adds to what enters it is {adds:.2g} of its size still",
        "Bachlechner 2020, arXiv:2003.04887; Touvron 2021, arXiv:2103.17239 (gains that start next to zero)"),
    Signature("inputs that drown", lambda m: m["told"] < FAINT,
        "what enters the first layer differs {told:.2g} times as much from input to input as from position to position",
        "Vaswani 2017, arXiv:1706.03762, section 3.4 (embeddings are multiplied by sqrt(d_model))"),
    Signature("layers beside each other", lambda m: m["unchained"] > 0,
        "what the first layer is given is given to {unchained:.0f} more, and of its output nothing is left",
        "Vaswani 2017, arXiv:1706.03762, section 3.1 (a stack of layers)"),
    Signature("norm over positions", lambda m: m["over_positions"] > 0,
        "a layer norm gives every channel a mean of 0 and a variance of 1 over all positions: its level is lost",
        "Ba 2016, arXiv:1607.06450, section 3"),
    Signature("lost levels", lambda m: m["level"] < LOST,
        "a number that is added to all inputs changes no answer: how high they lie is lost, as behind a norm of the "
        "inputs or where they are subtracted from each other",
        "Kim 2022, ICLR (reversible instance normalization: what is normalized away is given back)"),
    Signature("rank collapse", lambda m: m["likeness"] > ALIKE and m["likeness"] - m["first_likeness"] > ROSE,
        "mean cosine of two positions {first_likeness:.2f} behind the first layer, {likeness:.2f} behind the last",
        "Dong 2021, arXiv:2103.03404; Noci 2022, arXiv:2206.03126"),
    Signature("gradient by depth", lambda m: not 1 / LOPSIDED < m["gradient"] < LOPSIDED,
        "the gradient at the output of the last layer is {gradient} times that at the output of the first",
        "Xiong 2020, arXiv:2002.04745; Liu 2020, arXiv:2004.08249"),
    Signature("logit growth", lambda m: m["scores"] > LARGE_SCORES,
        "scores have a standard deviation of {scores:.3g}",
        "Wortsman 2023, arXiv:2309.14322; Vaswani 2017, arXiv:1706.03762, section 3.2.1"),
    Signature("entropy collapse", lambda m: m["entropy"] < PEAKED,
        "attention weights have {entropy:.0%} of the entropy of equal ones",
        "Zhai 2023, arXiv:2303.06296"),
    Signature("flat attention", lambda m: m["trained"] > 0 and m["scores"] < FLAT,
        "scores have a standard deviation of {scores:.2g} in every layer: whatever a query asks for, it gets the mean",
        "Henry 2020, arXiv:2010.04245; Liu 2022, arXiv:2111.09883, section 3.3 (a temperature for bounded scores)"),
    Signature("dead rectifiers", lambda m: m["dead"] > DEAD,
        "{dead:.0%} of the units of a rectifier are zero at every position",
        "Glorot, Bordes, Bengio 2011, AISTATS; Maas 2013, ICML workshop (leaky rectifiers)"),
    Signature("frozen weights", lambda m: m["frozen"] > 0,
        "{frozen:.0%} of the model's weights are not trained: their requires_grad is off",
        "PyTorch documentation, 'Autograd mechanics', setting requires_grad"),
    Signature("weights without a gradient", lambda m: m["cut_off"] > 0,
        "{cut_off:.0%} of the model's weights are not trained: they are kept in a plain list or dictionary, which "
        "parameters() does not see, or gradients are cut off by detach or no_grad",
        "PyTorch documentation, nn.ModuleList; 'Autograd mechanics', locally disabling gradient computation"),
    Signature("weights changed on the way", lambda m: m["rewritten"] > 0,
        "the model's own code changes {rewritten:.0%} of its weights whenever it is called in training, beside the "
        "optimizer",
        "PyTorch documentation, nn.Embedding (max_norm changes the weight in place)"),
    Signature("saturated units", lambda m: m["vanished"] > SATURATED and m.get("dead", 0.0) <= DEAD,
        "{vanished:.0%} of the model's weights get less than a millionth of the largest gradient: what they feed is "
        "saturated, as a gate that starts closed, or zero, as two layers in a row that start so",
        "Glorot, Bengio 2010, AISTATS; Gers 2000, Neural Computation 12 (gates that start open)"),
    Signature("a large start", lambda m: m["far_above"] > 0,
        "matrices of weights start at up to {far_above:.3g} times the size that keeps what they are given as large",
        "Glorot, Bengio 2010, AISTATS; He 2015, arXiv:1502.01852, section 2.2"),
    Signature("a softmax before the loss", lambda m: m["probabilities"] > 0,
        "answers are not negative and add up to one, and the loss takes a softmax of them",
        "PyTorch documentation, nn.CrossEntropyLoss: the input is expected to contain unnormalized logits"),
    Signature("small answers", lambda m: m["sharper"] >= SHARPER and m["gained"] > GAINED,
        "the loss is {gained:.0%} lower if all answers are multiplied by {sharper:.0f}: they cannot be as "
        "large as they should",
        "Guo 2017, arXiv:1706.04599, section 4.2 (temperature)"),
    Signature("heavy dropout", lambda m: m["dropped"] >= HEAVY,
        "{dropped:.0%} are dropped at once in training",
        "Srivastava 2014, JMLR 15, section 4"),
    Signature("chance of its own", lambda m: m["varies"] > VARIES,
        "two calls in training give outputs that differ by {varies:.0%}, beside what torch's dropout drops",
        "Huang 2016, arXiv:1603.09382 (layers that are left out by chance are kept in part in evaluation)"),
    Signature("chance in evaluation", lambda m: m["chance"] > 0,
        "two calls of the model in evaluation give different outputs for one input",
        "Srivastava 2014, JMLR 15, section 4"),
    Signature(
        "missing positions", lambda m: m["order"] == 0.0 and m.get("reach", 2.0) > 1,  # of one position there is none
        "with inputs in another order, it or each of its layers gives the same outputs in that order",
        "Haviv 2022, arXiv:2203.16634; Kazemnejad 2023, arXiv:2305.19466"),
    Signature("bounded answers", lambda m: m["beyond"] > 0,
        "answers lie between {low} and {high}, whatever the weights; {beyond:.0%} of the targets want others",
        "what stands last in the model is a function that does not give every number"),
    Signature("late inputs", lambda m: m["delay"] > 0,
        "an output depends on nothing at its own position: what stood {delay:.0f} earlier is the last that it sees",
        "what stands there is replaced, and the output stays"),
    Signature("outputs that see nothing", lambda m: m["reach"] == 0,
        "an output depends on none of {length:.0f} input positions: it is the same whatever is read",
        "all is replaced, and the output stays"),
    Signature("small reach", lambda m: 0 < m["reach"] < m["length"],
        "an output depends on {reach:.0f} of {length:.0f} input positions at most, {later:.0f} of them later ones",
        "all else is replaced, and the output stays"),
)  # fmt: skip
"""Each with the source that describes it; the thresholds are this lab's."""
NAMED: Mapping[str, Signature] = {one.name: one for one in SIGNATURES}


def measure(setup: Setup, trained: Path | None = None) -> dict[str, float]:
    """What the table reads of a set-up's model, with its first weights or with those at the end of a run in a folder.

    With code of a person's own it is measured in a process of its own.
    """
    folder = None if trained is None else str(trained)
    if names_own_code([setup.model, setup.task]):
        return call_apart(_measure, dict(setup.task), dict(setup.model), folder)
    return _measure(setup.task, setup.model, folder)


def give_the_same(one: Setup, other: Setup) -> bool:
    """Whether the models of two set-ups of one task, drawn alike, answer alike: nothing was changed then."""
    return call_apart(_give_the_same, dict(one.task), dict(one.model), dict(other.model))


def _give_the_same(task_spec: Any, *model_specs: Mapping[str, Any]) -> bool:
    task = build_task(task_spec)
    few = task.train_batch(0, 0).rows(0, ITEMS)
    answers = []
    for spec in model_specs:
        model = drawn_by_name(partial(build_model, spec, task), 0).eval()
        with torch.no_grad():
            answers.append(model(*few.inputs))
    before, after = answers
    return float((after - before).abs().max()) <= ROUNDING * float(before.abs().max())


def _measure(task_spec: Any, model_spec: Mapping[str, Any], folder: str | None) -> dict[str, float]:
    task = build_task(task_spec)
    model = drawn_by_name(lambda: build_model(model_spec, task), 0)
    if folder is not None:
        load_model_weights(model, folder)
    batch = task.train_batch(0, 0)
    few = batch.rows(0, ITEMS)
    found = {**_by_depth(model, task, few), **_sees(model, few, causal=task.causal)}
    if names_own_code([model_spec]):  # no model of the lab does these
        found |= {**_untrained(model, task, few), **_unchained(model, task, few), "varies": _by_chance(model, few)}
        found["rewritten"] = _rewritten(model, few)
        if folder is None:
            found["far_above"] = max(start_far_above(model, few.inputs).values(), default=0.0)
        else:
            found |= _sharper(model, task, batch)
    found |= {"norm_behind": float(bool(layers_with_norm_behind(model))), "trained": float(folder is not None)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _untrained(model: nn.Module, task: StudyTask, batch: Batch) -> dict[str, float]:
    """Which shares of the weights are frozen, reached by no gradient though they could be, and by next to none."""
    mending = Mending(thawed=True)
    thawed = mending.start(copy.deepcopy(model))
    reached_by = []
    for one, call in ((copy.deepcopy(model), nn.Module.__call__), (thawed, mending.call)):
        task.loss(call(one.train(), *batch.inputs).float(), batch).backward()
        weights = [(weight.numel(), weight.grad) for weight in one.parameters()]
        reached_by.append([(size, gradient) for size, gradient in weights if gradient is not None and gradient.any()])
    reached, reachable = (sum(size for size, _ in some) for some in reached_by)
    slopes = [(size, float(gradient.norm()) / math.sqrt(size)) for size, gradient in reached_by[0]]
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    all_weights = max(1, sum(weight.numel() for weight in thawed.parameters()))
    largest = max((slope for _, slope in slopes), default=0.0)
    vanished = sum(size for size, slope in slopes if slope < VANISHED * largest) + _still(model, task, batch)
    found = {"frozen": frozen, "cut_off": max(0, reachable - reached - frozen), "vanished": vanished}
    return {name: count / all_weights for name, count in found.items()}


def _still(model: nn.Module, task: StudyTask, batch: Batch) -> int:
    """How many weights take part and have no gradient, before a step of training nor after it.

    What starts at zero behind others holds their gradients back for one step; two such in a row do so forever.
    """
    one = copy.deepcopy(model).train()
    moved: set[str] = set()
    taking_part: dict[str, int] = {}
    for _ in range(2):
        one.zero_grad(set_to_none=True)
        task.loss(one(*batch.inputs).float(), batch).backward()
        for name, weight in one.named_parameters():
            if weight.grad is not None:
                taking_part[name] = weight.numel()
                moved |= {name} if weight.grad.any() else set()
                weight.data -= STEP * weight.grad / weight.grad.norm().clamp(min=1e-30)
    return sum(size for name, size in taking_part.items() if name not in moved)


def _by_depth(model: nn.Module, task: StudyTask, batch: Batch) -> dict[str, float]:
    """Size and likeness of the signal, gradients, scores and rectifiers."""
    layers = [layer for layer in layers_of(model) if any(True for _ in layer.parameters())]  # a rectifier is none
    signal, given, entry = _Signal(), batch.inputs[-1], list[Any]()
    hooks = [layer.register_forward_hook(signal.note) for layer in layers]
    hooks += [layer.register_forward_pre_hook(lambda _m, given: entry.extend(given[:1])) for layer in layers]
    seen = _Seen(given)
    model.train()
    with seen.calls:
        loss = task.loss(model(*batch.inputs).float(), batch)
    loss.backward()
    for hook in hooks:
        hook.remove()
    found, outputs = seen.found(), signal.outputs
    if len(outputs) >= 2 and outputs[0].shape == outputs[-1].shape and outputs[0].ndim == 3:
        first, last = (_by_position(output, given) for output in (outputs[0], outputs[-1]))
        found["signal"] = (size(last) / max(size(first), 1e-30)) ** (1 / (len(outputs) - 1))
        found["first_likeness"], found["likeness"] = likeness(first), likeness(last)
        if entry and all(isinstance(one, Tensor) and one.shape == outputs[0].shape for one in entry):
            found |= _told(_by_position(entry[0].detach(), given), len(given))
            found["entry"] = size(entry[0])
            found["adds"] = size(outputs[0] - entry[0]) / max(found["entry"], 1e-30)
        found |= signal.gradient()
    return found


def _by_position(signal: Tensor, given: Tensor) -> Tensor:
    """What layers make of an input, (batch, length, features), where it stands with its axes in another order."""
    batch, length = given.shape[:2]
    if signal.shape[0] != batch == signal.shape[1]:
        return signal.transpose(0, 1)
    behind = signal.shape[0] == batch and signal.shape[2] == length != signal.shape[1]
    return signal.mT if behind else signal


def _unchained(model: nn.Module, task: StudyTask, batch: Batch) -> dict[str, float]:
    """How many layers are given what the first one is given, where nothing is left of what it makes of it."""
    one = copy.deepcopy(model).eval()  # in training layers may be left out by chance
    layers, entry = layers_of(one), list[Any]()
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, given: entry.extend(given[:1]))
    task.loss(one(*batch.inputs).float(), batch).backward()
    if not entry or not all(isinstance(given, Tensor) for given in entry):
        return {}
    beside = sum(torch.equal(given, entry[0]) for given in entry[1:])
    return {"unchained": float(beside if _gradient(layers[0]) == 0 else 0)}


@torch.no_grad()
def _sharper(model: nn.Module, task: StudyTask, batch: Batch) -> dict[str, float]:
    """By which power of 2 the answers to a question of classes were best multiplied, and what part of the loss goes."""
    if batch.targets.is_floating_point():
        return {}
    answers = model.eval()(*batch.inputs).float()
    losses = {2.0**power: float(task.loss(2.0**power * answers, batch)) for power in range(7)}
    best = min(losses, key=lambda times: losses[times])
    known = max(losses[1.0], LEARNED * float(task.loss(0.0 * answers, batch)))  # what is learned has little to gain
    gained, metric = (losses[1.0] - losses[best]) / known, task.metrics[0]
    if gained > GAINED and metric.better == "lower":  # what is known by heart gains from any factor, in training alone
        as_they_are, larger = (
            task.evaluate(lambda some: times * model(*some.inputs).float(), task.parts[0])[metric.name]  # noqa: B023
            for times in (1.0, best)
        )
        gained = min(gained, 1 - larger / as_they_are)
    return {"sharper": best, "gained": gained}


@torch.no_grad()
def _rewritten(model: nn.Module, batch: Batch) -> float:
    """Which share of the weights a call in training changes."""
    one = copy.deepcopy(model).train()
    one(*batch.inputs)
    pairs = list(zip(model.parameters(), one.parameters(), strict=True))
    return sum(float((old != new).sum()) for old, new in pairs) / max(1, sum(old.numel() for old, _ in pairs))


def _by_chance(model: nn.Module, batch: Batch) -> float:
    """How much two calls in training differ, as a part of their size, though torch's dropout drops nothing."""
    outputs = []
    for seed in range(2):
        one = copy.deepcopy(model).train()
        for part in one.modules():  # of the lab, which draws by itself what it drops
            if isinstance(part, Dropout):
                part.p = 0.0
            elif isinstance(part, Attention):
                part.dropout = 0.0
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(seed)
            outputs.append(Mending(dropless=True).call(one, *batch.inputs).double())
    return float((outputs[1] - outputs[0]).norm() / outputs[0].norm().clamp(min=1e-30))


def _told(entry: Tensor, items: int) -> dict[str, float]:
    """How much what enters the first layer differs from input to input, over how much from position to position."""
    if len(entry) != items or items < 2:
        return {}
    means = entry.mean(0)
    by_input = float((entry - means).square().sum(0).mean() / (items - 1))
    by_position = float((means - means.mean(0)).square().mean()) - by_input / items  # means of few differ by chance
    return {"told": math.sqrt(by_input / by_position)} if by_position > 0 else {}


def _sees(model: nn.Module, batch: Batch, *, causal: bool) -> dict[str, float]:
    """How far an output sees, and whether the order of inputs matters to it."""
    *given, last = batch.inputs
    if given or last.ndim < 2:
        return {}
    length = last.shape[1]
    with LastBounded() as bounded:
        answers = model.eval()(last)
    structure = copy.deepcopy(model)
    wake(structure)  # what starts at zero hides for a step what stands before it
    seen = reach(structure, (last,))
    if seen.future:  # of an output with room on both sides: the last one has nothing behind it
        seen = reach(structure, (last,), position=(max(seen.past, 1) - 1 + length - 1 - seen.future) // 2)
    found = {"reach": float(seen.past + seen.ahead), "later": float(seen.ahead)}
    found["delay"] = float(seen.delay if causal else 0)
    found["probabilities"] = float(not batch.targets.is_floating_point() and _are_probabilities(answers))
    found |= {"length": float(length), "ahead": float(seen.future if causal else 0), "mixes": float(seen.mixes_batch)}
    found |= _beyond(bounded, answers, batch.targets)
    return found | _in_evaluation(model, last, causal=causal)


def _beyond(bounded: LastBounded, answers: Tensor, targets: Tensor) -> dict[str, float]:
    """Between which numbers answers must lie, and which share of targets lie elsewhere; classes want free logits."""
    low, high = bounded.limits()
    if not bounded.gave(answers) or (low, high) == (-math.inf, math.inf):
        return {}
    outside = (targets < low) | (targets > high) if targets.is_floating_point() else torch.ones(1)
    far = {"low": max(low, -FAR), "high": min(high, FAR)}
    return {**far, "beyond": float(outside.float().mean())}


def _in_evaluation(model: nn.Module, x: Tensor, *, causal: bool) -> dict[str, float]:
    """Whether outputs of one input differ by chance, or else tell in which order the inputs stand."""
    exact = register_parts(copy.deepcopy(model)).double().eval()
    x = x.double() if x.is_floating_point() else x
    with InFloat64():
        if by_chance(exact, x):
            return {"chance": 1.0}  # says nothing of the order
        level = _level(exact, x) if x.is_floating_point() else {}
        return {"order": float(sees_order(exact, layers_of(exact), x, causal=causal)), **level}


@torch.no_grad()
def _level(model: nn.Module, x: Tensor) -> dict[str, float]:
    """How much answers change by a number that is added to all inputs, as a part of what other inputs change."""
    answers, *others = (model(one) for one in (x, x + 1, x.roll(1, 0)))
    lifted, other = (float((one - answers).abs().max()) for one in others)
    return {"level": lifted / other} if other else {}


def _are_probabilities(answers: Tensor) -> bool:
    """Whether no answer is negative and those over the last axis add up to one."""
    sums = answers.detach().double().sum(-1)
    return (
        answers.shape[-1] > 1 and bool((answers >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
    )


def _gradient(layer: nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in layer.parameters() if p.grad is not None))


@final
class _Signal:
    """Note what layers give, in the order of their calls, and the length of the gradient there.

    That of a layer's weights says less of the depth: it is large where a norm follows a small input, as embeddings are.
    """

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        self.gradients: dict[int, float] = {}  # by number of the output

    def gradient(self) -> dict[str, float]:
        """That at the last output over that at the first; nothing where neither has any."""
        first, last = (self.gradients.get(number, 0.0) for number in (0, len(self.outputs) - 1))
        return {"gradient": min(BOUNDLESS, last / first if first else BOUNDLESS)} if first or last else {}

    def note(self, _: nn.Module, __: Any, output: Any) -> None:
        """What a layer gave; a hook."""
        first, number = output[0] if isinstance(output, tuple) else output, len(self.outputs)
        self.outputs.append(first.detach())
        if first.requires_grad:
            first.register_hook(lambda gradient: self.gradients.update({number: float(gradient.double().norm())}))


@final
class _Seen:
    """Note what is normalized and what is rectified while a model computes."""

    def __init__(self, given: Tensor) -> None:
        self._scores: list[float] = []
        self._entropy: list[float] = []
        self._dead: list[float] = []
        self.calls = ChangedCalls(self._note_scores, self._note_rectified, given=given)  # a context that notes

    def found(self) -> dict[str, float]:
        """The largest scores, the most peaked attention, the rectifier with most dead units."""
        across, over_positions = float(self.calls.across), float(self.calls.over_positions)
        found = {"across": across, "dropped": self.calls.dropped, "over_positions": over_positions}
        if self._scores:
            found |= {"scores": max(self._scores), "entropy": min(self._entropy, default=1.0)}
        return found | ({"dead": max(self._dead)} if self._dead else {})

    def _note_scores(self, scores: Tensor) -> Tensor:
        if scores.ndim > 2 and scores.shape[-1] == scores.shape[-2] > 2:
            kept = scores.detach().double()
            allowed = kept > kept.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp(min=1.0) * -1e3
            allowed &= kept > -1e4
            self._scores.append(float(kept[allowed].std()))
            rows = allowed.sum(-1) > 4  # of few keys nothing is said
            if rows.any():
                self._entropy.append(float(relative_entropy(torch.softmax(kept, -1), allowed)[rows].mean()))
        return scores

    def _note_rectified(self, x: Tensor) -> Tensor:
        y = x.clamp(min=0)
        if y.ndim > 1 and y.shape[-1] > 1:
            self._dead.append(float(dead_share(y.detach())))
        return y
