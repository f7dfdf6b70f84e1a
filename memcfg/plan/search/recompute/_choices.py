"""Choice of the forward ops to recompute: proposals and their improvement.

A choice has one byte per op and is scored by its peak of bytes in use, which the peak
after placement rarely exceeds; the policy checks that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from memcfg._cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.plan.search._request import Request

_BUDGETS = 24  # budgets per kind of segments
_STARTS = 4  # number of choices that are improved
_WORK = 3_000_000  # ops visited by one improvement; a score visits all ops
_STRIP = 12_000_000  # ops visited by trying one by one; more are tried in groups
_REMEMBERED = 32_000_000  # max. bytes of choices whose scores are remembered


@dataclass(frozen=True)
class Choice:
    """A set of dropped (recomputed) ops with its score."""

    load: int
    cost: float
    replayed: int
    dropped: bytes


by_load = attrgetter("load", "cost", "replayed")  # memory, then work
by_cost = attrgetter("cost", "replayed", "load")  # work, then memory


class Search:
    """Search over the choices of one graph; returns the best so far once it is over.

    Idea: many proposals (segments of even and of uneven size, the least cost per byte),
    the best of which are improved one op at a time. Invariant: an op is computed at
    most twice. Source: Chen et al., arXiv:1604.06174, for even segments and the rule of
    cost per byte; the minimax over segmentations is memcfg's own.
    """

    def __init__(self, request: Request) -> None:
        self.is_over = request.is_over
        self.graph = request.graph
        self.step = request.step
        self._scores: dict[bytes, Choice] = {}
        self.droppable = request.droppable
        self.nothing = self.score(bytes(len(self.graph.ops)))

    @staticmethod
    def of(request: Request) -> Search:
        """Return the search of a request, shared with other methods."""
        return request.once(
            ("choices", request.replayed, request.in_place), lambda: Search(request)
        )

    def sequence(self, choice: Choice) -> Sequence[int]:
        """Return the schedule of a choice."""
        return self.step.sequence(choice.dropped)

    def score(self, dropped: bytes) -> Choice:
        """Score a choice, without the ops that cannot be dropped."""
        known = self._scores.get(dropped)
        if known is None:
            known = Choice(*self.step.score(dropped))
            if len(self._scores) * len(dropped) < _REMEMBERED:
                self._scores[dropped] = known
        return known

    # -- proposals -------------------------------------------------------------

    @cached_property
    def seeds(self) -> list[Choice]:
        """The scored proposals of all kinds."""
        unique = {}
        for dropped in chain(self._uneven(), self._even(), self._cheap()):
            if self.is_over():
                break
            choice = self.score(dropped)
            unique[choice.dropped] = choice
        unique[self.nothing.dropped] = self.nothing
        return list(unique.values())

    def cheapest_within(self, limit: int) -> Choice | None:
        """Return the cheapest proposal within a limit, or None; it is not improved.

        Once the search is over, it is the first one.
        """
        best: Choice | None = None
        for dropped in chain(self._cheap(), self._even(), self._uneven()):
            choice = self.score(dropped)
            if choice.load <= limit and (
                best is None or by_cost(choice) < by_cost(best)
            ):
                best = choice
            if best is not None and self.is_over():
                break
        return best

    def _uneven(self) -> Iterator[bytes]:
        """Yield segments of uneven size that keep the fewest bytes under a budget."""
        low, high = 0, self.nothing.load  # no budget of `high` needs a cut
        while high - low > max(1, high // 1000):
            middle = (low + high) // 2
            if self.step.uneven_segments(middle) is None:
                low = middle
            else:
                high = middle
        for budget in _between(high, self.nothing.load):
            choice = self.step.uneven_segments(budget)
            if choice is not None:
                yield choice

    def _even(self) -> Iterator[bytes]:
        """Yield the segments of Algorithm 3 of Chen et al. 2016 for several budgets."""
        outputs = [
            sum(map(self.graph.aligned_bytes.__getitem__, op.outputs))
            for op in self.graph.ops
            if op.phase == "forward"
        ]
        total = sum(outputs)
        for budget in _between(max(1, total // (len(outputs) + 1)), total):
            yield self.step.budget_segments(budget)

    def _cheap(self) -> Iterator[bytes]:
        """Yield the ops of least cost per byte (mirror rule of Chen et al. 2016)."""
        ordered = sorted(self.droppable, key=lambda op: (self._density(op), op))
        for k in range(1, _BUDGETS + 1):
            dropped = bytearray(self.nothing.dropped)
            for op in ordered[: len(ordered) * k // _BUDGETS]:
                dropped[op] = 1
            yield bytes(dropped)

    def _density(self, index: int) -> float:
        """Return the seconds per byte of an op's outputs; infinity without bytes."""
        op = self.graph.ops[index]
        nbytes = sum([self.graph.tensors[t].nbytes for t in op.outputs])
        return op.seconds / nbytes if nbytes else float("inf")

    def _with(self, choice: Choice, ops: Iterable[int], value: int) -> Choice:
        """Score a choice with another value for some ops."""
        dropped = bytearray(choice.dropped)
        for op in ops:
            dropped[op] = value
        return self.score(bytes(dropped))

    # -- improvement -----------------------------------------------------------

    def least_load(self) -> Choice:
        """Return the choice with the lowest load that the search finds."""
        return self._least

    @cached_property
    def _least(self) -> Choice:
        starts = sorted(self.seeds, key=by_load)[:_STARTS]
        improved = [self._flip(start) for start in starts]
        best = min(improved, key=by_load)
        return self.least_cost_from(best, best.load)

    def least_cost(self, limit: int, also: Choice) -> Choice:
        """Return the cheapest choice found within a limit; `also` must be within it."""
        starts = [choice for choice in self.seeds if choice.load <= limit]
        starts = [also, *sorted(starts, key=by_cost)[:_STARTS]]
        result = [self.least_cost_from(start, limit) for start in starts]
        return min(result, key=by_cost)

    def least_cost_from(self, start: Choice, limit: int) -> Choice:
        """Stop dropping ops, the most expensive first, as far as the limit allows.

        In a large graph, that is tried for all of them, then for halves of what does
        not do, and ends with a number of tries.
        """
        best = start
        left = _STRIP // max(1, len(self.graph.ops))
        for key in (self._cost, self._density):
            chosen = [op for op in self.droppable if start.dropped[op]]
            chosen.sort(key=lambda op: (-key(op), op))
            singly = len(chosen) <= left
            groups = [[op] for op in chosen] if singly else [chosen]
            current = self._kept(start, groups, limit, max(left, len(groups)))
            best = min(best, current, key=by_cost)
        return best

    def _kept(
        self, start: Choice, groups: list[list[int]], limit: int, tries: int
    ) -> Choice:
        """Stop dropping groups of ops, or halves of them, with a number of tries."""
        current = start
        groups.reverse()
        while groups and tries and not self.is_over():
            tries -= 1
            group = groups.pop()
            trial = self._with(current, group, 0)
            if trial.load <= limit and by_cost(trial) < by_cost(current):
                current = trial
            elif len(group) > 1:
                middle = len(group) // 2
                groups += [group[middle:], group[:middle]]
        return current

    def _cost(self, index: int) -> float:
        return self.graph.ops[index].seconds

    def _flip(self, start: Choice) -> Choice:
        """Flip one op at a time for a lower load, until no flip helps."""
        current = start
        left = _WORK // max(1, len(self.graph.ops))
        stride = max(1, -(-len(self.droppable) // max(1, left)))
        tried = self.droppable[::stride]
        while left >= len(tried) > 0:
            before = current
            for op in tried:
                if self.is_over():
                    return current
                trial = self._with(current, [op], 1 - current.dropped[op])
                current = min(current, trial, key=by_load)
            left -= len(tried)
            if current is before:
                break
        return current


def _between(low: int, high: int) -> list[int]:
    """Return up to `_BUDGETS` budgets in geometric steps, both ends included."""
    low = max(low, 1)
    ratio = (max(high, low) / low) ** (1 / (_BUDGETS - 1))
    return sorted({round(low * ratio**k) for k in range(_BUDGETS)} | {low})
