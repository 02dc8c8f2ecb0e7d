"""The pairs of a parallel text as tokens on disk, in shards that several processes write."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from attnlab.core.build import build
from attnlab.core.errors import DataError
from attnlab.core.files import read_json
from attnlab.text.bpe_dropout import SampledBpe
from attnlab.text.pairs.parallel import LeftOut, Pair, Part
from attnlab.text.token_store import TokenWriter
from attnlab.text.tokenizers import TOKENIZERS, AbstractTokenizer, Tokenizer

TOKENIZER = "tokenizer.json"
AT_A_TIME = 10_000  # pairs that are tokenized together
SIDES = ("source", "target")
Encoded = tuple[list[int], list[int]]


def shard_folder(folder: Path, part: str, number: int, side: str) -> Path:
    """Where one side of a shard is."""
    return folder / f"{part}-{number:05d}-{side}"


def write_shards(folder: str, part: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Tokenize every so-many-th shard of a part.

    Parameters
    ----------
    folder : str
        Where to; the tokenizer is there already.
    part : str
        Its name; of the training part, pairs that are too long are left out, of another one they are an error.
    asked : mapping
        The ``text`` (`Part.to_json`), the ``tokenizer`` as it is asked for, ``max_length``, the pairs of a ``shard``,
        the ``first`` shard to write and the ``step`` to the next one.

    Returns
    -------
    dict
        By number of the shard, its pairs that were ``kept`` and the ``words`` of their targets; what was left out as
        ``too_long`` of these shards and as ``empty`` of the whole part.

    Raises
    ------
    DataError
        If a file cannot be read, or a held-out pair is too long.
    """
    text = Part.from_json(asked["text"])
    tokenizer = Tokenizer.from_json(read_json(Path(folder) / TOKENIZER))
    trainer = build(asked["tokenizer"], TOKENIZERS, axis="tokenizer")
    sampled = part == "train" and isinstance(trainer, AbstractTokenizer)
    empty, too_long, shards = LeftOut(), LeftOut(), {}
    pairs = text.pairs(empty)
    for number in itertools.count():
        some = itertools.islice(pairs, asked["shard"])
        begin = next(some, None)
        if begin is None:
            break
        if number % asked["step"] != asked["first"]:
            collections.deque(some, maxlen=0)
            continue
        sampler = trainer.sampler(tokenizer, number) if sampled else None
        encoded = _encoded(tokenizer, sampler, itertools.chain((begin,), some))
        paths = [shard_folder(Path(folder), part, number, side) for side in SIDES]
        words = kept = 0
        with TokenWriter(paths[0]) as sources, TokenWriter(paths[1]) as targets:
            for line, pair, usual, drawn in encoded:
                if _longest(usual) > asked["max_length"]:
                    if part != "train":
                        _refuse(text, part, line, usual, asked["max_length"])
                    too_long.add(line)
                    continue
                for one in drawn or [usual]:
                    source, target = one if _longest(one) <= asked["max_length"] else usual
                    sources.put(source)
                    targets.put(target)
                words += len(pair.target.split()) + 1
                kept += 1
        shards[number] = {"kept": kept, "words": words}
    return {"shards": shards, "too_long": asdict(too_long), "empty": asdict(empty)}


def _refuse(text: Part, part: str, line: int, tokens: Encoded, max_length: int) -> NoReturn:
    """Say that a held-out pair is too long: nothing of such a part may be left out."""
    length = _longest(tokens)
    where = text.text.files[0 if len(tokens[0]) == length else -1]
    raise DataError(
        f"{where}, line {line}: the pair has {length} tokens and max_length is {max_length}; give a larger max_length, "
        f"as no sentence of the {part} part is left out in silence"
    )


def _encoded(
    tokenizer: Tokenizer, sampler: SampledBpe | None, pairs: Iterator[tuple[int, Pair]]
) -> Iterator[tuple[int, Pair, Encoded, Sequence[Encoded]]]:
    """The tokens of both sides of pairs, as the tokenizer cuts them and as a sampler does, if there is one."""
    while some := list(itertools.islice(pairs, AT_A_TIME)):
        usual = zip(*(tokenizer.encode([pair[side] for _, pair in some]) for side in range(2)), strict=True)
        for (line, pair), tokens in zip(some, usual, strict=True):
            yield line, pair, tokens, list(zip(*map(sampler.encode, pair), strict=True)) if sampler else []


def _longest(tokens: Encoded) -> int:
    """The length of a pair's longer side, the mark of the target counted."""
    source, target = tokens
    return max(len(source), len(target) + 1)
