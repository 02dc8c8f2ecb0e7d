"""Check docstrings against signatures: ``python -m tests.lint_docstrings``.

What people import is documented in full: every name in the ``__all__`` of a package, and every class that is called.
Of other records each field is explained where it stands, and other functions need a summary. A parameter that an
abstract class documents for its kinds need not be documented again. Checked by importing, so that dataclasses count
with the constructor they really have.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from numpydoc.docscrape import ClassDoc
from numpydoc.validate import validate

import attnlab

FULL = {"GL08", "PR01", "PR02", "RT01"}
SUMMARY = {"GL08", "PR02"}


def modules() -> Iterator[ModuleType]:
    """Yield every module of the package."""
    for found in pkgutil.walk_packages(attnlab.__path__, "attnlab."):
        yield importlib.import_module(found.name)


def exported() -> set[int]:
    """Find the identities of all functions that a package hands out."""
    packages = [module for module in modules() if hasattr(module, "__path__")]
    things = [getattr(package, name) for package in packages for name in getattr(package, "__all__", ())]
    return {id(thing) for thing in things if inspect.isfunction(thing) or inspect.isclass(thing)}


def checked_names(module: ModuleType, full: set[int]) -> Iterator[tuple[str, Any, set[str]]]:
    """Yield every public object a module defines, with the checks it must pass."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing):
            yield f"{module.__name__}.{name}", thing, FULL if id(thing) in full else SUMMARY
        elif inspect.isclass(thing):
            by_fields = dataclasses.is_dataclass(thing) and id(thing) not in full
            protocol = getattr(thing, "_is_protocol", False)  # its "constructor" is none
            yield f"{module.__name__}.{name}", thing, SUMMARY if protocol or by_fields else FULL - {"RT01"}
            for method_name, method in vars(thing).items():
                if not method_name.startswith("_") and inspect.isfunction(method):
                    yield f"{module.__name__}.{name}.{method_name}", method, SUMMARY


def unexplained(thing: type) -> Iterator[str]:
    """Yield the fields of a record beside which nothing is said: no comment, and no text below them."""
    lines = inspect.getsource(thing).splitlines()
    (tree,) = ast.parse(textwrap.dedent("\n".join(lines))).body
    waiting: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and "#" not in lines[(node.end_lineno or 0) - 1]:
            waiting.append(ast.unparse(node.target))
        elif isinstance(node, ast.Expr):
            waiting = []
    described = ClassDoc(None, doc=inspect.cleandoc(thing.__doc__ or ""))["Parameters"]
    yield from set(waiting) - {name.strip() for entry in described for name in entry.name.split(",")}


def documented(thing: type) -> set[str]:
    """The parameters that a class documents itself, in its docstring or beside its fields."""
    fields = set(vars(thing).get("__annotations__", {})) if dataclasses.is_dataclass(thing) else set()
    if not vars(thing).get("__doc__"):
        return fields
    entries = ClassDoc(None, doc=inspect.cleandoc(thing.__doc__ or ""))["Parameters"]
    return fields | {name.strip() for entry in entries for name in entry.name.split(",")}


def below(thing: type) -> Iterator[type]:
    """Yield every class under another one."""
    for kind in thing.__subclasses__():
        yield kind
        yield from below(kind)


def accounted(thing: Any, code: str) -> set[str]:
    """The parameters that may go undocumented, or be documented although they are not asked for."""
    if not inspect.isclass(thing):
        return set()
    if code == "PR01":
        return {name for parent in thing.__mro__[1:] for name in documented(parent)}
    asked = {name for kind in below(thing) for name in inspect.signature(kind).parameters}
    return asked if thing.__name__.lstrip("_").startswith("Abstract") else set()


def is_accounted(thing: Any, code: str, text: str) -> bool:
    """Whether the classes above or below explain what numpydoc finds wrong with parameters."""
    return code in {"PR01", "PR02"} and set(re.findall(r"'(\w+)'", text)) <= accounted(thing, code)


def problems() -> list[str]:
    """Write one line per problem."""
    lines = []
    full = exported()
    for module in modules():
        for name, thing, checks in checked_names(module, full):
            found = validate(name)
            if dataclasses.is_dataclass(thing):
                lines += [f"{found['file']}:{found['file_line']}: {name}: {field}?" for field in unexplained(thing)]
            lines += [
                f"{found['file']}:{found['file_line']}: {name}: {code} {text}"
                for code, text in found["errors"]
                if code in checks and not is_accounted(thing, code, text)
            ]
    return lines


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) or "docstrings: fine")
    sys.exit(bool(found))
