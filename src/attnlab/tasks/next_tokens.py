"""What tasks share that predict each next token: the loss of logits, its sum over a part, and the shape asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.contracts import Batch, Predict
from attnlab.core.errors import ModuleError
from attnlab.tasks.cross_entropy import mean_cross_entropy

IGNORED = -100  # target of a position that fills up a short sequence; torch's default `ignore_index`


@final
class Tally(NamedTuple):
    """Hold what was counted over many batches.

    Parameters
    ----------
    loss : float
        Sum of the cross-entropy in nats.
    correct : int
        Tokens that were held likeliest and are right.
    count : int
        Tokens that were to be predicted.
    """

    loss: float
    correct: int
    count: int

    @property
    def mean_loss(self) -> float:
        """The cross-entropy in nats per token."""
        return self.loss / self.count

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return self.correct / self.count


@final
class NextTokens:
    """Judge the logits of next tokens.

    Parameters
    ----------
    vocab_size : int
        Number of distinct tokens.
    spare : bool
        Whether a model may have logits of more tokens than there are.
    """

    def __init__(self, vocab_size: int, *, spare: bool = False) -> None:
        self._vocab_size, self._spare = vocab_size, spare

    def mean_loss(
        self,
        logits: Float[Tensor, "batch length vocab_size"],
        targets: Int[Tensor, "batch length"],
        label_smoothing: float,
    ) -> Float[Tensor, ""]:
        """The mean cross-entropy over the positions that are not ignored."""
        self._require_logits(logits, targets)
        return mean_cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignored=IGNORED, label_smoothing=label_smoothing
        )

    def judge(
        self, predict: Predict, batch: Batch
    ) -> tuple[Float[Tensor, "batch length"], Int[Tensor, "batch length"]]:
        """The loss at every position, zero where it is ignored, and the likeliest token."""
        logits = predict(batch).detach()
        self._require_logits(logits, batch.targets)
        targets = batch.targets.to(logits.device)
        losses = nn.functional.cross_entropy(
            logits.float().transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
        )
        return losses.cpu(), logits.argmax(dim=-1).cpu()

    def tally(self, predict: Predict, batches: Iterable[Batch]) -> Tally:
        """The sums over many batches."""
        loss, correct, count = 0.0, 0, 0
        for batch in batches:
            losses, likeliest = self.judge(predict, batch)
            loss += losses.double().sum().item()
            correct += int((likeliest == batch.targets).sum().item())
            count += int((batch.targets != IGNORED).sum().item())
        return Tally(loss, correct, count)

    def _require_logits(self, logits: Tensor, targets: Tensor) -> None:
        wanted, got = (*targets.shape, self._vocab_size), tuple(logits.shape)
        if got != wanted and not (self._spare and got[:2] == wanted[:2] and got[2] > wanted[2]):
            raise ModuleError(f"the model's outputs must have shape {wanted} (batch, length, vocab_size); got {got}")
