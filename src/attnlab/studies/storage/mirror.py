"""Folders in a store and their copies on this machine, which everything else works in as in any folder."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, final

from attnlab.core.errors import RunError
from attnlab.core.files import writing
from attnlab.core.storage.cache import cache_folder
from attnlab.core.storage.store import Store, address
from attnlab.studies.storage.copied import INDEX, CopiedFiles

Room = Literal["work", "nodes", "seen"]
"""Copies that never meet: of a command that runs a study, of the nodes of a cluster, of whoever reads."""
COPIES, IDENTITY = "stores", ".copy"
FOLLOW_EVERY_S = 10.0
"""How often whoever watches a folder in a store reads it anew."""
ATTEMPTS = 3
"""How often what was replaced while it was read is read again."""

_one_at_a_time = threading.RLock()


@final
class Mirror:
    """Fill a folder of this machine from a store, and send back what changed.

    Parameters
    ----------
    url : str
        As `address` gives it.
    room : {"work", "nodes", "seen"}
        Who works in the copy.
    """

    def __init__(self, url: str, room: Room) -> None:
        self.store, self._room = Store(url), room
        self.folder = _copies(room) / url.replace("://", "/")

    def pull(self, below: str = "", *, checkpoints: Callable[[Path], bool] = lambda _: False) -> None:
        """Take over what others have sent of one run, by its path from here, or of all.

        `checkpoints` says of a run, by its folder with all its other files, whether its checkpoints are wanted too. A
        `RunError` says that the store fails, or that the copy cannot be written.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with _one_at_a_time, writing(self.folder):
                    self._pull(below, checkpoints)
                return
            except RunError as error:
                if attempt == ATTEMPTS or not isinstance(error.__cause__, FileNotFoundError):
                    raise

    def _pull(self, below: str, checkpoints: Callable[[Path], bool]) -> None:
        there: dict[str, dict[str, str]] = {group: {} for group in self._groups(below)}
        for name, tag in self.store.tags(below).items():
            group = _group_of(name)
            there.setdefault(group, {})[name.removeprefix(f"{group}/")] = tag
        for name, objects in there.items():
            group = self._group(name)
            group.take(objects)
            if checkpoints(self.folder / name):
                group.take_checkpoints(objects)

    def push(self, below: str = "") -> None:
        """Send what changed here since it was taken or sent.

        A `RunError` says that the store fails, or that another process has sent something since.
        """
        with _one_at_a_time, writing(self.folder), tempfile.TemporaryDirectory(prefix=".", dir=self.folder) as drafts:
            for name in self._groups(below):
                self._group(name).send(Path(drafts))

    def identity(self) -> str:
        """What no other copy has, on no machine."""
        file = self.folder / IDENTITY
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), file.open("x") as new:
                new.write(uuid.uuid4().hex)
            return file.read_text()

    def _group(self, name: str) -> CopiedFiles:
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        return CopiedFiles(self.store, self.folder, name, reads=self._room == "seen")

    def _groups(self, below: str) -> list[str]:
        """What there is here: the files beside runs, then every run."""
        if below:
            return [below]
        runs = (path for path in self.folder.glob("*/*") if path.is_dir())
        return ["", *sorted(path.relative_to(self.folder).as_posix() for path in runs)]


def _group_of(name: str) -> str:
    """The run that an object belongs to: two folders down."""
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else ""


def _copies(room: Room) -> Path:
    return cache_folder() / COPIES / room


def local(folder: str | os.PathLike[str]) -> Path:
    """A folder to read in: the one that is named, or the copy of one in a store as it is now, without checkpoints.

    Raises
    ------
    SpecError
        If it is a URL of no store, or the library for it is not installed.
    RunError
        If the store cannot be read, or has nothing there.
    """
    found = address(folder)
    if isinstance(found, Path):
        return found
    mirror = Mirror(found, "seen")
    mirror.pull()
    if not any(path.name != INDEX for path in mirror.folder.iterdir()):
        raise RunError(f"there is nothing at {found}; see its name, or run a study with --out {found}")
    return mirror.folder


@contextlib.contextmanager
def followed(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a folder to read in as `local` gives it, and read it anew again and again in the meantime."""
    copy, found, ended = local(folder), address(folder), threading.Event()

    def follow(mirror: Mirror) -> None:
        while not ended.wait(FOLLOW_EVERY_S):
            with contextlib.suppress(RunError):  # of a store that fails for a while
                mirror.pull()

    if isinstance(found, str):
        threading.Thread(target=follow, args=(Mirror(found, "seen"),), daemon=True).start()
    try:
        yield copy
    finally:
        ended.set()


def with_checkpoints(run: Path) -> Path:
    """A run's folder to read in, with its checkpoints, also where it is what `local` gave."""
    url = url_of(run)
    if url:
        Mirror(url, "seen").pull(checkpoints=lambda _: True)
    return run


def deliver(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> Path:
    """Send files of someone who reads a folder to where it lies, if that is a store; return where they belong here."""
    found = address(folder)
    url = found if isinstance(found, str) else url_of(found)
    if url is None:
        return Path(found)
    Store(url).write(files)
    return _copies("seen") / url.replace("://", "/")


def with_urls(text: str) -> str:
    """A text that names folders of a store by their URLs, where it named their copies."""
    copies = re.escape(str(_copies("seen").parent) + os.sep)
    return re.sub(rf"{copies}(?:seen|work)[/\\]([a-z][a-z0-9+.-]*)[/\\]", r"\1://", text)


def url_of(folder: Path) -> str | None:
    """The URL that a folder for readers is a copy of; None where it is none."""
    copies = _copies("seen").resolve()
    if not folder.resolve().is_relative_to(copies):
        return None
    scheme, *rest = folder.resolve().relative_to(copies).parts
    return f"{scheme}://{'/'.join(rest)}" if rest else None
