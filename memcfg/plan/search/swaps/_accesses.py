"""A schedule by its accesses: which values there are, when, and the bytes in use.

Methods that look at ops alone, not at layers, choose among gaps: from an access of a
value to the next one, while it may be elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from memcfg._cached import cached_property
from memcfg.plan.search._request import state_updates

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence

    from memcfg.graph import Graph


class Entry(NamedTuple):
    """A computation: of an op in a given order, or of another before it.

    Parameters
    ----------
    place : int
        A place in the given order.
    op : int
        What is computed there.
    """

    place: int
    op: int


START = Entry(-1, -1)  # what inputs are there from


class Value(NamedTuple):
    """A tensor from one computation of it to the last read before the next."""

    tensor: int
    begin: int  # the place of its computation; -1: there from the start
    reads: tuple[int, ...]  # places
    stays: bool  # to the end


class Gap(NamedTuple):
    """A value's time between two accesses, by places in a schedule.

    Parameters
    ----------
    value : int
        The value's number in its trace.
    after : int
        Place of the access before; -1 is the start.
    back : int
        Place of the access behind.
    """

    value: int
    after: int
    back: int

    @property
    def inside(self) -> slice:
        """The places between them, in a list of loads, which has the start first."""
        return slice(self.after + 2, self.back + 1)


class Trace:
    """The values of a schedule, none of which is part of the state.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph of a request.
    entries : sequence of Entry
        What is computed, in order.

    Attributes
    ----------
    entries : sequence of Entry
        What is computed, in order.
    values : list of Value
        In the order in which they begin.
    sizes : list of int
        Bytes by tensor, rounded up.
    state_bytes : int
        What the state takes beside them.
    """

    def __init__(self, graph: Graph, entries: Sequence[Entry]) -> None:
        self.graph = graph
        self.entries = entries
        self.sizes = graph.aligned_bytes
        self.state_bytes = sum(self.sizes[t] for t in graph.persistent)
        self._fixed = {*graph.keep, *graph.losses}
        self.values: list[Value] = []
        self._read: list[dict[int, int]] = [{} for _ in entries]  # tensor -> value
        self._made: list[dict[int, int]] = [{} for _ in entries]
        self._find({*graph.persistent, *state_updates(graph)})

    def _find(self, state: set[int]) -> None:
        graph = self.graph
        now: dict[int, int] = {}
        begins: list[tuple[int, int]] = []
        reads: dict[int, list[int]] = defaultdict(list)

        def begin(tensor: int, place: int) -> None:
            now[tensor] = len(begins)
            begins.append((tensor, place))

        for tensor, maker in enumerate(graph.producer):
            if maker is None and tensor not in state:
                begin(tensor, -1)
        for place, (_, index) in enumerate(self.entries):
            op = graph.ops[index]
            for tensor in dict.fromkeys(op.inputs):
                if tensor not in state:
                    reads[now[tensor]].append(place)
                    self._read[place][tensor] = now[tensor]
            for tensor in op.outputs:
                if tensor not in state:
                    begin(tensor, place)
                    self._made[place][tensor] = now[tensor]
        stays = {now[tensor] for tensor in graph.keep if tensor in now}
        self.values = [
            Value(tensor, place, tuple(reads[number]), number in stays)
            for number, (tensor, place) in enumerate(begins)
        ]

    def gaps(self) -> list[Gap]:
        """List the times between accesses of all values that may be elsewhere."""
        result = []
        for number, (tensor, begin, reads, _) in enumerate(self.values):
            if not self.may_leave(number) or not self.sizes[tensor]:
                continue
            for after, back in zip((begin, *reads), reads, strict=False):
                if back - after > 1:
                    result.append(Gap(number, after, back))
        return result

    def size(self, gap: Gap) -> int:
        """Return the bytes of a value, rounded up.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        int
            Bytes.
        """
        return self.sizes[self.tensor(gap)]

    def tensor(self, gap: Gap) -> int:
        """Return the tensor that a value is one of.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        int
            The tensor.
        """
        return self.values[gap.value].tensor

    def is_read(self, gap: Gap) -> bool:
        """Return whether the access before a gap reads the value.

        Parameters
        ----------
        gap : Gap
            One of its gaps.

        Returns
        -------
        bool
            Else it makes the value, or is the start.
        """
        return gap.after > self.values[gap.value].begin

    def read(self, place: int) -> Collection[int]:
        """Return the values that are read at a place.

        Parameters
        ----------
        place : int
            A place in the schedule.

        Returns
        -------
        collection of int
            Numbers of values.
        """
        return self._read[place].values()

    def made(self, place: int) -> Collection[int]:
        """Return the values that are made at a place.

        Parameters
        ----------
        place : int
            A place in the schedule.

        Returns
        -------
        collection of int
            Numbers of values.
        """
        return self._made[place].values()

    def may_leave(self, number: int) -> bool:
        """Return whether a value may be elsewhere between its accesses.

        Parameters
        ----------
        number : int
            Number of a value.

        Returns
        -------
        bool
            False for what is kept, and for losses.
        """
        return self.values[number].tensor not in self._fixed

    def taken(self) -> set[int]:
        """Return the values that take over an input's bytes if nothing is away."""
        rows = self._parts(())
        return self._in_place({(n, row[-1][1]) for n, row in enumerate(rows)})

    def loads(
        self,
        scratch: Sequence[int],
        away: Collection[Gap] = (),
        copied: Iterable[Gap] = (),
    ) -> list[int]:
        """Return the bytes in use at the start, at each place and at the end.

        Parameters
        ----------
        scratch : sequence of int
            By place, rounded up.
        away : iterable of Gap
            When values are not there.
        copied : iterable of Gap
            Those of `away` before which a copy ends the value's bytes, and no read.

        Returns
        -------
        list of int
            Bytes, two more than there are places.
        """
        places = len(self.entries)
        copies = set(copied)
        parts = self._parts(away)
        ends = {(number, row[-1][1]) for number, row in enumerate(parts)}
        ends.update((g.value, g.after) for g in away if g not in copies)
        taken = self._in_place(ends)
        changes = [0] * (places + 3)
        for number, (value, row) in enumerate(zip(self.values, parts, strict=True)):
            size = self.sizes[value.tensor]
            changes[row[0][0] + 1] += 0 if number not in taken else -size
            changes[row[0][0] + 2] += 0 if number not in taken else size
            for begin, end in row:
                changes[begin + 1] += size
                changes[end + 2] -= size
        result, load = [], self.state_bytes
        for time in range(places + 2):
            load += changes[time]
            extra = scratch[time - 1] if 0 < time <= places else 0
            result.append(load + extra)
        return result

    def _parts(self, away: Collection[Gap]) -> list[list[tuple[int, int]]]:
        """List from where to where each value is there, by places."""
        split: dict[int, list[Gap]] = defaultdict(list)
        for gap in away:
            split[gap.value].append(gap)
        result = []
        for number, value in enumerate(self.values):
            end = len(self.entries)
            if not value.stays:
                end = max((value.begin, *value.reads))
            row, begin = [], value.begin
            for gap in sorted(split[number]) if number in split else ():
                row.append((begin, gap.after))
                begin = gap.back
            result.append([*row, (begin, end)])
        return result

    def _in_place(self, ends: Container[tuple[int, int]]) -> set[int]:
        """Return the values that take over the bytes of an input, of the same size."""
        taken: set[int] = set()
        gave: set[tuple[int, int]] = set()
        for end, taker in self._pairs:
            if end in ends and end not in gave and taker not in taken:
                gave.add(end)
                taken.add(taker)
        return taken

    @cached_property
    def _pairs(self) -> list[tuple[tuple[int, int], int]]:
        """Values, the places where others of their size may take over, and these."""
        return [
            ((read[source], place), made[output])
            for place, (read, made, (_, index)) in enumerate(
                zip(self._read, self._made, self.entries, strict=True)
            )
            for source, output in self.graph.ops[index].in_place
            if source in read and output in made
            if self.sizes[source] == self.sizes[output]
        ]
