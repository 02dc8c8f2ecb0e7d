"""Run the examples of the doctor in README.md and docs/doctor.md, and write what it prints into them.

``.venv/bin/python docs/make_doctor_examples.py`` takes a few seconds. The modules are the blocks ``python NAME.py`` of
docs/doctor.md, the outputs the blocks ``text NAME.py`` of both: a block keeps the paragraphs it has, which are known by
their first two words, and all of them where it begins with the module's name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
PAGES = (DOCS / "doctor.md", DOCS.parent / "README.md")
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = "ResidualAttention"
WIDTH = "80"  # characters, as a terminal has


def printed(module: str, text: str) -> str:
    """Return what the doctor prints about a module.

    Parameters
    ----------
    module : str
        Name of the file, such as ``residual.py``.
    text : str
        What stands in it.

    Returns
    -------
    str
        Standard output, without spaces at the ends of lines.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / module).write_text(text, encoding="utf-8")
        run = subprocess.run(
            [Path(sys.executable).with_name("attnlab"), "doctor", f"{module}:{NAME}"],
            cwd=folder,
            env={**os.environ, "COLUMNS": WIDTH},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    return "\n".join(line.rstrip() for line in run.stdout.strip().splitlines()) + "\n"


def excerpt(shown: str, output: str) -> str:
    """Return the paragraphs of an output that a block shows.

    Parameters
    ----------
    shown : str
        The block as it is.
    output : str
        The new output.

    Returns
    -------
    str
        The block as it must be.

    Raises
    ------
    SystemExit
        If a paragraph is no longer printed.
    """
    paragraphs = {_first_words(part): part.strip() for part in reversed(output.split("\n\n"))}
    wanted = [_first_words(part) for part in shown.split("\n\n")]
    if wanted[0] == _first_words(output):
        return output
    if missing := [words for words in wanted if words not in paragraphs]:
        raise SystemExit(f"no longer printed: {', '.join(missing)}")
    return "\n\n".join(paragraphs[words] for words in wanted) + "\n"


def _first_words(paragraph: str) -> str:
    return " ".join(paragraph.split()[:2])


def main() -> None:
    """Write every output anew."""
    modules = {info: body for info, body in FENCE.findall(PAGES[0].read_text(encoding="utf-8")) if ".py" in info}
    outputs = {
        info.replace("python", "text", 1): printed(info.split()[1], body)
        for info, body in modules.items()
        if info.startswith("python ")
    }

    def fill(block: re.Match[str]) -> str:
        output = outputs.get(block[1])
        return block[0] if output is None else f"```{block[1]}\n{excerpt(block[2], output)}```"

    for page in PAGES:
        page.write_text(FENCE.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
