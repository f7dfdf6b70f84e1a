"""The ROC of a yes-or-no output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.evaluation.scores._scored import MAX_POINTS, Scored

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from memcfg.evaluation._evaluated_rows import Block
    from memcfg.evaluation.curves import PrecisionRecallCurve, RocCurve

__all__ = ["ROC"]


class ROC(Scored):
    """ROC and precision-recall curve of a yes-or-no output, and their areas.

    Predictions have one output, the score of yes, or two, of which the second is.

    Parameters
    ----------
    *args
        Refused: arguments are given by name.
    threshold_steps : int, default 0
        Curves have the thresholds ``i / threshold_steps``, and the state has their
        counts. 0: curves are exact, and the state has all distinct scores.
    byte_limit : int or str, default "64MiB"
        The most memory of an exact curve, with what sorting takes: 72 bytes for a
        distinct score.
    spill_to : str or os.PathLike, optional
        A folder for a file of the scores that do not fit. None: they are refused.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    Notes
    -----
    `threshold_steps` is given by name: in Deeplearning4j, too, the only number of a ROC
    is that of its thresholds, and ``ROC(2)`` looks like a number of classes. For
    several classes there is `ROCMultiClass`.

    A curve of only positives or only negatives has no area, which is NaN.

    Examples
    --------
    >>> import memcfg as mc
    >>> roc = mc.evaluation.ROC()
    >>> roc.eval([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    >>> roc.calculate_auc(), roc.state_bytes
    (0.75, 3072)
    """

    __slots__ = ()

    _indices = True
    _takes_labels = False
    metrics: ClassVar[tuple[str, ...]] = ("auc", "auprc")

    def __init__(
        self,
        *args: object,
        threshold_steps: int = 0,
        byte_limit: int | str = "64MiB",
        spill_to: str | os.PathLike[str] | None = None,
    ) -> None:
        if args:
            raise TypeError(
                f"ROC takes its arguments by name, ROC(threshold_steps={args[0]!r}): a "
                "number alone looks like one of classes, for which there is "
                "ROCMultiClass()"
            )
        super().__init__(threshold_steps, byte_limit, spill_to)

    def calculate_auc(self) -> float:
        """Return the area under the ROC.

        Returns
        -------
        float
            The share of the pairs of a positive and a negative that are in order; NaN
            if there are none.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._sweep(0).auc

    def calculate_auprc(self) -> float:
        """Return the area under precision over recall, by trapezoids.

        Returns
        -------
        float
            From 0 to 1; NaN without a positive.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        return self._sweep(0).auprc

    def get_roc_curve(self, max_points: int | None = MAX_POINTS) -> RocCurve:
        """Return the true over the false positive rate.

        Parameters
        ----------
        max_points : int, optional
            If there are more thresholds, about every n-th is a point. None: all are.

        Returns
        -------
        RocCurve
            It draws itself.

        Raises
        ------
        RuntimeError, ValueError
            If nothing was evaluated, or `max_points` is below 2.
        """
        self._require_data()
        return self._sweep(0, self._points(max_points)).roc_curve("")

    def get_precision_recall_curve(
        self, max_points: int | None = MAX_POINTS
    ) -> PrecisionRecallCurve:
        """Return precision over recall.

        Parameters
        ----------
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
        return self._sweep(0, self._points(max_points)).precision_recall_curve("")

    def stats(self) -> str:
        """Return the areas as text for a terminal of 80 columns.

        Returns
        -------
        str
            Two lines.

        Raises
        ------
        RuntimeError
            If nothing was evaluated.
        """
        self._require_data()
        sweep = self._sweep(0)
        how = f"{self._steps + 1} thresholds" if self._steps else "exact"
        return (
            f"ROC, {how}: {self._count} rows, positives {sweep.positives:g}, negatives "
            f"{sweep.negatives:g}\nAUC {sweep.auc:.4f}  AUPRC {sweep.auprc:.4f}"
        )

    def _pictures(self) -> str:
        return self.get_roc_curve()._repr_html_() if self._count else ""

    def _check_columns(self, columns: int) -> None:
        if columns > 2:
            raise ValueError(
                f"ROC is of one output, or of two classes, and the predictions have "
                f"{columns} outputs: use ROCMultiClass, or ROCBinary for separate ones"
            )

    def _curves(self, columns: int) -> int:
        return 1

    def _split(self, block: Block) -> Iterable[tuple[Any, Any, Any]]:
        labels = block.labels if block.labels.ndim == 1 else block.labels[:, -1]
        return [(block.predictions[:, -1], labels, block.weights)]
