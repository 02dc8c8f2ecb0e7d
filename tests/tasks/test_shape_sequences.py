from __future__ import annotations

import pytest
import torch

from attnlab.core.generators import generator_for
from attnlab.tasks.shapes.sequences import (
    LENGTH,
    SMALLEST_DIFFERENCE,
    ShapeParameters,
    average_heights,
    differs_enough,
    draw,
    generate,
    overlapping,
    render,
)

COUNT = 101


def one(centers, heights, widths) -> ShapeParameters:
    return ShapeParameters(*(torch.tensor([values]) for values in (centers, heights, widths)))


def test_a_triangle_slopes_to_a_plateau_and_a_box_is_flat():
    shapes = one([20.0, 40.0, 60.0, 80.0], [10.0, 5.0, 7.0, 3.0], [8.0, 8.0, 6.0, 5.0])
    row = render(shapes)[0]
    # width 8: the slope loses 2.5 per position beyond the plateau's half position
    assert row[15:26].tolist() == pytest.approx([0, 1.25, 3.75, 6.25, 8.75, 10, 8.75, 6.25, 3.75, 1.25, 0])
    assert row[56:65].tolist() == [0, 0, 7, 7, 7, 7, 7, 0, 0]
    assert row[77:84].tolist() == [0, 3, 3, 3, 3, 3, 0]
    assert row[100:].numel() == 0


def test_a_center_between_positions_keeps_its_triangle_at_full_height_on_both():
    row = render(one([20.5, 40.0, 60.0, 80.0], [10.0, 5.0, 7.0, 3.0], [8.0, 8.0, 6.0, 5.0]))[0]
    assert row[20:22].tolist() == [10, 10]


def test_overlap_is_what_the_drawn_shapes_show():
    shapes = draw(2003, generator_for(1))
    alone = torch.stack([render(only(shapes, shape)) > 0 for shape in range(4)], dim=1)  # (count, shape, length)
    touched = alone[..., 1:] | alone[..., :-1]  # on one of two neighboring positions
    assert torch.equal(overlapping(shapes), (touched.sum(1) > 1).any(1))


def only(shapes: ShapeParameters, shape: int) -> ShapeParameters:
    heights = torch.zeros_like(shapes.heights)
    heights[:, shape] = shapes.heights[:, shape]
    return shapes.with_heights(heights)


@pytest.mark.parametrize(
    ("heights", "kept"),
    [
        ([1.0, 6.0, 1.0, 6.0], True),
        ([1.0, 4.0, 1.0, 6.0], False),
        ([1.0, 6.0, 1.0, 4.0], False),  # the boxes, which the source never looks at
        ([1.0, 5.0, 1.0, 6.0], False),
    ],
)
def test_both_pairs_must_differ(heights, kept):
    shapes = one([20.0, 40.0, 60.0, 80.0], heights, [8.0, 8.0, 6.0, 5.0])
    assert differs_enough(shapes, "shape").tolist() == [kept]


def test_by_place_the_two_averages_must_differ():
    centers, widths = [20.0, 60.0, 40.0, 80.0], [8.0, 8.0, 6.0, 5.0]
    assert differs_enough(one(centers, [1.0, 9.0, 3.0, 5.0], widths), "place").tolist() == [True]
    assert differs_enough(one(centers, [1.0, 7.0, 3.0, 5.0], widths), "place").tolist() == [False]


def test_heights_are_averaged_by_kind_or_by_place():
    shapes = one([20.0, 60.0, 40.0, 80.0], [1.0, 9.0, 3.0, 5.0], [8.0, 8.0, 6.0, 5.0])
    assert average_heights(shapes, "shape").tolist() == [[5, 5, 4, 4]]
    assert average_heights(shapes, "place").tolist() == [[2, 7, 2, 7]]


def test_by_place_every_sequence_is_grouped_so():
    _, targets = generate("place", COUNT, noise=0.0, seed=3)
    for row in targets:
        # a triangle's slopes aside, a sequence has one height on the left and one on the right; a box shows its own
        tops = [height for height in row[row > 0].unique().tolist() if (row == height).sum() >= 5]
        assert len(tops) <= 2


@pytest.mark.parametrize("group", ["shape", "place"])
def test_noise_stays_within_its_width_and_covers_it(group):
    clean = generate(group, COUNT, noise=0.0, seed=5)
    noisy = generate(group, COUNT, noise=0.4, seed=5)
    for before, after in zip(clean, noisy, strict=True):
        assert before.shape == (COUNT, LENGTH)
        deviation = after - before
        assert deviation.abs().max() <= 0.2 + 1e-5
        assert deviation.std().item() == pytest.approx(0.4 / 12**0.5, rel=0.03)
    assert not torch.equal(noisy[0] - clean[0], noisy[1] - clean[1])


def test_averaged_pairs_differed():
    inputs, targets = generate("shape", COUNT, noise=0.0, seed=5)
    changed = (inputs - targets).abs().amax(dim=1)
    assert (changed > SMALLEST_DIFFERENCE / 2).all()


def test_a_seed_gives_the_same_sequences_and_a_larger_set_begins_with_them():
    few = generate("shape", 13, noise=0.3, seed=11)
    many = generate("shape", 1999, noise=0.3, seed=11)
    other = generate("shape", 13, noise=0.3, seed=12)
    for side in (0, 1):
        assert torch.equal(few[side], many[side][:13])
        assert not torch.equal(few[side], other[side])


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    generate("shape", 3, noise=0.3, seed=1)
    assert torch.equal(before, torch.get_rng_state())
