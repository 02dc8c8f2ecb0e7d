"""Positions: without effect, the same for all tokens, along the batch, or wrongly relative; none at all is right."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import HEADS, VOCAB, D, examine
from torch import nn

from attnlab.doctor.examination import Examination
from attnlab.doctor.influence.position_claims import claims_of, names_position
from attnlab.doctor.influence.positions import check_positions
from attnlab.strangers.calling.sources import HANDED_ON, Argument, Kept

HALF = D // HEADS // 2


def rotated(x, angles, sign=1.0):
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - sign * b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class Scored(nn.Module):
    """Attention whose q, k, v and scores a function may change."""

    def __init__(self, change=None, causal=False):
        super().__init__()
        torch.manual_seed(17)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.change, self.causal = change or (lambda q, k, v, at: (q, k, v, 0.0)), causal

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)  # (batch, heads, length, d_head)
        at = torch.arange(x.size(1), dtype=x.dtype)
        q, k, v, bias = self.change(q, k, v, at)
        scores = q @ k.mT / math.sqrt(q.size(-1)) + bias
        if self.causal:
            scores = scores.masked_fill(torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class RotaryAttention(Scored):
    pass


class AlibiAttention(Scored):
    pass


class RelativeAttention(Scored):
    """Attention with a relative position bias."""


def turn(at):
    return at[:, None] * 100.0 ** (-torch.arange(HALF, dtype=at.dtype) / HALF)


SLOPES = torch.tensor([0.5, 0.25]).view(HEADS, 1, 1)

RIGHT = {
    "rotary": (RotaryAttention, lambda q, k, v, at: (rotated(q, turn(at)), rotated(k, turn(at)), v, 0.0)),
    "ALiBi": (AlibiAttention, lambda q, k, v, at: (q, k, v, -SLOPES * (at[:, None] - at).abs())),
    "ALiBi by key": (AlibiAttention, lambda q, k, v, at: (q, k, v, SLOPES * at)),
    "relative": (RelativeAttention, lambda q, k, v, at: (q, k, v, torch.sin((at[:, None] - at) * SLOPES))),
    "relative to content": (
        RelativeAttention,  # what the table multiplies vanishes where all tokens are equal
        lambda q, k, v, at: (
            q,
            k,
            v,
            torch.sin(at[:, None] - at) * (v.norm(dim=-1)[..., None] - v.norm(dim=-1)[:, :, None]),
        ),
    ),
    "none": (Scored, None),
}
WRONG = {
    "only q": (RotaryAttention, lambda q, k, v, at: (rotated(q, turn(at)), k, v, 0.0), "q is rotated, k is not"),
    "only k": (RotaryAttention, lambda q, k, v, at: (q, rotated(k, turn(at)), v, 0.0), "k is rotated, q is not"),
    "values": (
        RotaryAttention,
        lambda q, k, v, at: (rotated(q, turn(at)), rotated(k, turn(at)), rotated(v, turn(at)), 0.0),
        "applied to the values too",
    ),
    "sign": (
        RotaryAttention,
        lambda q, k, v, at: (rotated(q, turn(at), -1.0), rotated(k, turn(at), -1.0), v, 0.0),
        "does not make scores depend on the distance",
    ),
    "against": (
        RotaryAttention,
        lambda q, k, v, at: (rotated(q, turn(at)), rotated(k, turn(-at)), v, 0.0),
        "does not make scores depend on the distance",
    ),
    "one angle": (
        RotaryAttention,
        lambda q, k, v, at: (rotated(q, turn(at * 0 + 1)), rotated(k, turn(at * 0 + 1)), v, 0.0),
        "the same for every token",
    ),
    "claimed only": (RotaryAttention, None, "the same for every token"),
    "far": (AlibiAttention, lambda q, k, v, at: (q, k, v, SLOPES * (at[:, None] - at).abs()), "wrong sign"),
    "by query": (AlibiAttention, lambda q, k, v, at: (q, k, v, SLOPES * at[:, None]), "the same for every token"),
    "sum": (
        RelativeAttention,
        lambda q, k, v, at: (q, k, v, torch.sin(at[:, None] * at)),
        "no function of the distance",
    ),
}


def found(module, causal=False, **convention):
    means = "always" if causal else "nothing"
    return list(check_positions(examine(module, causal=causal, causal_means=means, **convention)))


def errors(module, **convention):
    return [finding.message for finding in found(module, **convention) if finding.severity == "error"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right_positions_in_scores_pass(name, causal):
    kind, change = RIGHT[name]
    (finding,) = found(kind(change, causal), causal=causal)
    assert finding.severity == "info"
    assert ("invisible" in finding.message) == (name == "none")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_positions_in_scores_are_errors(name, causal):
    kind, change, words = WRONG[name]
    (message,) = errors(kind(change, causal), causal=causal)
    assert words in message


class RelativeWindows(nn.Module):
    """Two windows of 3 by 3 with a relative position bias, of which the second is masked in parts, as after a shift."""

    def __init__(self, mask, of_distance=True):
        super().__init__()
        torch.manual_seed(23)
        self.qkv, self.out, self.table = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Parameter(torch.randn(25, HEADS))
        place = torch.arange(9)
        row, column = (one[:, None] - one + 2 for one in (place // 3, place % 3))
        self.index = 5 * row + column if of_distance else (7 * place[:, None] + 3 * place) % 25
        apart = (place[:, None] < 3) != (place < 3)
        self.hidden = torch.stack([torch.zeros(9, 9), torch.where(apart, torch.full((9, 9), mask), 0.0)])

    def forward(self, x):
        q, k, v = self.qkv(x.view(-1, 9, D)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        scores = q @ k.mT / math.sqrt(q.size(-1)) + self.table[self.index].permute(2, 0, 1)
        scores = (scores.unflatten(0, (-1, 2)) + self.hidden[:, None]).flatten(0, 1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


@pytest.mark.parametrize("of_distance", [True, False])
@pytest.mark.parametrize("mask", [-math.inf, -100.0])
def test_a_bias_of_windows_may_depend_on_the_distance_in_a_plane_beside_a_mask(mask, of_distance):
    messages = errors(RelativeWindows(mask, of_distance), length=18)
    assert [text for text in messages if "no function of the distance" in text] == messages
    assert bool(messages) is not of_distance


def test_a_causal_mask_leaks_position_and_that_is_said():
    (finding,) = found(Scored(causal=True), causal=True)
    assert "but for the causal mask, which leaks it" in finding.message


class Model(nn.Module):
    def __init__(self, add, causal=False):
        super().__init__()
        torch.manual_seed(19)
        self.embed, self.head = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)
        self.pos_emb = nn.Embedding(64, D)
        self.first, self.second, self.add = Scored(causal=causal), Scored(causal=causal), add

    def forward(self, tokens):
        x = self.add(self, tokens, self.embed(tokens))
        x = x + self.first(x)
        return self.head(x + self.second(x))


TOKENS = {"kind": "model", "takes": "tokens", "d_in": 0, "d_out": VOCAB, "vocab_size": VOCAB}
TABLES = {
    "right": (lambda m, t, x: x + m.pos_emb(torch.arange(t.size(1))), None),
    "along the batch": (lambda m, t, x: x + m.pos_emb(torch.arange(t.size(0)))[:, None], "laid along the batch"),
    "first row": (lambda m, t, x: x + m.pos_emb(torch.zeros(t.size(1), dtype=torch.long)), "the same for every token"),
    "by token": (lambda m, t, x: x + m.pos_emb(t), "the same for every token"),
    "thrown away": (lambda m, t, x: (m.pos_emb(t), x)[1], "have no effect"),
    "never": (lambda m, t, x: x, "have no effect"),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", TABLES)
def test_tables(name, causal):
    add, words = TABLES[name]
    messages = errors(Model(add, causal), causal=causal, **TOKENS)
    assert len(messages) == (words is not None)
    assert all(words in message for message in messages)


class ReadsNothing(nn.Module):
    """The answer is that of a vector before the input, which sees itself alone."""

    def __init__(self, sees):
        super().__init__()
        torch.manual_seed(19)
        self.first, self.pos = nn.Parameter(torch.randn(1, 1, D)), nn.Parameter(torch.randn(1, 64, D))
        self.attention, self.sees = Scored(causal=not sees), sees

    def forward(self, x):
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        return self.attention(x + self.pos[:, : x.shape[1]])[:, 0]


def test_where_nothing_of_the_input_is_seen_nothing_is_said_of_positions():
    assert found(ReadsNothing(sees=False), pooled=True) == []
    (finding,) = found(ReadsNothing(sees=True), pooled=True)
    assert finding.severity == "info"


class Buffered(nn.Module):
    def __init__(self, use=True):
        super().__init__()
        self.register_buffer("pe", torch.randn(64, D))
        self.attention, self.use = Scored(), use

    def forward(self, x):
        return self.attention(x + self.pe[: x.size(1)].to(x) if self.use else x)


class ForgetsBuffer(Buffered):
    def forward(self, x):
        return self.attention(x)


def test_a_buffer_that_is_never_added():
    assert errors(Buffered()) == []
    assert errors(Buffered(use=False)) == []  # as it is set
    assert "positions are built in 'pe', but have no effect" in errors(ForgetsBuffer())[0]


class PositionwiseFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos_ffn = nn.Linear(D, D)

    def forward(self, x):
        return self.pos_ffn(x)


def test_position_wise_is_no_position():
    assert not claims_of(examine(PositionwiseFeedForward())).any
    assert names_position("encoder.pos_embed.weight")
    assert not names_position("layers.0.position_wise_ffn.weight")
    assert not names_position("decomposed")


class Denied(Scored):
    """Attention; positional encodings are expected to be added by the caller."""


def test_positions_of_the_caller_are_no_claim():
    assert errors(Denied()) == []


def test_order_that_a_mask_shows_is_told_as_far_as_it_was_measured():
    class Near(Scored):
        """Causal attention over the last three positions."""

        def forward(self, x):
            at = torch.arange(x.size(1))
            near = (at[:, None] >= at) & (at[:, None] < at + 3)
            return self.out(nn.functional.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), attn_mask=near))

    (full,) = check_positions(examine(Scored(causal=True), causal=True))
    (near,) = check_positions(examine(Near(), causal=True))
    assert "invisible to it but for the causal mask" in full.message
    assert "invisible" not in near.message
    assert "a part of what came before" in near.message


def test_angles_that_a_larger_module_hands_on_may_follow_from_the_tokens():
    class RotaryTold(RotaryAttention):
        def forward(self, x, told):
            return super().forward(x)

    module = RotaryTold(lambda q, k, v, at: (rotated(q, turn(at**2)), rotated(k, turn(at**2)), v, 0.0))
    nothing = {"constant": None, HANDED_ON: Kept(None, torch.zeros(1), 1)}
    for source, errors in (("constant", 1), (HANDED_ON, 0)):
        given = (Argument("x", "x", by_name=False), Argument("told", source, value=nothing[source]))
        exam = examine(module)
        exam = Examination(exam.patient, replace(exam.convention, arguments=given))
        assert sum(one.severity == "error" for one in check_positions(exam)) == errors


class OnDemand(Scored):
    """Attention with relative positions."""

    def __init__(self, max_distance=None):
        def moved(q, k, v, at):
            return q, k, v, 0.0 if max_distance is None else -(at[:, None] - at).abs()

        super().__init__(moved)


@pytest.mark.parametrize("build", [lambda changes: OnDemand(**changes), None])
def test_positions_that_come_with_an_argument_alone_are_not_missed_without(build):
    (finding,) = check_positions(examine(OnDemand(), build=build))
    assert finding.severity == "error"
    assert finding.accepted is (build is not None)


class DynamicBias(Scored):
    """A bias of relative positions from a small network, whose own last bias cancels in the softmax."""

    def __init__(self):
        super().__init__(self.add)
        self.position_bias = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, HEADS))

    def add(self, q, k, v, at):
        return q, k, v, self.position_bias((at[:, None] - at)[..., None]).movedim(-1, 0)


def test_a_bias_that_cancels_in_the_softmax_is_no_position_without_effect():
    assert [one.severity for one in check_positions(examine(DynamicBias()))] == ["info"]


def test_positions_that_are_asked_for_and_given_as_nothing_are_not_missed():
    class RotaryGiven(RotaryAttention):
        def forward(self, x, pos_emb):
            return super().forward(x)

    given = (Argument("x", "x", by_name=False), Argument("pos_emb", "constant", value=0))
    exam = examine(RotaryGiven())
    exam = Examination(exam.patient, replace(exam.convention, arguments=given))
    assert [one.severity for one in check_positions(exam)] == ["info"]


class RotaryLeftOut(Scored):
    """Attention with rotary positions, where they are given."""

    def __init__(self, rotary_embed=None):
        super().__init__()


def test_positions_that_a_constructor_asks_for_and_does_not_get_are_not_missed():
    assert [one.severity for one in check_positions(examine(RotaryLeftOut()))] == ["info"]
    given = check_positions(examine(RotaryLeftOut(), arguments={"rotary_embed": nn.Identity()}))
    assert [one.severity for one in given] == ["error"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("behind", [False, True])
def test_positions_that_come_behind_the_attention_are_told(behind, causal):
    class Placed(Scored):
        def forward(self, x):
            at = torch.arange(x.size(1), dtype=x.dtype)[:, None].sin()
            return super().forward(x) + at if behind else super().forward(x + at)

    (finding,) = found(Placed(causal=causal), causal=causal)
    assert (finding.severity == "warning") == behind
    assert ("come behind its attention" in finding.message) == behind


class Local(Scored):
    """Attention, and a convolution over neighbors behind it."""

    def __init__(self, width=3):
        super().__init__()
        self.neighbors = nn.Conv1d(D, D, width, padding=width // 2)

    def forward(self, x):
        return self.neighbors(super().forward(x).mT).mT


class PlacesBehind(Local):
    """Attention, and a map and places behind it."""

    def __init__(self):
        super().__init__(width=1)
        self.places = nn.Parameter(torch.randn(100, D))

    def forward(self, x):
        return super().forward(x) + self.places[: x.shape[1]]


def test_a_convolution_behind_the_attention_of_a_part_of_a_model_is_no_way_to_tell_positions():
    assert [one.severity for one in found(Local(), kind="block")] == ["info"]
    for module, kind in ((Local(), "model"), (PlacesBehind(), "block")):
        (finding,) = found(module, kind=kind)
        assert "come behind its attention" in finding.message


class ComplexRotaryAttention(Scored):
    """Rotary attention with a table of complex numbers as a buffer."""

    def __init__(self):
        super().__init__(lambda q, k, v, at: (self.turned(q), self.turned(k), v, 0.0))
        angles = torch.arange(32.0)[:, None] * 10 ** -torch.arange(HALF)
        self.register_buffer("rope", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.rope[: x.size(-2)]).flatten(-2)


def test_a_table_of_complex_numbers_keeps_both_parts():
    assert not [
        finding for finding in check_positions(examine(ComplexRotaryAttention())) if finding.severity == "error"
    ]


@pytest.mark.parametrize("right", [True, False])
def test_a_bias_may_tell_how_far_apart_positions_of_a_volume_are(right):
    def change(q, k, v, at):
        place = at.long()
        axes = (place // 4, place // 2 % 2, place % 2)  # of 3 x 2 x 2 positions
        bias = sum(
            torch.randn(5, generator=torch.Generator().manual_seed(7 + i))[x[:, None] - x + 2]
            for i, x in enumerate(axes)
        )
        return q, k, v, bias if right else bias + torch.randn(12, 12, generator=torch.Generator().manual_seed(1))

    findings = found(RelativeAttention(change), length=12, any_length=False)
    assert any(each.severity == "error" for each in findings) is not right


class Patched(nn.Module):
    """Pieces of an image and a token for the class, with as many positions as are asked for."""

    def __init__(self, rows):
        super().__init__()
        torch.manual_seed(23)
        self.patches, self.attend = nn.Conv2d(D, D, 2, 2), Scored()
        self.cls, self.pos_embed = nn.Parameter(torch.randn(1, 1, D)), nn.Parameter(torch.randn(1, rows, D))

    def forward(self, x):
        x = self.patches(x).flatten(2).mT
        return self.attend(torch.cat([self.cls.expand(x.size(0), -1, -1), x], 1) + self.pos_embed)[:, 0]


@pytest.mark.parametrize("rows", [1, 10])
def test_positions_tell_pieces_of_an_image_apart(rows):
    messages = errors(Patched(rows), layout="image", length=36, pooled=True)
    assert messages == (
        ["the positions (pos_embed) are the same for every token: order stays invisible."] * (rows == 1)
    )


class Behind(nn.Module):
    """Pieces of an image whose places come behind the attention, by a table, or by a convolution of what is read."""

    def __init__(self, convolved):
        super().__init__()
        torch.manual_seed(24)
        self.patches, self.attend, self.read = nn.Conv2d(D, D, 2, 2), Scored(), nn.Linear(9 * D, D)
        self.pos = nn.Conv2d(D, D, 3, padding=1, groups=D) if convolved else nn.Parameter(torch.randn(9, D))

    def forward(self, x):
        x = self.attend(self.patches(x).flatten(2).mT)
        placed = x + (self.pos(x.mT.unflatten(2, (3, 3))).flatten(2).mT if callable(self.pos) else self.pos)
        return self.read(placed.relu().flatten(1))


@pytest.mark.parametrize("convolved", [False, True])
def test_pieces_of_an_image_may_get_their_places_behind_the_attention(convolved):
    assert not errors(Behind(convolved), layout="image", length=36, pooled=True)


@pytest.mark.parametrize(("learned", "wrong"), [(True, False), (False, True)])
def test_equal_rows_of_positions_are_one_vector_unless_they_are_learned(learned, wrong):
    module = Patched(10)
    rows = torch.ones(1, 10, D)
    del module.pos_embed
    module.register_parameter("pos_embed", nn.Parameter(rows)) if learned else module.register_buffer("pos_embed", rows)
    assert bool(errors(module, layout="image", length=36, pooled=True)) is wrong


class OfWindow(nn.Module):
    """Attention within a window of 3 x 3, with a bias for each distance in its plane."""

    def __init__(self, stride, rows=25):
        super().__init__()
        self.maps, self.table = nn.Linear(D, 3 * D), nn.Parameter(torch.randn(rows, 1))
        places = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")).flatten(1)
        down, right = places[:, :, None] - places[:, None] + 2
        self.register_buffer("row", down * stride + right)

    def forward(self, x):
        query, key, value = self.maps(x).chunk(3, -1)
        bias = self.table[self.row.flatten()].view(9, 9)
        return (query @ key.mT / D**0.5 + bias).softmax(-1) @ value


@pytest.mark.parametrize(("stride", "rows", "told"), [(5, 25, []), (1, 25, ["error"]), (1, 30, []), (1, 17, [])])
def test_distances_in_a_plane_that_share_a_row_are_found(stride, rows, told):
    findings = check_positions(examine(OfWindow(stride, rows), length=9, any_length=False, longest=9))
    found = [one for one in findings if "are read for no pair" in one.message]
    assert [one.severity for one in found] == told
    assert all(f"81 pairs read 9 of its {rows} rows" in one.evidence for one in found)


def test_rows_that_longer_inputs_would_read_are_none_that_nothing_reads():
    found = check_positions(examine(OfWindow(1), length=9, any_length=True))
    assert not [one for one in found if "are read for no pair" in one.message]
