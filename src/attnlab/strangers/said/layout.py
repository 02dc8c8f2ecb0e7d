"""The order of axes that a class declares: by an attribute, by names of axes, in comments and docstrings."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from torch import nn

from attnlab.strangers.said.source import (
    Said,
    docstrings,
    is_torchs_own,
    nodes_of,
    parsed,
    source_of_forward,
    source_of_inherited,
    with_next,
)

_AXES: dict[str, str] = {
    "batch": "... b bs bsz batch batches batchsize nbatches nb",
    "length": "t l s seq length len time seqlen tokens steps timesteps sequence context block_size positions ctx tsz "
    "slen nseq words l_q l_k lq lk",
    "size": "c d e f dim dmodel emb embed embedding emb_d d_model hidden nhid channel channels features feature feat "
    "width model c_in d_in d_embd n_embd d_head d_k d_v size _",
    "heads": "h head heads nhead",
    "height": "row rows",
    "width": "col cols column columns",
    "either": "n x",  # the batch beside a length, the length beside a batch
}
"""Names of axes; of a name with several pieces, as ``batch_size``, the first axis that one of them names counts."""

_ORDERS = {
    "batch length size": "batch-first",
    "length batch size": "sequence-first",
    "batch size length": "channels-first",
    "batch length": "batch-first",
    "length batch": "sequence-first",
    "batch heads length size": "heads, then length",
    "batch length heads size": "length, then heads",
    "batch size height width": "image",
    "batch height width size": "image, channels last",
    "height width batch size": "image, batch third",
}
"""Layout by the order of the axes."""

_JOINT = r"(?:\s*,\s*|\s+x\s+|\s*\u00d7\s*|\s+by\s+)"
_BRACKETED = re.compile(
    r"[\[(<{`]\s*((?:[A-Za-z_]\w*|\.\.\.)(?:\s*(?:,|\u00d7|\*|\bx\b|\bby\b|:|\s)\s*[A-Za-z_0-9]\w*){1,3})\s*[\])>}`]"
)
_BETWEEN = re.compile(r"\s*[,\u00d7*:]\s*|\s+x\s+|\s+by\s+|\s+")
_BARE = re.compile(rf"^(\s*(?:\w+\s*(?:[:=]|is|->)\s*)?)([A-Za-z]\w*(?:{_JOINT}[A-Za-z]\w*){{2}})\s*$")
_SHAPED = re.compile(rf"(\bshaped?\s*(?:of|:|is|=)?\s*)([A-Za-z]\w*(?:{_JOINT}[A-Za-z]\w*){{2}})", re.IGNORECASE)
_FIRST_AXIS = re.compile(r"(batch|sequence|seq|channels|channel|time|length)[- _]first", re.IGNORECASE)
_EXCHANGES = re.compile(r"^[^#]*(\.(permute|transpose|swapaxes|swapdims|movedim)\(|\brearrange\()")
"""A line of code that exchanges axes; a shape that is told on it is that of what comes of it."""
_MULTIPLIES = re.compile(r"\.(matmul|bmm)$")
_ALONE = re.compile(r"\s*[\[(]")


def layout_said(module: nn.Module, parameter: str, text: str = "") -> Said | None:
    """The layout a class declares for its input: in comments, names of axes or docstrings, else by an attribute."""
    sayings = [] if is_torchs_own(module) else list(_sayings(module, parameter, text))
    telling = _telling(parameter)
    for read in (_layout_of_shape, _layout_of_words):
        for saying, by in sayings:
            layout = read(saying)
            if layout is not None:
                return Said(layout, by, in_passing=telling.search(saying) is None)
    speaking = module.modules() if is_torchs_own(module) else [module]
    flag = next((one.batch_first for one in speaking if isinstance(getattr(one, "batch_first", None), bool)), None)
    if flag is None:
        return None
    by_function = _said_by_functions(text)  # which makes a module of torch's own
    return by_function or Said("batch-first" if flag else "sequence-first", f"its attribute batch_first={flag}")


def sizes_said(module: nn.Module, parameter: str, text: str = "") -> tuple[int, int] | None:
    """The sizes a class declares for the two axes after the batch, as in ``x = [bs, 1, 100]``."""
    for saying, _by in [] if is_torchs_own(module) else _sayings(module, parameter, text):
        for match in _BRACKETED.finditer(saying):
            first, *sizes = _BETWEEN.split(match.group(1).strip())
            if _axis(first) == "batch" and len(sizes) == 2 and all(size.isdigit() and int(size) for size in sizes):
                return int(sizes[0]), int(sizes[1])
    return None


def axes_said(module: nn.Module, parameters: Sequence[str]) -> dict[str, int]:
    """How many axes the first shape has that stands behind the name of a parameter, of those of which one is told."""
    return {name: len(axes) for name, axes in _shapes_said(module, parameters).items()}


def _shapes_said(module: nn.Module, parameters: Sequence[str]) -> dict[str, list[str]]:
    """The axes of the first shape behind the name of each parameter."""
    source = "" if is_torchs_own(module) else source_of_forward(module)
    told = [*_comments(source), *("" if is_torchs_own(module) else "\n".join(docstrings(module))).splitlines()]
    names = re.compile(r"\b(" + "|".join(map(re.escape, parameters)) + r")\b`?(?!\()")
    found: dict[str, list[str]] = {}
    for line in told:
        parts = names.split(_SHAPED.sub(r"\1(\2)", line))
        for name, text in zip(parts[1::2], parts[2::2], strict=True):
            shape = _BRACKETED.search(text)
            if shape is not None and "(" not in text[: shape.start()]:
                axes = shape.group(1).strip()
                found.setdefault(
                    name, [one.strip() for one in axes.split(",")] if "," in axes else _BETWEEN.split(axes)
                )
    return found


def _said_by_functions(text: str) -> Said | None:
    """The layout that the docstring of a function declares."""
    docstrings = [ast.get_docstring(node) or "" for node in parsed(text) if isinstance(node, ast.FunctionDef)]
    lines = [line for docstring in docstrings for line in docstring.splitlines()]
    layout = next(filter(None, map(_layout_of_shape, lines)), None)
    return None if layout is None else Said(layout, "the docstring of the function")


def _sayings(module: nn.Module, parameter: str, text_of_file: str) -> Iterator[tuple[str, str]]:
    """What is said about the input, the most telling first."""
    source = source_of_forward(module)
    function = next((node for node in parsed(source) if isinstance(node, ast.FunctionDef)), None)
    lines = source.splitlines()
    start = 0 if function is None else max(1, function.body[0].lineno - 1)
    yield from ((comment, "a shape comment") for comment in _comments(" ".join(lines[:start])))
    yield from ((shape, "names of axes") for shape in _unpacked(function, parameter))
    if re.search(rf"super\([^()]*\)\.forward\({re.escape(parameter)}\b", source):
        inherited = next((one for one in parsed(source_of_inherited(module)) if isinstance(one, ast.FunctionDef)), None)
        named = parameter if inherited is None or len(inherited.args.args) < 2 else inherited.args.args[1].arg
        yield from ((shape, "names of axes") for shape in _unpacked(inherited, named))
    for docstring in docstrings(module):
        yield from ((line, "its docstring") for line in _about(docstring, parameter))
    reassigned = re.compile(rf"\s*{re.escape(parameter)}\b[^=(\[.]*=[^=]")
    body = itertools.takewhile(lambda line: not reassigned.match(line), lines[start:])
    above = re.search(rf"((?:^#.*\n)+)(?:@.*\n)*class {type(module).__name__}\b", text_of_file, re.MULTILINE)
    around = "\n".join([above.group(1) if above else "", *body])
    telling = _telling(parameter)
    told = ((each, bool(_EXCHANGES.search(line))) for line in around.splitlines() for each in _comments(line))
    own = (each for each, turned in told if telling.search(each) and not (turned and _ALONE.match(each)))
    yield from ((each, "a shape comment") for each in own)


def _telling(parameter: str) -> re.Pattern[str]:
    """What is about the input: it is named, or nothing but a shape stands there."""
    return re.compile(rf"\b({re.escape(parameter)}|inputs?|expects?|takes|shapes?)\b|^{_ALONE.pattern}", re.IGNORECASE)


def _comments(text: str) -> list[str]:
    """The comments of a piece of code; three names alone count as a shape in brackets."""
    return [_BARE.sub(r"\1(\2)", comment) for comment in re.findall(r"#(.*?)(?=$|\n)", text)]


def _about(text: str, parameter: str) -> list[str]:
    """The lines of a docstring that may say the input's shape: those that name it, then the others."""
    lines = with_next(line for line in text.splitlines() if line.strip())
    named_it = [line for line in lines if re.search(rf"\b({re.escape(parameter)}|input|inputs)\b", line)]
    return named_it + [line for line in lines if line not in named_it and not re.search(r"mask\b|\bpadding", line)]


def _unpacked(function: ast.FunctionDef | None, parameter: str) -> Iterator[str]:
    """The names given to the axes of the input before it gets another value, as a shape in brackets."""
    axes: dict[int, str] = {}
    for node in function.body if function is not None else []:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], ast.unparse(node.value)
        whole = re.match(rf"\(?\*?{re.escape(parameter)}\.(shape|size\(\))", value)
        if isinstance(target, ast.Tuple | ast.List) and whole and not re.search(r"shape\[-", value):
            axes_of_it = 3 if value.startswith(("*", "(*")) else 4  # after a star more may follow that are none
            yield f"({', '.join([one.id for one in target.elts if isinstance(one, ast.Name)][:axes_of_it])})"
        axes |= _axes_of(node, parameter)
        if any(isinstance(one, ast.Name) and one.id == parameter for each in node.targets for one in ast.walk(each)):
            break
    if 0 in axes:
        yield f"({axes[0]}, {axes.get(1, _beside(axes[0]))}, dim)"
    elif 1 in axes:
        yield f"({_beside(axes[1])}, {axes[1]}, dim)"


def _axes_of(node: ast.Assign, parameter: str) -> dict[int, str]:
    """The axes that ``seq_len = x.size(0)`` names; also several at once."""
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else [node.targets[0]]
    values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    found: dict[int, str] = {}
    for target, value in zip(targets, values, strict=False):
        match = re.fullmatch(rf"{re.escape(parameter)}\.(?:size\((\d)\)|shape\[(\d)\])", ast.unparse(value))
        if match and isinstance(target, ast.Name):
            found[int(match.group(1) or match.group(2))] = target.id
    return found


def _beside(axis: str) -> str:
    """The axis that stands beside one in the first two places."""
    return {"batch": "length", "length": "batch"}.get(_axis(axis), "unknown")


def _layout_of_words(text: str) -> str | None:
    """The layout that ``batch first`` and the like say."""
    first = _FIRST_AXIS.search(text)
    if first is None:
        return None
    return {"b": "batch-first", "c": "channels-first"}.get(first.group(1)[0].lower(), "sequence-first")


def _layout_of_shape(text: str) -> str | None:
    """The layout that a shape in brackets says."""
    for match in _BRACKETED.finditer(_SHAPED.sub(r"\1(\2)", text)):
        layout = _ORDERS.get(_order_of(_BETWEEN.split(match.group(1).strip())))
        if layout is not None:
            return layout
    return None


def _order_of(names: Sequence[str]) -> str:
    """The order of the axes; what could be batch or length is what the others leave, an h before a w is a height."""
    kinds = [_axis(name) for name in names]
    for index, (name, after) in enumerate(itertools.pairwise(name.lower() for name in names)):
        if (name, after) in (("h", "w"), ("height", "width")):
            kinds[index : index + 2] = "height", "width"
    if len(set(names)) < len(names) or (len(kinds) < 3 and "either" in kinds):
        return ""
    for index, kind in enumerate(kinds):
        if kind == "either":
            kinds[index] = "batch" if "batch" not in kinds and "length" in kinds else "length"
    return " ".join(kinds)


def _axis(name: str) -> str:
    """The axis a name means; a number is a size."""
    words = {word: axis for axis, several in _AXES.items() for word in several.split()}
    pieces = {words.get(piece) for piece in name.lower().split("_") if len(piece) > 1}
    whole = words.get(name.lower(), "size" if name.isdigit() else "")
    return whole or next((axis for axis in _AXES if axis in pieces), "")


def turned_keys(module: nn.Module) -> set[str]:
    """The keys that ``forward`` multiplies queries by as they come, and of which a shape says positions come last."""
    nodes = nodes_of(source_of_forward(module))
    set_there = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    named = {node.arg for node in nodes if isinstance(node, ast.arg)} - set_there
    products = [
        [node.left, node.right] for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    ]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _MULTIPLIES.search(ast.unparse(node.func))]
    products += [one.args for one in calls if len(one.args) == 2]
    bare = [[getattr(factor, "id", "") for factor in one] for one in products]
    found = {
        right for left, right in bare if left != right and {left, right} <= named and right.lower().startswith("k")
    }
    shapes = _shapes_said(module, sorted(found)) if found else {}
    return {name for name, axes in shapes.items() if [_axis(axis) for axis in axes[-2:]] == ["size", "length"]}
