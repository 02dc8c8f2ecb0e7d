"""The families of checkpoints that are known, by the ``model_type`` of their configs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from attnlab.models.pretrained import bert, gpt2, llama, marian, t5
from attnlab.models.pretrained.config import Config
from attnlab.models.pretrained.tensors import Table


@final
@dataclass(frozen=True)
class Family:
    """Hold what is known of one kind of checkpoint."""

    spec_of: Callable[[Config], dict[str, Any]]  # the lab's model that a config describes
    tensors: Table
    architectures: Mapping[str, Mapping[str, Any]]
    """transformers' classes whose checkpoints are read, the usual one first, with what they add to the model."""
    fixed: Mapping[str, Any]  # fields of the config for which one value is known
    harmless: frozenset[str]  # fields that change no number
    unused: tuple[str, ...]  # patterns of stored tensors that no answer hangs on
    prefix: str  # which a checkpoint of the bare model leaves out

    def named(self, stored: str) -> str:
        """The name of a stored tensor as the table has it."""
        stored = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", stored)  # of TensorFlow, in checkpoints of 2018
        stored = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", stored)
        return stored if self.knows(stored) or not self.knows(self.prefix + stored) else self.prefix + stored

    def knows(self, stored: str) -> bool:
        """Whether a name is one of the family's, layers of any number included."""
        names = (name for rows in self.tensors.values() for row in rows for name in row.names)
        patterns = [*(re.escape(name).replace(r"\{i\}", r"\d+") for name in names), *self.unused]
        return any(re.fullmatch(pattern, stored) for pattern in patterns)


def _family(of: Any) -> Family:
    return Family(of.spec_of, of.TENSORS, of.ARCHITECTURES, of.FIXED, of.HARMLESS, of.UNUSED, of.PREFIX)


FAMILIES: Mapping[str, Family] = {
    "gpt2": _family(gpt2),
    "llama": _family(llama),
    "bert": _family(bert),
    "t5": _family(t5),
    "marian": _family(marian),
}
