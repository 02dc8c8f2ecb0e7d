"""Whether an untrained model guesses: its loss on random tokens must be near the logarithm of the vocabulary."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination, wake
from attnlab.doctor.findings import Finding, FindingText
from attnlab.strangers.said.topics import declared

CHECK = "initial-loss"
BATCH = 16  # a few hundred predictions, whose mean is known to some percent
EXCESS = 0.25  # share of ln(vocabulary): logits of unit size, torch's usual start, cost up to half a nat
LEAST_EXCESS = 0.75  # nats: what tiny vocabularies may lose by the noise of logits of unit size
GROSS = 2.0  # times ln(vocabulary): no start that is meant loses that much
GROSS_EXCESS = 3.0  # nats, for tiny vocabularies
STRETCH = 5.0  # times every parameter: outputs that stay between -1 and 1 even then are squashed
SUMS_TO_ONE = 1e-3  # rounding, and room
_SOURCE = "Karpathy, A Recipe for Training Neural Networks, 2019: verify the loss at initialization"
_UNNORMALIZED = "PyTorch documentation, nn.CrossEntropyLoss: input is expected to contain the unnormalized logits"
_TOO_LARGE = "Before training its loss is far above that of guessing: the output starts too large."
_SMALLER = (
    "start smaller: normal of standard deviation 0.02 for embeddings and output (a table used for both must not keep"
    " nn.Embedding's 1), and a norm before the output"
)
_PROBABILITIES = "It returns probabilities: a cross-entropy that expects logits would apply a second softmax to them."
_LOGITS = "return the logits and leave softmax to the loss; or train with nll_loss on their logarithm"

TEXTS: Mapping[str, FindingText] = {
    "not finite": FindingText("error", "The loss is not a number before training starts.", "", _SOURCE),
    "probabilities": FindingText("error", _PROBABILITIES, _LOGITS, _UNNORMALIZED, "bug"),
    "probabilities that are meant": FindingText("warning", _PROBABILITIES, _LOGITS, _UNNORMALIZED, "set-up"),
    "squashed": FindingText(
        "error",
        "Its outputs are squashed into a fixed range: as logits they can never be sure of a token.",
        "return the linear layer's output as it is, without sigmoid or tanh",
        _UNNORMALIZED,
    ),
    "far above": FindingText("error", _TOO_LARGE, _SMALLER, _SOURCE, "bug"),
    "above": FindingText("warning", _TOO_LARGE, _SMALLER, _SOURCE, "set-up"),
    "guesses": FindingText("info", "Before training it guesses, as it should."),
}
"""What -> its text."""


def gives_logits(exam: Examination) -> bool:
    """Whether a patient maps tokens to one number per token of the vocabulary."""
    convention = exam.convention
    fits = convention.kind == "model" and convention.takes == "tokens" and convention.d_out == convention.vocab_size
    return fits and not _is_as_wide_by_chance(exam)


def _is_as_wide_by_chance(exam: Examination) -> bool:
    """Whether the output stays as wide with another vocabulary: sizes of the constructor were chosen alike."""
    size = exam.convention.vocab_size or 0
    alike = [name for name, value in exam.patient.arguments.items() if type(value) is int and value == size]
    for name in alike if len(alike) > 1 else ():
        other = exam.another({name: size + 1})
        tables = [] if other is None else [part for part in other.modules() if isinstance(part, nn.Embedding)]
        if any(table.num_embeddings == size + 1 for table in tables):
            with contextlib.suppress(ModuleError):
                return exam.run(exam.inputs(), module=other).size(-1) == size
    return False


def check_initial_loss(exam: Examination) -> Iterator[Finding]:
    """What is wrong with the loss of a model before training.

    Notes
    -----
    Targets are drawn independently of the inputs, so nothing can do better than ``ln(vocabulary)`` on average, and
    logits of variance s cost about ``s / 2`` nats more.
    """
    if not gives_logits(exam):
        return
    module = exam.copy()
    x, targets = exam.inputs(batch=BATCH), exam.inputs(batch=BATCH, seed=1)
    logits = exam.run(x, module=module).double().flatten(0, -2)  # (predictions, vocab_size)
    targets = targets[:, 0] if exam.convention.pooled else targets.flatten()
    if not bool(logits.isfinite().all()):
        share = 1 - logits.isfinite().double().mean().item()
        found, evidence = "not finite", f"{share:.1%} of the outputs are NaN or infinite on random tokens"
    elif _are_probabilities(logits):
        if not _trains_on_probabilities(exam, x):
            return
        meant = declared(exam.patient.said, "probabilities")
        found = "probabilities that are meant" if meant else "probabilities"
        evidence = _of_probabilities(logits, targets)
    elif _is_squashed(exam, x, logits):
        found, evidence = "squashed", _of_squashed(logits)
    else:
        found, evidence = _start(logits, targets, module)
    yield TEXTS[found].finding(CHECK, evidence)


def _are_probabilities(output: Tensor) -> bool:
    return bool((output >= 0).all()) and bool(((output.sum(-1) - 1).abs() < SUMS_TO_ONE).all())


def _trains_on_probabilities(exam: Examination, x: Tensor) -> bool:
    """Whether training mode returns probabilities too, and not what evaluation makes them of."""
    try:
        return _are_probabilities(exam.run(x, module=exam.copy(train=True)))
    except ModuleError:  # something of another form
        return False


def _of_probabilities(output: Tensor, targets: Tensor) -> str:
    """What a second softmax makes of probabilities, (predictions, vocab_size)."""
    size = output.size(-1)
    best = math.log(math.e + size - 1) - 1  # of a prediction that is certain and right
    return (
        f"rows are positive and sum to 1; cross_entropy on them starts at {_loss(output, targets):.3f} nats and cannot"
        f" go below {best:.2f} nats, however good the model becomes (ln {size} = {math.log(size):.3f})"
    )


def _is_squashed(exam: Examination, x: Tensor, logits: Tensor) -> bool:
    """Whether outputs stay between -1 and 1 whatever the parameters."""
    if bool((logits.abs() > 1).any()):
        return False
    stretched = exam.copy()
    wake(stretched, spread=1.0)  # a head that starts at zero squashes nothing
    with torch.no_grad():
        for parameter in stretched.parameters():
            parameter.mul_(STRETCH)
    return bool((exam.run(x, module=stretched).abs() <= 1).all())


def _of_squashed(output: Tensor) -> str:
    size, low, high = output.size(-1), output.min().item(), output.max().item()
    floor = math.log1p((size - 1) * math.exp(-1 if low >= 0 else -2))  # one logit at its top, all others at the bottom
    return (
        f"outputs lie between {low:.2f} and {high:.2f}, and within 1 of zero even with all parameters {STRETCH:g} times"
        f" as large; cross-entropy cannot go below {floor:.2f} nats (ln {size} = {math.log(size):.3f})"
    )


def _start(logits: Tensor, targets: Tensor, module: nn.Module) -> tuple[str, str]:
    """How far the loss is above guessing, a key of `TEXTS`, and the evidence."""
    loss, guessing = _loss(logits, targets), math.log(logits.size(-1))
    evidence = (
        f"{loss:.3f} nats on random tokens, ln {logits.size(-1)} = {guessing:.3f};"
        f" logits have a standard deviation of {logits.std(dim=-1).mean().item():.2g}"
    )
    if loss - guessing <= max(EXCESS * guessing, LEAST_EXCESS):
        return "guesses", evidence
    gross = loss > max(GROSS * guessing, guessing + GROSS_EXCESS)
    return "far above" if gross else "above", evidence + _tables(module)


def _loss(logits: Tensor, targets: Tensor) -> float:
    return nn.functional.cross_entropy(logits, targets).item()


def _tables(module: nn.Module) -> str:
    """The start of the token table, and whether it is the output too."""
    tables = [part.weight for part in module.modules() if isinstance(part, nn.Embedding)]
    outputs = {id(part.weight) for part in module.modules() if isinstance(part, nn.Linear)}
    if not tables:
        return ""
    largest = max(tables, key=torch.numel)
    tied = ", and it is the output as well" if id(largest) in outputs else ""
    return f"; the largest embedding has a standard deviation of {largest.std().item():.2g}{tied}"
