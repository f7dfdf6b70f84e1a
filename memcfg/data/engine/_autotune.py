"""AUTOTUNE: the choice of buffer sizes and numbers of threads during a pass.

References
----------
Murray, Šimša, Klimovic, Indyk (2021). tf.data: A Machine Learning Data Processing
Framework. Proceedings of the VLDB Endowment 14(12). Its autotuner climbs hills in a
model of the pipeline's latency, within a budget of cores and bytes, and doubles a
buffer that was full and becomes empty. Here there is no model: a change is tried and
kept if the measured waiting time decreases.

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
CALM = 4  # periods without waiting after which a smaller value is tried
FAILURES = 2  # failed trials after which only a higher cost starts another
WAITING = 0.02  # fraction of a period from which on the consumer counts as waiting
MIN_GAIN = 1 / 8  # of the cost, that a buffer twice as large must save
FIRST_DEPTH = 2


class HillClimber:
    r"""An integer that is improved by trying larger and smaller values.

    In each period a value :math:`v` has a cost :math:`c_v` (seconds waited per item).
    The state has a resistance :math:`r` and a floor :math:`f`.

    * If the consumer waits and :math:`c_v > r`: try :math:`w = \mathrm{grown}(v)`, and,
      if that is better, :math:`v` once more, at cost :math:`c'_v`. Keep :math:`w` if
      :math:`c_w \le (1 - \mathrm{gain}(v, w)) \min(c_v, c'_v)`; after the second failed
      trial, set :math:`r = 2 c_v`.
    * If it has not waited for `CALM` periods and :math:`s` are to spare: try
      :math:`w = \max(v - s, f)`. Keep it if there is no waiting; else set
      :math:`f = v`.
    * Once a smaller value has been kept, each larger value that is kept sets :math:`f`.

    The number of changes is bounded while costs stay below some :math:`C`: each failure
    upwards doubles :math:`r`, every other change raises :math:`f`.
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
        self._better: tuple[int, float] | None = None  # a value better than that
        self.resistance = 0.0  # only a higher cost starts a trial
        self._failures = 0
        self._floor = 1
        self._calm = 0
        self._shrunk = False

    @property
    def state(self) -> tuple[int, int, float, int]:
        """The value and the record of failures; not to be read during a trial."""
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
        """Keep the tried value or revert; return whether kept, None if undecided."""
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
        again = self._better is not None  # the old value has been measured once more
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
        """Lower the value to what there is memory for, at least 1."""
        self.value = max(1, value)
        self._tried = self._better = None
        self._floor = 1


class _Tuner(ABC):
    """A value tuned by a `HillClimber`, in periods that are long enough to judge."""

    first = 1  # initial value
    min_times, min_seconds = 4, 0.1  # min. calls and seconds of a period

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
        """Return the fraction of the cost that the change must save to be kept."""

    def _begin(self, now: float, waited: float, *, skip: int) -> None:
        """Begin a period, after `skip` items that were made before the change."""
        self._begun, self._waited_before = now, waited
        self._times, self._items = -skip, 0

    def _is_over(self, now: float, waited: float, items: int = 1) -> bool:
        """Record delivered items; return whether the period is over."""
        self._times += 1
        if self._times <= 0:
            self._begun, self._waited_before = now, waited
            return False
        self._items += items
        return self._times >= self.min_times and now - self._begun >= self.min_seconds

    def _judge(self, now: float, waited: float, spare: int) -> None:
        """Judge the trial of the past period, or begin a trial for the next one."""
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
        # Items in the buffer were made before the change: skip them.
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
    r"""The capacity of a queue, chosen by AUTOTUNE.

    The cost of a depth :math:`d` is the time that the queue's consumer waits per item.
    If at least :math:`m` items were in the queue at each call, :math:`m - 1` are to
    spare. For items of :math:`b` bytes, :math:`(d + 2)\, b` stays within the budget
    that other buffers leave.
    """

    first = FIRST_DEPTH
    min_times, min_seconds = 16, 0.05
    _item_bytes = 0
    _waited = 0.0
    _min_waiting: int | None = None  # min. items in the queue when the consumer came

    @property
    def capacity(self) -> int:
        return self._climber.value

    @property
    def asked(self) -> int:
        """The capacity that it would try with more memory."""
        value = self.capacity
        is_short = self._budget.follows_memory and self._fitting() <= value
        return 2 * value if is_short else value

    def learned(self, item_bytes: int) -> None:
        """Record the bytes of an item in the ring; 0: items lie outside of it."""
        elsewhere = not item_bytes and self._budget.item_bytes > 0
        if elsewhere or item_bytes != self._item_bytes:
            self._item_bytes = item_bytes
            self._limit(self._fitting())
        self._budget.set_held(self, (self.capacity + SPARE) * item_bytes)

    def allocation_failed(self, fits: int) -> bool:
        """Lower the depth to `fits`; return False if not even one item fits."""
        self._limit(fits)
        return fits >= 1

    def consumed(self, waiting: int, waited: float) -> None:
        """Record a call of the consumer: items in the queue, and seconds it waited."""
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
    """The number of threads of a step, chosen by AUTOTUNE.

    1 means no thread: the consumer of the step does the work itself. The cost is the
    time that the consumer of the whole pass waits, per item of the step. A change must
    save a third of what perfect parallelism would save, so a function that holds the
    GIL stays at 1. Limited to the cores and bytes that other steps leave.
    """

    item_bytes = 0  # bytes that one more thread holds

    def __init__(self, run: Run, tuned_state: dict[str, Any] | None = None) -> None:
        super().__init__(run, tuned_state)
        self._limit(run.budget.threads_for(self))
        run.budget.reserve_threads(self, self.parallelism)

    @property
    def parallelism(self) -> int:
        """The number of threads; 1 is the consumer's own."""
        return self._climber.value

    def consumed(self, items: int) -> None:
        now, waited = self._wait_timer.clock(), self._wait_timer.seconds()
        if self._is_over(now, waited, items):
            self._judge(now, waited, 1)
            self._budget.reserve_threads(self, self.parallelism)

    def allocation_failed(self) -> None:
        """Use one thread less: an allocation failed."""
        self._limit(self.parallelism - 1)

    def grown(self, value: int) -> int:
        limit = self._budget.threads_for(self)
        if self.item_bytes:
            available = self._budget.available(self)
            limit = min(limit, value + available // self.item_bytes)
        return max(value, min(2 * value, limit))

    def gain(self, before: int, after: int) -> float:
        return (1 - before / after) / 3
