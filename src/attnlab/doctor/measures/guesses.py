"""Whether a patient names tokens."""

from __future__ import annotations

from attnlab.doctor.examination import Examination


def gives_logits(exam: Examination) -> bool:
    """Whether a patient maps tokens to one number per token of the vocabulary."""
    usage = exam.usage
    return usage.kind == "model" and usage.takes == "tokens" and usage.d_out == usage.vocab_size
