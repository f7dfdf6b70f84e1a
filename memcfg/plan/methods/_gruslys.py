"""Backpropagation through time within a number of slots: Gruslys et al. 2016."""

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

_MOST = 16  # forward passes that a plan may amount to
_ENTRIES = 60_000  # of a table; with more slots than it has, everything is kept


class _Choice(NamedTuple):
    """What to do first: advance so far, and keep that state or that cell."""

    advance: int
    internal: bool


@dataclass(frozen=True)
class Table:
    """The least forward steps of t cells with m slots, and how to reach them.

    Parameters
    ----------
    steps : numpy.ndarray
        Of shape (m + 1, t + 1), float64; infinity where it cannot be done.
    first : numpy.ndarray
        Of the same shape: y where the state behind y cells is kept first, -y where
        the inside of cell y is, 0 where nothing is kept.
    hidden, internal : int
        Slots of a state and of the inside of a cell; 0: it is not kept.
    """

    steps: np.ndarray
    first: np.ndarray
    hidden: int
    internal: int

    def choice(self, cells: int, slots: int) -> _Choice:
        """Return what to do first.

        Parameters
        ----------
        cells : int
            How many cells are left.
        slots : int
            How many slots are free.

        Returns
        -------
        tuple of (int, bool)
            How far to advance, and whether the inside of that cell is kept.
        """
        if self.internal and slots >= self.internal * cells:
            return _Choice(1, internal=True)
        if not self.internal and slots >= cells > 1:
            return _Choice(1, internal=False)
        first = int(self.first[slots, cells])
        return _Choice(abs(first), first < 0)


def hidden_table(cells: int, slots: int) -> Table:
    """Keep hidden states (HSM); the state before the first cell has a slot, too.

    Parameters
    ----------
    cells : int
        The most cells.
    slots : int
        The most slots.

    Returns
    -------
    Table
        The least steps of up to so many cells with up to so many slots.
    """
    return _table(cells, slots, hidden=1, internal=0)


def internal_table(cells: int, slots: int) -> Table:
    """Keep all that a cell makes (ISM), which is not computed again.

    Parameters
    ----------
    cells : int
        The most cells.
    slots : int
        The most slots.

    Returns
    -------
    Table
        The least steps of up to so many cells with up to so many slots.
    """
    return _table(cells, slots, hidden=0, internal=1)


def mixed_table(cells: int, slots: int, internal: int) -> Table:
    """Keep either (MSM): a hidden state has one slot, a cell's inside `internal`.

    Parameters
    ----------
    cells : int
        The most cells.
    slots : int
        The most slots.
    internal : int
        Slots of a cell's inside.

    Returns
    -------
    Table
        The least steps of up to so many cells with up to so many slots.
    """
    return _table(cells, slots, hidden=1, internal=internal)


def _table(cells: int, slots: int, *, hidden: int, internal: int) -> Table:
    """Solve the recurrences; no slots of a kind: that kind is not kept."""
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
        if left < 0:  # a cell whose inside was kept
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
    """Return how many states have the bytes of what a cell keeps."""
    sizes = chain.graph.aligned_bytes
    state = sum(sizes[tensor] for tensor in chain.crossing[cell])
    kept = sum(sizes[tensor] for tensor in chain.kept(cell))
    return max(1, -(-kept // max(1, state)))


def _whole(moves: list[Move], count: int, start: bool, after: bool) -> list[Move]:
    """Add what is before the cells, and behind them."""
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
    """Keep some of the hidden states of an unrolled recurrent net (HSM).

    Returns
    -------
    Policy
        The policy, after [1]_: a dynamic program gives the least forward steps for
        every number of cells and slots, and when to keep a state. Of some thirty
        numbers of slots it takes the one of the least peak without a limit, and of
        the least recomputation with one. Memory is shared as by `share`. Its calls
        raise GraphError for a graph without repeated cells.

    Notes
    -----
    The cells are found in the graph. They begin at ops of one type that read the same
    parameter in the forward phase, three at least, each of which depends on the one
    before; of several such parameters the first with the most readers counts. An op
    is of the last cell on whose beginning it depends, but what a single cell reads,
    such as its input, is of that cell, and behind the last cell's own ops, known by
    those of the cell before, the rest of the net follows. A layer that is called once
    for each step is such a cell; a layer that takes whole sequences is one op, and
    there is nothing to be divided.

    References
    ----------
    .. [1] A. Gruslys, R. Munos, I. Danihelka, M. Lanctot, A. Graves, "Memory-Efficient
       Backpropagation Through Time", NeurIPS 2016, arXiv:1606.03401.
    """
    return Method("bptt_hidden", _hidden, _OTHER)


def bptt_internal() -> Policy:
    """Keep all that some of the cells of an unrolled recurrent net make (ISM).

    Returns
    -------
    Policy
        The policy, after [1]_; as `bptt_hidden`, but a cell that is kept is not
        computed again. Its calls raise GraphError for a graph without repeated cells.

    References
    ----------
    .. [1] A. Gruslys, R. Munos, I. Danihelka, M. Lanctot, A. Graves, "Memory-Efficient
       Backpropagation Through Time", NeurIPS 2016, arXiv:1606.03401.
    """
    return Method("bptt_internal", _internal, _OTHER)


def bptt_mixed() -> Policy:
    """Keep hidden states or whole cells of an unrolled recurrent net (MSM).

    Returns
    -------
    Policy
        The policy, after [1]_; as `bptt_hidden`, but each slot is used for whichever
        takes less time. A cell's inside has as many slots as states fit its bytes.
        Its calls raise GraphError for a graph without repeated cells.

    References
    ----------
    .. [1] A. Gruslys, R. Munos, I. Danihelka, M. Lanctot, A. Graves, "Memory-Efficient
       Backpropagation Through Time", NeurIPS 2016, arXiv:1606.03401.
    """
    return Method("bptt_mixed", _mixed, _OTHER)
