"""On models of other people what is seen, switched off and attributed is what hooks made by hand give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab.inspection import ablate, capture, gradient_times_input, logit_attribution

transformers = pytest.importorskip("transformers")

VOCAB, WIDTH, HEADS, LAYERS, LENGTH, TARGET = 11, 12, 3, 2, 7, 5
D_HEAD = WIDTH // HEADS
POSITION, TOKEN, AGAINST = -2, 3, 5
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@dataclass
class Anchor:
    """A model, and where what is looked at lies in it."""

    model: nn.Module
    attention: str  # of the last layer
    joined: str  # the map behind its joined heads
    embedding: str
    norm: str  # the last one
    weights: str = "attentions"  # in what the model returns

    def inputs(self) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1)
        read = torch.randint(1, VOCAB, (2, LENGTH), generator=generator)
        if "t5" not in type(self.model).__name__.lower():
            return (read,)
        return read, torch.ones_like(read), torch.randint(1, VOCAB, (2, TARGET), generator=generator)

    def part(self, name: str) -> Any:
        return self.model.get_submodule(name)


def gpt2(**given: Any) -> Anchor:
    sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCAB, **sizes, **ends, **given))
    last = "transformer.h.1.attn"
    return Anchor(model, last, f"{last}.c_proj", "transformer.wte", "transformer.ln_f")


def bert(**given: Any) -> Anchor:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 20}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=VOCAB, **sizes, **given))
    last = "bert.encoder.layer.1.attention"
    return Anchor(model, f"{last}.self", f"{last}.output.dense", "bert.embeddings.word_embeddings", "")


def llama(**given: Any) -> Anchor:
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 20}
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=VOCAB, **sizes, num_key_value_heads=1, **given)
    )
    last = "model.layers.1.self_attn"
    return Anchor(model, last, f"{last}.o_proj", "model.embed_tokens", "model.norm")


def t5(**given: Any) -> Anchor:
    sizes = {"d_model": WIDTH, "d_kv": D_HEAD, "num_layers": LAYERS, "num_heads": HEADS, "d_ff": 20}
    ends = {"decoder_start_token_id": 0, "tie_word_embeddings": False}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=VOCAB, **sizes, **ends, **given))
    last = "decoder.block.1.layer.1.EncDecAttention"
    return Anchor(model, last, f"{last}.o", "encoder.embed_tokens", "decoder.final_layer_norm", "cross_attentions")


MAKERS = [gpt2, bert, llama, t5]


def made(make: Any, **given: Any) -> Anchor:
    anchor = make(**given)
    torch.manual_seed(0)
    for weight in anchor.model.parameters():
        nn.init.normal_(weight, std=0.3)
    anchor.model.eval()
    return anchor


@pytest.mark.parametrize("make", MAKERS)
def test_captured_weights_are_those_that_the_model_computes(make: Any) -> None:
    anchor, eager = made(make), made(make, attn_implementation="eager")  # the first one by a fused call, where it can
    with torch.no_grad(), capture(anchor.model) as trace:
        logits = anchor.model(*anchor.inputs()).logits
    with torch.no_grad():
        expected = eager.model(*anchor.inputs(), output_attentions=True)
    torch.testing.assert_close(trace[anchor.attention].weights, expected[anchor.weights][-1], **CLOSE)
    torch.testing.assert_close(logits, expected.logits, **CLOSE)


@pytest.mark.parametrize("make", MAKERS)
def test_a_head_is_off_and_gradients_know_it_as_by_a_hook_before_the_map_behind_it(make: Any) -> None:
    anchor, head = made(make), 1

    def silence(_module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        kept = given[0].clone()
        kept[..., head * D_HEAD : (head + 1) * D_HEAD] = 0
        return (kept,)

    def through(logits: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,) = torch.autograd.grad(logits.square().sum(), anchor.part(anchor.embedding).weight)
        return logits, gradient

    with ablate(anchor.model, f"{anchor.attention}:{head}"):
        found = through(anchor.model(*anchor.inputs()).logits)
    whole = through(anchor.model(*anchor.inputs()).logits)
    with anchor.part(anchor.joined).register_forward_pre_hook(silence):
        expected = through(anchor.model(*anchor.inputs()).logits)
    for mine, by_hand, untouched in zip(found, expected, whole, strict=True):
        torch.testing.assert_close(mine, by_hand, **CLOSE)
        assert not torch.allclose(mine, untouched, **CLOSE)


@pytest.mark.parametrize("make", MAKERS)
def test_gradients_are_those_of_a_hook_on_the_embedding(make: Any) -> None:
    anchor, kept = made(make), []

    def keep(_module: nn.Module, _given: Any, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    found = gradient_times_input(anchor.model, *anchor.inputs(), position=POSITION, token=TOKEN, against=AGAINST)
    with anchor.part(anchor.embedding).register_forward_hook(keep):
        logits = anchor.model(*anchor.inputs()).logits[:, POSITION]
    (logits[:, TOKEN] - logits[:, AGAINST]).sum().backward()
    embedded = kept[0]
    torch.testing.assert_close(found.scores, (embedded * embedded.grad).sum(-1).detach(), **CLOSE)


@pytest.mark.parametrize("make", [gpt2, llama, t5])  # of BERT's logits no linear map is the last
def test_heads_are_parts_of_a_logit_as_hooks_by_hand_have_them(make: Any) -> None:
    anchor, kept = made(make), {}
    found = logit_attribution(anchor.model, *anchor.inputs(), position=POSITION, token=TOKEN, against=AGAINST).parts
    joined, norm, output = anchor.part(anchor.joined), anchor.part(anchor.norm), anchor.model.get_output_embeddings()
    with torch.no_grad():
        for name, part in (("heads", joined), ("stream", norm)):
            part.register_forward_pre_hook(lambda _, given, name=name: kept.update({name: given[0][:, POSITION]}))
        anchor.model(*anchor.inputs())
        matrix = joined.weight.T if isinstance(joined, nn.Linear) else joined.weight  # (width, d_model)
        parts = torch.einsum("bhd,hdm->hbm", kept["heads"].unflatten(-1, (HEADS, -1)), matrix.unflatten(0, (HEADS, -1)))
        stream = kept["stream"]
        if isinstance(norm, nn.LayerNorm):
            parts, stream = (one - one.mean(-1, keepdim=True) for one in (parts, stream))
        scaled = parts / stream.square().mean(-1, keepdim=True).sqrt() * norm.weight
        expected = scaled @ (output.weight[TOKEN] - output.weight[AGAINST])  # (heads, batch)
    for head in range(HEADS):
        torch.testing.assert_close(found[f"{anchor.attention}:{head}"].float(), expected[head], **CLOSE)
