"""A person's own code on its way to nodes that do not see it: read here, laid out there by what it says."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import attnlab
from attnlab.core.build import load_object, path_of
from attnlab.core.errors import RunError
from attnlab.core.own_files import COPIES, FOLDERS_ABOVE, copy_of
from attnlab.core.processes.apart import call_apart, own_code_in
from attnlab.studies.run.executor import Job

MOST_BYTES = 50_000_000
"""Of code that travels; there is no code of that size, but there are folders full of other files that end in .py."""


def own_code(jobs: Sequence[Job]) -> dict[str, bytes]:
    """The files of a person's own that jobs run, by path: those they name, what these import, and their neighbors.

    A `RunError` says that they are too large to be code.
    """
    names = sorted(own_code_in([job.specs for job in jobs]))
    if not names:
        return {}
    files = [Path(file) for file in call_apart(_files_of, names)]
    size = sum(file.stat().st_size for file in files)
    if size > MOST_BYTES:
        raise RunError(
            f"{size:,} bytes of Python files lie beside {path_of(names[0])} and what it imports, and at most "
            f"{MOST_BYTES:,} travel to a cluster; put it into a folder of its own"
        )
    return {str(file): file.read_bytes() for file in files}


def _files_of(names: Sequence[str]) -> list[str]:
    """The Python files that come with objects: imported here, so in a process of its own."""
    for name in names:
        load_object(name)
    libraries = [
        *site.getsitepackages(),
        site.getusersitepackages(),
        *map(sysconfig.get_path, ("stdlib", "platstdlib")),
    ]
    installed = [Path(attnlab.__file__).parent, *map(Path, libraries)]
    loaded = [Path(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    there = [file for file in loaded if file.is_absolute() and file.is_file()]  # torch.classes names a file that is not
    own = {file for file in there if not any(file.is_relative_to(folder) for folder in installed)}
    own |= {path_of(name) for name in names}
    beside = {one for file in own for one in file.parent.glob("*.py")}
    faces = {folder / "__init__.py" for file in own for folder in list(file.parents)[:FOLDERS_ABOVE]}
    return sorted(str(file) for file in own | beside | {face for face in faces if face.is_file()})


def lay_out(files: Mapping[str, bytes]) -> None:
    """Make files that came from elsewhere those that are imported here, unless the same lie in their places."""
    os.environ.pop(COPIES, None)
    if not all(Path(path).is_file() and Path(path).read_bytes() == content for path, content in files.items()):
        os.environ[COPIES] = _laid_out(tuple(sorted(files.items())))


@functools.cache
def _laid_out(files: tuple[tuple[str, bytes], ...]) -> str:
    """A folder of this process with copies of files."""
    folder = tempfile.mkdtemp(prefix="attnlab-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, content in files:
        copy = copy_of(Path(path), folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    return folder
