"""``attnlab completion``: commands and options that the shell completes."""

from __future__ import annotations

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

    sys.stdout.write(app.generate_completion(shell=shell))
    return 0
