"""Charts come to what all trees of a sentence come to, one after the other."""

from __future__ import annotations

import functools

import pytest
import torch

from attnlab.models.parsers.chart import best_trees, inside


@functools.cache
def trees(start: int, end: int) -> list[frozenset[tuple[int, int]]]:
    """All binary trees over some words, as sets of spans."""
    here = frozenset({(start, end)})
    if end - start == 1:
        return [here]
    return [
        here | left | right for cut in range(start + 1, end) for left in trees(start, cut) for right in trees(cut, end)
    ]


def scores(words: int, sentences: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sentences, words + 1, words + 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("words", [1, 2, 3, 6])
def test_the_sum_over_all_trees(words):
    given = scores(words).requires_grad_()
    total = inside(given, lambda ways: ways.logsumexp(dim=-1))[:, 0, words]
    every = [[sum(one[span] for span in tree) for tree in trees(0, words)] for one in given]
    expected = torch.stack([torch.stack(row).logsumexp(dim=0) for row in every])
    assert torch.allclose(total, expected)
    (mine,), (theirs,) = (torch.autograd.grad(one.sum(), given, retain_graph=True) for one in (total, expected))
    assert torch.allclose(mine, theirs)


@pytest.mark.parametrize("words", [1, 2, 5, 7])
def test_the_best_tree_of_sentences_of_several_lengths(words):
    given = scores(7, sentences=2, seed=words)
    for one, found, count in zip(given, best_trees(given, [words, 7]), [words, 7], strict=True):
        every = {tree: float(sum(one[span] for span in tree)) for tree in trees(0, count)}
        assert frozenset(found) == max(every, key=every.__getitem__)
        assert found == sorted(found, key=lambda span: (span[0], -span[1]))
