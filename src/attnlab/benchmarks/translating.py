"""Beam search of one encoder-decoder: with keys and values kept and in batches, without, and by transformers."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.benchmarks.measuring.turns import PairedTimes, measure_in_turn
from attnlab.models import EncoderDecoder
from attnlab.models.decoding.generation import EndMarks, Writer, beam_search
from attnlab.models.decoding.writers import writer_for
from attnlab.training.speed.settings import wait_for

VOCAB, WIDTH, HIDDEN, LAYERS, HEADS = 10_000, 128, 256, 4, 4
"""Of the study ``multi30k-tiny``."""
LONGEST = 128
SENTENCES, BATCH, BEAM = 192, 64, 5
SHORTEST_SOURCE, LONGEST_SOURCE = 6, 24
"""Tokens of an image description, from short to long."""
MORE = 3
"""A translation has so many tokens more than the longest source of its batch."""
ROUNDS = 3
PAD, BEGIN, END = 0, 1, 2
REFERENCE = "attnlab, nothing kept, one at a time"


def bench_translating(*, device: str = "cpu", rounds: int = ROUNDS, sentences: int = SENTENCES) -> PairedTimes:
    """Compare ways to translate the same sentences with models of one size and random weights."""
    torch.manual_seed(0)
    model = EncoderDecoder(
        VOCAB, VOCAB, LONGEST, d_model=WIDTH, n_layers=LAYERS, mixer=_attention(), feedforward=_relu()
    )
    model = model.to(device).eval()
    sources = _sources(sentences)
    search = functools.partial(_search_all, model, sources)
    ways: dict[str, Callable[[], float]] = {
        REFERENCE: functools.partial(search, batch=1, cached=False),
        "attnlab, kept, one at a time": functools.partial(search, batch=1, cached=True),
        f"attnlab, nothing kept, batches of {BATCH}": functools.partial(search, batch=BATCH, cached=False),
        f"attnlab, kept, batches of {BATCH}": functools.partial(search, batch=BATCH, cached=True),
    }
    notes = []
    if importlib.util.find_spec("transformers") is not None:
        marian = _marian().to(device).eval()
        ways[f"transformers Marian, kept, batches of {BATCH}"] = functools.partial(_generate_all, marian, sources)
        notes.append(_versions(model, marian))
    else:
        notes.append("transformers is not installed: Marian not measured")
    return measure_in_turn(
        f"translating, {LAYERS} layers, width {WIDTH}, {VOCAB:,} tokens, beam {BEAM}, {sentences} sentences",
        ways,
        reference=REFERENCE,
        unit="ms a sentence",
        rounds=rounds,
        notes=notes,
        warm_up=False,  # a measurement is hundreds of steps long
        device=device,
    )


def _attention() -> dict[str, Any]:
    return {"name": "attention", "n_heads": HEADS}


def _relu() -> dict[str, Any]:
    return {"name": "relu", "d_ff": HIDDEN}


def _sources(count: int) -> list[Int[Tensor, " length"]]:
    """Random sentences, the shortest first."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(SHORTEST_SOURCE, LONGEST_SOURCE + 1, (count,), generator=generator).sort().values
    return [torch.randint(END + 1, VOCAB, (length,), generator=generator) for length in lengths.tolist()]


def _batches(sources: Sequence[Tensor], size: int) -> list[Int[Tensor, "batch length"]]:
    parts = [sources[first : first + size] for first in range(0, len(sources), size)]
    return [nn.utils.rnn.pad_sequence(list(part), batch_first=True, padding_value=PAD) for part in parts]


@final
class _Endless:
    """Let a writer write anything but the end."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.select = writer.select

    def advance(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """The logits of the next token, the end's as low as can be."""
        logits = self._writer.advance(tokens)
        logits[:, END] = -torch.inf
        return logits


@torch.no_grad()
def _search_all(model: nn.Module, sources: Sequence[Tensor], *, batch: int, cached: bool) -> float:
    """The milliseconds a sentence of the lab's search."""
    began = time.perf_counter()
    for source in _batches(sources, batch):
        writer = _Endless(writer_for(model, source, cached=cached))
        beam_search(writer, len(source), EndMarks(BEGIN, END), beam=BEAM, max_length=source.shape[1] + MORE)
    wait_for(next(model.parameters()).device)
    return 1e3 * (time.perf_counter() - began) / len(sources)


@torch.no_grad()
def _generate_all(model: Any, sources: Sequence[Tensor]) -> float:
    """The milliseconds a sentence of ``generate`` of transformers."""
    began = time.perf_counter()
    for source in _batches(sources, BATCH):
        tokens, count = source.to(model.device), source.shape[1] + MORE
        real = (tokens != PAD).long()
        model.generate(tokens, attention_mask=real, num_beams=BEAM, min_new_tokens=count, max_new_tokens=count)
    wait_for(model.device)
    return 1e3 * (time.perf_counter() - began) / len(sources)


def _marian() -> Any:
    """An encoder-decoder of transformers of the same size."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        max_position_embeddings=LONGEST,
        activation_function="relu",
        scale_embedding=True,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        pad_token_id=PAD,
        eos_token_id=END,
        forced_eos_token_id=None,
        decoder_start_token_id=BEGIN,
    )
    return MarianMTModel(config)


def _versions(model: nn.Module, marian: nn.Module) -> str:
    import transformers

    ours, theirs = (sum(parameter.numel() for parameter in one.parameters()) for one in (model, marian))
    return f"transformers: version {transformers.__version__}; {theirs:,} parameters beside attnlab's {ours:,}"
