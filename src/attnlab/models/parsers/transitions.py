"""Shift and reduce: a tree as the actions that build it from the bottom, and what many sentences have come to."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnlab.models.parsers.brackets import TreeSpan
from attnlab.models.parsers.grammars.symbols import Symbols

BELOW = 4
"""Places of a stack below its first element, so that there always are so many to look at."""
SHIFT, DONE = 0, 1
Tags = Int[Tensor, "batch words"]


@final
class ParserStates(NamedTuple):
    """Hold what some beginnings of trees have come to, several for each sentence.

    Parameters
    ----------
    symbols, starts, lefts, rights : Tensor
        Of what lies on the stack, the highest at `depth` - 1: its symbol, its first word, and the symbols that it was
        made of.
    depth : Tensor
        Of the stack.
    read : Tensor
        Words that are on it.
    """

    symbols: Int[Tensor, "batch paths stack"]
    starts: Int[Tensor, "batch paths stack"]
    lefts: Int[Tensor, "batch paths stack"]
    rights: Int[Tensor, "batch paths stack"]
    depth: Int[Tensor, "batch paths"]
    read: Int[Tensor, "batch paths"]

    def top(self, name: str, count: int) -> Int[Tensor, "batch paths count"]:
        """What is said in a field of so many elements from the highest."""
        below = torch.arange(1, count + 1, device=self.depth.device)
        return getattr(self, name).gather(2, self.depth[..., None] - below)

    def of(self, paths: Int[Tensor, "batch chosen"]) -> ParserStates:
        """Some of the paths of each sentence."""
        rows = torch.arange(len(paths), device=paths.device)[:, None]
        return ParserStates(*(one[rows, paths] for one in self))


@final
@dataclass(frozen=True)
class Transitions:
    """Number the actions that build trees with some symbols, and say what each does.

    Parameters
    ----------
    symbols : Symbols
        Of what stands on a stack.

    Notes
    -----
    A word is put on the stack by its tag (shift); a tag becomes a chain of brackets (unary); the two highest elements
    become a chain, or what there is so far of a label that more will follow in (reduce). A tree is done when no word is
    left and one chain lies on the stack. Every beginning can be ended.
    """

    symbols: Symbols

    @property
    def nothing(self) -> int:
        """The symbol that is none."""
        return self.symbols.count

    @property
    def count(self) -> int:
        """How many actions there are: two, those that make a chain of a tag, those that join two."""
        return self._reduce + len(self.symbols.chains) + self.symbols.brackets.labels

    @property
    def _unary(self) -> int:
        return DONE + 1

    @property
    def _reduce(self) -> int:
        return self._unary + len(self.symbols.chains)

    def begin(self, batch: int, paths: int, words: int, device: torch.device) -> ParserStates:
        """So many times for each sentence: nothing on the stack."""
        empty = torch.full((batch, paths, BELOW + words), self.nothing, device=device)
        zeros = torch.zeros_like(empty[..., 0])
        return ParserStates(empty, torch.zeros_like(empty), empty, empty, zeros + BELOW, zeros)

    @functools.cached_property
    def _made(self) -> Int[Tensor, " actions"]:
        """The symbol that each action leaves on top; none where that depends."""
        chains = [*self.symbols.constituents]
        rests = range(self.symbols.constituents.stop, self.symbols.count)
        return torch.tensor([self.nothing, self.nothing, *chains, *chains, *rests])

    @functools.cached_property
    def _goes_on(self) -> Bool[Tensor, "symbols actions"]:
        """By what lies second: true at the reductions that it allows; what is begun of a label ends as it."""
        allowed = torch.zeros(self.nothing + 1, self.count, dtype=torch.bool)
        rests = [self.symbols.rest(chain) for chain in self.symbols.chains]
        ends = torch.tensor([*rests, *range(self.symbols.constituents.stop, self.symbols.count)])
        known = torch.isin(ends, torch.tensor(rests))  # some chain ends so
        allowed[: self.nothing, self._reduce :] = known
        for rest in range(self.symbols.constituents.stop, self.symbols.count):
            allowed[rest, self._reduce :] = known & (ends == rest)
        return allowed

    def legal(self, states: ParserStates, counts: Int[Tensor, " batch"]) -> Bool[Tensor, "batch paths actions"]:
        """True at the actions that are possible; `counts` are the words of each sentence."""
        (top, second), rests = states.top("symbols", 2).unbind(dim=2), self.symbols.constituents.stop
        left, depth = states.read < counts[:, None], states.depth - BELOW
        is_rest = (top >= rests) & (top < self.nothing)
        found = self._goes_on.to(top.device)[second] & ((depth > 1) & ~is_rest)[..., None]
        found[..., self._reduce + len(self.symbols.chains) :] &= left[..., None]  # something must follow
        found[..., self._unary : self._reduce] = ((depth > 0) & (top < self.symbols.tags))[..., None]
        found[..., SHIFT] = left
        found[..., DONE] = ~left & (depth == 1) & (top >= self.symbols.tags) & (top < rests)
        return found

    def advance(self, states: ParserStates, actions: Int[Tensor, "batch paths"], tags: Tags) -> ParserStates:
        """What becomes of beginnings by one action each; of those whose action is not possible, anything."""
        shifts, joins, done = actions == SHIFT, actions >= self._reduce, actions == DONE
        depth = (states.depth + shifts.long() - joins.long()).clamp(BELOW, states.symbols.shape[2])
        place = depth[..., None] - 1
        tag = tags.gather(1, states.read.clamp(max=tags.shape[1] - 1))
        old = [one.gather(2, place)[..., 0] for one in states[:4]]
        made = torch.where(done, old[0], torch.where(shifts, tag, self._made.to(actions.device)[actions]))
        start = torch.where(shifts, states.read, old[1])
        left = torch.where(shifts, self.nothing, torch.where(done, old[2], old[0]))
        right = torch.where(joins, states.top("symbols", 1)[..., 0], torch.where(done, old[3], self.nothing))
        symbols, starts, lefts, rights = (
            one.scatter(2, place, value[..., None])
            for one, value in zip(states[:4], (made, start, left, right), strict=True)
        )
        return ParserStates(symbols, starts, lefts, rights, depth, states.read + shifts.long())

    def of_tree(self, spans: Sequence[TreeSpan], words: int) -> list[int]:
        """The actions that build a tree, given by its spans, each before those inside it.

        Where nothing is around all words, the usual brackets are.
        """
        if words and not (spans and spans[0][:2] == (0, words)):
            spans = [TreeSpan(0, words, self.symbols.chains[0]), *spans]
        begun = collections.defaultdict[int, list[TreeSpan]](list)
        for span in spans:
            begun[span.start].append(span)
        actions = list[int]()
        waiting: list[list[int]] = []  # of open brackets: the symbol of the chain, where it ends, and its parts so far
        for place in range(words):
            actions.append(SHIFT)
            for span in begun[place]:
                chain = self.symbols.of(span.chain)
                if span.end == place + 1:
                    actions.append(self._unary + chain - self.symbols.tags)
                else:
                    waiting.append([chain, span.end, 0])
            while waiting:
                chain, end, parts = waiting[-1]
                waiting[-1][2] += 1
                if parts and end > place + 1:
                    rest = self.symbols.rest(self.symbols.chains[chain - self.symbols.tags])
                    actions.append(self._reduce + rest - self.symbols.tags)
                if end > place + 1:
                    break
                actions.append(self._reduce + chain - self.symbols.tags)
                waiting.pop()
        return actions

    def spans(self, actions: Iterable[int]) -> list[TreeSpan]:
        """The spans of the tree that some actions build, each before those inside it."""
        stack: list[int] = []  # where the elements begin
        read, found = 0, list[TreeSpan]()
        for action in actions:
            if action == SHIFT:
                stack.append(read)
                read += 1
            elif action >= self._reduce:
                stack.pop()
            chain = (action - self._unary) % len(self.symbols.chains)
            if action >= self._unary and action < self._reduce + len(self.symbols.chains):
                found.append(TreeSpan(stack[-1], read, self.symbols.chains[chain]))
        return sorted(found, key=lambda span: (span.start, -span.end))
