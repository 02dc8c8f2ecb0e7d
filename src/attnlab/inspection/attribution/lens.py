"""Read every layer's stream as if it were the last."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.inspection.attribution.calls import record


@torch.no_grad()
def logit_lens(model: nn.Module, *inputs: Any) -> Float[Tensor, "streams batch length vocab_size"]:
    """Compute the logits that the stream would give before the first layer and after each one.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(*inputs)`` in evaluation mode, answers logits (batch, length, vocab_size), or an object that
        has them. Its layers stand in one list and hand on one stream.
    *inputs : Any
        What it is called with.

    Returns
    -------
    Tensor
        The stream through whatever stands between the last layer and the output, (layers + 1, batch, length,
        vocab_size); the last one is what the model answers. Of an encoder-decoder, the stream of the decoder.

    Raises
    ------
    ModuleError
        If there are no such layers, or more than modules stand between the last one and the output.

    Notes
    -----
    One forward pass with every module's input and output kept, and the last norm and the output once more for each
    layer. The last norm was trained for the last stream only: early layers that cannot be read may still know.

    References
    ----------
    .. [1] nostalgebraist, 2020, "interpreting GPT: the logit lens", LessWrong.
    """
    layers, tail = record(model, inputs).layers()
    streams = [layers[0].input, *(layer.output for layer in layers)]
    for call in tail:
        streams = [call.again(stream) for stream in streams]
    return torch.stack(streams)
