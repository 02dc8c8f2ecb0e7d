"""The checks, by id. Each takes an `Examination` and yields findings; none changes the patient."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attnlab.doctor.checks.cost import check_cost
from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.depth import check_gradient, check_signal
from attnlab.doctor.checks.determinism import check_determinism
from attnlab.doctor.checks.dtype_device import check_dtype_device
from attnlab.doctor.checks.initial_loss import check_initial_loss
from attnlab.doctor.checks.norm_placement import check_norm_placement
from attnlab.doctor.checks.normalization import check_normalization
from attnlab.doctor.checks.overfit import check_overfit
from attnlab.doctor.checks.precision import check_precision
from attnlab.doctor.checks.residual import check_residual
from attnlab.doctor.checks.scale import check_scale
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding
from attnlab.doctor.influence.batch_independence import check_batch_independence
from attnlab.doctor.influence.cache import check_cache
from attnlab.doctor.influence.causality import check_causality
from attnlab.doctor.influence.heads import check_heads_mixed
from attnlab.doctor.influence.masks import check_mask_polarity, check_masked_row
from attnlab.doctor.influence.padding import check_padding
from attnlab.doctor.influence.positions import check_positions
from attnlab.doctor.influence.receptive_field import check_receptive_field

Check = Callable[[Examination], Iterator[Finding]]

CHECKS: dict[str, Check] = {
    "batch-independence": check_batch_independence,
    "causality": check_causality,
    "padding": check_padding,
    "mask-polarity": check_mask_polarity,
    "masked-row": check_masked_row,
    "normalization": check_normalization,
    "scale": check_scale,
    "heads-mixed": check_heads_mixed,
    "dead-parts": check_dead_parts,
    "residual": check_residual,
    "norm-placement": check_norm_placement,
    "signal": check_signal,
    "gradient": check_gradient,
    "positions": check_positions,
    "receptive-field": check_receptive_field,
    "determinism": check_determinism,
    "precision": check_precision,
    "dtype-device": check_dtype_device,
    "cost": check_cost,
    "cache": check_cache,
    "initial-loss": check_initial_loss,
    "overfit": check_overfit,
}
"""Id -> check, in the order in which they run."""
