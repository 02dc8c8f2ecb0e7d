"""Look inside any module: attention while it runs, maps to draw, ranks, reach, cost, and the loss around."""

from attnlab.inspection.attribution.direct import Attribution, logit_attribution
from attnlab.inspection.attribution.gradients import InputAttribution, gradient_times_input, integrated_gradients
from attnlab.inspection.attribution.lens import logit_lens
from attnlab.inspection.attribution.rollout import Agreement, agreement, attention_rollout
from attnlab.inspection.behaviour import (
    HeadScores,
    RepeatedLoss,
    Thresholds,
    head_scores,
    kinds,
    most_looked_at,
    repeated_loss,
    repeated_tokens,
    thresholds,
)
from attnlab.inspection.capture import Captured, capture
from attnlab.inspection.cost import Cost, cost, count_parameters, seconds_per_step
from attnlab.inspection.drawings import draw_change, draw_heads, draw_lens, draw_tokens
from attnlab.inspection.interventions import Place, ablate, activations, patch, patch_path
from attnlab.inspection.maps import AttentionTrace, attention_maps, draw_attention
from attnlab.inspection.matching import HeadMatch, HeadMatches, match_heads
from attnlab.inspection.rank import Rank, attention_rank, effective_rank, subspace_overlap
from attnlab.inspection.reach import Reach, reach
from attnlab.inspection.surface import Surface, loss_surface

__all__ = [
    "Agreement",
    "AttentionTrace",
    "Attribution",
    "Captured",
    "Cost",
    "HeadMatch",
    "HeadMatches",
    "HeadScores",
    "InputAttribution",
    "Place",
    "Rank",
    "Reach",
    "RepeatedLoss",
    "Surface",
    "Thresholds",
    "ablate",
    "activations",
    "agreement",
    "attention_maps",
    "attention_rank",
    "attention_rollout",
    "capture",
    "cost",
    "count_parameters",
    "draw_attention",
    "draw_change",
    "draw_heads",
    "draw_lens",
    "draw_tokens",
    "effective_rank",
    "gradient_times_input",
    "head_scores",
    "integrated_gradients",
    "kinds",
    "logit_attribution",
    "logit_lens",
    "loss_surface",
    "match_heads",
    "most_looked_at",
    "patch",
    "patch_path",
    "reach",
    "repeated_loss",
    "repeated_tokens",
    "seconds_per_step",
    "subspace_overlap",
    "thresholds",
]
