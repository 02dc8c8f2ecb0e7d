"""The files of one run in a store and here: which are newer is known, and a checkpoint is replaced in one step.

There every file is an object of its name, and a checkpoint is one object, ``last.tar`` or ``best-STEP.tar``. What says
that all before it is there is written last. ``.writer-MARK`` says whose files were sent last: what another one has sent
since takes the place of what lies here, as a whole.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from attnlab.core.errors import RunError
from attnlab.core.files import new_name, old_name, read_json, replace_folder, write_bytes, write_json
from attnlab.core.storage.store import Store
from attnlab.training.keeping.checkpoints import STATE
from attnlab.training.keeping.runs import FAILED, HOLDER, RESULT

INDEX = ".store.json"
WRITER = ".writer-"
SAYS_DONE = ("rules.json", RESULT, "inside.json")
"""Files that are written after all that they need."""
LAST, BEST = "last", "best"
LAST_OBJECT, BEST_OBJECTS = f"{LAST}.tar", f"{BEST}-"


@final
class CopiedFiles:
    """Take the files of a run from a store, and send them; or those that a study has beside its runs.

    Parameters
    ----------
    store : Store
        Where they are objects.
    copy : Path
        The folder here that stands for the store's.
    name : str
        The run's folder, as a path from there; empty for what lies beside runs.
    reads : bool
        Whether nothing but what the store has is of worth here.
    """

    def __init__(self, store: Store, copy: Path, name: str, *, reads: bool = False) -> None:
        self._store, self._prefix, self._reads = store, f"{name}/" if name else "", reads
        self._folder, self._index = copy / name, copy / name / INDEX
        saved: dict[str, Any] = read_json(self._index) if self._index.exists() else {}
        self._own: str = saved.get("own", "")  # the mark with which files were sent from here
        self._base: list[str] = saved.get("base", [])  # marks of what was taken before
        self._known: dict[str, list[Any]] = saved.get("files", {})
        """By object its tag when it was taken (None where it was sent), and what `_stamp` said of its file then."""

    def take(self, there: Mapping[str, str]) -> None:
        """Make the files here those of the store, by their tags, unless these are its next version.

        A `RunError` says that a study is there no more, of which files were sent from here.
        """
        theirs = {name: tag for name, tag in there.items() if _counts(Path(name)) and self._is_read(name)}
        if self._known and not (theirs or self._prefix or self._reads):
            raise RunError(
                f"{self._store.url} is empty, and was not; see that it is the right store, or remove {self._folder} to "
                "begin anew"
            )
        if not self._reads and self._is_next_of(there, theirs):
            return
        kept = {
            name: known
            for name, known in self._known.items()
            if known == [theirs.get(name, ""), _stamp(self._place(name))]
        }
        for name in filter(self._is_read, self._files().keys() - kept.keys()):
            self._place(name).unlink(missing_ok=True)
        if LAST_OBJECT not in kept:
            for one in (self._folder / LAST, self._folder / BEST):
                for leftover in (one, new_name(one), old_name(one)):
                    shutil.rmtree(leftover, ignore_errors=True)
        missing = [name for name in theirs if name not in kept and not name.endswith(".tar")]
        self._known = kept
        if HOLDER in there and not self._reads:
            self._known[HOLDER] = [there[HOLDER], None]  # goes with what is sent next
        for path, content in self._store.read(self._prefix + name for name in sorted(missing, key=_order)):
            name = path.removeprefix(self._prefix)
            self._place(name).parent.mkdir(parents=True, exist_ok=True)
            write_bytes(self._place(name), content)
            self._known[name] = [theirs[name], _stamp(self._place(name))]
        self._own, self._base = "", _writers(there)
        self._save()

    def _is_next_of(self, there: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
        """Whether nobody else has sent anything since, so that what changed here is newer."""
        if not theirs:
            return not self._known  # else it was deleted there
        return bool(self._own) and {*_writers(there)} <= {self._own, *self._base}

    def _is_read(self, name: str) -> bool:
        """Whether a file is taken from a store: who writes here has a lock of its own."""
        return self._reads or Path(name).name != HOLDER

    def take_checkpoints(self, there: Mapping[str, str]) -> None:
        """Lay out the checkpoints of a run, where it has some and they are not here."""
        if LAST_OBJECT not in there or self._place(LAST_OBJECT).exists():
            return
        self._unpack(LAST_OBJECT, there)
        step = read_json(self._place(LAST_OBJECT))["best"].get("step")
        if step is not None:
            self._unpack(f"{BEST_OBJECTS}{step}.tar", there)
        self._save()

    def _unpack(self, name: str, there: Mapping[str, str]) -> None:
        target = self._place(name).parent
        with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as drafts:
            self._store.fetch(self._prefix + name, Path(drafts, name))
            shutil.rmtree(new_name(target), ignore_errors=True)
            try:
                with tarfile.open(Path(drafts, name), "r:") as archive:
                    archive.extractall(new_name(target), filter="data")
            except tarfile.TarError as error:
                place = f"{self._store.url}/{self._prefix}"
                raise RunError(f"{place}{name} is damaged: {error}; remove {place} and run its study again") from error
        replace_folder(new_name(target), target)
        self._known[name] = [there.get(name), _stamp(self._place(name))]

    def send(self, drafts: Path) -> None:
        """Send what changed here since it was taken or sent; checkpoints are packed in a folder for drafts.

        A `RunError` says that another process has sent something since.
        """
        listed = self._files()  # what is done by now has its last checkpoint, and that all its records
        checkpoints = _checkpoints(self._folder)
        packed = _packed({name: one for name, one in checkpoints.items() if self._is_new(name, one / STATE)}, drafts)
        if packed is None:  # a run that goes on has replaced one meanwhile
            checkpoints, packed = {}, {}
        files = {name: path for name, path in self._files().items() if name in listed or not _order(name)}
        changed = {name: _stamp(path) for name, path in files.items() if self._is_new(name, path)}
        gone = [name for name in self._known if self._is_gone(name, files, checkpoints)]
        if not (changed or packed or gone):
            return
        self._claim()
        self._write(files, [name for name in changed if not _order(name)])
        for name in sorted(packed):  # the best one before the last one, which names it
            self._store.send(drafts / name, self._prefix + name)
            (drafts / name).unlink()
        self._write(files, sorted(filter(_order, changed), key=_order))
        self._store.delete(self._prefix + name for name in gone)
        self._known |= {name: [None, stamp] for name, stamp in (changed | packed).items()}
        self._known = {name: known for name, known in self._known.items() if name not in gone}
        self._save()

    def _write(self, files: Mapping[str, Path], names: list[str]) -> None:
        self._store.write({self._prefix + name: files[name].read_bytes() for name in names if files[name].exists()})

    def _is_new(self, name: str, file: Path) -> bool:
        return self._known.get(name, [None, None])[1] != _stamp(file)

    def _is_gone(self, name: str, files: Mapping[str, Path], checkpoints: Mapping[str, Path]) -> bool:
        """Whether a file is no more that is meant to go: others that are missing here stay in the store."""
        if name.startswith(BEST_OBJECTS):
            return bool(checkpoints) and name not in checkpoints
        return name in (FAILED, HOLDER) and name not in files

    def _claim(self) -> None:
        """Write that what follows was sent from here."""
        writers = [name.removeprefix(self._prefix) for name in self._store.tags(self._prefix, WRITER)]
        if not {*writers} <= {self._own, *self._base}:
            raise RunError(
                f"{self._store.url}/{self._prefix} was taken over by another process; what was computed here lies in "
                f"{self._folder}"
            )
        if self._own not in writers:
            self._own = self._own or WRITER + uuid.uuid4().hex
            self._save()
            self._store.write({self._prefix + self._own: b""})
        self._store.delete(self._prefix + name for name in writers if name != self._own)

    def _save(self) -> None:
        write_json(self._index, {"own": self._own, "base": self._base, "files": self._known})

    def _files(self) -> dict[str, Path]:
        """The files here that have objects of their names; folders that a run replaces meanwhile are passed over."""
        found = list[Path]()
        for folder, below, names in os.walk(self._folder):
            found += [Path(folder, name) for name in names]
            if not self._prefix and Path(folder) != self._folder:
                below.clear()  # what is deeper belongs to runs
        names = {path.relative_to(self._folder).as_posix(): path for path in found if path.is_file()}
        return {name: path for name, path in names.items() if _counts(Path(name))}

    def _place(self, name: str) -> Path:
        """The file that stands for an object here; of a checkpoint its state."""
        if name == LAST_OBJECT or name.startswith(BEST_OBJECTS):
            return self._folder / (LAST if name == LAST_OBJECT else BEST) / STATE
        return self._folder / name


def _counts(name: Path) -> bool:
    """Whether a file is more than a mark, a draft, or a part of a checkpoint."""
    in_checkpoint = name.parent.name.partition(".")[0] in (LAST, BEST)
    hidden = any(part.startswith(".") for part in name.parts) and name.name != HOLDER
    return not (in_checkpoint or hidden or name.suffix == ".tmp")


def _writers(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(WRITER))


def _order(name: str) -> int:
    """0 for what is sent first; more for what says that all before it is there."""
    own = Path(name).name
    return SAYS_DONE.index(own) + 1 if own in SAYS_DONE else 0


def _stamp(path: Path) -> list[int] | None:
    """What is another one when a file has changed; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _checkpoints(folder: Path) -> dict[str, Path]:
    """The checkpoints of a run by their objects: the last one, and the best one that it names."""
    try:
        last = read_json(folder / LAST / STATE)
        step = last["best"].get("step")
        if step is None:
            return {LAST_OBJECT: folder / LAST}
        for best in (folder / BEST, new_name(folder / BEST), old_name(folder / BEST)):
            if (best / STATE).exists() and read_json(best / STATE)["step"] == step:
                return {f"{BEST_OBJECTS}{step}.tar": best, LAST_OBJECT: folder / LAST}
    except RunError:  # there is none yet, or it is replaced in this moment
        pass
    return {}


def _packed(checkpoints: Mapping[str, Path], drafts: Path) -> dict[str, list[int] | None] | None:
    """Pack checkpoints, each into the draft of its object; return their stamps, None if one was replaced meanwhile."""
    stamps = {name: _stamp(folder / STATE) for name, folder in checkpoints.items()}
    try:
        for name, folder in checkpoints.items():
            with tarfile.open(drafts / name, "w") as archive:
                archive.add(folder, arcname=".")
    except FileNotFoundError:
        return None
    return stamps if all(stamps[name] == _stamp(folder / STATE) for name, folder in checkpoints.items()) else None
