"""What the `translation` task reads: a corpus that is tokenized once and kept on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Int64

from attnlab.core.build import Spec, build, is_path, parse, path_of
from attnlab.core.cache import cache_folder
from attnlab.core.errors import DataError
from attnlab.core.sizes import require_known
from attnlab.tasks.translation.corpus_parts import LeftOut, Part, files_of, languages_of, parts_of
from attnlab.text.bpe_dropout import SampledBpe
from attnlab.text.parallel import Pair
from attnlab.text.token_store import TokenStore, TokenWriter
from attnlab.text.tokenizers import TOKENIZERS, AbstractTokenizer, Tokenizer

FORM = 4
"""Raised when what is kept on disk changes, so that older folders are not read."""
AT_A_TIME = 10_000  # pairs that are tokenized together
SUSPICIOUS_OVERLAP = 0.05  # of held-out sources that stand in the training part
Encoded = tuple[list[int], list[int]]
TOO_LONG, EMPTY = "longer than max_length", "one side empty"  # why a pair is left out


@final
@dataclass(frozen=True)
class Sides:
    """Hold the tokens of one part."""

    source: TokenStore  # what is read, without marks
    target: TokenStore  # what is to be written, without marks
    target_words: int  # words of all targets, each sentence's end counted as one

    def __len__(self) -> int:
        return len(self.source)

    @functools.cached_property
    def longest(self) -> Int64[np.ndarray, " pairs"]:
        """The length of each pair's longer side, the mark of the target counted."""
        return np.maximum(self.source.lengths(), self.target.lengths() + 1)

    def target_tokens(self) -> int:
        """The number of tokens to be written, end marks counted."""
        return int(self.target.lengths().sum()) + len(self)


@final
@dataclass(frozen=True)
class TranslationData:
    """Hold a tokenized corpus."""

    corpus: str  # as it was asked for
    languages: tuple[str, str]  # codes, from and to
    tokenizer: Tokenizer  # of both languages
    parts: Mapping[str, Sides]
    """"train", where every pair stands once for each of its segmentations, "validation" and perhaps "test"."""
    known: Mapping[str, Any]  # what was found out while reading: hashes, counts, overlap
    texts: Mapping[str, Part]  # where the sentences of each part are
    test: str | None  # which part is the test part

    @classmethod
    def load(cls, corpus: str, pair: str, *, tokenizer: Spec, max_length: int, test: str | None) -> TranslationData:
        """A corpus, tokenized if it was not yet."""
        languages = languages_of(pair)
        texts = parts_of(corpus, languages, test=test)
        trainer = build(tokenizer, TOKENIZERS, axis="tokenizer")
        hashes = {part: [_sha256(path) for path in files_of(one.text)] for part, one in texts.items()}
        lines = {part: [one.start, one.stop] for part, one in texts.items()}
        identity = {"form": FORM, "hashes": hashes, "lines": lines, "tokenizer": tokenizer, "max_length": max_length}
        name, _ = parse(tokenizer, "tokenizer")
        if is_path(name):
            identity["code"] = _sha256(path_of(name))
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        folder = cache_folder() / "tokens" / digest[:32]
        if not (folder / "known.json").is_file():
            _prepare(folder, texts, trainer, max_length, {"hashes": hashes})
        known = json.loads((folder / "known.json").read_text(encoding="utf-8"))
        made = Tokenizer.from_json(json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))
        try:
            parts = {part: _sides(folder, part, known["words"][part]) for part in texts}
        except DataError as error:
            raise DataError(f"{error}; remove {folder} to tokenize the corpus again") from error
        return cls(corpus, languages, made, parts, known, texts, test)

    def sentences(self, part: str) -> list[Pair]:
        """A held-out part as people wrote it."""
        return self.texts[part].sentences

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the corpus."""
        found = []
        for part, reasons in self.known["left_out"].items():
            for reason, fields in reasons.items():
                left_out = LeftOut(**fields)
                if left_out.count:
                    found.append(f"pairs of the {part} part left out, {reason}: {left_out.count:,} ({left_out})")
        for part, shared in self.known["shared"].items():
            share = shared / len(self.parts[part])
            if share >= SUSPICIOUS_OVERLAP:
                found.append(
                    f"{share:.1%} of the {part} part's source sentences stand in the training part (suspicious from "
                    f"{SUSPICIOUS_OVERLAP:.0%}): what is measured is partly memory"
                )
        return tuple(found)

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        return {
            "corpus": self.corpus,
            "languages": list(self.languages),
            "test": self.test,
            "sha256": self.known["hashes"],
            "parts": {part: len(sides) // self._segmentations(part) for part, sides in self.parts.items()},
            "left_out": {
                reason: sum(reasons[reason]["count"] for reasons in self.known["left_out"].values())
                for reason in (TOO_LONG, EMPTY)
            },
            "vocab_size": self.tokenizer.size,
            "shared_with_train": self.known["shared"],
            "segmentations": self.known["segmentations"],
        }

    def _segmentations(self, part: str) -> int:
        """How often each pair stands in a part."""
        return self.known["segmentations"] if part == "train" else 1


def held_out_pairs(data: Mapping[str, Any], part: str) -> list[Pair]:
    """A held-out part as people wrote it, for a run that keeps its own tokenizer."""
    require_known("part", part, tuple(name for name in data["parts"] if name != "train"))
    source, target = data["languages"]
    text = parts_of(data["corpus"], (source, target), test=data["test"], only=part)[part]
    if [_sha256(path) for path in files_of(text.text)] != data["sha256"][part]:
        raise DataError(f"the {part} part of {data['corpus']} has changed since the run was made")
    return text.sentences


def _sides(folder: Path, part: str, target_words: int) -> Sides:
    return Sides(TokenStore(folder / f"{part}-source"), TokenStore(folder / f"{part}-target"), target_words)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- tokenizing ----


def _prepare(folder: Path, texts: Mapping[str, Part], trainer: Any, max_length: int, known: dict[str, Any]) -> None:
    """Train the tokenizer, tokenize every part, and put all into a folder that is there only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
    try:
        tokenizer = trainer.train(itertools.chain.from_iterable(pair for _, pair in texts["train"].pairs()))
        left_out = {part: {TOO_LONG: LeftOut(), EMPTY: LeftOut()} for part in texts}
        sampler = trainer.sampler(tokenizer) if isinstance(trainer, AbstractTokenizer) else None
        known["segmentations"] = sampler.segmentations if sampler else 1
        words = {}
        for part, text in texts.items():
            words[part] = _tokenize(
                temporary,
                part,
                text,
                tokenizer,
                sampler if part == "train" else None,
                max_length=max_length,
                left_out=left_out[part],
            )
        numbers = {part: {why: asdict(one) for why, one in reasons.items()} for part, reasons in left_out.items()}
        known |= {"words": words, "left_out": numbers, "shared": _shared(texts)}
        (temporary / "tokenizer.json").write_text(json.dumps(tokenizer.to_json()), encoding="utf-8")
        (temporary / "known.json").write_text(json.dumps(known), encoding="utf-8")
        with contextlib.suppress(OSError):  # another process was faster
            os.replace(temporary, folder)
        if not (folder / "known.json").is_file():  # a part of what was there
            shutil.rmtree(folder)
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _tokenize(
    folder: Path,
    part: str,
    text: Part,
    tokenizer: Tokenizer,
    sampler: SampledBpe | None,
    *,
    max_length: int,
    left_out: Mapping[str, LeftOut],
) -> int:
    """Write one part's tokens and return the number of its target words."""
    words = kept = 0
    pairs = text.pairs(left_out[EMPTY])
    with TokenWriter(folder / f"{part}-source") as sources, TokenWriter(folder / f"{part}-target") as targets:
        while some := list(itertools.islice(pairs, AT_A_TIME)):
            encoded = _encoded(tokenizer, sampler, [pair for _, pair in some])
            for (number, pair), (usual, drawn) in zip(some, encoded, strict=True):
                length = _longest(usual)
                if length <= max_length:
                    for one in drawn or [usual]:
                        source, target = one if _longest(one) <= max_length else usual
                        sources.put(source)
                        targets.put(target)
                    words += len(pair.target.split()) + 1
                    kept += 1
                elif part == "train":
                    left_out[TOO_LONG].add(number)
                else:
                    where = files_of(text.text)[0 if len(usual[0]) == length else -1]
                    raise DataError(
                        f"{where}, line {number}: the pair has {length} tokens and max_length is {max_length}; give a "
                        f"larger max_length, as no sentence of the {part} part is left out in silence"
                    )
    if not kept:
        raise DataError(f"the {part} part has no pair with two sides of at most {max_length} tokens")
    return words


def _encoded(
    tokenizer: Tokenizer, sampler: SampledBpe | None, pairs: Sequence[Pair]
) -> Iterator[tuple[Encoded, list[Encoded]]]:
    """The tokens of both sides of pairs, as the tokenizer cuts them and as a sampler does, if there is one."""
    usual = zip(*(tokenizer.encode([pair[side] for pair in pairs]) for side in range(2)), strict=True)
    for pair, tokens in zip(pairs, usual, strict=True):
        yield tokens, list(zip(*map(sampler.encode, pair), strict=True)) if sampler else []


def _longest(tokens: Encoded) -> int:
    """The length of a pair's longer side, the mark of the target counted."""
    source, target = tokens
    return max(len(source), len(target) + 1)


def _shared(texts: Mapping[str, Part]) -> dict[str, int]:
    """For each held-out part how many of its sources stand in the training part."""
    held_out = {part: [pair.source for _, pair in text.pairs()] for part, text in texts.items() if part != "train"}
    wanted = set(itertools.chain.from_iterable(held_out.values()))
    seen = {pair.source for _, pair in texts["train"].pairs() if pair.source in wanted}
    return {part: sum(source in seen for source in sources) for part, sources in held_out.items()}
