"""``attnlab view``: studies and runs in a browser, watched while they train; or a module of a person's own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from attnlab.cli.words import Whole, argument
from attnlab.core.errors import DataError, SpecError

if TYPE_CHECKING:
    from attnlab.viewer.inside.own import OwnModule


def view(
    target: str = "runs",
    /,
    *,
    text: Path | None = None,
    arg: list[str] | None = None,
    causal: Annotated[bool | None, Parameter(negative=["--not-causal", "--bidirectional"])] = None,
    port: Whole = 8765,
    host: str = "127.0.0.1",
    open_browser: Annotated[bool | None, Parameter(name="--open")] = None,
) -> int:
    """Show studies and runs in a browser, also while they train; or a module of your own.

    Parameters
    ----------
    target : str
        A run, a study's folder, or any folder with such below it, also in an object store; a checkpoint of
        transformers, which reads texts if ``tokenizer.json`` lies in it, else tokens typed as numbers; or
        ``FILE.py:Name``: a class, a function that returns a module, or an instance.
    text : Path, optional
        Of a module: a text whose characters, in their order, are its tokens. Without it tokens are typed as numbers. Of
        a checkpoint: a text that it was not trained on, on which its heads are measured.
    arg : list of str, optional
        Of a module: a constructor argument as ``name=value``; may be repeated.
    causal : bool, optional
        Of a module: whether a position is meant to see no later one. Without it: what the class says, else how it
        behaves.
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
    from attnlab.studies.storage.mirror import followed

    module = _module(target, text, arg or [], causal)
    with contextlib.nullcontext(module) if module else followed(target) as shown:
        serve(shown, host=host, port=port, browser=has_display() if open_browser is None else open_browser)
    return 0


def _module(target: str, text: Path | None, arguments: Sequence[str], causal: bool | None) -> OwnModule | None:
    """A module with what it is made of; None where a folder is named."""
    from attnlab.viewer.inside.own import OwnModule

    if Path(target.partition(":")[0]).suffix == ".py":
        return OwnModule(target, dict(map(argument, arguments)), "" if text is None else str(text), causal)
    if arguments:
        raise SpecError(f"--arg is of a module, FILE.py:Name; {target} is none")
    from attnlab.models.pretrained.checkpoint import folder_of, is_checkpoint

    if is_checkpoint(checkpoint := folder_of(target)):
        from attnlab.models import from_checkpoint

        if text is not None and not text.exists():
            raise DataError(f"--text: no file {text}")
        made = f"{from_checkpoint.__file__}:{from_checkpoint.pretrained.__name__}"
        shown = "" if text is None else str(text.resolve())
        return OwnModule(made, {"folder": str(checkpoint.resolve())}, shown, causal, target)
    if text is not None:
        raise SpecError(f"--text is of a module, FILE.py:Name, or of a checkpoint; {target} is neither")
    if causal is not None:
        raise SpecError(f"--causal is of a module, FILE.py:Name; {target} is none")
    return None


def has_display() -> bool:
    """Whether a browser can show something here."""
    if sys.platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in os.environ
    return bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
