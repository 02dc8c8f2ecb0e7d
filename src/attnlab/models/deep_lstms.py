"""Deep stacks of LSTMs with attention: the best translators of 2016.

The bottom layer of a decoder looks at the source before each of its steps, by its own state. All other layers are
computed for all positions at once. `DeepAtt` and `Gnmt` differ in how gradients get through the depth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnlab.core.build import Spec, build
from attnlab.core.errors import SpecError
from attnlab.core.sizes import check_positive, repeated
from attnlab.models.recurrent_translation import AbstractRecurrent, Kept
from attnlab.models.translator import Attended, Logits, Source, Target, gather
from attnlab.nn.feedforward import FEEDFORWARDS

States = Float[Tensor, "batch length d"]
"""What a layer gives at every position."""


@final
class _LookingLstm(nn.Module):
    """An LSTM that looks at the source before every step, by its state behind the last."""

    def __init__(self, d_in: int, d_source: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(d_source, hidden)
        self.alignment = nn.Linear(hidden, 1, bias=False)
        self.cell = nn.LSTMCell(d_in + d_source, hidden)

    def forward(self, written: States, memory: Kept, states: Kept) -> tuple[States, States, Attended, Kept]:
        """Its states, its inputs (tokens with what was found for them), where it looked, and the last states."""
        (read, keys, real), (h, c) = memory, states
        outputs, inputs, looks = [], [], []
        for y in written.unbind(dim=1):
            scores = self.alignment((self.query(h)[:, None] + keys).tanh())[..., 0]  # (batch, s_len)
            context, weights = gather(scores[:, None], read, real)
            inputs.append(torch.cat((y, context[:, 0]), dim=-1))
            h, c = self.cell(inputs[-1], (h, c))
            outputs.append(h)
            looks.append(weights)
        return torch.stack(outputs, dim=1), torch.stack(inputs, dim=1), torch.cat(looks, dim=1), (h, c)


@final
class _Step:
    """An LSTM with the states from which it goes on; a call moves them."""

    def __init__(self, lstm: nn.Module, before: Kept) -> None:
        self.lstm, self.after = lstm, before

    def __call__(self, x: States) -> States:
        """Its states at every position."""
        h, c = self.after
        found, (h, c) = self.lstm(x, (h[None], c[None]))
        self.after = (h[0], c[0])
        return found


class AbstractDeepLstms(AbstractRecurrent):
    """Read with one stack of LSTMs, and write with another whose bottom layer looks at the source.

    Parameters
    ----------
    d_model : int, default 256
        Width of embeddings and size of every state.
    n_layers : int, default 4
        LSTMs on top of each other in the encoder.
    n_decoder_layers : int, optional
        The same of the decoder; as many as in the encoder unless given.
    dropout : float, default 0.1
        Of embeddings, between layers and of what the logits are made of.
    d_source : int
        Width of what the decoder looks at.
    above : tuple of int
        How many LSTMs stand on the bottom one of the decoder, and the width of what they read.

    Raises
    ------
    SpecError
        If a size is not positive, or the probability not in [0, 1).
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        pad: int,
        d_model: int,
        dropout: float,
        d_source: int,
        above: tuple[int, int],
    ) -> None:
        super().__init__(source_vocab_size, target_vocab_size, pad=pad, d_model=d_model, dropout=dropout)
        self.bottom = _LookingLstm(d_model, d_source, d_model)
        count, width = above
        self.decoder = nn.ModuleList(nn.LSTM(width, d_model, batch_first=True) for _ in range(count))
        self.logits = nn.Linear(d_model, target_vocab_size)

    @abstractmethod
    def encode(self, x: States, turn: Callable[[States], States]) -> States:
        """What the decoder looks at; `turn` reverses the real tokens of every sentence."""

    @abstractmethod
    def climb(self, x: States, inputs: States, steps: list[_Step]) -> States:
        """The states of the top layer, from those of the bottom one and from what that read, by the other layers."""

    def read(self, source: Source) -> tuple[Kept, Kept]:
        """What stays of the source, and the states in which writing begins: zeros."""
        real = source != self.pad
        order = _backwards(real)
        states = self.encode(
            self.drop(self.source_embedding(source)), lambda x: x.gather(1, order[..., None].expand_as(x))
        )
        zeros = states.new_zeros(len(source), self.bottom.cell.hidden_size)
        return (states, self.bottom.key(states), real), (zeros,) * (2 + 2 * len(self.decoder))

    def write(self, target: Target, memory: Kept, states: Kept) -> tuple[Logits, Attended, Kept]:
        """Go on from states: the bottom layer a step at a time, the others at all positions at once."""
        x, inputs, weights, kept = self.bottom(self.drop(self.target_embedding(target)), memory, states[:2])
        steps = [_Step(one, states[i : i + 2]) for i, one in zip(range(2, len(states), 2), self.decoder, strict=True)]
        found = self.climb(x, inputs, steps)
        return self.logits(self.drop(found)), weights, (*kept, *(one for step in steps for one in step.after))


@final
class DeepAtt(AbstractDeepLstms):
    """Translate with deep LSTMs along which inputs go forward beside the states.

    Notes
    -----
    Layer k of a stack is an LSTM whose gates read ``f_k = W_k [half(f_{k-1}); h_{k-1}]``: half of what the gates of
    the layer below read goes on without a bend, past its recurrence. The encoder has two such columns, whose layers
    read forwards and backwards in turn, the one where the other does not; the decoder looks at ``W [h; f; h'; f']`` of
    their top layers, by additive attention. Differs from [1]_: one width, which is the paper's 512 for states and was
    256 for embeddings; dropout between layers. The half is that of the input and forget gates.

    References
    ----------
    .. [1] Zhou et al., 2016, arXiv:1606.04199, section 3.
    """

    reading = ("columns", "source_states", "source_embedding")

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        pad: int = 0,
        d_model: int = 256,
        n_layers: int = 4,
        n_decoder_layers: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        count = n_layers if n_decoder_layers is None else n_decoder_layers
        check_positive({"d_model": d_model, "n_layers": n_layers, "n_decoder_layers": count})
        d_source = 5 * d_model // 2  # a quarter of what both columns give; source: Zhou et al., 2016 (1,280 of 5,120)
        sizes = {"pad": pad, "d_model": d_model, "dropout": dropout, "d_source": d_source}
        super().__init__(source_vocab_size, target_vocab_size, **sizes, above=(count - 1, 3 * d_model))
        self.columns = nn.ModuleList(
            nn.ModuleList(nn.LSTM(3 * d_model if i else d_model, d_model, batch_first=True) for i in range(n_layers))
            for _ in range(2)
        )
        self.source_states = nn.Linear(10 * d_model, d_source)

    def encode(self, x: States, turn: Callable[[States], States]) -> States:
        """The states and the gates' inputs of the top layers of both columns, in fewer features."""
        found = []
        for turned, column in enumerate(self.columns):
            h = inputs = x
            layers = list(column.children())
            for i, layer in enumerate(layers):
                if i:
                    inputs = torch.cat((_half(inputs, *_gates(layers[i - 1])), self.drop(h)), dim=-1)
                h = turn(layer(turn(inputs))[0]) if (i + turned) % 2 else layer(inputs)[0]
            found += [h, F.linear(inputs, *_gates(layers[-1]))]
        return self.source_states(torch.cat(found, dim=-1))

    def climb(self, x: States, inputs: States, steps: list[_Step]) -> States:
        """The states of the top layer, from those of the bottom one and from what that read, by the other layers."""
        gates = self.bottom.cell.weight_ih, self.bottom.cell.bias_ih
        for step in steps:
            inputs = torch.cat((_half(inputs, *gates), self.drop(x)), dim=-1)
            x, gates = step(inputs), _gates(step.lstm)
        return x


@final
class Gnmt(AbstractDeepLstms):
    """Translate with deep LSTMs around which the stream goes on, as Google did.

    Parameters
    ----------
    experts : Spec, optional
        Entry of `attnlab.nn.feedforward.FEEDFORWARDS`, added to the stream before the last layer of each side.

    Raises
    ------
    SpecError
        If a size is not positive, the probability not in [0, 1), or there are too few layers.

    Notes
    -----
    The bottom layer of the encoder reads in both directions, the others forwards; what the decoder's bottom layer finds
    in the source by additive attention goes to all its layers. From the third layer on each side, ``x_k = h_k +
    x_{k-1}``. With ``experts: noisy-mixture-of-experts``, 3 and 2 layers, this is the translator of [2]_. Differs from
    [1]_: dropout also of embeddings and before the logits, no clipping of states. From [2]_: LSTMs are as wide as the
    stream, where its own had 2,048 units projected to 512.

    References
    ----------
    .. [1] Wu et al., 2016, arXiv:1609.08144, section 3.
    .. [2] Shazeer et al., 2017, arXiv:1701.06538, appendix E.
    """

    reading = (*AbstractDeepLstms.reading, "first", "backwards")

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        *,
        pad: int = 0,
        d_model: int = 256,
        n_layers: int = 4,
        n_decoder_layers: int | None = None,
        experts: Spec | None = None,
        dropout: float = 0.1,
    ) -> None:
        count = n_layers if n_decoder_layers is None else n_decoder_layers
        check_positive({"d_model": d_model, "n_layers": n_layers, "n_decoder_layers": count})
        if n_layers < 2 or (experts is not None and (n_layers < 3 or count < 2)):
            least = "2 layers in the encoder" if experts is None else "3 layers in the encoder and 2 in the decoder"
            raise SpecError(f"{'it needs' if experts is None else 'experts need'} {least}; got {n_layers} and {count}")
        sizes = {"pad": pad, "d_model": d_model, "dropout": dropout, "d_source": d_model}
        super().__init__(source_vocab_size, target_vocab_size, **sizes, above=(count - 1, 2 * d_model))
        self.first, self.backwards = (nn.LSTM(d_model, d_model, batch_first=True) for _ in range(2))
        widths = [2 * d_model, *repeated(d_model, n_layers - 2)]
        self.encoder = nn.ModuleList(nn.LSTM(width, d_model, batch_first=True) for width in widths)
        self.experts = nn.ModuleList(
            build(experts, FEEDFORWARDS, axis="feed-forward", offered={"d_model": d_model})
            for _ in range(0 if experts is None else 2)
        )

    def encode(self, x: States, turn: Callable[[States], States]) -> States:
        """The stream behind the top layer."""
        x = torch.cat((self.first(x)[0], turn(self.backwards(turn(x))[0])), dim=-1)
        for i, layer in enumerate(self.encoder):
            if i == len(self.encoder) - 1:
                for mixture in self.experts[:1]:
                    x = x + self.drop(mixture(x))
            found, _ = layer(self.drop(x))
            x = found + x if i else found
        return x

    def climb(self, x: States, inputs: States, steps: list[_Step]) -> States:
        """The stream behind the top layer."""
        context = inputs[..., x.shape[-1] :]
        for i, step in enumerate(steps):
            if i == len(steps) - 1:
                for mixture in self.experts[1:]:
                    x = x + self.drop(mixture(x))
            found = step(torch.cat((self.drop(x), context), dim=-1))
            x = found + x if i else found
        return x


def _gates(lstm: nn.Module) -> tuple[Tensor, Tensor]:
    """The map from what an LSTM reads to its four gates."""
    return lstm.get_parameter("weight_ih_l0"), lstm.get_parameter("bias_ih_l0")


def _half(x: States, weight: Tensor, bias: Tensor) -> States:
    """The first half of what such a map gives."""
    rows = len(weight) // 2
    return F.linear(x, weight[:rows], bias[:rows])


def _backwards(real: Bool[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
    """Where each place finds its token when real ones are reversed; padding stays behind them."""
    places, lengths = torch.arange(real.shape[1], device=real.device), real.sum(dim=1, keepdim=True)
    return torch.where(places < lengths, lengths - 1 - places, places)
