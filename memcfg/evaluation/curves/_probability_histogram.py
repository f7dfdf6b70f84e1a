"""Counts in bins of equal width."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memcfg.evaluation.curves._chart import Bars, Chart
from memcfg.evaluation.curves._figure import Figure

__all__ = ["Histogram"]

# Round distances of five ticks of counts.
_STEPS = [digit * 10**power for power in range(19) for digit in (1, 2, 5)]


class Histogram(Figure):
    """Counts in bins of equal width from 0 to 1.

    Parameters
    ----------
    counts : numpy.ndarray
        The count of each bin.
    title, x_label : str
        What is counted.

    Attributes
    ----------
    counts, title, x_label
        The parameters.
    """

    __slots__ = ("counts", "title", "x_label")

    def __init__(self, counts: npt.NDArray[Any], title: str, x_label: str) -> None:
        self.counts = counts
        self.title = title
        self.x_label = x_label

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The limits of the bins, one more than there are bins."""
        return np.arange(len(self.counts) + 1) / len(self.counts)

    def __repr__(self) -> str:
        """Return the number of bins and counts."""
        return f"<Histogram of {len(self.counts)} bins, {self.counts.sum():g}>"

    def _chart(self) -> Chart:
        most = float(self.counts.max())
        step = next((each for each in _STEPS if 5 * each >= most), most / 5)
        bars = Bars(self.edges, self.counts)
        top = 5.0 * step
        return Chart(self.title, self.x_label, "count", (bars,), y_range=(0.0, top))
