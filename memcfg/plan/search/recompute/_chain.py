"""A training graph as a chain of stages, and its schedules as sequences of ops.

Published methods plan chains: a sequence of layers, each with its backward layer. Here
a stage is any part of the forward phase between two cuts of its order, and a checkpoint
is the set of tensors that cross a cut, so the methods apply to any graph.

See docs/decisions/0022-published-methods-plan-any-graph.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.search._request import Request


class Do(IntEnum):
    """The kind of a move, for one stage."""

    ADVANCE = 0  # forward; keep only the tensors that cross its end
    COMPUTE = 1  # forward; also keep what its backward reads
    BACKWARD = 2


Move = tuple[Do, int]
# COMPUTE right before BACKWARD; _HELD if the tensors that cross its end are resident
_RERUN, _HELD = 3, 4


class Chain:
    """The forward phase in stages, with the backward ops of each stage.

    Parameters
    ----------
    request : Request
        The request.
    stages : iterable of sequence of int
        The forward ops of each stage, as returned by `cuts`.

    Attributes
    ----------
    stages : list of tuple of int
        The forward ops of each stage.
    droppable : frozenset of int
        The ops that may be recomputed.
    crossing : list of tuple of int
        For each stage, the tensors that it or an earlier stage computes and a later one
        reads in the forward phase, without those that no plan may drop.
    backward : list of tuple of int
        For each stage, the ops that run after the backward of all later stages. A
        tensor that crosses stages is resident until the backward of its last reading
        stage, so backward ops that read only such tensors belong to that stage. An op
        without computed inputs belongs to the stage of its first reader.
    """

    def __init__(self, request: Request, stages: Iterable[Sequence[int]]) -> None:
        graph = request.graph
        self.graph = graph
        self.stages = [tuple(stage) for stage in stages if stage] or [()]
        self._number = {op: s for s, ops in enumerate(self.stages) for op in ops}
        self._last = self._last_readers()
        droppable = request.repeatable.intersection(request.droppable)
        self.droppable = droppable.difference(self._crossing_copies())
        self._late = late_ops(graph)
        self._overwritten = state_updates(graph)
        self.crossing = self._cuts()
        self.backward = self._backward()
        self._read = [
            {t for op in ops for t in graph.ops[op].inputs} for ops in self.backward
        ]
        self._again: dict[tuple[int, int], list[int]] = {}

    def _last_readers(self) -> dict[int, int]:
        """For each tensor, the last stage that computes or reads it."""
        last: dict[int, int] = {}
        for stage, ops in enumerate(self.stages):
            for op in ops:
                for tensor in (*self.graph.ops[op].inputs, *self.graph.ops[op].outputs):
                    last[tensor] = stage
        return last

    def _crossing_copies(self) -> set[int]:
        """Return the ops that copy state for several stages, which no segment drops."""
        last, made = self._last, self._number
        return {
            op
            for op in copies_of_state(self.graph)
            if op in made
            and max(map(last.__getitem__, self.graph.ops[op].outputs)) > made[op]
        }

    def _cuts(self) -> list[tuple[int, ...]]:
        crossing: list[tuple[int, ...]] = []
        open_: list[int] = []
        for stage, ops in enumerate(self.stages):
            made = [t for op in ops for t in self.graph.ops[op].outputs]
            dropped = [t for t in made if self.graph.producer[t] in self.droppable]
            open_ = [t for t in (*open_, *dropped) if self._last[t] > stage]
            crossing.append(tuple(open_))
        return crossing

    def _backward(self) -> list[tuple[int, ...]]:
        label: dict[int, int] = {}
        for index, op in enumerate(self.graph.ops):
            if index in self._number or index in self._late:
                continue
            stage = len(self.stages) - 1
            for tensor in op.inputs:
                maker = self.graph.producer[tensor]
                if maker in label:
                    stage = min(stage, label[maker])
                elif maker is not None:
                    stage = min(stage, self._last[tensor])
            label[index] = stage
        for index in reversed(label):
            op = self.graph.ops[index]
            if {*map(self.graph.producer.__getitem__, op.inputs)} <= {None}:
                readers = {r for t in op.outputs for r in self.graph.consumers[t]}
                labels = [label[reader] for reader in readers if reader in label]
                label[index] = max(labels, default=label[index])
        rows: list[list[int]] = [[] for _ in self.stages]
        for index, stage in label.items():
            rows[stage].append(index)
        return [tuple(row) for row in rows]

    def sequence(self, moves: Iterable[Move]) -> list[int]:
        """Return the ops of a schedule, with updates as early as possible.

        Parameters
        ----------
        moves : iterable of Move
            Pairs of a `Do` and a stage. A stage first runs forward after all earlier
            stages, and runs backward once.

        Returns
        -------
        list of int
            The ops.
        """
        ran = [False] * len(self.stages)
        result: list[int] = []
        listed = [*moves]
        for place, (do, stage) in enumerate(listed):
            if do is Do.BACKWARD:
                result += self.backward[stage]
            elif not ran[stage]:
                result += self.stages[stage]
                ran[stage] = True
            else:
                kind = int(do)
                if do is Do.COMPUTE and listed[place + 1] == (Do.BACKWARD, stage):
                    held = listed[place - 1] == (Do.BACKWARD, stage + 1)
                    kind = _HELD if held else _RERUN
                result += self._forward_again(kind, stage)
        return self.finished(result)

    def _forward_again(self, kind: int, stage: int) -> list[int]:
        if (kind, stage) not in self._again:
            wanted: set[int] = set()
            if kind != Do.ADVANCE:
                wanted |= self._read[stage]
            if kind in (Do.ADVANCE, Do.COMPUTE):
                wanted |= {*self.crossing[stage]}
            if kind == _HELD:
                wanted -= {*self.crossing[stage]}
            there = self.crossing[stage] if kind == _HELD else ()
            again = self.makers(wanted, self.stages[stage], there)
            self._again[kind, stage] = again
        return self._again[kind, stage]

    def kept(self, stage: int) -> list[int]:
        """Return the tensors of a stage that its backward or a later stage reads.

        Parameters
        ----------
        stage : int
            A stage.

        Returns
        -------
        list of int
            Tensors that the stage computes.
        """
        wanted = self._read[stage].union(self.crossing[stage])
        made = [t for op in self.stages[stage] for t in self.graph.ops[op].outputs]
        return [tensor for tensor in made if tensor in wanted]

    def read(self, stage: int) -> Collection[int]:
        """Return the tensors that the backward of a stage reads.

        Parameters
        ----------
        stage : int
            A stage.

        Returns
        -------
        collection of int
            Tensors.
        """
        return self._read[stage]

    def gradients(self) -> list[set[int]]:
        """Return, for each stage, the later gradients that it or earlier ones read."""
        number = {op: s for s, ops in enumerate(self.backward) for op in ops}
        rows: list[set[int]] = [set() for _ in self.stages]
        for op, made in number.items():
            for tensor in self.graph.ops[op].outputs:
                readers = self.graph.consumers[tensor]
                first = min((number[r] for r in readers if r in number), default=made)
                for stage in range(first, made):
                    rows[stage].add(tensor)
        return rows

    def busiest(self, ops: Sequence[int], apart: Collection[int]) -> int:
        """Return the peak of live outputs and scratch while ops run.

        Parameters
        ----------
        ops : sequence of int
            The ops, in order.
        apart : collection of int
            Tensors that do not count.

        Returns
        -------
        int
            The peak in bytes.
        """
        graph = self.graph
        last: dict[int, int] = {}
        for place, index in enumerate(ops):
            for tensor in (*graph.ops[index].inputs, *graph.ops[index].outputs):
                last[tensor] = place
        live = set[int]()
        load = most = 0
        for place, index in enumerate(ops):
            op = graph.ops[index]
            for tensor in op.outputs:
                if tensor not in apart and tensor not in live:
                    live.add(tensor)
                    load += graph.aligned_bytes[tensor]
            most = max(most, load + graph.aligned_scratch[index])
            for tensor in (*op.inputs, *op.outputs):
                if last[tensor] == place and tensor in live:
                    live.remove(tensor)
                    load -= graph.aligned_bytes[tensor]
        return most

    def makers(
        self, wanted: set[int], ops: Sequence[int], there: Collection[int] = ()
    ) -> list[int]:
        """Return the subset of ops that is needed to recompute tensors.

        Parameters
        ----------
        wanted : set of int
            The tensors to recompute.
        ops : sequence of int
            The ops to choose from, in order.
        there : collection of int, optional
            Resident tensors, which need not be recomputed as inputs.

        Returns
        -------
        list of int
            The needed ops, in order.
        """
        held = set(there)
        needed = set(wanted)
        result = []
        for index in reversed(ops):
            op = self.graph.ops[index]
            if index in self.droppable and not needed.isdisjoint(op.outputs):
                result.append(index)
                needed.update(op.inputs if not held else {*op.inputs} - held)
        return result[::-1]

    def finished(self, sequence: Sequence[int]) -> list[int]:
        """Remove computations that are not read, and insert the updates.

        Parameters
        ----------
        sequence : sequence of int
            Ops without updates; an op may occur more than once.

        Returns
        -------
        list of int
            The schedule.
        """
        return self._with_late_ops(self._without_unread(sequence))

    def _without_unread(self, sequence: Sequence[int]) -> list[int]:
        """Remove computations that are not read before the next one of the same op."""
        ops = self.graph.ops
        left: dict[int, int] = {}
        for index in sequence:
            left[index] = left.get(index, 0) + 1
        read = {*self.graph.keep}
        for index in self._late:
            read.update(ops[index].inputs)
        kept = []
        for index in reversed(sequence):
            op = ops[index]
            unread = read.isdisjoint(op.outputs)
            if unread and left[index] > 1 and index in self.droppable:
                left[index] -= 1
                continue
            read.difference_update(op.outputs)
            read.update(op.inputs)
            kept.append(index)
        return kept[::-1]

    def _with_late_ops(self, sequence: Sequence[int]) -> list[int]:
        """Insert each update after its inputs and other readers of the state.

        No update comes before the end of the forward phase.
        """
        graph = self.graph
        first: dict[int, int] = {}
        last: dict[int, int] = {}  # tensor -> position after its last reader
        for place, index in enumerate(sequence, 1):
            first.setdefault(index, place)
            for tensor in graph.ops[index].inputs:
                last[tensor] = place
        forward = [op for op in first if graph.ops[op].phase == "forward"]
        start = max((first[op] for op in forward), default=0)
        taken, made = self._overwritten, graph.producer
        rows: dict[int, list[int]] = {}
        for index in sorted(self._late):
            op = graph.ops[index]
            place = start
            for maker in map(made.__getitem__, op.inputs):
                if maker is not None:
                    place = max(place, first[maker])
            for tensor in op.outputs:
                if tensor in taken:
                    place = max(place, last.get(taken[tensor], 0))
            first[index] = place
            for tensor in op.inputs:
                last[tensor] = max(last.get(tensor, 0), place)
            rows.setdefault(place, []).append(index)
        result = [*rows.get(0, ())]
        for place, index in enumerate(sequence, 1):
            result += [index, *rows.get(place, ())]
        return result


def late_ops(graph: Graph) -> set[int]:
    """Return the updates and the ops that depend on them."""
    late: set[int] = set()
    made: set[int] = set()  # outputs of late ops
    for index, op in enumerate(graph.ops):
        if op.phase == "update" or not made.isdisjoint(op.inputs):
            late.add(index)
            made.update(op.outputs)
    return late


def forward_ops(graph: Graph) -> list[int]:
    """Return the forward ops that depend only on forward ops."""
    head: set[int] = set()
    for index, op in enumerate(graph.ops):
        makers = {*map(graph.producer.__getitem__, op.inputs)} - {None}
        if op.phase == "forward" and makers <= head:
            head.add(index)
    return sorted(head)


def articulated(request: Request) -> list[list[int]]:
    """Cut the forward phase after each articulation point, where one tensor crosses.

    Tensors computed without inputs, such as a state of zeros, do not count, and neither
    do copies of state, such as gathered weights, which are in the stage of their first
    reader.
    """
    graph = request.graph
    order = forward_ops(graph)
    if not order:
        return []
    copies = copies_of_state(graph)
    fine = Chain(request, [[op] for op in order])
    stages: list[list[int]] = [[]]
    for op, crossing in zip(order, fine.crossing, strict=True):
        stages[-1].append(op)
        made = [t for t in crossing if _has_inputs(graph, t)]
        if len(made) == 1 and op not in copies:
            stages.append([])
    return [stage for stage in stages if stage]


def copies_of_state(graph: Graph) -> set[int]:
    """Return the forward ops that read state, and else nothing that has inputs."""
    state = set(graph.persistent)
    return {
        index
        for index, op in enumerate(graph.ops)
        if op.phase == "forward"
        and not state.isdisjoint(op.inputs)
        and not any(t not in state and _has_inputs(graph, t) for t in op.inputs)
        and all(graph.producer[t] is not None or t in state for t in op.inputs)
    }


def _has_inputs(graph: Graph, tensor: int) -> bool:
    maker = graph.producer[tensor]
    return maker is not None and bool(graph.ops[maker].inputs)


def cuts(request: Request) -> list[list[list[int]]]:
    """Cut the forward phase at its articulation points, and after each op.

    Parameters
    ----------
    request : Request
        The request.

    Returns
    -------
    list of list of list of int
        For each of the two divisions, the forward ops of each stage. Only one division
        if both are the same.
    """
    ways = [articulated(request), [[op] for op in forward_ops(request.graph)]]
    return ways if ways[0] != ways[1] else ways[1:]


def even_segments(count: int, parts: int) -> list[int]:
    """Divide a chain into equal parts.

    Parameters
    ----------
    count : int
        The number of stages.
    parts : int
        The number of parts, at least 1.

    Returns
    -------
    list of int
        The first stage of each part except the first part.
    """
    return [count * part // parts for part in range(1, parts)]


def merged(stages: Sequence[Sequence[int]], ends: Iterable[int]) -> list[list[int]]:
    """Join neighboring stages to parts; `ends` has the first stage of later parts."""
    parts: list[list[int]] = []
    begin = 0
    for end in (*ends, len(stages)):
        parts.append([op for stage in stages[begin:end] for op in stage])
        begin = end
    return [part for part in parts if part]


def segment_moves(count: int) -> list[Move]:
    """Return the moves that keep checkpoints and recompute each stage but the last."""
    moves: list[Move] = [(Do.ADVANCE, stage) for stage in range(count - 1)]
    for stage in reversed(range(count)):
        moves += [(Do.COMPUTE, stage), (Do.BACKWARD, stage)]
    return moves
