"""Treebanks by name or in a person's own files: read, cleaned, and counted."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import DataError, SpecError
from attnlab.core.files import user_path
from attnlab.core.sizes import require_known
from attnlab.tasks.datasets import NamedText, locate_named
from attnlab.tasks.held_out import partly_memory
from attnlab.text.sources import open_bytes, said
from attnlab.text.trees import Tree, cleaned, read_trees

PARTS = ("train", "validation", "test")
CRAFT = "craft"
CRAFT_FILES = Path(__file__).with_name("craft.json")
"""Of each article of CRAFT the part that it belongs to by the corpus's own split, its bytes, and their sha256."""
WILDCARDS = frozenset("*?[")


@final
@dataclass(frozen=True)
class Treebank:
    """Hold the trees of a treebank, cleaned as papers clean them."""

    name: str | None  # None of a person's own files
    parts: Mapping[str, Sequence[Tree]]  # "train", "validation" and perhaps "test"
    sha256: Mapping[str, str]  # of the files of each part, and of silver trees, one after the other
    removed: Mapping[str, int]  # what was left out, by kind
    unlabelled: Sequence[Tree] = ()  # of the training part, whose sentences alone may be seen
    silver: int = 0  # trees of the training part that a model made, the last ones

    def semi_supervised(self, labelled: int | None, silver: str | Sequence[str] | None) -> Treebank:
        """The same with fewer training trees, and with others that a model made.

        Parameters
        ----------
        labelled : int, optional
            The first training trees, which are kept; all of them unless given.
        silver : str or sequence of str, optional
            Files of trees, or patterns.

        Raises
        ------
        DataError
            If there are not so many trees, a file is missing or no treebank, or its brackets do not match.
        """
        train = self.parts["train"]
        if labelled is not None and labelled > len(train):
            raise DataError(f"labelled is {labelled:,}, and the training part has {len(train):,} trees")
        kept, left = train[:labelled], () if labelled is None else train[labelled:]
        found, digest, removed = list[Tree](), hashlib.sha256(), Counter(self.removed)
        if silver:
            found = _read(_matching([silver] if isinstance(silver, str) else silver, "silver"), digest, removed)
            if not found:
                raise DataError(f"no trees in silver: {silver}")
        return dataclasses.replace(
            self,
            parts={**self.parts, "train": [*kept, *found]},
            sha256={**self.sha256, **({"silver": digest.hexdigest()} if silver else {})},
            removed=dict(removed),
            unlabelled=left,
            silver=len(found),
        )

    @functools.cached_property
    def shared(self) -> dict[str, float]:
        """By held-out part the share of its sentences that stand in the training part."""
        sentences = {part: [tuple(tree.words()) for tree in trees] for part, trees in self.parts.items()}
        known = set(sentences.pop("train"))
        return {part: sum(one in known for one in some) / len(some) for part, some in sentences.items()}

    def alarms(self) -> Iterator[str]:
        """What is suspicious about it."""
        for part, share in self.shared.items():
            yield from partly_memory(share, part, "sentences stand")

    def describe(self) -> dict[str, Any]:
        """What identifies it."""
        return {
            "treebank": self.name,
            "sha256": dict(self.sha256),
            "trees": {part: len(trees) for part, trees in self.parts.items()},
            "removed": dict(self.removed),
            **({"unlabelled": len(self.unlabelled), "silver": self.silver} if self.unlabelled or self.silver else {}),
        }


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage, which takes half of the time where millions of objects are made and all are kept."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def find_treebank(name: str | None, files: Mapping[str, str | Sequence[str] | None]) -> Treebank:
    """Read a treebank.

    Parameters
    ----------
    name : str or None
        ``craft``, or None where files are given.
    files : mapping of str to str or sequence of str
        Of each part the files, or patterns such as ``wsj/0[2-9]/*.mrg``; ``.gz`` is uncompressed.

    Raises
    ------
    SpecError
        If there is no treebank of that name, or it is not clear which is meant.
    DataError
        If a file is missing, is not UTF-8, holds no trees, or brackets do not match.
    """
    given = {part: [paths] if isinstance(paths, str) else list(paths) for part, paths in files.items() if paths}
    if name is not None:
        if not name.isidentifier():
            raise SpecError(
                f"files of your own are given as train, validation and test, and not as treebank; got '{name}'"
            )
        require_known("treebank", name, (CRAFT,))
        if given:
            raise SpecError(
                f"give a treebank by name or files of your own, not both; got '{name}' and {', '.join(given)}"
            )
        found = {part: _files_of_craft(part) for part in PARTS}
    else:
        missing = [part for part in PARTS[:2] if part not in given]
        if missing:
            raise SpecError(f"a treebank of your own needs files for {' and '.join(missing)}, such as wsj/22/*.mrg")
        found = {part: _matching(patterns, part) for part, patterns in given.items()}
    removed: Counter[str] = Counter()
    digests = {part: hashlib.sha256() for part in found}
    parts = {part: _read(paths, digests[part], removed) for part, paths in found.items()}
    for part, trees in parts.items():
        if not trees:
            raise DataError(f"the {part} part has no trees: {', '.join(map(str, found[part]))}")
    return Treebank(name, parts, {part: digest.hexdigest() for part, digest in digests.items()}, dict(removed))


def _files_of_craft(part: str) -> list[Path]:
    return [
        locate_named(
            NamedText(
                file=f"craft/penn/{article}.tree",
                repository="UCDenver-ccp/CRAFT",
                commit="2abe82b8bb8089448b84937d5f61d8c218011322",
                path=f"structural-annotation/treebank/penn/{article}.tree",
                sha256=digest,
                size_bytes=size,
                license="annotations CC BY 3.0; articles from the PMC Open Access subset",
            )
        )
        for article, (belongs_to, size, digest) in json.loads(CRAFT_FILES.read_text()).items()
        if belongs_to == part
    ]


def _matching(patterns: Sequence[str], part: str) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        place = user_path(pattern)
        some = (
            sorted(Path(place.anchor or ".").glob(str(place.relative_to(place.anchor))))
            if WILDCARDS & set(pattern)
            else [place]
        )
        if not some or not all(path.is_file() for path in some):
            raise DataError(f"no file {pattern} for the {part} part of the treebank")
        found += some
    return found


def _read(paths: Sequence[Path], digest: Any, removed: Counter[str]) -> list[Tree]:
    """The trees of files with a constituent at least, cleaned; the digest is told what the files hold."""
    found = []
    for path in paths:
        with said(str(path)), open_bytes(str(path)) as file:
            content = file.read()
        digest.update(content)
        for tree in read_trees(_text(content, path).split("\n"), str(path)):
            kept = cleaned(tree, removed)
            if kept is None or not kept.children:
                removed["trees without a constituent"] += 1
            else:
                found.append(kept)
    return found


def _text(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8; write it anew in UTF-8") from None
