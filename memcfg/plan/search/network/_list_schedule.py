"""Orders of ops in which compute waits little for collectives.

Ops run one after another on the device, and collectives beside them on the network,
first in, first out. This is a list schedule of two machines (Graham, "Bounds on
multiprocessing timing anomalies", 1969): whenever the device is free, it runs the first
op of the given order whose operands are there. A collective is started as soon as its
operands are, unless it is too far ahead of the ops, as its results take memory.
"""

from __future__ import annotations

from collections import defaultdict, deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.format._clock import Clock
from memcfg.plan.format._collectives import beside_seconds, runs_beside
from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.graph import Graph

__all__ = ["Event", "ListSchedule", "Order"]


class Event(NamedTuple):
    """An op that runs or is started, or a collective whose results are there."""

    op: int
    is_landing: bool = False


class Order(NamedTuple):
    """An order of events, and the seconds that it takes."""

    seconds: float
    events: tuple[Event, ...]


class ListSchedule:
    """A sequence of ops, which may occur more than once, and what each needs.

    A step of the sequence is its index there. A step of no op stands between the
    forward ops and the updates, which it separates.

    Parameters
    ----------
    graph : Graph
        The graph.
    sequence : sequence of int
        Ops in an order in which they can run.
    """

    def __init__(self, graph: Graph, sequence: Sequence[int]) -> None:
        phases = [graph.ops[op].phase for op in sequence]
        first = phases.index("update") if "update" in phases else len(phases)
        self.sequence = [*sequence]
        self._graph = graph
        self._steps = [*sequence[:first], None, *sequence[first:]]
        self._barrier = first
        self.collectives = [
            step
            for step, op in enumerate(self._steps)
            if op is not None and runs_beside(graph.ops[op])
        ]
        self._number = {step: n for n, step in enumerate(self.collectives)}
        self._needs = [sorted(each) for each in self._find_needs()]
        self._followers: list[list[int]] = [[] for _ in self._steps]
        for step, needs in enumerate(self._needs):
            for need in needs:
                self._followers[need].append(step)
        self._leads = [False] * len(self._steps)  # whether a collective needs a step
        for step in reversed(range(len(self._steps))):
            if step in self._number or self._leads[step]:
                for need in self._needs[step]:
                    self._leads[need] = True

    def _find_needs(self) -> Iterator[set[int]]:
        """Yield the steps that must precede each.

        These are makers of operands, and readers of what is overwritten or made again.
        """
        graph, updates = self._graph, state_updates(self._graph)
        made: dict[int, int] = {}
        read: defaultdict[int, list[int]] = defaultdict(list)
        forward: dict[int, int] = {}  # op -> step
        for step, index in enumerate(self._steps):
            if index is None:
                yield {*forward.values()}
                continue
            op = graph.ops[index]
            own = {made[tensor] for tensor in op.inputs if tensor in made}
            for output in op.outputs:
                if output in updates:
                    own.update(read[updates[output]])
                if output in made:
                    own.update((made[output], *read.pop(output, ())))
                made[output] = step
            if op.phase == "update":
                own.add(self._barrier)
            elif op.phase == "forward":
                forward.setdefault(index, step)
            for tensor in op.inputs:
                read[tensor].append(step)
            yield own

    def in_graph_order(self, behind: int = 0) -> list[int]:
        """Return the ops in the order of the graph, as far as they can run in it.

        What is computed again comes before its first reader.

        Parameters
        ----------
        behind : int
            So many ops of the sequence come first, in its order.

        Returns
        -------
        list of int
            The same ops.
        """
        keys = [-1 if index is None else index for index in self._steps]
        first: dict[int | None, int] = {}
        for step, index in enumerate(self._steps):
            first.setdefault(index, step)
        for step in reversed(range(len(keys))):
            if first[self._steps[step]] < step and self._followers[step]:
                keys[step] = min(keys[each] for each in self._followers[step])
        keys[:behind] = range(-behind, 0)
        missing = [len(needs) for needs in self._needs]
        ready = [(keys[step], step) for step, n in enumerate(missing) if not n]
        heapify(ready)
        result = []
        while ready:
            _, step = heappop(ready)
            index = self._steps[step]
            if index is not None:
                result.append(index)
            for follower in self._followers[step]:
                missing[follower] -= 1
                if not missing[follower]:
                    heappush(ready, (keys[follower], follower))
        return result

    def order(self, ahead: int, *, fills: bool, keeps: bool = False) -> Order:
        """Return the list schedule.

        Parameters
        ----------
        ahead : int
            How far collectives may run ahead of ops: each waits for the ops that come
            before the collective so many places before it.
        fills : bool
            Whether updates that no collective needs run only where no other op can.
        keeps : bool, default False
            Whether collectives keep their order.

        Returns
        -------
        Order
            The order. With more ahead it takes more memory, and mostly less time.
        """
        return _Run(self, ahead, fills=fills, keeps=keeps).order()


class _Run:
    """One list schedule under way."""

    def __init__(
        self, schedule: ListSchedule, ahead: int, *, fills: bool, keeps: bool
    ) -> None:
        self._of = schedule
        self._ahead = ahead
        self._fills = fills
        self._keeps = keeps
        self._missing = [len(needs) for needs in schedule._needs]
        # Heaps of steps whose needs are done; the first also says which fill gaps.
        self._ready: list[tuple[bool, int]] = []
        self._startable: list[int] = []
        self._flights: deque[tuple[float, int]] = deque()  # end, step
        self._clock = Clock()
        self._events: list[Event] = []
        # The first op that is not done, without those that fill gaps.
        self._front = 0
        self._done = [
            step in schedule._number or self._is_filler(step)
            for step in range(len(self._missing))
        ]
        self._started = 0  # collectives
        for step, count in enumerate(self._missing):
            if not count:
                self._offer(step)

    def order(self) -> Order:
        clock = self._clock
        self._pass_done()
        while True:
            while self._flights and self._flights[0][0] <= clock.now:
                self._land()
            self._start_all()
            if self._ready:
                self._run(heappop(self._ready)[1])
            elif self._flights:
                clock.wait(self._flights[0][0])
            else:
                break
        return Order(clock.elapsed_seconds, tuple(self._events))

    def _offer(self, step: int) -> None:
        """Note that all that a step needs is done."""
        if step in self._of._number:
            heappush(self._startable, step)
        else:
            heappush(self._ready, (self._is_filler(step), step))

    def _is_filler(self, step: int) -> bool:
        index = self._of._steps[step]
        if not self._fills or index is None or self._of._leads[step]:
            return False
        return self._of._graph.ops[index].phase == "update"

    def _satisfy(self, step: int, *, starts: bool | None = None) -> None:
        """Count a step as done for those that need it: collectives, ops, or both."""
        for follower in self._of._followers[step]:
            if starts is None or starts == (follower in self._of._number):
                self._missing[follower] -= 1
                if not self._missing[follower]:
                    self._offer(follower)

    def _run(self, step: int) -> None:
        index = self._of._steps[step]
        if index is not None:
            self._clock.run(self._of._graph.ops[index].seconds)
            self._events.append(Event(index))
        self._done[step] = True
        self._pass_done()
        self._satisfy(step)

    def _pass_done(self) -> None:
        """Move the front to the first op that is not done."""
        while self._front < len(self._done) and self._done[self._front]:
            self._front += 1

    def _start_all(self) -> None:
        """Start the collectives that may; those behind them may read their results."""
        while self._startable and self._may_start(self._startable[0]):
            step = heappop(self._startable)
            index = self._of._steps[step]
            assert index is not None
            graph = self._of._graph
            _, end = self._clock.start(beside_seconds(graph, graph.ops[index]))
            self._flights.append((end, step))
            self._events.append(Event(index))
            self._started += 1
            self._satisfy(step, starts=True)

    def _may_start(self, step: int) -> bool:
        number = self._of._number[step]
        if self._keeps and number != self._started:
            return False
        before = number - self._ahead
        return before < 0 or self._front > self._of.collectives[before]

    def _land(self) -> None:
        _, step = self._flights.popleft()
        index = self._of._steps[step]
        assert index is not None
        self._events.append(Event(index, is_landing=True))
        self._satisfy(step, starts=False)
