"""What tasks share that predict each next token: the loss of logits, and what is asked of their shape."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

IGNORED = -100  # target of a position that fills up a short sequence; torch's default `ignore_index`


def mean_loss(
    logits: Float[Tensor, "batch length vocab_size"], targets: Int[Tensor, "batch length"], label_smoothing: float
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy over the positions that are not ignored.

    Parameters
    ----------
    logits : Tensor
        Of every token at every position.
    targets : Tensor
        The right tokens; `IGNORED` where there is none.
    label_smoothing : float
        Share of the target distribution that is spread over all tokens.

    Returns
    -------
    Tensor
        A scalar, in nats.
    """
    return nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, label_smoothing=label_smoothing
    )


def judge(
    logits: Float[Tensor, "batch length vocab_size"], targets: Int[Tensor, "batch length"]
) -> tuple[Float[Tensor, "batch length"], Int[Tensor, "batch length"]]:
    """Return the loss at every position, zero where it is ignored, and the likeliest token.

    Parameters
    ----------
    logits : Tensor
        Of every token at every position.
    targets : Tensor
        The right tokens; `IGNORED` where there is none.

    Returns
    -------
    losses : Tensor
        In nats, on the CPU.
    likeliest : Tensor
        Token numbers, on the CPU.
    """
    losses = nn.functional.cross_entropy(
        logits.float().transpose(1, 2), targets.to(logits.device), ignore_index=IGNORED, reduction="none"
    )
    return losses.cpu(), logits.argmax(dim=-1).cpu()
