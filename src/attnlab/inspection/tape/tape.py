"""Record every operation of one call of a module: what went in, what came out, which operation made which input.

Whatever a person writes (``matmul``, ``einsum``, ``scaled_dot_product_attention``, a loop) ends in a few dozen
operations of torch's core; a `Tape` holds them in order with their values, so that a check can look at the scores of
an attention whose code it has never seen. With a `Change` one of them gives another value, and the call goes on with
it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from attnlab.inspection.capture import without_fast_path

Inside = Callable[[Tensor], Tensor]
"""What stands in the place of a value, given as a copy."""

Change = tuple[int, Inside]
"""Index of an event, and a function of its output of the same shape: the call goes on with what it returns."""

Origin = tuple[int, int]
"""Index of the event that made a tensor, and which of the event's outputs it is."""


Slot = tuple[int | str, int | None]
"""Where an operation was given a tensor: its position or its name, and its place there in a list of tensors."""


@final
@dataclass(frozen=True)
class Step:
    """Hold what is needed to do an operation again."""

    operation: Any  # one overload of an operation of torch
    positional: tuple[Any, ...]
    named: Mapping[str, Any]
    """Its arguments as they were given."""
    slots: tuple[Slot, ...]  # where the event's inputs stand among them
    origins: tuple[Origin | None, ...]
    """For each input which output of which event it is the very tensor of; None: it came from outside."""
    writes: tuple[int, ...]  # inputs that the operation changes in place
    output: int = 0  # which of the operation's outputs the event's output is
    storage: Any = None  # where the event's output lies in memory; views of one tensor have the same

    def arguments(self) -> list[Any]:
        """What is no tensor, by position and then by name, in the shape in which it was given."""
        places = {place for place, _ in self.slots}
        given = (*enumerate(self.positional), *self.named.items())
        return [value for place, value in given if place not in places]

    def again(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Do the operation on other inputs and return all its outputs."""
        positional, named = self.filled(inputs)
        return _outputs(self.operation(*positional, **named))

    def filled(self, inputs: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments with other inputs."""
        positional, named = list(self.positional), dict(self.named)
        for (place, inside), tensor in zip(self.slots, inputs, strict=True):
            holder: Any = named if isinstance(place, str) else positional
            if inside is None:
                holder[place] = tensor
            else:
                holder[place] = [*holder[place][:inside], tensor, *holder[place][inside + 1 :]]
        return tuple(positional), named


@final
@dataclass(frozen=True, eq=False)
class Event:
    """Hold one operation of a call."""

    index: int  # its place on the tape
    call: str
    """Its name without namespace and overload, such as ``bmm``, ``_softmax``, ``masked_fill``. An operation that
    returns a list (``split``, ``unbind``) makes one event for each tensor of it."""
    inputs: tuple[Tensor, ...]  # its tensors with the values they had at that moment
    parents: tuple[int | None, ...]
    """For each input the event that made it, or wrote into it last; None: parameter, buffer, argument or constant."""
    parameters: tuple[str | None, ...]
    """For each input the name of the module's parameter or buffer that it is, or is a view of."""
    arguments: tuple[Any, ...]  # what is no tensor, by position and then by name: axes, numbers, sizes
    output: Tensor  # its first floating output, or its first if none is
    where: str  # dotted path of the innermost submodule that ran; nothing for the module itself
    step: Step = field(repr=False)  # how to do it again

    def with_values(self, inputs: tuple[Tensor, ...], output: Tensor) -> Event:
        """The same operation with other values; `dataclasses.replace` takes several times as long."""
        names = (self.parents, self.parameters, self.arguments)
        return Event(self.index, self.call, inputs, *names, output, self.where, self.step)


@final
@dataclass(frozen=True, eq=False)
class ModuleCall:
    """Hold one call of a submodule."""

    name: str  # its dotted path; nothing for the module itself
    kind: str  # name of its class
    given: tuple[Tensor, ...]
    returned: tuple[Tensor, ...]
    """The tensors among its arguments and its results, with the values of that moment."""


@final
@dataclass(frozen=True, eq=False)
class Tape:
    """Hold all operations of one call."""

    events: tuple[Event, ...]  # in the order in which they ran
    output: Tensor  # what the call returned
    learned: frozenset[str] = frozenset()
    """Names of the module's parameters; other names in `Event.parameters` are buffers."""
    calls: tuple[ModuleCall, ...] = ()  # the calls of submodules, in the order in which they ended
    known: dict[str, Any] = field(default_factory=dict, repr=False)
    """What has been worked out about it so far, by the name of what worked it out."""

    @functools.cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for event in self.events:
            for parent in dict.fromkeys(event.parents):
                if parent is not None:
                    found[parent].append(event.index)
        return found

    def children(self, index: int) -> list[int]:
        """The events that use what an event made."""
        return self._children.get(index, [])

    def ancestors(self, index: int) -> set[int]:
        """The events an event's output was made from, the event itself left out."""
        return _reach(index, lambda at: [parent for parent in self.events[at].parents if parent is not None])

    def descendants(self, index: int) -> set[int]:
        """The events that were made from an event's output, the event itself left out."""
        return _reach(index, self.children)


def _reach(start: int, nexts: Callable[[int], Sequence[int]]) -> set[int]:
    """Everything that can be reached from a start."""
    found: set[int] = set()
    waiting = list(nexts(start))
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += nexts(at)
    return found


def record(module: nn.Module, call: Callable[[], Tensor], *, change: Change | None = None) -> Tape:
    """Run a call of a module and return the operations it consisted of."""
    recorder = _Recorder(module, change)
    with unfused(), recorder.following(), recorder:
        output = call()
    learned = frozenset(name for name, _ in module.named_parameters())
    return Tape(tuple(recorder.events), output, learned, tuple(recorder.calls))


@contextmanager
def unfused() -> Iterator[None]:
    """Turn fused attention off; both switches are put back."""
    with without_fast_path(), sdpa_kernel(SDPBackend.MATH):
        yield


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors among an operation's results."""
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]


@final
class _Recorder(TorchDispatchMode):
    """Write down every operation that reaches the core of torch.

    A tensor is known by its storage and its place in it: torch wraps views anew after an operation has returned.
    """

    def __init__(self, module: nn.Module, change: Change | None) -> None:
        super().__init__()
        self.module = module
        self.change = change
        self.events: list[Event] = []
        self.running = [""]
        self.calls: list[ModuleCall] = []
        self.given: list[tuple[Tensor, ...]] = []  # of the submodules that run
        self.origins: dict[tuple[Any, ...], Origin] = {}
        self.writers: dict[Any, int] = {}  # storage -> the event that wrote into it last
        self.copies: dict[tuple[tuple[Any, ...], int | None], Tensor] = {}
        self.alive: list[Tensor] = []  # a storage that is freed could come back as another tensor's
        named = [*module.named_parameters(), *module.named_buffers()]
        self.names = {identity_of(tensor)[0]: name for name, tensor in reversed(named)}

    @contextmanager
    def following(self) -> Iterator[None]:
        """Keep track of which submodule runs."""
        handles: list[Any] = []
        for name, part in self.module.named_modules():
            handles.append(part.register_forward_pre_hook(functools.partial(self._enter, name), with_kwargs=True))
            handles.append(part.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str, _module: nn.Module, positional: Any, named: Any) -> None:
        self.running.append(name)
        self.given.append(self._values((positional, named)))

    def _leave(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        call = ModuleCall(self.running.pop(), type(module).__name__, self.given.pop(), self._values(output))
        self.calls.append(call)

    def _values(self, held: Any) -> tuple[Tensor, ...]:
        """Copies of the tensors in something, made beside the tape."""
        with _disable_current_modes():
            return tuple(self._value(tensor) for tensor in tensors_in(held))

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        named = kwargs or {}
        slots = tuple(slots_of(args, named))
        given = [at_slot(slot, args, named) for slot in slots]
        inputs = _Inputs(
            values=tuple(self._value(tensor) for tensor in given),
            parents=tuple(self._parent(tensor) for tensor in given),
            names=tuple(self.names.get(identity_of(tensor)[0]) for tensor in given),
        )
        origins = tuple(self.origins.get(identity_of(tensor)) for tensor in given)
        writes = _written(func, args, named, given)
        result = func(*args, **named)
        if self.change is not None:
            result = with_outputs(result, dict([self.change]), first=len(self.events), in_place=bool(writes))
        step = Step(func, args, named, slots, origins, writes)
        self._write_down(result, inputs, step, given)
        return result

    def _write_down(self, result: Any, inputs: _Inputs, step: Step, given: list[Tensor]) -> None:
        """Append the events of one operation, and remember which tensors they made or wrote into."""
        outputs = _outputs(result)
        for number in events_of(result):
            index = len(self.events)
            for place in step.writes:
                self.writers[identity_of(given[place])[0]] = index
            if not step.writes:
                self._remember(outputs, index, only=number if isinstance(result, list) else None)
            event = Event(
                index=index,
                call=step.operation._schema.name.rpartition("::")[2],
                inputs=inputs.values,
                parents=inputs.parents,
                parameters=inputs.names,
                arguments=tuple(step.arguments()),
                output=self._value(outputs[number]),
                where=self.running[-1],
                step=replace(step, output=number, storage=identity_of(outputs[number])[0]),
            )
            self.events.append(event)

    def _remember(self, outputs: list[Tensor], index: int, *, only: int | None) -> None:
        """Note by which event tensors were made, and keep them, for a freed storage could come back as another's."""
        for number, output in enumerate(outputs):
            if only is None or number == only:
                self.origins[identity_of(output)] = (index, number)
                self.alive.append(output.detach())

    def _parent(self, tensor: Tensor) -> int | None:
        """The event that made a tensor, or that wrote into its storage after that."""
        key = identity_of(tensor)
        made, _ = self.origins.get(key, (None, 0))
        written = self.writers.get(key[0])
        known = [index for index in (made, written) if index is not None]
        return max(known, default=None)

    def _value(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor as it is now; copies are shared as long as nobody writes."""
        key = identity_of(tensor)
        version = (key, self.writers.get(key[0]))
        if version not in self.copies:
            self.alive.append(tensor.detach())
            self.copies[version] = tensor.detach().clone()
        return self.copies[version]


@final
@dataclass(frozen=True)
class _Inputs:
    """What is known about an operation's tensors before it runs."""

    values: tuple[Tensor, ...]
    parents: tuple[int | None, ...]
    names: tuple[str | None, ...]


def identity_of(tensor: Tensor) -> tuple[Any, ...]:
    """What two handles of one tensor have in common: storage first."""
    try:
        storage = tensor.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # sparse, or a wrapper without storage
        return (id(tensor), 0, (), (), None)
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def events_of(result: Any) -> list[int]:
    """For which of an operation's tensors events are made: all of a list, else the first floating one."""
    tensors = tensors_in(result)
    if isinstance(result, list):
        return list(range(len(tensors)))
    floating = [number for number, tensor in enumerate(tensors) if tensor.is_floating_point()]
    return (floating or list(range(len(tensors))))[:1]


def with_outputs(result: Any, changes: Mapping[int, Inside], *, first: int, in_place: bool) -> Any:
    """An operation's result with others in the place of the outputs of some events, of which it makes the `first`."""
    leaves, spec = tree_flatten(result)
    tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for index, number in enumerate(events_of(result), first):
        if index not in changes:
            continue
        place = tensors[number]
        changed = changes[index](leaves[place].clone())
        if in_place:
            leaves[place].copy_(changed)
            return result
        leaves[place] = changed.to(leaves[place].dtype)
    return tree_unflatten(leaves, spec)


def _outputs(result: Any) -> list[Tensor]:
    """The tensors among an operation's results, which are one, or stand in a list or a tuple."""
    held = result if isinstance(result, list | tuple) else (result,)
    return [each for each in held if isinstance(each, Tensor)]


def slots_of(positional: Sequence[Any], named: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield where an operation is given tensors."""
    for place, value in (*enumerate(positional), *named.items()):
        if isinstance(value, Tensor):
            yield place, None
        elif isinstance(value, list | tuple):
            yield from ((place, inside) for inside, item in enumerate(value) if isinstance(item, Tensor))


def at_slot(slot: Slot, positional: Sequence[Any], named: Mapping[str, Any]) -> Tensor:
    """The tensor that stands in a slot."""
    place, inside = slot
    value = named[place] if isinstance(place, str) else positional[place]
    return value if inside is None else value[inside]


def _written(func: Any, positional: Sequence[Any], named: Mapping[str, Any], given: list[Tensor]) -> tuple[int, ...]:
    """Which inputs, counted among the tensors, an operation changes in place."""
    if not func._schema.is_mutable:
        return ()
    by_name = {argument.name: value for argument, value in zip(func._schema.arguments, positional, strict=False)}
    by_name |= named
    changed = [
        by_name.get(argument.name)
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    identities = {id(tensor) for tensor in tensors_in(changed)}
    return tuple(number for number, tensor in enumerate(given) if id(tensor) in identities)
