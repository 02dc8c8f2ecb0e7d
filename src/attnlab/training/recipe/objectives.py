"""What training minimizes: how unlikely the right answer is, or how bad what the model writes by itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from jaxtyping import Float
from torch import Tensor

from attnlab.core.errors import SpecError
from attnlab.core.sizes import require_not_negative


class AbstractObjective(ABC):
    """Say what is minimized from the likelihood of sequences and from how good they are.

    Attributes
    ----------
    samples : int
        Sequences that the model writes by itself for each sample of a batch; 0 where the task's own loss is minimized.
    after : float
        The fraction of the budget that is trained by the task's own loss first, in [0, 1).
    """

    samples: int
    after: float

    @abstractmethod
    def loss(
        self,
        log_probabilities: Float[Tensor, "batch sequences"],
        rewards: Float[Tensor, "batch sequences"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; the first sequence of each sample is the right one, the others the model wrote."""


@final
class Likelihood(AbstractObjective):
    """Minimize the task's own loss."""

    def __init__(self) -> None:
        self.samples, self.after = 0, 0.0

    def loss(self, log_probabilities: Tensor, rewards: Tensor) -> Tensor:
        """How unlikely the right sequences are, in nats per sequence."""
        del rewards
        return -log_probabilities[:, 0].mean()


class _AbstractOfAttempts(AbstractObjective):
    """Learn from what the model writes by itself, after some training by the task's own loss."""

    def __init__(self, samples: int, likelihood: float, after: float) -> None:
        if samples < 2:
            raise SpecError(f"samples must be at least 2, as they are compared with each other; got {samples}")
        require_not_negative("likelihood", likelihood)
        if not 0.0 <= after < 1.0:
            raise SpecError(f"after must be a fraction of the budget in [0, 1); got {after!r}")
        self.samples, self.likelihood, self.after = samples, likelihood, after

    def _with_likelihood(self, loss: Tensor, log_probabilities: Tensor) -> Tensor:
        return loss - self.likelihood * log_probabilities[:, 0].mean()


@final
class ExpectedReward(_AbstractOfAttempts):
    """Raise the reward that what the model writes has on average: GNMT's second stage of training.

    Parameters
    ----------
    samples : int
        Sequences that the model draws for each sample of a batch, at least 2.
    likelihood : float
        Weight of the likelihood of the right sequence, which is added; 0 leaves it out.
    after : float
        The fraction of the budget that is trained by the task's own loss first, in [0, 1).

    Raises
    ------
    SpecError
        If there are fewer than 2 samples, the weight is negative, or `after` lies outside its range.

    Notes
    -----
    ``loss = -mean_i (r_i - mean_j r_j) log p(y_i) - likelihood log p(y*)``, averaged over the samples of a batch: the
    mean reward of the others' is what a sequence must beat. Differs from [1]_: the number of samples is 15 there.

    References
    ----------
    .. [1] Wu et al., 2016, arXiv:1609.08144, section 5 (weight 0.017).
    """

    def __init__(self, samples: int = 8, likelihood: float = 0.017, after: float = 0.8) -> None:
        super().__init__(samples, likelihood, after)

    def loss(self, log_probabilities: Tensor, rewards: Tensor) -> Tensor:
        """The loss of a batch."""
        own = rewards[:, 1:]
        advantages = own - own.mean(dim=1, keepdim=True)
        return self._with_likelihood(-(advantages * log_probabilities[:, 1:]).mean(), log_probabilities)


@final
class MinimumRisk(_AbstractOfAttempts):
    """Lower the risk of what the model holds likely among the right sequence and some that it drew.

    Parameters
    ----------
    samples : int
        Sequences that the model draws for each sample of a batch, at least 2.
    sharpness : float
        Power to which probabilities are raised before they are made to sum to 1 over these sequences.
    likelihood : float
        Weight of the likelihood of the right sequence, which is added; 0 leaves it out.
    after : float
        The fraction of the budget that is trained by the task's own loss first, in [0, 1).

    Raises
    ------
    SpecError
        If there are fewer than 2 samples, the sharpness is not positive, the weight is negative, or `after` lies
        outside its range.

    Notes
    -----
    ``loss = sum_i q_i (1 - r_i)`` with ``q_i`` proportional to ``p(y_i)^sharpness``, averaged over the samples of a
    batch. Differs from [1]_: a sequence that was drawn twice counts twice, and the samples are 100 there.

    References
    ----------
    .. [1] Shen et al., 2016, arXiv:1512.02433, equations 9 to 13 (sharpness 0.005).
    """

    def __init__(self, samples: int = 8, sharpness: float = 0.005, likelihood: float = 0.0, after: float = 0.8) -> None:
        super().__init__(samples, likelihood, after)
        if not 0.0 < sharpness < math.inf:
            raise SpecError(f"sharpness must be a positive number; got {sharpness}")
        self.sharpness = sharpness

    def loss(self, log_probabilities: Tensor, rewards: Tensor) -> Tensor:
        """The loss of a batch."""
        held_likely = (self.sharpness * log_probabilities).softmax(dim=1)
        return self._with_likelihood((held_likely * (1 - rewards)).sum(dim=1).mean(), log_probabilities)


OBJECTIVES: Mapping[str, type[AbstractObjective]] = {
    "likelihood": Likelihood,
    "expected-reward": ExpectedReward,
    "minimum-risk": MinimumRisk,
}
"""Everything that can be minimized, by name."""
