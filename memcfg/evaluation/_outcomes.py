"""Rates of true and false positives and negatives; 0/0 is NaN."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["Outcomes", "mean_of_defined", "ratio"]


def ratio(numerator: Any, denominator: Any) -> Any:
    """Divide, with NaN where the denominator is 0."""
    over = np.asarray(denominator, np.float64)
    return np.divide(
        numerator, over, out=np.full(np.shape(over), np.nan), where=over != 0
    )


def mean_of_defined(values: Any) -> float:
    """Return the mean of the values that are not NaN; 0 if all are."""
    known = np.asarray(values)[~np.isnan(values)]
    return float(known.mean()) if known.size else 0.0


class Outcomes(NamedTuple):
    """Counts, or arrays of them."""

    tp: Any
    fp: Any
    fn: Any
    tn: Any

    def total(self) -> Outcomes:
        """Return the sums over all classes."""
        return Outcomes(*(np.sum(each) for each in self))

    def at(self, index: int) -> Outcomes:
        """Return the counts of a class."""
        return Outcomes(*(each[index] for each in self))

    def precision(self) -> Any:
        """Return the share of true ones among the predicted positives."""
        return ratio(self.tp, self.tp + self.fp)

    def recall(self) -> Any:
        """Return the share of predicted ones among the positives."""
        return ratio(self.tp, self.tp + self.fn)

    def false_positive_rate(self) -> Any:
        """Return the share of predicted ones among the negatives."""
        return ratio(self.fp, self.fp + self.tn)

    def false_negative_rate(self) -> Any:
        """Return the share of the positives that were not predicted."""
        return ratio(self.fn, self.tp + self.fn)

    def f_beta(self, beta: float) -> Any:
        """Return the F score; NaN if precision or recall is, 0 if both are 0."""
        precision, recall = self.precision(), self.recall()
        square = beta * beta
        score = ratio((1 + square) * precision * recall, square * precision + recall)
        return np.where((precision == 0) & (recall == 0), 0.0, score)

    def g_measure(self) -> Any:
        """Return the geometric mean of precision and recall."""
        return np.sqrt(self.precision() * self.recall())

    def matthews_correlation(self) -> Any:
        """Return the correlation of labels and predictions (Matthews 1975)."""
        tp, fp, fn, tn = (np.asarray(each, np.float64) for each in self)
        product = np.sqrt(tp + fp) * np.sqrt(tp + fn)
        product = product * np.sqrt(tn + fp) * np.sqrt(tn + fn)
        return ratio(tp * tn - fp * fn, product)
