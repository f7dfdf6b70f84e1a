"""SuperNeurons: what is cheap is computed again, a segment at a time or a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan.methods._candidates import plan_cheapest
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import Chain, forward_ops, late_ops
from memcfg.plan.search.recompute._replay_elementwise import cheap_ops
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
            nbytes = (align_up(graph.tensors[t].nbytes) for t in graph.ops[op].outputs)
            segment = self.segment[op]
            self._sums[segment] = self._sums.get(segment, 0) + sum(nbytes)

    def _crosses(self, op: int) -> bool:
        """Whether a later segment reads an output inside it, not at its checkpoint."""
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
        sizes = [align_up(tensor.nbytes) for tensor in self.graph.tensors]
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
        found = [*self.order]
        for ops in reversed(self.chain.backward):
            again = self._needed(ops, there)
            found += [*again, *ops]
            there.update(op for op in again if self.segment[op] in whole)
        return self.chain.finished(found)

    def in_order(self, segment_bytes: float) -> list[int]:
        """Return the same with backward ops in the graph's order, not layer by layer.

        A layer's gradients of weights are then made before that of its input, and what
        both read is gone sooner. A large segment is computed for each of these ops.
        """
        whole = self._whole(segment_bytes)
        there: set[int] = set()
        found = [*self.order]
        apart = {*self.order, *late_ops(self.graph)}
        for op in range(len(self.graph.ops)):
            if op not in apart:
                again = self._needed([op], there)
                found += [*again, op]
                there.update(each for each in again if self.segment[each] in whole)
        return self.chain.finished(found)

    def thresholds(self) -> list[int]:
        """List the sizes of segments, and -1, below which all of them are large."""
        return [-1, *sorted({*self._sums.values()})]

    def _whole(self, segment_bytes: float) -> set[int]:
        return {each for each, nbytes in self._sums.items() if nbytes <= segment_bytes}

    def _needed(self, ops: Iterable[int], there: set[int]) -> list[int]:
        """List the dropped ops whose values some ops need, in order."""
        found: set[int] = set()
        stack = [*ops]
        while stack:
            for tensor in self.graph.ops[stack.pop()].inputs:
                maker = self.graph.producer[tensor]
                if maker in self.dropped and maker not in found and maker not in there:
                    found.add(maker)
                    stack.append(maker)
        return sorted(found)


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
