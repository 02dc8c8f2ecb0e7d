"""A laboratory for attention: build, train, compare and look inside attention and Transformer variants.

This is the table of contents. Nothing is imported until it is used; each room (``attnlab.nn``, ``attnlab.models``, ...)
has contents of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnlab.core.lazy import contents

if TYPE_CHECKING:
    from attnlab.doctor import assert_healthy, doctor
    from attnlab.explain import explain, overfit
    from attnlab.inspection import capture, cost, reach
    from attnlab.models import Decoder, Encoder, EncoderDecoder, as_huggingface
    from attnlab.nn import Attention, Block
    from attnlab.studies import (
        load_pretrained,
        load_run,
        load_study,
        plan_study,
        read_results,
        run_study,
        write_report,
    )
    from attnlab.training import Recipe, train

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = contents(__name__, rooms=("nn", "models", "tasks", "training", "inspection", "studies"))
