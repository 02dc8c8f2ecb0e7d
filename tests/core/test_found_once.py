"""What is found out once is found out anew where it changed, and seeding is that of torch."""

from __future__ import annotations

import traceback
from typing import Annotated

import pytest
import torch

from attnlab.core.constructors import check_arguments, signature_of
from attnlab.core.errors import SpecError
from attnlab.core.generators import seed_generators


def test_a_class_that_is_given_another_constructor_has_its_parameters(monkeypatch):
    class Part:
        def __init__(self, width): ...

    assert [*signature_of(Part)] == ["width"]
    signature_of(Part).clear()
    assert [*signature_of(Part)] == ["width"]
    monkeypatch.setattr(Part, "__init__", lambda self, height: None)
    assert [*signature_of(Part)] == ["height"]


def test_arguments_are_checked_against_an_annotation_without_a_hash():
    class Part:
        def __init__(self, width): ...

    Part.__init__.__annotations__["width"] = Annotated[int, []]
    assert check_arguments(Part, {"width": 3}, "part") == {"width": 3}
    with pytest.raises(SpecError, match="'width' must be"):
        check_arguments(Part, {"width": "three"}, "part")


def test_seeding_is_that_of_torch_and_writes_down_no_stack(monkeypatch):
    torch.manual_seed(5)
    wanted = torch.rand(3)
    if not torch.accelerator.is_available():
        monkeypatch.setattr(traceback, "format_stack", lambda *_: pytest.fail("a stack was written down"))
    seed_generators(5)
    assert torch.equal(torch.rand(3), wanted)
