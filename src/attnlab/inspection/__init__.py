"""Look inside any module: attention while it runs, maps to draw, ranks, reach, cost, and the loss around."""

from attnlab.inspection.capture import Captured, capture
from attnlab.inspection.cost import Cost, cost, count_parameters, seconds_per_step
from attnlab.inspection.maps import attention_maps
from attnlab.inspection.rank import Rank, attention_rank, effective_rank
from attnlab.inspection.reach import Reach, reach
from attnlab.inspection.surface import Surface, loss_surface

__all__ = [
    "Captured",
    "Cost",
    "Rank",
    "Reach",
    "Surface",
    "attention_maps",
    "attention_rank",
    "capture",
    "cost",
    "count_parameters",
    "effective_rank",
    "loss_surface",
    "reach",
    "seconds_per_step",
]
