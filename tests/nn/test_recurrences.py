from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.nn.axes.combiners import concatenate
from attnlab.nn.recurrences import Fastformer, LinearAttention, LstmMixer

LENGTHS = [7, 5, 2]


def activations() -> torch.Tensor:
    return torch.randn(3, 7, 12, dtype=torch.float64)


def padding() -> torch.Tensor:
    return torch.arange(7) < torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize("causal", [False, True])
def test_lstm_steps_are_torchs_kernel(causal: bool) -> None:
    fused = LstmMixer(12, d_hidden=5, causal=causal).double()
    readable = LstmMixer(12, d_hidden=5, causal=causal, path="readable").double()
    readable.load_state_dict(fused.state_dict())
    results = []
    for mixer in (fused, readable):
        x = torch.linspace(-1, 1, 252, dtype=torch.float64).reshape(3, 7, 12).requires_grad_()
        output = mixer(x, padding=padding())
        results.append((output, *torch.autograd.grad(output.pow(2).sum(), [x, *mixer.parameters()])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_both_directions_are_torchs_bidirectional_lstm() -> None:
    mixer, x = LstmMixer(12, d_hidden=5).double(), activations()
    twin = nn.LSTM(12, 5, batch_first=True, bidirectional=True, dtype=torch.float64)
    own = dict(mixer.rightward.state_dict())
    own |= {f"{name}_reverse": value for name, value in mixer.leftward.state_dict().items()}
    twin.load_state_dict(own)
    torch.testing.assert_close(mixer(x), mixer.to_residual(twin(x)[0]))
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True)
    states, _ = nn.utils.rnn.pad_packed_sequence(twin(packed)[0], batch_first=True)
    real = padding()
    torch.testing.assert_close(mixer(x, padding=real)[real], mixer.to_residual(states)[real])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 64])
def test_linear_attention_is_its_quadratic_form(causal: bool, chunk_size: int) -> None:
    mixer, x = LinearAttention(12, n_heads=3, causal=causal, chunk_size=chunk_size).double(), activations()
    q, k, v = mixer.heads.project(x)
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-2, -1) * padding()[:, None, None, :]
    weights = weights.tril() if causal else weights
    head_outputs = (weights / weights.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(mixer(x, padding=padding()), mixer.to_residual(concatenate(head_outputs)))


def test_linear_attention_looks_at_another_sequence() -> None:
    mixer, x = LinearAttention(12, n_heads=3).double(), activations()
    torch.testing.assert_close(mixer(x, x), mixer(x))
    assert mixer(x, torch.randn(3, 11, 12, dtype=torch.float64)).shape == x.shape


def test_fastformer_by_hand() -> None:
    mixer, x = Fastformer(12, n_heads=3).double(), activations()
    q, k, v = mixer.heads.project(x)
    head_outputs = torch.empty_like(q)
    for b in range(3):
        for h in range(3):
            a = torch.softmax(q[b, h] @ mixer.score_q[h, 0] / math.sqrt(4), dim=0)
            p = (a @ q[b, h]) * k[b, h]
            key = torch.softmax(p @ mixer.score_k[h, 0] / math.sqrt(4), dim=0) @ p
            head_outputs[b, h] = mixer.transform(key * v[b, h]) + q[b, h]
    torch.testing.assert_close(mixer(x), mixer.to_residual(concatenate(head_outputs)))


def test_causal_fastformer_by_hand() -> None:
    mixer, x = Fastformer(12, n_heads=3, causal=True).double(), activations()
    q, k, v = (part[1, 2] for part in mixer.heads.project(x))
    pairs, outputs = [], []
    for t in range(7):
        a = torch.softmax(q[: t + 1] @ mixer.score_q[2, 0] / math.sqrt(4), dim=0)
        pairs.append((a @ q[: t + 1]) * k[t])
        past = torch.stack(pairs)
        key = torch.softmax(past @ mixer.score_k[2, 0] / math.sqrt(4), dim=0) @ past
        outputs.append(mixer.transform(key * v[t]) + q[t])
    weight = mixer.to_residual.weight[:, 8:]
    with torch.no_grad():
        mixer.to_residual.weight[:, :8] = 0
    torch.testing.assert_close(mixer(x)[1], torch.stack(outputs) @ weight.T + mixer.to_residual.bias)
