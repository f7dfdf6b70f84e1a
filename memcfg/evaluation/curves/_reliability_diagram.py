"""How often what is predicted with a probability happens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcfg.evaluation.curves._chart import Chart, Line
from memcfg.evaluation.curves._figure import Figure

__all__ = ["ReliabilityDiagram"]

Floats = npt.NDArray[np.float64]


class ReliabilityDiagram(Figure):
    """The share of positives over the mean predicted probability, by bin.

    Parameters
    ----------
    mean_predicted_value : numpy.ndarray
        The mean probability of each bin.
    fraction_positives : numpy.ndarray
        The share of positives of each bin.
    counts : numpy.ndarray
        The numbers of predictions of each bin.
    name : str, default ""
        The name of the class.

    Attributes
    ----------
    mean_predicted_value, fraction_positives, counts, name
        The parameters.
    """

    __slots__ = ("counts", "fraction_positives", "mean_predicted_value", "name")

    def __init__(
        self,
        mean_predicted_value: Floats,
        fraction_positives: Floats,
        counts: Floats,
        name: str = "",
    ) -> None:
        self.mean_predicted_value = mean_predicted_value
        self.fraction_positives = fraction_positives
        self.counts = counts
        self.name = name

    def __repr__(self) -> str:
        """Return the number of bins."""
        return f"<ReliabilityDiagram of {len(self.counts)} bins>"

    def _chart(self) -> Chart:
        known = self.counts > 0
        perfect = Line((0.0, 1.0), (0.0, 1.0), "calibrated", dashed=True)
        x, y = self.mean_predicted_value[known], self.fraction_positives[known]
        title = "Reliability" + (f" of {self.name}" if self.name else "")
        return Chart(
            title,
            "mean predicted probability",
            "share of positives",
            (perfect, Line(x, y, "predictions", dots=True)),
        )
