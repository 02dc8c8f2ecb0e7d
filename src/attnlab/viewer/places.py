"""Places below the folder that is viewed: no address leads out of it, by dots or by links."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from starlette.exceptions import HTTPException


def inside(folder: Path, path: str) -> Path:
    """The file or folder that a path below a folder names.

    Parameters
    ----------
    folder : Path
        The folder that is viewed.
    path : str
        From there, as an address has it; empty for the folder itself.

    Returns
    -------
    Path
        With links resolved; it exists.

    Raises
    ------
    HTTPException
        404, if it does not exist or does not lie in the folder.
    """
    root = folder.resolve()
    try:
        found = (root / path).resolve(strict=True)
    except (OSError, ValueError):  # no such file; a name that no file can have
        found = None
    if found is None or not found.is_relative_to(root):
        raise HTTPException(
            HTTPStatus.NOT_FOUND, f"there is no {path!r} in {folder.name or folder}; see the start page"
        )
    return found


def path_below(folder: Path, place: Path) -> str:
    """A place as a path from the folder that is viewed, with slashes; empty for the folder itself."""
    path = place.relative_to(folder.resolve()).as_posix()
    return "" if path == "." else path


def address(kind: str, path: str) -> str:
    """The address of a page about a place.

    Examples
    --------
    >>> address("study", "my runs/shapes")
    '/study/my%20runs/shapes'
    """
    return f"/{kind}/{quote(path)}"
