"""A whole model runs its own code from the same weights, and nothing is changed but what is said to be wrong."""

from __future__ import annotations

import pytest
import torch

from attnlab.core.build import build
from attnlab.core.draws import drawn_by_name
from attnlab.core.errors import SpecError
from attnlab.inspection import Reach, reach
from attnlab.models import MODELS

VOCAB, LENGTH = 11, 7
MENDED = {"name": "mended"}
OFFERED = {"vocab_size": VOCAB, "max_length": LENGTH, "unheard_of": 3}
PEEKING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, vocab_size, n_ctx):
        super().__init__()
        self.embedding, self.logits = nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size)
        self.places = nn.Parameter(torch.randn(n_ctx, 8))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.places
        scores = x @ x.transpose(1, 2)
        hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(2)
        return self.logits(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ x)
"""


@pytest.fixture
def peeking(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(PEEKING)
    return f"{file}:Model"


def test_only_the_fault_is_gone_and_weights_are_the_same(peeking):
    plain, unchanged, mended = (
        drawn_by_name(lambda spec=spec: build(spec, MODELS, axis="model", offered=OFFERED), 3).eval()
        for spec in (peeking, {**MENDED, "part": peeking}, {**MENDED, "part": peeking, "mending": {"masked": True}})
    )
    tokens = torch.randint(VOCAB, (3, LENGTH))
    assert all(map(torch.equal, plain.state_dict().values(), mended.state_dict().values()))
    torch.testing.assert_close(unchanged(tokens), plain(tokens))
    assert reach(plain, (tokens,)).future == 1
    assert reach(mended, (tokens,)) == Reach(past=LENGTH, future=0, mixes_batch=False)


def test_a_model_of_the_lab_is_given_what_the_task_offers():
    spec = {**MENDED, "part": {"name": "decoder", "d_model": 8, "n_layers": 1}, "mending": {"leak": 0.1}}
    model = build(spec, MODELS, axis="model", offered={"vocab_size": VOCAB, "max_length": LENGTH})
    assert model(torch.zeros(2, LENGTH, dtype=torch.long)).shape == (2, LENGTH, VOCAB)
    assert repr(model).startswith("MendedModel(\n  leak=0.1\n")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"part": "decodr"}, "unknown model 'decodr'; did you mean 'decoder'"),
        ({"mending": {"leak": 1.0}}, r"leak must be in \[0, 1\); got 1.0"),
    ],
)
def test_what_cannot_be_is_refused(peeking, changes, sentence):
    with pytest.raises(SpecError, match=sentence):
        build({**MENDED, "part": peeking, **changes}, MODELS, axis="model", offered=OFFERED)
