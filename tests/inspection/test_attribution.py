"""Parts must add up to the logit they are parts of, and attributions be those of models whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.core.errors import ModuleError, SpecError
from attnlab.inspection import (
    Attribution,
    Captured,
    ablate,
    agreement,
    attention_rollout,
    capture,
    gradient_times_input,
    integrated_gradients,
    logit_attribution,
    logit_lens,
)
from attnlab.models import Decoder, EncoderDecoder

BATCH, LENGTH, VOCAB, WIDTH, HEADS, LAYERS = 2, 7, 11, 12, 3, 2
ASKED = {"position": -2, "token": 3, "against": 5}
MIXER = {"name": "attention", "n_heads": HEADS}


def roughened(model: nn.Module) -> nn.Module:
    """The model with no weight at its start: biases and gains count too."""
    torch.manual_seed(1)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model


def decoder(**given: Any) -> nn.Module:
    return roughened(Decoder(VOCAB, LENGTH, d_model=WIDTH, **({"mixer": MIXER, "n_layers": LAYERS} | given)))


def translator(**given: Any) -> nn.Module:
    return roughened(EncoderDecoder(VOCAB, VOCAB, LENGTH, d_model=WIDTH, n_layers=LAYERS, mixer=MIXER, **given))


@pytest.fixture
def tokens() -> Tensor:
    torch.manual_seed(2)
    return torch.randint(1, VOCAB, (BATCH, LENGTH))


@pytest.fixture(scope="module")
def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, bos_token_id=1, eos_token_id=1
    )
    return roughened(transformers.GPT2LMHeadModel(config)).eval()


def assert_whole(found: Attribution, logits: Tensor) -> None:
    expected = logits[:, -2, 3] - logits[:, -2, 5]
    torch.testing.assert_close(found.logit.float(), expected)
    size = sum(part.abs() for part in found.parts.values())
    assert bool((found.remainder.abs() <= 1e-6 * size).all())
    torch.testing.assert_close(sum(found.parts.values()), expected.double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("feedforward", ["gelu", "none"])
def test_parts_add_up_to_the_logit(norm: str, norm_kind: str, tied: bool, feedforward: str, tokens: Tensor) -> None:
    model = decoder(norm=norm, norm_kind=norm_kind, tied=tied, feedforward=feedforward).eval()
    found = logit_attribution(model, tokens, **ASKED)
    assert_whole(found, model(tokens))
    names = set(found.parts)
    for layer in range(LAYERS):
        block = f"stack.blocks.{layer}"
        assert {f"{block}.mixer:{head}" for head in range(HEADS)} | {f"{block}.mixer.bias"} <= names
        assert (f"{block}.feedforward" in names) == (feedforward != "none")
        assert (f"{block}.around_mixer.after.bias" in names) == (norm == "post" and norm_kind == "layer")
    assert {"embedding", "stack.positions"} <= names
    assert ("stack.norm.bias" in names) == (norm == "pre" and norm_kind == "layer")
    assert ("logits.bias" in names) == (not tied)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_parts_of_a_translator_are_those_of_its_decoder(norm: str, tokens: Tensor) -> None:
    model, written = translator(norm=norm).eval(), tokens.flip(1)
    found = logit_attribution(model, tokens, written, **ASKED)
    assert_whole(found, model(tokens, written))
    assert {f"decoder.blocks.{layer}.cross:{head}" for layer in range(LAYERS) for head in range(HEADS)} <= set(
        found.parts
    )
    assert not any(name.startswith("encoder") for name in found.parts)


@pytest.mark.parametrize("combiner", ["project", "concatenate", "sum", "convolution", "talking-heads", "attention"])
def test_heads_are_parts_where_the_combiner_is_linear_in_each(combiner: str, tokens: Tensor) -> None:
    model = decoder(mixer=MIXER | {"combiners": combiner}).eval()
    found = logit_attribution(model, tokens, **ASKED)
    assert_whole(found, model(tokens))
    assert ("stack.blocks.0.mixer:1" in found.parts) == (combiner != "attention")
    assert ("stack.blocks.0.mixer" in found.parts) == (combiner == "attention")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned-concatenated"])
def test_tokens_and_positions_are_told_apart(positions: str, tokens: Tensor) -> None:
    model = decoder(positions=positions, norm="none", n_layers=1, mixer="none", feedforward="none", tied=False).eval()
    found = logit_attribution(model, tokens, **ASKED)
    elsewhere = logit_attribution(model, tokens.roll(1, dims=1), **(ASKED | {"position": -1}))
    assert_whole(found, model(tokens))
    torch.testing.assert_close(found.parts["embedding"], elsewhere.parts["embedding"])
    assert not torch.equal(found.parts["stack.positions"], elsewhere.parts["stack.positions"])


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_without_residual_paths_the_last_sublayer_counts_alone(norm: str, tokens: Tensor) -> None:
    model = decoder(residual=False, norm=norm).eval()
    found = logit_attribution(model, tokens, **ASKED)
    assert_whole(found, model(tokens))
    assert [name for name in found.parts if not name.endswith("bias")] == ["stack.blocks.1.feedforward"]


def test_a_head_that_is_taken_away_adds_nothing(tokens: Tensor) -> None:
    model = decoder()
    with ablate(model, "stack.blocks.1.mixer:2"):
        found = logit_attribution(model, tokens, **ASKED)
    assert not found.parts["stack.blocks.1.mixer:2"].any()
    assert found.parts["stack.blocks.1.mixer:1"].all()


def test_heads_are_told_apart_where_what_they_add_cancels_out(tokens: Tensor) -> None:
    model = decoder().eval()
    mixer = model.stack.blocks[0].mixer
    with capture(model) as trace, torch.no_grad():
        model(tokens)
        heads = trace["stack.blocks.0.mixer"].head_outputs[:, :, ASKED["position"]]  # (batch, heads, d_v)
        rows = mixer.combiner.to_residual.weight.view(WIDTH, HEADS, -1)  # (d_model, heads, d_v)
        for head in range(HEADS):  # the first feature of the stream: large terms, no sum
            rows[0, head] = 10 * torch.linalg.svd(heads[:, head]).Vh[-1]
        mixer.combiner.to_residual.bias[0] = 0
    assert "stack.blocks.0.mixer:2" in logit_attribution(model, tokens, **ASKED).parts


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_of_torch_are_split_too(norm_first: bool, tokens: Tensor) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 17, batch_first=True, norm_first=norm_first)
    layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    model = roughened(nn.Sequential(nn.Embedding(VOCAB, WIDTH), layers, nn.Linear(WIDTH, VOCAB))).eval()
    found = logit_attribution(model, tokens, **ASKED)
    assert_whole(found, model(tokens))
    assert "1.layers.1.linear2" in found.parts


def test_heads_of_gpt2_are_what_its_output_projection_makes_of_them(gpt2: nn.Module, tokens: Tensor) -> None:
    found = logit_attribution(gpt2, tokens, **ASKED)
    kept: list[Tensor] = []
    last, norm = gpt2.transformer.h[-1], gpt2.transformer.ln_f
    with torch.no_grad(), capture(gpt2) as trace, norm.register_forward_pre_hook(lambda _, given: kept.append(*given)):
        assert_whole(found, gpt2(tokens).logits)
    assert {"transformer.wte", "transformer.wpe", "transformer.h.1.mlp"} <= set(found.parts)
    rows = slice(WIDTH // HEADS, 2 * WIDTH // HEADS)  # of head 1
    vector = trace["transformer.h.1.attn"].head_outputs[:, 1, -2] @ last.attn.c_proj.weight[rows]
    scale = (kept[0][:, -2].var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()
    direction = gpt2.lm_head.weight[3] - gpt2.lm_head.weight[5]
    expected = ((vector - vector.mean(dim=-1, keepdim=True)) / scale * norm.weight) @ direction
    torch.testing.assert_close(found.parts["transformer.h.1.attn:1"].float(), expected)


class Tokens(nn.Module):
    """An embedding, layers over (batch, length, width), and logits."""

    def __init__(self, *layers: nn.Module, read: Callable[[Tensor], Tensor] = torch.clone) -> None:
        super().__init__()
        self.embedding, self.layers, self.logits = nn.Embedding(VOCAB, VOCAB), nn.ModuleList(layers), nn.Identity()
        self.logits, self.read = nn.Linear(VOCAB, VOCAB, bias=False), read
        for part in (self.embedding, self.logits):
            nn.init.eye_(part.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.logits(self.read(x))


class CopyFirst(nn.Module):
    """Add the first position twice; what is attended to besides has no value."""

    def __init__(self, besides: float = 0.0) -> None:
        super().__init__()
        self.besides, self.found = besides, nn.Identity()
        self.values = nn.Linear(VOCAB, VOCAB, bias=False)
        nn.init.eye_(self.values.weight)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.full((x.shape[1], x.shape[1]), self.besides).index_fill(1, torch.tensor(0), 0.0)
        valued = torch.arange(x.shape[1])[:, None] == 0
        weights = scores.softmax(dim=-1)
        return x + self.values(2 * (weights @ (valued * x)) / weights[:, :1])


def test_a_copied_token_has_its_logit_from_what_copies_it() -> None:
    model, x = Tokens(CopyFirst()), torch.tensor([[4, 1, 7]])
    copied = logit_attribution(model, x, position=-1, token=4)
    own = logit_attribution(model, x, position=-1, token=7)
    assert copied.parts == {"embedding": torch.tensor([0.0]), "layers.0.values": torch.tensor([2.0])}
    assert own.parts == {"embedding": torch.tensor([1.0]), "layers.0.values": torch.tensor([0.0])}
    assert copied.logit.item() == 2.0


@pytest.mark.parametrize("attribute", [gradient_times_input, integrated_gradients])
def test_a_copied_token_goes_back_to_where_it_stands(attribute: Callable[..., Any]) -> None:
    model, x = Tokens(CopyFirst()), torch.tensor([[4, 1, 7]])
    torch.testing.assert_close(attribute(model, x, position=-1, token=4).scores, torch.tensor([[2.0, 0.0, 0.0]]))
    torch.testing.assert_close(attribute(model, x, position=-1, token=7).scores, torch.tensor([[0.0, 0.0, 1.0]]))
    against = attribute(model, x, position=-1, token=4, against=7)
    torch.testing.assert_close(against.scores, torch.tensor([[2.0, 0.0, -1.0]]))
    torch.testing.assert_close(against.change, torch.tensor([1.0]))


@pytest.mark.parametrize("shape", [(BATCH, LENGTH), (BATCH, LENGTH, 5)])
def test_a_linear_model_is_explained_by_weights_times_input(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    linear, x = nn.Linear(torch.Size(shape[1:]).numel(), VOCAB), torch.randn(shape)
    model = nn.Sequential(nn.Flatten(), linear)
    expected = (x * linear.weight[3].view(shape[1:])).reshape(BATCH, LENGTH, -1).sum(-1)
    for found in (
        gradient_times_input(model, x, position=-1, token=3),
        integrated_gradients(model, x, position=-1, token=3, steps=2),
    ):
        torch.testing.assert_close(found.scores, expected)
        torch.testing.assert_close(found.error, torch.zeros(BATCH), atol=1e-5, rtol=0)
    moved = integrated_gradients(model, x, position=-1, token=3, baseline=x.mean(dim=0))
    torch.testing.assert_close(moved.change, model(x)[:, 3] - model(x.mean(dim=0, keepdim=True))[:, 3])
    torch.testing.assert_close(moved.error, torch.zeros(BATCH), atol=1e-5, rtol=0)


def test_integrated_gradients_add_up_better_the_more_steps_they_take(gpt2: nn.Module, tokens: Tensor) -> None:
    for model in (decoder(), decoder(positions="none"), gpt2):
        few, some, many = (
            integrated_gradients(model, tokens, steps=steps, **ASKED).error.abs().max() for steps in (2, 16, 64)
        )
        assert few > 4 * some > 16 * many
        assert gradient_times_input(model, tokens, **ASKED).error.abs().max() > few


def test_a_logit_goes_back_to_what_is_read_or_to_what_is_written(tokens: Tensor) -> None:
    model = translator(embeddings="shared", dropout=0.0)
    blank = torch.zeros_like(tokens)  # padding: nothing may attend to it
    read, written = (integrated_gradients(model, tokens, tokens, of=of, steps=36, **ASKED) for of in (0, 1))
    assert not torch.allclose(read.scores, written.scores)
    assert not written.scores[:, -1].any()  # behind the position that is asked about
    assert read.scores[:, -1].all()
    for found in (read, written):
        assert bool((found.error.abs() < 0.01 * found.scores.abs().sum(dim=-1)).all())
    assert not integrated_gradients(model, blank, tokens, of=0, steps=1, **ASKED).scores.any()


def test_the_lens_reads_gpt2_as_hooks_by_hand_do(gpt2: nn.Module, tokens: Tensor) -> None:
    streams: list[Tensor] = []
    hooks = [gpt2.transformer.h[0].register_forward_pre_hook(lambda _block, given: streams.append(given[0]))]
    for block in gpt2.transformer.h:
        first = lambda output: output if torch.is_tensor(output) else output[0]  # noqa: E731
        hooks.append(block.register_forward_hook(lambda _block, _given, output: streams.append(first(output))))
    with torch.no_grad():
        answer = gpt2(tokens).logits
        expected = torch.stack([gpt2.lm_head(gpt2.transformer.ln_f(stream)) for stream in streams])
    for hook in hooks:
        hook.remove()
    found = logit_lens(gpt2, tokens)
    assert found.shape == (LAYERS + 1, BATCH, LENGTH, VOCAB)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found[-1], answer)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_lens_shows_tokens_before_the_first_block_and_the_answer_after_the_last(norm: str, tokens: Tensor) -> None:
    model = decoder(norm=norm).eval()
    found = logit_lens(model, tokens)
    torch.testing.assert_close(found[0], model.logits(model.stack.norm(model.stack.positions(model.embedding(tokens)))))
    torch.testing.assert_close(found[-1], model(tokens))
    assert logit_lens(translator(norm=norm), tokens, tokens).shape == (LAYERS + 1, BATCH, LENGTH, VOCAB)


def test_nothing_is_left_on_the_model(tokens: Tensor) -> None:
    model = decoder(dropout=0.5).train()
    model.stack.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    logit_attribution(model, tokens, **ASKED)
    logit_lens(model, tokens)
    integrated_gradients(model, tokens, steps=1, **ASKED)
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(weight.grad is None for weight in model.parameters())


class Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(VOCAB, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.linear(x))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (decoder(block="literal"), r"stack.blocks.0 \(LiteralBlock\) changes the stream by more than sums"),
        (decoder(block="literal", residual=False), r"LiteralBlock\) changes the stream by more than sums"),
        (Tokens(Rectified()), r"layers.0 \(Rectified\) changes the stream by more than sums"),
        (decoder(readout="window", tied=False), "has no list of layers"),
        (Tokens(CopyFirst(), read=torch.tanh), "has no list of layers"),
        (Tokens(), "has no list of layers"),
        (Tokens(CopyFirst(), read=nn.Linear(VOCAB, VOCAB)), "between the last layer and the logits stands read;"),
    ],
)
def test_what_has_no_parts_is_refused(model: nn.Module, said: str, tokens: Tensor) -> None:
    with pytest.raises(ModuleError, match=said):
        logit_attribution(model, tokens, position=-1, token=3)


def test_an_output_that_is_not_linear_is_refused() -> None:
    model = Tokens(CopyFirst())
    model.logits = nn.Softplus()
    with pytest.raises(ModuleError, match="logits leads to the logits by something else than a linear map"):
        logit_attribution(model, torch.tensor([[4, 1, 4]]), position=-1, token=4)


@pytest.mark.parametrize("attribute", [logit_attribution, gradient_times_input, integrated_gradients])
def test_numbers_outside_the_output_are_refused(attribute: Callable[..., Any], tokens: Tensor) -> None:
    for name, size in (("position", LENGTH), ("token", VOCAB), ("against", VOCAB)):
        with pytest.raises(ModuleError, match=f"{name} must lie within the {size} of the model's output; got {size}"):
            attribute(decoder(), tokens, **(ASKED | {name: size}))


class Counting(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(tokens, VOCAB).float()


class Silent(nn.Module):
    def forward(self, tokens: Tensor) -> str:
        del tokens
        return "three"


def test_inputs_that_cannot_be_followed_are_refused(tokens: Tensor) -> None:
    with pytest.raises(ModuleError, match=r"no nn.Embedding of Counting reads input 0 as it is given"):
        gradient_times_input(Counting(), tokens, **ASKED)
    with pytest.raises(ModuleError, match="must return a tensor, or an object with logits; got str"):
        gradient_times_input(Silent(), tokens, **ASKED)
    with pytest.raises(ModuleError, match="of must name one of the 1 inputs by its number, from 0; got 1"):
        gradient_times_input(decoder(), tokens, of=1, **ASKED)
    with pytest.raises(SpecError, match="steps must be at least 1; got 0"):
        integrated_gradients(decoder(), tokens, steps=0, **ASKED)
    with pytest.raises(SpecError, match=r"must broadcast to the embedded input, \(2, 7, 12\); got \(5,\)"):
        integrated_gradients(decoder(), tokens, baseline=torch.zeros(5), **ASKED)


def test_rollout_multiplies_layers_with_half_of_each_passing_by(tokens: Tensor) -> None:
    model = decoder()
    with torch.no_grad(), capture(model) as trace:
        model(tokens)
    first, second = (trace[f"stack.blocks.{layer}.mixer"].weights.mean(dim=1) for layer in range(LAYERS))
    eye = torch.eye(LENGTH)
    found = attention_rollout(trace)
    torch.testing.assert_close(found, (second + eye) @ (first + eye) / 4)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(BATCH, LENGTH))


def test_rollout_refuses_what_is_no_stack_of_self_attention(tokens: Tensor) -> None:
    model = translator()
    with torch.no_grad(), capture(model) as trace:
        model(tokens, tokens[:, :5])
    with pytest.raises(
        SpecError, match=r"decoder.blocks.0.mixer has \(batch, q_len, k_len\) \(2, 5, 5\), the first one"
    ):
        attention_rollout(trace)
    with pytest.raises(SpecError, match="the trace has none"):
        attention_rollout({"alone": Captured()})


def test_agreement_is_of_orders_by_size() -> None:
    one = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    assert agreement(one, -3 * one).by_query.tolist() == [1.0, 1.0]
    mixed = agreement(one, one.flip(-1) * torch.tensor([[1.0], [-1.0]]))
    assert (mixed.mean, mixed.spread) == (-1.0, 0.0)
    half = agreement(one, torch.stack((one[0], 1 - one[1])))
    assert (half.mean, half.spread) == (0.0, 1.0)


def test_keys_that_nobody_sees_agree_for_nothing() -> None:
    one, other = torch.tensor([0.2, 0.8, 0.0, 0.0, 0.0]), torch.tensor([0.9, 0.4, 0.0, 0.0, 0.0])
    assert agreement(one, other).by_query.tolist() == -1.0
    first = torch.tensor([[1.0, 0.0], [0.3, 0.7]])
    found = agreement(first, first)
    assert found.by_query.isnan().tolist() == [True, False]
    assert (found.mean, found.spread) == (1.0, 0.0)


def test_attention_to_what_has_no_value_shows_as_disagreement() -> None:
    x = torch.tensor([[4, 1, 7, 2, 9]])

    def compare(besides: float) -> float:
        model = Tokens(CopyFirst(besides))
        with capture(model) as trace:
            model(x)
        scores = integrated_gradients(model, x, position=-1, token=4).scores
        return agreement(attention_rollout(trace)[:, -1, :-1], scores[:, :-1]).mean

    assert compare(besides=-3.0) == pytest.approx(1.0)
    assert compare(besides=3.0) == pytest.approx(-1.0)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(SpecError, match=r"agreement needs two of one shape; got \(2, 3\) and \(2, 4\)"):
        agreement(torch.ones(2, 3), torch.ones(2, 4))
    with pytest.raises(SpecError, match="no query has two keys that are weighed differently"):
        agreement(torch.ones(2, 3), torch.rand(2, 3))
