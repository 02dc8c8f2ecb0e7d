"""Caches: decoding in steps must give what one call gives, whatever the protocol."""

from __future__ import annotations

import math

import pytest
import torch
from tests.doctor.bedside import HEADS, VOCAB, D, examine
from torch import nn

from attnlab.doctor.influence.cache import check_cache
from attnlab.doctor.influence.decoding import names_of
from attnlab.strangers.calling.masking import Masking


def found(module, **convention):
    return list(check_cache(examine(module, **{"causal": True, "causal_means": "always"} | convention)))


def only_error(module, **convention):
    (finding,) = found(module, **convention)
    assert (finding.check, finding.severity) == ("cache", "error")
    return finding


class Cached(nn.Module):
    """Causal attention whose cache is a tuple of keys and values."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def split(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (batch, heads, length, d_head)

    def grown(self, past, k, v):
        return (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], v], 2))

    def blocked(self, new, total):
        return torch.ones(new, total, dtype=torch.bool).triu(total - new + 1)

    def attend(self, q, k, v):
        scores = q @ k.mT / math.sqrt(q.size(-1))
        weights = scores.masked_fill(self.blocked(q.size(2), k.size(2)), float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def step(self, x, past):
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        present = self.grown(past, k, v)
        return self.attend(q, *present), present

    def forward(self, x, layer_past=None):
        return self.step(x, layer_past)


class Flagged(Cached):
    def forward(self, x, past_key_value=None, use_cache=False):
        output, present = self.step(x, past_key_value)
        return (output, present) if use_cache else output


class WithWeights(Cached):
    def forward(self, x, past_key_values=None, use_cache=False):
        output, present = self.step(x, past_key_values)
        weights = torch.ones(x.size(0), HEADS, x.size(1), x.size(1))
        return output, weights, present if use_cache else None


class Filled(Cached):
    """The cache is a dict that is filled."""

    def forward(self, x, cache=None):
        output, present = self.step(x, None if not cache else (cache["k"], cache["v"]))
        if cache is not None:
            cache["k"], cache["v"] = present
        return output


class Incremental(Cached):
    """Its cache has a name that no library uses."""

    def forward(self, x, incremental_kv=None):
        return self.step(x, incremental_kv)


class Store:
    """Keys and values of one layer."""

    def __init__(self):
        self.kept = None


class Stored(Cached):
    def forward(self, x, cache: Store | None = None):
        output, present = self.step(x, None if cache is None else cache.kept)
        if cache is not None:
            cache.kept = present
        return output


class SizedCache:
    """Keys and values of one layer, for so many samples and positions."""

    def __init__(self, batch_size, max_tokens, n_heads, dtype=torch.float16, device="cuda"):
        self.k, self.v = (torch.zeros(batch_size, n_heads, max_tokens, D // HEADS, device=device) for _ in range(2))
        self.long = 0

    def update(self, k, v):
        start, self.long = self.long, self.long + k.size(2)
        self.k[:, :, start : self.long], self.v[:, :, start : self.long] = k, v
        return self.k[:, :, : self.long], self.v[:, :, : self.long]


class Sized(Cached):
    """Nothing but what is asked of its cache says what that is; a single position must not be asked to be causal."""

    def forward(self, x, is_causal=False, kv_cache=None):
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        k, v = (k, v) if kv_cache is None else kv_cache.update(k, v)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        if is_causal:
            scores = scores.masked_fill(torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(1), float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Inside(Cached):
    kept_cache = None

    def forward(self, x, use_cache=False):
        output, present = self.step(x, self.kept_cache if use_cache else None)
        self.kept_cache = present if use_cache else None
        return output


class StartingAt(Cached):
    """Keys and values stand in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache_k", torch.zeros(4, HEADS, 32, D // HEADS))
        self.register_buffer("cache_v", torch.zeros(4, HEADS, 32, D // HEADS))

    def grown(self, past, k, v):
        stop = past + k.size(2)
        self.cache_k[: k.size(0), :, past:stop] = k
        self.cache_v[: k.size(0), :, past:stop] = v
        return self.cache_k[: k.size(0), :, :stop], self.cache_v[: k.size(0), :, :stop]

    def forward(self, x, start_pos=0):
        return self.step(x, start_pos)[0]


class Positioned(Cached):
    table = torch.randn(64, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def start(self, past):
        return 0 if past is None else past[0].size(2)

    def forward(self, x, past=None):
        start = self.start(past)
        return self.step(x + self.table[start : start + x.size(1)].to(x.dtype), past)


class Counted(Positioned):
    """The positions of what is cached are counted by two arguments of the caller's."""

    def forward(self, x, past=None, rope_position_offset=0, cache_len=0):
        if cache_len != (0 if past is None else past[0].size(2)):
            raise ValueError("the cache is of another length")
        start = rope_position_offset
        return self.step(x + self.table[start : start + x.size(1)].to(x.dtype), past)


class Words(nn.Module):
    """A model from tokens to logits with one cached layer."""

    def __init__(self, layer):
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(VOCAB, D), layer, nn.Linear(D, VOCAB)

    def forward(self, tokens, past=None):
        output, present = self.layer(self.embed(tokens), past)
        return {"logits": self.head(output), "past": present}


RIGHT = [Cached(), Flagged(), WithWeights(), Filled(), Stored(), Inside(), StartingAt(), Positioned(), Counted()]


def test_a_cache_is_made_of_the_class_that_can_do_what_is_asked_of_it():
    flag = {"causal_means": "flag", "flag": "is_causal", "arguments": {"n_heads": HEADS}}
    (finding,) = found(Sized(), **flag)
    assert finding.severity == "warning"  # several positions at once see too little
    assert {one.severity for one in found(Sized(), causal_means="flag", flag="is_causal")} == {"info"}

    class Misplaced(Sized):
        def split(self, x):
            return super().split(x + torch.arange(x.size(1), dtype=x.dtype)[:, None])

    assert "first at position 4" in only_error(Misplaced(), **flag).evidence


@pytest.mark.parametrize("module", RIGHT, ids=lambda module: type(module).__name__)
def test_right_caches_are_left_in_peace(module):
    assert not found(module)


class BesideState(Cached):
    """A flag and what the layer below gives stand before the cache."""

    def forward(self, x, inference=False, state=None, kv_cache=None):
        output, present = self.step(x, kv_cache)
        return output if state is None else output + state, present


def test_other_state_and_flags_are_no_caches():
    assert names_of(BesideState())[0] == "kv_cache"
    assert not found(BesideState())


def test_right_models_are_left_in_peace():
    how = {"takes": "tokens", "d_in": 0, "d_out": VOCAB, "vocab_size": VOCAB, "output": "logits"}
    assert not found(Words(Cached()), **how)
    assert "decoding in steps" in only_error(Words(Overwriting()), **how).message


class Masked(Cached):
    """The caller gives the mask."""

    def blocked(self, new, total):
        return torch.zeros(new, total, dtype=torch.bool)

    def forward(self, x, attn_mask=None, past=None):
        q, k, v = (self.split(part(x)) for part in (self.q, self.k, self.v))
        k, v = self.grown(past, k, v)
        scores = q @ k.mT / math.sqrt(q.size(-1))
        scores = scores if attn_mask is None else scores.masked_fill(attn_mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


def test_steps_get_their_part_of_a_mask():
    mask = Masking("attn_mask", "pairs", "bool, True = blocked", "(q_len, k_len)")
    assert not found(Masked(), masks=(mask,), causal_means="mask")


class InPieces(Masked):
    """Keys and values are returned beside the output, and taken as a pair."""

    def forward(self, x, attn_mask=None, past=None):
        output, present = super().forward(x, attn_mask, past)
        return output, *present


class NewestInPieces(InPieces):
    def forward(self, x, attn_mask=None, past=None):
        output, k, v = super().forward(x, attn_mask, past)
        return output, k[:, :, -x.size(1) :], v[:, :, -x.size(1) :]


def test_pieces_of_a_cache_are_handed_on_together():
    pairs = Masking("attn_mask", "pairs", "bool, True = blocked", "(batch, 1, q_len, k_len)")
    both = {"masks": (pairs, Masking("attn_mask", "keys", "bool, True = blocked", "(batch, 1, 1, k_len)"))}
    assert not found(InPieces(), causal_means="mask", **both)
    assert only_error(NewestInPieces(), causal_means="mask", **both)


class Overwriting(Cached):
    def grown(self, past, k, v):
        return k, v


class Prepending(Positioned):
    """New keys stand before old ones, values behind."""

    def grown(self, past, k, v):
        return (k, v) if past is None else (torch.cat([k, past[0]], 2), torch.cat([past[1], v], 2))


class Restarting(Positioned):
    def start(self, past):
        return 0


class TopLeft(Cached):
    def blocked(self, new, total):
        return torch.ones(new, total, dtype=torch.bool).triu(1)


class IncrementalTopLeft(Incremental, TopLeft):
    """Its argument has a name that no library uses."""


class Forgetting(Cached):
    """Values are kept, keys are those of the last step."""

    def grown(self, past, k, v):
        if past is None:
            return k, v
        return torch.cat([past[0][:, :, :-1], k, k], 2), torch.cat([past[1], v], 2)


class WrongInside(Inside):
    def grown(self, past, k, v):
        return (k, v) if past is None else (torch.cat([past[0], k], 2), torch.cat([past[1], 0 * v], 2))


@pytest.mark.parametrize(
    "module",
    [Overwriting(), Prepending(), Restarting(), TopLeft(), IncrementalTopLeft(), Forgetting(), WrongInside()],
    ids=lambda module: type(module).__name__,
)
def test_caches_that_change_the_output_are_found(module):
    finding = only_error(module)
    assert "first at position" in finding.evidence


class SeveralAtOnce(Cached):
    def blocked(self, new, total):
        return super().blocked(new, new) if new == total else torch.zeros(new, total, dtype=torch.bool)


def test_steps_of_several_positions_are_a_warning():
    (finding,) = found(SeveralAtOnce())
    assert finding.severity == "warning"
    assert "steps of several" in finding.message


class Unknown(Cached):
    """The cache is no known kind."""

    def forward(self, x, cache=None):
        if cache is not None:
            raise TypeError("a cache must be made by make_cache()")
        return self.step(x, None)[0]


def test_an_unknown_protocol_is_said():
    (finding,) = found(Unknown())
    assert finding.severity == "info"
    assert "could not be examined" in finding.message


class Bidirectional(Cached):
    def blocked(self, new, total):
        return torch.zeros(new, total, dtype=torch.bool)


def test_what_sees_ahead_is_not_judged():
    (finding,) = found(Bidirectional(), causal=False)
    assert finding.severity == "info"


def test_without_a_cache_nothing_is_asked():
    assert not found(nn.Linear(D, D))
