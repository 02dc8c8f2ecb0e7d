"""The layouts of the glossary as types: what signatures of parts and models say of their tensors."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

Activations = Float[Tensor, "batch length d_model"]
"""The residual stream."""
Memory = Float[Tensor, "batch k_len d_model"]
"""Activations of another sequence, which is looked at."""
Real = Bool[Tensor, "batch length"]
"""Padding: True at real positions."""
RealKeys = Bool[Tensor, "batch k_len"]
"""Padding of what is looked at: True at real positions."""

Queries = Float[Tensor, "batch heads q_len d_head"]
Keys = Float[Tensor, "batch heads k_len d_head"]
SharedKeys = Float[Tensor, "batch kv_heads k_len d_head"]
"""Keys of which several query heads may share one."""
SharedValues = Float[Tensor, "batch kv_heads k_len d_v"]
"""Values of which several query heads may share one."""
Scores = Float[Tensor, "batch heads q_len k_len"]
"""A number for every pair of a query and a key: scores, or weights."""
HeadOutputs = Float[Tensor, "batch heads length d_v"]
