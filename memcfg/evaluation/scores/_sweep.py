"""Areas and points of curves, in one scan from the highest threshold down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.evaluation.curves import PrecisionRecallCurve, RocCurve

if TYPE_CHECKING:
    from memcfg.evaluation.scores._score_bins import ScoreBins
    from memcfg.evaluation.scores._score_runs import ScoreRuns

__all__ = ["Sweep"]

Floats = npt.NDArray[np.float64]


class Sweep:
    """Both curves of scores, and their areas, by the rule of trapezoids.

    Parameters
    ----------
    scores : ScoreBins or ScoreRuns
        Thresholds with the positives and negatives at each.
    points : int, default 0
        The most points of curves; 0: none are kept.
    """

    def __init__(self, scores: ScoreBins | ScoreRuns, points: int = 0) -> None:
        self.positives = self.negatives = 0.0
        self._roc = self._pr = 0.0  # areas, not yet divided by the counts
        self._precision = 1.0  # of the last threshold
        every = -(-scores.rows // points) if points else 0
        kept: list[Floats] = []
        seen = 0
        last = np.array([[np.inf], [0.0], [0.0]])
        if every:
            kept.append(last)
        for chunk in scores.scan():
            totals = self._add(chunk)
            last = totals[:, -1:].copy()
            if every:
                first = (every - 1 - seen) % every
                kept.append(totals[:, first::every].copy())
                seen += totals.shape[1]
        if every and seen % every:
            kept.append(last)
        self._points = np.concatenate(kept, axis=1) if kept else None

    def _add(self, chunk: Floats) -> Floats:
        """Add descending thresholds; return them with the counts at or above."""
        thresholds, positive, negative = chunk
        tp = self.positives + np.cumsum(positive)
        fp = self.negatives + np.cumsum(negative)
        self._roc += float((negative * (tp - positive / 2)).sum())
        some = positive + negative > 0
        if some.any():
            precision = tp[some] / (tp[some] + fp[some])
            before = np.concatenate(([self._precision], precision[:-1]))
            self._pr += float((positive[some] * (precision + before)).sum()) / 2
            self._precision = float(precision[-1])
        self.positives, self.negatives = float(tp[-1]), float(fp[-1])
        return np.vstack((thresholds, tp, fp))

    @property
    def auc(self) -> float:
        """The area under the ROC; NaN if there are only positives or negatives."""
        pairs = self.positives * self.negatives
        return self._roc / pairs if pairs else float("nan")

    @property
    def auprc(self) -> float:
        """The area under precision over recall; NaN without a positive."""
        return self._pr / self.positives if self.positives else float("nan")

    def roc_curve(self, name: str) -> RocCurve:
        """Return the curve of a sweep with points."""
        thresholds, tp, fp = self._kept()
        return RocCurve(
            thresholds, tp, fp, self.positives, self.negatives, self.auc, name
        )

    def precision_recall_curve(self, name: str) -> PrecisionRecallCurve:
        """Return the curve of a sweep with points."""
        thresholds, tp, fp = self._kept()
        return PrecisionRecallCurve(
            thresholds, tp, fp, self.positives, self.auprc, name
        )

    def _kept(self) -> Any:
        assert self._points is not None
        return self._points
