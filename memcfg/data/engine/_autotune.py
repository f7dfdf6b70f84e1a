"""What AUTOTUNE chooses: how many items wait, how many threads work.

Owns when something is tried, and within which bounds. How good it was is the time that
the consumer of the pass waited; the rule is `_climbing.Climber`'s.

References
----------
Murray, Šimša, Klimovic, Indyk (2021). tf.data: A Machine Learning Data Processing
Framework. Proceedings of the VLDB Endowment 14(12). Its autotuner climbs hills in a
model of the pipeline's latency, within a budget of cores and bytes, and doubles a
buffer that was full and is found empty. Here nothing is modelled: a change is tried,
and kept if the waiting that is measured gets less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.data.engine._hill_climber import Climber
from memcfg.data.engine._ring import SPARE

if TYPE_CHECKING:
    from memcfg.data.engine._budgets import Budget
    from memcfg.data.engine._run import Run

__all__ = ["TunedDepth", "TunedParallelism"]

SHARE = 0.02  # of the time, from which on waiting is worth a change
LEAST_GAIN = 1 / 8  # of the cost, for a buffer twice as large
FIRST_DEPTH = 2


class _Period:
    """Counts what is handed on, and tells when there is enough of it to judge by."""

    def __init__(self, times: int, seconds: float) -> None:
        self._enough = times, seconds
        self.begin(0.0, 0.0, skip=1)

    def begin(self, now: float, waited: float, *, skip: int = 0) -> None:
        self._begun, self._waited = now, waited
        self._times = -skip  # what was made before a change says nothing of it
        self._items = 0

    def note(self, now: float, waited: float, items: int = 1) -> bool:
        """Note that items were handed on; True: the period is over."""
        self._times += 1
        if self._times <= 0:
            self._begun, self._waited = now, waited
            return False
        self._items += items
        times, seconds = self._enough
        return self._times >= times and now - self._begun >= seconds

    def cost(self, waited: float) -> float:
        """Seconds waited per item."""
        return (waited - self._waited) / max(1, self._items)

    def share(self, now: float, waited: float) -> float:
        """Which part of the time was waited."""
        return (waited - self._waited) / max(now - self._begun, 1e-9)


class _Tuner:
    """What both choices have in common: when to try, and what to do then."""

    def __init__(
        self,
        budget: Budget,
        climber: Climber,
        period: _Period,
        hindsight: dict[str, Any] | None,
    ) -> None:
        self._hindsight = {} if hindsight is None else hindsight
        if "learned" in self._hindsight:
            climber.resume(self._hindsight["learned"])
        self._budget = budget
        self._climber = climber
        self._period = period
        self._changes = budget.changes

    def _over(self, now: float, waited: float, spare: int) -> None:
        """Judge the period that is over, or try something in the next one."""
        period, climber, budget = self._period, self._climber, self._budget
        waiting = period.share(now, waited) > SHARE
        cost = period.cost(waited)
        skip = 0
        if climber.is_trying:
            before = climber.value
            kept = climber.judge(cost, waiting=waiting)
            if kept is not None:
                budget.tried(kept=kept)
                self._changes = budget.changes
            skip = 0 if climber.value == before else self._lag
        elif budget.enabled:
            skip = self._try(cost, spare, waiting=waiting)
        period.begin(now, waited, skip=skip)
        if not climber.is_trying:
            self._hindsight["learned"] = climber.learned

    def _try(self, cost: float, spare: int, *, waiting: bool) -> int:
        climber, budget = self._climber, self._budget
        if budget.changes != self._changes:
            self._changes = budget.changes
            climber.encourage()
        value = climber.wish(cost, spare, waiting=waiting)
        if value == climber.value or not budget.try_alone(self):
            return 0
        climber.try_out(value, cost)
        return self._lag

    def _limit(self, value: int) -> None:
        """Do without what there is no room for."""
        if value < self._climber.value:
            if self._climber.is_trying:
                self._budget.tried(kept=False)
            self._climber.limit(value)

    @property
    def _lag(self) -> int:
        """How many items were made before a change."""
        return self._climber.value + SPARE


class TunedDepth(_Tuner):
    r"""How many items wait in a line, as AUTOTUNE has it: a `Depth`.

    Parameters
    ----------
    run : Run
        The pass.
    hindsight : dict, optional
        What the pass before has learned, and where this one notes it for the next.

    Notes
    -----
    The cost of a depth :math:`d` is the time that the line's consumer waits, per item.
    It is tried to double :math:`d` while that is more than 2 % of the time, and it is
    kept if an eighth is saved. If the consumer has found at least :math:`m` items each
    time, :math:`m - 1` of them are to spare. Within

    .. math:: (d + 2)\, b \le B - \sum_i h_i

    for items of :math:`b` bytes, a budget of :math:`B` and others that hold
    :math:`h_i`. A producer that is faster than the consumer has 1, one whose times vary
    has as many as help, and for one that is always slower none help.
    """

    def __init__(self, run: Run, hindsight: dict[str, Any] | None = None) -> None:
        climber = Climber(FIRST_DEPTH, self._larger, _gain_of_depth)
        super().__init__(run.budget, climber, _Period(16, 0.05), hindsight)
        self._clock = run.stall.clock
        self._item_bytes = 0
        self._waited = 0.0
        self._least: int | None = None  # that waited when the consumer came

    @property
    def capacity(self) -> int:
        """How many items may wait."""
        return self._climber.value

    def learned(self, item_bytes: int) -> None:
        """Note what an item takes, and do with less if the budget is too small.

        Parameters
        ----------
        item_bytes : int
            Bytes in the ring; 0 where items lie elsewhere.
        """
        elsewhere = not item_bytes and self._budget.item_bytes > 0
        if elsewhere or item_bytes != self._item_bytes:
            self._item_bytes = item_bytes
            self._limit(self._fitting())
        self._budget.hold(self, self._slots(self.capacity) * item_bytes)

    def refused(self, fits: int) -> bool:
        """Do with less.

        Parameters
        ----------
        fits : int
            For how many items there is memory.

        Returns
        -------
        bool
            False: not even for one.
        """
        self._limit(fits)
        return fits >= 1

    def consumed(self, waiting: int, waited: float) -> None:
        """Note that the consumer came.

        Parameters
        ----------
        waiting : int
            How many items waited when it came.
        waited : float
            Seconds that it waited for one.
        """
        self._waited += waited
        self._least = waiting if self._least is None else min(self._least, waiting)
        now = self._clock()
        if self._period.note(now, self._waited):
            spare = min(self._least, self.capacity) - 1
            self._least = None
            self._over(now, self._waited, spare)

    def _slots(self, depth: int) -> int:
        return depth + SPARE

    def _fitting(self) -> int:
        """Tell for which depth the budget has bytes."""
        nbytes = self._item_bytes or self._budget.item_bytes
        return self._budget.room(self) // nbytes - SPARE if nbytes else 2**30

    def _larger(self, depth: int) -> int:
        return max(depth, min(2 * depth, self._fitting()))


class TunedParallelism(_Tuner):
    r"""How many threads work at a step, as AUTOTUNE has it.

    Parameters
    ----------
    run : Run
        The pass.
    hindsight : dict, optional
        What the pass before has learned, and where this one notes it for the next.

    Attributes
    ----------
    item_bytes : int
        What one more thread holds, in bytes.

    Notes
    -----
    1 is no thread: the consumer of the step does the work itself. The cost of
    :math:`p` is the time that the consumer of the whole pass waits, per item of the
    step. While that is more than 2 % of the time, :math:`q = 2 p` is tried, and kept if

    .. math:: c_q \le \left(1 - \frac{1 - p / q}{3}\right) c_p,

    a third of what perfect parallelism would save: a function that holds Python's lock
    saves nothing, and stays at 1. :math:`p - 1` is tried when nobody waits. Within the
    cores that other steps leave, and within the bytes that other buffers leave.
    """

    def __init__(self, run: Run, hindsight: dict[str, Any] | None = None) -> None:
        climber = Climber(1, self._more, _gain_of_threads)
        super().__init__(run.budget, climber, _Period(4, 0.1), hindsight)
        self._stall = run.stall
        self.item_bytes = 0
        self._limit(run.budget.threads_for(self))
        run.budget.employ(self, self.parallelism)

    @property
    def parallelism(self) -> int:
        """How many threads work; 1 is the consumer's own."""
        return self._climber.value

    def consumed(self, items: int) -> None:
        """Note that the step has handed elements on.

        Parameters
        ----------
        items : int
            How many.
        """
        now, waited = self._stall.clock(), self._stall.seconds()
        if self._period.note(now, waited, items):
            self._over(now, waited, 1)
            self._budget.employ(self, self.parallelism)

    def refused(self) -> None:
        """Do with less: there is no memory for so many."""
        self._limit(self.parallelism - 1)

    def _more(self, threads: int) -> int:
        most = self._budget.threads_for(self)
        if self.item_bytes:
            most = min(most, threads + self._budget.room(self) // self.item_bytes)
        return max(threads, min(2 * threads, most))


def _gain_of_depth(before: int, after: int) -> float:
    return LEAST_GAIN


def _gain_of_threads(before: int, after: int) -> float:
    return (1 - before / after) / 3
