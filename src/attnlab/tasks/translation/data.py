"""What the `translation` task reads: a corpus that is tokenized once and kept on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Int64

from attnlab.core.build import Spec, build, is_path, parse, path_of
from attnlab.core.errors import DataError, SpecError
from attnlab.core.files import write_json
from attnlab.core.machine import usable_cores
from attnlab.core.processes.apart import call_apart
from attnlab.core.sizes import require_known
from attnlab.core.storage.cache import cache_folder, made_once
from attnlab.tasks.held_out import partly_memory
from attnlab.tasks.translation.corpus_parts import languages_of, parts_of
from attnlab.tasks.translation.suspicious import suspicious
from attnlab.text.pairs.pair_store import SIDES, TOKENIZER, shard_folder, write_shards
from attnlab.text.pairs.parallel import LINES_NAMED, LeftOut, Pair, Part, numbered
from attnlab.text.pairs.word_translations import word_translations
from attnlab.text.sources import find_sources, sha256_of
from attnlab.text.token_store import TokenStore
from attnlab.text.tokenizers import TOKENIZERS, AbstractTokenizer, Tokenizer

KNOWN, DICTIONARY = "known.json", "dictionary.json"
FORM = 6
"""Raised when what is kept on disk changes, so that older folders are not read."""
SHARD = 2**18  # pairs of a shard
ALONE = 2**26  # bytes of a text up to which one process tokenizes it
TRAINED_ON = 2**28  # bytes of a training part that a tokenizer is trained on; of more, pairs evenly spread
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

    def longest(self, shard: int | None = None) -> Int64[np.ndarray, " pairs"]:
        """The length of each pair's longer side, the mark of the target counted; of one shard, or of all."""
        return np.maximum(self.source.lengths(shard), self.target.lengths(shard) + 1)

    def target_tokens(self) -> int:
        """The number of tokens to be written, end marks counted."""
        return sum(int(self.target.lengths(shard).sum()) for shard in range(len(self.target.begins) - 1)) + len(self)


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
    dictionary: Mapping[str, str] | None = None  # the best translation of words; None where no word is unknown
    references: tuple[str, ...] = ()  # files with more translations of the sources of the last part
    drop_copies: bool = False  # whether the training part has no source that is held out too

    @classmethod
    def load(
        cls,
        corpus: str,
        pair: str,
        *,
        tokenizer: Spec,
        max_length: int,
        test: str | None,
        references: Sequence[str] = (),
        drop_copies: bool = False,
    ) -> TranslationData:
        """A corpus, tokenized if it was not yet."""
        languages = languages_of(pair)
        texts = parts_of(corpus, languages, test=test)
        build(tokenizer, TOKENIZERS, axis="tokenizer")
        hashes = {part: [sha256_of(path) for path in one.text.files] for part, one in texts.items()}
        identity = {"form": FORM, "hashes": hashes, "tokenizer": tokenizer, "max_length": max_length}
        identity |= {"cuts": {part: one.cut for part, one in texts.items()}, "languages": languages}
        identity |= {"drop_copies": True} if drop_copies else {}
        name, _ = parse(tokenizer, "tokenizer")
        if is_path(name):
            identity["code"] = sha256_of(str(path_of(name)))
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        folder = cache_folder() / "tokens" / digest[:32]

        def kept() -> Mapping[str, Part]:
            return _without_copies(texts) if drop_copies else texts

        def prepare(empty: Path) -> dict[str, Any]:
            found = {"hashes": hashes, "suspicious": suspicious(texts, languages)}
            return found | _prepare(empty, kept(), tokenizer, max_length=max_length)

        known = made_once(folder, KNOWN, prepare)
        made = Tokenizer.from_json(known["tokenizer"])
        try:
            parts = {part: _sides(folder, part, known["shards"][part], known["words"][part]) for part in texts}
        except DataError as error:
            raise DataError(f"{error}; remove {folder} to tokenize the corpus again") from error
        read_references(list(texts.values())[-1], references)
        dictionary = None if made.unknown is None else _dictionary(digest, made, lambda: kept()["train"])
        return cls(corpus, languages, made, parts, known, texts, test, dictionary, tuple(references), drop_copies)

    def sentences(self, part: str) -> list[Pair]:
        """A held-out part as people wrote it."""
        return self.texts[part].sentences

    def targets(self, part: str) -> list[list[str]]:
        """What people wrote for the sources of a held-out part: the corpus, and other references."""
        more = read_references(self.texts[part], self.references) if part == list(self.texts)[-1] else []
        return [[pair.target for pair in self.sentences(part)], *more]

    def alarms(self) -> tuple[str, ...]:
        """What is suspicious about the corpus."""
        found = list(self.known["suspicious"])
        for part, reasons in self.known["left_out"].items():
            for reason, fields in reasons.items():
                left_out = LeftOut(**fields)
                if left_out.count:
                    found.append(f"pairs of the {part} part left out, {reason}: {left_out.count:,} ({left_out})")
        for part, shared in self.known["shared"].items():
            found += partly_memory(shared / len(self.parts[part]), part, "source sentences stand")
        return tuple(found)

    def describe(self) -> dict[str, Any]:
        """What identifies the data."""
        return {
            "corpus": self.corpus,
            "languages": list(self.languages),
            "test": self.test,
            "sha256": self.known["hashes"],
            "cut": list(self.texts.values())[-1].cut,
            "references": {path: sha256_of(path) for path in self.references},
            "parts": {part: len(sides) // self._segmentations(part) for part, sides in self.parts.items()},
            "left_out": {
                reason: sum(reasons[reason]["count"] for reasons in self.known["left_out"].values())
                for reason in (TOO_LONG, EMPTY)
            },
            "vocab_size": self.tokenizer.size,
            "shared_with_train": self.known["shared"],
            **({"drop_copies": True} if self.drop_copies else {}),
            "segmentations": self.known["segmentations"],
            **({"tokenizer_trained_on_one_pair_in": every} if (every := self.known["every"]) > 1 else {}),
        }

    def _segmentations(self, part: str) -> int:
        """How often each pair stands in a part."""
        return self.known["segmentations"] if part == "train" else 1


def held_out_pairs(data: Mapping[str, Any], part: str) -> list[Pair]:
    """A held-out part as people wrote it, for a run that keeps its own tokenizer."""
    return _held_out(data, part).sentences


def held_out_targets(data: Mapping[str, Any], part: str) -> list[list[str]]:
    """What people wrote for the sources of a held-out part, and other references of the run."""
    text, asked = _held_out(data, part), data.get("references", {}) if part == list(data["parts"])[-1] else {}
    for path, known in asked.items():
        if sha256_of(path) != known:
            raise DataError(f"the references {path} have changed since the run was made")
    return [[pair.target for pair in text.sentences], *read_references(text, list(asked))]


def _held_out(data: Mapping[str, Any], part: str) -> Part:
    """Where a held-out part of a run is."""
    require_known("part", part, tuple(name for name in data["parts"] if name != "train"))
    source, target = data["languages"]
    text = parts_of(data["corpus"], (source, target), test=data["test"], only=part)[part]
    if [sha256_of(path) for path in text.text.files] != data["sha256"][part]:
        raise DataError(f"the {part} part of {data['corpus']} has changed since the run was made")
    if text.cut != data.get("cut"):
        raise DataError(f"the run held out other pairs of {data['corpus']}: an earlier version took the last ones")
    return text


def read_references(part: Part, paths: Sequence[str]) -> list[list[str]]:
    """More translations of a part from files with as many lines as its text: those of its pairs."""
    found = []
    for path in paths:
        lines, total = list(numbered(path)), sum(1 for _ in part.text.pairs())
        if len(lines) != total:
            raise DataError(
                f"{path} has {len(lines):,} lines and {part.text.files[0]} {total:,}: one for each is needed"
            )
        found.append([lines[number - part.text.begins] for number, _ in part.pairs()])
    return found


def _sides(folder: Path, part: str, shards: int, target_words: int) -> Sides:
    source, target = (
        TokenStore([shard_folder(folder, part, number, side) for number in range(shards)]) for side in SIDES
    )
    return Sides(source, target, target_words)


# ---- tokenizing ----


def _prepare(folder: Path, texts: Mapping[str, Part], tokenizer: Spec, *, max_length: int) -> dict[str, Any]:
    """Train the tokenizer, tokenize every part into a folder, and tell what is known of them."""
    trainer = build(tokenizer, TOKENIZERS, axis="tokenizer")
    sizes = {part: sum(find_sources(path)[0].size for path in text.text.files) for part, text in texts.items()}
    every = max(1, sizes["train"] // TRAINED_ON)
    some = itertools.islice(texts["train"].pairs(), 0, None, every)
    made = trainer.train(itertools.chain.from_iterable(pair for _, pair in some))
    write_json(folder / TOKENIZER, made.to_json())  # for the processes that tokenize
    sampler = trainer.sampler(made) if isinstance(trainer, AbstractTokenizer) else None
    known: dict[str, Any] = {"every": every, "tokenizer": made.to_json(), "words": {}, "shards": {}, "left_out": {}}
    known |= {"segmentations": sampler.segmentations if sampler else 1, "shared": _shared(texts)}
    for part, text in texts.items():
        asked = {"text": text.to_json(), "tokenizer": tokenizer, "max_length": max_length, "shard": SHARD}
        _tokenize(folder, part, asked, usable_cores() if sizes[part] > ALONE else 1, known)
    return known


def _tokenize(folder: Path, part: str, asked: Mapping[str, Any], processes: int, known: dict[str, Any]) -> None:
    """Write the shards of a part, and add what is known of them."""
    calls = [(str(folder), part, {**asked, "first": first, "step": processes}) for first in range(processes)]
    if processes == 1:
        answers = [write_shards(*calls[0])]
    else:
        try:
            with ThreadPoolExecutor(processes) as pool:
                answers = list(pool.map(lambda call: call_apart(write_shards, *call), calls))
        except SpecError as error:  # what a process said
            raise DataError(str(error)) from error
    shards = [shard for answer in answers for shard in answer["shards"].values()]
    if not sum(shard["kept"] for shard in shards):
        raise DataError(f"the {part} part has no pair with two sides of at most {asked['max_length']} tokens")
    too_long = [answer["too_long"] for answer in answers]
    lines = sorted(itertools.chain.from_iterable(one["lines"] for one in too_long))
    known["left_out"][part] = {
        TOO_LONG: asdict(LeftOut(sum(one["count"] for one in too_long), lines[:LINES_NAMED])),
        EMPTY: answers[0]["empty"],
    }
    known["shards"][part], known["words"][part] = len(shards), sum(shard["words"] for shard in shards)


def _dictionary(digest: str, tokenizer: Tokenizer, train: Callable[[], Part]) -> dict[str, str]:
    """The best translations of words of the training part, learned once."""
    folder = cache_folder() / "dictionaries" / digest[:32]

    def learn(_: Path) -> dict[str, Any]:
        pairs = ((source, target) for _, pair in train().pairs() for source, target in [tokenizer.words(pair)])
        return {"words": word_translations(pairs)}

    return made_once(folder, DICTIONARY, learn)["words"]


def _shared(texts: Mapping[str, Part]) -> dict[str, int]:
    """For each held-out part how many of its sources stand in the training part."""
    held_out = _sources(texts)
    copied = _copied(texts["train"], held_out)
    return {part: sum(source in copied for source in sources) for part, sources in held_out.items()}


def _sources(texts: Mapping[str, Part]) -> dict[str, list[str]]:
    """The sources of each held-out part."""
    return {part: [pair.source for _, pair in text.pairs()] for part, text in texts.items() if part != "train"}


def _copied(train: Part, held_out: Mapping[str, Sequence[str]]) -> set[str]:
    """The sources of held-out parts that stand in the training part."""
    wanted = set(itertools.chain.from_iterable(held_out.values()))
    return {pair.source for _, pair in train.pairs() if pair.source in wanted}


def _without_copies(texts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts, the training part without pairs whose source is held out."""
    held_out = _sources(texts)
    kept = replace(texts["train"], without=tuple(sorted(_copied(texts["train"], held_out))))
    if not any(True for _ in kept.pairs()):
        raise DataError("with drop_copies nothing is left to train on: every training source is held out too")
    return {**texts, "train": kept}
