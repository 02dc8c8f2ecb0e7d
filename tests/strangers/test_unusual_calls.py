"""Calls beside the usual: one vector that asks a sequence, vectors for distances, arguments handed on, a reset."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.batch_independence import check_batch_independence
from attnlab.doctor.influence.masks import check_mask_polarity
from attnlab.doctor.influence.padding import check_padding
from attnlab.strangers.calling.convention import Convention
from attnlab.strangers.calling.layouts import LAYOUTS
from attnlab.strangers.calling.roles import role_of, roles_of
from attnlab.strangers.calling.sources import SOURCES, Situation, laid_out
from attnlab.strangers.patient import Patient
from attnlab.strangers.said.layout import turned_keys
from attnlab.strangers.trying import adapting
from attnlab.strangers.trying.interview import interview

WIDTH, STATE = 24, 10


def asked(module: nn.Module) -> Convention:
    return interview(Patient("it", module, None, {}, "", ""))


class StateAsks(nn.Module):
    """Additive attention as in a decoder of one step: what it returns beside the context are weights."""

    def __init__(self):
        super().__init__()
        self.hidden, self.score = nn.Linear(WIDTH + STATE, STATE), nn.Linear(STATE, 1)

    def forward(self, hidden, encoder_outputs):
        asking = hidden.unsqueeze(1).repeat(1, encoder_outputs.size(1), 1)
        energy = torch.tanh(self.hidden(torch.cat([asking, encoder_outputs], 2)))
        weights = self.score(energy).squeeze(2).softmax(1)  # (batch, length)
        return weights, (weights.unsqueeze(1) @ encoder_outputs).squeeze(1)


def test_one_vector_asks_a_sequence_and_its_context_is_the_output():
    convention = asked(StateAsks())
    assert convention.assumptions["called as"].startswith("forward(hidden=one fixed vector per sequence")
    assert (convention.d_in, convention.pooled, convention.output) == (WIDTH, True, 1)


class Mixture(nn.Module):
    """A set of parts, each of a kind that an embedding adds to its features, and features of the whole."""

    def __init__(self):
        super().__init__()
        self.kind, self.part = nn.Embedding(5, 8, padding_idx=0), nn.Linear(WIDTH + 8, WIDTH)
        self.whole = nn.Linear(WIDTH + 4, 2)

    def forward(self, x, kinds, of_all):
        parts = self.part(torch.cat([x, self.kind(kinds)], -1))
        mixed = nn.functional.scaled_dot_product_attention(parts, parts, parts).mean(1)
        return self.whole(torch.cat([mixed, of_all], -1))


def test_what_stands_beside_others_is_given_the_width_that_is_left():
    convention = asked(Mixture())
    given = {one.parameter: (one.source, one.value) for one in convention.arguments}
    assert given == {"x": ("x", None), "kinds": ("segments", 1), "of_all": ("vector", 4)}
    assert (convention.d_in, convention.pooled) == (WIDTH, True)


class Trajectories(nn.Module):
    """A causal model of steps: what is left to get, what is seen, what is done, and when."""

    def __init__(self):
        super().__init__()
        self.of_returns, self.of_states, self.of_actions = (nn.Linear(n, WIDTH) for n in (1, STATE + 3, STATE))
        self.of_times, self.out = nn.Embedding(64, WIDTH), nn.Linear(WIDTH, STATE)

    def forward(self, returns, s, a, t, mask=None):
        assert len(t.size()) == 2, "steps have no features"
        x = torch.stack([self.of_returns(returns), self.seen(s), self.of_actions(a)], 2) + self.of_times(t)[:, :, None]
        x = x.flatten(1, 2)
        hidden = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        y = nn.functional.scaled_dot_product_attention(x, x, x, ~hidden)
        return self.out(y.unflatten(1, (-1, 3))[:, :, 1])

    def seen(self, what):
        return self.of_states(what)


def test_sequences_of_their_own_widths_are_told_by_what_fails():
    convention = asked(Trajectories())
    given = {one.parameter: (one.source, one.value) for one in convention.arguments}
    assert given == {
        "returns": ("another sequence", 1),
        "s": ("x", None),  # the widest
        "a": ("another sequence", STATE),
        "t": ("positions of each", 0),
    }
    assert (convention.d_in, convention.d_out, convention.causal) == (STATE + 3, STATE, True)


class OfAGraph(nn.Module):
    """Attention over the neighbours of the nodes of one graph."""

    def __init__(self):
        super().__init__()
        self.map, self.one, self.other = nn.Linear(WIDTH, STATE), nn.Linear(STATE, 1), nn.Linear(STATE, 1)

    def forward(self, nodes, adjacency):
        h = torch.mm(nodes, self.map.weight.T)
        scores = nn.functional.leaky_relu(self.one(h) + self.other(h).T, 0.2)
        return torch.where(adjacency > 0, scores, -1e9).softmax(1) @ h


def test_nodes_of_a_graph_are_positions_of_one_sequence_and_its_edges_a_mask():
    convention = asked(OfAGraph())
    assert (convention.layout, convention.d_in, convention.d_out) == ("unbatched", WIDTH, STATE)
    (mask,) = [mask for mask in convention.masks if mask.over == "pairs"]
    assert (mask.parameter, mask.encoding, mask.obeyed) == ("adjacency", "bool, True = may attend", True)


class Staged(nn.Module):
    """Attention with a stage, pairs of its own width and a length of its own, which no name tells."""

    def __init__(self):
        super().__init__()
        self.stages, self.pairs = nn.Parameter(torch.randn(2, WIDTH)), nn.Linear(STATE, 1)
        self.queries, self.keys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, stage, relations):
        if x.size(1) != 29:
            raise ValueError(f"{x.size(1)} positions; they must be 29")
        asking = self.queries(x) + self.stages[stage]
        scores = asking @ self.keys(x).mT + self.pairs(relations).squeeze(-1).view(-1, 29, 29)
        return scores.softmax(-1) @ x


def test_what_no_name_tells_is_found_by_changing_one_thing_of_the_call_that_came_furthest():
    convention = asked(Staged())
    assert convention.in_words == (
        "forward(x; stage=0; relations=fixed vectors for all pairs of positions, (batch, length, length, d_model))"
    )
    assert (convention.d_in, convention.length, convention.any_length) == (WIDTH, 29, False)


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, pos_embs):
        length = x.size(1)
        assert pos_embs.shape == (1, 2 * length - 1, WIDTH)
        self.told = pos_embs
        return self.map(x) + pos_embs[:, length - 1 :]


def test_a_distance_has_the_same_vector_at_every_length():
    module = Distances()
    convention = asked(module)
    told = {}
    for length in (5, 8):
        convention.call(module, torch.randn(3, length, WIDTH))
        told[length] = module.told[:, length - 5 : length + 4]
    assert torch.equal(told[5], told[8])


class HandedOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, *arguments, context=None):
        return self.map(*arguments) if context is None else self.map(context)


def test_arguments_that_are_handed_on_hold_the_input():
    assert asked(HandedOn()).in_words == "forward(x)"


class OneOfAStack(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.map(x).unsqueeze(0)


def test_the_last_layer_of_a_stack_is_the_output():
    assert asked(OneOfAStack()).call(OneOfAStack(), torch.randn(3, 5, WIDTH)).shape == (3, 5, WIDTH)


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.reset()

    def reset(self):
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = self.map(x)
        return self.kept


class Clears(nn.Module):
    def __init__(self):
        super().__init__()
        self.map, self.kept = nn.Linear(WIDTH, WIDTH), None

    def clear_memory(self, batch_size=None):
        del batch_size
        self.kept = None

    def reset_parameters(self):
        raise AssertionError("draws its weights anew")

    def forward(self, x):
        self.kept = self.map(x) if self.kept is None else self.kept
        return self.kept


@pytest.mark.parametrize("kind", [Remembers, Clears])
def test_what_can_be_reset_is_reset_before_every_call(kind):
    module = kind()
    convention = asked(module)
    calls = [convention.call(module, torch.full((3, 5, WIDTH), value)) for value in (1.0, 2.0)]
    assert not torch.equal(*calls)


class DecoderLayer(nn.Module):
    """Self-attention and attention to a memory, of torch's layers, which take the sequence first."""

    def __init__(self):
        super().__init__()
        self.own, self.other = (nn.MultiheadAttention(WIDTH, 2) for _ in range(2))

    def forward(self, tgt, memory, tgt_mask=None):
        tgt = tgt + self.own(tgt, tgt, tgt, attn_mask=tgt_mask)[0]
        return tgt + self.other(tgt, memory, memory)[0]


def test_a_memory_stays_apart_where_the_sequence_turns_out_to_come_first():
    convention = asked(DecoderLayer())
    assert convention.layout == "sequence-first"
    assert "memory=a fixed memory of length 7" in convention.in_words
    assert convention.pair_mask is not None
    assert convention.pair_mask.obeyed


@pytest.mark.parametrize(
    ("name", "role"), [("enc_len", "lengths"), ("src_length", "lengths"), ("seq_len", "length"), ("max_len", "length")]
)
def test_the_length_of_a_named_sequence_is_one_for_each_sample(name, role):
    assert role_of(name) == role


class Wide(nn.Module):
    """Two sequences as long as the input, each of a width of its own."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(width, WIDTH) for width in (WIDTH, 4, 6)])
        self.norm = nn.LayerNorm(4)

    def forward(self, x, marks, y):
        a, b, c = self.maps
        return a(x) + b(self.norm(marks)) + c(y)


def test_a_sequence_is_given_the_width_that_torch_says_is_wanted():
    called = asked(Wide()).assumptions["called as"]
    beside = "a fixed sequence of its own width and as long as the input"
    assert called == f"forward(x; marks={beside}; y={beside})"


class Counting(nn.Module):
    """Cannot be called; counts how often that is tried."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x, mask):
        Counting.made += 1
        return self.map(x) + mask.nothing if x.size(-1) == WIDTH else mask.nothing


def test_a_call_that_is_of_a_wrong_type_is_not_tried_at_every_size_and_the_furthest_failure_is_told():
    Counting.made = 0
    with pytest.raises(ModuleError, match=r"has no attribute 'nothing'"):
        asked(Counting())
    assert Counting.made < 1500


class Switched(nn.Module):
    """Masks only where its setting says so."""

    def __init__(self, *, mask_flag):
        super().__init__()
        self.map, self.mask_flag = nn.Linear(WIDTH, WIDTH), mask_flag

    def forward(self, x, attn_mask=None):
        scores = x @ x.mT / WIDTH
        if self.mask_flag:
            hidden = torch.ones(scores.shape[-2:]).triu(1).bool() if attn_mask is None else attn_mask
            scores = scores.masked_fill(hidden, float("-inf"))
        return self.map(scores.softmax(-1) @ x)


def test_a_mask_that_a_setting_switches_off_is_left_out():
    masks = [asked(Switched(mask_flag=flag)).masks for flag in (True, False)]
    assert [bool(each) for each in masks] == [True, False]


class OfHeads(nn.Module):
    """Queries, keys and values that are split already, length before heads; the other way round it runs as well."""

    def forward(self, queries, keys, values):
        assert queries.dim() == 4
        q, k, v = (each.transpose(1, 2) for each in (queries, keys, values))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)


def test_of_two_ways_to_split_heads_the_one_is_taken_in_which_positions_see_each_other():
    convention = asked(OfHeads())
    assert convention.layout == "length, then heads"
    assert "no position would see another" in convention.assumptions["layout"]


class MemoryFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.map, self.prenet = nn.Linear(WIDTH, WIDTH), nn.Linear(STATE, WIDTH)

    def forward(self, memory, decoder_input):
        x, seen = self.prenet(decoder_input), self.map(memory)
        return x + (x @ seen.mT).softmax(-1) @ seen


def test_a_memory_is_no_input_where_what_a_decoder_gets_comes_second():
    convention = asked(MemoryFirst())
    assert convention.assumptions["called as"] == "forward(memory=a fixed memory of length 7; decoder_input)"
    assert convention.d_in == STATE


class GivenBack(nn.Module):
    """Returns its input before what it makes of it, as encoders of several scales do."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return [x, self.map(x)]


def test_an_input_that_is_given_back_is_no_output():
    assert asked(GivenBack()).output == 1


class Neighbors(nn.Module):
    """Attention of one graph's nodes to their neighbors."""

    def __init__(self):
        super().__init__()
        self.map, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, h, adj):
        h = self.map(h)
        torch.mm(h, h.t())  # no batch
        one, other = self.score(h).unbind(-1)
        scores = (one[:, None] + other).masked_fill(~(adj > 0), float("-inf"))
        return scores.softmax(-1) @ h


def test_an_adjacency_is_a_mask_over_pairs_of_nodes():
    convention = asked(Neighbors())
    assert convention.layout == "unbatched"
    assert convention.pair_mask.parameter == "adj"
    assert convention.pair_mask.keeps
    assert convention.pair_mask.obeyed


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.dim, self.n_heads = 24, 3
        self.q = nn.Linear(24, 24)

    def forward(self, x, position_embeddings):
        cos, sin = (table.unsqueeze(1) for table in position_embeddings)  # (length, 1, d_head)
        assert cos.dim() == 3
        q = self.q(x).unflatten(-1, (3, 8))  # (batch, length, heads, d_head)
        return (q * cos + q.roll(4, -1) * sin).flatten(2)


def test_rotary_angles_may_be_tables_without_a_batch():
    called = asked(Turned()).assumptions["called as"]
    assert "position_embeddings=cosines and sines of rotary angles, (length, d_head)" in called


class ByPresence(nn.Module):
    """Attention that is causal if any mask is given."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)


def test_a_mask_of_which_only_the_presence_counts_is_not_one_to_be_obeyed():
    assert asked(ByPresence()).masks == ()


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x[:, :3, :7])  # of an image, three rows of seven


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        height, width = x.shape[1:3]
        return self.map(x) * height / width


def test_images_that_are_handed_on_need_not_be_square():
    whole = Patient("it", Image(), None, {}, "", "")
    convention = interview(Patient("part", Inner(), None, {}, "", "", whole=lambda: whole))
    assert (convention.layout, convention.length) == ("image, channels last", 21)


class Packed(nn.Module):
    """Attention in heads without a projection, of queries, keys and values that lie in one tensor."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(16, 16)

    def weighed(self, q, k, v):
        return (q @ k.mT / 4).softmax(-1) @ self.map(v)


class Unbound(Packed):
    def forward(self, qkv):
        q, k, v = qkv.unbind(2)
        return self.weighed(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)


class Indexed(Packed):
    def forward(self, qkv):
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        return self.weighed(*(each.transpose(1, 2) for each in (q, k, v))).transpose(1, 2)


class Listed(Packed):
    def forward(self, qkv):
        return self.weighed(qkv[0], qkv[1], qkv[2])


class Chunked(Packed):
    def forward(self, qkv):
        q, k, v = qkv.chunk(3, dim=-1)
        return self.weighed(q, k, v)


@pytest.mark.parametrize("kind", [Unbound, Indexed, Listed, Chunked])
def test_queries_keys_and_values_may_lie_in_one_argument(kind):
    module = kind()
    convention = asked(module)
    x = torch.randn(3, 5, convention.d_in)
    assert convention.call(module, x).shape == x.shape
    assert "qkv=" in convention.assumptions["called as"]


class WithOptions(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, options):
        return self.map(x, **options)


def test_options_that_are_handed_on_by_name_may_be_none():
    assert "options=no options" in asked(WithOptions()).assumptions["called as"]


class Recounting(nn.Module):
    """Positions are told, 0 where there is padding."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, pos):
        scores = (x @ x.mT).masked_fill(pos.eq(0)[:, None, :], float("-inf"))
        return self.map(scores.softmax(-1) @ x)


def test_positions_are_counted_from_one_where_zero_is_padding():
    (positions,) = (one for one in asked(Recounting()).arguments if one.parameter == "pos")
    assert positions.value == 1


class LastStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.map = nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.map(self.layer(x)[0][-1])


def test_the_last_of_a_sequence_that_comes_first_is_one_vector_per_sequence():
    convention = asked(LastStep())
    assert (convention.layout, convention.pooled, convention.d_out) == ("sequence-first", True, 5)


class Masking(nn.Module):
    """Multiplies keys of several heads by a mask that must be given."""

    def forward(self, q, k, v, mask):
        keep = mask.unsqueeze(1).transpose(2, 3)  # (batch, 1, k_len, 1)
        return (q @ (k * keep).mT).softmax(-1) @ (v * keep)


def test_inputs_in_heads_come_before_inputs_of_one_number():
    assert asked(Masking()).layout == "heads, then length"


class TurnedKeys(nn.Module):
    def forward(self, q, k, v):
        """
        q: [bs x heads x q_len x d_k]
        k: [bs x heads x d_k x seq_len]
        """
        return torch.matmul(torch.matmul(q, k).softmax(-1), v)


class LackingTranspose(nn.Module):
    """q, k, v: (batch, length, d_model)"""

    def forward(self, q, k, v):
        return torch.matmul(torch.matmul(q, k).softmax(-1), v)


class NothingSaid(nn.Module):
    def forward(self, q, k, v):
        return torch.matmul(torch.matmul(q, k).softmax(-1), v)


class TurnedByOperator(nn.Module):
    """key: (batch, d_model, length)"""

    def forward(self, query, key, value):
        return (query @ key).softmax(-1) @ value


class TurnedInside(nn.Module):
    """k: (batch, d_model, length)"""

    def forward(self, q, k, v):
        k = k.mT
        return torch.matmul(q, k).softmax(-1) @ v


class OfGraph(nn.Module):
    def forward(self, adj, x):
        return torch.bmm(adj, x)


def test_keys_of_which_features_are_said_to_come_first_are_given_so_where_they_are_multiplied_as_they_come():
    convention = asked(TurnedKeys())
    assert convention.d_in > 1
    assert "k=the input, features before positions" in convention.assumptions["called as"]
    turned = {kind.__name__: turned_keys(kind()) for kind in (TurnedKeys, TurnedByOperator, LackingTranspose)}
    assert turned == {"TurnedKeys": {"k"}, "TurnedByOperator": {"key"}, "LackingTranspose": set()}
    assert not any(turned_keys(kind()) for kind in (NothingSaid, TurnedInside, OfGraph))


@pytest.mark.parametrize("name", ["layer_idx", "block_id", "layerIndex"])
def test_of_several_layers_the_first_is_meant(name):
    assert role_of(name) == "start"


class Explained(nn.Module):
    """A layer that keeps the gradient at its weights, as layers do that explain themselves."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        weights = (self.map(x) @ x.mT / WIDTH).softmax(-1)
        weights.register_hook(lambda gradient: None)
        return weights @ x


def test_a_layer_that_hooks_its_gradients_is_called_with_them():
    module = Explained()
    with torch.no_grad():
        convention = asked(module)
        assert not convention.call(module, torch.randn(3, convention.length, WIDTH)).requires_grad


class DecodesImage(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        return self.map(x)


def test_images_have_another_number_of_pixels_than_channels_and_their_decoder_is_not_causal_by_name():
    convention = asked(DecodesImage())
    assert (convention.d_in, convention.length, bool(convention.causal)) == (64, 36, False)


class Clicks(nn.Module):
    """One probability per sequence, of whole numbers that are shifted into a common table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, WIDTH)

    def forward(self, x):
        return self.table(x + torch.arange(5) * 2).sum((1, 2)).sigmoid()


def test_one_number_per_sequence_is_an_output_and_tokens_out_of_range_become_fewer():
    convention = asked(Clicks())
    assert (convention.takes, convention.vocab_size, convention.length) == ("tokens", 10, 5)
    assert (convention.pooled, convention.d_out) == (True, 1)


class OneStep(nn.Module):
    """Attention of a decoder that asks with one vector, and adds it to what it sees."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, query, key, value):
        batch, _, _ = key.shape
        weights = (query @ self.map(key).mT / WIDTH).softmax(-1).reshape(batch, 1, -1)
        return weights @ value, weights


def test_a_sequence_of_one_asks_and_is_the_output():
    convention = asked(OneStep())
    assert "query=a fixed sequence of one vector" in convention.in_words
    assert (convention.pooled, convention.d_out, convention.output) == (True, WIDTH, 0)


class Compressing(nn.Module):
    """Attention whose maps of keys may be left out; what they are an annotation tells, and no name."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, squeeze: nn.Linear | None, beside: torch.Tensor | None):
        if squeeze is not None:
            x = squeeze(x)
        return self.map(x) + beside


def test_what_an_annotation_allows_to_be_nothing_is_nothing_unless_it_is_a_tensor():
    assert asked(Compressing()).in_words == "forward(x; squeeze=None; beside)"


class OnGrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.map, self.grid = nn.Linear(WIDTH, WIDTH), (5, 4)

    def forward(self, x):
        return self.map(x.view(len(x), *self.grid, WIDTH).roll(1, 1)).flatten(1, 2)


def test_a_sequence_may_have_to_be_as_long_as_a_grid_has_places():
    convention = asked(OnGrid())
    assert (convention.length, convention.any_length) == (20, False)


class AtOne(nn.Module):
    """What stands at one position of each sequence; a mask that others of its kind take is thrown away."""

    def __init__(self):
        super().__init__()
        self.table, self.map = nn.Embedding(53, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens, query_pos, attention_mask=None):
        del attention_mask
        chosen = query_pos[:, None, None].expand(-1, 1, WIDTH)
        return self.map(self.table(tokens)).gather(1, chosen).squeeze(1)


def test_one_position_of_each_sequence_is_no_sequence_as_long_as_the_batch_is_large():
    convention = asked(AtOne())
    assert convention.in_words == "forward(tokens; query_pos=the number 0 for every sequence, (batch))"
    assert (convention.any_length, convention.masks) == (True, ())


class StepOfDecoder(nn.Module):
    """One step of a decoder: a token and a state ask, and both the next token and state come back."""

    def __init__(self, cells=False):
        super().__init__()
        self.table, self.attention = nn.Embedding(17, WIDTH), StateAsks()
        self.step = (nn.LSTM if cells else nn.GRU)(2 * WIDTH, STATE, batch_first=True)
        self.next = nn.Linear(STATE, 17)

    def forward(self, token, hidden, encoder_outputs):
        state = hidden[0] if isinstance(hidden, tuple) else hidden
        _, context = self.attention(state[-1], encoder_outputs)
        given = torch.cat([self.table(token), context[:, None]], -1)  # (batch, 1, 2 * WIDTH)
        after, hidden = self.step(given, hidden)
        return self.next(after[:, 0]), hidden


@pytest.mark.parametrize(("cells", "words"), [(False, "one fixed state per"), (True, "two fixed states per")])
def test_one_step_of_a_decoder_is_examined_over_what_it_looks_at(cells, words):
    convention = asked(StepOfDecoder(cells))
    assert (convention.d_in, convention.d_out, convention.pooled, convention.any_length) == (WIDTH, 17, True, True)
    assert words in convention.assumptions["called as"]


class OneOfFixedLength(nn.Module):
    """One sequence, without a batch, of one length."""

    def __init__(self):
        super().__init__()
        self.places, self.map = nn.Parameter(torch.randn(29, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.map(x + self.places).reshape(29, WIDTH)


def test_a_single_sequence_may_have_one_length():
    convention = asked(OneOfFixedLength())
    assert (convention.layout, convention.length) == ("unbatched", 29)


class ReadsEncoder(StepOfDecoder):
    """All steps of a decoder, from the outputs and the last state of an encoder."""

    def forward(self, encoder_outputs, encoder_hidden, target=None):
        token, hidden, every = torch.zeros(len(encoder_outputs), 1).long(), encoder_hidden, []
        for _ in range(5):
            scores, hidden = super().forward(token, hidden, encoder_outputs)
            every.append(scores)
            token = scores.argmax(-1, keepdim=True)
        return torch.stack(every, 1), hidden


def test_a_decoder_may_start_from_the_state_of_an_encoder():
    convention = asked(ReadsEncoder())
    assert (convention.layout, convention.slots, convention.d_out) == ("batch-first", 5, 5 * 17)


class Forced(nn.Module):
    """A decoder that is given the target by chance."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, teacher_forcing_ratio=0.5):
        return torch.where(torch.rand((*x.shape[:2], 1)) < teacher_forcing_ratio, self.map(x), 0.0)


def test_a_decoder_is_always_given_the_target():
    assert "teacher_forcing_ratio=1.0" in asked(Forced()).in_words


class OfFrames(nn.Module):
    """A fixed number of frames of several nodes each, without a batch: three of them look like one."""

    def __init__(self):
        super().__init__()
        self.frames, self.map = nn.Parameter(torch.randn(3, 1, WIDTH)), nn.Linear(2 * WIDTH, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4)

    def forward(self, x):
        x = self.map(torch.cat([x, self.frames.expand(-1, x.size(1), -1)], -1))
        return self.attention(x, x, x)[0]


def test_an_axis_of_one_size_is_no_batch():
    with pytest.raises(ModuleError, match="cannot be called"):
        asked(OfFrames())


class OneAsks(nn.Module):
    """Additive attention that one state asks: states of several positions are laid along the batch."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(STATE, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, regions, asking):
        weights = self.v(torch.tanh(self.k(regions) + self.q(asking).unsqueeze(1))).softmax(-2)
        return (weights * regions).sum(1)


class OneAsksByViews(nn.Module):
    """The same with the input told from its size: one vector per sample has a single position."""

    def __init__(self):
        super().__init__()
        self.q, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, h, regions, mapped):
        length = regions.numel() // regions.size(0) // WIDTH
        mapped, regions = mapped.view(-1, length, WIDTH), regions.view(-1, length, WIDTH)
        scores = self.v(torch.tanh(mapped + self.q(h)[:, None].expand_as(mapped)).view(-1, WIDTH)).view(-1, length)
        return (scores.softmax(-1)[:, None] @ regions).squeeze(1)


@pytest.mark.parametrize("module", [OneAsks, OneAsksByViews])
def test_what_asks_without_positions_is_one_vector_per_sample(module):
    convention = asked(module())
    assert (convention.layout, convention.pooled, convention.length) == ("batch-first", True, 11)
    assert sum(one.source == "vector" for one in convention.arguments) == 1


class KindsOfPairs(nn.Module):
    """Attention whose keys know the kind of a pair, looked up for each sample."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.kind = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Embedding(5, WIDTH)

    def forward(self, x, intervals):
        batch, length, _ = x.shape
        kinds = self.kind(intervals).view(batch, length, length, WIDTH)
        scores = self.q(x) @ self.k(x).mT + torch.einsum("bid,bijd->bij", self.q(x), kinds)
        return scores.softmax(-1) @ x


def test_kinds_of_pairs_of_each_sample_differ_between_keys():
    module = KindsOfPairs()
    convention = asked(module)
    assert any("(batch, length, length)" in one.in_words for one in convention.arguments)
    convention.call(module, torch.randn(3, 11, WIDTH)).sum().backward()
    assert module.kind.weight.grad is not None
    assert module.kind.weight.grad.abs().max() > 1e-6


class Shortens(nn.Module):
    """Channels first in, fewer vectors batch first out."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, stride=2)

    def forward(self, x):
        return self.conv(x).mT


def test_fewer_vectors_may_come_back_in_another_layout():
    convention = asked(Shortens())
    assert (convention.layout, convention.slots, convention.d_out) == ("channels-first", 4, 4 * WIDTH)


class Packs(nn.Module):
    """A recurrence over packed sequences, which comes back as long as the longest; the longest must come first."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


def test_what_packs_its_sequences_is_asked_about_padding():
    patient = Patient("it", Packs(), None, {}, "", "")
    exam = Examination(patient, interview(patient))
    assert exam.convention.key_mask is not None
    assert exam.convention.key_mask.obeyed
    assert [*check_padding(exam), *check_mask_polarity(exam)] == []


class Pixels(nn.Module):
    """What takes images of one size, said by its constructor."""

    def __init__(self, im_size: int = 24, n_embd: int = WIDTH):
        super().__init__()
        self.im_size, self.map = im_size, nn.Linear(3 * im_size**2, n_embd)

    def forward(self, x):
        return self.map(x.permute(0, 2, 3, 1).flatten(1))


def test_im_is_an_image():
    convention = asked(Pixels())
    assert (convention.layout, convention.length, convention.d_in) == ("image", 24**2, 3)


class Translates(nn.Module):
    """Attention over what a source gives, with a mask over it."""

    def __init__(self):
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(2))

    def forward(self, src, tgt, src_mask, tgt_mask=None):
        tgt = tgt + self.own(tgt, tgt, tgt, attn_mask=tgt_mask)[0]
        return self.cross(tgt, src, src, key_padding_mask=src_mask)[0]


class HandsOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.out = Translates(), nn.Linear(WIDTH, WIDTH)

    def forward(self, *given):
        return self.out(self.model(*given))


def test_what_hands_its_arguments_on_is_called_like_its_part():
    convention = asked(HandsOn())
    assert convention.over_memory is not None
    assert {mask.parameter for mask in (*convention.masks, *convention.over_memory.masks)} == {"src_mask", "tgt_mask"}


class LoneStateAsks(nn.Module):
    """Dot products of a state, (1, batch, width), with what an encoder returned, (length, batch, width)."""

    def __init__(self):
        super().__init__()
        self.join = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden, encoder_outputs):
        weights = (hidden * encoder_outputs).sum(2).softmax(0)  # (length, batch)
        seen = (weights[..., None] * encoder_outputs).sum(0, keepdim=True)
        return self.join(torch.cat([seen, hidden], 2)).tanh(), weights


def test_a_state_without_a_token_may_ask_what_an_encoder_returned():
    convention = asked(LoneStateAsks())
    assert (convention.layout, convention.pooled, convention.d_out) == ("sequence-first", True, WIDTH)
    assert "one fixed state per sequence" in convention.assumptions["called as"]


class Candidate(nn.Module):
    """One vector asks a history, of the width that its constructor has by default. Returns (batch, width)."""

    def __init__(self, embed_dim=12, hidden=7):
        super().__init__()
        self.unit = nn.Sequential(nn.Linear(4 * embed_dim, hidden), nn.PReLU(), nn.Linear(hidden, 1))

    def forward(self, candidate, history, history_mask=None):
        c = candidate.unsqueeze(1).expand_as(history)
        weights = self.unit(torch.cat([history, c, history - c, history * c], -1)).squeeze(-1)
        weights = weights if history_mask is None else weights.masked_fill(~history_mask, 0.0)
        return torch.einsum("bl,bld->bd", weights, history)


def test_a_vector_may_ask_a_history_of_the_width_that_is_the_default():
    convention = asked(Candidate())
    assert (convention.layout, convention.d_in, convention.d_out, convention.pooled) == ("batch-first", 12, 12, True)
    assert convention.key_mask is not None
    assert convention.key_mask.obeyed


class Film(nn.Module):
    """Attention over frames, and over patches of each."""

    def __init__(self, frames=16, side=16):
        super().__init__()
        self.patch, self.places = nn.Linear(3 * 64, WIDTH), nn.Parameter(torch.randn(frames, (side // 8) ** 2, WIDTH))
        self.space, self.time = (nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        b, t, c, h, w = x.shape
        x = x.view(b, t, c, h // 8, 8, w // 8, 8).permute(0, 1, 3, 5, 2, 4, 6).reshape(b, t, -1, 64 * c)
        x = (self.patch(x) + self.places).flatten(0, 1)
        x = self.space(x, x, x)[0].mean(1).unflatten(0, (b, t))
        return self.time(x, x, x)[0].mean(1)


class Tubes(nn.Module):
    """Attention over tubes of a film with its channels first."""

    def __init__(self):
        super().__init__()
        self.tubes, self.attention = (
            nn.Conv3d(3, WIDTH, (2, 8, 8), (2, 8, 8)),
            nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        )

    def forward(self, x):
        x = self.tubes(x).flatten(2).mT
        return self.attention(x, x, x)[0].mean(1)


class Rearrange(nn.Module):
    """Pieces of frames, as the layer of a library makes them by words."""

    def __init__(self, words, side):
        super().__init__()
        self.words, self.side = words, side

    def forward(self, x):
        b, t, c, h, w = x.shape
        pieces = x.view(b, t, c, h // self.side, self.side, w // self.side, self.side).permute(0, 1, 3, 5, 4, 6, 2)
        return pieces.reshape(b, t, -1, self.side**2 * c)


class Rearranged(Film):
    """A film that a part takes apart."""

    def __init__(self):
        super().__init__(6)
        self.pieces = Rearrange("b t c (h a) (w d) -> b t (h w) (a d c)", 8)

    def forward(self, x):
        x = (self.patch(self.pieces(x)) + self.places).flatten(0, 1)
        x = self.space(x, x, x)[0].mean(1).unflatten(0, (-1, 6))
        return self.time(x, x, x)[0].mean(1)


@pytest.mark.parametrize(
    ("module", "layout"),
    [
        (Film(), "film of 16 frames"),
        (Tubes(), "film of 8 frames, channels first"),
        (Rearranged(), "film of 6 frames"),
    ],
)
def test_films_are_given_as_code_takes_them_apart(module, layout):
    convention = asked(module)
    assert (convention.layout, convention.d_in, convention.pooled) == (layout, 3, True)
    film = laid_out(torch.randn(2, convention.length, 3), layout)
    assert film.dim() == 5
    back = LAYOUTS[layout].batch_first(film)
    assert torch.equal(laid_out(back, layout), film)


def test_a_film_has_frames_of_one_size():
    with pytest.raises(ModuleError, match="13 positions are no 6 frames of one size"):
        laid_out(torch.randn(2, 13, 3), "film of 6 frames")


class StateAsksLast(nn.Module):
    """(batch, length, width) is asked by a state of one layer, (1, batch, width)."""

    def __init__(self):
        super().__init__()
        self.key, self.query = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h_enc, h_dec):
        weights = (self.key(h_enc) @ self.query(h_dec).permute(1, 2, 0)).softmax(1)
        return (h_enc.mT @ weights).mT


def test_a_state_with_the_number_of_layers_in_front_asks():
    given = {one.parameter: one.source for one in asked(StateAsksLast()).arguments}
    assert given == {"h_enc": "x", "h_dec": "state"}


@pytest.mark.parametrize("layout", ["batch-first", "sequence-first"])
def test_vectors_of_pairs_are_the_same_at_every_length_and_lie_as_the_input_does(layout):
    short, long = (
        SOURCES["vectors of pairs"](Situation(torch.zeros(2, n, 4), layout, torch.float64), 4) for n in (3, 5)
    )
    first = layout == "sequence-first"
    assert long.shape == ((5, 5, 2, 4) if first else (2, 5, 5, 4))
    assert torch.equal(short, long[:3, :3] if first else long[:, :3, :3])
    assert len(torch.unique(long)) == 5 * 5 * 4


class Ranked(nn.Module):
    """Scores of chosen and of other items after a history; both may be left out by their defaults alone."""

    def __init__(self):
        super().__init__()
        self.items, self.mix = nn.Embedding(17, WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, history, neg_item=None, pos_item=None, weights=None, real=None):
        seen = self.items(history)
        seen = self.mix(seen, seen, seen, key_padding_mask=real)[0][:, -1:]
        scores = (seen @ self.items(torch.cat([pos_item, neg_item], -1)).mT).squeeze(1)
        return scores if weights is None else scores * weights


def test_what_is_computed_with_in_every_call_is_given_though_it_may_be_none_and_pos_beside_neg_is_positive():
    module = Ranked()
    roles = {one.name: (one.role, one.required) for one in roles_of(module)}
    assert (roles["pos_item"], roles["neg_item"]) == (("open", True), ("open", True))
    assert not roles["weights"][1]
    assert asked(module).pooled


class TwoMasks(nn.Module):
    """Translates tokens; both masks must be there, (batch, length)."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(17, WIDTH)
        self.own, self.cross = (nn.MultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(2))

    def forward(self, src_input_ids, src_attention_mask, tgt_input_ids, tgt_attention_mask):
        assert src_attention_mask.dtype == torch.bool
        assert tgt_attention_mask.dtype == torch.bool
        memory, x = self.words(src_input_ids), self.words(tgt_input_ids)
        x = x + self.own(x, x, x, key_padding_mask=~tgt_attention_mask)[0]
        return self.cross(x, memory, memory, key_padding_mask=~src_attention_mask)[0]


def test_a_mask_over_a_memory_of_tokens_that_must_be_given_is_over_the_memory():
    convention = asked(TwoMasks())
    given = {one.parameter: one.source for one in convention.arguments}
    assert given == {
        "src_input_ids": "memory tokens",
        "src_attention_mask": "all of the memory",
        "tgt_input_ids": "x",
    }
    assert [mask.parameter for mask in convention.masks] == ["tgt_attention_mask"]
    assert convention.over_memory.key_mask.keeps


class TiedRows(nn.Module):
    """Attention between columns, the same for all rows of a sample."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        num_rows, num_cols, batch_size, dim = x.size()
        q, k, v = self.qkv(x).view(num_rows, num_cols, batch_size, 3, dim).unbind(3)
        scores = torch.einsum("rind,rjnd->nij", q, k) / (num_rows * dim) ** 0.5
        return torch.einsum("nij,rjnd->rind", scores.softmax(-1), v)


def test_names_of_axes_may_say_that_rows_and_columns_come_before_the_batch():
    convention = asked(TiedRows())
    assert (convention.layout, convention.layout_by) == ("image, batch third", "names of axes")
    exam = Examination(Patient("it", TiedRows(), None, {}, "", ""), convention)
    assert not list(check_batch_independence(exam))


class TwoAxesOfLengths(nn.Module):
    """Means over what is real of each sample, whose lengths come as (batch, 1)."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, lengths):
        (batch, one), length = lengths.shape, x.size(1)
        if one != 1:
            raise ValueError(f"lengths must be (batch, 1), not ({batch}, {one})")
        real = torch.arange(length) < lengths
        return self.map(x) + (x * real[..., None]).sum(1, keepdim=True) / lengths[..., None]


def test_lengths_may_have_an_axis_of_one():
    mask = asked(TwoAxesOfLengths()).key_mask
    assert mask is not None
    assert (mask.parameter, mask.shape, mask.obeyed) == ("lengths", "(batch, 1)", True)


class BothBlock(nn.Module):
    """Two sequences that look at each other, what is blocked of either being zero; the other way round all is."""

    def forward(self, first, first_mask, second, second_mask):
        scores = first @ second.mT / WIDTH**0.5
        seen = scores.masked_fill(second_mask[:, None], float("-inf")).softmax(-1) @ second
        return (first + seen).masked_fill(first_mask[..., None], 0.0)


def test_of_masks_that_are_always_given_none_hides_all():
    convention = asked(BothBlock())
    assert {mask.parameter: mask.keeps for mask in convention.masks} == {"first_mask": False, "second_mask": False}


class OfColumns(nn.Module):
    """Attention over the columns of a table, each of which has a vector that its number is multiplied with."""

    def __init__(self):
        super().__init__()
        self.columns = nn.Parameter(torch.randn(20, WIDTH))
        self.attend, self.out = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True), nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.out(self.attend(x[:, :, None] * self.columns).mean(1))


def test_rows_of_a_table_are_samples_and_its_columns_positions():
    convention = asked(OfColumns())
    assert (convention.length, convention.pooled, convention.layout) == (20, True, "batch-first")
    assert "one number per position" in convention.assumptions["called as"]


class Diagonal(nn.Module):
    """A layer of one sequence, (length, d_model), whose mask leaves each position itself."""

    def __init__(self, d_model=WIDTH):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        others = ~torch.eye(len(x), dtype=torch.bool)
        return (self.q(x) @ self.k(x).T).masked_fill(others, -torch.inf).softmax(-1) @ self.v(x)


def test_a_layer_whose_positions_do_not_see_each_other_is_no_table():
    assert asked(Diagonal()).layout == "unbatched"


class OfSpectrograms(nn.Module):
    """Attention over a spectrogram, (batch, mel, time), whose bands no layer counts."""

    def __init__(self, n_mels=20):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, stride=2, padding=1)
        self.map = nn.Linear(3 * n_mels // 2, WIDTH)
        self.attend = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True)

    def forward(self, x):
        return self.attend(self.map(self.conv(x[:, None]).permute(0, 3, 1, 2).flatten(2)))


def test_a_spectrogram_is_as_wide_as_its_constructor_says():
    convention = asked(OfSpectrograms())
    assert (convention.d_in, convention.layout, convention.slots) == (20, "channels-first", 6)


class OfPairs(nn.Module):
    """Edges as wide as the input between all positions."""

    def __init__(self):
        super().__init__()
        self.value, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x, edges):
        batch, length, _ = x.shape
        _, other, another, _ = edges.shape
        weights = self.gate(edges).view(batch, length, other).softmax(-1)[:, :another]
        return weights @ self.value(x)


def test_vectors_of_so_many_pairs_that_they_take_long_are_not_made(monkeypatch):
    assert "vectors of pairs" in [one.source for one in asked(OfPairs()).arguments]
    monkeypatch.setattr(adapting, "_MOST_OF_PAIRS", WIDTH)
    with pytest.raises(ModuleError, match="edges"):
        asked(OfPairs())


class ToldItsMode(nn.Module):
    """Is told whether it is trained, as its parts are not asked."""

    def __init__(self):
        super().__init__()
        self.map, self.told = nn.Linear(WIDTH, WIDTH), []

    def forward(self, x, training):
        self.told.append(training)
        return self.map(nn.functional.dropout(x, 0.5, training))


def test_what_asks_for_its_mode_is_told_it():
    convention, module = asked(ToldItsMode()), ToldItsMode()
    assert "training=whether it is in training mode" in convention.assumptions["called as"]
    for training in (True, False):
        convention.call(module.train(training), torch.randn(3, 5, WIDTH))
    assert module.told == [True, False]


class ToldPerhaps(ToldItsMode):
    def forward(self, x, mask=None, training=False):
        return super().forward(x, training)


class DrawsAlways(ToldItsMode):
    def forward(self, x, training=True):
        return super().forward(x, training)


def test_what_may_be_told_its_mode_is_told_it_unless_it_draws_in_evaluation_too():
    for kind, told in ((ToldPerhaps, [True, False]), (DrawsAlways, [True, True])):
        convention, module = asked(kind()), kind()
        for training in (True, False):
            convention.call(module.train(training), torch.randn(3, 5, WIDTH))
        assert module.told == told


class OfSquares(nn.Module):
    """Attention of three sequences in a list, each of which is a square for its convolution."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(3))

    def square(self, x, number):
        batch, length, _ = x.shape
        side = math.isqrt(length)
        return self.maps[number](x.mT.reshape(batch, WIDTH, side, length // side)).flatten(2).mT

    def forward(self, x):
        q, k, v = (self.square(one, number) for number, one in enumerate((x[0], x[1], x[2])))
        return (q @ k.mT / WIDTH**0.5).softmax(-1) @ v


def test_what_is_taken_apart_is_no_image_though_it_holds_convolutions():
    convention = asked(OfSquares())
    assert convention.assumptions["called as"] == "forward(x=a tuple with the input in every place)"
    assert convention.layout == "batch-first"


class MaskedState(nn.Module):
    """A state asks what is real of a sequence; it cannot do without a mask."""

    def __init__(self):
        super().__init__()
        self.ask, self.key = nn.Linear(STATE, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, encoder_outputs, mask):
        scores = (self.key(encoder_outputs) @ self.ask(hidden).unsqueeze(2)).squeeze(2)
        weights = scores.masked_fill(mask == 0, -1e4).softmax(1)
        return torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1), weights


class Interest(MaskedState):
    """What of a history is of interest.

    candidate: (batch, dim), facts: (batch, items, dim), mask: (batch, items)
    """

    def forward(self, candidate, facts, mask):
        assert candidate.dim() == 2
        assert facts.dim() == 3
        return super().forward(candidate, facts, mask)[0]


@pytest.mark.parametrize(("kind", "names"), [(MaskedState, ("hidden", "encoder_outputs")), (Interest, ())])
def test_a_vector_asks_a_sequence_of_which_a_required_mask_hides_some(kind, names):
    convention = asked(kind())
    vector, sequence = names or ("candidate", "facts")
    given = {one.parameter: one.source for one in convention.arguments}
    assert given == {vector: "vector", sequence: "x"}
    assert (convention.pooled, convention.d_out) == (True, WIDTH)
    assert convention.key_mask is not None
    assert convention.key_mask.obeyed
