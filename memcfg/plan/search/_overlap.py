"""Collectives that run beside compute, in plans that were made without that.

A collective is started where a plan computes it, and waited for before the first action
that needs its results or its bytes. An op that needs a result may run later, behind
collectives that do not need it, so that these run meanwhile.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memcfg.plan.format._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan.format._clock import Clock, cost_of
from memcfg.plan.format._collectives import (
    any_beside,
    beside_seconds,
    is_collective,
    runs_beside,
)
from memcfg.plan.search._full_tiers import in_own_numbers
from memcfg.plan.search._policy import fits
from memcfg.plan.search._request import Request, state_updates
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.graph import Graph
    from memcfg.plan.format._plan import Plan

_ROUNDING = 1e-9  # relative rounding error of a sum of seconds


def overlap_collectives(graph: Graph, plan: Plan) -> Plan:
    """Let the collectives of a plan run beside compute, where that is faster.

    Parameters
    ----------
    graph : Graph
        The graph of the plan.
    plan : Plan
        A plan that computes its collectives between other ops.

    Returns
    -------
    Plan
        The fastest plan within the plan's limit, by the simulated clock and the graph's
        link, of: the given plan; the same placements, with collectives that are started
        and waited for as late as possible; and two plans in which ops that read the
        result of a collective run later, behind one more collective or behind all that
        do not need them. The given plan itself if the graph has no collectives, or the
        plan starts some already.

    Raises
    ------
    GraphError
        If the graph cannot be planned; see `Policy`.
    PlanError
        If the plan does not fit the graph.
    """
    request = Request.of(graph, plan.method, plan.limit_bytes)
    priced = request.plan(in_own_numbers(request, plan).actions)
    made = overlapped(request, plan, priced)
    return plan if made is priced else made


def overlapped(request: Request, plan: Plan, priced: Plan | None = None) -> Plan:
    """Return the fastest plan of `overlap_collectives` for a request.

    `priced` is the plan with the seconds of the request's graph, if `plan` has others.
    """
    if not any_beside(request.graph) or any(
        isinstance(action, Start) for action in plan.actions
    ):
        return plan
    own = in_own_numbers(request, plan)
    best = _better(priced or plan, _with_starts(request, plan, own.actions))
    limit = math.inf if request.limit_bytes is None else request.limit_bytes
    for sequence in _later(request, own.actions):
        if request.is_over():
            break
        if _least_seconds(request.graph, sequence) >= best.elapsed_seconds:
            continue
        if request.step.fault(sequence):
            continue
        if request.step.measure(sequence)[0] > limit:
            break  # those that follow wait longer, and hold more
        actions = request.written(sequence)
        best = _better(best, _with_starts(request, plan, actions))
    return best


def started(request: Request, plan: Plan) -> Plan:
    """Return a plan with collectives started in the same order, if that is faster."""
    if not any_beside(request.graph):
        return plan
    own = in_own_numbers(request, plan)
    return _better(plan, _with_starts(request, plan, own.actions))


def _better(best: Plan, other: Plan) -> Plan:
    """Return the other plan if it fits and is faster."""
    faster = other.elapsed_seconds < best.elapsed_seconds * (1 - _ROUNDING)
    return other if fits(other) and faster else best


def _with_starts(request: Request, plan: Plan, actions: Sequence[Action]) -> Plan:
    """Return the plan of these actions with started collectives, summed up as `plan`.

    Actions have op indices of the request.
    """
    starter = _Starter(request.graph, plan.alignment, places=plan.places)
    made = request.of_method(plan.method).plan(starter.run(actions))
    if made.summary is not None and plan.summary is not None:
        old = plan.summary
        summary = replace(
            made.summary,
            chosen_by=old.chosen_by,
            less_scratch=old.less_scratch,
            algorithms=old.algorithms,
            unproven=old.unproven,
        )
        made = replace(made, summary=summary)
    return replace(made, lossy=plan.lossy)


# -- waits --------------------------------------------------------------------------


@dataclass
class _Flight:
    """A collective that was started, and what it touches."""

    op: int
    touched: set[int]  # tensors that are read or written
    written: set[int]
    spans: list[tuple[int, int]]  # [begin, end) in the arena


@dataclass
class _Starter:
    """Starts the collectives of a plan, and waits for them as late as possible.

    Frees of what a collective touches move behind its wait. They change no placement,
    so that the first action that uses freed bytes again is what has to wait. Without
    places, frees stay and are waited for.
    """

    graph: Graph
    alignment: int
    places: bool
    result: list[Action] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._sizes = [align_up(t.nbytes, self.alignment) for t in self.graph.tensors]
        self._flights: dict[int, _Flight] = {}  # by index of the start
        # The same by tensor, as plans may start hundreds:
        self._touching: defaultdict[int, set[int]] = defaultdict(set)
        self._writing: dict[int, int] = {}
        self._spans: list[tuple[int, int, int]] = []  # begin, end, index of the start
        self._offsets: dict[int, int] = {}  # of tensors with a buffer
        self._aliases: dict[int, int] = {}  # output -> input, until the compute
        self._taken: set[int] = set()  # inputs whose buffers were taken over
        self._held: list[int] = []  # tensors that are freed at a wait
        self._last_work = -1  # index of the last action that takes time

    def run(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions with starts and waits."""
        upcoming = _next_ops(actions)
        numbers: list[int] = []  # by given index
        for index, action in enumerate(actions):
            self._wait(self._needed(action, upcoming[index]))
            numbers.append(len(self.result))
            match action:
                case Wait(target):
                    self.result.append(Wait(numbers[target]))
                case Free(tensor) if self._is_held(tensor):
                    self._held.append(tensor)
                case Compute(op) if runs_beside(self.graph.ops[op]):
                    self._start(action)
                case _:
                    self._append(action)
        self._wait(list(self._flights))
        return self.result

    def _needed(self, action: Action, upcoming: int) -> list[int]:
        """Return the starts that have to be waited for before an action."""
        graph = self.graph
        match action:
            case Alloc(tensor, offset):
                return self._using([tensor], offset, self._sizes[tensor])
            case Decode(tensor, offset):
                return self._using([tensor], offset, self._sizes[tensor])
            case Encode(tensor, _, nbytes, offset):
                size = align_up(nbytes, self.alignment)
                return self._using([tensor], offset, size)
            case SwapOut(tensor) | SwapIn(tensor):
                return self._using([tensor])
            case Alias(_, source) if not runs_beside(graph.ops[upcoming]):
                return self._using([source])
            case Free(tensor) if tensor in self._held:
                return self._using([tensor])  # what follows ends its encoding
            case Free(tensor) if not self.places and tensor not in self._taken:
                return self._using([tensor])
            case Compute():
                return self._needed_by_op(action)
        return []

    def _needed_by_op(self, action: Compute) -> list[int]:
        """Return the starts that have to be waited for before an op."""
        op = self.graph.ops[action.op]
        scratch = cost_of(op, action.algorithm)[1]
        needed = set(self._using([], action.scratch_offset, scratch))
        if not runs_beside(op):
            needed.update(self._writing[t] for t in op.inputs if t in self._writing)
        if op.phase == "update":
            ops = self.graph.ops
            for start, flight in self._flights.items():
                if ops[flight.op].phase == "forward":
                    needed.add(start)
        return sorted(needed)

    def _using(
        self, tensors: Iterable[int], offset: int | None = None, size: int = 0
    ) -> list[int]:
        """Return the starts that touch one of some tensors, or these bytes."""
        found: set[int] = set()
        for tensor in tensors:
            found |= self._touching.get(tensor, found)
        if offset is not None and self.places and size > 0:
            end = offset + size
            found |= {start for a, b, start in self._spans if offset < b and a < end}
        return sorted(found)

    def _is_held(self, tensor: int) -> bool:
        """Return whether the bytes of a tensor are freed at a wait."""
        return (
            tensor in self._offsets
            and tensor not in self._taken
            and bool(self._using([tensor]))
        )

    def _start(self, action: Compute) -> None:
        op = self.graph.ops[action.op]
        taken = {*self._aliases.values()}
        self._append(Start(action.op, action.algorithm, action.scratch_offset))
        for tensor in taken:  # its bytes are the outputs' now
            for start in self._touching.pop(tensor, ()):
                self._flights[start].touched.discard(tensor)
                self._flights[start].written.discard(tensor)
            self._writing.pop(tensor, None)
        read = {tensor for tensor in op.inputs if tensor not in taken}
        tensors = read.union(op.outputs)
        spans = [
            (self._offsets[tensor], self._offsets[tensor] + self._sizes[tensor])
            for tensor in tensors
        ]
        if action.scratch_offset is not None:
            _, nbytes = cost_of(op, action.algorithm)
            size = align_up(nbytes, self.alignment)
            spans.append((action.scratch_offset, action.scratch_offset + size))
        start = len(self.result) - 1
        self._flights[start] = _Flight(action.op, tensors, {*op.outputs}, spans)
        for tensor in tensors:
            self._touching[tensor].add(start)
        self._writing |= dict.fromkeys(op.outputs, start)
        self._spans += [(*span, start) for span in spans]

    def _land(self, start: int) -> int:
        """Forget a collective that is waited for, and return its op."""
        flight = self._flights.pop(start)
        for tensor in flight.touched:
            self._touching[tensor].discard(start)
        for tensor in flight.written:
            self._writing.pop(tensor, None)
        self._spans = [span for span in self._spans if span[2] != start]
        return flight.op

    def _append(self, action: Action) -> None:
        """Append an action, and follow the buffers of tensors."""
        match action:
            case Alloc(tensor, offset) | Decode(tensor, offset):
                self._offsets[tensor] = offset
            case Alias(output, source):
                self._aliases[output] = source
            case Compute():
                self._taken = {*self._aliases.values()}
                for output, source in self._aliases.items():
                    self._offsets[output] = self._offsets[source]
                self._aliases = {}
            case Free(tensor):
                self._offsets.pop(tensor, None)
        if not isinstance(action, Alloc | Alias | Free):
            self._last_work = len(self.result)
        self.result.append(action)

    def _wait(self, starts: Sequence[int]) -> None:
        """Wait for collectives; one after which nothing has run is computed."""
        if not starts:
            return
        for start in starts:
            op = self._land(start)
            if self._last_work == start:
                begun = self.result[start]
                assert isinstance(begun, Start)
                scratch = begun.scratch_offset
                self.result[start] = Compute(op, begun.algorithm, scratch)
            else:
                self.result.append(Wait(start))
        held, self._held = self._held, []
        for tensor in held:
            if self._using([tensor]):
                self._held.append(tensor)
            else:
                self._append(Free(tensor))


def _next_ops(actions: Sequence[Action]) -> list[int]:
    """Return for each action the op that is computed at it or next, else -1."""
    result, op = [], -1
    for action in reversed(actions):
        if isinstance(action, Compute):
            op = action.op
        result.append(op)
    return result[::-1]


# -- orders -------------------------------------------------------------------------


def _later(request: Request, actions: Sequence[Action]) -> Iterator[list[int]]:
    """Yield orders in which ops that need a collective run behind others.

    Only for plans that compute by default algorithms, without copies and encodings.
    """
    computes = [action for action in actions if isinstance(action, Compute)]
    plain = all(isinstance(each, Alloc | Alias | Free | Compute) for each in actions)
    if not plain or any(action.algorithm is not None for action in computes):
        return
    given = [action.op for action in computes]
    order = _Order(request.graph, given)
    seen = [given]
    # Weights and biases are gathered one by one, and only the former take time.
    meets = any(map(is_collective, request.graph.ops))
    for behind in (1, *(4, 16) * meets, len(order.collectives)):
        sequence = order.delayed(behind)
        if sequence not in seen:
            seen.append(sequence)
            yield sequence


class _Order:
    """A sequence of ops, which may occur more than once, and what each needs.

    A step of the sequence is its index there. The collectives are counted from 1. A
    step of no op stands between the forward ops and the updates, which it separates.
    """

    def __init__(self, graph: Graph, sequence: list[int]) -> None:
        phases = [graph.ops[op].phase for op in sequence]
        first = phases.index("update") if "update" in phases else len(phases)
        self._graph = graph
        self._steps = [*sequence[:first], None, *sequence[first:]]
        self._barrier = first
        self.collectives = [
            step
            for step, op in enumerate(self._steps)
            if op is not None and runs_beside(graph.ops[op])
        ]
        self._number = {step: n for n, step in enumerate(self.collectives, 1)}
        self._needs = self._find_needs()

    def _find_needs(self) -> list[list[int]]:
        """Return the steps that must precede each: makers, readers of old state."""
        graph, updates = self._graph, state_updates(self._graph)
        made: dict[int, int] = {}
        read: defaultdict[int, list[int]] = defaultdict(list)
        forward: dict[int, int] = {}  # op -> step
        needs: list[list[int]] = []
        for step, index in enumerate(self._steps):
            if index is None:
                needs.append([*forward.values()])
                continue
            op = graph.ops[index]
            own = {made[tensor] for tensor in op.inputs if tensor in made}
            for output in op.outputs:
                own.update(read[updates[output]] if output in updates else ())
                made[output] = step
            if op.phase == "update":
                own.add(self._barrier)
            elif op.phase == "forward":
                forward.setdefault(index, step)
            for tensor in op.inputs:
                read[tensor].append(step)
            needs.append(sorted(own))
        return needs

    def delayed(self, behind: int) -> list[int]:
        """Return the ops in an order in which each waits for more collectives.

        A step that needs the n-th collective runs behind the next ones, too, `behind`
        of them, except those that need it.
        """
        gates = self._find_gates(behind)
        done = _Done(self._needs)
        waiting: list[int] = []
        count = 0  # collectives done
        for step in range(len(self._steps)):
            if step in self._number:
                done.run(step)
                count += 1
                done.run_free(step for step in waiting if gates[step] <= count)
                waiting = [other for other in waiting if not done.flags[other]]
            elif gates[step] <= count and done.is_free(step):
                done.run(step)
            else:
                waiting.append(step)
        for step in waiting:
            done.run(step)
        return [op for step in done.order if (op := self._steps[step]) is not None]

    def _find_gates(self, behind: int) -> list[int]:
        """Return how many collectives each step waits for."""
        levels = [0] * len(self._steps)  # the last collective that a step needs
        for step, needs in enumerate(self._needs):
            for need in needs:
                levels[step] = max(levels[step], self._number.get(need, levels[need]))
        most = len(self.collectives)
        before = [most] * len(self._steps)  # collectives that do not need a step
        for step in reversed(range(len(self._steps))):
            own = self._number.get(step)
            for need in self._needs[step]:
                least = before[step] if own is None else own - 1
                before[need] = min(before[need], least)
        return [
            min(level + behind, limit) if level else 0
            for level, limit in zip(levels, before, strict=True)
        ]


class _Done:
    """The steps that have run, each behind those that it needs."""

    def __init__(self, needs: list[list[int]]) -> None:
        self._needs = needs
        self.flags = [False] * len(needs)
        self.order: list[int] = []

    def is_free(self, step: int) -> bool:
        """Return whether all steps that a step needs have run."""
        return all(self.flags[need] for need in self._needs[step])

    def run_free(self, steps: Iterable[int]) -> None:
        """Run steps in order, each if all that it needs have run."""
        for step in steps:
            if self.is_free(step):
                self.run(step)

    def run(self, step: int) -> None:
        """Run a step, unless it has run, behind all that it needs."""
        stack = [step]
        while stack:
            top = stack[-1]
            missing = [need for need in self._needs[top] if not self.flags[need]]
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            if not self.flags[top]:
                self.flags[top] = True
                self.order.append(top)


def _least_seconds(graph: Graph, sequence: Sequence[int]) -> float:
    """Return the seconds of ops in order if collectives wait only for data."""
    clock = Clock()
    ends: dict[int, float] = {}  # tensor -> end of its collective
    for index in sequence:
        op = graph.ops[index]
        if runs_beside(op):
            _, end = clock.start(beside_seconds(graph, op))
            ends |= dict.fromkeys(op.outputs, end)
            continue
        for tensor in op.inputs:
            if tensor in ends:
                clock.wait(ends[tensor])
        clock.run(op.seconds)
    return clock.elapsed_seconds
