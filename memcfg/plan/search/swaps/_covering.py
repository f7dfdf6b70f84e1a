"""Greedy choice of gaps in which values are swapped, so that a limit holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.plan.search.algorithms._algorithms import algorithms
from memcfg.plan.search.swaps._swap_events import Run
from memcfg.plan.search.swaps._walk import Swaps
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from memcfg.plan.search.swaps._accesses import Gap, Trace
    from memcfg.plan.search.swaps._swap_events import StartSwapOut


class Covering:
    """A schedule under a limit, with gaps in which values are swapped.

    An op that does not fit even if all values are swapped uses the fastest of its
    algorithms that fits.

    Parameters
    ----------
    trace : Trace
        The schedule.
    limit : int
        The limit of bytes in use.
    codes : mapping of int to StartSwapOut, optional
        The copies out of tensors that a lane encodes.

    Attributes
    ----------
    gaps : list of Gap
        All gaps of the trace.
    loads : numpy.ndarray
        Bytes in use at the start, at each position and at the end, without swaps.
    """

    def __init__(
        self, trace: Trace, limit: int, codes: Mapping[int, StartSwapOut] | None = None
    ) -> None:
        self.limit = limit
        self._codes = codes
        self.trace = trace
        self.gaps = trace.gaps()
        graph = trace.graph
        self._runs = [Run(op) for _, op in trace.entries]
        self._seconds = [graph.ops[op].seconds for _, op in trace.entries]
        self._scratch = [graph.aligned_scratch[op] for _, op in trace.entries]
        self.loads = np.array(trace.loads(self._scratch), np.int64)
        self._choose_algorithms()
        self.everything = self.swaps(self.gaps)

    def _choose_algorithms(self) -> None:
        left = self.loads.copy()
        for gap in self.gaps:
            left[gap.inside] -= self.trace.size(gap)
        over = left[1:-1] - self.limit
        for place in np.flatnonzero(over > 0).tolist():
            run, now = self._runs[place], self._scratch[place]
            fitting = [
                each
                for each in algorithms(self.trace.graph.ops[run.op], divided=True)
                if align_up(each.scratch_bytes) <= now - int(over[place])
            ]
            if fitting:
                chosen = min(fitting, key=lambda each: each.seconds)
                self._runs[place] = run._replace(algorithm=chosen.name)
                self._seconds[place] = chosen.seconds
                self._scratch[place] = align_up(chosen.scratch_bytes)
                self.loads[place + 1] += self._scratch[place] - now

    def swaps(self, gaps: Collection[Gap]) -> Swaps:
        """Return the schedule with values swapped in gaps, regardless of the limit.

        Parameters
        ----------
        gaps : collection of Gap
            The gaps in which values are swapped.

        Returns
        -------
        Swaps
            The schedule.
        """
        return Swaps(
            self.trace,
            self._runs,
            self._seconds,
            self._scratch,
            gaps,
            beside=True,
            slack=1.0,
            codes=self._codes,
        )

    def idle(self, gap: Gap) -> float:
        """Return a gap's duration minus its copies: Capuchin's free time.

        Parameters
        ----------
        gap : Gap
            A gap of the trace.

        Returns
        -------
        float
            Seconds; negative if the copies take longer than the gap.
        """
        all_ = self.everything
        copies = all_.swap_out_seconds[gap] + all_.swap_in_seconds[gap]
        return all_.starts[gap.back] - all_.starts[all_.begin(gap)] - copies

    def cover(self, order: Iterable[Gap]) -> list[Gap] | None:
        """Choose gaps, in a given order, until the limit holds.

        Idea: a greedy cover. A gap is skipped if it frees no bytes where the limit is
        exceeded; a second pass removes gaps that became redundant. Invariant: `left`
        are the bytes in use with the chosen gaps. Both passes are memcfg's own.

        Parameters
        ----------
        order : iterable of Gap
            The gaps in the order of preference.

        Returns
        -------
        list of Gap or None
            The chosen gaps; None if all of them do not suffice.
        """
        left = self.loads.copy()
        chosen: list[Gap] = []
        for gap in order:
            inside = left[gap.inside]
            if inside.max(initial=0) > self.limit:
                inside -= self.trace.size(gap)
                chosen.append(gap)
        if left.max() > self.limit:
            return None
        needed = []
        for gap in reversed(chosen):
            inside, size = left[gap.inside], self.trace.size(gap)
            if inside.max(initial=0) + size <= self.limit:
                inside += size
            else:
                needed.append(gap)
        return needed[::-1]
