"""Running sums over the samples of an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memcfg.nn.training._objectives import Objectives

__all__ = ["Totals"]


class Totals:
    """Running sums over the samples of an epoch."""

    def __init__(self, objectives: Objectives) -> None:
        self._objectives = objectives
        self.means = 1 + len(objectives.terms) * objectives.several
        self._samples = 0
        self._sums: list[Any] = [0.0] * objectives.value_count

    def add(self, samples: int, values: tuple[Any, ...]) -> None:
        """Add a step's results: its losses, which are means, and its metrics' sums."""
        self._samples += samples
        sums, means = self._sums, self.means
        for i in range(means):
            sums[i] += values[i] * samples
        for i in range(means, len(sums)):
            sums[i] = sums[i] + values[i]

    def logs(self) -> dict[str, float]:
        """Return the logs by name; empty if there were no samples."""
        if not self._samples:
            return {}
        return self._objectives.logs(self._sums, self._samples)
