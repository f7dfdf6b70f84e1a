"""Curves of several classes or outputs, and averages over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg._tables import draw, new_table
from memcfg.evaluation.scores._scored import MAX_POINTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.evaluation.curves import PrecisionRecallCurve, RocCurve
    from memcfg.evaluation.scores._sweep import Sweep

__all__ = ["SeveralCurves"]

_ROWS = 40  # curves that `stats` lists


class SeveralCurves:
    """The methods of a `Scored` with one curve for each class or output."""

    __slots__ = ()

    _what: ClassVar[str]  # that a curve is of

    if TYPE_CHECKING:  # of `Scored`, the other base
        _name: Any
        _steps: int
        _count: int
        _sweep: Callable[..., Sweep]
        _points: Callable[[int | None], int]
        _wide: Callable[[], int]
        _require_data: Callable[[], int]
        _each: Callable[[Callable[[Sweep], float]], list[float]]
        _called: Callable[[int], str]

    def calculate_auc(self, index: int) -> float:
        """Return the area under the ROC of a class or an output.

        Parameters
        ----------
        index : int
            The class or the output.

        Returns
        -------
        float
            From 0 to 1; NaN if there are only positives or only negatives.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is none of this index.
        """
        return self._sweep(index).auc

    def calculate_auprc(self, index: int) -> float:
        """Return the area under precision over recall of a class or an output.

        Parameters
        ----------
        index : int
            The class or the output.

        Returns
        -------
        float
            From 0 to 1; NaN without a positive.

        Raises
        ------
        RuntimeError, ValueError
            As of `calculate_auc`.
        """
        return self._sweep(index).auprc

    def calculate_average_auc(self) -> float:
        """Return the mean of the areas under the ROCs that are defined.

        Returns
        -------
        float
            From 0 to 1; NaN if none is.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return _mean(self._each(lambda sweep: sweep.auc))

    def calculate_average_auprc(self) -> float:
        """Return the mean of the areas under precision over recall that are defined.

        Returns
        -------
        float
            From 0 to 1; NaN if none is.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return _mean(self._each(lambda sweep: sweep.auprc))

    def get_roc_curve(
        self, index: int, max_points: int | None = MAX_POINTS
    ) -> RocCurve:
        """Return the true over the false positive rate of a class or an output.

        Parameters
        ----------
        index : int
            The class or the output.
        max_points : int, optional
            If there are more thresholds, about every n-th is a point. None: all are.

        Returns
        -------
        RocCurve
            It draws itself.

        Raises
        ------
        RuntimeError, ValueError
            As of `calculate_auc`, or if `max_points` is below 2.
        """
        self._require_data()
        sweep = self._sweep(index, self._points(max_points))
        return sweep.roc_curve(f"{self._what} {self._called(index)}")

    def get_precision_recall_curve(
        self, index: int, max_points: int | None = MAX_POINTS
    ) -> PrecisionRecallCurve:
        """Return precision over recall of a class or an output.

        Parameters
        ----------
        index : int
            The class or the output.
        max_points : int, optional
            As of `get_roc_curve`.

        Returns
        -------
        PrecisionRecallCurve
            It draws itself.

        Raises
        ------
        RuntimeError, ValueError
            As of `get_roc_curve`.
        """
        self._require_data()
        sweep = self._sweep(index, self._points(max_points))
        return sweep.precision_recall_curve(f"{self._what} {self._called(index)}")

    def stats(self) -> str:
        """Return the areas as text for a terminal of 80 columns.

        Returns
        -------
        str
            A table.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        curves = self._wide()
        table = new_table(
            self._what, numbers=("AUC", "AUPRC", "positives", "negatives")
        )
        sweeps = [self._sweep(i) for i in range(curves)]
        for i, each in enumerate(sweeps[:_ROWS]):
            table.add_row(
                self._called(i),
                *(_shown(area) for area in (each.auc, each.auprc)),
                f"{each.positives:g}",
                f"{each.negatives:g}",
            )
        if curves > _ROWS:
            table.add_row(f"... {curves - _ROWS} more")
        means = _mean([s.auc for s in sweeps]), _mean([s.auprc for s in sweeps])
        table.add_row("mean", *map(_shown, means), "", "")
        how = f"{self._steps + 1} thresholds" if self._steps else "exact"
        return f"{self._name}, {how}: {self._count} rows\n{draw(table)}"

    def _pictures(self) -> str:
        return self.get_roc_curve(0)._repr_html_() if self._count else ""


def _mean(values: list[float]) -> float:
    known = [each for each in values if not np.isnan(each)]
    return float(np.mean(known)) if known else float("nan")


def _shown(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4f}"
