"""Dead parts: what has no influence, cannot learn, or is one where two are meant is found; right parts pass."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.doctor.bedside import HEADS, KEYS, Attention, D, examine, severities
from torch import nn
from torch.utils.checkpoint import checkpoint

from attnlab.doctor.checks.dead_parts import check_dead_parts
from attnlab.doctor.checks.determinism import check_determinism
from attnlab.doctor.checks.norm_placement import check_norm_placement
from attnlab.doctor.checks.residual import check_residual
from attnlab.doctor.influence.heads import check_heads_mixed
from attnlab.doctor.measures.participation import reached_behind_others
from attnlab.strangers.calling.sources import Argument
from attnlab.strangers.loading.mentions import use_of


def found(module, **convention):
    return list(check_dead_parts(examine(module, **convention)))


def only_error(module, **convention):
    (finding,) = found(module, **convention)
    assert (finding.check, finding.severity) == ("dead-parts", "error")
    return finding


def accepted(findings):
    return [finding.accepted for finding in findings]


class Split(nn.Module):
    """Attention with three projections."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (batch, heads, length, d_head)

    def attend(self, q, k, v):
        weights = (self.heads(q) @ self.heads(k).mT / math.sqrt(D / HEADS)).softmax(-1)
        return self.out((weights @ self.heads(v)).transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.attend(self.q(x), self.k(x), self.v(x))


def test_a_right_layer_has_no_dead_part_though_its_key_bias_cancels():
    assert found(Split()) == []
    assert found(Attention(), masks=(KEYS,)) == []


class Listed(Split):
    def __init__(self):
        super().__init__()
        self.more = {"last": [nn.Linear(D, D)]}

    def forward(self, x):
        return self.more["last"][0](super().forward(x))


def test_layers_in_a_plain_list_are_not_registered():
    assert "self.more['last'][0]" in only_error(Listed()).message


class ListedTwice(Split):
    def __init__(self):
        super().__init__()
        self.order = [self.q, self.k, self.v]


def test_a_list_of_registered_layers_is_right():
    assert found(ListedTwice()) == []


class Teacher(Split):
    def __init__(self):
        super().__init__()
        self.teacher = [nn.Linear(D, D).requires_grad_(False)]


def test_what_wants_no_gradient_may_be_kept_anywhere():
    assert found(Teacher()) == []


class PlainTensor(Split):
    def __init__(self):
        super().__init__()
        self.w = torch.randn(D, D, requires_grad=True)

    def forward(self, x):
        return super().forward(x) @ self.w.to(x)


def test_a_tensor_with_gradient_that_is_no_parameter():
    assert "self.w" in only_error(PlainTensor()).message


class PlainWeight(Split):
    """Attention."""

    def __init__(self):
        super().__init__()
        self.w_o = torch.randn(D, D) / math.sqrt(D)

    def forward(self, x):
        return super().forward(x) @ self.w_o.to(x)


def test_a_weight_that_is_a_plain_tensor():
    assert "self.w_o" in only_error(PlainWeight()).message
    assert accepted(found(PlainWeight(), text="a fixed random projection follows")) == [True]


class Unused(Split):
    def forward(self, x):
        return self.attend(self.q(x), self.k(x), self.k(x))


def test_a_projection_that_is_never_used():
    finding = only_error(Unused())
    assert finding.message.startswith("v: is never used in forward")


class Ignored(Split):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, D)

    def forward(self, x):
        self.gate(x)
        return super().forward(x)


def test_a_result_that_is_thrown_away():
    assert "gate: has no influence" in only_error(Ignored()).message


class Fed(Split):
    """A feed-forward of some width, with or without what must stand between its layers."""

    def __init__(self, width, bend):
        super().__init__()
        self.up, self.down, self.bend = nn.Linear(D, width), nn.Linear(width, D), bend

    def forward(self, x):
        x = x + super().forward(x)
        return x + self.down(self.bend(self.up(x)))


def test_a_feed_forward_without_a_non_linearity_is_a_warning_unless_it_is_narrow():
    (finding,) = found(Fed(2 * D, nn.Dropout(0.1)))
    assert (finding.severity, "'up' and 'down' are together one linear map" in finding.message) == ("warning", True)
    assert found(Fed(2 * D, nn.GELU())) == found(Fed(D // 2, nn.Identity())) == []


class Bent(nn.Linear):
    """A linear layer with its non-linearity."""

    def forward(self, x):
        return nn.functional.gelu(super().forward(x))


class Told(Fed):
    """A feed-forward that also returns what it has within."""

    def forward(self, x):
        inner = self.up(x + Split.forward(self, x))
        return self.down(inner), inner


def test_a_layer_with_its_own_non_linearity_and_one_that_is_returned_are_no_part_of_a_pair():
    bent = Fed(2 * D, nn.Identity())
    bent.up = Bent(D, 2 * D)
    assert found(bent) == found(Told(2 * D, nn.Identity())) == []


class Optional(Split):
    def __init__(self):
        super().__init__()
        self.cross, self.embed = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x, memory=None):
        x = self.attend(self.q(x), self.k(x), self.v(x))
        if memory is None:
            return x
        return x + self.cross(memory)

    def encode(self, x):
        return self.embed(x)


def test_parts_for_optional_arguments_and_other_methods_are_right():
    assert found(Optional()) == []
    assert (use_of(Optional(), "cross.weight"), use_of(Optional(), "embed.weight")) == (
        "under a condition",
        "elsewhere",
    )


class Gained(Split):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.gain * super().forward(x)


def test_a_gain_that_starts_at_zero_hides_nothing():
    assert found(Gained()) == []


@pytest.mark.parametrize("how", ["detach", "data", "no_grad", "tensor"])
def test_a_cut_graph(how):
    class Cut(Split):
        def forward(self, x):
            scores = self.heads(self.q(x)) @ self.heads(self.k(x)).mT / math.sqrt(D / HEADS)
            with torch.set_grad_enabled(how != "no_grad" and torch.is_grad_enabled()):
                weights = scores.softmax(-1) + 0
            if how == "tensor":
                weights = torch.tensor(weights.tolist(), dtype=x.dtype)
            weights = weights.detach() if how == "detach" else weights.data if how == "data" else weights
            return self.out((weights @ self.heads(self.v(x))).transpose(1, 2).flatten(2))

    (only,) = found(Cut(), text="weights.detach() or weights.data, torch.tensor(weights.tolist())")
    assert only.severity == "error"  # that the input is cut off too has the same cause
    assert "q.weight, q.bias, k.weight shape the output but get no gradient" in only.message


def test_a_cut_input():
    class CutInput(Split):
        def forward(self, x):
            return super().forward(x.detach())

    assert "all of the gradient to its input is lost" in only_error(CutInput()).message


def test_a_gradient_stopped_on_purpose_is_right():
    class Stopped(Split):
        def forward(self, x):
            return x.detach() + super().forward(x)

    assert accepted(found(Stopped(), text="stop-gradient on the target: x.detach()")) == [True]
    assert severities(found(Stopped(), text="return x.detach() + y")) == ["error"]


def test_detached_statistics_are_constants_on_purpose():
    class Normalized(Split):
        """Attention over series of which mean and spread are taken off and put back."""

        def forward(self, x):
            mean, spread = x.mean(1, keepdim=True).detach(), (x.var(1, keepdim=True) + 1e-5).sqrt().detach()
            return super().forward((x - mean) / spread) * spread + mean

    text = "def f(x):\n    mean, spread = x.mean(1).detach(), (x.var(1) + 1e-5).sqrt().detach()"
    assert found(Normalized(), text=f"{text}\n    count = int(missing.sum().item())") == []
    assert severities(found(Normalized(), text=f"{text}\n    return x.detach()")) == ["error"]

    class Rounded(Normalized):
        def forward(self, x):
            return super().forward(x + torch.tensor(x.tolist(), dtype=x.dtype))

    assert severities(found(Rounded(), text=text)) == ["error"]


class DeadHead(Split):
    def attend(self, q, k, v):
        weights = (self.heads(q) @ self.heads(k).mT).softmax(-1)
        heads = list((weights @ self.heads(v)).unbind(1))
        heads[-1] = torch.zeros_like(heads[-1])
        return self.out(torch.cat(heads, -1))


def test_a_dead_head_in_shared_projections():
    finding = only_error(DeadHead())
    assert f"rows {D // HEADS} to {D - 1} of {D} in q.weight" in finding.evidence


def test_a_cut_slice_of_a_packed_projection():
    class Packed(Attention):
        def normalize(self, scores):
            return scores.detach().softmax(-1)

    first, second = found(Packed(), text="scores.detach()")
    assert f"rows 0 to {2 * D - 1} of {3 * D} in qkv.weight" in first.evidence
    assert "the graph is cut behind it" in first.message
    assert "part of the gradient to its input" in second.message


def test_a_silent_unit_is_no_dead_head():
    class Silent(Split):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
            with torch.no_grad():
                self.up.bias[3] = -100.0

        def forward(self, x):
            return super().forward(self.down(self.up(x).relu()))

    assert found(Silent()) == []


def test_unused_rows_of_tables_are_right():
    class Tokens(Split):
        def __init__(self):
            super().__init__()
            self.embed, self.places = nn.Embedding(997, D), nn.Parameter(torch.randn(64, D))

        def forward(self, tokens):
            return super().forward(self.embed(tokens) + self.places[: tokens.size(1)])

    assert found(Tokens(), takes="tokens", d_in=0, vocab_size=997, kind="model") == []


class Stepping(Split):
    """The same attention in each step, and a row of a table that says which step it is."""

    def __init__(self, spare):
        super().__init__()
        self.steps = nn.Parameter(torch.randn(4 + spare, D))

    def forward(self, x):
        for step in range(4):
            x = super().forward(x + self.steps[step])
        return x


def test_spare_rows_of_a_table_that_is_added_are_right():
    assert found(Stepping(0)) == []
    assert found(Stepping(12)) == []


class Summed(Split):
    """A weight is the sum of two, and one head of it is never used."""

    def __init__(self):
        super().__init__()
        self.base, self.delta = (nn.Parameter(torch.randn(D, D) / D**0.5) for _ in range(2))

    def forward(self, x):
        used = torch.nn.functional.linear(x, self.base + self.delta)[..., : D // 2]
        return super().forward(torch.cat([used, used], -1))


def test_dead_rows_of_a_weight_that_is_a_sum_are_an_error():
    (finding,) = found(Summed())
    assert "part of a projection has no influence" in finding.message
    assert "in base" in finding.evidence


class SameProjection(Split):
    """Attention."""

    def __init__(self):
        super().__init__()
        self.k = self.q


def test_q_and_k_that_are_one_module():
    findings = found(SameProjection())
    assert severities(findings) == ["error"]
    assert "queries and keys are the same vectors" in findings[0].message
    assert accepted(found(SameProjection(), text="Shared q and k, as in the Reformer.")) == [True]


class Projectionless(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(D, D)

    def forward(self, x):
        return self.out((x @ x.mT / math.sqrt(D)).softmax(-1) @ x)


def test_attention_without_projections_is_a_choice():
    assert found(Projectionless()) == []


class Turned(Projectionless):
    """Queries and keys go through a table that nobody learns."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.linalg.qr(torch.randn(D, D))[0])

    def forward(self, x):
        turned = x @ self.turn.to(x)
        return self.out((turned @ turned.mT / math.sqrt(D)).softmax(-1) @ x)


def test_a_table_before_the_scores_is_no_projection():
    assert found(Turned()) == []


def test_tied_weights_with_biases_of_their_own():
    module = Split()
    module.k.weight = module.q.weight
    assert "q.weight and k.weight are one and the same weight" in only_error(module).message


def test_projections_that_start_equal_are_a_warning():
    module = Split()
    module.k.load_state_dict(module.q.state_dict())
    assert severities(found(module)) == ["warning"]


class Heads(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads, self.out = nn.ModuleList(heads), nn.Linear(2 * D, D)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], -1))


def test_one_head_twice():
    head = Split()
    assert "one and the same module, and it computes the same thing" in only_error(Heads([head, head])).message
    assert found(Heads([Split(), Attention()])) == []


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Split()] * 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_layers_that_share_all_weights_are_a_warning_unless_declared():
    assert severities(found(Layers())) == ["warning"]
    assert accepted(found(Layers(), text="All layers share their weights.")) == [True]


def test_an_output_beside_the_main_one_keeps_its_parameters_alive():
    class Pooled(Split):
        def __init__(self):
            super().__init__()
            self.pool = nn.Linear(D, D)

        def forward(self, x):
            y = super().forward(x)
            return y, self.pool(y[:, 0])

    class Weights(Split):
        def forward(self, x):
            q, k = self.heads(self.q(x)), self.heads(self.k(x))
            return self.out(self.v(x)), (q @ k.mT).softmax(-1)

    assert found(Pooled()) == []
    assert "q, k: has no influence" in only_error(Weights()).message


def test_a_backward_pass_that_raises():
    class InPlace(Split):
        def forward(self, x):
            weights = (self.heads(self.q(x)) @ self.heads(self.k(x)).mT).softmax(-1)
            out = self.out((weights @ self.heads(self.v(x))).transpose(1, 2).flatten(2))
            weights *= 2.0  # softmax still needs it
            return out

    assert "cannot be trained" in only_error(InPlace()).message


class HidingLastKey(nn.Module):
    """Attention that hides the last key of each sample in a loop over the scores."""

    def __init__(self, samples):
        super().__init__()
        self.map, self.samples = nn.Linear(D, D), samples

    def forward(self, x):
        scores = self.map(x) @ x.mT
        for sample in self.samples(scores):
            sample[:, -1] = -1e9
        return scores.softmax(-1) @ x


def test_what_raises_with_gradients_alone_cannot_be_trained():
    assert "cannot be trained" in only_error(HidingLastKey(iter)).message
    assert found(HidingLastKey(lambda scores: (scores[number] for number in range(len(scores))))) == []


class Experts(Split):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(D, D) for _ in range(3)])

    def forward(self, x):
        chosen = (x[..., 0] > 100).long()  # never another expert than the first
        out = super().forward(x)
        for index, expert in enumerate(self.experts):
            rows = chosen == index
            if rows.any():
                out = out + torch.zeros_like(out).masked_scatter(rows[..., None], expert(x[rows]))
        return out


def test_experts_that_got_no_token_are_right():
    assert found(Experts()) == []


def test_an_output_that_is_not_a_number_proves_nothing():
    class Broken(Split):
        def forward(self, x):
            return super().forward(x) / 0.0 * 0.0

    assert found(Broken()) == []


def test_scores_cut_on_one_of_two_paths():
    class Twice(Split):
        def forward(self, x):
            once = self.attend(self.q(x).detach(), self.k(x).detach(), self.v(x))
            return once + super().forward(x)

    class Single(Twice):
        def forward(self, x):
            return super().forward(x).float().to(x.dtype)  # only half of the digits are left

    for kind in (Twice, Single):
        finding = only_error(kind(), text="self.q(x).detach()")
        assert "part of the gradient to its input is lost" in finding.message


class Windowed(Attention):
    """Attention inside pieces of `size` positions."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return super().forward(x.unflatten(1, (-1, self.size)).flatten(0, 1)).view(x.shape)


@pytest.mark.parametrize(("size", "dead"), [(1, [True]), (2, [])])
def test_a_piece_of_one_position_leaves_queries_and_keys_nothing_to_choose(size, dead):
    exam = examine(Windowed(size), lambda changes: Windowed(**changes), {"size": size}, length=12)
    assert [finding.accepted for finding in check_dead_parts(exam)] == dead
    assert not list(check_heads_mixed(exam))


class AmongHeads(nn.Module):
    """A forgotten transpose: heads attend to heads, and positions to none, however many heads there are."""

    def __init__(self, n_heads=1):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.n_heads, -1)) for part in (self.q, self.k, self.v))
        return ((q @ k.mT).softmax(-1) @ v).flatten(2)


def test_choosing_among_heads_alone_is_no_choice():
    exam = examine(AmongHeads(), lambda changes: AmongHeads(**changes), {"n_heads": 1})
    assert [finding.accepted for finding in check_dead_parts(exam)] == [False]


class Runners(Attention):
    """Attention among the runners of a race, whose features stand end to end; they are pooled over time before."""

    def forward(self, x):
        runners = x.unflatten(-1, (-1, D)).amax(1)  # (batch, runners, features)
        return super().forward(runners).mean(1)


def test_features_of_one_runner_alone_leave_queries_and_keys_nothing_to_choose():
    assert found(Runners(), pooled=True) == []


class OfImages(nn.Module):
    """Attention among what is left of an image at a fourth of its height and width, pooled."""

    def __init__(self, img_size=4):
        super().__init__()
        self.least = img_size
        self.cut, self.attention = nn.Conv2d(3, D, 4, 4), Attention()

    def forward(self, x):
        assert x.size(-1) >= self.least
        return self.attention(self.cut(x).flatten(2).mT).mean(1)


@pytest.mark.parametrize("sizes", [{"img_size": 4}, {}])
def test_an_image_of_which_one_patch_is_left_leaves_queries_and_keys_nothing_to_choose(sizes):
    exam = examine(
        OfImages(), lambda changes: OfImages(**changes), sizes,
        pooled=True, layout="image", length=16, longest=16, any_length=False, d_in=3,
    )  # fmt: skip
    assert list(check_dead_parts(exam)) == []


class SavingMemory(Attention):
    """Activations are computed anew on the way back, which torch does only for inputs that have a gradient."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def test_what_learns_behind_other_layers_alone_is_not_cut():
    exam = examine(SavingMemory())
    assert not {name for name, _ in exam.eval_module.named_parameters()} - reached_behind_others(exam) - {"qkv.bias"}
    with pytest.raises(RuntimeError, match="use_reentrant"):  # what asks for the gradient of the input cannot be asked
        list(check_dead_parts(exam))


class Asked(nn.Module):
    """A sequence is asked by another one, after that has looked at itself; by one projection or by several."""

    def __init__(self, own):
        super().__init__()
        self.own, self.cross = own, nn.MultiheadAttention(D, HEADS, batch_first=True)

    def forward(self, x, asking):
        asking = asking + self.own(asking)
        return self.cross(asking, x, x)[0].squeeze(1)


@pytest.mark.parametrize("own", [Split(), Attention()])
def test_one_vector_that_is_given_leaves_queries_and_keys_nothing_to_choose(own):
    given = (Argument("x", "x"), Argument("asking", "sequence of one", value=D))
    exam = examine(Asked(own), pooled=True)
    assert not list(check_dead_parts(exam.relying_on(replace(exam.convention, arguments=given))))


class Forecast(nn.Module):
    """Numbers in another width between two maps, by copies of a layer that is kept."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(D, 2 * D)
        self.encoder_layer = nn.TransformerEncoderLayer(2 * D, 2, 4 * D, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(self.encoder_layer, 2)
        self.narrow = nn.Linear(2 * D, D)

    def forward(self, x):
        return self.narrow(self.encoder(self.widen(x)))


def test_a_layer_that_is_only_copied_is_no_error_nor_are_maps_to_another_width():
    exam = examine(Forecast())
    (finding,) = check_dead_parts(exam)
    assert finding.severity == "warning"
    assert finding.message.startswith("encoder_layer: only copies of it are used")
    checks = (check_norm_placement, check_determinism, check_residual)
    assert not [one for check in checks for one in check(exam) if one.severity in ("error", "warning")]


class Shortened(nn.Module):
    """Layers of which the last is left out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(D, 2, D, batch_first=True) for _ in range(3))

    def forward(self, x):
        for number in range(2):
            x = self.layers[number](x)
        return x


def test_a_layer_of_a_list_that_is_left_out_is_an_error():
    assert "layers.2" in only_error(Shortened()).message


class Gated(nn.Module):
    """A branch whose scale and gate are made from the mean of the input."""

    def __init__(self):
        super().__init__()
        self.norm, self.gates = nn.LayerNorm(D), nn.Linear(D, 2 * D)
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        scale, gate = self.gates(x.mean(1, keepdim=True)).chunk(2, dim=-1)
        return x + gate * self.down(torch.relu(self.up(self.norm(x) * (1 + scale))))


def started_at_zero(module, *parts):
    for part in parts:
        nn.init.zeros_(module.get_submodule(part).weight)
        nn.init.zeros_(module.get_submodule(part).bias)
    return module


def test_matrices_in_a_row_that_start_at_zero_are_an_error():
    finding = only_error(started_at_zero(Attention(), "qkv", "out"))
    assert finding.message.startswith("qkv.weight, out.weight: start at zero and stay there")
    assert only_error(started_at_zero(Gated(), "gates", "down")).message.startswith(
        "gates.weight, down.weight: start at"
    )


def test_a_matrix_that_starts_at_zero_alone_opens_by_itself():
    assert not found(started_at_zero(Attention(), "out"))
    assert not found(started_at_zero(Gated(), "gates"))


class MaskedInTraining(Attention):
    """Puts a learned vector in place of some, in training alone."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, D))

    def forward(self, x):
        hidden = torch.arange(x.size(1))[:, None] % 3 == 0
        return super().forward(torch.where(hidden, self.token, x) if self.training else x)


class Chained(nn.Module):
    """Layers that start at zero and are given what those before them gave, beside the input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(started_at_zero(nn.Sequential(nn.Linear(D, D)), "0") for _ in range(6))

    def forward(self, x):
        h = torch.zeros_like(x)
        for layer in self.layers:
            h = layer(x + h)
        return h


@pytest.mark.parametrize("kind", [MaskedInTraining, Chained])
def test_what_training_alone_reads_and_what_opens_step_by_step_are_not_held_at_zero(kind):
    assert not [one for one in found(kind()) if "start at zero" in one.message]


class Compressing(Split):
    """Keys and values are means of so many positions."""

    def __init__(self, positions):
        super().__init__()
        self.positions = positions

    def forward(self, x):
        padded = nn.functional.pad(x, (0, 0, 0, -x.size(1) % self.positions))
        few = padded.unflatten(1, (-1, self.positions)).mean(2)
        return self.attend(self.q(x), self.k(few), self.v(few))


@pytest.mark.parametrize("positions", [48, 256])
def test_one_key_for_all_positions_is_asked_about_where_there_are_more(positions):
    assert found(Compressing(positions)) == []


class Looping(nn.Module):
    """A stack of attentions."""

    def __init__(self, n_layers=3, shared=True):
        super().__init__()
        self.n_layers = n_layers
        self.layers = nn.ModuleList(Attention() for _ in range(1 if shared else n_layers))

    def forward(self, x):
        for index in range(self.n_layers):
            x = self.layers[index % len(self.layers)](x)
        return x


class Declared(Looping):
    """All layers share their weights."""


class Iterating(Looping):
    """Recurrent depth: the core block is iterated."""


class Smoothing(Looping):
    """An average over neighbours, n_layers times, of which none has a weight."""

    def __init__(self, n_layers=3):
        super().__init__(n_layers)
        self.attend, self.layers = Attention(), nn.ModuleList([nn.AvgPool1d(3, 1, padding=1)])

    def forward(self, x):
        return super().forward(self.attend(x).mT).mT


def of_layers(kind, **given):
    return list(check_dead_parts(examine(kind(**given), lambda changes: kind(**(given | changes)))))


def test_one_layer_in_the_place_of_all_that_are_asked_for_is_a_warning():
    (finding,) = of_layers(Looping)
    assert (finding.severity, finding.accepted) == ("warning", False)
    assert "'layers.0' is called in a loop for every layer that `n_layers` asks for" in finding.message
    assert accepted([*of_layers(Declared), *of_layers(Iterating)]) == [True, True]
    assert not of_layers(Smoothing)
    assert not of_layers(Looping, shared=False)
    assert not of_layers(Looping, n_layers=1)
