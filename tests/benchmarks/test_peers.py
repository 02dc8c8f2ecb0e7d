"""Everything that is compared is the same model: causal, of about the same size, and honest about the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest
import torch

from attnlab.benchmarks.contenders.peers import (
    OURS,
    PEERS,
    PLAIN,
    SIZES,
    Gpt2,
    Peer,
    PeerSizes,
    parameter_count,
)

SMALL = PeerSizes("small", n_layers=2, d_model=24, n_heads=3, length=11, batch=5, vocab_size=13)


def built(peer: Peer) -> torch.nn.Module:
    if not peer.is_installed:
        pytest.skip(f"{peer.package} is not installed")
    torch.manual_seed(0)
    return peer.build(SMALL)


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_a_peer_is_causal_and_gives_logits(peer):
    model = built(peer)
    assert model(torch.zeros(5, 7, dtype=torch.long)).shape == (5, 7, 13)
    tokens = torch.arange(7)[None]
    with torch.no_grad():
        before, after = (model(one) for one in (tokens, torch.where(tokens == 6, 9, tokens)))
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


@pytest.mark.parametrize("peer", PEERS.values(), ids=lambda peer: peer.name)
def test_a_peer_has_as_many_parameters_or_says_why_not(peer):
    own, ours = parameter_count(built(peer)), parameter_count(OURS.build(SMALL))
    assert own == ours or ("biases" in peer.differs and 0.9 * ours < own < ours)


BLOCK = {
    "mixer.heads.packed.linear": ("qkv", "self_attn.in_proj_"),
    "mixer.combiner.to_residual": ("project", "self_attn.out_proj."),
    "around_mixer.before": ("before_attention", "norm1."),
    "around_feedforward.before": ("before_feedforward", "norm2."),
    "feedforward.widen": ("up", "linear1."),
    "feedforward.to_residual": ("down", "linear2."),
}
"""Names inside a block: attnlab's, those of the plain loop, those of torch."""
REST = {
    "stack.positions.table.": ("positions.", "positions."),
    "stack.norm.": ("norm.", "layers.norm."),
}


def renamed(name: str, column: int) -> str:
    for own, others in BLOCK.items():
        dotted = others[column] if column else f"{others[column]}."
        name = name.replace(f"{own}.", dotted)
    for own, others in REST.items():
        name = name.replace(own, others[column])
    return name.replace("stack.blocks.", ("blocks.", "layers.layers.")[column])


@pytest.mark.parametrize(("column", "name"), [(0, PLAIN.name), (1, "torch.nn.TransformerEncoder")])
def test_a_peer_with_attnlabs_weights_gives_attnlabs_logits(column, name):
    ours, other = built(OURS), built(PEERS[name])
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    other.load_state_dict({renamed(key, column): value for key, value in ours.named_parameters()})
    tokens = torch.randint(13, (5, 11))
    torch.testing.assert_close(other(tokens), ours(tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_gpt2_uses_fused_attention():
    assert Gpt2(SMALL).model.config._attn_implementation == "sdpa"


def test_every_package_has_a_version_and_every_size_a_batch():
    for peer in PEERS.values():
        if peer.package and peer.is_installed:
            assert importlib.metadata.version(peer.package)
    assert list(SIZES) == ["a", "b", "c"]
    assert "batch 12 x 64" in str(SIZES["a"])
