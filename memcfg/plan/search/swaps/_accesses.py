"""Accesses of a schedule: its values, their lifetimes, and the bytes in use.

Methods that swap by tensor instead of by layer choose among gaps: the times between two
accesses of a value, in which it may be on a tier.
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
    """A computation in a schedule that extends a given order by recomputation.

    Parameters
    ----------
    place : int
        A position in the given order.
    op : int
        The op at that position, or one that is recomputed before it.
    """

    place: int
    op: int


START = Entry(-1, -1)  # the start of the step, where inputs begin


class Value(NamedTuple):
    """A tensor from one computation to the last read before its next computation."""

    tensor: int
    begin: int  # position of its computation; -1 for the start
    reads: tuple[int, ...]  # positions
    stays: bool  # whether it is kept to the end


class Gap(NamedTuple):
    """The time between two accesses of a value, by positions in a schedule.

    Parameters
    ----------
    value : int
        Index of the value in its trace.
    after : int
        Position of the first access; -1 is the start.
    back : int
        Position of the second access.
    """

    value: int
    after: int
    back: int

    @property
    def inside(self) -> slice:
        """The positions between the accesses as a slice of `Trace.loads`."""
        return slice(self.after + 2, self.back + 1)


class Trace:
    """The values of a schedule, without those of the state.

    Parameters
    ----------
    graph : memcfg.graph.Graph
        The graph of a request.
    entries : sequence of Entry
        The computations, in order.

    Attributes
    ----------
    entries : sequence of Entry
        The computations, in order.
    values : list of Value
        The values, in the order in which they begin.
    sizes : list of int
        Bytes of each tensor, rounded up.
    state_bytes : int
        Bytes of the state.
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
        """Return all gaps of at least one op of the values that may be swapped."""
        result = []
        for number, (tensor, begin, reads, _) in enumerate(self.values):
            if not self.may_leave(number) or not self.sizes[tensor]:
                continue
            for after, back in zip((begin, *reads), reads, strict=False):
                if back - after > 1:
                    result.append(Gap(number, after, back))
        return result

    def size(self, gap: Gap) -> int:
        """Return the bytes of a gap's value, rounded up.

        Parameters
        ----------
        gap : Gap
            A gap of the value.

        Returns
        -------
        int
            The size in bytes.
        """
        return self.sizes[self.tensor(gap)]

    def tensor(self, gap: Gap) -> int:
        """Return the tensor of a gap's value.

        Parameters
        ----------
        gap : Gap
            A gap of the value.

        Returns
        -------
        int
            The tensor's id.
        """
        return self.values[gap.value].tensor

    def is_read(self, gap: Gap) -> bool:
        """Return whether the access before a gap reads the value.

        Parameters
        ----------
        gap : Gap
            A gap.

        Returns
        -------
        bool
            False if it computes the value, or is the start.
        """
        return gap.after > self.values[gap.value].begin

    def read(self, place: int) -> Collection[int]:
        """Return the values that are read at a position.

        Parameters
        ----------
        place : int
            A position in the schedule.

        Returns
        -------
        collection of int
            Indices of values.
        """
        return self._read[place].values()

    def made(self, place: int) -> Collection[int]:
        """Return the values that are computed at a position.

        Parameters
        ----------
        place : int
            A position in the schedule.

        Returns
        -------
        collection of int
            Indices of values.
        """
        return self._made[place].values()

    def may_leave(self, number: int) -> bool:
        """Return whether a value may be swapped between its accesses.

        Parameters
        ----------
        number : int
            Index of a value.

        Returns
        -------
        bool
            False for kept tensors and losses.
        """
        return self.values[number].tensor not in self._fixed

    def taken(self) -> set[int]:
        """Return the values that take over an input's bytes if nothing is swapped."""
        rows = self._parts(())
        return self._in_place({(n, row[-1][1]) for n, row in enumerate(rows)})

    def loads(
        self,
        scratch: Sequence[int],
        away: Collection[Gap] = (),
        copied: Iterable[Gap] = (),
    ) -> list[int]:
        """Return the bytes in use at the start, at each position and at the end.

        Parameters
        ----------
        scratch : sequence of int
            Scratch bytes at each position, rounded up.
        away : iterable of Gap
            Gaps in which values are away.
        copied : iterable of Gap
            The gaps of `away` that begin with a copy out. Before these, no output takes
            over the value's bytes.

        Returns
        -------
        list of int
            Bytes; the list has two more elements than there are positions.
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
        """Return the intervals of positions in which each value is resident."""
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
        """Return the values that take over the bytes of an input that ends."""
        taken: set[int] = set()
        gave: set[tuple[int, int]] = set()
        for end, taker in self._pairs:
            if end in ends and end not in gave and taker not in taken:
                gave.add(end)
                taken.add(taker)
        return taken

    @cached_property
    def _pairs(self) -> list[tuple[tuple[int, int], int]]:
        """The in-place pairs of equal size: ((input value, position), output value)."""
        return [
            ((read[source], place), made[output])
            for place, (read, made, (_, index)) in enumerate(
                zip(self._read, self._made, self.entries, strict=True)
            )
            for source, output in self.graph.ops[index].in_place
            if source in read and output in made
            if self.sizes[source] == self.sizes[output]
        ]
