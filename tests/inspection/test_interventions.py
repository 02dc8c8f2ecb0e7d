"""A part that is switched off is gone, one that is put in stands there, and nothing else is touched."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection import Place, ablate, activations, capture, patch, patch_path
from attnlab.inspection.interventions.changing import changing
from attnlab.models import Decoder, EncoderDecoder

VOCABULARY, LENGTH, WIDTH, HEADS = 11, 7, 16, 4
MIXERS = ["stack.blocks.0.mixer", "stack.blocks.1.mixer"]
FEEDFORWARDS = ["stack.blocks.0.feedforward", "stack.blocks.1.feedforward"]


class ByHand(nn.Module):
    """Heads as a person writes them: projected together, parted, joined by a linear map."""

    def __init__(self, d_model: int = WIDTH, n_heads: int = HEADS, *, way: str = "matmul") -> None:
        super().__init__()
        self.n_heads, self.way = n_heads, way
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (self.n_heads, -1)) for one in self.qkv(x).chunk(3, -1))
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if self.way == "einsum":
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            found = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        elif self.way == "exponents":
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
            powers = scores.masked_fill(future, float("-inf")).exp()
            found = torch.einsum("bhqk,bkhd->bqhd", powers / powers.sum(-1, keepdim=True), v)
        elif self.way == "folded":
            q, k, v = (one.transpose(1, 2).flatten(0, 1) for one in (q, k, v))
            scores = torch.bmm(q, k.mT) / q.shape[-1] ** 0.5
            found = torch.bmm(scores.masked_fill(future, float("-inf")).softmax(-1), v)
            found = found.unflatten(0, (-1, self.n_heads)).transpose(1, 2)
        else:
            q, k, v = (one.transpose(1, 2) for one in (q, k, v))
            fused = nn.functional.scaled_dot_product_attention
            scores = q @ k.mT / q.shape[-1] ** 0.5
            by_steps = scores.masked_fill(future, float("-inf")).softmax(-1)
            found = fused(q, k, v, is_causal=True) if self.way == "fused" else by_steps @ v
            found = found.transpose(1, 2)
        return self.out(found.flatten(-2))


class Model(nn.Module):
    """Two layers with a residual path around them."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList([layer(), layer()])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.output(x)


class TorchLayer(nn.MultiheadAttention):
    pass


class AroundTorch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = TorchLayer(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def decoder(**arguments):
    torch.manual_seed(0)
    return Decoder(VOCABULARY, 16, d_model=WIDTH, n_layers=2, init="torch", **arguments).eval()


def linear():
    return decoder(mixer={"name": "linear-attention", "n_heads": HEADS})


def by_hand(way):
    torch.manual_seed(0)
    return Model(lambda: ByHand(way=way)).eval()


def tokens(seed=0, batch=3):
    return torch.randint(VOCABULARY, (batch, LENGTH), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def run(model, inputs, where=(), how="zero", **named):
    with ablate(model, where, how, **named):
        return model(inputs)


def without_head(linear, head, width=WIDTH // HEADS):
    """Weights of a map behind joined heads, blind to one of them."""
    with torch.no_grad():
        linear.weight[:, head * width : (head + 1) * width] = 0


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_nothing_asked_for_changes_nothing():
    model = decoder()
    plain = run(model, tokens())
    assert torch.equal(run(model, tokens()), plain)
    run(model, tokens(), "stack.blocks.0.mixer:1")
    assert torch.equal(run(model, tokens()), plain)
    assert model.stack.blocks[0].mixer.edit is None


@pytest.mark.parametrize("mixer", ["attention", {"name": "attention", "heads": "multi-query"}, "lstm", "fastformer"])
def test_all_mixers_off_is_the_model_without_mixers(mixer):
    model, without = decoder(mixer=mixer), decoder(mixer="none")
    state = model.state_dict()
    without.load_state_dict({name: state[name] for name in without.state_dict()})
    close(run(model, tokens(), MIXERS), run(without, tokens()))


def test_all_parts_off_is_what_stands_around_them():
    model = decoder()
    parts = run(model, tokens(), [*MIXERS, *FEEDFORWARDS])
    close(parts, run(model, tokens(), ["stack.blocks.0", "stack.blocks.1"], "skip"))
    assert not torch.allclose(parts, run(model, tokens()))


@pytest.mark.parametrize("head", range(HEADS))
def test_a_head_of_the_labs_attention_is_off(head):
    model, blind = decoder(), decoder()
    without_head(blind.stack.blocks[1].mixer.combiner.to_residual, head)
    close(run(model, tokens(), f"stack.blocks.1.mixer:{head}"), run(blind, tokens()))


def test_a_head_of_linear_attention_is_off():
    model, blind = linear(), linear()
    without_head(blind.stack.blocks[1].mixer.to_residual, 2)
    close(run(model, tokens(), "stack.blocks.1.mixer:2"), run(blind, tokens()))
    assert model.stack.blocks[1].mixer.edit is None


@pytest.mark.parametrize("way", ["matmul", "fused", "einsum", "folded", "exponents"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_head_written_by_hand_is_off(way, batch):
    model = by_hand(way)
    blind = copy.deepcopy(model)
    without_head(blind.layers[0].out, 2)
    close(run(model, tokens(batch=batch), "layers.0:2"), run(blind, tokens(batch=batch)))
    assert "forward" not in vars(model)


def test_a_head_of_torchs_layer_is_off():
    torch.manual_seed(0)
    model = Model(AroundTorch).eval()
    blind = copy.deepcopy(model)
    without_head(blind.layers[1].attention.out_proj, 0)
    close(run(model, tokens(), "layers.1.attention:0"), run(blind, tokens()))


def test_heads_inside_torchs_own_encoder_are_off():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, WIDTH, batch_first=True).eval()
    blind = copy.deepcopy(layer)
    without_head(blind.self_attn.out_proj, 3)
    x = torch.randn(2, LENGTH, WIDTH)
    close(run(layer, x, "self_attn:3"), run(blind, x))


@pytest.mark.parametrize("make", [decoder, linear, lambda: by_hand("matmul"), lambda: by_hand("fused")])
def test_a_step_is_put_in_for_the_lab_and_by_hand(make):
    model = make()
    name = "stack.blocks.0.mixer" if isinstance(model, Decoder) else "layers.0"
    source, target = tokens(1), tokens(2)
    for step in ("q", "k", "v", "scores", "weights", "head_outputs"):
        found = activations(model, source, Place(name, step))[Place(name, step)]
        assert found.shape[:3] == (3, HEADS, LENGTH)
        close(patch(model, target, target, Place(name, step)), run(model, target))
        assert not torch.allclose(patch(model, source, target, Place(name, step)), run(model, target), atol=1e-4)
    with capture(model) as trace:
        model(source)
    close(found, trace[name].head_outputs)
    queries_keys_values = [Place(name, step) for step in ("q", "k", "v")]
    close(patch(model, source, target, queries_keys_values), patch(model, source, target, Place(name, "head_outputs")))


def test_a_whole_stream_put_in_gives_the_other_answer_and_a_position_only_what_follows():
    model = decoder()
    source, target = tokens(1), tokens(2)
    close(patch(model, source, target, "stack.blocks.1"), run(model, source))
    changed = (patch(model, source, target, "stack.blocks.0@4") - run(model, target)).abs().amax((0, 2))
    assert (changed[:4] == 0).all()
    assert (changed[4:] > 0).all()


@pytest.mark.parametrize("make", [decoder, lambda: by_hand("matmul")])
def test_a_hidden_edge_is_as_if_a_mask_hid_it(make):
    model = make()
    name = "stack.blocks.0.mixer" if isinstance(model, Decoder) else "layers.0"
    hidden = Place(name, "scores", query=5, key=3)
    with torch.no_grad(), changing(model, [(hidden, lambda scores: torch.full_like(scores, float("-inf")))]):
        masked = model(tokens())
    close(run(model, tokens(), f"{name}:*:5->3", "hide"), masked)
    only = run(model, tokens(), f"{name}:*:0->0", "hide")  # the first query has no other key
    close(only, run(model, tokens(), f"{name}:*@0", "zero"))


@pytest.mark.parametrize("make", [decoder, linear, lambda: by_hand("matmul"), lambda: by_hand("fused")])
def test_weights_are_spread_or_permuted_among_the_keys_that_are_looked_at(make):
    model = make()
    name = "stack.blocks.0.mixer" if isinstance(model, Decoder) else "layers.0"

    def weights(how):
        with torch.no_grad(), ablate(model, f"{name}:*:*->*", how), capture(model) as trace:
            model(tokens())
        return trace[name].weights

    with torch.no_grad(), capture(model) as plain:
        model(tokens())
    before, permuted = plain[name].weights, weights("permute")
    past = torch.ones(LENGTH, LENGTH).tril()
    close(weights("uniform"), (past / past.sum(-1, keepdim=True)).expand_as(before))
    assert not permuted.allclose(before)
    assert (permuted.triu(1) == 0).all()
    close(permuted.sort(-1).values, before.sort(-1).values)
    assert torch.equal(permuted, weights("permute"))


@pytest.mark.parametrize("way", ["matmul", "einsum", "folded", "fused"])
def test_capture_shows_the_weights_that_an_intervention_leaves(way):
    model = by_hand(way)
    with torch.no_grad():
        with capture(model) as plain:
            model(tokens())
        with ablate(model, "layers.1:2:5->3", "hide"), capture(model) as changed:
            model(tokens(1))
            model(tokens())
    wanted = plain["layers.1"].weights.clone()
    head = wanted.view(-1, HEADS, LENGTH, LENGTH)[:, 2]  # of folded heads too
    head[:, 5, 3] = 0
    head[:, 5] /= head[:, 5].sum(-1, keepdim=True)
    close(changed["layers.1#2"].weights, wanted)
    close(changed["layers.0#2"].weights, plain["layers.0"].weights)


def test_an_edge_set_to_zero_leaves_the_others():
    model = decoder()
    with ablate(model, "stack.blocks.0.mixer:1:5->3"), capture(model) as changed:
        model(tokens())
    with capture(model) as plain:
        model(tokens())
    wanted = plain["stack.blocks.0.mixer"].weights.clone()
    wanted[:, 1, 5, 3] = 0
    close(changed["stack.blocks.0.mixer"].weights, wanted)


def test_means_and_other_samples_stand_in():
    model = decoder()
    place = Place("stack.blocks.0.mixer", "head_outputs", 2)
    plain = activations(model, tokens(), place)[place]
    with torch.no_grad(), ablate(model, place, "mean"):
        mean = capture_heads(model)[:, 2:3]
    close(mean, plain.mean((0, 2), keepdim=True).expand_as(plain))
    with torch.no_grad(), ablate(model, place, "resample"):
        close(capture_heads(model)[:, 2:3], plain.roll(1, 0))
    other = activations(model, tokens(5), place)[place]
    with torch.no_grad(), ablate(model, place, "resample", reference=lambda: model(tokens(5))):
        close(capture_heads(model)[:, 2:3], other)


def capture_heads(model):
    with capture(model) as trace:
        model(tokens())
    return trace["stack.blocks.0.mixer"].head_outputs


def test_a_second_call_is_changed_alone():
    torch.manual_seed(0)
    layer = AroundTorch()
    model = Model(lambda: layer).eval()  # one layer in both places
    both, second = (run(model, tokens(), name) for name in ("layers.0.attention", "layers.0.attention#2"))
    x = model.embedding(tokens())
    close(both, model.output(x))
    close(second, model.output(x + layer(x)))
    heads = [f"layers.0.attention#2:{head}" for head in range(HEADS)]
    bias = layer.attention.out_proj.bias
    close(run(model, tokens(), heads), model.output(x + layer(x) + bias))


def test_interventions_in_one_another_add_up():
    for model, first, second in (
        (decoder(), "stack.blocks.0.mixer:1", "stack.blocks.1.mixer:2"),
        (by_hand("matmul"), "layers.0:1", "layers.1:2"),
    ):
        together = run(model, tokens(), [first, second])
        with ablate(model, first):
            close(run(model, tokens(), second), together)


def test_cross_attention_and_cached_writing_are_changed_too():
    torch.manual_seed(0)
    model = EncoderDecoder(VOCABULARY, VOCABULARY, 16, d_model=WIDTH, n_layers=2, dropout=0.0).eval()
    blind = copy.deepcopy(model)
    without_head(blind.decoder.blocks[0].cross.combiner.to_residual, 1)
    source, target = tokens(1), tokens(2)
    with ablate(model, "decoder.blocks.0.cross:1"):
        close(model(source, target), blind(source, target))
        memory, real = model.encode(source)
        caches = model.decoder.keep(memory)
        x = model.target_embedding(target) * model.scale
        close(model.logits(model.decoder.step(x, caches, 0, real)), blind(source, target))


def test_gradients_flow_through_what_stands_in():
    model = decoder()
    with ablate(model, "stack.blocks.0.mixer:1"):
        model(tokens()).sum().backward()
    values = model.stack.blocks[0].mixer.combiner.to_residual.weight.grad
    width = WIDTH // HEADS
    assert (values[:, width : 2 * width] == 0).all()
    assert (values[:, :width] != 0).any()


@pytest.mark.parametrize("way", ["matmul", "einsum", "exponents", "folded", "fused"])
@pytest.mark.parametrize(
    ("where", "how"), [("layers.0:1", "zero"), ("layers.0:1", "mean"), ("layers.0:*:5->3", "hide")]
)
def test_gradients_flow_through_changed_operations_of_attention_by_hand(way, where, how):
    model = by_hand(way).double()

    def answer():
        with ablate(model, where, how):
            return model(tokens()).square().sum()

    answer().backward()
    for weight in (model.layers[0].qkv.weight, model.layers[1].out.weight, model.embedding.weight):
        step = torch.randn_like(weight) * 1e-5
        with torch.no_grad():
            weight.add_(step)
            above = answer()
            weight.sub_(2 * step)
            below = answer()
            weight.add_(step)
        torch.testing.assert_close((weight.grad * step).sum(), (above - below) / 2, rtol=1e-5, atol=0)


class Counting(nn.Module):
    """A layer that keeps a count of its own, and lets gradients through to some of what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = ByHand(), nn.BatchNorm1d(WIDTH)
        self.fixed = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        found = self.norm(self.attention(x).transpose(1, 2)).transpose(1, 2)
        return found * self.fixed.detach() + self.fixed + found.detach()


def test_gradients_are_those_of_the_code_and_nothing_is_counted_twice():
    torch.manual_seed(0)
    model = Model(Counting).train()
    plain = copy.deepcopy(model)
    with ablate(model, "layers.0.attention:1:5->3"), torch.no_grad():
        expected = model(tokens())
    with ablate(plain, "layers.0.attention:1:5->3"):
        found = plain(tokens())
    found.sum().backward()
    close(found.detach(), expected)
    for name, buffer in plain.named_buffers():
        close(buffer, model.get_buffer(name))
    close(plain.layers[1].fixed.grad, plain.output.weight.sum(0) * tokens().numel())  # not of what is detached


def test_a_path_carries_the_message_of_one_head_to_another_alone():
    for model, one, other in (
        (decoder(), "stack.blocks.0.mixer", "stack.blocks.1.mixer"),
        (by_hand("matmul"), "layers.0", "layers.1"),
    ):
        source, target = tokens(1), tokens(2)
        receiver = Place(other, "q", 2)
        patched = patch_path(model, source, target, f"{one}:1", receiver)
        message = activations(model, source, f"{one}:1")
        with (
            torch.no_grad(),
            changing(model, [(place, lambda _, value=value: value) for place, value in message.items()]),
        ):
            received = activations(model, target, receiver)[receiver]
        with torch.no_grad(), changing(model, [(receiver, lambda _, value=received: value)]):
            close(patched, model(target))
        assert not torch.allclose(patched, run(model, target))


@pytest.mark.parametrize(
    ("sender", "receiver", "said"),
    [
        (f"{MIXERS[0]}:0", f"{MIXERS[1]}:0", "receives nothing: what attentions write is held as it is"),
        (f"{MIXERS[0]}:0", MIXERS[1], "name its q, k or v"),
        (f"{MIXERS[1]}:0", Place(MIXERS[0], "q"), "which does not come before it"),
        (f"{MIXERS[0]}:0", Place(MIXERS[0], "k", 1), "which does not come before it"),
    ],
)
def test_a_path_on_which_nothing_can_pass_is_refused(sender, receiver, said):
    with pytest.raises(SpecError, match=said):
        patch_path(decoder(), tokens(1), tokens(2), sender, receiver)


@pytest.mark.parametrize("grad", [True, False])
def test_attention_by_hand_is_changed_with_and_without_gradients_in_turn(grad):
    model = by_hand("matmul")
    blind = copy.deepcopy(model)
    without_head(blind.layers[0].out, 1)
    with ablate(model, "layers.0:1"):
        for enabled in (grad, not grad, grad):
            with torch.set_grad_enabled(enabled):
                close(model(tokens()), blind(tokens()))


GROWN = {"seen": 0}


class Unsteady(ByHand):
    def forward(self, x):
        GROWN["seen"] += 1
        return super().forward(x if GROWN["seen"] <= 2 else x * 1.0)


@pytest.mark.parametrize(
    ("where", "how", "said"),
    [
        ("stack.blocks.0.mixer:9", "zero", "there is no head 9, only 4"),
        ("stack.blocks.0@99", "zero", "there is no position 99"),
        ("stack.blocks.0.mixer:0:2->99", "hide", "there is no key 99, only 7"),
        ("stack.blocks.0.mixxer", "zero", "no module 'stack.blocks.0.mixxer'; did you mean 'stack.blocks.0.mixer'"),
        ("stack.blocks.0.feedforward:1", "zero", "'stack.blocks.0.feedforward' computes no attention"),
        ("two words", "zero", "is no place in a model: write NAME"),
        ("stack.blocks.0.mixer:1", "skip", "only a whole module can be skipped"),
        ("stack.blocks.0.mixer:1", "hide", "only an edge to a key can be hidden"),
        ("stack.blocks.0.mixer:1", "uniform", "only all that queries look at can be changed by 'uniform'"),
        ("stack.blocks.0.mixer:1:2->1", "permute", "only all that queries look at can be changed by 'permute'"),
        ("stack.blocks.0.mixer:1", "erase", "how"),
        ("embedding", "skip", "returns another shape than it is given"),
    ],
)
def test_what_cannot_be_switched_off_is_said(where, how, said):
    with pytest.raises(SpecError, match=said):
        run(decoder(), tokens(), where, how)


def test_what_does_not_fit_is_said():
    model = decoder()
    with pytest.raises(SpecError, match="the batch has one; give a reference"):
        run(model, tokens(batch=1), "stack.blocks.0.mixer:1", "resample")
    with pytest.raises(SpecError, match="its shape there is"):
        run(model, tokens(), "stack.blocks.0.mixer:1", "resample", reference=lambda: model(tokens()[:, :3]))
    with pytest.raises(SpecError, match="cannot be put in: it is"):
        patch(model, tokens()[:, :3], tokens(), "stack.blocks.0")
    with pytest.raises(SpecError, match=r"step must be one of q, k, v, .*; got 'heads'"):
        Place("stack", "heads")
    with pytest.raises(SpecError, match="has no heads and no keys"):
        Place("stack", "output", head=1)
    with pytest.raises(SpecError, match="no axis of keys"):
        Place("stack", "q", key=1)
    with pytest.raises(SpecError, match="no axis of queries"):
        Place("stack", "v", query=1)


def test_a_model_that_computes_otherwise_each_time_is_refused():
    torch.manual_seed(0)
    model = Model(Unsteady).eval()
    with pytest.raises(ModuleError, match="by other operations than in its first call"):
        run(model, tokens(), "layers.0:2")


def test_places_are_written_as_they_are_read():
    for text in ("a.b", "a.b@3", "a.b#2:1", "a:*", "a:1:2->3", "a:*:*->3", "a:1@4"):
        assert str(Place.parse(text)) == text
