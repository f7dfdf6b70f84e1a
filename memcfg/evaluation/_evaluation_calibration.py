"""Calibration: whether predicted probabilities are how often something happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from memcfg._checks import count, flag
from memcfg._tables import draw, new_table
from memcfg.evaluation._evaluator import label_name
from memcfg.evaluation._outcomes import ratio
from memcfg.evaluation._settings_checks import label_names, same_size
from memcfg.evaluation._tallied import Tallied, whole_if_possible
from memcfg.evaluation.curves import Histogram, ReliabilityDiagram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["EvaluationCalibration"]

Floats = npt.NDArray[np.float64]

_ROWS = 40  # classes that `stats` lists


class EvaluationCalibration(Tallied):
    """Reliability diagrams, and histograms of residuals and of probabilities.

    Its state is three sums a class and bin of the diagrams, two a class and bin of the
    histograms, and two of each histogram over all classes.

    Parameters
    ----------
    reliability_diag_num_bins : int, default 10
        Bins of equal width of a reliability diagram.
    histogram_num_bins : int, default 50
        Bins of equal width of a histogram.
    exclude_empty_bins : bool, default True
        Whether diagrams leave out bins without predictions.
    labels : sequence of str, optional
        Names of the classes.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    Notes
    -----
    Predictions are probabilities. A bin has its lower limit, and the last one has 1 as
    well. A residual is the absolute difference of a label, 0 or 1, and a probability.

    Examples
    --------
    >>> import memcfg as mc
    >>> evaluation = mc.evaluation.EvaluationCalibration(4)
    >>> evaluation.eval([[1], [0], [1]], [[0.9], [0.8], [0.3]])
    >>> evaluation.get_reliability_diagram(0).fraction_positives
    array([1. , 0.5])
    """

    __slots__ = ("_bins", "_exclude", "_histogram_bins", "_labels")

    _indices = True
    _by_output = True
    metrics: ClassVar[tuple[str, ...]] = ("expected_calibration_error",)

    def __init__(
        self,
        reliability_diag_num_bins: int = 10,
        histogram_num_bins: int = 50,
        *,
        exclude_empty_bins: bool = True,
        labels: Sequence[str] | None = None,
    ) -> None:
        names = label_names(labels)
        self._bins = count(reliability_diag_num_bins, "reliability_diag_num_bins")
        self._histogram_bins = count(histogram_num_bins, "histogram_num_bins")
        self._exclude = flag(exclude_empty_bins, "exclude_empty_bins")
        self._labels = names
        super().__init__(
            reliability_diag_num_bins=self._bins,
            histogram_num_bins=self._histogram_bins,
            exclude_empty_bins=self._exclude,
            labels=names,
        )

    def get_label_counts_each_class(self) -> npt.NDArray[Any]:
        """Return how many labels are of each class.

        Returns
        -------
        numpy.ndarray
            Of shape ``(classes,)``: integers, or sums of weights.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole(self._of("positives").sum(1))

    def get_prediction_counts_each_class(self) -> npt.NDArray[Any]:
        """Return how often each class has the largest probability.

        Returns
        -------
        numpy.ndarray
            Of shape ``(classes,)``; of a single output, how often it is above 0.5.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole(self._of("chosen"))

    def get_reliability_diagram(self, class_label: int) -> ReliabilityDiagram:
        """Return the share of positives over the mean probability, by bin.

        Parameters
        ----------
        class_label : int
            The index of the class.

        Returns
        -------
        ReliabilityDiagram
            It draws itself.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such class.
        """
        place = self._place(class_label, "class_label")
        counts = self._of("predictions")[place]
        kept = counts > 0 if self._exclude else np.ones(len(counts), bool)
        return ReliabilityDiagram(
            ratio(self._of("probabilities")[place], counts)[kept],
            ratio(self._of("positives")[place], counts)[kept],
            self._whole(counts[kept]),
            f"class {label_name(self._labels, place)}",
        )

    def expected_calibration_error(self, class_label: int | None = None) -> float:
        """Return how far shares of positives are from mean probabilities.

        Parameters
        ----------
        class_label : int, optional
            The index of a class. None: the mean over the classes.

        Returns
        -------
        float
            The mean of the distances of the bins, weighted by their predictions.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such class.

        References
        ----------
        Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using
        Bayesian binning", AAAI 2015.
        """
        positives, sums = self._of("positives"), self._of("probabilities")
        total = self._of("predictions").sum(1)
        errors = ratio(np.abs(positives - sums).sum(1), total)
        if class_label is not None:
            return float(errors[self._place(class_label, "class_label")])
        return float(errors.mean())

    def get_residual_plot(self, label_class_idx: int) -> Histogram:
        """Return the histogram of residuals of the rows of a class.

        Parameters
        ----------
        label_class_idx : int
            The index of the class.

        Returns
        -------
        Histogram
            Of ``1 - p``, for the probability of the class. It draws itself.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such class.
        """
        place = self._place(label_class_idx, "label_class_idx")
        name = label_name(self._labels, place)
        return self._drawn(
            self._of("residuals")[place],
            f"Residuals of class {name}",
            "|label - probability|",
        )

    def get_residual_plot_all_classes(self) -> Histogram:
        """Return the histogram of the residuals of all outputs.

        Returns
        -------
        Histogram
            It draws itself.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._drawn(
            self._of("all_residuals"), "Residuals", "|label - probability|"
        )

    def get_probability_histogram(self, label_class_idx: int) -> Histogram:
        """Return the histogram of the probabilities of a class for its rows.

        Parameters
        ----------
        label_class_idx : int
            The index of the class.

        Returns
        -------
        Histogram
            It draws itself.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such class.
        """
        place = self._place(label_class_idx, "label_class_idx")
        name = label_name(self._labels, place)
        return self._drawn(
            self._of("own_probabilities")[place],
            f"Probabilities of class {name}",
            "probability",
        )

    def get_probability_histogram_all_classes(self) -> Histogram:
        """Return the histogram of the probabilities of all outputs.

        Returns
        -------
        Histogram
            It draws itself.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._drawn(
            self._of("all_probabilities"), "Probabilities", "probability"
        )

    def stats(self) -> str:
        """Return the calibration of each class as text for a terminal of 80 columns.

        Returns
        -------
        str
            A table.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        classes = self._require_data()
        total, positives = self._of("predictions").sum(1), self._of("positives").sum(1)
        mean = ratio(self._of("probabilities").sum(1), total)
        names = ("labels", "predicted", "share", "mean probability", "error")
        table = new_table("class", numbers=names)
        share = ratio(positives, total)
        for i in range(min(classes, _ROWS)):
            table.add_row(
                label_name(self._labels, i),
                f"{positives[i]:g}",
                f"{self._of('chosen')[i]:g}",
                f"{share[i]:.4f}",
                f"{mean[i]:.4f}",
                f"{self.expected_calibration_error(i):.4f}",
            )
        if classes > _ROWS:
            table.add_row(f"... {classes - _ROWS} more")
        head = (
            f"EvaluationCalibration of {classes} classes, {self._count} rows, "
            f"{self._bins} bins.\nExpected calibration error: "
            f"{self.expected_calibration_error():.4f}"
        )
        return f"{head}\n{draw(table)}"

    def _pictures(self) -> str:
        if self._columns is None:
            return ""
        return self.get_reliability_diagram(self._columns - 1)._repr_html_()

    # State

    def _shapes(self, columns: int) -> Mapping[str, tuple[int, ...]]:
        diagram, histogram = (columns, self._bins), (columns, self._histogram_bins)
        return {
            "predictions": diagram,
            "positives": diagram,
            "probabilities": diagram,
            "residuals": histogram,
            "own_probabilities": histogram,
            "all_residuals": (self._histogram_bins,),
            "all_probabilities": (self._histogram_bins,),
            "chosen": (columns,),
        }

    def _check_columns(self, columns: int) -> None:
        wanted = None if self._labels is None else len(self._labels)
        same_size(columns, wanted, self._name)

    def _check_block(self, block: Block) -> None:
        outputs = block.predictions
        if not ((outputs >= 0) & (outputs <= 1)).all():
            raise ValueError(
                "predictions of EvaluationCalibration are probabilities from 0 to 1: "
                "let the model end in a softmax or a sigmoid"
            )
        labels = block.labels
        if labels.ndim == 1:
            known = (labels == np.floor(labels)) & (labels >= 0)
            if not (known & (labels < outputs.shape[1])).all():
                raise ValueError(
                    f"labels are indices of classes, 0 to {outputs.shape[1] - 1}"
                )
        elif not ((labels == 0) | (labels == 1)).all():
            raise ValueError("labels of EvaluationCalibration are 0 or 1, one-hot")

    def _add(self, sums: dict[str, Floats], block: Block) -> None:
        outputs, weights = block.predictions, block.by_output
        columns = outputs.shape[1]
        labels = block.labels
        if labels.ndim == 1:
            labels = (labels[:, None] == np.arange(columns)).astype(np.float64)
        own = weights * labels
        bins = self._bins
        places = _binned(outputs, bins) + bins * np.arange(columns)
        shape = (columns, bins)
        for name, values in (
            ("predictions", weights),
            ("positives", own),
            ("probabilities", weights * outputs),
        ):
            sums[name] += _summed(places, values, shape)
        bins = self._histogram_bins
        shape = (columns, bins)
        for name, values in (
            ("residuals", np.abs(labels - outputs)),
            ("probabilities", outputs),
        ):
            found = _binned(values, bins)
            sums[f"all_{name}"] += _summed(found, weights, (bins,))
            each = "residuals" if name == "residuals" else "own_probabilities"
            sums[each] += _summed(found + bins * np.arange(columns), own, shape)
        if columns == 1:
            chosen = outputs > 0.5
        else:
            chosen = outputs.argmax(1)[:, None] == np.arange(columns)
        sums["chosen"] += np.where(chosen, weights, 0.0).sum(0)

    def _of(self, name: str) -> Floats:
        self._require_data()
        return self._sums[name]

    def _whole(self, counts: Floats) -> npt.NDArray[Any]:
        return whole_if_possible(counts, weighted=self._weighted)

    def _drawn(self, counts: Floats, title: str, x_label: str) -> Histogram:
        return Histogram(self._whole(counts), title, x_label)


def _binned(values: Floats, bins: int) -> npt.NDArray[np.intp]:
    """Return the bin of each value from 0 to 1, by the limits ``i / bins``."""
    edges = np.arange(1, bins) / bins
    return np.searchsorted(edges, values, side="right")


def _summed(
    places: npt.NDArray[np.intp], values: Any, shape: tuple[int, ...]
) -> Floats:
    size = int(np.prod(shape))
    sums = np.bincount(places.ravel(), np.ravel(values), size)
    return sums.astype(np.float64, copy=False).reshape(shape)
