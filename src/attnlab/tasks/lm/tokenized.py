"""The parts of a corpus as tokens on disk, written once, and what was counted on the way."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int, Int64, UInt64

from attnlab.core.build import Spec, build
from attnlab.core.errors import DataError, SpecError
from attnlab.core.storage.cache import cache_folder, made_once
from attnlab.tasks.lm.corpus import CutCorpus, Documents, Stream, chunks
from attnlab.tasks.next_tokens import IGNORED
from attnlab.text.overlap import GRAM, overlap, standing_in
from attnlab.text.sources import is_file, is_folder, open_bytes, said
from attnlab.text.token_store import TokenStore, TokenWriter
from attnlab.text.tokenizers import TOKENIZERS, Tokenizer

FORM = 1
"""Raised when what is kept on disk changes, so that older folders are not read."""
KNOWN = "known.json"
TRAINED_ON = 2**28  # characters that a tokenizer is trained on; of more, pieces evenly spread
AT_ONCE = 256  # pieces that are encoded together
SHORTEST_GRAM = 8  # tokens of a passage that is compared, where 50 characters are fewer
JUDGED = 2_000_000
"""Tokens of a held-out part that are judged at most: its first ones."""


@final
class TokenizedPart:
    """Give windows of the tokens of one part.

    Parameters
    ----------
    tokens : array
        All its tokens in a row; where documents have ends, one end before the first too.
    edges : array
        Where documents end, and where the first begins; of a text without ends its first and last place.
    filler : int
        The token that fills up a window behind the end of its document.
    """

    def __init__(self, tokens: np.ndarray, edges: Int64[np.ndarray, " edges"], filler: int) -> None:
        self.tokens, self.edges, self.filler = tokens, edges, filler

    def drawn(self, places: Int64[np.ndarray, " count"], context: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of windows that begin at some places, or as much earlier as it takes to be full."""
        documents = np.searchsorted(self.edges, places, "right") - 1
        first, last = self.edges[documents], self.edges[documents + 1]
        return self._windows(np.maximum(first, np.minimum(places, last - context)), last, context)

    def whole(self, context: int, at_once: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs and targets of windows that do not overlap, in batches of like length; `JUDGED` tokens at most."""
        sizes = np.diff(self.edges)
        count = -(-sizes // context)  # windows of each document
        within = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
        starts = np.repeat(self.edges[:-1], count) + within * context
        last = np.repeat(self.edges[1:], count)
        most = int(np.searchsorted(np.minimum(context, last - starts).cumsum(), JUDGED)) + 1
        starts, last = starts[:most], last[:most]
        lengths = np.minimum(context, last - starts)
        order = np.argsort(-lengths, kind="stable")
        groups = (order[first : first + at_once] for first in range(0, len(order), at_once))
        return [self._windows(starts[some], last[some], int(lengths[some[0]])) for some in groups]

    def _windows(
        self, starts: Int64[np.ndarray, " count"], last: Int64[np.ndarray, " count"], context: int
    ) -> tuple[Int[torch.Tensor, "count context"], Int[torch.Tensor, "count context"]]:
        places = starts[:, None] + np.arange(context + 1)  # (count, context + 1)
        inside = places <= last[:, None]
        found = self.tokens[np.minimum(places, last[:, None])].astype(np.int64)
        inputs, targets = np.where(inside, found, self.filler)[:, :-1], np.where(inside, found, IGNORED)[:, 1:]
        return torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(np.ascontiguousarray(targets))


@final
class TokenizedCorpus:
    """Open a corpus that `open_corpus` tokenized.

    Parameters
    ----------
    folder : Path
        Where it is.
    known : mapping
        What is known of it.
    join : bool
        Whether windows may span documents.

    Raises
    ------
    DataError
        If what is there was cut off or changed.
    """

    def __init__(self, folder: Path, known: Mapping[str, Any], *, join: bool) -> None:
        self.known = known
        self.tokenizer = Tokenizer.adopted(self.known["tokenizer"])
        self.marked: bool = self.known["marked"]
        self.parts: dict[str, TokenizedPart] = {}
        for part in self.known["parts"]:
            try:
                tokens, ends = TokenStore([folder / part]).rows(0)
            except DataError as error:
                raise DataError(f"{error}; remove {folder} to have the text read again") from error
            edges = np.asarray(ends) - 1 if self.marked and not join else np.array([0, len(tokens) - 1])
            self.parts[part] = TokenizedPart(tokens, edges, self.tokenizer.end)


def open_corpus(corpus: Documents, tokenizer: Spec, *, join: bool) -> TokenizedCorpus:
    """Open a corpus, tokenized if it was not yet.

    Raises
    ------
    SpecError
        If there is no such tokenizer, or it cuts a text in several ways.
    DataError
        If a text cannot be read, or a part is empty.
    """
    given = _adopted(tokenizer) if isinstance(tokenizer, str) and tokenizer not in TOKENIZERS else None
    trainer: Any = None if given else build(tokenizer, TOKENIZERS, axis="tokenizer")
    if getattr(trainer, "dropout", 0):
        raise SpecError("the task 'lm' cuts a text in one way only; leave the tokenizer's dropout out")
    how = given.to_json() if given else [type(trainer).__name__, vars(trainer)]
    files = {part: [asdict(one) for one in some] for part, some in {"text": corpus.text, **corpus.given}.items()}
    asked = json.dumps([FORM, files, corpus.shares, corpus.seed, corpus.field, how], sort_keys=True)
    folder = cache_folder() / "tokens" / f"lm-{hashlib.sha256(asked.encode()).hexdigest()[:32]}"

    def write(empty: Path) -> dict[str, Any]:
        cut = corpus.cut()
        return _write(empty, cut, given or trainer.train(_taught(cut)))

    return TokenizedCorpus(folder, made_once(folder, KNOWN, write), join=join)


def _adopted(path: str) -> Tokenizer | None:
    """The tokenizer in a file or a folder; None where there is neither."""
    path = f"{path.rstrip('/')}/tokenizer.json" if is_folder(path) else path
    if not is_file(path):
        return None
    with said(path), open_bytes(path) as file:
        content = json.load(file)
    try:
        return Tokenizer.adopted(content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _taught(cut: CutCorpus) -> Any:
    """The pieces of the training part that a tokenizer is trained on."""
    size = sum(len(piece) for piece, _ in cut.stream("train"))
    every = -(-size // TRAINED_ON) or 1
    return (piece for piece, _ in itertools.islice(chunks(cut.stream("train")), None, None, every))


def _write(folder: Path, cut: CutCorpus, tokenizer: Tokenizer) -> dict[str, Any]:
    """Tokenize all parts into a folder; what is known of them."""
    documents = sum(last for part in cut.parts for _, last in cut.stream(part))
    marked = cut.part_of is not None or documents > len(cut.parts)
    counts, parts = {}, {}
    for part in cut.parts:
        with TokenWriter(folder / part) as writer:
            counts[part] = _Counted(tokenizer)
            counts[part].write(chunks(cut.stream(part)), writer, marked=marked)
        parts[part] = TokenStore([folder / part]).rows(0)[0]
        if len(parts[part]) < 2:
            raise DataError(f"the {part} part is too short: nothing in it can be predicted; take a longer text")
    for part in cut.parts[1:]:
        counts[part].compare(counts["train"], parts[part], parts["train"])
    known = {"marked": marked, "parts": {part: one.facts for part, one in counts.items()}}
    digest = hashlib.sha256("".join(one.digest.hexdigest() for one in counts.values()).encode()).hexdigest()
    return {**known, "sha256": digest, "tokenizer": tokenizer.to_json()}


@final
class _Counted:
    """Count what a part consists of while it is tokenized."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.facts: dict[str, Any] = dict.fromkeys(("documents", "characters", "bytes", "words", "tokens"), 0)
        self.facts["restored"] = True
        self.digest = hashlib.sha256()
        self._tokenizer = tokenizer
        self._documents: list[bytes] = []

    def write(self, stream: Stream, writer: TokenWriter, *, marked: bool) -> None:
        """Encode and count the documents of a part."""
        end = [self._tokenizer.end] if marked else []
        if marked:
            writer.put(end)
        document = hashlib.blake2b(digest_size=8)
        while some := list(itertools.islice(stream, AT_ONCE)):
            texts = [piece for piece, _ in some]
            encoded = self._tokenizer.encode(texts)
            decoded = self._tokenizer.decode(encoded)
            self.facts["restored"] &= [one.strip() for one in decoded] == [one.strip() for one in texts]
            for (piece, last), tokens in zip(some, encoded, strict=True):
                writer.put([*tokens, *end] if last else tokens, more=not last)
                self.digest.update(piece.encode() + b"\0" * last)
                document.update(piece.encode())
                if last:
                    self._documents.append(document.digest())
                    document = hashlib.blake2b(digest_size=8)
                numbers = (last, len(piece), len(piece.encode()), len(piece.split()), len(tokens) + last * marked)
                for name, number in zip(self.facts, numbers, strict=False):
                    self.facts[name] += number

    def hashes(self) -> UInt64[np.ndarray, " documents"]:
        """One number for each document."""
        return np.frombuffer(b"".join(self._documents), dtype=np.uint64)

    def compare(self, train: _Counted, tokens: np.ndarray, trained: np.ndarray) -> None:
        """Add how much of a held-out part stands in the training part: passages of some tokens, and whole documents."""
        characters = self.facts["characters"] / self.facts["tokens"]
        gram = max(SHORTEST_GRAM, round(GRAM / characters))
        self.facts["passage"] = gram
        self.facts["overlap"] = overlap(trained, np.asarray(tokens[:JUDGED]), gram)
        asked, known = self.hashes(), train.hashes()
        self.facts["copied_documents"] = float(standing_in(known, asked).mean()) if len(asked) and len(known) else None
