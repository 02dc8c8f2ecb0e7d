"""Patients for the tests of single checks: a right layer that subclasses spoil in one place, and how to examine it."""

from __future__ import annotations

import inspect
import math

import torch
import torch._dynamo  # which the first optimizer imports for seconds, in the time of a check
from torch import nn

from attnlab.doctor.examination import Examination
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.masking import Masking
from attnlab.strangers.patient import Patient

D, HEADS, LENGTH, VOCAB = 20, 2, 11, 17

KEYS = Masking("mask", "keys", "bool, True = may attend", "(batch, k_len)")
PAIRS = Masking("mask", "pairs", "bool, True = may attend", "(q_len, k_len)")


def examine(module, build=None, arguments=None, text=None, **convention):
    """Return an examination of an instance, called as the fields of `Convention` say."""
    text = inspect.getsource(type(module)) if text is None else text
    fields = {"kind": "layer", "takes": "embeddings", "d_in": D, "d_out": D, "length": LENGTH} | convention
    return Examination(Patient("it", module, build, arguments or {}, text, ""), Convention(**fields))


def severities(findings):
    """Return the severities of findings, in order."""
    return [finding.severity for finding in findings]


class Attention(nn.Module):
    """Two heads over (batch, length, d_model)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def mask(self, scores, mask):
        if mask is not None:
            mask = mask if mask.dim() == 2 and mask.size(0) == mask.size(1) else mask[:, None, None, :]
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores

    def normalize(self, scores):
        return scores.softmax(-1)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)  # (batch, heads, length, d_head)
        scores = self.mask(q @ k.mT / math.sqrt(q.size(-1)), mask)
        return self.out((self.normalize(scores) @ v).transpose(1, 2).flatten(2))


class Causal(Attention):
    """Causal attention."""

    blocked = staticmethod(lambda length: torch.ones(length, length, dtype=torch.bool).triu(1))
    value = float("-inf")

    def mask(self, scores, mask):
        return super().mask(scores.masked_fill(self.blocked(scores.size(-1)), self.value), mask)
