"""SuperNeurons: what is cheap is made again, what is dear leaves, or a cache decides.

Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training Deep Neural
Networks", PPoPP 2018, arXiv:1801.04380.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.methods._swapping import Away
from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.search._full_tiers import tier_excess, within_tier
from memcfg.plan.search._policy import Method, fits
from memcfg.plan.search._request import state_updates
from memcfg.plan.search.recompute._chain import Chain, forward_ops, late_ops
from memcfg.plan.search.recompute._replay_elementwise import cheap_ops
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
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request


class Layer(NamedTuple):
    """A layer of the chain that the method is written for."""

    output: int  # bytes
    working: int  # bytes that its backward needs
    checkpoint: bool


class Model(NamedTuple):
    """What the chain's formulas say of a mode."""

    again: int  # layers computed again
    peak: int  # bytes: what a backward needs, or a segment that is there for it


def chain_model(layers: Sequence[Layer], *, segment_bytes: int | None) -> Model:
    """Count what is computed again, and the bytes of the busiest backward.

    Segments up to so many bytes are computed once and kept until they are used, larger
    ones for each layer from the checkpoint on; None: all are computed once.
    """
    again, peak = 0, max((layer.working for layer in layers), default=0)
    for segment in _segments(layers):
        nbytes = sum(layer.output for layer in segment)
        if segment_bytes is None or nbytes <= segment_bytes:
            again += len(segment)
            peak = max(peak, nbytes)
        else:
            again += len(segment) * (len(segment) + 1) // 2
    return Model(again, peak)


def _segments(layers: Sequence[Layer]) -> Iterable[list[Layer]]:
    """List the runs of layers between checkpoints."""
    segment: list[Layer] = []
    for layer in layers:
        if not layer.checkpoint:
            segment.append(layer)
        elif segment:
            yield segment
            segment = []
    if segment:
        yield segment


class Replay:
    """The backward phase of a graph, with what it needs computed again before each."""

    def __init__(self, request: Request) -> None:
        graph = request.graph
        order = forward_ops(graph)
        self.graph = graph
        self.chain = Chain(request, [[op] for op in order])
        self.segment: dict[int, int] = {}
        cheap = cheap_ops(graph).intersection(request.droppable, request.repeatable)
        number = 0
        for op in order:
            number += op not in cheap
            self.segment[op] = number
        self.dropped = {op for op in cheap if not self._crosses(op)}
        self.order = order
        self.checkpoints = {op for op in order if op not in self.dropped}
        self._sums: dict[int, int] = {}  # bytes by segment
        for op in self.dropped:
            nbytes = (graph.aligned_bytes[t] for t in graph.ops[op].outputs)
            segment = self.segment[op]
            self._sums[segment] = self._sums.get(segment, 0) + sum(nbytes)

    def _crosses(self, op: int) -> bool:
        """Return whether a later segment reads an inner output, not the checkpoint."""
        return any(
            self.segment[reader] > self.segment[op] + 1
            or (self.segment[reader] > self.segment[op] and not self._begins(reader))
            for tensor in self.graph.ops[op].outputs
            for reader in self.graph.consumers[tensor]
            if reader in self.segment
        )

    def _begins(self, op: int) -> bool:
        return self.segment.get(op - 1) != self.segment[op]

    def working(self) -> int:
        """Return the most bytes that a backward op reads and makes."""
        sizes = self.graph.aligned_bytes
        state = set(self.graph.persistent)
        return max(
            (
                sum(sizes[t] for t in {*op.inputs, *op.outputs} - state)
                for op in self.graph.ops
                if op.phase == "backward"
            ),
            default=0,
        )

    def sequence(self, segment_bytes: float) -> list[int]:
        """Return the schedule where larger segments are computed for each layer."""
        whole = self._whole(segment_bytes)
        there: set[int] = set()
        result = [*self.order]
        for ops in reversed(self.chain.backward):
            again = self._needed(ops, there)
            result += [*again, *ops]
            there.update(op for op in again if self.segment[op] in whole)
        return self.chain.finished(result)

    def in_order(self, segment_bytes: float) -> list[int]:
        """Return the same with backward ops in the graph's order, not layer by layer.

        A layer's gradients of weights are then made before that of its input, and what
        both read is gone sooner. A large segment is computed for each of these ops.
        """
        whole = self._whole(segment_bytes)
        there: set[int] = set()
        result = [*self.order]
        apart = {*self.order, *late_ops(self.graph)}
        for op in range(len(self.graph.ops)):
            if op not in apart:
                again = self._needed([op], there)
                result += [*again, op]
                there.update(each for each in again if self.segment[each] in whole)
        return self.chain.finished(result)

    def thresholds(self) -> list[int]:
        """List the sizes of segments, and -1, below which all of them are large."""
        return [-1, *sorted({*self._sums.values()})]

    def _whole(self, segment_bytes: float) -> set[int]:
        return {each for each, nbytes in self._sums.items() if nbytes <= segment_bytes}

    def _needed(self, ops: Iterable[int], there: set[int]) -> list[int]:
        """List the dropped ops whose values some ops need, in order."""
        result: set[int] = set()
        stack = [*ops]
        while stack:
            for tensor in self.graph.ops[stack.pop()].inputs:
                maker = self.graph.producer[tensor]
                if maker in self.dropped and maker not in result and maker not in there:
                    result.add(maker)
                    stack.append(maker)
        return sorted(result)


def _speed(request: Request) -> Plan:
    return plan_cheapest(request, [Replay(request).sequence(float("inf"))])


class _Lowest(NamedTuple):
    """A plan of the lowest peak."""

    cost: float  # of what is computed again
    again: int  # computations beyond the first of each op
    plan: Plan


def _lowest(request: Request) -> list[_Lowest]:
    """Make the plans of the lowest peak of all thresholds, and of dropping nothing.

    They are in the order of their thresholds; the plan of `share` is the last.
    """
    replay = Replay(request)
    rows = dict.fromkeys(
        tuple(request.arranged(replay.sequence(each))) for each in replay.thresholds()
    )
    kept = request.ordered(range(len(request.graph.ops)))
    found: dict[tuple[int, ...], _Lowest] = {}
    least = kept.peak_bytes
    measured = [(*request.step.measure(row), row) for row in rows]
    for load, cost, again, row in sorted(measured, key=lambda each: each[0]):
        if load > least:
            break
        found[row] = _Lowest(cost, again, request.scheduled(row))
        least = min(least, found[row].plan.peak_bytes)
    made = [found[row] for row in rows if row in found]
    made.append(_Lowest(0.0, 0, kept))
    return [each for each in made if each.plan.peak_bytes == least]


def _memory(request: Request) -> Plan:
    return _lowest(request)[0].plan


def _cost(request: Request) -> Plan:
    return min(_lowest(request), key=lambda each: each[:2]).plan


_OTHER = "auto(), which takes the best of several methods"


def superneurons_speed() -> Policy:
    """Compute each segment of cheap ops once more and keep it until it is used.

    Returns
    -------
    Policy
        The policy: the speed-centric recomputation of [1]_. Memory is shared as by
        `share`.

    Notes
    -----
    The checkpoints of the paper are convolutions; here they are the ops that
    `replay_elementwise` does not take for cheap. A segment is the cheap ops between
    two of them. What a later segment reads is kept, but for what only the checkpoint
    at its beginning reads. There is one plan for a graph, whatever the limit. The
    paper's offloading is not part of it.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_speed", _speed, _OTHER)


def superneurons_memory() -> Policy:
    """Compute cheap ops again for each backward op, where that lowers the peak.

    Returns
    -------
    Policy
        The policy: the memory-centric recomputation of [1]_, with the checkpoints of
        `superneurons_speed`. There is one plan for a graph, whatever the limit. Its
        peak is no higher than that of `superneurons_speed` or `share`.

    Notes
    -----
    A segment of s layers is computed in s (s + 1) / 2 steps, and nothing of it stays.
    In a chain whose layers write no output over their input, that has the lowest peak.
    Where they do, as ReLUs here, a checkpoint that is kept cannot be overwritten, and
    what is computed again may take more than it frees. So segments up to some size are
    computed once, as for speed, or nothing is dropped, as by `share`, where the peak is
    lower then; of several such sizes the smallest is taken.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_memory", _memory, _OTHER)


def superneurons_cost() -> Policy:
    """Compute small segments once, as for speed, and large ones as for memory.

    Returns
    -------
    Policy
        The policy: the cost-aware recomputation of [1]_, with the checkpoints of
        `superneurons_speed` and the peak of `superneurons_memory`. Of the schedules
        with that peak, by the size up to which a segment is small and where nothing is
        dropped, it is the one that computes the least again.

    Notes
    -----
    In the paper a segment is small if its bytes are no more than the busiest backward
    op needs, which does not raise the peak of a chain without in-place layers.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_cost", _cost, _OTHER)


def offloads(replay: Replay, sequence: Sequence[int]) -> Iterator[Away]:
    """Tell when outputs of checkpoints are away, by places in a schedule.

    One leaves as it is made, and comes back while the backward of a checkpoint runs
    behind which it is read, at the earliest.
    """
    graph, makers = replay.graph, replay.checkpoints
    turn = next(
        (at for at, op in enumerate(sequence) if graph.ops[op].phase == "backward"),
        len(sequence),
    )
    uses: dict[int, list[int]] = {}  # by tensor
    made: dict[int, int] = {}
    for at, index in enumerate(sequence):
        for tensor in graph.ops[index].inputs:
            uses.setdefault(tensor, []).append(at)
        if index in makers and at < turn:
            made.update((tensor, at) for tensor in graph.ops[index].outputs)
    place = {op: at for at, op in enumerate(sequence)}  # of backward ops
    spans = sorted(
        (min(places), max(places))
        for op, row in zip(replay.order, replay.chain.backward, strict=True)
        if op in makers and row
        for places in ([place[each] for each in row],)
    )
    fixed = {*graph.persistent, *graph.keep, *graph.losses}
    for tensor, begin in made.items():
        later = [at for at in uses.get(tensor, ()) if at >= turn]
        if tensor in fixed or not later:
            continue
        last = max((at for at in uses[tensor] if at < turn), default=begin)
        yield Away(tensor, begin + 1, last + 1, _asked(spans, later[0], turn), later[0])


def _asked(spans: Sequence[tuple[int, int]], use: int, turn: int) -> int:
    """Return where the backward begins of the checkpoint behind which a use is."""
    at = bisect_right(spans, (use, use)) - 1
    if at >= 0 and use <= spans[at][1]:  # it is its own backward's
        at -= 1
    return spans[at][0] if at >= 0 else turn


def _plans(request: Request) -> Iterator[Plan]:
    """Make the plans of the ladder: nothing, offloads, and with more computed again."""
    count = len(request.graph.ops)
    yield request.ordered(range(count))
    replay = Replay(request)
    working = replay.working()
    rows: list[Sequence[int]] = [
        range(count),
        replay.in_order(working),
        replay.in_order(-1),
    ]
    for row in rows:
        yield TimedSwaps(request, row, offloads(replay, row)).plan()


def _pool(request: Request) -> Plan:
    """Take the first plan of the ladder that fits, on the device and its tier."""
    lowest: Plan | None = None
    over: Plan | None = None  # fits the device, not the tier
    for plan in _plans(request):
        if fits(plan):
            if not tier_excess(request, plan):
                return plan
            over = over or plan
        if lowest is None or plan.peak_bytes < lowest.peak_bytes:
            lowest = plan
        if request.is_over():
            break
    assert lowest is not None
    return lowest if over is None else within_tier(request, over)


def superneurons() -> Policy:
    """Offload what is dear to make, compute again what is cheap, as a limit asks for.

    The first that fits: nothing leaves; outputs of checkpoints do, as they are made;
    cheap ops between them are computed again besides, small segments once and large
    ones for each layer; all of them for each layer. At the backward of a checkpoint
    comes back what the one before it needs, where the limit leaves room, else when it
    is read.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is moved or computed again.

    Notes
    -----
    The unified tensor pool of [1]_, with its cost-aware and then its memory-centric
    recomputation, in the graph's order: a segment is small if its bytes are no more
    than the busiest backward op needs. Checkpoints are convolutions there; here they
    are the ops that `replay_elementwise` does not take for cheap, and those that
    `superneurons_speed` keeps as several segments read what they make. Bytes
    are free when a copy has ended; ops wait for that where the limit would not hold.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons", _pool, swaps=True)


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
        self.sizes = graph.aligned_bytes
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
        result: dict[int, int] = {}
        for source, output in self.graph.ops[place].in_place:
            if source in self._apart or self._last[source] != place:
                continue
            if source in result or output in result.values():
                continue
            if self.sizes[source] == self.sizes[output]:
                result[source] = output
        return result

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
