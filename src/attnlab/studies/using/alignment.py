"""What a translation looked at in its source: where each token did, and whether anything was passed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.errors import SpecError
from attnlab.inspection.capture import capture
from attnlab.models.decoding.generation import Hypothesis
from attnlab.models.decoding.writers import device_of
from attnlab.models.recurrent_translation import AbstractRecurrent
from attnlab.tasks.codecs import SentenceCodec
from attnlab.tasks.pairs import padded

LEAST = 1e-6  # of a source token that nothing looked at, whose logarithm would be infinite


def by_coverage(
    models: Sequence[nn.Module],
    codec: SentenceCodec,
    sources: Sequence[Sequence[int]],
    found: Sequence[Sequence[Hypothesis]],
    coverage: float,
) -> list[list[Hypothesis]]:
    """Rank the hypotheses of each source anew, those lower that leave some of it unseen; `coverage` is the weight.

    Notes
    -----
    ``coverage * sum_i log(min(sum_j p_ij, 1))`` is added to the score of a hypothesis: ``p_ij`` is how much its token j
    looked at source token i, by the mean over models, layers and heads where there are several.

    References
    ----------
    .. [1] Wu et al., 2016, arXiv:1609.08144, equation 14.
    """
    ranked = []
    for source, hypotheses in zip(sources, found, strict=True):
        written = [(*one.tokens, codec.marks.end) if one.ended else one.tokens for one in hypotheses]
        looks = alignment(models, codec, [source] * len(written), written)
        if looks is None:
            raise SpecError(
                "coverage is about where a model looks in the source, and this one has no attention over it"
            )
        seen = torch.stack(
            [look[: len(tokens), : len(source)].sum(dim=0) for look, tokens in zip(looks, written, strict=True)]
        )
        penalties = coverage * seen.clamp(min=LEAST, max=1.0).log().sum(dim=1)
        scored = [replace(one, score=one.score + by) for one, by in zip(hypotheses, penalties.tolist(), strict=True)]
        ranked.append(sorted(scored, key=lambda one: (not one.ended, -one.score)))
    return ranked


def alignment(
    models: Sequence[nn.Module], codec: SentenceCodec, read: Sequence[Sequence[int]], written: Sequence[Sequence[int]]
) -> Float[Tensor, "batch t_len s_len"] | None:
    """How much each token that was written looked at each of the source, by the mean over models; None without."""
    begun = [(codec.marks.begin, *tokens[:-1]) for tokens in written]
    source, target = (
        padded([np.asarray(one, dtype=np.int64) for one in side], codec.marks.pad) for side in (read, begun)
    )
    if source.shape[1] == target.shape[1]:  # so that attention within a side has another shape
        if source.shape[1] < codec.max_length:
            source = F.pad(source, (0, 1), value=codec.marks.pad)
        else:
            target = target[:, :-1]
    found = [look for model in models for look in attention_over_source(model, source, target)]
    return torch.stack(found).mean(dim=0) if found else None


@torch.no_grad()
def attention_over_source(
    model: nn.Module, source: Int[Tensor, "batch s_len"], target: Int[Tensor, "batch t_len"]
) -> list[Float[Tensor, "batch t_len s_len"]]:
    """One map of how much a model looks at the source before it writes each next token; none where it does not.

    The two sides must differ in length.
    """
    source, target = source.to(device_of(model)), target.to(device_of(model))
    if isinstance(model, AbstractRecurrent):
        looks = [model.write(target, *model.read(source))[1]]
    else:
        with capture(model) as trace:
            model(source, target)
        shape = (target.shape[1], source.shape[1])
        maps = [one.weights for one in trace.values() if one.weights is not None and one.weights.shape[-2:] == shape]
        looks = [one.float().mean(dim=1) for one in maps]
    return [torch.stack(looks).mean(dim=0).cpu()] if looks else []
