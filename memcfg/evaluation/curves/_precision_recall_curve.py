"""Precision over recall of a classifier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcfg.evaluation.curves._chart import Chart, Line
from memcfg.evaluation.curves._figure import Figure

__all__ = ["PrecisionRecallCurve"]

Floats = npt.NDArray[np.float64]


class PrecisionRecallCurve(Figure):
    """Precision over recall, from the highest threshold to the lowest.

    Parameters
    ----------
    thresholds : numpy.ndarray
        Descending; the first is infinite, above all outputs.
    true_positives, false_positives : numpy.ndarray
        Counts of positives and negatives at or above each threshold.
    positives : float
        The number of positives.
    area : float
        The area under the curve of all points, also of those left out.
    name : str, default ""
        The name of the class.

    Attributes
    ----------
    thresholds, true_positives, false_positives, positives, area, name
        The parameters.
    """

    __slots__ = (
        "area",
        "false_positives",
        "name",
        "positives",
        "thresholds",
        "true_positives",
    )

    def __init__(
        self,
        thresholds: Floats,
        true_positives: Floats,
        false_positives: Floats,
        positives: float,
        area: float,
        name: str = "",
    ) -> None:
        self.thresholds = thresholds
        self.true_positives = true_positives
        self.false_positives = false_positives
        self.positives = positives
        self.area = area
        self.name = name

    @property
    def precision(self) -> Floats:
        """The shares of positives at or above each threshold; 1 where there is none."""
        found = self.true_positives + self.false_positives
        return np.divide(
            self.true_positives, found, out=np.ones(len(found)), where=found != 0
        )

    @property
    def recall(self) -> Floats:
        """The shares of the positives; NaN without one."""
        if not self.positives:
            return np.full(len(self.thresholds), np.nan)
        return np.asarray(self.true_positives) / self.positives

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.thresholds)

    def __repr__(self) -> str:
        """Return the number of points and the area."""
        return f"<PrecisionRecallCurve of {len(self)} points, area {self.area:.4f}>"

    def _chart(self) -> Chart:
        x, y = self.recall, self.precision
        known = ~np.isnan(x)
        curve = Line(x[known], y[known], f"AUPRC {self.area:.4f}", filled=True)
        title = "Precision and recall" + (f" of {self.name}" if self.name else "")
        return Chart(title, "recall", "precision", (curve,))
