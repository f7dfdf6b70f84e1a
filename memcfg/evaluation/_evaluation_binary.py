"""Evaluation of separate yes-or-no outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from memcfg._checks import count
from memcfg._tables import draw, new_table
from memcfg.evaluation._evaluator import label_name
from memcfg.evaluation._outcomes import Outcomes, mean_of_defined, ratio
from memcfg.evaluation._settings_checks import label_names, same_size, threshold
from memcfg.evaluation._tallied import Tallied, whole_if_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["EvaluationBinary"]

Floats = npt.NDArray[np.float64]

_ROWS = 40  # outputs that `stats` lists
_COUNTS = ("tp", "fp", "fn", "tn")


class EvaluationBinary(Tallied):
    """Accuracy, precision, recall and more of each of several yes-or-no outputs.

    Its state is four counts an output. Labels are 0 and 1, of the shape of the
    predictions, and a mask may have a number for each output.

    Parameters
    ----------
    num_outputs : int, optional
        The number of outputs. None: that of `labels`, or of the first batch.
    labels : sequence of str, optional
        Names of the outputs.
    decision_threshold : float or sequence of float, default 0.5
        An output above it is a yes; one for all or one for each.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    Notes
    -----
    A number that is 0/0 is 0, and is left out of averages over the outputs.

    Examples
    --------
    >>> import memcfg as mc
    >>> evaluation = mc.evaluation.EvaluationBinary(labels=["red", "round"])
    >>> evaluation.eval([[1, 0], [0, 1]], [[0.9, 0.2], [0.7, 0.6]])
    >>> evaluation.accuracy(0), evaluation.accuracy(1), evaluation.average_accuracy()
    (0.5, 1.0, 0.75)
    """

    __slots__ = ("_labels", "_thresholds", "_wanted")

    _by_output = True
    metrics: ClassVar[tuple[str, ...]] = (
        *("average_accuracy", "average_precision", "average_recall", "average_f1"),
        "average_matthews_correlation",
    )

    def __init__(
        self,
        num_outputs: int | None = None,
        *,
        labels: Sequence[str] | None = None,
        decision_threshold: float | Sequence[float] = 0.5,
    ) -> None:
        names = label_names(labels)
        limits: Any = decision_threshold
        if np.ndim(limits):
            limits = [threshold(each, "a decision_threshold") for each in limits]
        else:
            limits = threshold(limits, "decision_threshold")
        sizes = [
            None if num_outputs is None else count(num_outputs, "num_outputs"),
            None if names is None else len(names),
            len(limits) if isinstance(limits, list) else None,
        ]
        known = [each for each in sizes if each is not None]
        if len({*known}) > 1:
            raise ValueError(f"the number of outputs is ambiguous: {known}")
        super().__init__(
            num_outputs=num_outputs, labels=names, decision_threshold=limits
        )
        self._labels, self._thresholds = names, limits
        self._wanted = known[0] if known else None

    def true_positives(self) -> npt.NDArray[Any]:
        """Return how many yes were predicted so, by output.

        Returns
        -------
        numpy.ndarray
            Of shape ``(outputs,)``: integers, or sums of weights.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole("tp")

    def false_positives(self) -> npt.NDArray[Any]:
        """Return how many no were predicted as yes, by output.

        Returns
        -------
        numpy.ndarray
            Of shape ``(outputs,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole("fp")

    def false_negatives(self) -> npt.NDArray[Any]:
        """Return how many yes were predicted as no, by output.

        Returns
        -------
        numpy.ndarray
            Of shape ``(outputs,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole("fn")

    def true_negatives(self) -> npt.NDArray[Any]:
        """Return how many no were predicted so, by output.

        Returns
        -------
        numpy.ndarray
            Of shape ``(outputs,)``.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._whole("tn")

    def total_count(self, output: int) -> float:
        """Return how many values of an output count.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            The number, or the sum of weights.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or there is no such output.
        """
        return float(sum(self._outcomes().at(self._place(output, "output"))))

    def accuracy(self, output: int) -> float:
        """Return the share of an output's values that were predicted right.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1; 0 if all are masked.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(_accuracy, output)

    def precision(self, output: int) -> float:
        """Return the share of the predicted yes that are true.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(Outcomes.precision, output)

    def recall(self, output: int) -> float:
        """Return the share of the yes that were predicted.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(Outcomes.recall, output)

    def f1(self, output: int) -> float:
        """Return the harmonic mean of precision and recall.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self.f_beta(1.0, output)

    def f_beta(self, beta: float, output: int) -> float:
        """Return the F score, in which recall weighs `beta` times as much.

        Parameters
        ----------
        beta : float
            The weight of recall, above 0.
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`, or if `beta` is not above 0.
        """
        if not beta > 0:
            raise ValueError(f"beta is above 0, not {beta!r}")
        return self._metric(lambda each: each.f_beta(beta), output)

    def g_measure(self, output: int) -> float:
        """Return the geometric mean of precision and recall.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(Outcomes.g_measure, output)

    def matthews_correlation(self, output: int) -> float:
        """Return Matthews' correlation of labels and predictions.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From -1 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(Outcomes.matthews_correlation, output)

    def false_positive_rate(self, output: int) -> float:
        """Return the share of the no that were predicted as yes.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(Outcomes.false_positive_rate, output)

    def false_negative_rate(self, output: int) -> float:
        """Return the share of the yes that were predicted as no.

        Parameters
        ----------
        output : int
            The index of the output.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError, ValueError
            As of `total_count`.
        """
        return self._metric(Outcomes.false_negative_rate, output)

    def average_accuracy(self) -> float:
        """Return the mean of `accuracy` over the outputs.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return mean_of_defined(_accuracy(self._outcomes()))

    def average_precision(self) -> float:
        """Return the mean of `precision` over the outputs.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return mean_of_defined(self._outcomes().precision())

    def average_recall(self) -> float:
        """Return the mean of `recall` over the outputs.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return mean_of_defined(self._outcomes().recall())

    def average_f1(self) -> float:
        """Return the mean of `f1` over the outputs.

        Returns
        -------
        float
            From 0 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return mean_of_defined(self._outcomes().f_beta(1.0))

    def average_matthews_correlation(self) -> float:
        """Return the mean of `matthews_correlation` over the outputs.

        Returns
        -------
        float
            From -1 to 1.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return mean_of_defined(self._outcomes().matthews_correlation())

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
        outcomes = self._outcomes()
        columns = [
            *(_accuracy(outcomes), outcomes.precision(), outcomes.recall()),
            *(outcomes.f_beta(1.0), outcomes.matthews_correlation()),
        ]
        names = ("accuracy", "precision", "recall", "F1", "MCC", "yes", "no")
        table = new_table("output", numbers=names)
        for i in range(min(self._wide(), _ROWS)):
            numbers = ["-" if np.isnan(c[i]) else f"{c[i]:.4f}" for c in columns]
            each = outcomes.at(i)
            totals = f"{each.tp + each.fn:g}", f"{each.fp + each.tn:g}"
            table.add_row(label_name(self._labels, i), *numbers, *totals)
        if self._wide() > _ROWS:
            table.add_row(f"... {self._wide() - _ROWS} more")
        means = [f"{mean_of_defined(each):.4f}" for each in columns]
        table.add_row("mean", *means, "", "")
        head = f"EvaluationBinary of {self._wide()} outputs, {self._count} rows."
        return f"{head}\n{draw(table)}"

    # State

    def _shapes(self, columns: int) -> Mapping[str, tuple[int, ...]]:
        return dict.fromkeys(_COUNTS, (columns,))

    def _check_columns(self, columns: int) -> None:
        same_size(columns, self._wanted, self._name)

    def _check_block(self, block: Block) -> None:
        if not ((block.labels == 0) | (block.labels == 1)).all():
            raise ValueError("labels of EvaluationBinary are 0 or 1")

    def _add(self, sums: dict[str, Floats], block: Block) -> None:
        yes, chosen = block.labels == 1, block.predictions > self._thresholds
        weights = block.by_output
        for name, which in zip(
            _COUNTS,
            (yes & chosen, ~yes & chosen, yes & ~chosen, ~yes & ~chosen),
            strict=True,
        ):
            sums[name] += np.where(which, weights, 0.0).sum(0)

    def _outcomes(self) -> Outcomes:
        self._require_data()
        return Outcomes(*(self._sums[name] for name in _COUNTS))

    def _whole(self, name: str) -> npt.NDArray[Any]:
        self._require_data()
        return whole_if_possible(self._sums[name], weighted=self._weighted)

    def _metric(self, of: Callable[[Outcomes], Any], output: int) -> float:
        outcomes = self._outcomes()
        return float(np.nan_to_num(of(outcomes.at(self._place(output, "output")))))


def _accuracy(outcomes: Outcomes) -> Any:
    return ratio(outcomes.tp + outcomes.tn, sum(outcomes))
