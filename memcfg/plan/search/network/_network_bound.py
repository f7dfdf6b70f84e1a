"""The least time of a step on a link: what collectives cannot hide.

Ops run one after another on the device, and collectives on the network. An op or a
collective can begin after its head, the time that what it needs takes at least, and
behind its end follows its tail. On one machine, the preemptive schedule that always
runs the longest tail is the best (Jackson, 1955; Carlier, "The one-machine sequencing
problem", 1982), so no schedule of both is faster than it is on either.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memcfg.plan.format._collectives import beside_seconds, runs_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.graph import Graph

__all__ = ["network_seconds"]

_FIRST = 8  # some of the first ops of a backward phase may need no others


def network_seconds(graph: Graph) -> float:
    """Return a lower bound of the time of any plan, from ops and collectives.

    Parameters
    ----------
    graph : Graph
        A graph with times.

    Returns
    -------
    float
        Seconds; with collectives, those of ops alone or more.
    """
    count = len(graph.ops)
    beside = [runs_beside(op) for op in graph.ops]
    seconds = [
        beside_seconds(graph, op) if beside[i] else op.seconds
        for i, op in enumerate(graph.ops)
    ]
    before: list[list[int]] = [
        sorted({m for t in op.inputs if (m := graph.producer[t]) is not None})
        for op in graph.ops
    ]
    after: list[list[int]] = [[] for _ in range(count)]
    for index, makers in enumerate(before):
        for maker in makers:
            after[maker].append(index)
    # Of these all that they need is summed: collectives of a chain, in which each needs
    # what the one before it does, and the first ops that compute gradients.
    summed = [
        beside[i] and any(beside[other] for other in (*before[i], *after[i]))
        for i in range(count)
    ]
    backward = [i for i, op in enumerate(graph.ops) if op.phase == "backward"]
    for index in backward[:_FIRST]:
        summed[index] = True
    heads = _heads(range(count), before, seconds, beside, summed)
    tails = _heads(range(count - 1, -1, -1), after, seconds, beside, summed)
    jobs = list(zip(heads, seconds, tails, beside, strict=True))
    return max(
        _one_machine((r, p, q) for r, p, q, on in jobs if on == network)
        for network in (True, False)
    )


def _heads(
    order: Iterable[int],
    before: Sequence[Sequence[int]],
    seconds: Sequence[float],
    beside: Sequence[bool],
    summed: Sequence[bool],
) -> list[float]:
    """Return for each op the least time until it can begin.

    That of a longest path to it, or of all that it needs if it is one of `summed`.
    """
    heads = [0.0] * len(seconds)
    sets: dict[int, _Needed] = {}  # by the last collective of a chain
    for index in order:
        makers = before[index]
        head = max((heads[m] + seconds[m] for m in makers), default=0.0)
        if summed[index]:
            last = next((m for m in makers if m in sets), index)
            needed = sets.pop(last, None) or _Needed()
            if beside[index]:
                sets[index] = needed
            needed.add(makers, before, seconds, beside)
            head = max(head, *needed.seconds)
        heads[index] = head
    return heads


class _Needed:
    """What a collective needs, and its seconds on the device and on the network."""

    def __init__(self) -> None:
        self.seconds = [0.0, 0.0]
        self._seen: set[int] = set()

    def add(
        self,
        indices: Iterable[int],
        before: Sequence[Sequence[int]],
        seconds: Sequence[float],
        beside: Sequence[bool],
    ) -> None:
        """Add ops and all that they need."""
        stack = [*indices]
        while stack:
            index = stack.pop()
            if index not in self._seen:
                self._seen.add(index)
                self.seconds[beside[index]] += seconds[index]
                stack += before[index]


def _one_machine(jobs: Iterable[tuple[float, float, float]]) -> float:
    """Return the end of the best preemptive schedule of (head, seconds, tail)."""
    now = end = 0.0
    waiting: list[tuple[float, float]] = []  # (-tail, seconds left), a heap
    rows = sorted(jobs)
    place = 0
    while place < len(rows) or waiting:
        if not waiting:
            now = max(now, rows[place][0])
        while place < len(rows) and rows[place][0] <= now:
            _, seconds, tail = rows[place]
            heappush(waiting, (-tail, seconds))
            place += 1
        tail, left = heappop(waiting)
        coming = rows[place][0] if place < len(rows) else math.inf
        if now + left > coming:
            heappush(waiting, (tail, now + left - coming))
            now = coming
        else:
            now += left
            end = max(end, now - tail)
    return end
