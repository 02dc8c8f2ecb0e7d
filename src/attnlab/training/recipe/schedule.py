"""How the learning rate goes over a run: a linear warm-up to its peak, then one of the shapes below.

Everything is a pure function of progress (0 at the start of the budget, 1 at its end), so that a run that is
resumed, or whose budget is counted in seconds, needs no state here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import final

from attnlab.core.errors import SpecError


class AbstractSchedule(ABC):
    """Give the learning rate after the warm-up, as a fraction of its peak."""

    @abstractmethod
    def after_warmup(self, progress: float, warmup: float) -> float:
        """The factor in [0, 1] for a progress of at least `warmup`."""


@final
class Constant(AbstractSchedule):
    """Stay at the peak.

    Notes
    -----
    ``factor = 1``.
    """

    def after_warmup(self, progress: float, warmup: float) -> float:
        """1."""
        del progress, warmup
        return 1.0


@final
class Cosine(AbstractSchedule):
    """Fall along half a cosine from the peak to a fraction of it.

    Parameters
    ----------
    final : float
        Factor at the end of the budget, in [0, 1].

    Raises
    ------
    SpecError
        If `final` lies outside [0, 1].

    Notes
    -----
    ``factor = final + (1 - final) (1 + cos(pi t)) / 2``, where t goes from 0 at the end of the warm-up to 1.
    Differs from [1]_: no restarts.

    References
    ----------
    .. [1] Loshchilov, Hutter, 2017, arXiv:1608.03983, equation 5.
    """

    def __init__(self, final: float = 0.1) -> None:
        self.final = _fraction(final)

    def after_warmup(self, progress: float, warmup: float) -> float:
        """The factor on the cosine."""
        part = _part_after(progress, warmup)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * part))


@final
class Linear(AbstractSchedule):
    """Fall along a line from the peak to a fraction of it.

    Parameters
    ----------
    final : float
        Factor at the end of the budget, in [0, 1].

    Raises
    ------
    SpecError
        If `final` lies outside [0, 1].

    Notes
    -----
    ``factor = 1 - (1 - final) t``, where t goes from 0 at the end of the warm-up to 1.
    """

    def __init__(self, final: float = 0.0) -> None:
        self.final = _fraction(final)

    def after_warmup(self, progress: float, warmup: float) -> float:
        """The factor on the line."""
        return 1.0 - (1.0 - self.final) * _part_after(progress, warmup)


@final
class InverseSquareRoot(AbstractSchedule):
    """Fall with the square root of the number of steps, as in the first Transformer.

    Notes
    -----
    ``factor = sqrt(warmup / progress)``, which together with the warm-up is
    ``min(progress / warmup, sqrt(warmup / progress))``. Differs from [1]_: normalized so that the peak is the
    recipe's learning rate, where the source's is ``1 / sqrt(d_model * warmup_steps)``. Needs a warm-up.

    References
    ----------
    .. [1] Vaswani et al., 2017, arXiv:1706.03762, equation 3.
    """

    def after_warmup(self, progress: float, warmup: float) -> float:
        """The factor on the curve; 1 where there is no warm-up to scale it."""
        return math.sqrt(warmup / progress) if warmup > 0.0 else 1.0


def rate_factor(schedule: AbstractSchedule, progress: float, warmup: float) -> float:
    """The learning rate at a point of the run, as a fraction of its peak.

    Examples
    --------
    >>> rate_factor(Constant(), 0.025, 0.05)
    0.5
    """
    if progress < warmup:
        return progress / warmup
    return schedule.after_warmup(min(progress, 1.0), warmup)


def _part_after(progress: float, warmup: float) -> float:
    return (progress - warmup) / (1.0 - warmup) if warmup < 1.0 else 1.0


def _fraction(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise SpecError(f"'final' must lie between 0 and 1; got {value!r}")
    return value


SCHEDULES: dict[str, type[AbstractSchedule]] = {
    "constant": Constant,
    "cosine": Cosine,
    "linear": Linear,
    "inverse-square-root": InverseSquareRoot,
}
