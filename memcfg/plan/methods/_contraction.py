"""Graphs whose ops are runs of neighbouring ops: the layers of Checkmate's programs."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from memcfg._cached import cached_property
from memcfg.graph import Graph, Op
from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from memcfg.plan.search._request import Request


class Contraction:
    """A request whose graph has at most so many ops, each a run of those of another.

    Runs are neighbours in the graph's order, all in the forward phase or none, and are
    recomputed if all of their ops may be. Where there are too many, the two neighbours
    are joined that have the smallest part of the step's time and of the bytes of its
    tensors together, so that cheap ops belong to what they follow.

    Parameters
    ----------
    request : Request
        The request.
    most : int
        The most ops. There are more where phases alternate.

    Attributes
    ----------
    graph : memcfg.graph.Graph
        The graph of runs. Tensors that one run alone makes and reads are scratch of it.
    members : list of range
        The ops of each run.
    """

    def __init__(self, request: Request, most: int) -> None:
        self._request = request
        self._given = request.graph
        self.members = self._joined(most)
        self.graph = self._contracted()

    def expanded(self, runs: Iterable[int]) -> list[int]:
        """Return the ops of a schedule of runs."""
        return [op for run in runs for op in self.members[run]]

    def stages_of(self, sequence: Sequence[int]) -> set[tuple[int, int]]:
        """Return (stage, run) for each run of which a schedule computes an op again.

        The stage is that of the op which is computed next for the first time.
        """
        of = [run for run, ops in enumerate(self.members) for _ in ops]
        again: set[tuple[int, int]] = set()
        seen: set[int] = set()
        waiting: list[int] = []
        for op in sequence:
            if op in seen:
                waiting.append(op)
                continue
            seen.add(op)
            again.update((of[op], of[each]) for each in waiting if of[each] < of[op])
            waiting.clear()
        end = len(self.members)
        return again | {(end, of[each]) for each in waiting}

    def _joined(self, most: int) -> list[range]:
        """Return the runs: as few as joining the lightest neighbours must make.

        First those are joined that need no more bytes together than one of them does,
        since a run holds its inputs and its outputs at once; and last those of which
        the forward phase then cannot be recomputed.
        """
        runs = [range(index, index + 1) for index in range(len(self._given.ops))]
        weights = self._weights()
        rounds = (
            (self._kind, self._need),
            (self._phase, self._need),
            (self._phase, None),
            (self._is_forward, None),
        )
        for kind, need in rounds:
            kinds = [kind(run.start) for run in runs]
            runs = _joined(runs, weights, most, kinds, need)
        return runs

    def _need(self, run: range) -> int:
        """Return the bytes of what a run reads, makes and needs meanwhile."""
        graph, sizes = self._given, self._given.aligned_bytes
        reads = {
            tensor
            for op in run
            for tensor in graph.ops[op].inputs
            if (maker := graph.producer[tensor]) is not None and maker not in run
        }
        updates = self._updates
        makes = {
            tensor
            for op in run
            for tensor in graph.ops[op].outputs
            if tensor not in updates and self._leaves(tensor, run)
        }
        taken = {source for source, _ in self._pairs(run)}
        held = sum(sizes[tensor] for tensor in (reads - taken) | makes)
        return held + self._scratch(run)

    def _weights(self) -> list[float]:
        """Return the part of the step's time and bytes that each op has."""
        graph = self._given
        nbytes = [sum(graph.aligned_bytes[t] for t in op.outputs) for op in graph.ops]
        seconds = sum(op.seconds for op in graph.ops) or 1.0
        total = sum(nbytes) or 1
        return [
            op.seconds / seconds + made / total
            for op, made in zip(graph.ops, nbytes, strict=True)
        ]

    def _is_forward(self, op: int) -> bool:
        return self._given.ops[op].phase == "forward"

    def _phase(self, op: int) -> tuple[bool, bool]:
        """Tell ops of the forward phase apart by whether they may be recomputed."""
        forward = self._is_forward(op)
        return forward, forward and op in self._request.repeatable

    def _kind(self, op: int) -> tuple[bool, bool]:
        """Tell all ops apart by whether they may be recomputed."""
        return self._is_forward(op), op in self._request.repeatable

    @cached_property
    def _updates(self) -> dict[int, int]:
        return state_updates(self._given)

    def _leaves(self, tensor: int, run: range) -> bool:
        """Return whether what a run makes is kept, read by another run, or unread."""
        graph = self._given
        readers = graph.consumers[tensor]
        unread = not readers or tensor in graph.keep
        return unread or any(reader not in run for reader in readers)

    def _contracted(self) -> Graph:
        given = self._given
        of = [run for run in self.members for _ in run]
        crossing = [
            tensor
            for tensor, maker in enumerate(given.producer)
            if maker is None or self._leaves(tensor, of[maker])
        ]
        ids = {tensor: index for index, tensor in enumerate(crossing)}
        return Graph(
            given.name,
            tuple(given.tensors[tensor] for tensor in crossing),
            tuple(self._op(run, ids) for run in self.members),
            tuple(ids[tensor] for tensor in given.keep),
        )

    def _op(self, run: range, ids: dict[int, int]) -> Op:
        ops = [self._given.ops[index] for index in run]
        reads = dict.fromkeys(t for op in ops for t in op.inputs)
        makes = dict.fromkeys(t for op in ops for t in op.outputs)
        phases = {op.phase for op in ops}
        return Op(
            ops[0].name,
            "run",
            "update" if "update" in phases else ops[0].phase,
            tuple(ids[t] for t in reads if t not in makes),
            tuple(ids[t] for t in makes if t in ids),
            seconds=sum(op.seconds for op in ops),
            scratch_bytes=self._scratch(run),
            replayable=all(index in self._request.repeatable for index in run),
            in_place=tuple((ids[a], ids[b]) for a, b in self._pairs(run)),
        )

    def _successors(self, run: range) -> dict[int, int]:
        """Return which tensors take over the buffers of which others in a run."""
        graph, sizes = self._given, self._given.aligned_bytes
        updates = self._updates
        successors: dict[int, int] = {}
        taken: set[int] = set()
        for index in run:
            for source, output in graph.ops[index].in_place:
                later = any(index < reader for reader in graph.consumers[source])
                legal = source not in graph.keep and sizes[source] == sizes[output]
                legal = (legal and not later) or updates.get(output) == source
                if legal and source not in successors and output not in taken:
                    successors[source] = output
                    taken.add(output)
        return successors

    def _pairs(self, run: range) -> list[tuple[int, int]]:
        """Return which inputs of a run give their buffers to which outputs."""
        graph, successors = self._given, self._successors(run)
        if len(run) == 1:
            return [*graph.ops[run.start].in_place]
        pairs = [
            (source, _end(successors, source))
            for source in successors
            if graph.producer[source] not in run
        ]
        return [(source, end) for source, end in pairs if self._leaves(end, run)]

    def _scratch(self, run: range) -> int:
        """Return the most bytes that a run needs beside its inputs and outputs."""
        graph, sizes = self._given, self._given.aligned_bytes
        if len(run) == 1:
            return graph.ops[run.start].scratch_bytes
        successors = self._successors(run)
        lives: dict[int, tuple[int, int]] = {}  # of buffers, by the last tensor in each
        for op in run:
            for tensor in graph.ops[op].outputs:
                buffer = _end(successors, tensor)
                end = max((r for r in graph.consumers[tensor] if r in run), default=op)
                begin, before = lives.get(buffer, (op, op))
                lives[buffer] = begin, max(before, end)
        inside = {
            buffer: life
            for buffer, life in lives.items()
            if not self._leaves(buffer, run)
        }
        return max(
            graph.aligned_scratch[op]
            + sum(sizes[b] for b, (begin, end) in inside.items() if begin <= op <= end)
            for op in run
        )


def _joined(
    runs: list[range],
    weights: list[float],
    most: int,
    kinds: Sequence[Hashable],
    need: Callable[[range], int] | None,
) -> list[range]:
    """Join neighbours of one kind, the lightest first, until there are so many.

    Weights are by the first op of a run, and change. With `need`, two are joined only
    if they need no more bytes than one of them.
    """
    ends = {run.start: run.stop for run in runs}
    begins = {run.stop: run.start for run in runs}
    kind = dict(zip(ends, kinds, strict=True))
    pairs: list[tuple[float, int, int, int]] = []

    def add(begin: int) -> None:
        middle = ends[begin]
        if middle in ends and kind[begin] == kind[middle]:
            both = weights[begin] + weights[middle]
            heappush(pairs, (both, begin, middle, ends[middle]))

    for begin in ends:
        add(begin)
    while len(ends) > most and pairs:
        both, begin, middle, end = heappop(pairs)
        if ends.get(begin) != middle or ends.get(middle) != end:
            continue  # one of them has been joined since
        if need is not None:
            apart = max(need(range(begin, middle)), need(range(middle, end)))
            if need(range(begin, end)) > apart:
                continue
        ends[begin] = end
        del ends[middle], begins[middle]
        begins[end] = begin
        weights[begin] = both
        add(begin)
        if begin in begins:
            add(begins[begin])
    return [range(begin, ends[begin]) for begin in sorted(ends)]


def _end(successors: dict[int, int], tensor: int) -> int:
    """Return the last tensor in the buffer of one."""
    while tensor in successors:
        tensor = successors[tensor]
    return tensor
