"""Memory-efficient backpropagation through time: Gruslys et al. 2016."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memcfg.plan.methods._candidates import plan_cheapest, slot_counts
from memcfg.plan.methods._cells import find_cells
from memcfg.plan.search._policy import Method
from memcfg.plan.search.recompute._chain import Chain, Do

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request
    from memcfg.plan.search.recompute._chain import Move

_MOST = 16  # max. forward passes of a plan, recomputation included
_ENTRIES = 60_000  # max. entries of a table; with more slots, everything is kept


class _Choice(NamedTuple):
    """First decision: advance so many cells, then keep the state or the last cell."""

    advance: int
    internal: bool


@dataclass(frozen=True)
class Table:
    """The fewest forward steps of t cells with m slots, and the first decisions.

    Parameters
    ----------
    steps : numpy.ndarray
        The fewest steps, of shape (m + 1, t + 1) and dtype float64; infinity where
        there is no schedule.
    first : numpy.ndarray
        The first decisions, of the same shape: y if the state after y cells is kept
        first, -y if the inside of cell y is, and 0 if nothing is kept.
    hidden, internal : int
        Slots of a state and of the inside of a cell; 0 if that kind is not kept.
    """

    steps: np.ndarray
    first: np.ndarray
    hidden: int
    internal: int

    def choice(self, cells: int, slots: int) -> _Choice:
        """Return the first decision.

        Parameters
        ----------
        cells : int
            The number of remaining cells.
        slots : int
            The number of free slots.

        Returns
        -------
        tuple of (int, bool)
            The number of cells to advance, and whether the inside of the last of them
            is kept instead of the state after it.
        """
        if self.internal and slots >= self.internal * cells:
            return _Choice(1, internal=True)
        if not self.internal and slots >= cells > 1:
            return _Choice(1, internal=False)
        first = int(self.first[slots, cells])
        return _Choice(abs(first), first < 0)


def hidden_table(cells: int, slots: int) -> Table:
    """Return the table for keeping hidden states (HSM).

    The state before the first cell occupies a slot as well.

    Parameters
    ----------
    cells : int
        The largest number of cells.
    slots : int
        The largest number of slots.

    Returns
    -------
    Table
        The fewest steps for all numbers of cells and slots up to these.
    """
    return _table(cells, slots, hidden=1, internal=0)


def internal_table(cells: int, slots: int) -> Table:
    """Return the table for keeping internal states of cells (ISM).

    A cell whose internal state is kept is not recomputed.

    Parameters
    ----------
    cells : int
        The largest number of cells.
    slots : int
        The largest number of slots.

    Returns
    -------
    Table
        The fewest steps for all numbers of cells and slots up to these.
    """
    return _table(cells, slots, hidden=0, internal=1)


def mixed_table(cells: int, slots: int, internal: int) -> Table:
    """Return the table for keeping hidden or internal states (MSM).

    Parameters
    ----------
    cells : int
        The largest number of cells.
    slots : int
        The largest number of slots.
    internal : int
        Slots of the internal state of a cell; a hidden state has one slot.

    Returns
    -------
    Table
        The fewest steps for all numbers of cells and slots up to these.
    """
    return _table(cells, slots, hidden=1, internal=internal)


def _table(cells: int, slots: int, *, hidden: int, internal: int) -> Table:
    """Solve the recurrences of the paper; a kind with 0 slots is not kept."""
    steps = np.full((slots + 1, cells + 1), np.inf)
    first = np.zeros((slots + 1, cells + 1), np.int64)
    steps[:, 0] = 0
    for m in range(1, slots + 1):
        if cells and hidden:
            steps[m, 1] = 1
        for t in range(1, cells + 1):
            best, chosen = np.inf, 0
            if hidden:
                best = t * (t + 1) / 2 if m == 1 or t == 1 else np.inf
                if t > 1 and m > hidden:
                    y = np.arange(1, t)
                    q = y + steps[m - 1, t - y] + steps[m, y]
                    place = int(np.argmin(q))
                    if q[place] < best:
                        best, chosen = q[place], place + 1
            if internal and m >= internal:
                y = np.arange(1, t + 1)
                q = y + steps[m - internal, t - y] + steps[m, y - 1]
                place = int(np.argmin(q))
                if q[place] < best:
                    best, chosen = q[place], -(place + 1)
            steps[m, t], first[m, t] = best, chosen
    return Table(steps, first, hidden, internal)


def table_moves(table: Table, cells: int, slots: int) -> list[Move]:
    """Return the schedule of a table.

    Parameters
    ----------
    table : Table
        The table.
    cells : int
        How many cells, at most as many as the table has.
    slots : int
        How many slots, likewise.

    Returns
    -------
    list of Move
        Moves, for `memcfg.plan.search.Chain.sequence`.
    """
    moves: list[Move] = []
    todo: list[tuple[int, int, int]] = [(0, cells, slots)]
    while todo:
        low, high, left = todo.pop()
        if left < 0:  # a cell whose internal state was kept
            moves.append((Do.BACKWARD, low))
            continue
        if low == high:
            continue
        first = table.choice(high - low, left)
        middle = low + first.advance
        if first.internal:
            moves += [(Do.ADVANCE, cell) for cell in range(low, middle - 1)]
            moves.append((Do.COMPUTE, middle - 1))
            todo += [(low, middle - 1, left), (middle - 1, middle, -1)]
            todo.append((middle, high, left - table.internal))
        elif first.advance:
            moves += [(Do.ADVANCE, cell) for cell in range(low, middle)]
            todo += [(low, middle, left), (middle, high, left - table.hidden)]
        else:
            for last in reversed(range(low, high)):
                moves += [(Do.ADVANCE, cell) for cell in range(low, last)]
                moves += [(Do.COMPUTE, last), (Do.BACKWARD, last)]
    return moves


def _through_time(request: Request, make: Callable[[int, int, int], Table]) -> Plan:
    return plan_cheapest(request, _schedules(request, make))


def _schedules(
    request: Request, make: Callable[[int, int, int], Table]
) -> Iterator[list[int]]:
    before, cells, after = find_cells(request.graph)
    chain = Chain(request, [before, *cells, after])
    count, start = len(cells), bool(before)
    inside = _inside_slots(chain, start + count // 2)
    table = make(count, min(count * inside, 1 + _ENTRIES // count), inside)
    most = count * max(1, table.internal)
    cell = max(1, table.internal)
    numbers = {*slot_counts(most), *(cell * each for each in slot_counts(count))}
    for slots in sorted(numbers):
        if slots < most and slots >= len(table.steps):
            continue
        if slots < most and not table.steps[slots, count] <= _MOST * count:
            continue
        moves = table_moves(table, count, slots)
        yield chain.sequence(_whole(moves, count, start, bool(after)))


def _inside_slots(chain: Chain, cell: int) -> int:
    """Return the bytes of a cell's internal state in hidden states, rounded up."""
    sizes = chain.graph.aligned_bytes
    state = sum(sizes[tensor] for tensor in chain.crossing[cell])
    kept = sum(sizes[tensor] for tensor in chain.kept(cell))
    return max(1, -(-kept // max(1, state)))


def _whole(moves: list[Move], count: int, start: bool, after: bool) -> list[Move]:
    """Add the stages before and after the cells to the moves of the cells."""
    result = [(do, cell + start) for do, cell in moves]
    turn = result.index((Do.BACKWARD, count - 1 + start))
    if after:
        last = count + start
        result[turn:turn] = [(Do.COMPUTE, last), (Do.BACKWARD, last)]
    if start:
        result = [(Do.COMPUTE, 0), *result, (Do.BACKWARD, 0)]
    return result


_hidden = partial(_through_time, make=lambda t, m, _: hidden_table(t, m))
_internal = partial(_through_time, make=lambda t, m, _: internal_table(t, m))
_mixed = partial(_through_time, make=mixed_table)

_OTHER = "auto(), which takes the best of several methods"


def bptt_hidden() -> Policy:
    """Keep some hidden states of an unrolled recurrent network (HSM).

    Returns
    -------
    Policy
        The policy, after [1]_: a dynamic program gives the fewest forward steps for
        each number of cells and slots, and when to keep a state. About thirty numbers
        of slots are tried. Without a limit the policy takes the plan with the lowest
        peak; with a limit, the one with the least recomputation. Memory is shared as by
        `share`. Calls raise GraphError for a graph without repeated cells.

    Notes
    -----
    Cells are found in the graph. Each begins with an op of the forward phase; these
    ops, at least three, have one type and read the same parameter, and each depends on
    the one before. If several parameters qualify, the first with the most readers is
    taken. An op belongs to the last cell on whose first op it depends. Ops that only
    one cell reads, such as those of its input, belong to that cell. The ops of the last
    cell are recognized by those of the cell before; the rest of the network follows.
    A layer that is called once per time step is such a cell. A layer that processes
    whole sequences is a single op and cannot be divided.

    References
    ----------
    .. [1] A. Gruslys, R. Munos, I. Danihelka, M. Lanctot, A. Graves, "Memory-Efficient
       Backpropagation Through Time", NeurIPS 2016, arXiv:1606.03401.
    """
    return Method("bptt_hidden", _hidden, _OTHER)


def bptt_internal() -> Policy:
    """Keep the internal states of some cells of an unrolled recurrent network (ISM).

    Returns
    -------
    Policy
        The policy, after [1]_. It is like `bptt_hidden`, but cells whose internal state
        is kept are not recomputed. Calls raise GraphError for a graph without repeated
        cells.

    References
    ----------
    .. [1] A. Gruslys, R. Munos, I. Danihelka, M. Lanctot, A. Graves, "Memory-Efficient
       Backpropagation Through Time", NeurIPS 2016, arXiv:1606.03401.
    """
    return Method("bptt_internal", _internal, _OTHER)


def bptt_mixed() -> Policy:
    """Keep hidden or internal states of an unrolled recurrent network (MSM).

    Returns
    -------
    Policy
        The policy, after [1]_. It is like `bptt_hidden`, but slots are used for the
        kind of state that saves more time. An internal state takes as many slots as
        hidden states have its bytes, rounded up. Calls raise GraphError for a graph
        without repeated cells.

    References
    ----------
    .. [1] A. Gruslys, R. Munos, I. Danihelka, M. Lanctot, A. Graves, "Memory-Efficient
       Backpropagation Through Time", NeurIPS 2016, arXiv:1606.03401.
    """
    return Method("bptt_mixed", _mixed, _OTHER)
