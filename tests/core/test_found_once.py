"""What constructors ask for is looked up once of the lab's own classes alone; seeding is that of torch."""

from __future__ import annotations

import gc
import traceback
import weakref
from typing import Annotated

import numpy as np
import pytest
import torch

from attnlab.core.constructors import check_arguments, hints_of, signature_of
from attnlab.core.errors import SpecError
from attnlab.core.generators import seed_generators
from attnlab.nn.axes.positions import SinusoidalPositions


def test_a_persons_class_that_changed_has_its_new_parameters_and_is_not_kept(monkeypatch):
    class Above:
        def __init__(self, width: int): ...

    class Part(Above):
        def __init__(self, *args, **kwargs): ...

    assert [*signature_of(Part)] == ["width"]
    assert hints_of(Above) == {"width": int}
    monkeypatch.setattr(Above, "__init__", lambda self, height: None)
    assert [*signature_of(Part)] == ["height"]
    assert hints_of(Above) == {}
    monkeypatch.undo()
    kept = weakref.ref(Part)
    del Part
    gc.collect()
    assert kept() is None


def test_who_changes_what_was_found_of_the_lab_changes_a_copy():
    signature_of(SinusoidalPositions).clear()
    hints_of(SinusoidalPositions).clear()
    assert signature_of(SinusoidalPositions)
    assert hints_of(SinusoidalPositions)


def test_arguments_are_checked_against_an_annotation_without_a_hash():
    class Part:
        def __init__(self, width): ...

    Part.__init__.__annotations__["width"] = Annotated[int, []]
    assert check_arguments(Part, {"width": 3}, "part") == {"width": 3}
    with pytest.raises(SpecError, match="'width' must be"):
        check_arguments(Part, {"width": "three"}, "part")


@pytest.mark.parametrize("seed", [5, np.int64(5), -1])
def test_seeding_is_that_of_torch_and_writes_down_no_stack(monkeypatch, seed):
    torch.manual_seed(seed)
    wanted = torch.rand(3)
    if not torch.accelerator.is_available():
        monkeypatch.setattr(traceback, "format_stack", lambda *_: pytest.fail("a stack was written down"))
    seed_generators(seed)
    assert torch.equal(torch.rand(3), wanted)
