"""Schedules in which tensors are recomputed right before they are needed.

Inputs of recomputed ops are resident or recomputed as well. Outputs with later readers
stay, which the Capuchin paper calls collective recomputation.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.search._request import state_updates
from memcfg.plan.search.swaps._accesses import START, Entry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memcfg.plan.search._request import Request

Drop = tuple[int, Entry]  # a tensor, and the last access before it is recomputed


class Lineage(NamedTuple):
    """The ops that recompute a tensor, their time, and the tensors they start from."""

    seconds: float
    ops: frozenset[int]
    sources: frozenset[int]  # resident tensors

    def beside(self, other: Lineage) -> Lineage:
        """Return the additional ops and time if another lineage runs in any case."""
        seconds = self.seconds - other.seconds
        return Lineage(seconds, self.ops - other.ops, self.sources)


class Replays:
    """Schedules of an order of ops in which dropped tensors are recomputed.

    Parameters
    ----------
    request : Request
        The request.
    order : sequence of int
        All ops of the graph, in order.
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
        self._last = [  # last position of the order that accesses a tensor
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
        """Return the schedule; None if recomputation is impossible or time is over.

        A tensor that was dropped before a recomputation may become impossible to
        recompute if other drops remove that recomputation.
        """
        result = self._run(drops, {})
        return None if result is None else result[0]

    def lineages(
        self, drops: Collection[Drop], wanted: Mapping[int, Iterable[int]]
    ) -> dict[tuple[int, int], Lineage]:
        """Return what recomputing more tensors would take in a schedule with drops.

        Parameters
        ----------
        drops : collection of Drop
            The tensors that are dropped in the schedule.
        wanted : mapping of int to iterable of int
            Maps a position in the order to the tensors that are needed there.

        Returns
        -------
        dict of (int, int) to Lineage
            Maps position and tensor to the lineage, without tensors that cannot be
            recomputed.
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
        """Return what recomputes tensors before a position; None if impossible."""
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
