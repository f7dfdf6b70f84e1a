"""SuperNeurons: recomputation of cheap ops, offloading of others, and a tensor cache.

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
    """A layer of the paper's chain model."""

    output: int  # bytes
    working: int  # bytes that its backward needs
    checkpoint: bool


class Model(NamedTuple):
    """Recomputation and peak of a mode, by the formulas for chains."""

    again: int  # recomputed layers
    peak: int  # bytes: the busiest backward, or the largest segment that is kept


def chain_model(layers: Sequence[Layer], *, segment_bytes: int | None) -> Model:
    """Return the recomputed layers and the peak of a chain.

    Segments of up to `segment_bytes` (None: all) are recomputed once and kept until
    they are used; larger ones are recomputed from the checkpoint on for each layer.
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
    """Yield the layers between checkpoints."""
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
    """Schedules that recompute the cheap ops of segments in the backward phase."""

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
        """Return whether an op's output must be kept for a later segment.

        That is not so if only the checkpoint of the next segment reads it.
        """
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
        """Return the largest total bytes of a backward op's operands, without state."""
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
        """Return the schedule; larger segments are recomputed for each layer."""
        whole = self._whole(segment_bytes)
        there: set[int] = set()
        result = [*self.order]
        for ops in reversed(self.chain.backward):
            again = self._needed(ops, there)
            result += [*again, *ops]
            there.update(op for op in again if self.segment[op] in whole)
        return self.chain.finished(result)

    def in_order(self, segment_bytes: float) -> list[int]:
        """Return the schedule with backward ops in the graph's order.

        Gradients of a layer's weights are then computed before that of its input, so
        the tensors that both read end earlier. Larger segments are recomputed for each
        backward op instead of each layer.
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
        """Return -1, for which all segments are large, and the sizes of segments."""
        return [-1, *sorted({*self._sums.values()})]

    def _whole(self, segment_bytes: float) -> set[int]:
        return {each for each, nbytes in self._sums.items() if nbytes <= segment_bytes}

    def _needed(self, ops: Iterable[int], there: set[int]) -> list[int]:
        """Return the dropped ops that must be recomputed for some ops, in order."""
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
    """A plan with the lowest peak."""

    cost: float  # time of recomputation
    again: int  # computations beyond the first of each op
    plan: Plan


def _lowest(request: Request) -> list[_Lowest]:
    """Return the plans with the lowest peak, in the order of thresholds.

    The candidates are all thresholds and, last, the plan of `share`.
    """
    replay = Replay(request)
    rows = dict.fromkeys(
        tuple(request.arranged(replay.sequence(each))) for each in replay.thresholds()
    )
    kept = request.ordered(range(len(request.graph.ops)))
    plans: dict[tuple[int, ...], _Lowest] = {}
    least = kept.peak_bytes
    measured = [(*request.step.measure(row), row) for row in rows]
    for load, cost, again, row in sorted(measured, key=lambda each: each[0]):
        if load > least:
            break
        plans[row] = _Lowest(cost, again, request.scheduled(row))
        least = min(least, plans[row].plan.peak_bytes)
    made = [plans[row] for row in rows if row in plans]
    made.append(_Lowest(0.0, 0, kept))
    return [each for each in made if each.plan.peak_bytes == least]


def _memory(request: Request) -> Plan:
    return _lowest(request)[0].plan


def _cost(request: Request) -> Plan:
    return min(_lowest(request), key=lambda each: each[:2]).plan


_OTHER = "auto(), which takes the best of several methods"


def superneurons_speed() -> Policy:
    """Recompute each segment of cheap ops once and keep it until it is used.

    Returns
    -------
    Policy
        The policy: the speed-centric recomputation of [1]_. Memory is shared as by
        `share`.

    Notes
    -----
    The checkpoints of the paper are convolutions; here they are the ops that are not
    cheap by the rule of `replay_elementwise`. A segment is the cheap ops between two
    checkpoints. Tensors that a later segment reads are kept, except those that only the
    checkpoint at its beginning reads. A graph has one plan, whatever the limit. The
    paper's offloading is not included.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_speed", _speed, _OTHER)


def superneurons_memory() -> Policy:
    """Recompute cheap ops for each backward op where that lowers the peak.

    Returns
    -------
    Policy
        The policy: the memory-centric recomputation of [1]_, with the checkpoints of
        `superneurons_speed`. A graph has one plan, whatever the limit. Its peak is not
        higher than that of `superneurons_speed` or `share`.

    Notes
    -----
    A segment of s layers is recomputed in s (s + 1) / 2 steps, and none of it stays.
    That has the lowest peak in a chain without in-place layers. With in-place layers,
    such as ReLUs here, a kept checkpoint cannot be overwritten, and recomputation may
    need more memory than it frees. So if the peak is lower then, segments up to some
    size are recomputed once, as by `superneurons_speed`, or nothing is dropped, as by
    `share`. Of several such sizes the smallest is taken.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_memory", _memory, _OTHER)


def superneurons_cost() -> Policy:
    """Recompute small segments once, for speed, and large ones per layer, for memory.

    Returns
    -------
    Policy
        The policy: the cost-aware recomputation of [1]_, with the checkpoints of
        `superneurons_speed` and the peak of `superneurons_memory`. Candidates differ in
        the size up to which a segment is small; one drops nothing. Of those with that
        peak, the policy takes the one with the least recomputation.

    Notes
    -----
    In the paper, a segment is small if it has at most the bytes that the busiest
    backward op needs, which does not raise the peak of a chain without in-place layers.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_cost", _cost, _OTHER)


def offloads(replay: Replay, sequence: Sequence[int]) -> Iterator[Away]:
    """Yield when outputs of checkpoints are away, by positions in a schedule.

    An output is copied out when it has been computed. It may be copied in from the
    start of the backward of the checkpoint before its use.
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
    """Return where the backward of the checkpoint before a use begins."""
    at = bisect_right(spans, (use, use)) - 1
    if at >= 0 and use <= spans[at][1]:  # the use is in its own backward
        at -= 1
    return spans[at][0] if at >= 0 else turn


def _plans(request: Request) -> Iterator[Plan]:
    """Yield the candidates: no change, offloading, and more and more recomputation."""
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
    """Return the first candidate that fits on the device and its tiers."""
    lowest: Plan | None = None
    over: Plan | None = None  # fits on the device, but not on the tiers
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
    """Offload expensive tensors and recompute cheap ones, as far as a limit requires.

    The policy returns the first plan that fits: without changes; with outputs of
    checkpoints offloaded when they have been computed; with cheap ops between them
    recomputed as well, small segments once and large ones for each layer; and with all
    of these recomputed for each layer. During the backward of a checkpoint, the tensors
    that the checkpoint before it needs are prefetched if the limit has room; otherwise
    they are copied in when they are read.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit nothing is offloaded or recomputed.

    Notes
    -----
    The unified tensor pool of [1]_, with its cost-aware and then its memory-centric
    recomputation, in the graph's order. A segment is small if it has at most the bytes
    that the busiest backward op needs. The checkpoints of the paper are convolutions;
    here they are the ops that are not cheap by the rule of `replay_elementwise`, and
    those that `superneurons_speed` keeps because several segments read their outputs.
    Bytes are free when a copy out has ended; ops wait for it only if the limit would be
    exceeded otherwise.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons", _pool, swaps=True)


# Cache sizes do not depend on the limit, so a larger limit never moves more bytes.
_SIZES = 48  # number of cache sizes whose schedules are compared


class Cache:
    """A step in the graph's order with the device as an LRU cache of tensors.

    An op locks its operands. When bytes are missing, other tensors that will be read
    again are evicted, least recently used first. A tensor is copied out at most once.

    Attributes
    ----------
    moved : int
        Bytes copied out and in.
    load : int
        Peak of the bytes in use.
    """

    def __init__(self, graph: Graph, goal: float) -> None:
        """Run the step; the operands of one op may exceed the goal."""
        self.graph = graph
        self.goal = goal
        self.sizes = graph.aligned_bytes
        self._fixed = {*graph.persistent, *graph.keep, *graph.losses}
        self._apart = {*graph.persistent, *state_updates(graph)}  # in the state's bytes
        self._last = [max(readers, default=-1) for readers in graph.consumers]
        for tensor in graph.keep:
            self._last[tensor] = len(graph.ops)
        self._there: OrderedDict[int, None] = OrderedDict()  # resident, by last use
        self._behind: dict[int, int] = {}  # tensor -> position after its last use
        self._copied: set[int] = set()
        self._away: set[int] = set()
        self._leaves: dict[int, list[Event]] = defaultdict(list)  # by position
        self._rows: list[list[Event]] = []
        self.moved = 0
        self._live = sum(self.sizes[t] for t in graph.persistent)
        self._take(0, [t for t, maker in enumerate(graph.producer) if maker is None])
        self.load = self._live
        self._end([*self._there], -1)
        for place in range(len(graph.ops)):
            self._run(place)

    def events(self) -> list[Event]:
        """Return the events; copies out start after the last use before eviction."""
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
        """Map inputs to the outputs that take over their bytes."""
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
        """Record a use of tensors, and add the bytes of those that become resident."""
        for tensor in tensors:
            if tensor in self._apart:
                continue
            if tensor not in self._there:
                self._live += self.sizes[tensor]
            self._there[tensor] = None
            self._there.move_to_end(tensor)
            self._behind[tensor] = behind

    def _end(self, tensors: Iterable[int], place: int) -> None:
        """Drop tensors without later readers, such as inputs of in-place pairs."""
        for tensor in tensors:
            if tensor in self._there and self._last[tensor] <= place:
                del self._there[tensor]
                self._live -= self.sizes[tensor]


def _plan(request: Request) -> Plan:
    """Return the plan that moves the fewest bytes, over all cache sizes that fit."""
    nothing = request.ordered(range(len(request.graph.ops)))
    limit = request.limit_bytes
    if limit is None or fits(nothing):
        return nothing
    low = Cache(request.graph, 0)
    fitting = sorted(_fitting(request, low), key=lambda each: (each.moved, each.load))
    plan = nothing
    over: Plan | None = None  # fits on the device, but not on the tiers
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
    """Yield simulated caches of increasing size whose load is within the limit."""
    graph, limit = request.graph, request.limit_bytes or 0
    spread = (Cache(graph, float("inf")).load - low.load) / _SIZES
    for number in range(_SIZES):
        if request.is_over():
            return
        cache = Cache(graph, low.load + spread * number)
        if cache.load <= limit:
            yield cache
        if cache.goal > limit:  # larger caches behave the same or exceed the limit
            return


def superneurons_cache() -> Policy:
    """Swap out the least recently used tensors, and only when bytes are missing.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan. Without a limit, or with one above the peak, nothing is moved.

    Notes
    -----
    The tensor cache of [1]_: least recently used tensors are evicted first, except the
    locked operands of the running op. An evicted tensor is copied in when it is read;
    its copy remains on the tier, so it can be evicted again without another copy out.
    Since all steps are alike, the cache is simulated when planning: a copy out starts
    after the tensor's last use before its eviction, and is waited for when the bytes
    are needed. Of several cache sizes, the policy takes the one that moves the fewest
    bytes and whose plan fits.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_cache", _plan, "superneurons()", swaps=True)
