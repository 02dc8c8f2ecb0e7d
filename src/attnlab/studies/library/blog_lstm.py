"""The LSTM of the question behind the study `shapes`, as its author ran it."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn


@final
class CarriedLstm(nn.Module):
    """Read the batch as time, and go on where the batch before ended.

    Parameters
    ----------
    length : int
        Length of the sequences; each is taken for the features of one time step.
    hidden : int
        Size of the state.
    """

    def __init__(self, length: int, hidden: int = 128) -> None:
        super().__init__()
        self.lstm = nn.LSTM(length, hidden)
        self.output = nn.Linear(hidden, length)
        self.state: tuple[Tensor, Tensor] | None = None
        self.trained = True

    def forward(self, x: Tensor) -> Tensor:
        """A sequence (batch, length, 1) of the same shape, made from this and the samples before it."""
        if self.trained != self.training:  # the author's state begins anew for evaluation, and after it
            self.state, self.trained = None, self.training
        states, (h, c) = self.lstm(x.transpose(1, 2), self.state)  # (batch, 1, length), read as (time, batch, features)
        self.state = (h.detach(), c.detach())
        return self.output(states).transpose(1, 2)

    def __deepcopy__(self, memo: dict[int, object]) -> CarriedLstm:
        twin = CarriedLstm(self.lstm.input_size, self.lstm.hidden_size).to(self.output.weight.dtype)
        memo[id(self)] = twin
        twin.load_state_dict(self.state_dict())
        return twin.train(self.training)
