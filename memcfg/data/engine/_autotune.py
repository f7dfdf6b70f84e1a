"""What AUTOTUNE chooses: how many items wait, how many threads work.

References
----------
Murray, Šimša, Klimovic, Indyk (2021). tf.data: A Machine Learning Data Processing
Framework. Proceedings of the VLDB Endowment 14(12). Its autotuner climbs hills in a
model of the pipeline's latency, within a budget of cores and bytes, and doubles a
buffer that was full and is found empty. Here nothing is modelled: a change is tried,
and kept if the waiting that is measured gets less.

See docs/decisions/0020-rings-and-measured-autotune.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from memcfg.data.engine._batch_blocks import SPARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.data.engine._run import Run

AUTOTUNE = -1
CALM = 4  # periods without waiting after which less is tried
FAILURES = 2  # trials after which only a higher cost is worth another
WAITING = 0.02  # of the time, from which on it is worth a change
MIN_GAIN = 1 / 8  # of the cost, for a buffer twice as large
FIRST_DEPTH = 2


class HillClimber:
    r"""A whole number, improved by trying its neighbours.

    In each period a value :math:`v` has a cost :math:`c_v` (seconds waited per item).

    * Waiting, and :math:`c_v > r`: try :math:`w = \mathrm{grown}(v)`, and, if that was
      better, :math:`v` once more, which costs :math:`c'_v`. Take :math:`w` if
      :math:`c_w \le (1 - \mathrm{gain}(v, w)) \min(c_v, c'_v)`; after the second trial
      that failed, :math:`r = 2 c_v`.
    * No waiting for `CALM` periods, and :math:`s` to spare: try
      :math:`w = \max(v - s, f)`. Keep it if nothing is waited for; else :math:`f = v`.
    * A value that was taken on the way up, after one was kept on the way down, is
      :math:`f` from then on.

    So the number of changes is bounded while costs stay below some :math:`C`: failures
    upwards double :math:`r`, all others raise :math:`f`.
    """

    def __init__(
        self,
        value: int,
        grown: Callable[[int], int],
        gain: Callable[[int, int], float],
    ) -> None:
        self.value = value
        self._grown = grown
        self._gain = gain
        self._tried: tuple[int, float] | None = None  # the value before, and its cost
        self._better: tuple[int, float] | None = None  # than the value before
        self.resistance = 0.0  # 0: try again what has failed
        self._failures = 0
        self._floor = 1
        self._calm = 0
        self._shrunk = False

    @property
    def state(self) -> tuple[int, int, float, int]:
        """The value, and which trials failed; it is not asked for during a trial."""
        return self.value, self._failures, self.resistance, self._floor

    @state.setter
    def state(self, state: tuple[int, int, float, int]) -> None:
        self.value, self._failures, self.resistance, self._floor = state

    @property
    def is_trying(self) -> bool:
        return self._tried is not None

    def propose(self, cost: float, spare: int, *, waiting: bool) -> int:
        self._calm = 0 if waiting else self._calm + 1
        if waiting:
            return self._grown(self.value) if cost > self.resistance else self.value
        if self._calm < CALM or spare <= 0:
            return self.value
        return min(self.value, max(self.value - spare, self._floor))

    def begin_trial(self, value: int, cost: float) -> None:
        self._tried = (self.value, cost)
        self.value = value

    def end_trial(self, cost: float, *, waiting: bool) -> bool | None:
        """Keep what was tried, or go back; None: the trial goes on."""
        assert self._tried is not None
        before, before_cost = self._tried
        self._calm = 0
        if self.value < before:
            self._tried = None
            if waiting:
                self.value = self._floor = before
            else:
                self._shrunk = True
            return not waiting
        again = self._better is not None  # nothing that happens once is its effect
        value, value_cost = self._better or (self.value, cost)
        known = min(before_cost, cost) if again else before_cost
        kept = value_cost <= (1 - self._gain(before, value)) * known
        self.value = before
        self._better = (value, value_cost) if kept and not again else None
        if self._better is not None:
            return None
        self._tried = None
        self._failures = 0 if kept else self._failures + 1
        if kept:
            self.value = value
            self._floor = value if self._shrunk else self._floor
        elif self._failures == FAILURES:
            self._failures, self.resistance = 0, 2 * before_cost
        return kept

    def limit(self, value: int) -> None:
        """Do without what there is no memory for."""
        self.value = max(1, value)
        self._tried = self._better = None
        self._floor = 1


class _Tuner(ABC):
    """When to try something, in periods long enough to judge by, and what to do."""

    first = 1  # the value that it begins with
    min_times, min_seconds = 4, 0.1  # of a period

    def __init__(self, run: Run, tuned_state: dict[str, Any] | None = None) -> None:
        self._tuned_state = {} if tuned_state is None else tuned_state
        self._climber = HillClimber(self.first, self.grown, self.gain)
        if "climber" in self._tuned_state:
            self._climber.state = self._tuned_state["climber"]
        self._budget = run.budget
        self._wait_timer = run.wait_timer
        self._changes = run.budget.changes
        self._begin(0.0, 0.0, skip=1)

    @abstractmethod
    def grown(self, value: int) -> int:
        """Propose a larger value."""

    @abstractmethod
    def gain(self, before: int, after: int) -> float:
        """Return how much of the cost a value has to save."""

    def _begin(self, now: float, waited: float, *, skip: int) -> None:
        """Begin a period; what was made before a change says nothing of it."""
        self._begun, self._waited_before = now, waited
        self._times, self._items = -skip, 0

    def _is_over(self, now: float, waited: float, items: int = 1) -> bool:
        """Note that items were handed on; True: the period is over."""
        self._times += 1
        if self._times <= 0:
            self._begun, self._waited_before = now, waited
            return False
        self._items += items
        return self._times >= self.min_times and now - self._begun >= self.min_seconds

    def _judge(self, now: float, waited: float, spare: int) -> None:
        """Judge the period that is over, or try something in the next one."""
        climber, budget = self._climber, self._budget
        seconds = waited - self._waited_before
        waiting = seconds / max(now - self._begun, 1e-9) > WAITING
        cost = seconds / max(1, self._items)
        before = climber.value
        if climber.is_trying:
            kept = climber.end_trial(cost, waiting=waiting)
            if kept is not None:
                budget.end_trial(kept=kept)
                self._changes = budget.changes
        elif budget.enabled:
            self._try(cost, spare, waiting=waiting)
        # So many items were made before a change.
        skip = 0 if climber.value == before else climber.value + SPARE
        self._begin(now, waited, skip=skip)
        if not climber.is_trying:
            self._tuned_state["climber"] = climber.state

    def _try(self, cost: float, spare: int, *, waiting: bool) -> None:
        climber, budget = self._climber, self._budget
        if budget.changes != self._changes:
            self._changes, climber.resistance = budget.changes, 0.0
        value = climber.propose(cost, spare, waiting=waiting)
        if value != climber.value and budget.begin_trial(self):
            climber.begin_trial(value, cost)

    def _limit(self, value: int) -> None:
        if value < self._climber.value:
            if self._climber.is_trying:
                self._budget.end_trial(kept=False)
            self._climber.limit(value)


class TunedDepth(_Tuner):
    r"""How many items wait in a queue, as AUTOTUNE has it: a `Depth`.

    The cost of a depth :math:`d` is the time that the queue's consumer waits, per item.
    Where it has found at least :math:`m` items each time, :math:`m - 1` are to spare.
    For items of :math:`b` bytes, :math:`(d + 2)\, b` stay within what the budget has
    left.
    """

    first = FIRST_DEPTH
    min_times, min_seconds = 16, 0.05
    _item_bytes = 0
    _waited = 0.0
    _min_waiting: int | None = None  # items, when the consumer came

    @property
    def capacity(self) -> int:
        return self._climber.value

    def learned(self, item_bytes: int) -> None:
        """Note what an item takes in the ring; 0: it lies elsewhere."""
        elsewhere = not item_bytes and self._budget.item_bytes > 0
        if elsewhere or item_bytes != self._item_bytes:
            self._item_bytes = item_bytes
            self._limit(self._fitting())
        self._budget.set_held(self, (self.capacity + SPARE) * item_bytes)

    def allocation_failed(self, fits: int) -> bool:
        """Do with less; False: there is not even memory for one."""
        self._limit(fits)
        return fits >= 1

    def consumed(self, waiting: int, waited: float) -> None:
        """Note that the consumer came, how many items waited, and how long it did."""
        self._waited += waited
        known = self._min_waiting
        self._min_waiting = waiting if known is None else min(known, waiting)
        now = self._wait_timer.clock()
        if self._is_over(now, self._waited):
            spare = min(self._min_waiting, self.capacity) - 1
            self._min_waiting = None
            self._judge(now, self._waited, spare)

    def grown(self, value: int) -> int:
        return max(value, min(2 * value, self._fitting()))

    def gain(self, before: int, after: int) -> float:
        return MIN_GAIN

    def _fitting(self) -> int:
        nbytes = self._item_bytes or self._budget.item_bytes
        return self._budget.available(self) // nbytes - SPARE if nbytes else 2**30


class TunedParallelism(_Tuner):
    """How many threads work at a step, as AUTOTUNE has it.

    1 is no thread: the consumer of the step does the work itself. The cost is the time
    that the consumer of the whole pass waits, per item of the step; a third of what
    perfect parallelism would save is enough, and a function that holds the GIL stays
    at 1. Within the cores and the bytes that other steps leave.
    """

    item_bytes = 0  # that one more thread holds

    def __init__(self, run: Run, tuned_state: dict[str, Any] | None = None) -> None:
        super().__init__(run, tuned_state)
        self._limit(run.budget.threads_for(self))
        run.budget.reserve_threads(self, self.parallelism)

    @property
    def parallelism(self) -> int:
        """How many threads work; 1 is the consumer's own."""
        return self._climber.value

    def consumed(self, items: int) -> None:
        now, waited = self._wait_timer.clock(), self._wait_timer.seconds()
        if self._is_over(now, waited, items):
            self._judge(now, waited, 1)
            self._budget.reserve_threads(self, self.parallelism)

    def allocation_failed(self) -> None:
        """Do with less: there is no memory for so many."""
        self._limit(self.parallelism - 1)

    def grown(self, value: int) -> int:
        limit = self._budget.threads_for(self)
        if self.item_bytes:
            available = self._budget.available(self)
            limit = min(limit, value + available // self.item_bytes)
        return max(value, min(2 * value, limit))

    def gain(self, before: int, after: int) -> float:
        return (1 - before / after) / 3
