"""Which axis of the input is which, as far as the class says: attribute, docstring, shape comments, names."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

_BATCH = frozenset({"b", "bs", "bsz", "batch", "batch_size", "batchsize", "nbatches", "n_batch", "n_batches", "nb"})
_LENGTH = frozenset(
    {"t", "l", "s", "seq", "seq_len", "length", "len", "time", "seqlen", "src_len", "tgt_len", "tokens"}
)
_LENGTH |= frozenset({"steps", "timesteps", "sequence", "sequence_length", "seq_length", "q_len", "context", "slen"})
_LENGTH |= frozenset({"n_tokens", "num_tokens", "block_size", "n_seq", "positions", "tgt_seq", "src_seq", "ctx", "tsz"})
_LENGTH |= frozenset({"max_len", "seq_length", "query_len", "nseq", "words", "src_length", "time_steps", "len_q"})
_WIDTH = frozenset(
    {"c", "d", "e", "dim", "d_model", "emb", "embed_dim", "hidden", "channels", "features", "in_channels"}
)
_WIDTH |= frozenset({"n_embd", "embedding_dim", "emb_size", "embed_size", "emb_dim", "hidden_size", "hidden_dim", "f"})
_WIDTH |= frozenset({"feature", "channel", "width", "embed", "embedding", "model_dim", "d_in", "in_dim", "c_in"})
_WIDTH |= frozenset({"d_embed", "n_channels", "nhid", "in_features", "dmodel", "model", "size", "feat", "emb_d", "_"})
_EITHER = frozenset({"n", "x"})  # the batch beside a length, the length beside a batch
_LAYOUTS = {
    "bls": "batch-first",
    "lbs": "sequence-first",
    "bsl": "channels-first",
    "bl": "batch-first",
    "lb": "sequence-first",
}
"""Layout by the order of batch (b), length (l) and size (s) of the axes."""

_BRACKETED = re.compile(
    r"[\[(<{`]\s*([A-Za-z_]\w*(?:\s*(?:,|\u00d7|\*|\bx\b|\bby\b|:|\s)\s*[A-Za-z_0-9]\w*){1,2})\s*[\])>}`]"
)
_BETWEEN = re.compile(r"\s*[,\u00d7*:]\s*|\s+x\s+|\s+by\s+|\s+")
_THREE = r"([A-Za-z]\w*(?:(?:\s*,\s*|\s+x\s+|\s*\u00d7\s*|\s+by\s+)[A-Za-z]\w*){2})"
_BARE = re.compile(rf"^(\s*(?:\w+\s*(?:[:=]|is|->)\s*)?){_THREE}\s*$")
"""A comment that holds nothing but the names of three axes."""

_SHAPED = re.compile(rf"(\bshaped?\s*(?:of|:|is|=)?\s*){_THREE}", re.IGNORECASE)
"""A shape without brackets."""

_FIRST_AXIS = re.compile(r"(batch|sequence|seq|channels|channel|time|length)[- _]first", re.IGNORECASE)
_FIRST_WORDS = {"batch": "batch-first", "channels": "channels-first", "channel": "channels-first"}


@dataclass(frozen=True)
class Said:
    """Hold a statement of a class about itself.

    Parameters
    ----------
    what : str
        What it says.
    by : str
        Where: ``"docstring"``, ``"a shape comment"``, ``"names of axes"``.
    """

    what: str
    by: str


def layout_said(module: nn.Module, parameter: str, text: str = "") -> Said | None:
    """The layout a class declares for its input."""
    speaking = module.modules() if type(module).__module__.startswith("torch.") else [module]
    flags = [getattr(part, "batch_first", None) for part in speaking]
    own = next((flag for flag in flags if isinstance(flag, bool)), None)
    function = _said_by_functions(text) if own is not None else None
    if function is not None:
        return function
    if own is not None:
        return Said("batch-first" if own else "sequence-first", f"its attribute batch_first={own}")
    if type(module).__module__.startswith("torch."):
        return None
    sayings = list(_sayings(module, parameter, text))
    for read in (_layout_of_shape, _layout_of_words):
        for saying, by in sayings:
            layout = read(saying)
            if layout is not None:
                return Said(layout, by)
    return None


def _said_by_functions(text: str) -> Said | None:
    """The layout that the docstring of a function declares, which makes a module of torch's own."""
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return None
    docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef)]
    lines = [line for docstring in docstrings for line in docstring.splitlines()]
    layout = next(filter(None, map(_layout_of_shape, lines)), None)
    return None if layout is None else Said(layout, "the docstring of the function")


def sizes_said(module: nn.Module, parameter: str, text: str = "") -> tuple[int, int] | None:
    """The sizes a class declares for the two axes after the batch, as in ``x = [bs, 1, 100]``."""
    if type(module).__module__.startswith("torch."):
        return None
    for saying, _by in _sayings(module, parameter, text):
        for match in _BRACKETED.finditer(saying):
            first, *sizes = _BETWEEN.split(match.group(1).strip())
            if _kind_of(first) == "b" and len(sizes) == 2 and all(size.isdigit() and int(size) for size in sizes):
                return int(sizes[0]), int(sizes[1])
    return None


def _sayings(module: nn.Module, parameter: str, text_of_file: str) -> Iterator[tuple[str, str]]:
    """What is said about the input, the most telling first."""
    source = source_of_forward(module)
    lines = source.splitlines()
    signature = " ".join(lines[: _lines_of_signature(source)])
    yield from ((text, "a shape comment") for text in _comments(signature))
    yield from ((text, "names of axes") for text in _unpackings(source, parameter))
    for text in (inspect.getdoc(module.forward) or "", _own_docstring(module)):
        yield from ((line, "its docstring") for line in _about(text, parameter))
    body = "\n".join(_until_reassigned(lines[_lines_of_signature(source) :], parameter))
    telling = re.compile(rf"\b({re.escape(parameter)}|inputs?|expects?|takes)\b|^\s*[\[(]", re.IGNORECASE)
    around = "\n".join([_comment_above(module, text_of_file), body])
    yield from ((each, "a shape comment") for each in _comments(around) if telling.search(each))


def _own_docstring(module: nn.Module) -> str:
    return inspect.cleandoc(type(module).__dict__.get("__doc__") or "")


def _about(text: str, parameter: str) -> list[str]:
    """The lines of a docstring that may say the input's shape: those that name it, then the others."""
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [" ".join(pair) for pair in zip(lines, [*lines, ""][1:], strict=True)]
    named = [line for line in lines if re.search(rf"\b({re.escape(parameter)}|input|inputs)\b", line)]
    return named + [line for line in lines if line not in named and not re.search(r"mask\b|\bpadding", line)]


def source_of_forward(module: nn.Module) -> str:
    """The source of a module's ``forward``, or nothing."""
    try:
        return textwrap.dedent(inspect.getsource(type(module).forward))
    except (OSError, TypeError, AttributeError):
        return ""


def _lines_of_signature(source: str) -> int:
    """How many lines the ``def`` takes."""
    function = _function_in(source)
    return 0 if function is None else max(1, function.body[0].lineno - 1)


def _function_in(source: str) -> ast.FunctionDef | None:
    try:
        nodes = ast.parse(source).body
    except SyntaxError:
        return None
    return next((node for node in nodes if isinstance(node, ast.FunctionDef)), None)


def _comments(text: str) -> list[str]:
    """The comments of a piece of code; three names alone count as a shape in brackets."""
    found = [match.group(1) for match in re.finditer(r"#(.*?)(?=$|\n)", text)]
    return [_BARE.sub(r"\1(\2)", comment) for comment in found]


def _comment_above(module: nn.Module, text: str) -> str:
    """The comment right above a module's class."""
    found = re.search(rf"((?:^#.*\n)+)(?:@.*\n)*class {type(module).__name__}\b", text, re.MULTILINE)
    return found.group(1) if found else ""


def _until_reassigned(lines: Sequence[str], parameter: str) -> Iterator[str]:
    """The lines up to the one in which the input gets another value."""
    for line in lines:
        if re.match(rf"\s*{re.escape(parameter)}\b[^=(\[.]*=[^=]", line):
            return
        yield line


def _unpackings(source: str, parameter: str) -> Iterator[str]:
    """The names given to the axes of the input before it gets another value, as a shape in brackets."""
    function = _function_in(source)
    axes: dict[int, str] = {}
    for node in function.body if function is not None else []:
        if isinstance(node, ast.Assign):
            yield from _shape_of(node, parameter)
            axes |= _axis_of(node, parameter)
        if _assigns(node, parameter):
            break
    if 0 in axes:
        yield f"({axes[0]}, {axes.get(1, _other(axes[0]))}, dim)"
    elif 1 in axes:
        yield f"({_other(axes[1])}, {axes[1]}, dim)"


def _other(axis: str) -> str:
    """The axis that stands beside one in the first two places."""
    return {"b": "length", "l": "batch"}.get(_kind_of(axis), "unknown")


def _assigns(node: ast.stmt, parameter: str) -> bool:
    """Whether a statement gives the input another value."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Name) and each.id == parameter for target in targets for each in ast.walk(target))


def _shape_of(node: ast.Assign, parameter: str) -> Iterator[str]:
    """The shape that ``b, t, c = x.shape`` tells."""
    target, value = node.targets[0], ast.unparse(node.value)
    telling = re.match(rf"\(?\*?{re.escape(parameter)}\.(shape|size\(\))", value)
    if isinstance(target, ast.Tuple | ast.List) and telling and not re.search(r"shape\[-", value):
        names = [each.id for each in target.elts if isinstance(each, ast.Name)]
        yield f"({', '.join(names[:3])})"


def _axis_of(node: ast.Assign, parameter: str) -> dict[int, str]:
    """The axis that ``seq_len = x.size(0)`` tells; also of several at once."""
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else [node.targets[0]]
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    found: dict[int, str] = {}
    for target, value in zip(targets, values, strict=False):
        match = re.fullmatch(rf"{re.escape(parameter)}\.(?:size\((\d)\)|shape\[(\d)\])", ast.unparse(value))
        if match and isinstance(target, ast.Name):
            found[int(match.group(1) or match.group(2))] = target.id
    return found


def _layout_of_words(text: str) -> str | None:
    """The layout that ``batch first`` and the like say."""
    first = _FIRST_AXIS.search(text)
    return None if first is None else _FIRST_WORDS.get(first.group(1).lower(), "sequence-first")


def _layout_of_shape(text: str) -> str | None:
    """The layout that a shape in brackets says."""
    for match in _BRACKETED.finditer(_SHAPED.sub(r"\1(\2)", text)):
        layout = _LAYOUTS.get(_order_of(_BETWEEN.split(match.group(1).strip())))
        if layout is not None:
            return layout
    return None


def _order_of(names: Sequence[str]) -> str:
    """The order of the axes as one letter each; what could be batch or length is what the others leave."""
    if len(set(names)) < len(names):
        return ""
    kinds = [_kind_of(name) for name in names]
    if len(kinds) < 3 and "?" in kinds:
        return ""
    for index, kind in enumerate(kinds):
        if kind == "?":
            kinds[index] = "b" if "b" not in kinds and "l" in kinds else "l"
    return "".join(kinds)


def _kind_of(name: str) -> str:
    """B for batch, l for length, s for size, ? for one of the first two, - for anything else."""
    word = name.lower()
    tables = {"b": _BATCH, "l": _LENGTH, "s": _WIDTH, "?": _EITHER}
    return next((kind for kind, words in tables.items() if word in words), "s" if word.isdigit() else "-")
