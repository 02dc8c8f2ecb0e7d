"""Token numbers of many sentences on disk, mapped into memory: what is read of them is what is used."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int64

from attnlab.core.errors import DataError, RunError
from attnlab.core.files import read_sealed, sealed, write_json
from attnlab.text.seals import require_sealed, seal

TOKENS, ENDS, SEALS = "tokens.bin", "ends.bin", "seals.json"
TOKEN_TYPE, END_TYPE = np.dtype("<u4"), np.dtype("<i8")
AT_A_TIME = 10_000  # sentences that are written together


@final
class TokenStore:
    """Look up the tokens of a sentence by its number.

    Parameters
    ----------
    folders : sequence of Path
        Where a `TokenWriter` put them: shards, one after the other.

    Raises
    ------
    DataError
        If a folder holds no store, a part of one, or one that was changed.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._shards = [_shard(folder) for folder in folders]
        self.begins = [0, *itertools.accumulate(len(ends) for _, ends in self._shards)]
        """The number of the first sentence of every shard, and of all sentences."""

    def __len__(self) -> int:
        return self.begins[-1]

    def __getitem__(self, number: int) -> Int64[np.ndarray, " length"]:
        shard = bisect.bisect_right(self.begins, number) - 1
        tokens, ends = self._shards[shard]
        place = number - self.begins[shard]
        return tokens[ends[place - 1] if place else 0 : ends[place]].astype(np.int64)

    def rows(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all sentences of a shard in a row, and where each of them ends."""
        return self._shards[shard]

    def lengths(self, shard: int | None = None) -> Int64[np.ndarray, " sentences"]:
        """The number of tokens of every sentence, or of those of one shard."""
        some = self._shards if shard is None else [self._shards[shard]]
        return np.concatenate([np.diff(ends, prepend=0) for _, ends in some])


def _shard(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a shard, and where each of its sentences ends."""
    try:
        seals = read_sealed(folder / SEALS, required=True)
        found = []
        for name, kind in ((TOKENS, TOKEN_TYPE), (ENDS, END_TYPE)):
            require_sealed(folder / name, seals[name], "it is damaged")
            found.append(_mapped(folder / name, kind))
    except (OSError, RunError) as error:
        raise DataError(f"{folder} holds no tokens that can be read: {error}") from error
    return found[0], found[1]


@final
class TokenWriter:
    """Write the tokens of sentences as they come; a context, which leaves the whole store behind or nothing.

    Parameters
    ----------
    folder : Path
        Where to. If it is there already when all is written, it stays as it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._some: list[Sequence[int]] = []
        self._whole: list[bool] = []
        self._total = 0

    def __enter__(self) -> TokenWriter:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = Path(tempfile.mkdtemp(dir=self.folder.parent, suffix=".part"))
        self._tokens, self._ends = ((self._temporary / name).open("wb") for name in (TOKENS, ENDS))
        return self

    def put(self, tokens: Sequence[int], *, more: bool = False) -> None:
        """Add a sentence, or a piece of one that goes on."""
        self._some.append(tokens)
        self._whole.append(not more)
        if more or len(self._some) >= AT_A_TIME:
            self._write()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._write()
            self._tokens.close()
            self._ends.close()
            if error is None:
                seals = {name: seal(self._temporary / name) for name in (TOKENS, ENDS)}
                write_json(self._temporary / SEALS, sealed(seals))
                with contextlib.suppress(OSError):  # another process was faster
                    os.replace(self._temporary, self.folder)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _write(self) -> None:
        np.fromiter(itertools.chain.from_iterable(self._some), TOKEN_TYPE).tofile(self._tokens)
        lengths = np.fromiter(map(len, self._some), END_TYPE)
        (self._total + lengths.cumsum())[np.array(self._whole, dtype=bool)].astype(END_TYPE).tofile(self._ends)
        self._total += int(lengths.sum())
        self._some, self._whole = [], []


def _mapped(path: Path, kind: np.dtype) -> np.ndarray:
    return np.memmap(path, kind, mode="r") if path.stat().st_size else np.empty(0, kind)
