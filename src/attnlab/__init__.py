"""A laboratory for attention: build, train, compare and look inside attention and Transformer variants.

This is the table of contents. Nothing is imported until it is used; each room (``attnlab.nn``, ``attnlab.models``, ...)
has contents of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.doctor import assert_healthy, doctor
    from attnlab.inspection import capture, cost, reach
    from attnlab.models import Decoder, Encoder, EncoderDecoder
    from attnlab.nn import Attention, Block
    from attnlab.studies import load_run, load_study, plan_study, read_results, run_study, write_report
    from attnlab.training import Recipe, train

__version__ = "0.1.0"

__getattr__, __dir__ = contents(
    __name__,
    {
        "Attention": "attnlab.nn",
        "Block": "attnlab.nn",
        "Decoder": "attnlab.models",
        "Encoder": "attnlab.models",
        "EncoderDecoder": "attnlab.models",
        "Recipe": "attnlab.training",
        "assert_healthy": "attnlab.doctor",
        "capture": "attnlab.inspection",
        "cost": "attnlab.inspection",
        "doctor": "attnlab.doctor",
        "load_run": "attnlab.studies",
        "load_study": "attnlab.studies",
        "plan_study": "attnlab.studies",
        "reach": "attnlab.inspection",
        "read_results": "attnlab.studies",
        "run_study": "attnlab.studies",
        "train": "attnlab.training",
        "write_report": "attnlab.studies",
    },
    rooms=("nn", "models", "tasks", "training", "inspection", "studies"),
)

__all__ = [
    "Attention",
    "Block",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Recipe",
    "assert_healthy",
    "capture",
    "cost",
    "doctor",
    "load_run",
    "load_study",
    "plan_study",
    "reach",
    "read_results",
    "run_study",
    "train",
    "write_report",
]
