"""Heads split or merged by a view alone are errors; other layouts, shifts and permutations are not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import D, examine
from tests.doctor.little import Base, causal, examined
from torch import nn
from torch.nn import functional as F

from attnlab.doctor.checks.scale import check_scale
from attnlab.doctor.influence.heads import check_heads_mixed
from attnlab.doctor.influence.positions import check_positions
from attnlab.strangers.calling.sources import Argument


class ViewedAlone(Base):
    def split(self, x):
        return x.view(x.shape[0], self.h, x.shape[1], self.d)

    split_q = split_k = split_v = split


class ValuesViewed(Base):
    def split_v(self, x):
        return x.view(x.shape[0], self.h, x.shape[1], self.d)


class KeysTurned(Base):
    def scores(self, q, k):
        return q @ k.reshape(k.shape[0], self.h, self.d, -1) / self.d**0.5


class FeaturesFirst(Base):
    def split(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], self.h, x.shape[1], self.d)

    split_q = split_k = split_v = split


class MergedByView(Base):
    def merge(self, out):
        return out.reshape(out.shape[0], out.shape[2], -1)


class MergedTurned(Base):
    def merge(self, out):
        return out.permute(0, 3, 1, 2).reshape(out.shape[0], out.shape[2], -1)


class MergedByViewCausal(MergedByView):
    def weights(self, scores):
        return scores.masked_fill(causal(scores), float("-inf")).softmax(-1)


class OverHeads(Base):
    def split(self, x):
        return x.unflatten(-1, (self.h, self.d))

    split_q = split_k = split_v = split

    def merge(self, out):
        return out.flatten(2)


class SequenceFirstView(Base):
    """Written for (length, batch, d_model) and given (batch, length, d_model)."""

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part(x).view(length, batch * self.h, self.d).transpose(0, 1) for part in (self.q, self.k, self.v))
        out = (q @ k.mT / self.d**0.5).softmax(-1) @ v
        return self.o(out.transpose(0, 1).reshape(batch, length, -1))


class OtherFold(Base):
    """Queries are folded (heads, batch), keys and values (batch, heads)."""

    def forward(self, x):
        q = self.split(self.q(x)).transpose(0, 1).flatten(0, 1)
        k, v = self.split(self.k(x)).flatten(0, 1), self.split(self.v(x)).flatten(0, 1)
        out = (q @ k.mT / self.d**0.5).softmax(-1) @ v
        return self.o(self.merge(out.view(x.shape[0], self.h, -1, self.d)))


class MergedSamples(Base):
    """Unfolded in another order than folded."""

    def forward(self, x):
        q, k, v = (self.split(part(x)).flatten(0, 1) for part in (self.q, self.k, self.v))
        out = (q @ k.mT / self.d**0.5).softmax(-1) @ v
        return self.o(self.merge(out.view(self.h, x.shape[0], -1, self.d).transpose(0, 1)))


class MergedForConvolution(Base):
    """(batch, length, d_model) is viewed, not transposed, as channels first."""

    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.last = nn.Conv1d(d_model, d_model, 1)

    def merge(self, out):
        merged = super().merge(out)
        return self.last(merged.reshape(merged.shape[0], merged.shape[2], merged.shape[1])).mT


class OrderedForConvolution(MergedForConvolution):
    """Right: channels first by a transpose."""

    def merge(self, out):
        return self.last(Base.merge(self, out).mT).mT


BROKEN = {
    ViewedAlone: "Splitting the heads scrambles keys and queries and values",
    ValuesViewed: "Splitting the heads scrambles values:",
    KeysTurned: "Splitting the heads scrambles keys:",
    FeaturesFirst: "Splitting the heads scrambles keys and queries and values",
    MergedByView: "Merging the heads scrambles positions",
    MergedTurned: "Merging the heads scrambles positions",
    MergedByViewCausal: "Merging the heads scrambles positions",
    OverHeads: "over the heads of each position",
    SequenceFirstView: "Heads hold pieces of several samples",
    OtherFold: "Splitting the heads scrambles queries",
    MergedForConvolution: "Merging the heads scrambles positions",
    MergedSamples: "Merging the heads scrambles",
}


@pytest.mark.parametrize("n_heads", [2, 4])
@pytest.mark.parametrize("written", BROKEN)
def test_scrambled_heads_are_one_error_that_says_where(written, n_heads):
    (found,) = check_heads_mixed(examined(written, sizes={"d_model": 48, "n_heads": n_heads}))
    assert (found.check, found.severity) == ("heads-mixed", "error")
    assert BROKEN[written] in found.message
    assert "transpose" in found.remedy
    assert found.evidence


class KeysNotTransposed(nn.Module):
    """Attention of one head; as long as it is wide, it runs."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        return (self.q(x) @ self.k(x) / D**0.5).softmax(-1) @ self.v(x)


def test_keys_that_are_not_transposed_are_no_split_of_heads():
    (found,) = check_heads_mixed(examine(KeysNotTransposed(), length=D, any_length=False))
    assert found.severity == "error"
    assert "keys that are not transposed" in found.message


class OverChannelsOfRows(nn.Module):
    """Attention that is to run over the columns of each row of an image, and runs over the channels of each row."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Conv2d(D, 3 * D, 1)

    def forward(self, x):
        q, k, v = (each.transpose(1, 2) for each in self.qkv(x).chunk(3, 1))  # (batch, height, channels, width)
        return ((q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v).transpose(1, 2)


def test_channels_that_look_at_each_other_in_each_row_are_no_heads():
    (found,) = check_heads_mixed(examine(OverChannelsOfRows(), layout="image", length=36, any_length=False))
    assert (found.severity, found.message.partition(":")[2]) == ("error", " features look at each other.")


class OneHeadViewed(ViewedAlone):
    """With one head a view is right; that is what tests with one head do not see."""


class Interleaved(Base):
    """Head h holds the features h, h + n_heads, ...: a convention like another."""

    def split(self, x):
        return x.unflatten(-1, (self.d, self.h)).permute(0, 3, 1, 2)

    split_q = split_k = split_v = split


class Packed(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.packed = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.packed(x).unflatten(-1, (self.h, 3, self.d)).permute(3, 0, 2, 1, 4)
        return self.o(self.merge(self.scores(q, k).softmax(-1) @ v))


class Folded(Base):
    def forward(self, x):
        q, k, v = (torch.cat(part(x).split(self.d, -1), 0) for part in (self.q, self.k, self.v))
        out = self.scores(q, k).softmax(-1) @ v
        return self.o(torch.cat(out.chunk(self.h, 0), -1))


class Convolved(Base):
    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.near = nn.Conv1d(d_model, d_model, 3, padding=1, groups=d_model)

    def forward(self, x):
        return super().forward(self.near(x.mT).mT.contiguous())


class Shifted(Base):
    """Keys are those of the token before, for half of the features."""

    def split_k(self, x):
        before = F.pad(x, (0, 0, 1, 0))[:, :-1]
        half = x.shape[-1] // 2
        return self.split(torch.cat([before[..., :half], x[..., half:]], -1))


class Rectified(Base):
    def split_q(self, x):
        return self.split(F.relu(x))


class Reversed(Base):
    """Keys and values in reversed order, which changes nothing for attention without positions."""

    def split_k(self, x):
        return self.split(x).flip(2)

    split_v = split_k


class Ranked(Base):
    """The largest queries ask, one after the other, and what comes of them is laid where they stood."""

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        sample, head, _ = (torch.arange(size) for size in q.shape[:3])
        place = (sample[:, None, None], head[:, None], q.norm(dim=-1).argsort(-1, descending=True))
        answers, out = self.weights(self.scores(q[place], k)) @ v, v.cumsum(2)
        out[place] = answers
        return self.o(self.merge(out))


class SummaryKeys(Base):
    """Keys and values are means of neighbours: fewer than positions."""

    def split_k(self, x):
        return self.split(F.avg_pool1d(x.mT, 3, 2).mT.contiguous())

    split_v = split_k


class Global(Base):
    """Every query holds the mean of all positions."""

    def split_q(self, x):
        return self.split(x + x.mean(1, keepdim=True))


class GroupedKeys(Base):
    def split_k(self, x):
        return self.split(x)[:, ::2].repeat_interleave(2, 1)

    split_v = split_k


class DeadOutput(Base):
    def merge(self, out):
        return super().merge(out) * 0


class BatchStatistics(Base):
    """Samples see each other, but nothing is scrambled."""

    def split_q(self, x):
        return self.split(x / x.abs().amax((0, 1), keepdim=True))


class AlwaysDropping(Base):
    def weights(self, scores):
        return F.dropout(scores.softmax(-1), 0.3)


RIGHT = (
    *(Base, Interleaved, Packed, Folded, Convolved, Shifted, Rectified, Reversed, SummaryKeys, Global, GroupedKeys),
    *(Ranked, OrderedForConvolution, DeadOutput, BatchStatistics, AlwaysDropping),
)


@pytest.mark.parametrize("written", RIGHT)
def test_other_layouts_are_no_finding(written):
    assert list(check_heads_mixed(examined(written))) == []


def test_with_one_head_a_view_is_right():
    assert list(check_heads_mixed(examined(OneHeadViewed, sizes={"d_model": 48, "n_heads": 1}))) == []


def test_a_stack_is_judged_layer_by_layer_and_named():
    class Stack(nn.Module):
        def __init__(self, d_model, n_heads):
            super().__init__()
            self.first, self.second = Base(d_model, n_heads), MergedByView(d_model, n_heads)

        def forward(self, x):
            return x + self.second(x + self.first(x))

    (found,) = check_heads_mixed(examined(Stack))
    assert "in 'second'" in found.evidence


def test_a_view_that_one_head_hides_is_found_with_four():
    class OneByDefault(OneHeadViewed):
        def __init__(self, d_model=48, n_heads=1):
            super().__init__(d_model, n_heads)

    (found,) = check_heads_mixed(examined(OneByDefault, sizes={"d_model": 48}))
    assert "Splitting the heads" in found.message


def test_words_do_not_excuse_attention_over_heads():
    exam = examined(OverHeads, text="Attention across heads, at each position by itself.")
    assert [finding.severity for finding in check_heads_mixed(exam)] == ["error"]


class BesideHeads(OverHeads):
    """Pieces of each position look at each other; they are no heads."""

    def __init__(self, d_model=48, n_heads=4):
        super().__init__(d_model, n_heads)
        self.h, self.d = 6, 8


def test_what_looks_at_each_other_within_a_position_is_called_heads_where_there_are_as_many():
    assert not list(check_heads_mixed(examined(BesideHeads, sizes={"d_model": 48, "n_heads": 4})))


class ChannelsFirst(nn.Module):
    """Right attention on (batch, channels, length), as it stands among convolutions."""

    def __init__(self, d_model=48):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv1d(d_model, d_model, 1) for _ in range(3))

    def mix(self, q, k, v):
        return v @ (q.mT @ k / q.shape[1] ** 0.5).softmax(-1).mT

    def forward(self, x):
        return self.mix(self.q(x), self.k(x), self.v(x))


class ScoresOfFeatures(ChannelsFirst):
    def mix(self, q, k, v):
        return (q @ k.mT * q.shape[1] ** -0.5).softmax(2) @ v


class FusedOfFeatures(ChannelsFirst):
    def mix(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class HeadsOfFeatures(ChannelsFirst):
    def mix(self, q, k, v):
        q, k, v = (part.unflatten(1, (4, 12)) for part in (q, k, v))
        return (torch.einsum("bhcl,bhdl->bhcd", q, k) / 12**0.5).softmax(-1).matmul(v).flatten(1, 2)


class RectifiedOfFeatures(ScoresOfFeatures):
    """With a neighbourhood of positions before, as in a convolution network, and half of its entries closed."""

    def __init__(self, d_model=48):
        super().__init__(d_model)
        self.before = nn.Conv1d(d_model, d_model, 3, padding=1)

    def forward(self, x):
        return x + super().forward(self.before(x).relu())


class UnitVectorsOfFeatures(ChannelsFirst):
    def mix(self, q, k, v):
        return (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1) @ v


class ProjectedPositions(ScoresOfFeatures):
    def __init__(self, d_model=48):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(11, 11) for _ in range(3))


def told_channels_first(written, text=""):
    exam = examined(written, sizes={"d_model": 48}, text=text, layout="channels-first")
    return [(one.severity, one.accepted) for one in check_heads_mixed(exam) if "over the features" in one.message]


@pytest.mark.parametrize("written", [ScoresOfFeatures, FusedOfFeatures, HeadsOfFeatures, RectifiedOfFeatures])
def test_attention_over_features_is_an_error_unless_the_class_declares_it(written):
    assert told_channels_first(written) == [("error", False)]
    assert told_channels_first(written, "Self-attention over feature maps (batch, channels, length).") == [
        ("error", False)
    ]
    assert told_channels_first(written, "The attention map is between channels.") == [("error", True)]
    assert told_channels_first(written, "Cross-covariance attention.") == [("error", True)]


class ChannelAttentionBlock(ScoresOfFeatures):
    pass


def test_the_name_of_a_class_may_declare_attention_over_features():
    assert told_channels_first(ChannelAttentionBlock) == [("error", True)]


@pytest.mark.parametrize("written", [UnitVectorsOfFeatures, ProjectedPositions])
def test_attention_over_features_that_may_be_meant_is_a_warning(written):
    assert told_channels_first(written) == [("warning", False)]


def test_attention_over_positions_is_right_where_channels_stand_first():
    exam = examined(ChannelsFirst, sizes={"d_model": 48}, layout="channels-first")
    assert list(check_heads_mixed(exam)) == []


def test_the_order_of_positions_is_invisible_to_attention_over_features():
    exam = examined(ScoresOfFeatures, sizes={"d_model": 48}, layout="channels-first")
    assert ["order is invisible" in one.message for one in check_positions(exam)] == [True]


class Overlapping(nn.Module):
    """Windows of queries that look into the windows beside them too: (batch, length, width)."""

    def forward(self, q, k, v):
        q, k, v = (each.unflatten(1, (3, -1)) for each in (q, k, v))  # (batch, windows, inside, width)
        k, v = (torch.cat([each.roll(by, 1) for by in (1, 0, -1)], 2) for each in (k, v))
        return ((q * q.size(-1) ** -0.5 @ k.mT).softmax(-1) @ v).flatten(1, 2)


def test_windows_that_share_keys_are_neither_scrambled_nor_badly_scaled():
    given = tuple(Argument(name, "x") for name in "qkv")
    exam = examine(Overlapping(), length=12, d_in=64, d_out=64)
    exam = exam.relying_on(replace(exam.convention, arguments=given))
    assert [*check_heads_mixed(exam), *check_scale(exam)] == []


class Chosen(Base):
    """Each head looks at positions of its own choice, of which some come twice and others never."""

    def forward(self, x):
        chosen = torch.arange(x.size(1)) // 3 * 3
        return super().forward(x.gather(1, chosen[None, :, None].expand_as(x)))


class Reordered(ViewedAlone):
    """Scrambled heads behind a choice that only turns the order round."""

    def forward(self, x):
        return super().forward(x[:, torch.arange(x.size(1)).flip(0)])


def test_rows_that_were_chosen_by_their_numbers_are_not_scrambled():
    assert list(check_heads_mixed(examined(Chosen))) == []
    (found,) = check_heads_mixed(examined(Reordered))
    assert (found.severity, found.called) == ("error", "scrambled heads")


class AlongRows(nn.Module):
    """Attention among the pixels of each row of an image: (batch, height, width, d_model)."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        weights = (q @ k.mT / q.size(-1) ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(2, 3).flatten(3))


class InWindows(AlongRows):
    """Attention in windows of 3 x 3 of an image of 9 x 9, whose heads are merged by a view."""

    def forward(self, x):
        batch = len(x)
        x = x.view(batch, 3, 3, 3, 3, -1).transpose(2, 3).reshape(batch * 9, 9, -1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = self.out(((q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v).reshape(batch * 9, 9, -1))
        return out.view(batch, 3, 3, 3, 3, -1).transpose(2, 3).reshape(batch, 9, 9, -1)


def test_rows_and_columns_of_a_square_are_told_apart_by_nothing():
    convention = {"layout": "image, channels last", "d_in": 64, "d_out": 64}
    assert list(check_heads_mixed(examine(AlongRows(), length=36, **convention))) == []
    (found,) = check_heads_mixed(examine(InWindows(), length=81, **convention))
    assert found.called == "scrambled heads"


def test_what_heads_lie_in_other_places_is_no_matter_of_positions():
    (finding,) = check_positions(examined(MergedByView))
    assert "positions come behind" not in finding.message


class Classified(MergedByView):
    """With a class token before the positions, which alone is returned."""

    def forward(self, x):
        return super().forward(torch.cat([x.new_ones(len(x), 1, x.size(2)), x], 1))[:, 0]


class ClassifiedRightly(Classified):
    merge = Base.merge


def test_heads_behind_a_class_token_are_merged_like_others():
    (finding,) = check_heads_mixed(examined(Classified, pooled=True))
    assert "Merging the heads scrambles positions" in finding.message
    assert list(check_heads_mixed(examined(ClassifiedRightly, pooled=True))) == []


class MergedByChance(MergedByView):
    def weights(self, scores):
        return F.dropout(super().weights(scores), 0.5)


def test_what_chance_changes_says_nothing_of_heads():
    assert list(check_heads_mixed(examined(MergedByChance))) == []


class PixelsLast(nn.Module):
    """Weighs the channels of a picture, (batch, height, width, channels)."""

    def __init__(self):
        super().__init__()
        self.weigh = nn.Conv2d(20, 20, 1)


class PixelsViewed(PixelsLast):
    def forward(self, x):
        B, H, W, C = x.shape
        x = x.view(B, C, H, W)
        return (x * self.weigh(x).sigmoid()).permute(0, 2, 3, 1)


class PixelsPermuted(PixelsLast):
    def forward(self, x):
        B, H, W, C = x.shape
        x = x.permute(0, 3, 1, 2)
        x = x.reshape(B, C, H, W)
        return (x * self.weigh(x).sigmoid()).permute(0, 2, 3, 1)


@pytest.mark.parametrize(("written", "number"), [(PixelsViewed, 1), (PixelsPermuted, 0)])
def test_a_view_to_its_own_axes_in_another_order_exchanges_none(written, number):
    exam = examine(written(), layout="image, channels last", length=9)
    findings = list(check_heads_mixed(exam))
    assert len(findings) == number
    assert all("`x.view(B, C, H, W)` does not exchange the axes (B, H, W, C)" in one.message for one in findings)


class Mixed(nn.Module):
    """Mixes the features of each pixel, (batch, channels, height, width), and puts them back."""

    def __init__(self, *, there, back):
        super().__init__()
        self.mix, self.there, self.back = nn.Linear(20, 20), there, back

    def forward(self, x):
        batch, channels, height, width = x.shape
        rows = x.flatten(2).mT if self.there else x.reshape(batch, height * width, channels)
        rows = self.mix(rows)  # (batch, pixels, channels)
        rows = rows.mT if self.back else rows
        return x + rows.reshape(batch, channels, height, width)


@pytest.mark.parametrize(
    ("there", "back", "evidence"),
    [
        (True, True, ""),
        (True, False, "(3, 9, 20) is viewed as (3, 20, 3, 3)"),
        (False, True, "(3, 20, 3, 3) is viewed as (3, 9, 20)"),
    ],
)
def test_a_view_exchanges_no_pixels_and_channels(there, back, evidence):
    findings = list(check_heads_mixed(examine(Mixed(there=there, back=back), layout="image", length=9)))
    assert [one.evidence.partition(";")[0] for one in findings] == ([evidence] if evidence else [])


def test_as_many_heads_as_positions_are_told_apart_by_no_shape():
    assert not list(check_heads_mixed(examined(Base, length=4)))
    assert list(check_heads_mixed(examined(MergedByView, length=5)))


class AlongColumns(Base):
    """Positions that are laid out as a square, each of which looks along its column."""

    def split(self, x):
        side = math.isqrt(x.shape[1])
        return x.view(len(x), side, side, self.h, self.d).permute(0, 3, 2, 1, 4)  # (batch, heads, column, row, d_head)

    split_q = split_k = split_v = split

    def merge(self, out):
        return super().merge(out.transpose(2, 3).flatten(2, 3))


@pytest.mark.parametrize("side", [4, 5])
def test_as_many_heads_as_a_column_is_high_are_told_apart_by_no_shape(side):
    assert not list(check_heads_mixed(examined(AlongColumns, length=side**2)))


class Framed(nn.Module):
    """Tokens of a square of pixels whose side is their width, normalized there, or relative scores that are skewed."""

    def __init__(self, skewed):
        super().__init__()
        self.skewed, self.norm = skewed, nn.LayerNorm(D)
        self.relative = nn.Parameter(torch.randn(D, D - 1, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        batch, length, width = x.shape
        if not self.skewed:
            return self.norm(x.view(batch, width, width, width)).view(x.shape)
        scores = nn.functional.pad(x @ self.relative[:, :length], (1, 0)).view(batch, length + 1, length)[:, 1:]
        return scores.softmax(-1) @ x


@pytest.mark.parametrize(("skewed", "length"), [(False, D * D), (True, D - 1)])
def test_a_view_that_keeps_features_or_skews_scores_exchanges_nothing(skewed, length):
    assert not list(check_heads_mixed(examine(Framed(skewed), length=length)))


class Windowed(nn.Module):
    """Heads within windows of as many positions as the model is wide."""

    def __init__(self, width, heads):
        super().__init__()
        torch.manual_seed(5)
        self.width, self.heads = width, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        x = nn.functional.pad(x, (0, 0, 0, -length % width))
        q, k, v = self.qkv(x).view(batch, -1, width, 3, self.heads, width // self.heads).permute(3, 0, 1, 4, 2, 5)
        weights = (q @ k.mT / math.sqrt(width // self.heads)).softmax(-1)
        return self.out((weights @ v).transpose(2, 3).reshape(batch, -1, width)[:, :length])


@pytest.mark.parametrize(("width", "heads"), [(4, 1), (4, 2), (6, 2), (16, 1), (20, 2)])
@pytest.mark.parametrize("length", [11, 12])
def test_windows_as_long_as_the_model_is_wide_are_not_taken_for_channels(width, heads, length):
    exam = examine(Windowed(width, heads), d_in=width, d_out=width, length=length)
    assert not list(check_heads_mixed(exam))


class Grouped(nn.Module):
    """Eight heads that share two keys and two values."""

    def __init__(self, keys, values):
        super().__init__()
        torch.manual_seed(6)
        self.keys, self.values = keys, values
        self.q, self.kv, self.out = nn.Linear(D, 8 * 3), nn.Linear(D, 4 * 3), nn.Linear(8 * 3, D)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (8, -1)).transpose(1, 2)
        k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        k, v = k[:, self.keys], v[:, self.values]
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


REPEATED, INTERLEAVED, IN_PAIRS = [0, 1] * 4, [0] * 4 + [1] * 4, [0, 0, 1, 1] * 2


@pytest.mark.parametrize("keys", [REPEATED, INTERLEAVED])
@pytest.mark.parametrize("values", [REPEATED, INTERLEAVED, IN_PAIRS])
def test_heads_that_share_keys_share_values(keys, values):
    findings = list(check_heads_mixed(examine(Grouped(keys, values))))
    assert [one.severity for one in findings] == ["warning"] * (values not in (keys, IN_PAIRS))
    assert all("do not share values" in one.message and "accept it" in one.remedy for one in findings)


class Shifted(nn.Module):
    """Heads within windows of three positions, after a shift by one."""

    def __init__(self, back, forth=-1, flip=()):
        super().__init__()
        torch.manual_seed(7)
        self.back, self.forth, self.flip = back, forth, flip
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        windows = x.roll(self.forth, 1).reshape(-1, 3, D)
        q, k, v = self.qkv(windows).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        out = ((q @ k.mT / math.sqrt(D // 2)).softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        return x + self.out(out.roll(self.back, 1).flip(self.flip))


@pytest.mark.parametrize(("back", "words"), [(1, ""), (0, "of 0 at 11, of 1 at 0"), (-1, "of 0 at 10, of 1 at 11")])
def test_windows_are_laid_back_as_they_were_cut(back, words):
    findings = list(check_heads_mixed(examine(Shifted(back), length=12)))
    assert len(findings) == bool(words)
    assert all("not laid back" in one.message and words in one.evidence for one in findings)


@pytest.mark.parametrize(("back", "flip"), [(1, ()), (0, (1,))])
def test_windows_of_what_was_not_moved_may_be_passed_on_or_turned_round(back, flip):
    assert not list(check_heads_mixed(examine(Shifted(back, 0, flip), length=12)))
