"""Find and read study files, and know where in a file each key stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from attnlab.core.errors import SpecError, did_you_mean, nearest
from attnlab.core.files import user_path


def library(package: str = "attnlab.studies") -> dict[str, Path]:
    """The files that come with a package of the lab, by name: by default its studies."""
    folder = Path(str(resources.files(package) / "library"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(source: str | Path, known: Mapping[str, Path], kind: str) -> Path:
    """The file that a path or a name of a library means; `kind` says in errors what it holds."""
    path = user_path(source)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        if not path.is_file():
            near = did_you_mean(str(path), map(str, path.parent.glob("[!.]*.y*ml")))
            raise SpecError(f"no {kind} file {path}" + (f"; {near}" if near else ""))
        return path.resolve()
    if str(source) not in known:
        names = [*known, *map(str, path.parent.glob("[!.]*.y*ml"))]
        raise SpecError(f"no {kind} '{source}' in the library and no file of that name; {nearest(str(source), names)}")
    return known[str(source)]


def read(path: Path) -> Mapping[str, Any]:
    """A study file's content with the positions of its keys."""
    try:
        return YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except DuplicateKeyError as error:
        mark = error.problem_mark
        line = f"{path} line {mark.line + 1}" if mark else str(path)
        key = re.search(r'duplicate key "([^"]*)"', str(error))
        raise SpecError(f"{line}: '{key[1] if key else '?'}' is written twice; names must differ") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise SpecError(f"{path} line {mark.line + 1 if mark else '?'}: {error.problem}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text: {error}") from error
    except RecursionError as error:
        raise SpecError(f"{path} cannot be read: it is nested too deeply") from error
    except (YAMLError, OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read: {error}") from error


def plain_types(value: Any) -> Any:
    """What was read as plain dict, list, str, int, float, bool."""
    if isinstance(value, Mapping):
        return {str(key): plain_types(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_types(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is not None:
        raise SpecError(f"a study file holds texts, numbers, lists and mappings; got {value!r}")
    return value


def line_of(raw: Any, location: Sequence[Any]) -> int | None:
    """The 1-based line of a key of a file read with positions, or None where unknown."""
    line = None
    for part in location:
        if not isinstance(raw, CommentedMap) or part not in raw or part not in (raw.lc.data or ()):
            break  # what was put there after reading has no line
        line = raw.lc.key(part)[0] + 1
        raw = raw[part]
    return line
