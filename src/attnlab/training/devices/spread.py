"""How a model lies on the devices of its ranks: on each whole (DDP), or in parts (FSDP2), and which of the two."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from attnlab.core.sharded import whole
from attnlab.training.devices.ranks import AbstractRanks

STATES = 2  # numbers that an optimizer keeps for each parameter, at most: AdamW's two means
FILLED = 0.8  # of a device's memory that weights and activations may take: the rest is for what is computed in between
NONE, FULL, AUTO, TENSOR, CONTEXT = "none", "full", "auto", "tensor", "context"
"""Words of a recipe: every device holds the whole model; each a part of it; the second where the first does not fit;
each computes a part of every layer; each computes some positions of every row."""


class AbstractSpread(ABC):
    """Hold a model as it is trained, and give it back whole.

    Attributes
    ----------
    owner : nn.Module
        Whose parameters are updated.
    called : nn.Module
        What training steps call.
    """

    owner: nn.Module
    called: nn.Module

    @abstractmethod
    def exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """The context of a forward and backward pass, the last of its step or not."""

    def updating(self) -> contextlib.AbstractContextManager[object]:
        """The context in which gradients are clipped and parameters updated; none unless said otherwise."""
        return contextlib.nullcontext()

    @abstractmethod
    def give_back(self) -> None:
        """Put the weights into the model as they are now; every rank must ask for it."""


@final
class Undivided(AbstractSpread):
    """Train a model as it is.

    Parameters
    ----------
    model : nn.Module
        The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.owner = self.called = model

    def exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """No context."""
        del last
        return contextlib.nullcontext()

    def give_back(self) -> None:
        """Do nothing."""


@final
class Replicated(AbstractSpread):
    """Train a whole model on every rank, with the mean of their gradients.

    Parameters
    ----------
    model : nn.Module
        The model.
    some_unused : bool
        Whether parameters have no gradient in some steps.

    References
    ----------
    .. [1] Li et al., 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv:2006.15704.
    """

    def __init__(self, model: nn.Module, *, some_unused: bool) -> None:
        self.owner = model
        self.called = self._ddp = nn.parallel.DistributedDataParallel(
            model, forward_sync_buffers=False, find_unused_parameters=some_unused, gradient_as_bucket_view=True
        )

    def exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """No exchange before the last pass of a step."""
        return contextlib.nullcontext() if last else self._ddp.no_sync()

    def give_back(self) -> None:
        """Do nothing."""


@final
class Sharded(AbstractSpread):
    """Train a model of which every rank holds a part: weights, gradients and state of the optimizer.

    Parameters
    ----------
    model : nn.Module
        The model; it waits on the CPU, and is read again where something needs it whole.
    precision : str
        The recipe's; in ``bf16`` weights are gathered in bfloat16, and kept and their gradients added in float32.
    device : torch.device
        Where to train.

    Notes
    -----
    What is gathered at a time: each item of a module list, and then whatever is left. An item that shares parameters
    with the rest of the model belongs to the rest.

    References
    ----------
    .. [1] Zhao et al., 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", arXiv:2304.11277.
    """

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self._model = model
        self.owner = self.called = copy.deepcopy(model)
        how: dict[str, Any] = {"mesh": init_device_mesh(device.type, (dist.get_world_size(),))}
        if precision == "bf16":
            how["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        for part in _gathered_at_once(self.owner):
            fully_shard(part, **how)
        fully_shard(self.owner, **how)
        model.cpu()

    def exchanging(self, *, last: bool) -> contextlib.AbstractContextManager[object]:
        """No context: gradients are added where their part lies at every pass."""
        del last
        return contextlib.nullcontext()

    @torch.no_grad()
    def give_back(self) -> None:
        """Gather the weights, tensor by tensor."""
        trained = self.owner.state_dict()
        for name, tensor in self._model.state_dict().items():
            tensor.copy_(whole(trained[name]))


def _gathered_at_once(model: nn.Module) -> Iterator[nn.Module]:
    """The items of outermost module lists that share no parameter with the rest of a model."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for item in _items(model):
        held = [parameter for module in item.modules() for parameter in module.parameters(recurse=False)]
        if held and all(owners[id(one)] == sum(other is one for other in held) for one in held):
            yield item


def _items(module: nn.Module, *, listed: bool = False) -> Iterator[nn.Module]:
    """What stands in module lists, and in lists of lists; what has no forward is not called, so gathers nothing."""
    for child in module.children():
        if listed and type(child).forward is not nn.Module.forward:
            yield child
        else:
            yield from _items(child, listed=listed or isinstance(child, nn.ModuleList))


def what_fits(model: nn.Module, activation_bytes: float, ranks: AbstractRanks, device: torch.device) -> tuple[str, str]:
    """Whether a model is sharded, and why: by what a step needs, and the memory that is there.

    Parameters
    ----------
    model : nn.Module
        The model.
    activation_bytes : float
        What a rank keeps between the passes of its piece of a batch, as measured.
    ranks : AbstractRanks
        Who trains it.
    device : torch.device
        Where.
    """
    numbers = sum(p.numel() * p.element_size() * (2 + STATES if p.requires_grad else 1) for p in model.parameters())
    need, there = ranks.most(numbers + activation_bytes), -ranks.most(-memory_of(device))
    why = f"a step needs {need / 1e9:.3g} GB a device of {there / 1e9:.3g} GB"
    return (NONE if need <= FILLED * there else FULL), why


def memory_of(device: torch.device) -> float:
    """Bytes a rank may use: the free memory of its device; of a machine, its part of what Linux has available."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # only Linux has it; elsewhere a model is taken to fit
        return math.inf
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(kilobytes) * 1024 / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
