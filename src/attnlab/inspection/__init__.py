"""Look inside any module: attention while it runs, maps to draw, reach, and cost."""

from attnlab.inspection.capture import Captured, capture
from attnlab.inspection.cost import Cost, cost, count_parameters, seconds_per_step
from attnlab.inspection.maps import attention_maps
from attnlab.inspection.reach import Reach, reach

__all__ = [
    "Captured",
    "Cost",
    "Reach",
    "attention_maps",
    "capture",
    "cost",
    "count_parameters",
    "reach",
    "seconds_per_step",
]
