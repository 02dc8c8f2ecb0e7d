"""Checkpoints of transformers put to use like trained runs: texts continued, sentences translated."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import tokenizers as hf

from attnlab.core.errors import DataError, SpecError
from attnlab.core.files import read_json
from attnlab.core.machine import require_device
from attnlab.models.from_checkpoint import TOKENIZER, pretrained, read_tokenizer
from attnlab.models.pretrained.checkpoint import CONFIG, Checkpoint, folder_of, is_checkpoint, open_checkpoint, reading
from attnlab.studies.using.kept_task import KeptTask
from attnlab.studies.using.trained import Trained, load_run
from attnlab.tasks.codecs import MarkTokens

GENERATION = "generation_config.json"
NAME = "pretrained"
"""What stands in the place of a task's name."""


@final
@dataclass(frozen=True)
class StoredTokenizer:
    """Turn texts into the numbers of a checkpoint's ``tokenizer.json`` and back, with the marks that it adds."""

    folder: Path  # of the checkpoint
    unknown: ClassVar[None] = None  # pieces know any word

    @functools.cached_property
    def wrapped(self) -> hf.Tokenizer:
        """The tokenizer; raise `DataError` if the checkpoint has none."""
        path = self.folder / TOKENIZER
        if not path.is_file():
            raise DataError(
                f"{self.folder} has no {TOKENIZER}, so texts cannot be read: save the fast tokenizer of transformers "
                "beside the model, or give tokens to the model itself"
            )
        found = read_tokenizer(path)
        found.no_truncation()
        found.no_padding()
        return found

    @property
    def lowercase(self) -> bool:
        """Whether capitals are read as small letters."""
        normalizer = self.wrapped.normalizer
        return normalizer is not None and normalizer.normalize_str("A").endswith("a")

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences."""
        return [one.ids for one in self.wrapped.encode_batch(list(sentences))]

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """The sentences of tokens, without marks."""
        return self.wrapped.decode_batch([list(one) for one in tokens])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Each token as a person reads it."""
        decode = functools.partial(self.wrapped.decode, skip_special_tokens=False)
        behind = (decode([token, token])[len(decode([token])) :] for token in tokens)  # with the blank before a word
        return [
            one or self.wrapped.id_to_token(token) or f"<{token}>" for one, token in zip(behind, tokens, strict=True)
        ]

    def to_json(self) -> Any:
        """The whole tokenizer in Hugging Face's JSON form."""
        return read_json(self.folder / TOKENIZER)


@final
@dataclass(frozen=True)
class StoredTextCodec:
    """Say how a text becomes tokens for a checkpoint that reads one sequence."""

    tokenizer: StoredTokenizer  # the checkpoint's
    context: int  # tokens the model is given at most
    end: int | None  # the token that ends a text
    kind: Literal["text", "tokens"]  # of a model that continues a text, and of one that does not
    pads: ClassVar[bool] = False  # windows of one length

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return self.tokenizer.encode([text])[0]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return self.tokenizer.decode([tokens])[0]

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Words, or parts of words."""
        return self.tokenizer.pieces(tokens)


@final
@dataclass(frozen=True)
class StoredSentenceCodec:
    """Say how sentences become tokens for a checkpoint that reads one sequence and writes another."""

    tokenizer: StoredTokenizer  # the checkpoint's
    max_length: int  # tokens of the longest sentence
    marks: MarkTokens  # what pads, begins and ends a sequence
    banned: tuple[int, ...]  # tokens that are never written
    beam: int  # beginnings that are kept of each translation
    alpha: float = 0.6  # as the lab's tasks have it; transformers divides by another penalty
    languages: tuple[str, str] = ("source", "target")  # unknown
    kind: ClassVar[Literal["sentences"]] = "sentences"  # by which `translate` knows it
    pads: ClassVar[bool] = True  # whether what is shorter than the rest of its batch is filled up
    dictionary: ClassVar[None] = None  # of words
    replace_unknown: ClassVar[bool] = False  # whether unknown words are replaced by it
    coverage: ClassVar[float] = 0.0  # weight of the penalty for passing over some of the source

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The tokens of sentences; an empty one has none."""
        stripped = [sentence.strip() for sentence in sentences]
        return [tokens if text else [] for text, tokens in zip(stripped, self.tokenizer.encode(stripped), strict=True)]

    def writes_with(self, other: StoredSentenceCodec) -> bool:
        """Whether models of both can write one text together."""
        return self.tokenizer.to_json() == other.tokenizer.to_json()


def load_pretrained(name: str | Path, *, device: str = "cpu") -> Trained:
    """Load a checkpoint of transformers as a model of the lab's own parts.

    Parameters
    ----------
    name : str or Path
        A folder with ``config.json``, ``model.safetensors`` (or its parts and their index) and, for texts,
        ``tokenizer.json``; or the name of a model that lies in Hugging Face's cache on this machine.
    device : str
        Where to put the model.

    Returns
    -------
    Trained
        The model in evaluation mode, float32, and what its tokens mean: `generate` continues texts with a GPT-2 or a
        Llama, `translate` writes with a T5 or a Marian.

    Raises
    ------
    DataError
        If a file is missing or damaged, or the checkpoint has other tensors than its config asks for.
    SpecError
        If its kind is not known, a field of its config has no part here, or there is no such device.

    Notes
    -----
    transformers is not needed. Answers equal its answers to rounding, where padding is masked: a `TokenEncoder` and an
    `EncoderDecoder` never look at the padding token. Of several tokens that end a text, the first is known.

    Examples
    --------
    ``attnlab.load_pretrained("./gpt2").model(tokens)``
    """
    require_device(device)
    checkpoint = open_checkpoint(name)
    model = pretrained(str(checkpoint.folder)).to(device).eval()
    sizes = {name: size for name, size in checkpoint.spec.items() if name.endswith(("vocab_size", "max_length"))}
    return Trained(checkpoint.folder, model, KeptTask(checkpoint.folder, NAME, sizes, {}, _codec_of(checkpoint)))


def load_trained(folder: Path, *, which: str = "last", device: str = "cpu") -> Trained:
    """The model of a run, as `load_run` loads it, or of a checkpoint of transformers, as `load_pretrained` does.

    A checkpoint is a folder, or the name of a model in Hugging Face's cache.

    Raises
    ------
    DataError, RunError
        As the two, or if the folder of a checkpoint has no weights in safetensors.
    SpecError
        As the two, or if the best weights of a checkpoint are asked for, which has one set of them.
    """
    folder = folder_of(folder)
    if not is_checkpoint(folder):
        if (folder / CONFIG).is_file():
            raise DataError(f"{folder} has a {CONFIG} and no weights beside it: save them as safetensors")
        return load_run(folder, which=which, device=device)
    if which != "last":
        raise SpecError(f"--weights {which} is of a run; {folder} is a checkpoint, which has one set of weights")
    return load_pretrained(folder, device=device)


def _codec_of(checkpoint: Checkpoint) -> Any:
    """What the tokens of a checkpoint mean; what is said of writing stands in a file of its own, or in the config."""
    path, spec = checkpoint.folder / GENERATION, checkpoint.spec
    said: Mapping[str, Any] = {**checkpoint.config, **(read_json(path) if path.is_file() else {})}
    where = path if path.is_file() else checkpoint.folder / CONFIG
    end, begin = (_token_in(said, name, where) for name in ("eos_token_id", "decoder_start_token_id"))
    tokenizer = StoredTokenizer(checkpoint.folder)
    if spec["name"] != "encoder-decoder":
        kind = "text" if spec["name"] == "decoder" else "tokens"
        return StoredTextCodec(tokenizer, spec["max_length"], end, kind)
    marks = MarkTokens(spec["pad"], spec["pad"] if begin is None else begin, 0 if end is None else end)
    with reading(where):
        banned = tuple(word[0] for word in said.get("bad_words_ids") or () if len(word) == 1)
    return StoredSentenceCodec(tokenizer, spec["max_length"], marks, banned, said.get("num_beams") or 1)


def _token_in(said: Mapping[str, Any], name: str, where: Path) -> int | None:
    """A token of a file, the first where there are several; None where there is none."""
    found = said.get(name)
    first = next(iter(found), None) if isinstance(found, list) else found
    if first is not None and not isinstance(first, int):
        raise DataError(f"{where} is damaged: '{name}' must be the number of a token; got {found!r}")
    return first
