"""A schedule made as ops run, knowing nothing of those to come: Capuchin's first step.

Where bytes are missing, tensors leave that were accessed first; what is accessed and is
not there comes back while the op waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.plan.search.swaps._swap_events import (
    EndSwapIn,
    EndSwapOut,
    Event,
    Run,
    StartSwapIn,
    StartSwapOut,
)
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection

    from memcfg.plan.search.swaps._accesses import Trace


class Passive:
    """The bytes of a device while the ops of a trace run, each once."""

    def __init__(self, trace: Trace, goal: int) -> None:
        self.trace = trace
        self.goal = goal
        self.most = 0  # bytes in use at a time; above the goal where nothing may leave
        self._sizes = [trace.sizes[value.tensor] for value in trace.values]
        self._there = {
            number
            for number, value in enumerate(trace.values)
            if value.begin < 0 and (value.reads or value.stays)
        }
        self._copied: set[int] = set()
        self._taken = trace.taken()
        self._used = trace.state_bytes + sum(self._sizes[n] for n in self._there)

    def events(self) -> list[Event]:
        """Run them."""
        found: list[Event] = []
        for place, (_, op) in enumerate(self.trace.entries):
            read = self.trace.read(place)
            missing = [n for n in read if n not in self._there]
            made = [n for n in self.trace.made(place) if n not in self._taken]
            scratch = align_up(self.trace.graph.ops[op].scratch_bytes)
            need = sum(self._sizes[n] for n in (*missing, *made)) + scratch
            for number in self._leaving(need, place, read):
                found += self._evict(number)
            for number in missing:
                tensor = self.trace.values[number].tensor
                found += [StartSwapIn(tensor), EndSwapIn(tensor)]
                self._come(number)
            found.append(Run(op))
            self.most = max(self.most, self._used + need - self._bytes(missing))
            self._end(place)
        return found

    def _bytes(self, numbers: Collection[int]) -> int:
        return sum(self._sizes[number] for number in numbers)

    def _leaving(self, need: int, place: int, read: Collection[int]) -> list[int]:
        """List what leaves: the first that is large enough, else from the first on."""
        over = self._used + need - self.goal
        if over <= 0:
            return []
        free = [n for n in sorted(self._there) if n not in read and self._may_leave(n)]
        for number in free:
            if self._sizes[number] >= over:
                return [number]
        found = []
        for number in free:
            if over > 0:
                found.append(number)
                over -= self._sizes[number]
        return found

    def _may_leave(self, number: int) -> bool:
        return bool(self._sizes[number]) and self.trace.may_leave(number)

    def _evict(self, number: int) -> list[Event]:
        self._there.remove(number)
        self._used -= self._sizes[number]
        if number in self._copied:  # its copy is still there
            return []
        self._copied.add(number)
        tensor = self.trace.values[number].tensor
        return [StartSwapOut(tensor), EndSwapOut(tensor)]

    def _come(self, number: int) -> None:
        self._there.add(number)
        self._used += self._sizes[number]

    def _end(self, place: int) -> None:
        """End what nothing reads any more, and begin what was made."""
        for number in self.trace.made(place):
            self._come(number)
        for number in {*self.trace.read(place), *self.trace.made(place)}:
            value = self.trace.values[number]
            if not value.stays and max((value.begin, *value.reads)) == place:
                self._there.discard(number)
                self._used -= self._sizes[number]
