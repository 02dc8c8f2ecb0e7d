"""What the parameters of a ``forward`` are for, as far as their names tell, and what may be given there.

A name is read by its pieces: ``encoder_hidden_states`` is a memory by ``encoder``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final, get_args

from torch import Tensor, nn

from attnlab.core.constructors import hints_of, is_required
from attnlab.core.errors import ModuleError
from attnlab.strangers.calling.fields import fields_of, learned_from
from attnlab.strangers.calling.masking import ENCODINGS, KEY_SHAPES, LENGTH_SHAPES, LENGTHS, SHAPES, Masking
from attnlab.strangers.calling.sources import (
    ALL_OF_MEMORY,
    AS_LONG,
    NO_OPTIONS,
    PACKED,
    SEVERAL,
    UNNAMED,
    Argument,
    Packed,
)
from attnlab.strangers.loading.sizes import may_be_none
from attnlab.strangers.patient import Patient
from attnlab.strangers.said.source import computed_with, nodes_of, source_of, source_of_forward

_PIECES: dict[str, str] = {
    "flag": "causal autoregressive",
    "off": "return need verbose debug training train",
    "lengths": "lengths lens xlen valid",
    "start": "start offset step",
    "length": "len seqlen length",
    "side": "height width",
    "cos": "cos cosines",
    "sin": "sin sines",
    "rotary": "rope rotary freqs cis",
    "positions": "pos position positions posids",
    "cache": "past cache caches cached kvcache prev incremental inference hx h0 mems",
    "segments": "segment segments type types",
    "source": "src source",
    "target": "tgt trg target dec decoder caption captions",
    "targets": "targets label labels gold",
    "query": "q xq query queries",
    "key or value": "k v xk xv key value keys values",
    "memory": "memory memories mem context ctx enc encoder encoded encodings cond cross kv",
    "pairs": "matrix matrices distance distances",
}
"""Pieces of names by role; the first role that knows a piece has the name."""

_WHOLE: dict[str, str] = {
    "masked": "flag",
    "use_mask": "flag",
    "apply_mask": "flag",
    "mask_future": "flag",
    **dict.fromkeys(("training", "train", "is_training", "is_train", "train_mode", "training_mode"), "mode"),
    "output_attentions": "off",
    "output_hidden_states": "off",
    "x_len": "lengths",
    "x_length": "lengths",
    "length": "lengths",
    "n_positions": "length",
    "t": "length",
    "pe": "positions",
    "h": "side",
    "w": "side",
    "cos_sin": "rotary",
    "past_length": "start",
    "cache_len": "start",
    "kv": "cache",
    "key_value": "memory",
    "key_value_states": "memory",
    "kv_input": "memory",
    "state": "cache",
    "states": "cache",
    "hidden": "cache",
    "position_embeddings": "rotary",
    "rotary_pos_emb": "rotary",
    "y": "memory",
    "z": "memory",
    "y_true": "targets",
    "target_ids": "targets",
    "next_tokens": "targets",
    "inp": "source",
}
"""Names whose pieces say nothing, or something else."""

_STATES = frozenset(["hidden", "hid", "state", "cell", "h", "c", "s"])
"""Pieces of names of what a recurrence keeps from step to step."""

_GRAPH = frozenset({"adj", "adjacency"})
_MASK_PIECES = _GRAPH | {"m", "msk", "padding", "paddings", "pad", "visible", "allowed", "visibility", "keep", "real"}
_BIASES = frozenset({"attn_bias", "attention_bias", "bias"})
_PUT_OUT = frozenset(["output", "outputs", "out"])
_INPUTS = frozenset(["input", "inputs", "ids", "tokens"])
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])")
_OF_MEMORY = re.compile(r"memory|encoder_attention|cross|enc|context|mem_|e_mask")
_OF_KEYS = re.compile(r"pad|key|kv_mask|k_mask|token_mask|valid|real|seq_mask|sequence_mask|input_mask")
_OF_PAIRS = re.compile(r"causal|tgt_mask|trg_mask|look|future|subsequent|bias|attn_mask|visib|allowed")
_TOKENS = re.compile(r".*(token|ids|idx|index|indices|chars|words|text|sentence).*|i|ix|xb|inp_ids")
_FLOATS = re.compile(r".*(emb|hidden|state|feature|feat|img|image|pixel).*")
_OF_PLACES = re.compile(r"pe|.*emb.*|(.*_)?enc(od\w+)?s?(_.*)?")  # vectors for positions, and not their numbers
_NAMELESS = re.compile(r"[a-z]\d?|x_?\w?|in(put|puts)?_?\w?|src|tgt|seq\d?")  # can only be a sequence
_ROLES_TRIED = (
    "open",
    "start",
    "off",
    "memory",
    "positions",
    "lengths",
    "length",
    "side",
    "segments",
    "rotary",
    "cos",
    "sin",
)
_OF_ROTARY = 3
_MASKS = ("mask", "key mask", "memory mask")
_SEQUENCES = ("x", "memory", AS_LONG, "points")
_QKV = 3  # queries, keys and values
_MOST_PLANS = 240  # a failing call takes some 0.1 ms, and there are widths, lengths and layouts to try each in


@final
@dataclass(frozen=True)
class Parameter:
    """Say what one parameter of ``forward`` is for."""

    name: str  # its name
    role: str  # ``"input"``, ``"mask"``, ``"key mask"``, ``"memory mask"``, ``"open"`` or a key of the table of pieces
    required: bool  # whether a call must give it
    by_name: bool  # whether it can be given by name alone
    apart: Argument | None = None  # what is given where ``forward`` takes it apart
    nothing: Literal["first", "last"] | None = None
    """Whether nothing is given before or after all else: its annotation allows None, beside no tensor or beside one."""
    needed: bool = False  # whether ``forward`` computes with it in every call, so that it cannot be None


def roles_of(module: nn.Module) -> tuple[Parameter, ...]:
    """What each parameter of a module's ``forward`` is for; of a batch, what each thing in it is for."""
    signature: Mapping[str, inspect.Parameter] = inspect.signature(module.forward).parameters
    fields = fields_of(type(module))
    if fields is not None:
        signature = {**fields.named, **{name: one for name, one in signature.items() if name != fields.parameter}}
    named = {n: p for n, p in signature.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    handed_on = any(p.kind is p.VAR_POSITIONAL for p in signature.values())
    if handed_on and all(p.kind is p.KEYWORD_ONLY for p in named.values()):
        inner = handed_to(module)
        if inner is not None:
            return roles_of(inner)
        beside = (Parameter(n, role_of(n), is_required(p), by_name=True) for n, p in named.items())
        return (Parameter("", "input", required=True, by_name=False), *beside)
    roles = {name: role_of(name) for name in named}
    if {"h", "w"} & {name.lower() for name in named} == {"h"}:
        roles = {name: "cache" if name.lower() == "h" else role for name, role in roles.items()}  # of a recurrence
    hints = hints_of(type(module).forward)
    for name, one in named.items():
        kinds = {type(one.default), hints.get(name), *get_args(hints.get(name))} & {bool, str}
        told = roles[name] == "mode" and one.default is not True  # else it is meant to draw in evaluation, too
        if kinds and not is_required(one) and roles[name] != "flag" and not told:
            asks = kinds == {bool} and (name.lower() == "mask" or asks_to_be_causal(name))
            roles[name] = "flag" if asks else "off"  # chosen, whatever its name
    source = source_of_forward(module)
    roles |= dict.fromkeys({name for name in switches(type(module)) if roles.get(name) == "mask"}, "flag")
    roles |= dict.fromkeys(_unused(source) & {*roles}, "off")
    roles |= dict.fromkeys(learned_from(source) & {*list(roles)[1:]}, "targets")
    roles |= dict.fromkeys({name for name in roles if _beside_a_negative(name, roles)}, "open")
    _settle_first(roles, named)
    _settle_memory(roles)
    apart, needed = _taken_apart(source), computed_with(module)
    asked = {n: is_required(p) or (p.default is None and n in needed) or roles[n] == "mode" for n, p in named.items()}
    by_name = {n for n, p in named.items() if p.kind is p.KEYWORD_ONLY or (roles[n] == "mode" and not is_required(p))}
    return tuple(
        Parameter(n, roles[n], asked[n], n in by_name, apart.get(n), _nothing(hints.get(n)), n in needed)
        for n, p in named.items()
    )


def _beside_a_negative(name: str, names: Collection[str]) -> bool:
    """Whether ``pos`` in a name stands for positive, as there is the same of what is negative."""
    other = re.sub(r"pos(itive)?", lambda word: "negative" if word[1] else "neg", name)
    return other != name and other in names


def of_graph(name: str) -> bool:
    """Whether the name of a mask says that it holds the edges of a graph."""
    return bool({*_SPLIT.split(name.lower())} & _GRAPH)


def handed_to(module: nn.Module) -> nn.Module | None:
    """The part to which a ``forward(*arguments)`` hands them on, ``self.part(*arguments)``; None: there is none."""
    path = _handed_to(type(module))
    try:
        return module.get_submodule(path) if path else None
    except AttributeError:
        return None


@functools.lru_cache(maxsize=64)
def _handed_to(kind: type[nn.Module]) -> str:
    """The dotted path of that part, nothing where there is none."""
    given = list(inspect.signature(kind.forward).parameters.values())[1:]
    name = (
        "".join(one.name for one in given) if [one.kind for one in given] == [inspect.Parameter.VAR_POSITIONAL] else ""
    )
    found = re.search(rf"\bself\.([\w.]+)\(\*{name}\b", source_of(kind.forward)) if name else None
    return "" if found is None else found[1]


def asks_to_be_causal(name: str) -> bool:
    """Whether the name of what is true or false says that nothing that comes later may be seen."""
    return bool({*_SPLIT.split(name.lower())} & {*_PIECES["flag"].split()})


def _nothing(hint: Any) -> Literal["first", "last"] | None:
    """When a parameter of some annotation is given nothing."""
    return ("last" if Tensor in get_args(hint) else "first") if may_be_none(hint) else None


@functools.lru_cache(maxsize=64)
def switches(kind: type[nn.Module]) -> frozenset[str]:
    """The names of arguments that default to None, and of which ``forward`` asks only whether they are there."""
    optional = {name for name, one in inspect.signature(kind.forward).parameters.items() if one.default is None}
    nodes = nodes_of(source_of(kind.forward))
    compared = [node for node in nodes if isinstance(node, ast.Compare)]
    asked = [node.left for node in compared if isinstance(node.ops[0], ast.Is | ast.IsNot)]
    asked += [node.test for node in nodes if isinstance(node, ast.If | ast.IfExp)]
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id in optional]
    return frozenset(one.id for one in names if one in asked) - {one.id for one in names if one not in asked}


def _unused(source: str) -> set[str]:
    """The names that ``forward`` deletes and never reads: arguments for other modules that are called alike."""
    try:
        names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    except SyntaxError:
        return set()
    return {one.id for one in names if isinstance(one.ctx, ast.Del)} - {
        one.id for one in names if isinstance(one.ctx, ast.Load)
    }


def _taken_apart(source: str) -> dict[str, Argument]:
    """What the names are given that ``forward`` takes apart as they come.

    ``q, k, v = inputs`` and ``inputs[0]``, ``inputs[1]`` take a tuple apart, ``q, k, v = qkv.unbind(2)`` and
    ``qkv[:, :, 0]`` a tensor, and ``f(**options)`` takes a mapping.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:  # a lambda, cut out of its line
        return {}
    found: dict[str, Argument] = {}
    places: dict[tuple[str, int], set[Any]] = {}
    for node in nodes:
        match node:
            case ast.keyword(arg=None, value=ast.Name(id=name)):
                found[name] = Argument(name, NO_OPTIONS)
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id=name)):
                found[name] = Argument(name, SEVERAL, value=len(parts))
            case ast.Assign(
                targets=[ast.Tuple(elts=[_, _, _])],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="unbind" | "chunk" as kind)) as call,
            ):
                said = [*call.args, *(one.value for one in call.keywords if one.arg == "dim")]
                with contextlib.suppress(ValueError, IndexError):
                    way = Packed(_QKV, int(ast.unparse(said[-1])), stacked=kind == "unbind")
                    found[name] = Argument(name, PACKED, value=way)
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                at = index.elts if isinstance(index, ast.Tuple) else [index]
                numbers = {i: one.value for i, one in enumerate(at) if isinstance(one, ast.Constant)}
                for axis, number in numbers.items() if len(numbers) == 1 else ():
                    places.setdefault((name, axis), set()).add(number)
    for (name, axis), numbers in places.items():
        if len(numbers) == _QKV and numbers == set(range(_QKV)):
            way = Packed(_QKV, axis, stacked=True)
            found[name] = Argument(name, PACKED, value=way) if axis else Argument(name, SEVERAL, value=_QKV)
    return found


def role_of(name: str) -> str:
    """What a parameter is for by its name alone.

    Examples
    --------
    >>> [role_of(name) for name in ("encoder_hidden_states", "srcKeyPaddingMask", "return_weights", "K", "anything")]
    ['memory', 'mask', 'off', 'key or value', 'open']
    """
    word, pieces = name.lower(), {piece.lower() for piece in _SPLIT.split(name) if piece}
    tables = {role: set(table.split()) for role, table in _PIECES.items()}
    of_layer = pieces & {"layer", "block"} and pieces & {"idx", "index", "id", "num"}  # which of several it is
    if word in _WHOLE or of_layer:
        return _WHOLE.get(word, "start")
    if pieces & tables["flag"] and ("mask" not in word or pieces & {"flag", "use"}):
        return "flag"
    of_sequence = pieces & {"len", "length"} and pieces & (tables["source"] | tables["memory"] | _INPUTS)
    if of_sequence or pieces & {"lens", "lengths"} or ("valid" in pieces and not pieces <= {"valid", "mask"}):
        return "lengths"
    if "mask" in word or pieces & _MASK_PIECES or "valid" in pieces or word in _BIASES:
        return "mask"
    if pieces & (tables["memory"] | {"dec", "decoder"}) and pieces & _INPUTS:
        return "target" if pieces & {"dec", "decoder"} else "source"
    of_another = "memory" if _SPLIT.split(word)[-1] in _PUT_OUT else "open"  # what another module returned
    return next((role for role, words in tables.items() if pieces & words), of_another)


def _settle_first(roles: dict[str, str], named: Mapping[str, inspect.Parameter]) -> None:
    """Give the first sequence the role of the input, unless another one asks and it is what is looked at."""
    asks = next((name for name, role in roles.items() if role == "query"), None)
    target = next((n for n, role in roles.items() if role == "target" and is_required(named[n])), None)
    first = next(iter(roles), None)
    if asks is not None or first is None:
        return
    others = [name for name, role in roles.items() if role in ("memory", "source", "target") and name != first]
    put_out = roles[first] == "memory" and _SPLIT.split(first.lower())[-1] in {*_PUT_OUT, "memory", "enc", "encoder"}
    if target is not None and target != first and (roles[first] in ("source", "input", "open") or put_out):
        roles[target], roles[first] = "input", "memory"
    elif roles[first] != "key or value":
        roles[first] = "input"
    for name in others:
        if roles[name] in ("source", "target"):
            roles[name] = "memory" if roles[name] == "source" else "targets"


def _settle_memory(roles: dict[str, str]) -> None:
    """Tell masks over the input from those over what is looked at beside it."""
    masks = [name for name, role in roles.items() if role == "mask"]
    memories = tuple(name.lower() for name, role in roles.items() if role == "memory")
    targeted = any(name.lower().startswith(("tgt", "trg", "dec")) for name in masks)
    for name in masks:
        word = name.lower()
        of_source = targeted and word.startswith("src")
        if memories and (of_source or word.startswith(memories) or _OF_MEMORY.search(word)):
            roles[name] = "memory mask"
        elif _OF_KEYS.search(word) and not _OF_PAIRS.search(word):
            roles[name] = "key mask"


def seems_tokens(name: str) -> bool | None:
    """Whether a parameter's name says that it holds token ids, None where it says nothing."""
    word = name.lower()
    if _FLOATS.fullmatch(word):
        return False
    return True if _TOKENS.fullmatch(word) else None


def seems_over_pairs(name: str) -> bool:
    """Whether a mask's name says that it is over pairs of positions."""
    return bool(_OF_PAIRS.search(name.lower()))


# What may be given there

Choice = tuple[Argument | Masking | None, ...]
"""What one parameter can be given; None: it is left out."""


@final
@dataclass(frozen=True)
class Filling:
    """Say what every parameter of one call is given."""

    arguments: tuple[Argument, ...]  # everything but masks
    masks: tuple[Masking, ...] = ()  # masks that a call must give
    flag: str | None = None  # the parameter that asks whether to be causal, if it must be given


def calls_for(parameters: Sequence[Parameter], d_head: int | None, vocab_size: int | None) -> list[Filling]:
    """Ways to fill the parameters, from the plainest on."""
    flag = next((one.name for one in parameters if one.role == "flag" and one.required), None)
    calls: dict[Filling, None] = {}
    for masked in _masks_to_give(parameters):
        choices = [
            _mask_choice(one, given=one.name in masked)
            if one.role in _MASKS
            else _choice(one, index, d_head=d_head, vocab_size=vocab_size)
            for index, one in enumerate(parameters)
        ]
        for given in _together(choices):
            arguments = tuple(each for each in given if each is not None and each.__class__ is Argument)
            masks = tuple(each for each in given if each is not None and each.__class__ is Masking)
            calls[Filling(arguments, masks, flag)] = None
    return list(calls)[:_MOST_PLANS]


def with_a_vector(call: Filling, width: int) -> Iterator[Filling]:
    """Yield a call with each of its sequences in turn as one vector per sample, as a decoder's state asks a text."""
    sequences = [one for one in call.arguments if one.source in _SEQUENCES]
    of_one = itertools.product(("vector", "sequence of one", "state"), sequences if len(sequences) > 1 else ())
    for source, vector in of_one:
        others = (replace(one, source="x") if one in sequences and not one.value else one for one in call.arguments)
        own = replace(vector, source=source, value=vector.value or width)
        given = (own if one.parameter == vector.parameter else one for one in others)
        yield replace(call, arguments=tuple(given))


def one_step(parameters: Sequence[Parameter], width: int, *, alone: bool) -> Iterator[Filling]:
    """Yield calls of a decoder: a token, and a state of some width, or that of an encoder alone, ask what it read.

    Whether a state of its own asks `alone`: it may be a sequence as well.
    """
    wanted = [one for one in parameters if one.required and one.role not in _MASKS]
    states = {one.name for one in wanted if {*_SPLIT.split(one.name.lower())} & _STATES}
    of_encoder = {one.name for one in wanted if role_of(one.name) == "memory"}
    memories = of_encoder - states
    tokens = len(wanted) - len(states) - 1
    if len(memories) != 1 or not states or tokens not in ((0, 1) if states <= of_encoder else (int(not alone),)):
        return
    for state, token in itertools.product(("vector", "state", "pair of states"), ("one number each", "one number")):
        sources = {one.name: state if one.name in states else "x" if one.name in memories else token for one in wanted}
        arguments = [Argument(name, sources[name], value=width if name in states else None) for name in sources]
        masks = [one for one in parameters if one.required and one.role in _MASKS]
        yield Filling((*arguments, *(Argument(one.name, "constant") for one in masks)))
        yield from (Filling(tuple(arguments), some) for some in _over_keys(masks) if masks)


def told_apart(parameters: Sequence[Parameter], axes: Mapping[str, int], width: int) -> Iterator[Filling]:
    """Yield calls with a vector and sequences, told by how many axes each is said to have; masks are over keys."""
    wanted = [one for one in parameters if one.required]
    masks = [one for one in wanted if one.role in _MASKS]
    sources = {2: "vector", 3: "x"}
    given = {one.name: sources.get(axes.get(one.name, 0)) for one in wanted if one not in masks}
    if set(given.values()) != set(sources.values()):
        return
    arguments = [
        Argument(name, source, value=width if source == "vector" else None) for name, source in given.items() if source
    ]
    yield from (Filling(tuple(arguments), some) for some in _over_keys(masks))


def _over_keys(masks: Sequence[Parameter]) -> Iterator[tuple[Masking, ...]]:
    """Yield what is given to masks that are over the keys of one query, all in one meaning and shape."""
    for encoding, shape in itertools.product(ENCODINGS, KEY_SHAPES) if masks else [("", "")]:
        yield tuple(Masking(one.name, "keys", encoding, shape, required=True) for one in masks)


def _masks_to_give(parameters: Sequence[Parameter]) -> Iterator[set[str]]:
    """Yield which masks are given: none, all that must be, then with them each of the others, as None may not do."""
    masks = [
        one for one in parameters if one.role in ("mask", "key mask") or (one.role == "memory mask" and one.required)
    ]
    required = {one.name for one in masks if one.required}
    yield set()
    if required:
        yield required
    yield from (required | {one.name} for one in masks if not one.required)


def _together(choices: list[Choice]) -> Iterator[tuple[Argument | Masking | None, ...]]:
    """Every combination in which all masks speak alike."""
    for combination in itertools.islice(itertools.product(*choices), 4 * _MOST_PLANS):
        encodings = {each.encoding for each in combination if each is not None} - {LENGTHS, ""}
        if len(encodings) <= 1:
            yield combination


def _choice(one: Parameter, index: int, *, d_head: int | None, vocab_size: int | None) -> Choice:
    """What a parameter that is no mask can be given."""
    by_name = one.by_name or index > 0

    def given(source: str, value: object = None) -> Argument:
        return Argument(one.name, source, by_name, value)

    if one.name == "need_weights":  # weights nobody reads; torch's own layer is several times slower with them
        return (given("constant", False),)
    if "teacher" in one.name.lower():  # how often a decoder is given the target, by chance
        return (given("constant", 1.0),)
    memories = (given("memory"), given("memory tokens", vocab_size))
    memories = memories[::-1] if seems_tokens(one.name) else memories
    sequence = (given("x"), *memories, given("vector"))
    nothing = given("constant", None)
    unsaid = (*sequence, nothing) if _NAMELESS.fullmatch(one.name.lower()) else (nothing, *sequence)
    numbers = (given("positions"), given("positions of each"))
    vectors = (given("position vectors"), given("offset vectors"))
    turning = (one.role in ("rotary", "cos", "sin") and d_head is None) or one.role == "flag"
    choices: dict[str, Choice] = {
        "memory": (*memories, given(AS_LONG), given("x"), given("vector")),
        "lengths": (
            *(Masking(one.name, "keys", LENGTHS, shape, required=True) for shape in LENGTH_SHAPES),
            given("length"),
        ),
        "length": (given("length"),),
        "side": (given("side"), given("length")),
        "cache": (nothing,),
        "mode": (given("mode"),),
        "off": (given("constant", False),),
        "positions": (*vectors, *numbers) if _OF_PLACES.fullmatch(one.name.lower()) else (*numbers, *vectors),
        "rotary": tuple(given(kind, d_head) for kind in ("cos and sin", "tables of cos and sin", "turns")),
        "cos": (given("cos", d_head), given("half cos", d_head)),
        "sin": (given("sin", d_head), given("half sin", d_head)),
        "start": (given("constant", 0),),
        "targets": (given("x"), given("one number each"), given("numbers"), given("vector")),
        "segments": (given("segments", 1), given("segments", 0)),  # 0 may mean padding
        "pairs": (given("numbers of pairs"), given("kinds of pairs of each"), given("vectors of pairs")),
        "open": sequence if one.needed else unsaid,
    }
    apart = () if one.apart is None else (replace(one.apart, by_name=by_name),)
    choice = (None,) if turning else choices.get(one.role, (given("x"),))
    choice = (*apart, *choice) if one.role not in choices or one.role == "open" else choice
    if one.nothing is not None and not one.needed and nothing not in choice and one.role not in ("input", "query"):
        choice = (nothing, *choice) if one.nothing == "first" else (*choice, nothing)
    if one.required or one.role in ("input", "query"):
        return choice
    return (None,)


def anything_for(one: Parameter, d_head: int | None, vocab_size: int | None) -> Iterator[Argument | Masking]:
    """Yield all that a parameter might be given, whatever its name says."""
    if one.role in _MASKS:
        yield from (each for each in _mask_choice(one, given=True) if each is not None)
    for role in dict.fromkeys([one.role, *(_ROLES_TRIED if d_head is not None else _ROLES_TRIED[:-_OF_ROTARY])]):
        for each in _choice(replace(one, role=role, required=True), 1, d_head=d_head, vocab_size=vocab_size):
            if each is not None:
                yield each
    yield from (Argument(one.name, source) for source in UNNAMED)


def _mask_choice(one: Parameter, *, given: bool) -> Choice:
    """How a mask can be given before anything is known about it."""
    if not given:
        return (Argument(one.name, "constant", by_name=True, value=None) if one.required else None,)
    if one.role == "memory mask":
        forms = itertools.product(ENCODINGS, (*KEY_SHAPES, *SHAPES))
        return tuple(Argument(one.name, ALL_OF_MEMORY, value=form) for form in forms)
    pairs = [Masking(one.name, "pairs", encoding, shape, required=True) for encoding in ENCODINGS for shape in SHAPES]
    keys = [Masking(one.name, "keys", encoding, shape, required=True) for encoding in ENCODINGS for shape in KEY_SHAPES]
    return tuple([*keys, *pairs] if one.role == "key mask" else [*pairs, *keys])


def input_of(parameters: Sequence[Parameter], patient: Patient) -> str:
    """The name of the input."""
    for role in ("input", "query", "key or value", "open"):
        found = next((one.name for one in parameters if one.role == role), None)
        if found is not None:
            return found
    raise ModuleError(
        f"{patient.name}: forward takes no input; it must take a sequence such as (batch, length, d_model)"
    )
