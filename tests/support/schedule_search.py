"""The least time of any schedule of a small graph within a limit, by brute force.

A schedule computes each op once or more, in any order that has its inputs resident; it
overwrites, in place, what pairs allow. Where bytes lie is left open, so that no plan is
faster. It is found by Dijkstra's search over what was computed and what is resident:
of two that differ only in what is resident, more is as good, since it can be freed
when bytes are needed. So nothing is freed before.
"""

from __future__ import annotations

import heapq
from itertools import count
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.graph import Graph, Op

Tensors = frozenset[int]


def rounded(nbytes: int) -> int:
    return (nbytes + 63) // 64 * 64


class State(NamedTuple):
    """Between two ops; `state` has the tensors in the state's buffers."""

    done: frozenset[int]
    resident: Tensors  # outside of the state
    state: Tensors


def least_time(graph: Graph, limit: int) -> float:
    """Return the least sum of the ops' seconds; infinite if nothing fits."""
    return _Search(graph, limit).run()


class _Search:
    def __init__(self, graph: Graph, limit: int) -> None:
        self.graph = graph
        self.sizes = [rounded(tensor.nbytes) for tensor in graph.tensors]
        made = {t for op in graph.ops for t in op.outputs}
        self.sources = frozenset(range(len(graph.tensors))) - made
        roles = ("parameter", "optimizer_state", "packed")
        self.state = frozenset(
            t for t in self.sources if graph.tensors[t].role in roles
        )
        self.room = limit - self.bytes(self.state)  # for all else
        self.forward = {i for i, op in enumerate(graph.ops) if op.phase == "forward"}
        self.keep = frozenset(graph.keep)
        self.losses = self.keep & frozenset(graph.losses)

    def bytes(self, tensors) -> int:
        return sum(self.sizes[t] for t in tensors)

    def run(self) -> float:
        start = State(frozenset(), self.sources - self.state, self.state)
        if self.bytes(start.resident) > self.room:
            return inf
        number = count()
        queue = [(0.0, 0, start)]
        seen = set()
        while queue:
            time, _, at = heapq.heappop(queue)
            if at in seen:
                continue
            seen.add(at)
            ended = len(at.done) == len(self.graph.ops)
            if ended and self.keep <= at.resident | at.state:
                return time
            for index, op in enumerate(self.graph.ops):
                for after in self.computed(at, index, op):
                    heapq.heappush(queue, (time + op.seconds, next(number), after))
        return inf

    def computed(self, at: State, index: int, op: Op) -> Iterator[State]:
        """Yield what can be after an op."""
        if index in at.done and not (
            op.replayable and self.losses.isdisjoint(op.outputs)
        ):
            return
        if not set(op.inputs) <= at.resident | at.state:
            return
        if op.phase == "update" and not self.forward <= at.done:
            return
        updates = self.updates(at, op)
        if any(self.sizes[o] > self.sizes[i] for i, o in updates.items()):
            return
        if not at.state.isdisjoint(op.outputs):
            return
        held = at.resident - set(op.outputs)  # those are written anew
        state = at.state - set(updates) | set(updates.values())
        outputs = [o for o in op.outputs if o not in updates.values()]
        pairs = [
            (i, o)
            for i, o in op.in_place
            if i in held and o in outputs and self.sizes[o] <= self.sizes[i]
        ]
        for taken in _matchings(pairs):
            own = self.bytes(o for o in outputs if o not in taken.values())
            room = self.room - own - rounded(op.scratch_bytes)
            over = self.bytes(held) - room
            for freed in self.smallest(sorted(held - set(op.inputs)), over):
                rest = held - freed - set(taken) | set(outputs)
                yield State(at.done | {index}, rest, state)

    def updates(self, at: State, op: Op) -> dict[int, int]:
        """By state, the new value that has to take over its buffer."""
        found: dict[int, int] = {}
        for i, o in op.in_place if op.phase == "update" else ():
            if i in at.state and i not in found and o not in found.values():
                found[i] = o
        return found

    def smallest(self, tensors: list[int], over: int) -> Iterator[Tensors]:
        """Yield the sets that have so many bytes, and of which none is needless."""
        if over <= 0:
            yield frozenset()
            return
        for choice in range(1, 2 ** len(tensors)):
            chosen = [t for k, t in enumerate(tensors) if choice >> k & 1]
            total = self.bytes(chosen)
            if total >= over and all(total - self.sizes[t] < over for t in chosen):
                yield frozenset(chosen)


def _matchings(pairs: list[tuple[int, int]]) -> Iterator[dict[int, int]]:
    if not pairs:
        yield {}
        return
    (i, o), *rest = pairs
    yield from _matchings(rest)
    for each in _matchings([p for p in rest if p[0] != i and p[1] != o]):
        yield {i: o, **each}
