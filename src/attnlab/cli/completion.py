"""``attnlab completion``: commands and options that the shell completes."""

from __future__ import annotations

import re
import sys
from typing import Literal

ZSH_CALL = """
if [[ $funcstack[1] == _* ]]; then _cyclopts_attnlab "$@"; else compdef _cyclopts_attnlab attnlab; fi
"""
"""Behind the functions, which are called where zsh loads the file as one, and made known where it is evaluated."""


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print what makes a shell complete commands and options of attnlab.

    bash: ``eval "$(attnlab completion bash)"`` in ``~/.bashrc``. zsh: the same with ``zsh`` in ``~/.zshrc``, behind
    ``compinit``, or ``attnlab completion zsh > FOLDER/_attnlab``, a folder of ``$fpath``. fish:
    ``attnlab completion fish > ~/.config/fish/completions/attnlab.fish``.

    Parameters
    ----------
    shell : {"bash", "zsh", "fish"}
        Which shell.

    Returns
    -------
    int
        0.
    """
    from attnlab.cli import app

    script = app.generate_completion(shell=shell)
    if shell == "bash":  # leaves files to readline, which quotes them and goes on into folders
        script = re.sub(r"COMPREPLY=\( \$\(compgen -[df] .*", "COMPREPLY=()", script)
        script = script.replace("\ncomplete -F", "\ncomplete -o bashdefault -o default -F")
    if shell == "zsh":
        script = re.sub(r"^( +'1:(?:[^:\n]|\\:)*)(?=' \\$)", r"\1:_files", script, flags=re.MULTILINE) + ZSH_CALL
    sys.stdout.write(script)
    return 0
