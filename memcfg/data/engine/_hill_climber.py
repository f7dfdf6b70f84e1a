"""One whole number, improved by trying its neighbours.

Owns the rule. Refuses to measure: it is told what a value costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Climber"]

CALM = 4  # periods without waiting after which less is tried
VAIN = 2  # tries after which only a higher cost is worth another


class Climber:
    r"""A number that grows while that pays, and shrinks where it is not needed.

    Parameters
    ----------
    value : int
        The first value, at least 1.
    grown : callable
        What to try above a value; the value itself where there is nothing.
    gain : callable
        Which share of the cost must be saved by going from one value to another.

    Notes
    -----
    In each period a value :math:`v` has a cost :math:`c_v` (seconds waited per item).

    * Waiting, and :math:`c_v > r`: try :math:`w = \mathrm{grown}(v)` for a period, and,
      if that was better, :math:`v` once more, which costs :math:`c'_v`: so nothing that
      happens once is taken for its effect. Take :math:`w` if
      :math:`c_w \le (1 - g(v, w)) \min(c_v, c'_v)`; after the second time in vain,
      :math:`r = 2 c_v`.
    * No waiting for `CALM` periods, and :math:`s` to spare: try
      :math:`w = \max(v - s, f)`. Keep it if nothing is waited for; else go back, and
      let :math:`f = v`.
    * A value that was taken on the way up, after one was kept on the way down, is
      :math:`f` from then on.

    So the number of changes is bounded while costs stay below some :math:`C`: every two
    tries upwards in vain double :math:`r`, which makes at most
    :math:`2 \log_2 (C / r_0)` of them; each in vain downwards, and each pair of a way
    down and a way up, raises :math:`f`, which values bound.
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
        self._resistance = 0.0
        self._vain = 0
        self._floor = 1
        self._calm = 0
        self._shrunk = False

    @property
    def learned(self) -> tuple[int, int, float, int]:
        """The value, and what was tried in vain, for `resume`; not during a try."""
        return self.value, self._vain, self._resistance, self._floor

    def resume(self, learned: tuple[int, int, float, int]) -> None:
        """Go on where another climber was.

        Parameters
        ----------
        learned : tuple
            Its `learned`.
        """
        self.value, self._vain, self._resistance, self._floor = learned

    @property
    def is_trying(self) -> bool:
        """Whether the value is being tried."""
        return self._tried is not None

    def wish(self, cost: float, spare: int, *, waiting: bool) -> int:
        """Tell what to try next.

        Parameters
        ----------
        cost : float
            Of the value, in the last period.
        spare : int
            By how much it could have been less.
        waiting : bool
            Whether the cost is worth anything.

        Returns
        -------
        int
            The value itself if nothing.
        """
        self._calm = 0 if waiting else self._calm + 1
        if waiting:
            return self._grown(self.value) if cost > self._resistance else self.value
        if self._calm < CALM or spare <= 0:
            return self.value
        return min(self.value, max(self.value - spare, self._floor))

    def try_out(self, value: int, cost: float) -> None:
        """Have another value for a period.

        Parameters
        ----------
        value : int
            What `wish` told.
        cost : float
            Of the value before.
        """
        self._tried = (self.value, cost)
        self.value = value

    def judge(self, cost: float, *, waiting: bool) -> bool | None:
        """Keep what was tried, or go back.

        Parameters
        ----------
        cost : float
            Of the value that was tried.
        waiting : bool
            Whether it is worth anything.

        Returns
        -------
        bool or None
            Whether it was kept; None if it is not known yet.
        """
        if self._tried is None:
            return False
        before, before_cost = self._tried
        self._calm = 0
        if self.value < before:
            self._tried = None
            return self._judge_less(before, waiting=waiting)
        if self._better is None:
            return self._judge_more(before, before_cost, cost)
        (value, value_cost), self._better, self._tried = self._better, None, None
        if value_cost > self._enough(before, value) * min(before_cost, cost):
            self._note_vain(before_cost)
            return False
        self.value, self._vain = value, 0
        if self._shrunk:
            self._floor = value
        return True

    def _judge_more(self, before: int, before_cost: float, cost: float) -> bool | None:
        value, self.value = self.value, before
        if cost <= self._enough(before, value) * before_cost:
            self._better = value, cost
            return None
        self._tried = None
        self._note_vain(before_cost)
        return False

    def _enough(self, before: int, after: int) -> float:
        """Tell which part of the cost may be left."""
        return 1 - self._gain(before, after)

    def _note_vain(self, cost: float) -> None:
        self._vain += 1
        if self._vain == VAIN:
            self._vain, self._resistance = 0, 2 * cost

    def _judge_less(self, before: int, *, waiting: bool) -> bool:
        if waiting:
            self.value = self._floor = before
            return False
        self._shrunk = True
        return True

    def limit(self, value: int) -> None:
        """Do without what there is no room for.

        Parameters
        ----------
        value : int
            The most that there is room for.
        """
        if value < self.value:
            self.value = max(1, value)
            self._tried = self._better = None
            self._floor = 1

    def encourage(self) -> None:
        """Forget what was tried in vain: something else has changed."""
        self._resistance = 0.0
