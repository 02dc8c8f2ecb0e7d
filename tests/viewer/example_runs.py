"""Runs as a study leaves them, with models that are drawn and not trained: of a text, and of two languages."""

from __future__ import annotations

import torch

from attnlab.core.files import write_json
from attnlab.studies.define.assemble import build_model_offered, build_task
from attnlab.tasks.codecs import CharacterCodec, SentenceCodec, codec_of
from attnlab.text.characters import Vocabulary
from attnlab.text.tokenizers import TOKENIZERS
from attnlab.training.keeping.checkpoints import save_checkpoint, weights_of

TEXT = "a dog and a cat"
CHARACTERS = "".join(sorted({*TEXT, *"efghijklmnopqrs\n<>/'=(),"}))
CONTEXT = 41
SENTENCES = [
    "two dogs run .",
    "a cat sees two dogs .",
    "the old man sleeps while two dogs run and a cat sees two dogs run .",
]
ATTENTION = {"name": "attention", "n_heads": 4, "heads": {"name": "grouped", "n_kv_heads": 2}}
DECODER = {"name": "decoder", "d_model": 24, "n_layers": 2, "mixer": ATTENTION}
TRANSLATOR = {"name": "encoder-decoder", "d_model": 24, "n_layers": 1, "mixer": {"name": "attention", "n_heads": 2}}
SHOWN = {"predictions": {"kind": "text", "labels": [list(TEXT)]}, "attention": None}
LOUD = 3.0  # how much larger weights are than drawn, so that predictions differ


def text_run(folder, model=None, *, seed=0, **beside):
    """A run of a language model of characters."""
    arguments = {"vocab_size": len(CHARACTERS), "max_length": CONTEXT}
    codec = CharacterCodec(Vocabulary([CHARACTERS]), CONTEXT)
    return _run(folder, "char-lm", model or DECODER, arguments, codec, seed, {"inside.json": SHOWN, **beside})


def run_with_data(folder):
    """A run of a language model of characters whose data are there."""
    folder.mkdir(exist_ok=True)
    text = folder / "text.txt"
    text.write_text("".join(f"{number} cats and {number} dogs\n" for number in range(200)))
    spec = {"name": "char-lm", "text": str(text), "context": 20, "batch": 4}
    task = build_task(spec)
    torch.manual_seed(0)
    model = build_model_offered(DECODER, task.model_arguments())
    save_checkpoint(folder / "last", weights_of(model), {"step": 7})
    write_json(folder / "spec.json", {"task": spec, "model": DECODER})
    kept = {"name": "char-lm", "model_arguments": dict(task.model_arguments()), "data": task.describe()}
    write_json(folder / "task.json", {**kept, "codec": codec_of(task).to_json()})
    write_json(folder / "inside.json", SHOWN)
    return folder


def translation_run(folder, model=None, *, seed=0, tokenizer="words"):
    """A run of a translation model."""
    made = TOKENIZERS[tokenizer]().train([*SENTENCES, *map(str.upper, SENTENCES)])
    codec = SentenceCodec(made, ("en", "de"), max_length=30, beam=2, alpha=0.6)
    sizes = {"source_vocab_size": made.size, "target_vocab_size": made.size, "pad": codec.marks.pad}
    pairs = [{"source": one, "target": one.upper()} for one in SENTENCES]
    shown = {"inside.json": {"predictions": {"kind": "translation", "pairs": pairs}, "attention": None}}
    return _run(folder, "translation", model or TRANSLATOR, {**sizes, "max_length": 30}, codec, seed, shown)


def _run(folder, task, spec, arguments, codec, seed, files):
    torch.manual_seed(seed)
    model = build_model_offered(spec, arguments)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(LOUD)
    save_checkpoint(folder / "last", weights_of(model), {"step": 7})
    write_json(folder / "spec.json", {"task": {"name": task}, "model": spec})
    kept = {"name": task, "model_arguments": arguments, "data": {}, "codec": codec.to_json()}
    for name, content in {"task.json": kept, **files}.items():
        write_json(folder / name, content)
    return folder
