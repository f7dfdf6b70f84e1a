"""Schedules in which tensors are computed again right before they are needed.

What replays read is there, or computed again, too. What they make and is still to be
read stays, which is collective recomputation.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.search._request import state_updates
from memcfg.plan.search.swaps._accesses import START, Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memcfg.plan.search._request import Request

Drop = tuple[int, Entry]  # a tensor, and the last access before it is computed again


class Lineage(NamedTuple):
    """What computing a tensor again takes: ops that must run, and what they read."""

    seconds: float
    ops: frozenset[int]
    sources: frozenset[int]  # tensors that are there

    def beside(self, other: Lineage) -> Lineage:
        """Return what it takes where another runs in any case."""
        seconds = self.seconds - other.seconds
        return Lineage(seconds, self.ops - other.ops, self.sources)


class Replays:
    """Makes schedules of an order of ops, by what is dropped where.

    Parameters
    ----------
    request : Request
        What was asked.
    order : sequence of int
        All ops of its graph, in order.
    """

    def __init__(self, request: Request, order: Sequence[int]) -> None:
        graph = request.graph
        self.graph = graph
        self.order = order
        self._repeatable = request.repeatable
        self.is_over = request.is_over
        place = {op: n for n, op in enumerate(order)}
        self._place = place
        self._updated: dict[int, int] = {
            source: place[graph.producer[output] or 0]
            for output, source in state_updates(graph).items()
        }
        self._last = [  # of the order, that accesses a tensor
            len(order)
            if tensor in graph.keep
            else max(
                (place[op] for op in (*readers, *_maker(graph.producer[tensor]))),
                default=-1,
            )
            for tensor, readers in enumerate(graph.consumers)
        ]
        for tensor in (*graph.persistent, *state_updates(graph)):
            self._last[tensor] = self._updated.get(tensor, len(order))

    def entries(self, drops: Collection[Drop]) -> list[Entry] | None:
        """Return the schedule; None if something cannot be computed again in it.

        None, too, if it is over before. What cannot at an access may have been dropped
        for one before, of a replay that is not there any more.
        """
        result = self._run(drops, {})
        return None if result is None else result[0]

    def lineages(
        self, drops: Collection[Drop], wanted: Mapping[int, Iterable[int]]
    ) -> dict[tuple[int, int], Lineage]:
        """Return what computing tensors again would take, beside what is dropped.

        Parameters
        ----------
        drops : collection of Drop
            What is dropped in the schedule.
        wanted : mapping of int to iterable of int
            Tensors by the place in the order before which they are needed.

        Returns
        -------
        dict of (int, int) to Lineage
            By place and tensor, of those that can be computed again.
        """
        result = self._run(drops, wanted)
        return {} if result is None else result[1]

    def _run(
        self, drops: Collection[Drop], wanted: Mapping[int, Iterable[int]]
    ) -> tuple[list[Entry], dict[tuple[int, int], Lineage]] | None:
        graph, after = self.graph, defaultdict[Entry, list[int]](list)
        for tensor, entry in drops:
            after[entry].append(tensor)
        there = [maker is None for maker in graph.producer]
        for tensor in after[START]:
            there[tensor] = False
        entries: list[Entry] = []
        result: dict[tuple[int, int], Lineage] = {}

        def add(entry: Entry) -> None:
            entries.append(entry)
            for tensor in graph.ops[entry.op].outputs:
                there[tensor] = True
            for tensor in after.get(entry, ()):
                there[tensor] = False

        for place, op in enumerate(self.order):
            if self.is_over():
                return None
            missing = [t for t in graph.ops[op].inputs if not there[t]]
            again = self._lineage(place, missing, there)
            if again is None:
                return None
            rows = (
                ((place, tensor), self._lineage(place, [*missing, tensor], there))
                for tensor in wanted.get(place, ())
            )
            result.update((key, row.beside(again)) for key, row in rows if row)
            for each in sorted(again.ops, key=self._place.__getitem__):
                add(Entry(place, each))
            add(Entry(place, op))
        return entries, result

    def _lineage(
        self, place: int, missing: Iterable[int], there: Sequence[bool]
    ) -> Lineage | None:
        """Return what makes tensors again before a place; None: nothing can."""
        graph, ops, sources = self.graph, set[int](), set[int]()
        stack, seen = [*missing], set(missing)
        while stack:
            maker = graph.producer[stack.pop()]
            if maker in ops:
                continue
            if maker is None or maker not in self._repeatable:
                return None
            ops.add(maker)
            for tensor in graph.ops[maker].inputs:
                if tensor in seen:
                    continue
                seen.add(tensor)
                if there[tensor] and self._last[tensor] >= place:
                    sources.add(tensor)
                else:
                    stack.append(tensor)
        seconds = sum(graph.ops[op].seconds for op in ops)
        return Lineage(seconds, frozenset(ops), frozenset(sources))


def _maker(producer: int | None) -> tuple[int, ...]:
    return () if producer is None else (producer,)
