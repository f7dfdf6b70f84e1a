"""SuperNeurons: what is cheap is computed again, a segment at a time or a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.plan._candidates import plan_cheapest
from memcfg.plan._chain import Chain, forward_ops, late_ops
from memcfg.plan._policy import Method
from memcfg.plan._replay_elementwise import cheap_ops
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.plan._lifetimes import Request
    from memcfg.plan._plan import Plan
    from memcfg.plan._policy import Policy


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

    def _whole(self, segment_bytes: float) -> set[int]:
        sums: dict[int, int] = {}
        for op in self.dropped:
            nbytes = (
                align_up(self.graph.tensors[t].nbytes)
                for t in self.graph.ops[op].outputs
            )
            sums[self.segment[op]] = sums.get(self.segment[op], 0) + sum(nbytes)
        return {each for each, nbytes in sums.items() if nbytes <= segment_bytes}

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


def _memory(request: Request) -> Plan:
    return plan_cheapest(request, [Replay(request).sequence(-1)])


def _cost(request: Request) -> Plan:
    replay = Replay(request)
    return plan_cheapest(request, [replay.sequence(replay.working())])


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
    """Compute cheap ops again for each backward op, from the checkpoint on.

    Returns
    -------
    Policy
        The policy: the memory-centric recomputation of [1]_, with the checkpoints of
        `superneurons_speed`. A segment of s layers is computed in s (s + 1) / 2 steps,
        and nothing of it stays.

    Notes
    -----
    Without offloading, the outputs of all checkpoints are there when the backward phase
    begins. So the peak is below that of `superneurons_speed` only where a segment at
    the peak is larger than what a backward op needs, as in a chain of products with six
    element-wise ops behind one. AlexNet, VGG-16 and ResNet-50 have none here, where
    ReLUs work in place and batch normalisation is one op with its ReLU.

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
        `superneurons_speed`. A segment is small if its bytes are no more than the
        busiest backward op needs, so that it does not raise the peak of a chain.

    References
    ----------
    .. [1] L. Wang et al., "SuperNeurons: Dynamic GPU Memory Management for Training
       Deep Neural Networks", PPoPP 2018, arXiv:1801.04380.
    """
    return Method("superneurons_cost", _cost, _OTHER)
