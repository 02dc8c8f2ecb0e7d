"""What a class declares in plain words: the order of its axes, whether it is causal, what True means in its masks.

Words declare what is meant; what a module does is measured. The tables are the whole vocabulary.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import nn

from attnlab.core.constructors import named, signature_of

_AXES: dict[str, str] = {
    "batch": "b bs bsz batch batch_size batchsize nbatches n_batch n_batches nb",
    "length": (
        "t l s seq seq_len length len time seqlen src_len tgt_len tokens steps timesteps sequence sequence_length "
        "seq_length q_len context slen n_tokens num_tokens block_size n_seq positions tgt_seq src_seq ctx tsz max_len "
        "query_len nseq words src_length time_steps len_q l_q l_k lq lk"
    ),
    "size": (
        "c d e f dim d_model dmodel emb embed embedding embed_dim emb_dim emb_size embed_size embedding_dim n_embd "
        "d_embed emb_d hidden hidden_size hidden_dim nhid channels channel n_channels in_channels c_in features "
        "feature feat in_features width model model_dim size d_in in_dim d_head head_dim dim_head d_k d_v _"
    ),
    "heads": "h head heads n_head n_heads nhead num_heads",
    "either": "n x",  # the batch beside a length, the length beside a batch
}
"""Names of axes."""

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
}
"""Layout by the order of the axes."""

_CAUSAL_NAMES: tuple[tuple[str, bool, bool], ...] = (
    (r"NonCausal|Non_?causal|Bi[Dd]irectional|Unmasked|Masked(LM|Language)", False, False),
    (r"Causal|Auto[Rr]egressive|Unidirectional|Masked(Self|Multi|Head)|LookAhead", True, False),
    (r"GPT|Decoder|LanguageModel|CharLM|LM$|CharRNN", True, True),
    (r"Encoder|B[Ee][Rr][Tt]|ViT|VisionTransformer", False, True),
)
"""Names of classes: whether they say causal, and whether they only make it likely; the first that fits counts."""

_PAST = "(previous|earlier|preceding|past|before)"
_CAUSAL_PHRASES: tuple[tuple[str, bool, bool], ...] = (
    (r"non-?causal|not causal|bi-?directional|un-?masked|both directions|no causal|masked language", False, False),
    (
        r"non-?auto-?regressive|masked auto-?encoder|attention over all (patches|positions|tokens)"
        rf"|(every|each) (position|token|patch) (sees|attends to) (all|every|each)\b(?!.{{0,8}} ?{_PAST})",
        False,
        False,
    ),
    (
        r"\bcausal|auto-?regressive|decoder-only|left-to-right|look-?ahead mask|unidirectional|lower[- ]triangular"
        r"|masked (multi-?head(ed)? )?(self-?)?attention|no(thing|ne)? (of the|from the) future"
        r"|(not|never|cannot|can't) (sees?|attends? to|looks? (at|into)|peeks? (at|into)) (the )?(future|later)"
        rf"|(sees?|attends? to|looks? at) (only|just|nothing but) (the )?({_PAST}|itself)"
        rf"|(only|just) (sees?|attends? to|looks? at) (the )?{_PAST}|future (positions|tokens) are"
        r"|no later (position|token)|hides? (the )?(future|later)",
        True,
        False,
    ),
    (
        r"\bgpt|next[- ](token|character|char|word)|language model|encoder-decoder(?! (cross-?)?attention)"
        r"|(?<!encoder-)(?<!from )(?<!of )(?<!for )(?<!by )(?<!to )(?<!in )(?<!the )\bdecoder\b"
        r"(?!.{0,20}encoder)(?! (hidden |output )?(states?|outputs?|queries)\b)",
        True,
        True,
    ),
    (r"\bencoder\b|\bbert\b|full (self-)?attention|all positions", False, True),
)
"""The same of docstrings."""

_VALUE_WORD = r"\b(?:True|False|1|0|ones?|zeros?)\b"
_VALUE = r"(?P<value>\b[Tt]rue\b|\b[Ff]alse\b|\b1(?:\.0)?s?\b|\b0(?:\.0)?s?\b|\bones?\b|\bzeros?\b|\bnon-?zero\b)"
_SMALL_VALUES = frozenset(["False", "false", "0", "0s", "0.0", "0.0s", "zero", "zeros"])
_KEPT = (
    r"attend\w*|looks?|looked at|keep\w*|kept|visible|real|valid|allow\w*|seen?|present|unmasked|takes? part"
    r"|participat\w*|included?|non-?pad\w*|actual"
)
_BLOCKED = (
    r"ignor\w*|mask(?:ed|s|ing)\b(?![- ]language)|mask out|to mask|block\w*|exclud\w*|disallow\w*|forbid\w*|forbidden"
    r"|hid(?!den[- _](?:states?|size|dim|layer|unit|vector))\w*|pad\w*|prevent\w*|drop\w*|invisible"
)
_OUTCOME = rf"(?P<keep>\b(?:{_KEPT})\b)|(?P<block>\b(?:{_BLOCKED})\b)"
_THING = r"(?P<keep>(?:tokens?|words?|frames?|items?|elements?|nodes?)\b(?=\s*(?:[.,;:)/]|$|and\b|or\b)))"
_MEANINGS = (
    rf"{_VALUE}(?P<between>\s*(?:=|:|->|for|is|are|means|at|marks)\s*(?:an?\s|the\s)?){_THING}",  # 1 = token
    rf"{_VALUE}(?P<between>(?:(?!{_VALUE_WORD})[^.;,\n]){{0,45}}?)(?:{_OUTCOME})",
    rf"(?:{_OUTCOME})(?P<between>(?:\s+[^\s.;,]+){{0,3}}?\s+(?:are|is|=|as|with|by)\s+|\s*(?:=|:|->|\()\s*){_VALUE}",
)
"""Sentences about the values of a mask: a value and what becomes of a position, in either order."""

_NOT = re.compile(r"\bnot\b|n't\b|\bnever\b|\bcannot\b|\bno\b", re.IGNORECASE)
_TAKEN_BACK = re.compile(  # where attending is not allowed
    r"[^.;,\n]{0,30}?(\b(not|never)\s+(be\s+)?(allowed|permitted|possible|attended|seen|visible|valid|kept)\b"
    r"|\b(is|are)\s+(forbidden|disallowed|prohibited|blocked|prevented|masked)\b)"
)
_MASK_NAMES = (
    (r".*key_padding_mask|is_pad(ding)?|blocked(_mask)?|pad_positions", "True blocks"),
    (r"(encoder_|cross_)?attention_mask|.*(valid|keep|visible|allowed|real)(_mask)?|adj(acency)?(_.*)?", "True keeps"),
)
"""Names of mask arguments that say what True means."""

_SUM_WORDS = re.compile(r"-inf|-1e9|additive|added to|is added|bias", re.IGNORECASE)
_OVER_KEYS = re.compile(
    r"pad|token|word|real|valid|\((b|bs|batch\w*|n),\s*(t|l|s|n|seq\w*|len\w*|time|k_len|tokens?)\)", re.IGNORECASE
)
_OVER_PAIRS = re.compile(r"attend|quer|pairs?|\bq_len|\((\w+),\s*\1\)|causal|subsequent|future", re.IGNORECASE)

_PARTS = r"(weights?|parameters?|projections?|matrix|matrices|layers?|blocks?|heads?|tables?|embeddings?|norms?)"
_Q_AND_K = r"((quer(y|ies)|q)( and | ?/ ?| ?= ?)(the )?(keys?|k)|(keys?|k)( and | ?/ ?| ?= ?)(the )?(quer(y|ies)|q))"
_EMPTY_ROW = (
    r"\b(rows?|quer(y|ies)|positions?|samples?)\b.{0,60}\b(attend|see|allowed|keys?)\b.{0,30}\b(nothing|none|no)\b"
    r"|\b(nothing|no keys?) (to attend|to see|is allowed|is visible)|\bempty rows?\b|\brows?\b.{0,40}\bempty\b"
    r"|\b(no|without) (visible |allowed |real )?(keys?|positions?)\b"
    r"|\b(whole|entire) (row|mask|memory|context|sample)\b.{0,60}\b(is|are|be) (true|masked|blocked|padd(ed|ing))\b"
    r"|\b(memory|context|sample|row)s? (may|can) be (empty|(wholly|entirely|completely) (empty|masked|padded))\b"
    r"|\b(fully|wholly|all|completely|entirely)[- ](masked|blocked|padded)\b"
)
MEANT: dict[str, str] = {
    "rows that may be empty": (
        r"(?:^|:\s)(?![^:]*\b(never|must not|may not|cannot|not supported|undefined|nan)\b)"
        r"(?=[^:]*\b(may|can|allow|zeros?|support|handle|safe|finite|instead|return|get|give|output))"
        rf"[^:]*({_EMPTY_ROW})"
    ),
    "chance at every call": (
        r"\blsh\b|locality[- ]sensitive|random(ly)? (rotations?|hash\w*)|hash\w* (with|by|into|to) random"
        r"|monte[- ]carlo|(drawn|sampled|redrawn|random)( \w+){0,3} (at|in|on) (each|every) (call|forward|step)"
    ),
    "padding on the left": r"left[- ]pad|padd(ed|ing) (on|at) the (left|start)",
    "padding on the right": r"right[- ]pad|padd(ed|ing) (on|at) the (right|end)",
    "one projection of queries and keys": (
        r"shared[- ](qk|query[- ]key)|one projection (for|of|serves|makes) (both|q)|symmetric (scores?|attention)"
        rf"|\b{_Q_AND_K}( (?!not|never)\w+){{0,4}} (shared?|one projection|the same|tied)\b"
        rf"|\b(shares?|shared|sharing|tied|same|one)( \w+){{0,3}} {_Q_AND_K}\b"
    ),
    "shared parts": (
        r"weight[- ](tying|sharing)|applied (again|repeatedly|(\w+ )?times|in a loop)|universal transformer"
        rf"|\b{_PARTS}( \w+){{0,4}} (shared|tied|the same)\b"
        rf"|\b(shares?|shared|sharing|ties?|tied|the same)( (?!by|between|among|across)\w+){{0,3}} {_PARTS}\b"
    ),
    "stopped gradients": (
        r"straight[- ]through|stop[- ]?gradients?\b|gradients? (is|are) (stopped|cut|blocked|not passed)"
        r"|no gradients? (flows?|pass(es)?|reach(es)?)|(is|are|kept|keeps|stays?) (\w+ )?(frozen|detached)"
        rf"|not (trained|learned)|frozen( \w+){{0,2}} ({_PARTS}|encoder|backbone|features?)|moving average"
    ),
    "fixed weights": (
        r"(fixed|frozen|constant)( \w+){0,3} (features?|projections?|weights?|matri\w+|tables?|filters?|kernels?)"
        r"|random (features?|projections?)|not (trained|learned)|never trained|untrained|drawn once"
        r"|(is|are|kept|stays?) (fixed|frozen|constant)|hash(ing|ed)? (functions?|projections?|matri)"
    ),
    "another scale": (
        r"\bmu[- ]?p\b|\u03bcp|maximal[- ]update"
        r"|(scal|divi|multipl)\w*( \w+){0,3} by 1 ?/ ?d(_?(k|head))?\b(?! ?(\*\*|\^))"
    ),
    "no softmax": (
        r"(no|not|never|without|instead of|rather than|in place of|replac\w+)( an?| any| the)?[- ]softmax"
        r"|softmax[- ]free|linear[- ]attention|kernel (attention|feature|trick)|kerneli[sz]ed|feature maps?\b|retention"
        r"|(gaussian|rbf|polynomial|softmax) kernel"
    ),
    "attention over features": (
        r"cross[- ]covariance|\b(channel|feature|variate)s?([- ]wise)?[- ](self[- ])?attention|transposed attention"
        r"|\b(attention|attends?|looks?|scores?|maps?)\b.{0,40}\b(between|among|across) (the |all |other )?"
        r"(channels?|features|variates)\b(?![- ]first)"
        r"|\b(attention|attends?|looks?)\b.{0,40}\b(over|along|to) (the |all |other )?"
        r"(channels|variates|(channel|feature) (axis|dimension))\b(?! of|[- ]first)"
        r"|\b(channel|feature|variate)s? (is|are|as) (an? |the )?(tokens?|queries|keys)"
        r"|\binverted (attention|transformer)"
    ),
    "a window": (
        r"window|\blocal|sliding|\bband(ed)?\b|sparse|dilated|neighbou?r|receptive field|block[- ]?wise|chunk|nearby"
        r"|segments? of|strided attention|buckets|(token|time)[- ]?shift|short[- ]?conv|truncated"
    ),
    "no mixing": r"feed.?forward|\bmlp\b|\bffn?\b|position.?wise|point.?wise|no.?mix|\bidentity\b|\bnorm",
    "probabilities": (
        r"\b(returns?|gives?|outputs?|yields?|predicts?|->)( \w+){0,3} probabilit(y|ies)|probability distributions?"
        r"|\bprobabilit(y|ies) (of|over|for) (the |each |every |all )?(next|vocab\w*|tokens?|words?|classes)"
    ),
}
"""What a class may declare that it means, by phrases: what was measured stays in the report, as accepted."""

_POSITIONS = re.compile(
    r"rotary|\brope\b|\balibi\b|sinusoid|relative[- ]position|position[- ]aware"
    r"|position(al)?[- ](encoding|embedding|bias|information|signal|index|indices|offset|feature|code|vector|table)"
    r"|(adds?|added|learned|absolute) (the |its |their )?positions?\b|order information",
    re.IGNORECASE,
)
_POSITION_NAMES = re.compile(r"Rotary|R[oO]PE|Rope|A[lL]i[bB]i|Sinusoid|RelativePos|Positional(?!wise)(?!ly)")
_POSITIONS_ELSEWHERE = re.compile(
    r"\b(no|not|without|outside|caller|callers|beforehand|expect\w*|assum\w*|already|elsewhere|upstream|add(s|ed) by"
    r"|add(s|ed)? (them|it) (first|before)|before (the|this|calling)|given to|left out|omit\w*|optional\w*|free)\b",
    re.IGNORECASE,
)
_NEAR = 60  # characters around a claim in which a word takes it back

_TAKEN_BACK_BEFORE = re.compile(r"\b(not|no|never|unlike|isn't|avoids?)( \w+){0,2} $", re.IGNORECASE)
_LONGEST = 90  # characters of a quotation: with its message it stays within two or three lines

_JOINT = r"(?:\s*,\s*|\s+x\s+|\s*\u00d7\s*|\s+by\s+)"
_BRACKETED = re.compile(
    r"[\[(<{`]\s*([A-Za-z_]\w*(?:\s*(?:,|\u00d7|\*|\bx\b|\bby\b|:|\s)\s*[A-Za-z_0-9]\w*){1,3})\s*[\])>}`]"
)
_BETWEEN = re.compile(r"\s*[,\u00d7*:]\s*|\s+x\s+|\s+by\s+|\s+")
_BARE = re.compile(rf"^(\s*(?:\w+\s*(?:[:=]|is|->)\s*)?)([A-Za-z]\w*(?:{_JOINT}[A-Za-z]\w*){{2}})\s*$")
_SHAPED = re.compile(rf"(\bshaped?\s*(?:of|:|is|=)?\s*)([A-Za-z]\w*(?:{_JOINT}[A-Za-z]\w*){{2}})", re.IGNORECASE)
_FIRST_AXIS = re.compile(r"(batch|sequence|seq|channels|channel|time|length)[- _]first", re.IGNORECASE)
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Inputs?|Returns?|Shapes?|Examples?|Notes?)\b.*$", re.MULTILINE)
_ASKS_FOR_MASK = re.compile(r"(use_|apply_)?(causal_)?mask(ed|_flag)?")
_DIAGONALS = (-1, 0, 1, 2)  # of a triangle meant to be causal, one off in either direction included


@final
@dataclass(frozen=True)
class Said:
    """Hold a statement of a class about itself."""

    what: str  # what it says
    by: str  # where: ``"docstring"``, ``"a shape comment"``, ``"names of axes"``


@final
@dataclass(frozen=True)
class CausalClaim:
    """Say whether a class claims that a position sees no later one."""

    causal: bool  # what it claims
    by: str  # where: ``"its docstring"``, ``"its name"``, ``"its argument causal=True"``, ``"its source"``
    likely: bool = False  # whether the words do not say so, but most who use them mean it: a decoder, an encoder


# Text


def is_torchs_own(module: nn.Module) -> bool:
    """Whether the class of a module is one of torch's."""
    return type(module).__module__.startswith("torch.")


def descriptions(module: nn.Module) -> list[str]:
    """What the docstrings of a module's class and of its ``forward`` say before they go through parameters."""
    return [_SECTION.split(text)[0] for text in reversed(_docstrings(module))]


def source_of(thing: Any) -> str:
    """The source of a class or function, or nothing."""
    try:
        return _source(thing)
    except (OSError, TypeError):
        return ""


@functools.lru_cache(maxsize=16)
def _source(thing: Any) -> str:
    """Its source, for which all of its file is parsed."""
    return textwrap.dedent(inspect.getsource(thing))


def source_of_forward(module: nn.Module) -> str:
    """The source of a module's ``forward``, or nothing."""
    return source_of(getattr(type(module), "forward", None))


def _docstrings(module: nn.Module) -> list[str]:
    """The docstrings of a module's ``forward`` and of its class, those of torch left out."""
    if is_torchs_own(module):
        return []
    written = (type(module).forward.__doc__, type(module).__dict__.get("__doc__"))
    return [inspect.cleandoc(text) for text in written if text]


@functools.lru_cache(maxsize=64)
def parsed(source: str) -> tuple[ast.stmt, ...]:
    """The statements of a piece of code, none where it is no Python."""
    try:
        return tuple(ast.parse(source).body)
    except SyntaxError:
        return ()


def declared(said: str, topic: str) -> str:
    """The sentence of what a class says in which it declares a topic of `MEANT`, or nothing.

    Examples
    --------
    >>> declared("Attention. Queries and keys share one projection.", "one projection of queries and keys")
    'Queries and keys share one projection'
    >>> declared("The keys are not shared.", "shared parts")
    ''
    """
    return _sentence(said, re.compile(MEANT[topic], re.IGNORECASE))


def said_unused(said: str, text: str, names: Sequence[str]) -> str:
    """The words by which a class says that it takes an argument and does not use it, or nothing."""
    deleted = re.search(rf"\bdel\b[^\n#]*\b{re.escape(names[0])}\b", text) if names[0] else None
    if deleted:
        return deleted[0]
    name = rf"`*\b({'|'.join(re.escape(each) for each in names if each)})\b`*"
    idle = r"(unused|ignored|not used|never used|not read|never read|a no-op|a placeholder)"
    why = r"(does not (use|look at|read)|has no effect|for (\w+ )?(compatibility|the interface|the signature|the api))"
    direct = rf"{name}( argument)?( is|:|,)?( accepted (but|and))? {idle}(?! (key|position|token|entr|where|for))"
    return _sentence(
        said, re.compile(rf"{direct}|\bunused {name}|ignores? (the |its |any )?{name}|{name}.*{why}", re.I)
    )


def _sentence(said: str, phrases: re.Pattern[str]) -> str:
    """The sentence in which a phrase stands that is not taken back, or nothing."""
    for sentence in re.split(r"(?<=[.;!?])(?<!et al\.)\s+|\n+", said):
        for match in phrases.finditer(sentence):
            if not _TAKEN_BACK_BEFORE.search(sentence[: match.start()]):
                start = 0 if len(sentence) <= _LONGEST else match.start()
                return sentence[start : start + _LONGEST].strip(" .;")
    return ""


def positions_said(module: nn.Module) -> Iterator[str]:
    """Yield the words in names and docstrings of the classes of a module that claim to tell positions apart."""
    for kind, part in {type(part): part for part in module.modules()}.items():
        if is_torchs_own(part):
            continue
        if _POSITION_NAMES.search(kind.__name__):
            yield kind.__name__
        for text in descriptions(part):
            for found in _POSITIONS.finditer(text):
                around = text[max(0, found.start() - _NEAR) : found.end() + _NEAR]
                if not _POSITIONS_ELSEWHERE.search(around):
                    yield found.group()


# Layout


def layout_said(module: nn.Module, parameter: str, text: str = "") -> Said | None:
    """The layout a class declares for its input: by an attribute, in comments, names of axes or docstrings."""
    speaking = module.modules() if is_torchs_own(module) else [module]
    flag = next((one.batch_first for one in speaking if isinstance(getattr(one, "batch_first", None), bool)), None)
    if flag is not None:
        by_function = _said_by_functions(text)  # which makes a module of torch's own
        return by_function or Said("batch-first" if flag else "sequence-first", f"its attribute batch_first={flag}")
    sayings = [] if is_torchs_own(module) else list(_sayings(module, parameter, text))
    for read in (_layout_of_shape, _layout_of_words):
        for saying, by in sayings:
            layout = read(saying)
            if layout is not None:
                return Said(layout, by)
    return None


def sizes_said(module: nn.Module, parameter: str, text: str = "") -> tuple[int, int] | None:
    """The sizes a class declares for the two axes after the batch, as in ``x = [bs, 1, 100]``."""
    for saying, _by in [] if is_torchs_own(module) else _sayings(module, parameter, text):
        for match in _BRACKETED.finditer(saying):
            first, *sizes = _BETWEEN.split(match.group(1).strip())
            if _axis(first) == "batch" and len(sizes) == 2 and all(size.isdigit() and int(size) for size in sizes):
                return int(sizes[0]), int(sizes[1])
    return None


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
    for docstring in _docstrings(module):
        yield from ((line, "its docstring") for line in _about(docstring, parameter))
    reassigned = re.compile(rf"\s*{re.escape(parameter)}\b[^=(\[.]*=[^=]")
    body = itertools.takewhile(lambda line: not reassigned.match(line), lines[start:])
    above = re.search(rf"((?:^#.*\n)+)(?:@.*\n)*class {type(module).__name__}\b", text_of_file, re.MULTILINE)
    around = "\n".join([above.group(1) if above else "", *body])
    telling = re.compile(rf"\b({re.escape(parameter)}|inputs?|expects?|takes)\b|^\s*[\[(]", re.IGNORECASE)
    yield from ((each, "a shape comment") for each in _comments(around) if telling.search(each))


def _comments(text: str) -> list[str]:
    """The comments of a piece of code; three names alone count as a shape in brackets."""
    return [_BARE.sub(r"\1(\2)", comment) for comment in re.findall(r"#(.*?)(?=$|\n)", text)]


def _about(text: str, parameter: str) -> list[str]:
    """The lines of a docstring that may say the input's shape: those that name it, then the others."""
    lines = _with_next(line for line in text.splitlines() if line.strip())
    named_it = [line for line in lines if re.search(rf"\b({re.escape(parameter)}|input|inputs)\b", line)]
    return named_it + [line for line in lines if line not in named_it and not re.search(r"mask\b|\bpadding", line)]


def _with_next(lines: Any) -> list[str]:
    """Every line with the one after it, as sentences are broken over two."""
    lines = list(lines)
    return [" ".join(pair) for pair in zip(lines, [*lines, ""][1:], strict=True)]


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
    return next(
        (axis for axis, words in _AXES.items() if name.lower() in words.split()), "size" if name.isdigit() else ""
    )


# Causality


def causal_said(module: nn.Module, text: str, arguments: Mapping[str, Any]) -> CausalClaim | None:
    """Whether a class says that a position sees no later one, and where it says so.

    Where an argument asks whether to be causal and is off unless given, what its name and its source make likely is
    said of the other case.
    """
    usual = {name: one.default for name, one in signature_of(type(module)).items()}
    own = {**usual, **vars(module), **arguments}
    asking = [*named("causal", own), *(name for name in own if _ASKS_FOR_MASK.fullmatch(name))]
    asking = [name for name in asking if isinstance(own[name], bool)]
    for name in asking:
        if own[name] or name in {**vars(module), **arguments}:
            return CausalClaim(own[name], f"its argument {name}={own[name]}")
    name, said = type(module).__name__, " ".join(" ".join(descriptions(module)).split())
    for likely in (False,) if asking else (False, True):
        for where, table, by in ((name, _CAUSAL_NAMES, "its name"), (said, _CAUSAL_PHRASES, "its docstring")):
            flags = re.IGNORECASE if by == "its docstring" else 0
            rows = [row for row in table if row[2] is likely]
            meaning = next((causal for words, causal, _ in rows if re.search(words, where, flags)), None)
            if meaning is not None:
                return CausalClaim(meaning, by, likely)
    if not asking and (keeps_triangle(module) or _makes_triangle(source_of(type(module)), text)):
        return CausalClaim(True, "its source")
    return None


def keeps_triangle(module: nn.Module) -> bool:
    """Whether a buffer or another tensor of the module is a triangular table of what may be seen."""
    kept = (value for part in module.modules() for value in (*part._buffers.values(), *vars(part).values()))
    for tensor in (value for value in kept if isinstance(value, torch.Tensor) and value.dim() >= 2):
        if tensor.size(-1) == tensor.size(-2) > 2:
            square = (tensor.detach().reshape(-1, *tensor.shape[-2:])[0] != 0).cpu()
            ones = torch.ones_like(square)
            if any(torch.equal(square, each) for d in _DIAGONALS for each in (ones.tril(d), ones.triu(d))):
                return True
    return False


def _makes_triangle(*sources: str) -> bool:
    """Whether code makes a triangle: tril or triu, and not both, as a band of both sides would need."""
    calls = (node for source in sources for tree in parsed(source) for node in ast.walk(tree))
    return len({kind for node in calls if isinstance(node, ast.Call) for kind in _triangle(node)}) == 1


def _triangle(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name.endswith("attention"):
        constant = {word.arg: word.value for word in call.keywords}.get("is_causal")
        if isinstance(constant, ast.Constant) and constant.value is True:
            yield "tril"
    if name in ("tril", "triu", "tril_", "triu_"):
        yield name.rstrip("_")


# Masks


def mask_said(module: nn.Module, parameter: str) -> Said | None:
    """What a class says the values of a mask argument mean."""
    for text in _about_mask(module, parameter):
        meaning = None if _SUM_WORDS.search(text) else meaning_of(text)
        if meaning is not None:
            return Said(meaning, "docstring")
    by_name = next((meaning for names, meaning in _MASK_NAMES if re.fullmatch(names, parameter)), None)
    return None if by_name is None else Said(by_name, "its name")


def meaning_of(text: str) -> str | None:
    """What a sentence says about the values of a mask.

    Examples
    --------
    >>> meaning_of("bool, True = ignore"), meaning_of("0 where a position is masked"), meaning_of("a mask")
    ('True blocks', 'True keeps', None)
    """
    for pattern in _MEANINGS:
        match = re.search(pattern, text)
        if match is not None:
            keeps = match["keep"] is not None
            keeps ^= bool(_NOT.search(match["between"])) or (keeps and bool(_TAKEN_BACK.match(text, match.end())))
            keeps ^= match["value"] in _SMALL_VALUES
            return "True keeps" if keeps else "True blocks"
    return None


def over_said(module: nn.Module, parameter: str) -> Literal["pairs", "keys"] | None:
    """What a class says a mask argument is over."""
    text = " ".join(_about_mask(module, parameter))
    keys, pairs = bool(_OVER_KEYS.search(text)), bool(_OVER_PAIRS.search(text))
    if keys is pairs:
        return None
    return "keys" if keys else "pairs"


def _about_mask(module: nn.Module, parameter: str) -> list[str]:
    """The sentences about a mask: those that name it first, then comments, then those of any mask if it is the only."""
    if is_torchs_own(module):
        return []
    lines = [line for text in _docstrings(module) for line in text.splitlines()]
    pairs = list(zip(_with_next(lines), lines, strict=True))
    named_it = [pair for pair, line in pairs if re.search(rf"\b{re.escape(parameter)}\b", line)]
    comments = [c for c in re.findall(r"#(.*)", source_of_forward(module)) if parameter in c or "mask" in c]
    others = [pair for pair, line in pairs if re.search(r"mask|pad", line)]
    several = [name for name in inspect.signature(module.forward).parameters if "mask" in name or "pad" in name]
    return named_it + comments + (others if len(several) <= 1 else [])
