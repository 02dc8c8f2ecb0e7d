"""Random numbers by name: what two models have in common starts alike, whatever else they have.

A model draws its weights one after the other from one stream. Where one variant has a part more, or one of another
shape, everything after it starts elsewhere in the stream, and two variants with the same seed share nothing. Here each
tensor gets a stream of its own, from the seed and its name in the model.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.core.generators import seed_generators


def drawn_by_name(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a model whose every parameter and buffer is drawn from the seed and its name.

    Parameters
    ----------
    make : callable
        Builds the model; it is called twice, the first time to see which draw fills which tensor, and twice more where
        the calls did not draw the same: what a first call finds out and keeps, such as how to call a person's own
        module, later ones do not draw for.
    seed : int
        The seed; the default generator stands where it stands after ``torch.manual_seed(seed)`` when this returns.

    Returns
    -------
    nn.Module
        The model. Draws that end up in no tensor of it (a random choice, a factor of a matrix) are numbered in place
        of a name. If no two calls draw the same, it is drawn as one stream, as by ``make`` alone.
    """
    for _ in range(2):
        model = _drawn_twice(make, seed)
        seed_generators(seed)
        if model is not None:
            return model
    model = make()
    seed_generators(seed)
    return model


def _drawn_twice(make: Callable[[], nn.Module], seed: int) -> nn.Module | None:
    """The model of a second call, drawn by the names that the first one showed; None if they do not draw the same."""
    seed_generators(seed)
    with _Draws() as first:
        model = make()
    names = _names(first.drawn, model)
    del model
    seed_generators(seed)
    with _Draws(lambda index: seed_generators(_seed_of(seed, names, index))) as second:
        model = make()
    return model if [one.shape for one in first.drawn] == [one.shape for one in second.drawn] else None


def _names(drawn: list[Tensor], model: nn.Module) -> list[str]:
    """For each draw the tensor of a model that it filled, and the how manieth draw into it it was."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    wrapped = {
        f"{place}{module.same_draws_as}.": place
        for name, module in model.named_modules()
        for place in [f"{name}." if name else ""]
        if _wraps(module)
    }
    owners = {tensor.untyped_storage()._cdata: name for name, tensor in reversed(tensors)}  # of shared ones the first
    for inside, outside in wrapped.items():
        owners = {place: _without(inside, outside, name) for place, name in owners.items()}
    seen: Counter[str] = Counter()
    names = []
    for one in drawn:
        name = owners.get(one.untyped_storage()._cdata, "")
        seen[name] += 1
        names.append(f"{name} {seen[name]}")
    return names


def _without(inside: str, outside: str, name: str) -> str:
    return outside + name.removeprefix(inside) if name.startswith(inside) else name


def _wraps(module: nn.Module) -> bool:
    """Whether a module only stands around another, named by its `same_draws_as`, which is drawn as if it were alone."""
    return hasattr(module, "same_draws_as")


def _seed_of(seed: int, names: list[str], index: int) -> int:
    """The seed of one draw."""
    name = names[index] if index < len(names) else str(index)
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7], "little")


@final
class _Draws(TorchDispatchMode):
    """Note every tensor that is drawn, and tell before each draw which one it is."""

    def __init__(self, before: Callable[[int], object] | None = None) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []
        self._before = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, noted if it is random."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if self._before:
            self._before(len(self.drawn))
        out = func(*args, **(kwargs or {}))
        self.drawn.append(out if isinstance(out, Tensor) else torch.empty(0))
        return out
