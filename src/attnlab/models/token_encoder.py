"""An encoder that reads tokens, each with all others in view: what BERT is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.core.build import Spec, look_up
from attnlab.core.sizes import check_positive, require_known
from attnlab.models.stacks import AbstractTransformer, Norm, Stack
from attnlab.nn.block import norm_or_nothing
from attnlab.nn.feedforward import ACTIVATIONS
from attnlab.nn.init import INITS

Answer = Literal["logits", "states"]


@final
class TokenEncoder(AbstractTransformer):
    """Read tokens with every position seeing all, and say at each which token belongs there.

    What is not said here is said of `AbstractTransformer`.

    Parameters
    ----------
    vocab_size : int
        Number of distinct tokens.
    pad : int, default 0
        The token that fills up short sequences; no position looks at it.
    n_segments : int, default 0
        How many kinds of segments tokens may belong to, each with a learned vector; 0 leaves them out.
    norm : {"pre", "post", "none"}, default "post"
        Place of the norm in the blocks.
    norm_kind : Spec, default "layer"
        Which norm: in the blocks, behind the embedding, and before the logits.
    activation : {"gelu", "gelu-tanh", "relu", "silu"}, default "gelu"
        Of the layer between the last block and the logits.
    answer : {"logits", "states"}, default "logits"
        Whether a position answers with logits, whose weights are the embedding's, or with its state.

    Raises
    ------
    SpecError
        If the activation or the answer is unknown.

    Notes
    -----
    ``norm(E[token] + S[segment] + P[position])``, blocks, then ``E norm(activation(W x + b)) + c``.

    References
    ----------
    .. [1] Devlin et al., 2019, arXiv:1810.04805, section 3, and the code released with it.
    """

    def __init__(
        self,
        vocab_size: int,
        max_length: int,
        *,
        pad: int = 0,
        n_segments: int = 0,
        d_model: int = 128,
        n_layers: int = 4,
        mixer: Spec | Sequence[Spec] = "attention",
        feedforward: Spec | None = None,
        block: Spec = "transformer",
        norm: Norm = "post",
        norm_kind: Spec = "layer",
        residual: bool | None = None,
        dropout: float = 0.0,
        positions: Spec = "learned",
        activation: str = "gelu",
        answer: Answer = "logits",
        init: str = "gpt",
    ) -> None:
        super().__init__()
        check_positive({"vocab_size": vocab_size, "d_model": d_model})
        require_known("answer", answer, ("logits", "states"))
        require_known("activation", activation, ACTIVATIONS)
        self.pad, self.activation = pad, activation
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.segments = nn.Embedding(n_segments, d_model) if n_segments else None
        self.stack = Stack(
            d_model,
            max_length,
            n_layers=n_layers,
            mixer=mixer,
            block=block,
            wiring={"feedforward": feedforward, "norm": norm, "norm_kind": norm_kind, "residual": residual},
            dropout=dropout,
            positions=positions,
            causal=False,
            input_norm=norm_kind,
        )
        self.logits = None
        if answer == "logits":
            self.transform = nn.Linear(d_model, d_model)
            self.transform_norm = norm_or_nothing(norm_kind, d_model, wanted=True)
            self.logits = nn.Linear(d_model, vocab_size)
            self.logits.weight = self.embedding.weight
        look_up(init, INITS, "init")(self, n_layers)

    def forward(
        self, tokens: Int[Tensor, "batch length"], segments: Int[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length d_answer"]:
        """The logits of the token at each position, or its state; without `segments` all belong to the first."""
        x = self.embedding(tokens)  # (batch, length, d_model)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        x = self.stack(x, tokens != self.pad)
        if self.logits is None:
            return x
        return self.logits(self.transform_norm(ACTIVATIONS[self.activation](self.transform(x))))
