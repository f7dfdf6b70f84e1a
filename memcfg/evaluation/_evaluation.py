"""Evaluation of classifiers: one class of several for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from memcfg._checks import count, unknown
from memcfg._tables import draw, new_table
from memcfg.evaluation._evaluator import label_name
from memcfg.evaluation._outcomes import Outcomes, mean_of_defined
from memcfg.evaluation._settings_checks import label_names, threshold
from memcfg.evaluation._tallied import Tallied, whole_if_possible
from memcfg.evaluation.curves import ConfusionMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["Evaluation"]

Floats = npt.NDArray[np.float64]

_ROWS = 25  # classes that `stats` lists one by one
_MATRIX = 10  # classes whose confusion matrix it shows
_AVERAGINGS = ("macro", "micro")
_IN_STATS = {
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "g_measure": "G",
    "matthews_correlation": "MCC",
}


class Evaluation(Tallied):
    """Accuracy, precision, recall and more of predicted classes.

    The prediction of a row is the class with the largest output. Its state is the
    confusion matrix, ``8 * classes**2`` bytes, and two sums.

    Parameters
    ----------
    num_classes : int, optional
        The number of classes. None: that of `labels`, or of the first batch.
    labels : sequence of str, optional
        Names of the classes.
    top_n : int, default 1
        `top_n_accuracy` counts a row as right if fewer than `top_n` outputs are larger
        than that of its class.
    cost_array : sequence of float, optional
        A factor for the output of each class, before the largest is chosen.
    binary_decision_threshold : float, optional
        For two classes: class 1 is predicted if its output is above. None: the larger
        output of two, or 0.5 for a single output.
    binary_positive_class : {1, 0, None}, default 1
        The class that metrics of two classes are of. None: both are averaged.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range, or arguments exclude each other.

    Notes
    -----
    Methods with `class_label` and `averaging` return the number of one class, or an
    average. ``"macro"`` is the mean over the classes for which the number is defined,
    which leaves out 0/0; ``"micro"`` is of the summed counts. By default it is
    ``"macro"`` or, for two classes, the number of the positive class. A number of one
    class that is 0/0 is 0. These are the rules of Deeplearning4j's class of this name.

    Examples
    --------
    >>> import memcfg as mc
    >>> evaluation = mc.evaluation.Evaluation(3)
    >>> evaluation.eval([0, 1, 2, 2], [[3, 1, 1], [0, 5, 1], [1, 2, 3], [4, 0, 2]])
    >>> evaluation.accuracy(), evaluation.recall(2)
    (0.75, 0.5)
    """

    __slots__ = ("_cost", "_labels", "_positive", "_threshold", "_top_n", "_wanted")

    _indices = True
    metrics: ClassVar[tuple[str, ...]] = (
        *("accuracy", "top_n_accuracy", "precision", "recall", "f1", "g_measure"),
        *("matthews_correlation", "false_positive_rate", "false_negative_rate"),
        "false_alarm_rate",
    )

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        labels: Sequence[str] | None = None,
        top_n: int = 1,
        cost_array: Sequence[float] | None = None,
        binary_decision_threshold: float | None = None,
        binary_positive_class: int | None = 1,
    ) -> None:
        names = label_names(labels)
        cost = None if cost_array is None else _costs(cost_array)
        limit = None
        if binary_decision_threshold is not None:
            limit = threshold(binary_decision_threshold, "binary_decision_threshold")
        if cost is not None and limit is not None:
            raise ValueError("give cost_array or binary_decision_threshold, not both")
        if binary_positive_class not in (None, 0, 1):
            raise ValueError(
                f"binary_positive_class is 0, 1 or None, not {binary_positive_class!r}"
            )
        sizes = {
            "num_classes": None
            if num_classes is None
            else count(num_classes, "num_classes", 2),
            "labels": None if names is None else len(names),
            "cost_array": None if cost is None else len(cost),
            "binary_decision_threshold": None if limit is None else 2,
        }
        known = {name: each for name, each in sizes.items() if each is not None}
        if len({*known.values()}) > 1:
            shown = ", ".join(f"{each} by {name}" for name, each in known.items())
            raise ValueError(f"the number of classes is ambiguous: {shown}")
        super().__init__(
            num_classes=num_classes,
            labels=names,
            top_n=count(top_n, "top_n"),
            cost_array=cost,
            binary_decision_threshold=limit,
            binary_positive_class=binary_positive_class,
        )
        self._wanted = next(iter(known.values()), None)
        self._labels, self._top_n, self._cost = names, top_n, cost
        self._threshold, self._positive = limit, binary_positive_class

    # Counts

    @property
    def num_classes(self) -> int:
        """The number of classes; RuntimeError before it is known."""
        return self._wanted if self._wanted is not None else self._wide()

    def confusion_matrix(self) -> ConfusionMatrix:
        """Return the counts of actual classes, in rows, and predicted ones.

        Returns
        -------
        ConfusionMatrix
            Its `counts` are of shape ``(classes, classes)``: integers, or sums of
            weights. It draws itself.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        counts = whole_if_possible(self._matrix(), weighted=self._weighted)
        return ConfusionMatrix(counts, self._labels)

    def class_count(self, class_label: int) -> float:
        """Return how many rows are of a class.

        Parameters
        ----------
        class_label : int
            The index of the class.

        Returns
        -------
        float
            The count, or the sum of weights.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such class.
        """
        return float(self._matrix()[self._place(class_label, "class_label")].sum())

    def true_positives(self) -> npt.NDArray[Any]:
        """Return the rows of each class that were predicted as such.

        Returns
        -------
        numpy.ndarray
            Of shape ``(classes,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole(self._outcomes().tp)

    def false_positives(self) -> npt.NDArray[Any]:
        """Return the rows of other classes that were predicted as each class.

        Returns
        -------
        numpy.ndarray
            Of shape ``(classes,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole(self._outcomes().fp)

    def false_negatives(self) -> npt.NDArray[Any]:
        """Return the rows of each class that were predicted as others.

        Returns
        -------
        numpy.ndarray
            Of shape ``(classes,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole(self._outcomes().fn)

    def true_negatives(self) -> npt.NDArray[Any]:
        """Return the rows of other classes that were predicted as others.

        Returns
        -------
        numpy.ndarray
            Of shape ``(classes,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole(self._outcomes().tn)

    # Metrics

    def accuracy(self) -> float:
        """Return the share of the rows that were predicted right.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        matrix = self._matrix()
        return float(np.trace(matrix) / matrix.sum())

    def top_n_accuracy(self) -> float:
        """Return the share of the rows whose class is among the `top_n` largest.

        Returns
        -------
        float
            From 0 to 1; `accuracy` if `top_n` is 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        total = self._matrix().sum()
        if self._top_n == 1:
            return self.accuracy()
        return float(self._sums["top_n_correct"] / total)

    @property
    def top_n_correct_count(self) -> float:
        """How many rows have their class among the `top_n` largest outputs."""
        self._require_data()
        if self._top_n == 1:
            return float(np.trace(self._matrix()))
        return float(self._sums["top_n_correct"])

    def precision(
        self, class_label: int | None = None, averaging: str | None = None
    ) -> float:
        """Return the share of the rows predicted as a class that are of it.

        Parameters
        ----------
        class_label : int, optional
            A class. None: an average.
        averaging : {"macro", "micro"}, optional
            The average; see the notes of the class.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or an argument is wrong.
        """
        return self._metric(Outcomes.precision, class_label, averaging)

    def recall(
        self, class_label: int | None = None, averaging: str | None = None
    ) -> float:
        """Return the share of the rows of a class that were predicted as such.

        Parameters
        ----------
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        return self._metric(Outcomes.recall, class_label, averaging)

    def f1(self, class_label: int | None = None, averaging: str | None = None) -> float:
        """Return the harmonic mean of precision and recall.

        Parameters
        ----------
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        return self.f_beta(1.0, class_label, averaging)

    def f_beta(
        self,
        beta: float,
        class_label: int | None = None,
        averaging: str | None = None,
    ) -> float:
        """Return the F score, in which recall weighs `beta` times as much.

        Parameters
        ----------
        beta : float
            The weight of recall, above 0.
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From 0 to 1. A class without a defined precision or recall is left out of
            the macro average.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        if not beta > 0:
            raise ValueError(f"beta is above 0, not {beta!r}")
        return self._metric(lambda each: each.f_beta(beta), class_label, averaging)

    def g_measure(
        self, class_label: int | None = None, averaging: str | None = None
    ) -> float:
        """Return the geometric mean of precision and recall.

        Parameters
        ----------
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        return self._metric(Outcomes.g_measure, class_label, averaging)

    def matthews_correlation(
        self, class_label: int | None = None, averaging: str | None = None
    ) -> float:
        """Return Matthews' correlation of one class against the others.

        Parameters
        ----------
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From -1 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        return self._metric(Outcomes.matthews_correlation, class_label, averaging)

    def false_positive_rate(
        self, class_label: int | None = None, averaging: str | None = None
    ) -> float:
        """Return the share of the rows of other classes predicted as a class.

        Parameters
        ----------
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        return self._metric(Outcomes.false_positive_rate, class_label, averaging)

    def false_negative_rate(
        self, class_label: int | None = None, averaging: str | None = None
    ) -> float:
        """Return the share of the rows of a class predicted as others.

        Parameters
        ----------
        class_label, averaging : optional
            As of `precision`.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `precision`.
        """
        return self._metric(Outcomes.false_negative_rate, class_label, averaging)

    def false_alarm_rate(self) -> float:
        """Return the mean of the false positive and the false negative rate.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return (self.false_positive_rate() + self.false_negative_rate()) / 2

    # Text and pictures

    def stats(self) -> str:
        """Return the numbers as text for a terminal of 80 columns.

        Returns
        -------
        str
            The metrics, those of each class, and the confusion matrix if there are
            few classes.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        outcomes = self._outcomes()
        positive = self._of_positive()
        numbers = "  ".join(
            f"{short} {self.get_value(name):.4f}" for name, short in _IN_STATS.items()
        )
        if positive is None:
            averages = [f"Averages: {numbers}"]
        else:
            name = label_name(self._labels, positive)
            averages = [f"Numbers of the positive class {name}:", numbers]
        head = f"rows {self._count}  accuracy {self.accuracy():.4f}"
        if self._top_n > 1:
            head += f"  top {self._top_n} {self.top_n_accuracy():.4f}"
        lines = [
            f"Evaluation of {self._wide()} classes: {head}",
            *averages,
            *self._remarks(outcomes),
            draw(self._by_class(outcomes)),
        ]
        if self._wide() <= _MATRIX:
            lines += ["", str(self.confusion_matrix())]
        return "\n".join(lines)

    def _remarks(self, outcomes: Outcomes) -> list[str]:
        """Return sentences on classes that were never predicted or never seen."""
        result = []
        for counts, what in (
            (outcomes.tp + outcomes.fp, "predicted"),
            (outcomes.tp + outcomes.fn, "among the labels"),
        ):
            places = np.flatnonzero(counts == 0).tolist()
            never = [label_name(self._labels, i) for i in places]
            if never:
                some = ", ".join(never[:5]) + (", ..." if len(never) > 5 else "")
                classes = "class" if len(never) == 1 else f"{len(never)} classes"
                result.append(f"Never {what}: {classes} {some}.")
        return result

    def _by_class(self, outcomes: Outcomes) -> Any:
        table = new_table(
            "class", numbers=("rows", "precision", "recall", "F1", "G", "MCC")
        )
        columns = [
            *(outcomes.precision(), outcomes.recall(), outcomes.f_beta(1.0)),
            *(outcomes.g_measure(), outcomes.matthews_correlation()),
        ]
        rows = self._matrix().sum(1)
        for i in range(min(self._wide(), _ROWS)):
            numbers = ["-" if np.isnan(c[i]) else f"{c[i]:.4f}" for c in columns]
            table.add_row(label_name(self._labels, i), f"{rows[i]:g}", *numbers)
        if self._wide() > _ROWS:
            table.add_row(f"... {self._wide() - _ROWS} more")
        return table

    def _pictures(self) -> str:
        return self.confusion_matrix()._repr_html_() if self._columns else ""

    # State

    def _shapes(self, columns: int) -> Mapping[str, tuple[int, ...]]:
        classes = max(columns, 2)
        top = {"top_n_correct": ()} if self._top_n > 1 else {}
        return {"confusion": (classes, classes)} | top

    def _check_columns(self, columns: int) -> None:
        if self._wanted is not None and max(columns, 2) != self._wanted:
            raise ValueError(
                f"Evaluation is of {self._wanted} classes, and the predictions have "
                f"{columns} outputs"
            )
        if columns == 1 and self._cost is not None:
            raise ValueError("cost_array needs an output for each class")

    def _check_block(self, block: Block) -> None:
        labels, columns = block.labels, block.predictions.shape[1]
        if columns == 1 and not ((labels == 0) | (labels == 1)).all():
            raise ValueError("labels of a single output are 0 or 1")
        if labels.ndim == 1 and labels.size:
            whole = labels == np.floor(labels)
            if not (whole & (labels >= 0) & (labels < columns)).all():
                wrong = labels[~(whole & (labels >= 0) & (labels < columns))][0]
                raise ValueError(
                    f"labels hold {wrong:g}; the indices of {columns} classes are 0 to "
                    f"{columns - 1}"
                )

    def _add(self, sums: dict[str, Floats], block: Block) -> None:
        outputs, weights = block.predictions, block.weights
        single = outputs.shape[1] == 1
        if block.labels.ndim == 1 or single:
            actual = block.labels.reshape(-1).astype(np.intp)
        else:
            actual = block.labels.argmax(1)
        if self._cost is not None:
            outputs = outputs * np.array(self._cost)
        if single or self._threshold is not None:
            limit = 0.5 if self._threshold is None else self._threshold
            chosen = (outputs[:, -1] > limit).astype(np.intp)
        else:
            chosen = outputs.argmax(1)
        classes = len(sums["confusion"])
        flat = actual * classes + chosen
        counts = np.bincount(flat, weights, classes * classes)
        sums["confusion"] += counts.reshape(classes, classes)
        if self._top_n > 1 and not single:
            own = np.take_along_axis(outputs, actual[:, None], 1)
            right = (outputs > own).sum(1) < self._top_n
            sums["top_n_correct"] += weights[right].sum()
        elif self._top_n > 1:  # both classes are among the two largest
            sums["top_n_correct"] += weights.sum()

    def _wide(self) -> int:
        return max(self._require_data(), 2)

    def _matrix(self) -> Floats:
        self._require_data()
        return self._sums["confusion"]

    def _outcomes(self) -> Outcomes:
        matrix = self._matrix()
        tp = matrix.diagonal()
        fp, fn = matrix.sum(0) - tp, matrix.sum(1) - tp
        return Outcomes(tp, fp, fn, matrix.sum() - tp - fp - fn)

    def _whole(self, counts: Floats) -> npt.NDArray[Any]:
        return whole_if_possible(counts, weighted=self._weighted)

    def _of_positive(self) -> int | None:
        """Return the class that metrics are of by default, None for an average."""
        return self._positive if self._wide() == 2 else None

    def _metric(
        self,
        of: Callable[[Outcomes], Any],
        class_label: int | None,
        averaging: str | None,
    ) -> float:
        outcomes = self._outcomes()
        if class_label is None and averaging is None:
            class_label = self._of_positive()
        elif class_label is not None and averaging is not None:
            raise ValueError("give class_label or averaging, not both")
        if averaging not in (None, *_AVERAGINGS):
            raise unknown("averaging", str(averaging), _AVERAGINGS)
        if class_label is not None:
            place = self._place(class_label, "class_label")
            return float(np.nan_to_num(of(outcomes.at(place))))
        if averaging == "micro":
            return float(np.nan_to_num(of(outcomes.total())))
        return mean_of_defined(of(outcomes))


def _costs(given: Sequence[float]) -> list[float]:
    costs = [float(each) for each in np.asarray(given, np.float64).reshape(-1)]
    if len(costs) < 2 or not all(np.isfinite(each) and each >= 0 for each in costs):
        raise ValueError(
            "cost_array has a finite number that is not negative for each class, got "
            f"{costs}"
        )
    return costs
