"""Convolutions over the positions, some of which another mixer may replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.core.build import Spec
from attnlab.core.errors import SpecError
from attnlab.core.sizes import check_positive, repeated
from attnlab.models.wiring import build_input_positions, offer_positions
from attnlab.nn.mixers import build_mixer


@final
class ConvStack(nn.Module):
    """Map a sequence to another of the same length by convolutions with ReLU between them.

    Parameters
    ----------
    d_in : int
        Features of one input position.
    d_out : int
        Features of one output position.
    max_length : int
        Longest sequence it has positions for; plain convolutions take any length.
    channels : int, default 64
        Features between the layers.
    kernel_size : int, default 5
        Positions one convolution sees; odd, so that the length stays.
    n_layers : int, default 5
        Number of layers.
    dilations : list of int, optional
        Distance between the positions a layer sees, one per layer; 1 everywhere by default. The entry
        of a layer that the mixer replaces has no effect.
    mixer : Spec, optional
        What stands in the place of convolutions.
    mixer_at : int or list of int, default 2
        Which layer the mixer replaces, or which layers, each by one of its own; counted from 0, neither the first nor
        the last.
    positions : Spec, default "none"
        Where an element stands: marked after the first layer, or, where they act on scores, given to
        the mixer.

    Raises
    ------
    SpecError
        If a size is not positive, the kernel is even, the dilations are not one per layer, the mixer
        stands outside, or positions have no effect.

    Notes
    -----
    An output sees ``sum over layers of (kernel_size - 1) / 2 * dilation`` positions to each side, and itself: 21
    in all with the defaults, fewer near the ends. With one feature in and out it has 62,337 parameters. Ends
    are padded with zeros, so positions near them can be told apart.

    References
    ----------
    .. [1] F. Fleuret's toy sequence-to-sequence task with attention, 2020 (the architecture).
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        max_length: int,
        *,
        channels: int = 64,
        kernel_size: int = 5,
        n_layers: int = 5,
        dilations: Sequence[int] | None = None,
        mixer: Spec | None = None,
        mixer_at: int | Sequence[int] = 2,
        positions: Spec = "none",
    ) -> None:
        super().__init__()
        sizes = {"d_in": d_in, "d_out": d_out, "max_length": max_length, "channels": channels, "n_layers": n_layers}
        check_positive(sizes)
        spread = _dilations(dilations, n_layers)
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise SpecError(f"kernel_size must be odd, so that the length stays; got {kernel_size}")
        widths = [d_in, *repeated(channels, n_layers - 1), d_out]
        self.layers = nn.ModuleList(
            _Convolution(widths[i], widths[i + 1], kernel_size=kernel_size, dilation=spread[i]) for i in range(n_layers)
        )
        offered = {"d_model": channels, "max_length": max_length, "causal": False}
        mixers = [] if mixer is None else [mixer]
        offered |= offer_positions(positions, mixers)
        if mixer is not None:
            for at in [mixer_at] if isinstance(mixer_at, int) else mixer_at:
                self._replace(at, mixer, offered)
        self.positions = build_input_positions(positions, offered)

    def _replace(self, at: int, mixer: Spec, offered: Mapping[str, Any]) -> None:
        """Put the mixer in the place of one convolution."""
        if not 0 < at < len(self.layers) - 1:
            numbered = ", ".join(map(str, range(1, len(self.layers) - 1))) or "none: give n_layers of 3 or more"
            raise SpecError(
                f"mixer_at must name a layer between the first and the last of {len(self.layers)}, counted from 0, "
                f"where d_in and d_out do not matter ({numbered}); got {at}"
            )
        self.layers[at] = build_mixer(mixer, offered)

    def forward(self, x: Float[Tensor, "batch length d_in"]) -> Float[Tensor, "batch length d_out"]:
        """One output vector per position."""
        first, *others = self.layers
        x = first(x)  # (batch, length, channels)
        for index, layer in enumerate(others):
            x = torch.relu(x)
            x = layer(self.positions(x) if index == 0 else x)
        return x


@final
class _Convolution(nn.Module):
    """Convolve over the positions of (batch, length, features), padded so that the length stays."""

    def __init__(self, d_in: int, d_out: int, *, kernel_size: int, dilation: int) -> None:
        super().__init__()
        reach = dilation * (kernel_size - 1) // 2
        self.convolution = nn.Conv1d(d_in, d_out, kernel_size, padding=reach, dilation=dilation)

    def forward(self, x: Float[Tensor, "batch length d_in"]) -> Float[Tensor, "batch length d_out"]:
        channels_first = x.transpose(1, 2)  # (batch, d_in, length)
        return self.convolution(channels_first).transpose(1, 2)  # (batch, length, d_out)


def _dilations(dilations: Sequence[int] | None, n_layers: int) -> list[int]:
    """One dilation per layer."""
    chosen = repeated(1, n_layers) if dilations is None else list(dilations)
    if len(chosen) != n_layers:
        raise SpecError(f"dilations needs one entry per layer; got {len(chosen)} for n_layers {n_layers}")
    if min(chosen) < 1:
        raise SpecError(f"dilations must be at least 1; got {chosen}")
    return chosen
