"""Writes that are either there or not: JSON files and folders replaced at once, errors of the disk in words.

A process killed at any moment leaves the old file or the new one. A folder takes two renames; between them the
old one is found under ``NAME.old``, and `recover_folder` puts things right. Storage that fails for a while, as a share
of a network does, is tried again by `patiently`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, final

from safetensors import SafetensorError

from attnlab.core.errors import RunError

Found = TypeVar("Found")

SEAL = "seal"
"""Key of a record that holds a fingerprint of all the others."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers that mean that what is to be written does not fit."""
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers that mean that nothing may be written there."""
IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR)
"""Error numbers that mean that a file stands where a folder has to be."""
PASSING = (
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT),
    *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    *REFUSED,  # a share that lost its credentials, or was mounted anew
)
"""Error numbers of storage that may work again a little later."""
WAITS_S = (1, 2, 4, 8, 16, 32, 64)
"""How long is waited before storage that failed is tried again, one after the other."""

CHANGED = "it was cut or changed: put back a copy of it, or do again in another folder what wrote it"
"""How to go on after a file that the lab wrote."""


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of the disk into a `RunError` that names the folder and what helps."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(_what_is_wrong(folder, error)) from error


def patiently(attempt: Callable[[], Found], say: Callable[[str], None] = lambda _: None) -> Found:
    """Return what an attempt returns, made again after ever longer waits while storage fails.

    Parameters
    ----------
    attempt : callable
        Reads or writes, and may be called again where it raised.
    say : callable
        Is told before every wait what failed.

    Returns
    -------
    Found
        What the attempt returned.

    Raises
    ------
    RunError or OSError
        What the attempt raised, if storage failed to the end or something else is wrong.

    Notes
    -----
    An attempt that went well for longer than all waits together before it failed has the whole patience again.
    """
    waits = iter(WAITS_S)
    while True:
        begun = time.monotonic()
        try:
            return attempt()
        except (RunError, OSError) as error:
            waits = iter(WAITS_S) if time.monotonic() - begun > sum(WAITS_S) else waits
            wait_s, cause = next(waits, None), passing_cause(error)
            if wait_s is None or cause is None:
                raise
        say(f"storage failed ({cause}); trying again in {wait_s} s")
        time.sleep(wait_s)


def passing_cause(error: BaseException | None) -> BaseException | None:
    """The error of storage that may work again a little later behind an error; None where there is no such."""
    while error is not None and _number_of(error) not in PASSING:
        error = error.__cause__
    return error


def _number_of(error: BaseException) -> int | None:
    """The number that the system gave an error, which libraries of other languages leave in their words."""
    words = re.search(r"os error (\d+)\)", str(error)) if isinstance(error, SafetensorError) else None
    return int(words[1]) if words else getattr(error, "errno", None)


def _what_is_wrong(folder: Path, error: Exception) -> str:
    number = _number_of(error)
    if number in IN_THE_WAY:
        return f"cannot write in {folder}: {error}. A file is in the way; remove it, or choose another folder"
    what, room, remedy = "cannot write in", "", "mend what the system says there"
    if number in NO_ROOM:
        what, room, remedy = "no room left to write in", _free_bytes(folder), "make room"
    elif number in REFUSED:
        remedy = "make the folder writable"
    return (
        f"{what} {folder}: {error}{room}. "
        f"What was saved before is still valid; {remedy} and give the same command again"
    )


def _free_bytes(folder: Path) -> str:
    """How much room there is, in brackets; nothing where storage does not even say that."""
    try:
        while not folder.exists():
            folder = folder.parent
        return f" ({shutil.disk_usage(folder).free:,} bytes are free there)"
    except OSError:
        return ""


def fingerprint(content: Mapping[str, Any]) -> str:
    """The sha256 of a mapping of JSON types, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()  # damage may leave halves of characters


def user_path(path: str | os.PathLike[str]) -> Path:
    """A path whose ``~`` is a person's home; one of nobody who is known here stays as it is."""
    return Path(os.path.expanduser(path))


def file_sha256(path: Path) -> str:
    """The sha256 of a file of this machine."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON without NaN so that a reader finds the old content or the new, never a part."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    """JSON types with every number that is not finite replaced by None, at any depth."""
    match value:
        case Mapping():
            return {str(key): finite(one) for key, one in value.items()}
        case list() | tuple():
            return [finite(one) for one in value]
        case float():
            return float(value) if math.isfinite(value) else None
        case _:
            return value


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record with a fingerprint of itself."""
    plain = json.loads(json.dumps(record))  # keys as they will be read
    return {**plain, SEAL: fingerprint(plain)}


def read_sealed(path: Path, *, required: bool) -> dict[str, Any]:
    """Read what was written with a fingerprint of itself.

    Raises
    ------
    RunError
        If it was changed since, or has no fingerprint where one is required.
    """
    record = read_json(path)
    seal = record.pop(SEAL, None)
    if seal != fingerprint(record) and (required or seal is not None):
        raise RunError(
            f"{path} was changed after it was written, so nothing can be judged by it; put back what was changed, or "
            "run the study anew in another folder"
        )
    return record


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file so that a reader finds the old content or the new, never a part."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.tmp")
    with writing(path.parent):
        try:
            temporary.write_bytes(content)
            synchronize(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that can be made again, as several processes may at once: no reader finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def synchronize(path: Path) -> None:
    """Wait until a file's content is on the disk, so that a rename after it is safe against a power cut."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@final
class FileRecord(dict[str, Any]):
    """A JSON object that was read from a file; a key that it lacks is said with the file's name."""

    path: Path

    def __missing__(self, key: str) -> NoReturn:
        raise RunError(f"{self.path} is damaged: it has no '{key}'")


def read_json(path: Path) -> FileRecord:
    """Read a JSON file of a run folder, which holds an object.

    Raises
    ------
    RunError
        If it cannot be read, is no JSON, or holds anything but an object of finite numbers.
    """
    try:
        return parse_record(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def without_remedy(error: RunError) -> str:
    """What `read_json` says of a file, for those who know better how to go on."""
    return str(error).removesuffix(f"; {CHANGED}")


def parse_record(text: str, path: Path) -> FileRecord:
    """Parse a JSON object that stands in a file, as `read_json` does."""

    def record(values: Mapping[str, Any]) -> FileRecord:
        found = FileRecord(values)
        found.path = path
        return found

    try:
        value = json.loads(text, object_hook=record, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}; {CHANGED}") from error
    if not isinstance(value, FileRecord):
        raise RunError(f"{path} cannot be read: it must hold a JSON object; got a {type(value).__name__}; {CHANGED}")
    return value


def _number(text: str) -> float:
    """A number of a JSON file, which is finite."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"numbers must be finite; got {text}")
    return number


def replace_folder(new: Path, target: Path) -> None:
    """Put a complete new folder of the same file system in the place of an old one."""
    old = old_name(target)
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Finish or undo a replacement that was cut short, and remove its leftovers."""
    old, new = old_name(target), new_name(target)
    if old.exists() and not target.exists():
        os.rename(new if new.exists() else old, target)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(new, ignore_errors=True)


def old_name(target: Path) -> Path:
    """The name under which a folder waits while it is replaced."""
    return target.with_name(f"{target.name}.old")


def new_name(target: Path) -> Path:
    """The name under which the replacement of a folder is written."""
    return target.with_name(f"{target.name}.new")
