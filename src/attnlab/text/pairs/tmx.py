"""Translation memories (TMX): sentences in several languages, read one unit at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, final
from xml.parsers import expat

from attnlab.core.errors import DataError

AT_A_TIME = 2**20  # bytes
CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})  # elements of a segment that hold a program's codes and no text
Unit = dict[str, str]
"""The text of a unit in each of its languages, by code in small letters."""


@final
@dataclass
class _Reader:
    """Keep what was read of a file so far."""

    name: str  # of the file, for errors
    units: list[Unit] = field(default_factory=list)
    language: str = ""  # of the variant that is being read
    text: list[str] = field(default_factory=list)  # of its segment
    inside: bool = False  # in a segment
    codes: int = 0  # elements with codes that are open

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Take the beginning of an element."""
        if tag == "tu":
            self.units.append({})
        elif tag == "tuv":
            self.language = attributes.get("xml:lang", attributes.get("lang", "")).replace("_", "-").lower()
        elif tag == "seg":
            self.inside, self.text = True, []
        self.codes += tag in CODES

    def end(self, tag: str) -> None:
        """Take the end of an element."""
        self.codes -= tag in CODES
        if tag == "seg" and self.units:
            self.inside = False
            self.units[-1].setdefault(self.language, " ".join("".join(self.text).split()))

    def characters(self, some: str) -> None:
        """Take text."""
        if self.inside and not self.codes:
            self.text.append(some)

    def refuse(self, entity: str, *_: object) -> None:
        """Refuse what would stand for other text: a few lines could stand for gigabytes, or for another file."""
        raise DataError(f"{self.name} declares or uses the entity '{entity}'; write what it stands for in its place")


def read_units(file: BinaryIO, name: str) -> Iterator[Unit]:
    """Read the units of a translation memory; of two texts of one language in a unit, the first.

    Parameters
    ----------
    file : binary file
        XML in an encoding that it declares, or UTF-8 or UTF-16.
    name : str
        What it is called in errors.

    Raises
    ------
    DataError
        If it is no XML, or has entities of its own.
    """
    reader, parser = _Reader(name), expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.characters
    parser.EntityDeclHandler = parser.SkippedEntityHandler = reader.refuse
    more = True
    while more:
        block = file.read(AT_A_TIME)
        more = bool(block)
        try:
            parser.Parse(block, not more)
        except expat.ExpatError as error:
            raise DataError(f"{name} is no translation memory in XML: {error}") from error
        whole = len(reader.units) - more  # the last may go on in the next block
        yield from reader.units[:whole]
        del reader.units[:whole]
