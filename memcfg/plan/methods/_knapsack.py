"""Exact solution of the multiple-choice knapsack problem (bytes against seconds)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATES = 100_000  # max. states after a group; if some are cut, nothing is proven
_NOISE = 1e-12  # relative rounding error of bounds, which are summed in another order


class Option(NamedTuple):
    """Bytes and seconds of one choice of a group."""

    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Division:
    """The chosen option of each group, and whether the choice is proven optimal."""

    chosen: tuple[int, ...]
    proven: bool


class _State(NamedTuple):
    """A choice for the first groups: `last` of the last one, the rest in `before`."""

    nbytes: int
    seconds: float
    last: int
    before: _State | None


def front(options: Sequence[Option]) -> list[int]:
    """Return the indices of the Pareto-optimal options, by increasing bytes."""
    result: list[int] = []
    for number in sorted(range(len(options)), key=lambda n: (*options[n], n)):
        if not result or options[number].seconds < options[result[-1]].seconds:
            result.append(number)
    return result


def divide(groups: Sequence[Sequence[Option]], total: int) -> Division:
    """Choose an option of each group for the least seconds within `total` bytes.

    Each group must have an option of 0 bytes. A dynamic program over groups keeps the
    Pareto-optimal states that the linear relaxation of the remaining groups does not
    exclude (D. Pisinger, "A minimal algorithm for the multiple-choice knapsack
    problem", European Journal of Operational Research 83, 1995).
    """
    fronts = [front(group) for group in groups]
    rows = [
        [groups[k][n] for n in numbers if groups[k][n].nbytes <= total]
        for k, numbers in enumerate(fronts)
    ]
    bounds = _Relaxations(rows)
    noise = _NOISE * sum(row[0].seconds for row in rows)
    best = _rounded(rows, bounds, total) + noise
    states = [_State(0, 0.0, -1, None)]
    proven = True
    for k, row in enumerate(rows):
        following = sorted(
            (
                _State(
                    state.nbytes + option.nbytes,
                    state.seconds + option.seconds,
                    n,
                    state,
                )
                for state in states
                for n, option in enumerate(row)
                if state.nbytes + option.nbytes <= total
            ),
            key=lambda state: state[:2],
        )
        states = []
        for state in following:
            if states and state.seconds >= states[-1].seconds:
                continue
            least = state.seconds + bounds.least(k + 1, total - state.nbytes)
            if least <= best:
                states.append(state)
        if len(states) > _STATES:
            proven = False
            ranked = sorted(
                states, key=lambda s: s.seconds + bounds.least(k + 1, total - s.nbytes)
            )
            states = sorted(ranked[:_STATES], key=lambda state: state[:2])
    end: _State | None = min(states, key=lambda state: state.seconds)
    chosen = []
    for k in reversed(range(len(rows))):
        assert end is not None
        chosen.append(fronts[k][end.last])
        end = end.before
    return Division(tuple(reversed(chosen)), proven)


class _Relaxations:
    """Optima of the linear relaxation (fractions of options) for the last groups."""

    def __init__(self, rows: Sequence[Sequence[Option]]) -> None:
        self.least_bytes: list[list[int]] = [[0]]  # from the last group to the first
        self.saved: list[list[float]] = [[0.0]]
        self.base = [0.0]
        steps: list[tuple[float, int, float]] = []  # rate, bytes, seconds saved
        for row in reversed(rows):
            corners = hull(row)
            for near, far in pairwise(corners):
                nbytes, saves = far.nbytes - near.nbytes, near.seconds - far.seconds
                steps.append((saves / nbytes, nbytes, saves))
            steps.sort(reverse=True)
            self.base.append(self.base[-1] + row[0].seconds)
            self.least_bytes.append([*accumulate((b for _, b, _ in steps), initial=0)])
            self.saved.append([*accumulate((s for *_, s in steps), initial=0.0)])

    def least(self, first: int, room: int) -> float:
        """Return the optimum of the groups from `first` on, within `room` bytes."""
        k = len(self.base) - 1 - first
        ends, saved = self.least_bytes[k], self.saved[k]
        at = bisect_right(ends, room) - 1
        most = saved[at]
        if at + 1 < len(ends):
            part = (room - ends[at]) / (ends[at + 1] - ends[at])
            most += part * (saved[at + 1] - saved[at])
        return self.base[k] - most


def hull(row: Sequence[Option]) -> list[Option]:
    """Return the options of a front that are corners of its lower convex hull."""
    corners: list[Option] = []
    for option in row:
        while len(corners) > 1 and _rate(corners[-2], corners[-1]) <= _rate(
            corners[-1], option
        ):
            corners.pop()
        corners.append(option)
    return corners


def _rate(near: Option, far: Option) -> float:
    return (near.seconds - far.seconds) / (far.nbytes - near.nbytes)


def _rounded(
    rows: Sequence[Sequence[Option]], bounds: _Relaxations, total: int
) -> float:
    """Return the seconds of a greedy choice: each group takes the lowest bound."""
    seconds, left = 0.0, total
    for k, row in enumerate(rows):
        option = min(
            (each for each in row if each.nbytes <= left),
            key=lambda each, k=k, left=left: (  # type: ignore[misc]
                each.seconds + bounds.least(k + 1, left - each.nbytes)
            ),
        )
        seconds += option.seconds
        left -= option.nbytes
    return seconds
