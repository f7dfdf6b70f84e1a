"""Dynamic program over the blocks of a chain, which plans equal blocks only once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg._cached import cached_property
from memcfg._core import search
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import Chain, articulated, merged
from memcfg.plan.search.recompute._recomputation import Candidate, first_fitting
from memcfg.plan.search.recompute._replay_elementwise import known_cheap_ops
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memcfg.graph import Op
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_BLOCKS = 1024  # max. blocks of a chain; neighbors in longer chains are joined
_CANDIDATES = 48  # max. ops of a block that may be dropped
_WAYS = 12  # max. ways to keep a block
_VISITED = 200_000  # ops visited for the ways of one block, if it has more than 4,000
# resnet(1001) has 336 blocks of 12 kinds.
_ALIKE = 4  # min. mean number of blocks per kind in a graph of repeated blocks
_ROUNDS = 8  # max. limits of the program for one limit of the plan
_STEPS = 24  # bisection steps for the smallest limit of the program


class _Way(NamedTuple):
    """A way to keep a block: the positions of ops in it whose outputs are dropped."""

    dropped: frozenset[int]
    kept: int  # bytes from its forward to its backward
    need: int  # peak in bytes of its backward, kept tensors included
    cost: float  # time of recomputation in its backward
    again: float  # time to recompute the kept tensors, in a segment
    again_last: float  # the same if the tensors that cross its end are resident


class _Replays:
    """The ops of a block that its backward recomputes, as more and more are dropped."""

    def __init__(self, blocks: _Blocks, block: int) -> None:
        self._graph, self._seconds = blocks.graph, blocks.seconds
        chain = blocks.chain
        self._droppable = chain.droppable.intersection(chain.stages[block])
        self._held = set(chain.kept(block))
        self._again: set[int] = set()

    def seconds_of(self, op: int) -> float:
        """Return the time that dropping one more op adds."""
        return sum([self._seconds[each] for each in self._needed(op)])

    def add(self, op: int) -> None:
        """Drop an op, whose outputs the backward reads."""
        self._again.update(self._needed(op))
        self._held.difference_update(self._graph.ops[op].outputs)

    def _needed(self, op: int) -> list[int]:
        """Return the ops that run again for an op, itself first, and not without it."""
        if op in self._again:
            return []
        found, seen = [op], {op}
        for each in found:
            for tensor in self._graph.ops[each].inputs:
                maker = self._graph.producer[tensor]
                if maker is None or tensor in self._held or maker in seen:
                    continue
                if maker in self._droppable and maker not in self._again:
                    seen.add(maker)
                    found.append(maker)
        return found


class _Blocks:
    """The blocks of a graph, and its schedules by blocks."""

    def __init__(self, request: Request) -> None:
        graph = request.graph
        self.step = request.step
        self.is_over = request.is_over
        self.graph = graph
        self.chain = Chain(request, _cut(request))
        self.gradients = self.chain.gradients()
        self.bytes = graph.aligned_bytes
        timed = any(op.seconds for op in graph.ops)
        self.seconds = [op.seconds if timed else 1.0 for op in graph.ops]
        self._backward: dict[tuple[int, int], list[int]] = {}
        self._forward: dict[tuple[int, int, bool], list[int]] = {}
        self.kinds: list[int] = []  # by block
        self.first: list[int] = []  # by kind: a block of it
        self._classify()
        self._found: dict[int, Candidate | None] = {}  # by limit of the program
        self._state_bytes = self._sum(graph.persistent)

    @staticmethod
    def of(request: Request) -> _Blocks:
        """Return the blocks of a request, computed once."""
        return request.once(("blocks", request.replayed), lambda: _Blocks(request))

    # -- kinds -------------------------------------------------------------------

    def _classify(self) -> None:
        known: dict[object, int] = {}
        for block in range(len(self.chain.stages)):
            signature = self._signature(block)
            if signature not in known:
                known[signature] = len(known)
                self.first.append(block)
            self.kinds.append(known[signature])

    @cached_property
    def ways(self) -> list[list[_Way]]:
        """The ways to keep a block, by kind."""
        return [self._ways_of(block) for block in self.first]

    def _signature(self, block: int) -> object:
        """Return a key that determines a block's ways with their bytes and costs."""
        graph, chain = self.graph, self.chain
        names: dict[int, int] = {}
        crossing, gradients = set(chain.crossing[block]), self.gradients[block]
        before = set(chain.crossing[block - 1]) if block else set[int]()
        persistent, later = self._persistent, self._wanted_later(block)

        def name(tensor: int) -> tuple[int, int, int]:
            """Return the number, bytes and kind of a tensor, numbered by first use."""
            known = len(names)
            place = names.setdefault(tensor, known)
            if place < known:
                return place, 0, 0
            kind = (
                (tensor in crossing)
                + 2 * (tensor in gradients)
                + 4 * (tensor in before)
                + 8 * (tensor in persistent)
                + 16 * (tensor in later)
            )
            return place, self.bytes[tensor], kind

        rows = []
        for op in (*chain.stages[block], *chain.backward[block]):
            each = graph.ops[op]
            rows.append(
                (
                    each.scratch_bytes,
                    self.seconds[op],
                    op in chain.droppable,
                    tuple(map(name, each.inputs)),
                    tuple(map(name, each.outputs)),
                    tuple([(name(i), name(o)) for i, o in each.in_place]),
                )
            )
        return len(chain.stages[block]), tuple(rows)

    @cached_property
    def _persistent(self) -> frozenset[int]:
        return frozenset(self.graph.persistent)

    def _wanted_later(self, block: int) -> Collection[int]:
        """Return the gradients of this and later blocks that earlier blocks read."""
        return self.gradients[block - 1] if block else ()

    def _ways_of(self, block: int) -> list[_Way]:
        """Return ways to keep a block, by dropping ops in order of cost per byte."""
        chain, graph = self.chain, self.graph
        stage = chain.stages[block]
        kept = set(chain.kept(block))
        fixed = set(chain.crossing[block])
        open_ = [
            place
            for place, op in enumerate(stage)
            if op in chain.droppable
            and fixed.isdisjoint(graph.ops[op].outputs)
            and not kept.isdisjoint(graph.ops[op].outputs)
        ]
        open_.sort(key=lambda place: -self._sum(graph.ops[stage[place]].outputs))
        open_ = open_[: min(_CANDIDATES, max(_WAYS, _VISITED // max(1, len(stage))))]
        replays = _Replays(self, block)
        dropped: frozenset[int] = frozenset()
        ways = [self._way(block, dropped)]
        while open_:
            worth = {
                place: replays.seconds_of(stage[place])
                / max(1, self._sum(graph.ops[stage[place]].outputs))
                for place in open_
            }
            best = min(open_, key=lambda place: (worth[place], place))
            replays.add(stage[best])
            dropped |= {best}
            open_.remove(best)
            ways.append(self._way(block, dropped))
            if self.is_over():
                break
        return _few(ways)

    def _way(self, block: int, dropped: frozenset[int]) -> _Way:
        chain = self.chain
        held = self._held(block, dropped)
        crossing = chain.crossing[block]
        stage = chain.stages[block]
        again = chain.makers(held.union(crossing), stage)
        last = chain.makers(set(held), stage, crossing)
        ops = self._with_replays(block, dropped)
        forward = set(stage)
        return _Way(
            dropped,
            kept=self._sum(held),
            need=self._busiest_backward(block, ops, held),
            cost=sum([self.seconds[op] for op in ops if op in forward]),
            again=sum([self.seconds[op] for op in again]),
            again_last=sum([self.seconds[op] for op in last]),
        )

    def _held(self, block: int, dropped: frozenset[int]) -> set[int]:
        stage = self.chain.stages[block]
        gone = {t for place in dropped for t in self.graph.ops[stage[place]].outputs}
        return {t for t in self.chain.kept(block) if t not in gone}

    def _sum(self, tensors: Iterable[int]) -> int:
        return sum(map(self.bytes.__getitem__, tensors))

    def _with_replays(self, block: int, dropped: frozenset[int]) -> list[int]:
        """Return a block's backward ops, each after the ops recomputed for it."""
        graph, chain = self.graph, self.chain
        if not dropped:
            return [*chain.backward[block]]
        stage = set(chain.stages[block])
        there = self._held(block, dropped)
        result: list[int] = []

        for op in chain.backward[block]:
            stack = [(op, iter(graph.ops[op].inputs))]
            while stack:
                index, inputs = stack[-1]
                for tensor in inputs:
                    maker = graph.producer[tensor]
                    if tensor in there or maker not in stage or maker is None:
                        continue
                    if maker in chain.droppable:
                        there.update(graph.ops[maker].outputs)
                        stack.append((maker, iter(graph.ops[maker].inputs)))
                        break
                else:
                    result.append(index)
                    stack.pop()
        return result

    def _busiest_backward(
        self, block: int, ops: Sequence[int], held: Collection[int]
    ) -> int:
        """Return the peak of a block's tensors and gradients in its backward `ops`."""
        graph = self.graph
        last: dict[int, int] = {}
        for place, index in enumerate(ops):
            for tensor in graph.ops[index].inputs:
                last[tensor] = place
        for tensor in self._wanted_later(block):
            last[tensor] = len(ops)
        live = {t for t in (*held, *self.gradients[block]) if t in last}
        load = self._sum(live)
        most = 0
        for place, index in enumerate(ops):
            op = graph.ops[index]
            saved = self._saved(op, place, last, live) if op.in_place else 0
            for tensor in op.outputs:
                if tensor not in live:
                    live.add(tensor)
                    load += self.bytes[tensor]
            most = max(most, load + graph.aligned_scratch[index] - saved)
            for tensor in (*op.inputs, *op.outputs):
                if last.get(tensor, place) <= place and tensor in live:
                    live.remove(tensor)
                    load -= self.bytes[tensor]
        return most

    def _saved(
        self, op: Op, place: int, last: Mapping[int, int], live: Collection[int]
    ) -> int:
        """Return the bytes of outputs that take over inputs which an op reads last."""
        pairs = {output: source for source, output in op.in_place}
        saved = 0
        for output, source in pairs.items():
            same = self.bytes[source] == self.bytes[output]
            if same and last.get(source) == place and source in live:
                saved += self.bytes[output]
        return saved

    # -- plans -------------------------------------------------------------------

    @cached_property
    def _planner(self) -> search.BlockChain:
        chain = self.chain
        kinds = []
        for kind, ways in enumerate(self.ways):
            block = self.first[kind]
            stage, crossing = chain.stages[block], chain.crossing[block]
            advance = chain.makers(set(crossing), stage)
            kinds.append(
                (
                    [way[1:] for way in ways],
                    self._sum(crossing),
                    chain.busiest(stage, set(chain.kept(block))),
                    chain.busiest(advance, ()),
                    self._sum(self.gradients[block]),
                    sum(self.seconds[op] for op in advance),
                )
            )
        return search.BlockChain(kinds, self.kinds, is_over=self.is_over)

    def _sequence(self, parts: Sequence[tuple[int, int, int, int]]) -> list[int]:
        """Return the schedule of a solution of the program."""
        result = [op for stage in self.chain.stages for op in stage]
        place = len(parts)
        stack = [*_children(parts, 0, place, 0)]
        while stack:  # the last part runs backward first
            at, end = stack.pop()
            depth, begin, _, way = parts[at]
            if way >= 0:
                result += self._back(begin, way)
                continue
            children = [*_children(parts, at + 1, end, depth + 1)]
            for child, _ in children:
                result += self._again(parts[child], child == children[-1][0])
            stack += children
        return self.chain.finished(result)

    def _back(self, block: int, way: int) -> list[int]:
        key = block, way
        if key not in self._backward:
            dropped = self.ways[self.kinds[block]][way].dropped
            self._backward[key] = self._with_replays(block, dropped)
        return self._backward[key]

    def _again(self, part: tuple[int, int, int, int], last: bool) -> list[int]:
        """Return the ops that recompute the kept tensors of a part of a segment."""
        _, begin, length, way = part
        result: list[int] = []
        if way < 0:
            if not last:
                for block in range(begin, begin + length):
                    result += self._made_again(block, -1, last=False)
            return result
        return self._made_again(begin, way, last=last)

    def _made_again(self, block: int, way: int, *, last: bool) -> list[int]:
        key = block, way, last
        if key not in self._forward:
            chain = self.chain
            crossing = chain.crossing[block]
            wanted: set[int] = set()
            if way >= 0:
                wanted |= self._held(block, self.ways[self.kinds[block]][way].dropped)
            there = crossing if last else ()
            if not last:
                wanted.update(crossing)
            self._forward[key] = chain.makers(wanted, chain.stages[block], there)
        return self._forward[key]

    def _plan(self, limit: int) -> Candidate | None:
        """Return the schedule of the program for a limit in the program's bytes."""
        if limit not in self._found:
            parts = self._planner.plan(limit)
            schedule = None
            if parts:
                sequence = self._sequence(parts)
                assert self.step.fault(sequence) is None
                schedule = Candidate.of(self.step, sequence)
            self._found[limit] = schedule
        return self._found[limit]

    def _known(self, goal: int) -> tuple[int, int, int, Candidate | None]:
        """Return what earlier calls tell about a goal.

        The result is a limit within the goal, one above it, the limit between them to
        try next, and the cheapest schedule so far.
        """
        low, high, limit = 0, 2 * goal, max(1, goal - self._state_bytes)
        best: Candidate | None = None
        for known, schedule in sorted(self._found.items()):
            if schedule is not None and schedule.load > goal:
                high = known
                break
            low = known
            if schedule is not None:
                best = min((best or schedule, schedule), key=lambda each: each.cost)
                limit = known + goal - schedule.load
        return low, high, limit if low < limit < high else (low + high) // 2, best

    def find(self, goal: int) -> tuple[int, Sequence[int]] | None:
        """Return the load and ops of the cheapest schedule found within a goal.

        Idea: the program's bytes are nearly exact, so its limit is corrected by the
        measured load (secant step), else bisected. Invariant: the schedule for `low` is
        within the goal, that for `high` exceeds it. Source: Beaumont et al.,
        arXiv:1911.13214, for the program over one chain; sharing between blocks of a
        kind, and the secant step, are memcfg's own.
        """
        low, high, limit, best = self._known(goal)
        step = max(ALIGNMENT, goal // 1000)
        for _ in range(_ROUNDS):
            schedule = self._plan(limit)
            if schedule is not None and schedule.load > goal:
                high = min(high, limit)
                wanted = limit - max(schedule.load - goal, step)
                step *= 2
            else:
                low = max(low, limit)
                wanted = (low + high) // 2
                if schedule is not None:
                    best = min((best or schedule, schedule), key=lambda each: each.cost)
                    wanted = limit + goal - schedule.load
            if not low < wanted < high:
                wanted = (low + high) // 2
            if (
                high - low <= max(ALIGNMENT, goal // 1000)
                or wanted - low <= goal // 4000
            ):
                break
            if self.is_over():
                break
            limit = wanted
        if best is None and self.lowest.load <= goal:
            best = self.lowest
        if best is None:
            return None
        stripped = self.step.within([best.sequence], goal, work=1)
        assert stripped is not None
        return self.step.measure(stripped)[0], stripped

    @cached_property
    def lowest(self) -> Candidate:
        """The schedule of lowest load for limits near the program's smallest."""
        low, high = 0, self._planner.most
        for _ in range(_STEPS):
            middle = (low + high) // 2
            if self._planner.plan(middle):
                high = middle
            else:
                low = middle
            if high - low <= high // 500 or self.is_over():
                break
        limits = [high * (100 + part) // 100 for part in (0, 2, 5, 10, 20)]
        given = list(range(len(self.graph.ops)))
        schedules = (self._plan(limit) for limit in limits if not self.is_over())
        plans = [each for each in schedules if each is not None]
        plans.append(Candidate.of(self.step, given))
        return min(plans, key=lambda each: (each.load, each.cost))


def _cut(request: Request) -> list[list[int]]:
    """Cut the forward phase after stages that are not cheap, where one tensor crosses.

    Cheap ops are in one block with their readers, so their inputs can be kept instead.
    """
    cheap = known_cheap_ops(request)
    stages = articulated(request)
    ends = [
        place
        for place, stage in enumerate(stages[:-1], 1)
        if not cheap.issuperset(op for op in stage if op in request.repeatable)
    ]
    joined = -(-len(ends) // _BLOCKS) or 1
    return merged(stages, ends[joined - 1 :: joined])


def _children(
    parts: Sequence[tuple[int, int, int, int]], begin: int, end: int, depth: int
) -> list[tuple[int, int]]:
    """Return the begin and end of the parts of a depth between two positions."""
    starts = [at for at in range(begin, end) if parts[at][0] == depth]
    return [*zip(starts, [*starts[1:], end], strict=True)]


def _few(ways: Sequence[_Way]) -> list[_Way]:
    """Return at most `_WAYS` of the ways that no other way dominates."""
    best: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.kept, way.cost)):
        if not best or way.cost < best[-1].cost or way.need < best[-1].need:
            best.append(way)
    count = len(best)
    if count <= _WAYS:
        return best
    return [best[i * (count - 1) // (_WAYS - 1)] for i in range(_WAYS)]


def repeats(request: Request) -> bool:
    """Return whether a graph is a chain of repeated blocks."""
    blocks = _Blocks.of(request)
    return len(blocks.kinds) >= _ALIKE * len(blocks.first)


def _repeated_blocks(request: Request) -> Plan:
    given = range(len(request.graph.ops))
    limit = request.limit_bytes
    if limit is not None and request.peak_in_order(given) <= limit:
        return request.ordered(given)
    blocks = _Blocks.of(request)
    if limit is not None:
        result = first_fitting(request, blocks.find)
        if result is not None:
            return request.ordered(result)
    sequences = (given, blocks.lowest.sequence)
    return request.ordered(min(sequences, key=request.peak_in_order))


def repeated_blocks() -> Policy:
    """Plan a chain of blocks by a dynamic program, with equal blocks planned once.

    Returns
    -------
    Policy
        The policy. Without a limit it looks for the lowest peak; with a limit, for the
        least recomputation within it. Memory is shared as by `share`.

    Notes
    -----
    The forward phase is cut where a single tensor crosses. The ops between two cuts
    form a block; blocks are of one kind if their ops, sizes and connections are the
    same. A block is kept whole or without some outputs, dropped in the order of cost
    per byte. Of a segment of several blocks, only the tensors that cross its end are
    kept; the segment runs forward again before its backward and is then planned in the
    same way, so an op may run many times, as in [1]_. A dynamic program over positions
    finds the plan with the least recomputation in a memory model; its limit is adjusted
    by the measured load of the whole step. The ways of a kind, and the plans of
    segments with the same sequence of kinds, are computed once, so a network of a
    thousand layers takes little longer than one of ten. A graph with few cuts has few
    blocks, and its plans are poor.

    References
    ----------
    .. [1] O. Beaumont, L. Eyraud-Dubois, J. Herrmann, A. Joly, A. Shilova, "Optimal
       checkpointing for heterogeneous chains: how to train deep neural networks with
       limited memory", 2019, arXiv:1911.13214.
    """
    return Method("repeated_blocks", _repeated_blocks, "auto(), which takes the best")
