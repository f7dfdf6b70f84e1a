"""Starts of collectives, and waits for them, in plans that compute them in between."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
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
from memcfg.plan.format._clock import cost_of
from memcfg.plan.format._collectives import runs_beside
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.graph import Graph

__all__ = ["Starter"]


@dataclass
class _Flight:
    """A collective that was started, and what it touches."""

    op: int
    touched: set[int]  # tensors that are read or written
    written: set[int]
    spans: list[tuple[int, int]]  # [begin, end) in the arena


@dataclass
class Starter:
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
