"""Evaluation of outputs that are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from memcfg._checks import count
from memcfg._tables import draw, new_table
from memcfg.evaluation._evaluator import label_name
from memcfg.evaluation._outcomes import ratio
from memcfg.evaluation._settings_checks import label_names, same_size
from memcfg.evaluation._tallied import Tallied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["RegressionEvaluation"]

Floats = npt.NDArray[np.float64]

_ROWS = 40  # outputs that `stats` lists
_SUMS = (
    *("weight", "absolute", "squared", "label_mean", "prediction_mean"),
    *("label_moment", "prediction_moment", "comoment"),
)


class RegressionEvaluation(Tallied):
    """Errors and correlations of each of several outputs that are numbers.

    Its state is eight numbers an output: sums of errors, and means and central moments,
    which are combined without cancellation (Chan, Golub and LeVeque 1983). A mask may
    have a number for each output.

    Parameters
    ----------
    num_columns : int, optional
        The number of outputs. None: that of `labels`, or of the first batch.
    labels : sequence of str, optional
        Names of the outputs.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> evaluation = mc.evaluation.RegressionEvaluation()
    >>> evaluation.eval([1.0, 2.0, 3.0], [1.5, 2.0, 2.5])
    >>> evaluation.mean_absolute_error(0), evaluation.r_squared(0)
    (0.3333333333333333, 0.75)
    """

    __slots__ = ("_labels", "_wanted")

    _by_output = True
    _signed = frozenset(("label_mean", "prediction_mean", "comoment"))
    metrics: ClassVar[tuple[str, ...]] = (
        *("average_mean_squared_error", "average_mean_absolute_error"),
        *("average_root_mean_squared_error", "average_relative_squared_error"),
        *("average_pearson_correlation", "average_r_squared"),
    )

    def __init__(
        self, num_columns: int | None = None, *, labels: Sequence[str] | None = None
    ) -> None:
        names = label_names(labels)
        wanted = None if num_columns is None else count(num_columns, "num_columns")
        if names is not None and wanted not in (None, len(names)):
            raise ValueError(f"num_columns is {wanted}, and labels has {len(names)}")
        super().__init__(num_columns=num_columns, labels=names)
        self._labels = names
        self._wanted = wanted if names is None else len(names)

    def mean_squared_error(self, column: int) -> float:
        """Return the mean of the squared differences.

        Parameters
        ----------
        column : int
            The index of the output.

        Returns
        -------
        float
            NaN if all values of the output are masked.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such output.
        """
        return self._metric("mean_squared_error", column)

    def mean_absolute_error(self, column: int) -> float:
        """Return the mean of the absolute differences.

        Parameters
        ----------
        column : int
            The index of the output.

        Returns
        -------
        float
            NaN if all values of the output are masked.

        Raises
        ------
        RuntimeError, ValueError
            As of `mean_squared_error`.
        """
        return self._metric("mean_absolute_error", column)

    def root_mean_squared_error(self, column: int) -> float:
        """Return the root of `mean_squared_error`.

        Parameters
        ----------
        column : int
            The index of the output.

        Returns
        -------
        float
            NaN if all values of the output are masked.

        Raises
        ------
        RuntimeError, ValueError
            As of `mean_squared_error`.
        """
        return self._metric("root_mean_squared_error", column)

    def relative_squared_error(self, column: int) -> float:
        """Return the squared error over that of the mean of the labels.

        Parameters
        ----------
        column : int
            The index of the output.

        Returns
        -------
        float
            NaN if all labels are equal.

        Raises
        ------
        RuntimeError, ValueError
            As of `mean_squared_error`.
        """
        return self._metric("relative_squared_error", column)

    def pearson_correlation(self, column: int) -> float:
        """Return the correlation of labels and predictions.

        Parameters
        ----------
        column : int
            The index of the output.

        Returns
        -------
        float
            From -1 to 1; NaN if all labels or all predictions are equal.

        Raises
        ------
        RuntimeError, ValueError
            As of `mean_squared_error`.
        """
        return self._metric("pearson_correlation", column)

    def r_squared(self, column: int) -> float:
        """Return the coefficient of determination, 1 - `relative_squared_error`.

        Parameters
        ----------
        column : int
            The index of the output.

        Returns
        -------
        float
            At most 1; NaN if all labels are equal.

        Raises
        ------
        RuntimeError, ValueError
            As of `mean_squared_error`.
        """
        return self._metric("r_squared", column)

    def average_mean_squared_error(self) -> float:
        """Return the mean of `mean_squared_error` over the outputs.

        Returns
        -------
        float
            The mean of those that are defined.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._average("mean_squared_error")

    def average_mean_absolute_error(self) -> float:
        """Return the mean of `mean_absolute_error` over the outputs.

        Returns
        -------
        float
            The mean of those that are defined.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._average("mean_absolute_error")

    def average_root_mean_squared_error(self) -> float:
        """Return the mean of `root_mean_squared_error` over the outputs.

        Returns
        -------
        float
            The mean of those that are defined.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._average("root_mean_squared_error")

    def average_relative_squared_error(self) -> float:
        """Return the mean of `relative_squared_error` over the outputs.

        Returns
        -------
        float
            The mean of those that are defined.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._average("relative_squared_error")

    def average_pearson_correlation(self) -> float:
        """Return the mean of `pearson_correlation` over the outputs.

        Returns
        -------
        float
            The mean of those that are defined.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._average("pearson_correlation")

    def average_r_squared(self) -> float:
        """Return the mean of `r_squared` over the outputs.

        Returns
        -------
        float
            The mean of those that are defined.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._average("r_squared")

    def stats(self) -> str:
        """Return the numbers of each output as text for a terminal of 80 columns.

        Returns
        -------
        str
            A table.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        values = self._values()
        names = ("MSE", "MAE", "RMSE", "RSE", "PC", "R²")
        table = new_table("output", numbers=names)
        for i in range(min(self._wide(), _ROWS)):
            numbers = [_shown(each[i]) for each in values.values()]
            table.add_row(label_name(self._labels, i), *numbers)
        if self._wide() > _ROWS:
            table.add_row(f"... {self._wide() - _ROWS} more")
        table.add_row("mean", *(_shown(self._average(name)) for name in values))
        head = f"RegressionEvaluation of {self._wide()} outputs, {self._count} rows."
        return f"{head}\n{draw(table)}"

    # State

    def _shapes(self, columns: int) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(_SUMS, (columns,))

    def _check_columns(self, columns: int) -> None:
        same_size(columns, self._wanted, self._name)

    def _add(self, sums: dict[str, Floats], block: Block) -> None:
        labels, outputs, weights = block.labels, block.predictions, block.by_output
        total = weights.sum(0)
        errors = outputs - labels
        means = [
            np.divide(
                (weights * each).sum(0),
                total,
                out=np.zeros_like(total),
                where=total != 0,
            )
            for each in (labels, outputs)
        ]
        by_label, by_output = labels - means[0], outputs - means[1]
        new = {
            "weight": total,
            "absolute": (weights * np.abs(errors)).sum(0),
            "squared": (weights * errors * errors).sum(0),
            "label_mean": means[0],
            "prediction_mean": means[1],
            "label_moment": (weights * by_label * by_label).sum(0),
            "prediction_moment": (weights * by_output * by_output).sum(0),
            "comoment": (weights * by_label * by_output).sum(0),
        }
        sums |= self._combined(sums, new)

    def _combined(
        self, one: Mapping[str, Floats], other: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """Combine means and moments by their differences (Chan et al. 1983)."""
        result = {
            name: one[name] + other[name] for name in ("weight", "absolute", "squared")
        }
        total = result["weight"]
        share = np.divide(
            other["weight"], total, out=np.zeros_like(total), where=total != 0
        )
        by_label = other["label_mean"] - one["label_mean"]
        by_output = other["prediction_mean"] - one["prediction_mean"]
        factor = one["weight"] * share
        result["label_mean"] = one["label_mean"] + by_label * share
        result["prediction_mean"] = one["prediction_mean"] + by_output * share
        for name, product in (
            ("label_moment", by_label * by_label),
            ("prediction_moment", by_output * by_output),
            ("comoment", by_label * by_output),
        ):
            result[name] = one[name] + other[name] + factor * product
        return result

    def _values(self) -> dict[str, Any]:
        self._require_data()
        sums = self._sums
        squared = ratio(sums["squared"], sums["weight"])
        relative = ratio(sums["squared"], sums["label_moment"])
        spread = np.sqrt(sums["label_moment"]) * np.sqrt(sums["prediction_moment"])
        return {
            "mean_squared_error": squared,
            "mean_absolute_error": ratio(sums["absolute"], sums["weight"]),
            "root_mean_squared_error": np.sqrt(squared),
            "relative_squared_error": relative,
            "pearson_correlation": ratio(sums["comoment"], spread),
            "r_squared": 1 - relative,
        }

    def _metric(self, name: str, column: int) -> float:
        values = self._values()[name]
        return float(values[self._place(column, "column")])

    def _average(self, name: str) -> float:
        values = self._values()[name]
        known = values[~np.isnan(values)]
        return float(known.mean()) if known.size else float("nan")


def _shown(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.5g}"
