"""The rivals of the Transformer that translate: recurrent networks with attention, and convolutions."""

from __future__ import annotations

from torch import nn

from attnlab.explain.drawing.blocks import RELU
from attnlab.explain.drawing.models import Halves, convolution, embedding, halves, logits, positions
from attnlab.explain.drawing.nodes import Beside, Box, Caption, Column, Frame, Join, Node, Port, Skip, column, folded
from attnlab.explain.drawing.reading import Reading, arrow, parts, read
from attnlab.models.convolutional_translation import ByteNet, ConvS2S
from attnlab.models.deep_lstms import AbstractDeepLstms, DeepAtt, Gnmt
from attnlab.models.recurrent_translation import AdditiveRnn, MultiplicativeRnn
from attnlab.models.translator import AbstractRival

TANH, GLU = Box("Tanh", small=True), Box("Gate", ("one half by the sigmoid of the other",))
STATES, ONE_BY_ONE = "states", "one target token after another"


def _embedded(model: AbstractRival, side: str, reading: Reading) -> Column:
    """The tokens of one side as vectors."""
    table = model.get_submodule(f"{side}_embedding")
    title = f"{side.capitalize()} embedding"
    tokens = Caption("source tokens" if side == "source" else "target tokens so far")
    return column(tokens, embedding(table, f"{side}_embedding", title, reading))


def _dropped(model: AbstractRival, reading: Reading) -> list[Node]:
    return parts(model.drop, "drop", reading)


@halves.register
def _(model: AdditiveRnn, reading: Reading) -> Halves:
    drop = _dropped(model, reading)
    encoder = column(_embedded(model, "source", reading), drop, read(model.encoder, "encoder", reading))
    below = column(_embedded(model, "target", reading), drop)
    entering = _with_context(model, "query, key, alignment", reading)
    first = reading.box("Linear, tanh", ["makes the first state"], kind="linear", of=model.start, path="start")
    cell = Beside(
        _cell("GRU cell", model.decoder, "decoder", reading),
        Beside(first, Port("last state"), inward=True),
        inward=True,
    )
    loop = Frame(column(entering, cell, Box("Concat", ("state, context and token",))), title=ONE_BY_ONE)
    return Halves((encoder, column(below, loop, _read_out(model, reading), logits(model.logits, reading))), STATES)


def _with_context(part: nn.Module, path: str, reading: Reading) -> Node:
    """A token beside what additive attention finds for it in the source."""
    notes = ["of the state before, to every token", "w · tanh(A state + B key)", "softmax, mean of the states"]
    scores = [part.get_submodule(name) for name in ("query", "key", "alignment")]
    attend = reading.box("Additive attention", notes, kind="attention", of=scores, path=path)
    return Beside(Box("Concat", ("token and context",)), Beside(attend, Port(STATES), inward=True), inward=True)


def _cell(title: str, cell: nn.GRUCell | nn.LSTMCell, path: str, reading: Reading) -> Box:
    return reading.box(title, [arrow(cell.input_size, cell.hidden_size)], kind="recurrent", of=cell, path=path)


def _read_out(model: AdditiveRnn | MultiplicativeRnn, reading: Reading) -> Column:
    """From what was found to what the logits are made of."""
    return column(read(model.readout, "readout", reading), TANH, _dropped(model, reading))


@halves.register
def _(model: MultiplicativeRnn, reading: Reading) -> Halves:
    drop = _dropped(model, reading)
    encoder = column(_embedded(model, "source", reading), drop, read(model.encoder, "encoder", reading))
    decoder = Beside(read(model.decoder, "decoder", reading), Port("last state"), inward=True)
    score = "state times W times source state" if isinstance(model.key, nn.Linear) else "state times source state"
    notes = [score, "softmax, mean of the states"]
    attend = reading.box("Multiplicative attention", notes, kind="attention", of=model.key, path="key")
    looked = Skip(Beside(attend, Port(STATES), inward=True), Box("Concat", small=True))
    below = column(_embedded(model, "target", reading), drop, decoder, looked)
    return Halves((encoder, column(below, _read_out(model, reading), logits(model.logits, reading))), STATES)


@halves.register
def _(model: DeepAtt, reading: Reading) -> Halves:
    drop, columns = _dropped(model, reading), []
    for turned, lstms in enumerate(model.columns):
        layers: list[Node] = []
        for i, lstm in enumerate(lstms.children()):
            way = "backwards" if (i + turned) % 2 else "forwards"
            box = _lstm(lstm, [f"reads {way}", "half of what its gates read goes on"], f"columns.{turned}.{i}", reading)
            layers.append(column(drop if i else [], box))
        columns.append(column(folded(layers, f"columns.{turned}", framed=False)))
    joined = [Join(tuple(columns), Box("Concat", small=True)), read(model.source_states, "source_states", reading)]
    encoder = column(_embedded(model, "source", reading), drop, joined)
    layers = [
        column(drop, _lstm(lstm, ["half of what its gates read goes on"], f"decoder.{i}", reading))
        for i, lstm in enumerate(model.decoder)
    ]
    return _deep_halves(model, encoder, layers, reading)


@halves.register
def _(model: Gnmt, reading: Reading) -> Halves:
    drop, experts = _dropped(model, reading), []
    for i, mixture in enumerate(model.experts):
        experts.append([Skip(column(read(mixture, f"experts.{i}", reading), drop))])
    first = [_lstm(model.first, ["reads forwards"], "first", reading)]
    first.append(_lstm(model.backwards, ["reads backwards"], "backwards", reading))
    both = Join(tuple(map(column, first)), Box("Concat", small=True))
    layers = [column(drop, read(lstm, f"encoder.{i}", reading)) for i, lstm in enumerate(model.encoder)]
    layers = [Skip(one) if i else one for i, one in enumerate(layers)]
    stack = [*folded(layers[:-1], "encoder", framed=False), *(experts[0] if experts else []), layers[-1]]
    encoder = column(_embedded(model, "source", reading), drop, both, stack)
    above: list[Node] = []
    for i, lstm in enumerate(model.decoder):
        body = column(drop, _lstm(lstm, ["reads what was found in the source too"], f"decoder.{i}", reading))
        mixture = experts[1] if experts and i == len(model.decoder) - 1 else []
        above.append(column(mixture, Skip(body) if i else body))
    return _deep_halves(model, encoder, above, reading)


def _deep_halves(model: AbstractDeepLstms, encoder: Column, above: list[Node], reading: Reading) -> Halves:
    """The encoder, and a decoder of which the bottom layer looks at the source."""
    drop, entering = _dropped(model, reading), _with_context(model.bottom, "bottom", reading)
    loop = Frame(column(entering, _cell("LSTM cell", model.bottom.cell, "bottom.cell", reading)), title=ONE_BY_ONE)
    below = column(_embedded(model, "target", reading), drop, loop)
    decoder = column(below, folded(above, "decoder", framed=False), drop, logits(model.logits, reading))
    return Halves((encoder, decoder), STATES)


def _lstm(lstm: nn.Module, notes: list[str], path: str, reading: Reading) -> Box:
    width, rows = lstm.get_parameter("weight_ih_l0").shape[1], lstm.get_parameter("weight_hh_l0").shape[1]
    return reading.box("LSTM", [arrow(width, rows), *notes], kind="recurrent", of=lstm, path=path)


@halves.register
def _(model: ConvS2S, reading: Reading) -> Halves:
    drop, halved = _dropped(model, reading), Box("Add, times √½", small=True)
    layers = [
        Skip(column(drop, convolution(layer, f"encoder.{i}", reading), GLU), halved)
        for i, layer in enumerate(model.encoder)
    ]
    marked = positions(model.source_positions, "source_positions", reading)
    encoder = column(_embedded(model, "source", reading), marked, drop, folded(layers, "encoder"))
    looking = []
    for i, (layer, query) in enumerate(zip(model.decoder, model.queries, strict=True)):
        convolved = convolution(layer, f"decoder.{i}", reading)
        notes = ["Linear of the state, plus the token", "dot product, softmax", "mean of source states"]
        attend = reading.box("Attention", notes, kind="attention", of=query, path=f"queries.{i}")
        looked = Skip(Beside(attend, Port(STATES), inward=True), halved)
        looking.append(Skip(column(drop, convolved, GLU, looked), halved))
    marked = positions(model.target_positions, "target_positions", reading)
    decoder = column(_embedded(model, "target", reading), marked, drop, folded(looking, "decoder"), drop)
    return Halves((encoder, column(decoder, logits(model.logits, reading))), STATES)


@halves.register
def _(model: ByteNet, reading: Reading) -> Halves:
    drop = _dropped(model, reading)
    encoder = column(_embedded(model, "source", reading), drop, _dilated(model.encoder, "encoder", reading))
    joined = Beside(Box("Concat", ("token, and source at its place",)), Port("source"), inward=True)
    below = column(_embedded(model, "target", reading), drop, joined, read(model.join, "join", reading))
    above = column(read(model.norm, "norm", reading), RELU, logits(model.logits, reading))
    unfolded = f"source, {model.unfold:g} times as long"
    return Halves((encoder, column(below, _dilated(model.decoder, "decoder", reading), above)), unfolded)


def _dilated(blocks: nn.ModuleList, path: str, reading: Reading) -> list[Node]:
    """The residual blocks of ByteNet."""
    found: list[Node] = []
    for i, block in enumerate(blocks):
        convolution = next(one for one in block.modules() if isinstance(one, nn.Conv1d))
        half, width = convolution.in_channels, convolution.in_channels * 2
        seen = f"kernel {convolution.kernel_size[0]}, dilation {convolution.dilation[0]}"
        notes = [f"norm, ReLU, Linear {width} → {half}", "norm, ReLU, convolution", seen]
        notes.append(f"norm, ReLU, Linear {half} → {width}")
        notes += [f"dropout {one.p:g}" for one in block.modules() if isinstance(one, nn.Dropout) and one.p]
        box = reading.box("Dilated convolution", notes, kind="convolution", of=block, path=f"{path}.{i}")
        found.append(Skip(box))
    return folded(found, path, framed=False)
