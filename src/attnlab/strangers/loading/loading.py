"""From what a person names to a patient: import it, guess its constructor arguments, build it."""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import re
import string
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, final

import numpy
import torch
from torch import Tensor, nn

from attnlab.core.build import is_path, load_object, path_of
from attnlab.core.errors import AttnlabError, ModuleError, SpecError
from attnlab.core.files import user_path
from attnlab.core.own_files import BASES, EQUALS, USUAL, lent_in, raised_in, replaced_in
from attnlab.strangers.loading.making import Maker
from attnlab.strangers.loading.repository import files_around
from attnlab.strangers.loading.starts import start_as_library_does
from attnlab.strangers.loading.values import settings_of
from attnlab.strangers.loading.ways import ways_to_build
from attnlab.strangers.patient import Patient, twin_of
from attnlab.strangers.texts import classes_of, file_of, text_of

Target = str | nn.Module | type | Callable[..., Any]
"""``FILE.py:Name``, a module, a class of modules, or a function returning one."""


def _mlp(
    in_features: int,
    hidden_features: int | None = None,
    out_features: int | None = None,
    act_layer: Callable[[], nn.Module] = nn.GELU,
    drop: float = 0.0,
) -> nn.Module:
    """A feed-forward of two linear maps."""
    wide = hidden_features or in_features
    layers = [nn.Linear(in_features, wide), act_layer(), nn.Dropout(drop), nn.Linear(wide, out_features or in_features)]
    return nn.Sequential(*layers, nn.Dropout(drop))


@final
class _DropPath(nn.Module):
    """Leave a branch out for whole samples of a batch, in training mode."""

    def __init__(self, drop_prob: float | None = None) -> None:
        super().__init__()
        self.drop = nn.Dropout(drop_prob or 0.0)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.drop(x.new_ones(len(x), *[1] * (x.dim() - 1)))


def _einsum(*operands: Any) -> Tensor:
    """Sum over axes that have whole words for names, the equation first or last."""
    equation, *tensors = sorted(operands, key=lambda one: not isinstance(one, str))
    names = list(dict.fromkeys(re.findall(r"\w+", equation)))
    return torch.einsum(re.sub(r"\w+", lambda word: string.ascii_letters[names.index(word[0])], equation), *tensors)


BASES[:] = [nn.Module]
USUAL |= {"torch": torch, "nn": nn, "F": nn.functional, "Tensor": Tensor, "math": math, "np": numpy}
EQUALS |= {  # of timm, whose small parts are in most vision transformers, of apex, and of earlier versions of torch
    "_LinearWithBias": nn.Linear,
    "FusedLayerNorm": nn.LayerNorm,
    "FusedRMSNorm": nn.RMSNorm,
    "DropPath": _DropPath,
    "einsum": _einsum,
    "Mlp": _mlp,
    "to_2tuple": lambda size: tuple(size) if isinstance(size, tuple | list) else (size, size),
    "trunc_normal_": nn.init.trunc_normal_,
}


def load(target: Target, arguments: Mapping[str, Any] | None = None, *, causal: bool | None = None) -> Patient:
    """Load what is to be examined.

    Parameters
    ----------
    target : str, nn.Module, type or callable
        ``FILE.py:Name``, where the name is a class, a function returning a module, or an instance; or one of these.
    arguments : mapping of str to object, optional
        Constructor arguments, by the constructor's own words or the glossary's; the rest is guessed.
    causal : bool, optional
        What a constructor that asks whether to be causal is told, unless `arguments` say otherwise.

    Returns
    -------
    Patient
        With a pristine instance.

    Raises
    ------
    SpecError
        If there is no such file or object, it makes no module, or a constructor argument is unknown or cannot be
        guessed.
    ModuleError
        If the file or the constructor raises, the module has no parameters, or it lies on the meta device.
    """
    return next(ways_to_load(target, arguments, causal=causal))


def ways_to_load(
    target: Target, arguments: Mapping[str, Any] | None = None, *, causal: bool | None = None
) -> Generator[Patient, BaseException | None, None]:
    """Yield patients for what `load` takes, the most plausible first; what the first call of one raised may be sent."""
    files_around.cache_clear()
    settings_of.cache_clear()
    name = target if isinstance(target, str) else _name_of(target)
    found = _find(target) if isinstance(target, str) else target
    given = dict(arguments or {})
    if isinstance(found, nn.Module):
        yield _from_instance(found, name, given)
        return
    if not callable(found):
        raise SpecError(
            f"{name} is of type {type(found).__name__}; it must be a class of torch.nn.Module, a function returning"
            " one, or an instance"
        )
    if inspect.isclass(found) and not issubclass(found, nn.Module):
        raise SpecError(f"{name} is no torch.nn.Module (hint: derive the class from torch.nn.Module)")
    ways, failed = ways_to_build(found, name, given, causal=causal), None
    with contextlib.suppress(StopIteration):
        while True:
            failed = yield _from_constructor(*ways.send(failed))


def _find(target: str) -> Any:
    """Import the object a person names."""
    if is_path(target) and not target.endswith(":"):
        try:
            return load_object(target)
        except ModuleError as error:
            if not _of_others(error.__cause__, target):
                raise
            with contextlib.suppress(AttnlabError):
                return load_object(target, stand_in=True)
            raise
    path = user_path(target.rstrip(":"))
    if path.suffix != ".py":
        raise SpecError(f"'{target}' must be FILE.py:Name, where Name is a class, a function or an instance")
    if not path.is_file():
        raise SpecError(f"no file {path.resolve()} (from '{target}')")
    raise SpecError(f"'{target}' must say what to examine in the file: {path}:Name; it defines {_classes_in(path)}")


def _of_others(error: BaseException | None, target: str) -> bool:
    """Whether an import failed by what is not there or not imported, or by what another file did."""
    frames = traceback.walk_tb(None if error is None else error.__traceback__)
    files = [frame.f_code.co_filename for frame, _ in frames]
    return (
        isinstance(error, ImportError)
        or getattr(error, "name", None) in USUAL
        or (files[-1:] != [str(path_of(target))] and not isinstance(error, SyntaxError))
    )


def _classes_in(path: Path) -> str:
    """The names of the classes of a file, in words."""
    try:
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, UnicodeDecodeError, OSError):
        return "what cannot be read"
    return ", ".join(node.name for node in nodes if isinstance(node, ast.ClassDef)) or "no class"


def _name_of(target: Any) -> str:
    return type(target).__qualname__ if isinstance(target, nn.Module) else getattr(target, "__qualname__", str(target))


def _from_instance(module: nn.Module, name: str, given: Mapping[str, Any]) -> Patient:
    """The patient for a ready instance."""
    if given:
        raise SpecError(f"{name} is a ready instance, so it takes no constructor arguments; got {', '.join(given)}")
    pristine = _pristine(module, name)
    start_as_library_does(pristine)
    roots = classes_of(module)
    return Patient(name=name, module=pristine, build=None, arguments={}, text=text_of(roots), file=file_of(roots[0]))


def _from_constructor(maker: Maker, module: nn.Module) -> Patient:
    """The patient for a class or a function."""
    roots = dict.fromkeys([maker.factory, *classes_of(module)])
    outer = maker.caller
    return Patient(
        name=maker.name,
        module=_pristine(module, maker.name),
        build=maker.build,
        arguments=maker.arguments,
        text=text_of(roots),
        file=file_of(maker.factory),
        uninitialized=maker.uninitialized,
        notes=(*maker.notes, *([f"{maker.supposed} supposed"] if maker.supposed else []), *_notes_on(maker.factory)),
        whole=None if outer is None else lambda: _from_constructor(outer, outer.build({})),
    )


def _notes_on(factory: Any) -> list[str]:
    """What is missing around a class."""
    module = getattr(factory, "__module__", "")
    libraries, raised = ", ".join(replaced_in(module)), raised_in(module)
    lent = lent_in(module)
    notes = [f"its file does not import {lent}, which is taken as usual"] if lent else []
    notes += [f"imported without {libraries}, not installed here: what needs it fails"] if libraries else []
    return [*notes, *([f"left out of its file or of one beside it: what raised {raised}"] if raised else [])]


def _pristine(module: nn.Module, name: str) -> nn.Module:
    """A copy on the CPU that belongs to the doctor alone."""
    if any(value.is_meta for value in (*module.parameters(), *module.buffers())):
        raise ModuleError(f"{name} lies on the meta device, where nothing can be computed (hint: build it on the CPU)")
    return nn.Module.to(twin_of(module), "cpu")  # its own `to` may return nothing
