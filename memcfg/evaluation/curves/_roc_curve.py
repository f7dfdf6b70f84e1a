"""The receiver operating characteristic of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memcfg.evaluation.curves._chart import Chart, Line
from memcfg.evaluation.curves._figure import Figure

__all__ = ["RocCurve"]

Floats = npt.NDArray[np.float64]


class RocCurve(Figure):
    """True over false positive rate, from the highest threshold to the lowest.

    Parameters
    ----------
    thresholds : numpy.ndarray
        Descending; the first is infinite, above all outputs.
    true_positives, false_positives : numpy.ndarray
        Counts of positives and negatives at or above each threshold.
    positives, negatives : float
        Their numbers.
    area : float
        The area under the curve of all points, also of those left out.
    name : str, default ""
        The name of the class.

    Attributes
    ----------
    thresholds, true_positives, false_positives, positives, negatives, area, name
        The parameters.
    """

    __slots__ = (
        "area",
        "false_positives",
        "name",
        "negatives",
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
        negatives: float,
        area: float,
        name: str = "",
    ) -> None:
        self.thresholds = thresholds
        self.true_positives = true_positives
        self.false_positives = false_positives
        self.positives = positives
        self.negatives = negatives
        self.area = area
        self.name = name

    @property
    def true_positive_rate(self) -> Floats:
        """The shares of the positives; NaN without one."""
        return _share(self.true_positives, self.positives)

    @property
    def false_positive_rate(self) -> Floats:
        """The shares of the negatives; NaN without one."""
        return _share(self.false_positives, self.negatives)

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.thresholds)

    def __repr__(self) -> str:
        """Return the number of points and the area."""
        return f"<RocCurve of {len(self)} points, area {self.area:.4f}>"

    def _chart(self) -> Chart:
        x, y = self.false_positive_rate, self.true_positive_rate
        known = ~(np.isnan(x) | np.isnan(y))
        chance = Line((0.0, 1.0), (0.0, 1.0), "chance", dashed=True)
        curve = Line(x[known], y[known], f"AUC {self.area:.4f}", filled=True)
        title = f"ROC of {self.name}" if self.name else "ROC"
        return Chart(
            title, "false positive rate", "true positive rate", (chance, curve)
        )


def _share(counts: Any, total: float) -> Floats:
    return np.asarray(counts) / total if total else np.full(len(counts), np.nan)
