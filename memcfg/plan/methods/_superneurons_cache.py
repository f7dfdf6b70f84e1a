"""SuperNeurons' tensor cache: nothing leaves until a tensor has no room.

Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural
Networks", PPoPP 2018, arXiv:1801.04380.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING

from memcfg.plan.search._full_tiers import tier_excess, within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search._request import state_updates
from memcfg.plan.search.swaps._event_times import clock
from memcfg.plan.search.swaps._swap_events import (
    EndSwapOut,
    Event,
    Run,
    StartSwapIn,
    StartSwapOut,
    plan_events,
)
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

# Sizes do not follow the limit, so that no more is moved where there is more memory.
_SIZES = 48  # of caches whose schedules are compared


class Cache:
    """A step in the graph's order, with the device as a cache of its tensors.

    An op locks what it reads and makes. Where bytes are missing, others that are still
    to be read leave, first what was used longest ago. What was copied out once is
    not copied out again.

    Attributes
    ----------
    moved : int
        Bytes copied out and in.
    load : int
        The most bytes in use.
    """

    def __init__(self, graph: Graph, goal: float) -> None:
        """Run the step; the operands of one op may exceed the goal."""
        self.graph = graph
        self.goal = goal
        self.sizes = [align_up(tensor.nbytes) for tensor in graph.tensors]
        self._fixed = {*graph.persistent, *graph.keep, *graph.losses}
        self._apart = {*graph.persistent, *state_updates(graph)}  # the state's bytes
        self._last = [max(readers, default=-1) for readers in graph.consumers]
        for tensor in graph.keep:
            self._last[tensor] = len(graph.ops)
        self._there: OrderedDict[int, None] = OrderedDict()  # by last use
        self._behind: dict[int, int] = {}  # the place behind that
        self._copied: set[int] = set()
        self._away: set[int] = set()
        self._leaves: dict[int, list[Event]] = defaultdict(list)  # by place
        self._rows: list[list[Event]] = []
        self.moved = 0
        self._live = sum(self.sizes[t] for t in graph.persistent)
        self._take(0, [t for t, maker in enumerate(graph.producer) if maker is None])
        self.load = self._live
        self._end([*self._there], -1)
        for place in range(len(graph.ops)):
            self._run(place)

    def events(self) -> list[Event]:
        """List what happens; copies out start behind the last use of what leaves."""
        return [
            event
            for place, row in enumerate(self._rows)
            for event in (*self._leaves[place], *row)
        ]

    def _run(self, place: int) -> None:
        op, sizes = self.graph.ops[place], self.sizes
        row: list[Event] = []
        fetched = [t for t in dict.fromkeys(op.inputs) if t in self._away]
        taken = self._taken(place)
        made = [t for t in op.outputs if t not in taken.values()]
        scratch = align_up(op.scratch_bytes)
        needed = sum(sizes[t] for t in (*fetched, *made) if t not in self._apart)
        self._make_room(needed + scratch, {*op.inputs, *op.outputs}, row)
        for tensor in fetched:
            self._away.remove(tensor)
            self.moved += sizes[tensor]
            row.append(StartSwapIn(tensor))
        self._rows.append([*row, Run(place)])
        self.load = max(self.load, self._live + needed + scratch)
        self._take(place + 1, (*op.inputs, *op.outputs))
        self._end(dict.fromkeys((*op.inputs, *op.outputs)), place)

    def _taken(self, place: int) -> dict[int, int]:
        """Return the inputs whose bytes outputs take over, and these outputs."""
        found: dict[int, int] = {}
        for source, output in self.graph.ops[place].in_place:
            if source in self._apart or self._last[source] != place:
                continue
            if source in found or output in found.values():
                continue
            if self.sizes[source] == self.sizes[output]:
                found[source] = output
        return found

    def _make_room(self, needed: int, locked: set[int], row: list[Event]) -> None:
        if self._live + needed <= self.goal:
            return
        for tensor in [*self._there]:
            if tensor in locked or tensor in self._fixed or not self.sizes[tensor]:
                continue
            del self._there[tensor]
            self._away.add(tensor)
            self._live -= self.sizes[tensor]
            if tensor not in self._copied:
                self._copied.add(tensor)
                self.moved += self.sizes[tensor]
                self._leaves[self._behind[tensor]].append(StartSwapOut(tensor))
                row.append(EndSwapOut(tensor))
            if self._live + needed <= self.goal:
                return

    def _take(self, behind: int, tensors: Iterable[int]) -> None:
        """Note a use of tensors, and the bytes of those that are new or come back."""
        for tensor in tensors:
            if tensor in self._apart:
                continue
            if tensor not in self._there:
                self._live += self.sizes[tensor]
            self._there[tensor] = None
            self._there.move_to_end(tensor)
            self._behind[tensor] = behind

    def _end(self, tensors: Iterable[int], place: int) -> None:
        """Strike what is not read any more; what is taken over was counted twice."""
        for tensor in tensors:
            if tensor in self._there and self._last[tensor] <= place:
                del self._there[tensor]
                self._live -= self.sizes[tensor]


def _plan(request: Request) -> Plan:
    """Take the schedule that moves least of all cache sizes whose plan fits.

    The sizes do not depend on the limit, so that more of it never moves more.
    """
    nothing = request.ordered(range(len(request.graph.ops)))
    limit = request.limit_bytes
    if limit is None or fits(nothing):
        return nothing
    low = Cache(request.graph, 0)
    fitting = sorted(_fitting(request, low), key=lambda each: (each.moved, each.load))
    plan = nothing
    over: Plan | None = None  # fits the device, not the tier
    for number, each in enumerate((*fitting, low)):
        if number and each is not low and request.is_over():
            continue
        events = each.events()
        if request.is_slow(clock(request.graph, events).elapsed_seconds):
            continue
        plan = plan_events(request, events)
        if fits(plan):
            if not tier_excess(request, plan):
                return plan
            over = over or plan
    return plan if over is None else within_tier(request, over)


def _fitting(request: Request, low: Cache) -> Iterator[Cache]:
    """Run caches from the lowest up that are within the limit."""
    graph, limit = request.graph, request.limit_bytes or 0
    spread = (Cache(graph, float("inf")).load - low.load) / _SIZES
    for number in range(_SIZES):
        if request.is_over():
            return
        cache = Cache(graph, low.load + spread * number)
        if cache.load <= limit:
            yield cache
        if cache.goal > limit:  # larger ones do the same, or have more in use
            return


def superneurons_cache() -> Policy:
    """Swap out what was used longest ago, and only when a tensor has no room.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit, or with one above the peak, nothing is moved.

    Notes
    -----
    The tensor cache of [1]_: least recently used first, but what the running op reads
    and makes, which is locked. What came back has its copy outside and leaves without
    another one. It comes back when it is read. As each step is the same, the cache is
    run when it is planned: a copy out starts behind the last use of what will leave,
    and is waited for when its bytes are needed. Of caches of several sizes the one
    that moves least is taken, whose plan is within the limit once placed.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_cache", _plan, "superneurons()", swaps=True)
