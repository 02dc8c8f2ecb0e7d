from __future__ import annotations

import torch

from attnlab.core.generators import generator_for


def draws(*numbers: int) -> list[float]:
    return torch.rand(5, generator=generator_for(*numbers)).tolist()


def test_equal_numbers_give_equal_draws_and_others_do_not():
    assert draws(3, 5) == draws(3, 5)
    assert len({tuple(draws(*numbers)) for numbers in [(3, 5), (5, 3), (3, 6), (35,), (-3, 5)]}) == 5


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    draws(1)
    assert torch.equal(before, torch.get_rng_state())
