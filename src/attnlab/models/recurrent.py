"""Recurrent networks: one that reads positions as time, and one that reads the batch as time."""

from __future__ import annotations

from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.sizes import check_positive


@final
class Lstm(nn.Module):
    """Read the positions of a sequence one after another, by default in both directions, and answer at each.

    Parameters
    ----------
    d_in : int
        Features of one input position.
    d_out : int
        Features of one output position.
    hidden : int, default 128
        Size of the state, per direction.
    n_layers : int, default 1
        LSTMs on top of each other.
    bidirectional : bool, default True
        Whether a second LSTM reads backwards, so that a position sees what comes after it.

    Raises
    ------
    SpecError
        If a size is not positive.

    Notes
    -----
    Time grows with the length and cannot be spread over it.

    References
    ----------
    .. [1] Hochreiter, Schmidhuber, 1997, Neural Computation 9(8).
    .. [2] Schuster, Paliwal, 1997, IEEE Transactions on Signal Processing 45(11) (both directions).
    """

    def __init__(
        self, d_in: int, d_out: int, *, hidden: int = 128, n_layers: int = 1, bidirectional: bool = True
    ) -> None:
        super().__init__()
        check_positive({"d_in": d_in, "d_out": d_out, "hidden": hidden, "n_layers": n_layers})
        self.lstm = nn.LSTM(d_in, hidden, n_layers, batch_first=True, bidirectional=bidirectional)
        self.output = nn.Linear(hidden * (2 if bidirectional else 1), d_out)

    def forward(self, x: Float[Tensor, "batch length d_in"]) -> Float[Tensor, "batch length d_out"]:
        """One output vector per position."""
        states, _ = self.lstm(x)  # (batch, length, directions * hidden)
        return self.output(states)


@final
class LstmBatchAsTime(nn.Module):
    """Read the batch as time: a common mistake, kept to show what it does.

    Parameters
    ----------
    length : int
        Length of the sequences; each is taken for the features of one time step.
    hidden : int, default 128
        Size of the state.
    n_layers : int, default 1
        LSTMs on top of each other.

    Raises
    ------
    SpecError
        If a size is not positive.

    Notes
    -----
    ``nn.LSTM`` expects (time, batch, features) unless told otherwise; given (batch, features, length), it
    walks from sample to sample, so that each answer depends on the samples before it in the batch. With
    length 100 it has 130,660 parameters. Differs from the blog post it is taken from: the state starts
    at zero in each batch, where the post carries it over from the batch before.
    """

    def __init__(self, length: int, *, hidden: int = 128, n_layers: int = 1) -> None:
        super().__init__()
        check_positive({"length": length, "hidden": hidden, "n_layers": n_layers})
        self.lstm = nn.LSTM(length, hidden, n_layers)
        self.output = nn.Linear(hidden, length)

    def forward(self, x: Float[Tensor, "batch length d_in"]) -> Float[Tensor, "batch length d_in"]:
        """A sequence of the same shape, made from this and the samples before it."""
        mistaken = x.transpose(1, 2)  # (batch, d_in, length), read as (time, batch, features)
        states, _ = self.lstm(mistaken)
        return self.output(states).transpose(1, 2)  # (batch, length, d_in)
