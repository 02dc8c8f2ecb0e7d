"""Whether everything it computes with moves with it: to another device, and to another number format.

No accelerator is needed. The module moves to the meta device, whose tensors have a shape and hold no numbers, and every
operation is watched: a tensor that stayed on the CPU shows as soon as it meets one that moved.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from attnlab.core.errors import ModuleError
from attnlab.doctor.examination import Examination
from attnlab.doctor.findings import Finding, FindingText
from attnlab.doctor.measures.formats import Attempt
from attnlab.doctor.measures.unregistered import Unregistered, lasting_tensors, plain_tensors
from attnlab.strangers.patient import in_mode, twin_of

CHECK = "dtype-device"
_MIXES = frozenset(
    {
        *("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "copy_", "_to_copy"),
        "_pack_padded_sequence",  # whose lengths must be on the CPU
    }
)
"""Operations that take a tensor on the CPU beside one on an accelerator."""

_NUMBERS = frozenset(
    {
        *("_local_scalar_dense", "equal", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim"),
        *("unique_consecutive", "is_nonzero"),
    }
)
"""Operations whose value or size depends on numbers."""

_MISMATCH = r"same device|on the expected device|device type tensor to numpy"
"""What torch says where devices do not fit."""

_NAMES_CUDA = re.compile(r"\.cuda\(|[\"']cuda")
_NAMES_CPU = re.compile(r"(device=|\.to\()(torch\.device\()?[\"']cpu")
_SHOWN = 3  # names in one finding

_SOURCE = "PyTorch documentation, nn.Module.register_buffer; CUDA semantics, Best practices, Device-agnostic code"
_REMEDY = (
    "register constants with self.register_buffer(...), and make tensors in forward with device=x.device"
    " (torch.arange(n, device=x.device), torch.ones(n, n, device=scores.device))"
)

TEXTS: Mapping[str, FindingText] = {
    "stays": FindingText("error", "On another device it fails: a tensor stays on the CPU.", _REMEDY, _SOURCE),
    "stays by choice": FindingText(  # whoever moves it must build it anew
        "warning",
        "It stays on the device that was chosen when it was built: moved to another it fails.",
        _REMEDY,
        _SOURCE,
        "set-up",
    ),
    "stays after a call": FindingText(  # moved before its first call it is right
        "warning",
        "Once it was called on the CPU it fails on another device: it keeps a tensor of the earlier call.",
        _REMEDY,
        _SOURCE,
        "set-up",
    ),
    "untried": FindingText(
        "warning", "Tensors kept as plain attributes do not move with the module.", _REMEDY, _SOURCE
    ),
    "format": FindingText(
        "warning",
        "Moved to {formats} it fails, where float32 works: something in it stays float32.",
        "make constants in forward with dtype=x.dtype, cast tables with table.to(x.dtype), register them as buffers",
        _SOURCE,
    ),
    "unsaved": FindingText(
        "warning",
        "Random tensors in it are kept as plain attributes, so saving and loading does not bring them back.",
        "register them with self.register_buffer(...) or as nn.Parameter",
        _SOURCE,
    ),
}
"""What -> its text; braces are filled with what was measured."""

Plain = Sequence[tuple[Unregistered, Tensor]]
"""Tensors that are neither parameters nor buffers, with where they are kept."""


def check_dtype_device(exam: Examination) -> Iterator[Finding]:
    """What stays behind when the module moves to another device or number format."""
    plain = lasting_tensors(exam)
    left_behind = list(_device(exam, plain))
    yield from left_behind
    if not any(finding.severity == "error" for finding in left_behind):  # it stays in its format for the same reason
        yield from _format(exam)
    yield from _unsaved(exam, plain)


def _device(exam: Examination, plain: Plain) -> Iterator[Finding]:
    """An error if it fails on another device, fresh or after a call on the CPU."""
    fresh = _move(exam, exam.copy(dtype=torch.float32))
    if fresh.result == "left behind":
        asks = "device" in {*exam.patient.arguments, *inspect.signature(type(exam.patient.module).__init__).parameters}
        chosen = asks or _NAMES_CUDA.search(exam.patient.text)
        chosen = chosen or (fresh.chosen and not plain and not _NAMES_CPU.search(exam.patient.text))
        yield _left_behind("stays by choice" if chosen else "stays", fresh, plain)
        return
    called = exam.copy(dtype=torch.float32)
    exam.run(exam.inputs(dtype=torch.float32), module=called)
    kept = _move(exam, called)
    if kept.result == "left behind":
        yield _left_behind("stays after a call", kept, plain_tensors(called))
    elif fresh.result == "unknown":
        unmoved = [each for each in plain if not _is_moved(each[0].attribute, exam.patient.text)]
        evidence = f"{_names(unmoved)}; could not be tried on another device: {fresh.said}"
        yield from [TEXTS["untried"].finding(CHECK, evidence)] if unmoved else ()


def _is_moved(attribute: str, source: str) -> bool:
    """Whether the source moves what an attribute holds."""
    return bool(re.search(rf"{re.escape(attribute)}[^\n]*\.(to|type_as|cuda)\(", source))


def _left_behind(text: str, move: _Move, plain: Plain) -> Finding:
    attributes = f"; tensors that are no buffers: {_names(plain)}" if plain else ""
    return TEXTS[text].finding(CHECK, f"moved to the meta device: {move.said}{attributes}")


def _names(plain: Plain) -> str:
    named = [f"{kept.path} {tuple(tensor.shape)}" for kept, tensor in plain]
    return ", ".join(named[:_SHOWN]) + (", ..." if len(named) > _SHOWN else "")


def _format(exam: Examination) -> Iterator[Finding]:
    """A warning if something in it stays in float32; autocast, which is how most train, does not mind."""
    if Attempt(torch.float32).run(exam).raised:
        return
    outcomes = [Attempt(dtype).run(exam) for dtype in (torch.bfloat16, torch.float64)]
    mixed = [outcome for outcome in outcomes if outcome.refusal == "mixed"]
    if mixed:
        formats = [outcome.attempt.format for outcome in mixed]
        yield TEXTS["format"].finding(CHECK, f"{formats[0]}: {mixed[0].raised}", {"formats": " and ".join(formats)})


def _unsaved(exam: Examination, plain: Plain) -> Iterator[Finding]:
    """A warning if plain tensors are random: a loaded module then differs from the saved one."""
    other = exam.another() if plain else None
    theirs = {} if other is None else {kept.path: tensor for kept, tensor in plain_tensors(other)}
    random = [each for each in plain if (own := theirs.get(each[0].path)) is not None and not _equal(each[1], own)]
    if random:
        evidence = f"differ between two instances and are not in state_dict(): {_names(random)}"
        yield TEXTS["unsaved"].finding(CHECK, evidence)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


# A call on a device without numbers


@final
@dataclass(frozen=True)
class _Move:
    """What came of a call on another device: unknown where it raised something that is not about devices."""

    result: Literal["right", "left behind", "unknown"]
    said: str = ""
    chosen: bool = False  # whether what stayed behind is on a device that the module named


def _move(exam: Examination, module: nn.Module) -> _Move:
    """Call a copy on the CPU and then on the meta device, in the same way.

    The module that moves is the one given: what it keeps of an earlier call it has from the caller.
    """
    x = exam.inputs(dtype=torch.float32)
    with _Numbers() as numbers:
        exam.run(x, module=twin_of(module))
    in_mode(module.to("meta"))  # for which some keep sums of parameters
    named = _Named()
    try:
        with _Meetings(numbers.learned), named:
            output = exam.run(x.to("meta"), module=module)
    except ModuleError as error:
        said = " ".join(str(error).split(" raised ", 1)[-1].split())
        return _Move("left behind" if re.search(_MISMATCH, said) else "unknown", said, chosen=named.met)
    except RuntimeError as error:  # the call around the module
        return _Move("unknown", str(error))
    if output.device.type != "meta":
        return _Move("left behind", f"the output is on the {output.device.type} all the same")
    return _Move("right")


@final
class _Named(TorchFunctionMode):
    """Notice whether what met a tensor of another device was made on a device that the module names, or sent there."""

    met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        del types
        named, leaves = dict(kwargs or {}), tree_flatten((args, dict(kwargs or {})))[0]
        stayed = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() and not leaf.is_meta]
        of_named = bool(stayed) and all(hasattr(tensor, "on_named_device") for tensor in stayed)
        try:
            output = func(*args, **named)
        except RuntimeError:
            self.met = of_named
            raise
        sent = func is Tensor.to and any(isinstance(value, str | torch.device) for value in args[1:])
        if isinstance(output, Tensor) and not output.is_meta and (of_named or sent or named.get("device") is not None):
            vars(output)["on_named_device"] = True
        return output


@final
class _Numbers(TorchDispatchMode):
    """Keep what a call on the CPU learns from values: numbers, and how many elements meet a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.learned: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        if _needs_numbers(func, args):
            self.learned.append(output)
        return output


@final
class _Meetings(TorchDispatchMode):
    """Raise where tensors of two devices meet in an operation that cannot take both.

    The meta device itself refuses only some of these meetings. It has no numbers either: where the call asks for some,
    it gets those of the same call on the CPU; a copy to the CPU holds anything.

    Parameters
    ----------
    learned : list
        What a call on the CPU learned from values, in order.
    """

    def __init__(self, learned: list[Any]) -> None:
        super().__init__()
        self.learned = iter(learned)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        name, named = func.overloadpacket.__name__, dict(kwargs or {})
        _refuse_meeting(name, tree_flatten((args, named))[0])
        if _needs_numbers(func, args):
            device = args[0].device
            return tree_map_only(Tensor, lambda output: output.to(device), next(self.learned))
        if name == "copy_" and args[1].is_meta and not args[0].is_meta:
            return args[0]
        if name == "_to_copy" and args[0].is_meta and _to_cpu(named):
            return torch.zeros(args[0].shape, dtype=named.get("dtype") or args[0].dtype)
        if name.startswith("masked_fill") and isinstance(args[2], Tensor):  # one number, which any device takes
            args = (*args[:2], args[2].to(args[0].device))
        return func(*args, **named)


def _needs_numbers(func: Any, args: Sequence[Any]) -> bool:
    """Whether what an operation returns has a size or a value that only numbers tell."""
    name = func.overloadpacket.__name__
    indices = [each for each in args[1] if each is not None] if name in ("index", "_unsafe_index") else []
    selects = any(each.dtype in (torch.bool, torch.uint8) for each in indices)  # by conditions, not by places
    return selects or name in _NUMBERS or str(func) == "aten.repeat_interleave.Tensor"


def _refuse_meeting(name: str, leaves: Sequence[Any]) -> None:
    """Raise as an accelerator would if an operation gets tensors of two devices."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    devices = sorted({tensor.device.type for tensor in tensors if tensor.dim()})
    if len(devices) > 1 and name not in _MIXES:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {' and '.join(devices)}")


def _to_cpu(named: Mapping[str, Any]) -> bool:
    return named.get("device") is not None and torch.device(named["device"]).type == "cpu"
