"""What a class says: its source, with the classes and functions of the same file that it uses."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from attnlab.core.own_files import tree_of

_DESCRIBED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
"""What has a docstring, below the file itself."""


def text_of(roots: Iterable[Any]) -> str:
    """The source of objects and of everything in their own files that they use, comments included."""
    names: dict[str, set[str]] = {}
    for root in roots:
        file = file_of(root)
        if file:
            names.setdefault(file, set()).add(root.__qualname__.split(".")[0])
    return "\n\n".join(_pieces(file, wanted) for file, wanted in names.items())


@functools.lru_cache(maxsize=64)
def words_of(text: str) -> str:
    """What a source says to its readers: docstrings and comments, no code and no names."""
    source = textwrap.dedent(text)
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, _DESCRIBED)]
        comments = _comments(source)
    except (SyntaxError, tokenize.TokenError):  # words, not code
        return text
    if not nodes:
        return text
    said = [ast.get_docstring(node) or "" for node in nodes]
    paragraphs = [one for each in (*said, comments) for one in re.split(r"\n\s*\n", each)]
    return "\n\n".join(filter(None, (" ".join(each.split()) for each in paragraphs)))


def _comments(source: str) -> str:
    """The comments; those on neighbouring lines are one paragraph, however long, others each their own."""
    found, last = "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            found += ("\n" if alone and token.start[0] == last + 1 else "\n\n") + token.string.lstrip("#! ")
            last = token.start[0] if alone else -1
    return found


def file_of(root: Any) -> str:
    """The file an object is defined in, or nothing."""
    try:
        return inspect.getsourcefile(root) or ""
    except (TypeError, OSError):  # a builtin, or defined at a prompt
        return ""


def classes_of(module: nn.Module) -> list[type]:
    """The class of a module and those of its parts that stand in the same file."""
    own = type(module)
    file = file_of(own)
    ancestors = [each for each in own.__mro__ if each is not own and file_of(each) == file]
    parts = [type(part) for part in module.modules() if file_of(type(part)) == file]
    return list(dict.fromkeys([own, *ancestors, *parts]))


def _pieces(file: str, wanted: set[str]) -> str:
    """The top-level definitions of a file that are wanted, or used by one that is."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    tree = tree_of(Path(file).read_bytes())
    nodes = {name: node for node in tree.body for name in _names_defined(node)}
    found, open_names = set(), [name for name in wanted if name in nodes]
    while open_names:
        name = open_names.pop()
        found.add(name)
        used = {each.id for each in ast.walk(nodes[name]) if isinstance(each, ast.Name)}
        open_names += [each for each in used if each in nodes and each not in found]
    chosen = dict.fromkeys(nodes[name] for name in nodes if name in found)
    return "\n\n".join(_with_comments(lines, node) for node in chosen)


def _names_defined(node: ast.stmt) -> list[str]:
    """The names a top-level statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _with_comments(lines: list[str], node: ast.stmt) -> str:
    """The source of a statement with its decorators and the comment right above it."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)]) - 1
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])
