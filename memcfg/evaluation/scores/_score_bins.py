"""Positives and negatives between thresholds of equal distance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.evaluation._tallied import read_array

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ScoreBins"]

Floats = npt.NDArray[np.float64]


class ScoreBins:
    """Sums of weights of scores from 0 to 1, by the highest threshold not above."""

    __slots__ = ("_kept", "_new")

    def __init__(self, steps: int) -> None:
        self._kept = np.zeros((2, steps + 1))  # positives, negatives
        self._new = np.zeros((2, steps + 1))  # since the last `commit`

    @property
    def nbytes(self) -> int:
        """The bytes in memory."""
        return self._kept.nbytes + self._new.nbytes

    spilled_bytes = 0

    @property
    def rows(self) -> int:
        """The number of thresholds."""
        return self._kept.shape[1]

    def _thresholds(self) -> Floats:
        return np.arange(self.rows) / (self.rows - 1)

    def add(self, scores: Floats, positive: Floats, negative: Floats) -> None:
        """Add scores with the weights that they have as positives and negatives."""
        places = np.searchsorted(self._thresholds(), scores, side="right") - 1
        self._new[0] += np.bincount(places, positive, self.rows)
        self._new[1] += np.bincount(places, negative, self.rows)

    def extend(self, other: ScoreBins) -> None:
        """Add the sums of another."""
        self._new += other._kept

    def commit(self) -> None:
        """Keep what was added."""
        self._kept += self._new
        self._new[...] = 0

    def rollback(self) -> None:
        """Forget what was added since the last `commit`."""
        self._new[...] = 0

    def scan(self) -> Iterator[Floats]:
        """Return thresholds, positives and negatives, from the highest threshold."""
        return iter([np.vstack((self._thresholds(), self._kept))[:, ::-1]])

    def written(self) -> Any:
        """Return the sums as values of JSON."""
        return self._kept.tolist()

    def read(self, value: Any) -> None:
        """Take the sums from values of JSON; FormatError if they are none."""
        self._kept[...] = read_array(value, self._kept.shape, "scores")
