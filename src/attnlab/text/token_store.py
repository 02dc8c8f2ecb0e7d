"""Token numbers of many sentences on disk, mapped into memory: what is read of them is what is used."""

from __future__ import annotations

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

from attnlab.core.errors import DataError

TOKENS, ENDS = "tokens.bin", "ends.bin"
TOKEN_TYPE, END_TYPE = np.dtype("<u4"), np.dtype("<i8")
AT_A_TIME = 10_000  # sentences that are written together


@final
class TokenStore:
    """Look up the tokens of a sentence by its number.

    Parameters
    ----------
    folder : Path
        Where a `TokenWriter` put them.

    Raises
    ------
    DataError
        If the folder holds no store, or a part of one.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._tokens = _mapped(folder / TOKENS, TOKEN_TYPE)
            self._ends = _mapped(folder / ENDS, END_TYPE)
        except (OSError, ValueError) as error:
            raise DataError(f"{folder} holds no tokens that can be read: {error}") from error
        if len(self._tokens) != (self._ends[-1] if len(self._ends) else 0):
            raise DataError(f"{folder} is damaged: {TOKENS} was cut off")

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> Int64[np.ndarray, " length"]:
        start = self._ends[number - 1] if number else 0
        return self._tokens[start : self._ends[number]].astype(np.int64)

    def lengths(self) -> Int64[np.ndarray, " sentences"]:
        """The number of tokens of every sentence."""
        return np.diff(self._ends, prepend=0)


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
        self._total = 0

    def __enter__(self) -> TokenWriter:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = Path(tempfile.mkdtemp(dir=self.folder.parent, suffix=".part"))
        self._tokens, self._ends = ((self._temporary / name).open("wb") for name in (TOKENS, ENDS))
        return self

    def put(self, tokens: Sequence[int]) -> None:
        """Add a sentence."""
        self._some.append(tokens)
        if len(self._some) >= AT_A_TIME:
            self._write()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._write()
            self._tokens.close()
            self._ends.close()
            if error is None:
                with contextlib.suppress(OSError):  # another process was faster
                    os.replace(self._temporary, self.folder)
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _write(self) -> None:
        np.fromiter(itertools.chain.from_iterable(self._some), TOKEN_TYPE).tofile(self._tokens)
        lengths = np.fromiter(map(len, self._some), END_TYPE)
        (self._total + lengths.cumsum()).astype(END_TYPE).tofile(self._ends)
        self._total += int(lengths.sum())
        self._some = []


def _mapped(path: Path, kind: np.dtype) -> np.ndarray:
    return np.memmap(path, kind, mode="r") if path.stat().st_size else np.empty(0, kind)
