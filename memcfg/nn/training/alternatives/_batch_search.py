"""The largest batch of a program that fits, by planning and without running it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from memcfg.errors import KernelError
from memcfg.plan import share
from memcfg.plan.search._auto import first_of, rough_floor
from memcfg.plan.search._watch import planning_clock
from memcfg.runtime import NO_PLAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.graph import Graph
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import Executor

__all__ = ["BatchSearch"]

_TRACED = 2  # graphs that are kept: a batch is often asked about twice in turn
_GUESSES = 8  # interpolated, before the interval is halved


def _directly(find: Callable[[], int]) -> int | None:
    return find()


@dataclass
class BatchSearch:
    """Search for the largest batch with a plan.

    Idea: the least memory of a step is nearly a linear function of the batch size. The
    line goes through the bytes of the state, at size 0, and through each refused batch,
    whose error says how many bytes are missing. Invariant: `low` fits and `high` does
    not, so the result fits and one sample more does not.
    """

    executor: Executor
    policy: Policy
    graph_of: Callable[[int], Graph]  # by the batch
    promised: int = 0
    limit_bytes: int | None = None  # of an otherwise empty device; None: as it is now
    end: float = math.inf  # on `planning_clock`
    needs_one: bool = True  # whether it goes on until a batch fits, however long
    # Calls a function; None if that failed, which counts as no plan.
    attempt: Callable[[Callable[[], int]], int | None] = _directly
    shortfalls: dict[int, int] = field(default_factory=dict)  # by the batch
    _graphs: dict[int, Graph] = field(default_factory=dict)  # the last ones, by batch

    def has_time(self) -> bool:
        """Return whether there is time for one more plan."""
        return planning_clock() < self.end

    def shortfall(self, batch: int) -> int:
        """Return how many bytes a batch exceeds the budget by; 0 if it fits."""
        if batch not in self.shortfalls:
            found = self.attempt(partial(self._planned_shortfall, batch))
            self.shortfalls[batch] = NO_PLAN if found is None else found
        return self.shortfalls[batch]

    def _graph(self, batch: int) -> Graph:
        """Trace a batch, unless it is one of the last."""
        if batch not in self._graphs:
            while len(self._graphs) >= _TRACED:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[batch] = self.graph_of(batch)
        return self._graphs[batch]

    def _planned_shortfall(self, batch: int) -> int:
        try:
            return self.executor.shortfall(
                self._graph(batch),
                first_of(self.policy),
                self.promised,
                self.limit_bytes,
            )
        except KernelError:  # more rows than a kernel takes
            if batch == 1:
                raise
            return NO_PLAN

    def bound_excess(self, batch: int) -> float:
        """Return by how many bytes the lower bound of a batch exceeds the budget."""
        try:
            graph = self._graph(batch)
            return self.executor.bound_excess(graph, self.promised, self.limit_bytes)
        except KernelError:  # more rows than a kernel takes
            if batch == 1:
                raise
            return math.inf

    def has_plain_plan(self, batch: int) -> bool:
        """Return whether a batch fits without computing any op twice."""
        graph = self._graph(batch)
        given = self.promised, self.limit_bytes
        return not self.executor.shortfall(graph, share(), *given)

    def plan(self, batch: int) -> Plan:
        """Plan a batch that fits."""
        graph = self._graph(batch)
        return self.executor.plan(
            graph, self.policy, self.limit_bytes, promised=self.promised
        )

    def above(self, low: int = 1) -> int | None:
        """Return a batch that no policy can fit, near the least; None if there is none.

        Idea: the bound is nearly a line over the batch, and each step finds where it
        exceeds the budget. Invariant: the bound permits `low`.
        """
        excess = self.bound_excess(low)
        high, beyond = 2 * low, self.bound_excess(2 * low)
        while beyond <= 0:
            if high > 1 << 40:
                return None
            rise = (beyond - excess) / (high - low)
            low, excess = high, beyond
            steps = -excess / rise if rise > 0 and math.isfinite(rise) else low
            high += max(1, math.ceil(1.02 * min(steps, 64 * low)))
            beyond = self.bound_excess(high)
        return high

    def largest(
        self, high: int, low: int = 0, guess: int | None = None
    ) -> tuple[int, bool]:
        """Return the largest batch from `low`, which fits or is 0, to below `high`.

        The guess is tried first. The second value is False if time ran out: a larger
        batch may fit, too.
        """
        tries = 0
        guess = self.guess(high) if guess is None else guess
        while high - low > 1:
            if (low or not self.needs_one) and not self.has_time():
                return low, False
            tries += 1
            middle = guess if tries <= _GUESSES else (low + high) // 2
            middle = min(max(middle, low + 1), high - 1)
            if self.shortfall(middle):
                high, guess = middle, self.guess(middle)
            else:
                low, guess = middle, max(middle + 1, guess)
        return low, True

    def largest_plain(self, high: int) -> int:
        """Return the largest batch below `high` that fits with each op once, or 0."""
        low = 0
        while high - low > max(low // 16, 1) and self.has_time():
            middle = (low + high) // 2
            if self.has_plain_plan(middle):
                low = middle
            else:
                high = middle
        return low

    def rough_guess(self, high: int) -> int | None:
        """Estimate what fits from what a larger batch needs, without planning it."""
        try:
            graph = self.executor.annotate(self._graph(high))
        except KernelError:  # more rows than a kernel takes
            return None
        needed = rough_floor(self.policy, graph)
        left = self.executor.budget_bytes(self.promised, self.limit_bytes) or 0
        if needed is None or needed <= left:
            return None
        return self._on_line(high, needed - left)

    def guess(self, batch: int) -> int:
        """Estimate what fits from the shortfalls of larger batches."""
        missing = self.shortfalls.get(batch)
        if missing is None:  # it fits, which says nothing about larger ones
            return batch - 1
        if missing >= NO_PLAN:
            return batch // 2
        larger = [
            (other - batch, more - missing)
            for other, more in self.shortfalls.items()
            if other > batch and missing < more < NO_PLAN
        ]
        if larger:  # the line through the nearest two refusals
            samples, nbytes = min(larger)
            return batch - -(-missing * samples // nbytes)
        return self._on_line(batch, missing)

    def _on_line(self, batch: int, missing: int) -> int:
        """Estimate what fits by the line through the bytes of the state, at 0."""
        graph = self._graph(batch)
        state = sum(graph.tensors[i].nbytes for i in graph.persistent)
        left = self.executor.budget_bytes(self.promised, self.limit_bytes) or 0
        needed = left + missing
        if needed <= state:
            return batch // 2
        return batch * max(left - state, 0) // (needed - state)
