"""``attnlab completion``: commands and options that the shell completes."""

from __future__ import annotations

import re
import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print what makes a shell complete commands and options of attnlab.

    bash: ``eval "$(attnlab completion bash)"`` in ``~/.bashrc``. zsh: ``attnlab completion zsh > FOLDER/_attnlab``, a
    folder of ``$fpath``. fish: ``attnlab completion fish > ~/.config/fish/completions/attnlab.fish``.

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
    sys.stdout.write(script)
    return 0
