"""``attnlab view``: studies and runs in a browser, watched while they train."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from attnlab.cli.words import Whole
from attnlab.core.errors import SpecError


def view(
    folder: Path = Path("runs"),
    /,
    *,
    port: Whole = 8765,
    host: str = "127.0.0.1",
    open_browser: Annotated[bool | None, Parameter(name="--open")] = None,
) -> int:
    """Show studies and runs in a browser, also while they train.

    Parameters
    ----------
    folder : Path
        A run, a study's folder, or any folder with such below it.
    port : int
        Port to listen on; 0 takes any that is free.
    host : str
        Address to listen on; beyond this machine, such as 0.0.0.0, the address that is printed holds a token.
    open_browser : bool, optional
        Whether to open the page in a browser; by default where there is a display.

    Returns
    -------
    int
        0, after Ctrl-C.
    """
    try:
        from attnlab.viewer.server import serve
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("starlette", "uvicorn"):
            raise
        raise SpecError(f"this needs {library}: pip install 'attnlab[web]'") from error
    serve(folder, host=host, port=port, browser=has_display() if open_browser is None else open_browser)
    return 0


def has_display() -> bool:
    """Whether a browser can show something here."""
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ
    return bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
