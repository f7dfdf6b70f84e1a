"""The ROC of each class against the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.evaluation._settings_checks import same_size
from memcfg.evaluation.scores._scored import Scored
from memcfg.evaluation.scores._several_curves import SeveralCurves

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["ROCMultiClass"]


class ROCMultiClass(SeveralCurves, Scored):
    """ROC and precision-recall curve of each class against all others.

    Labels are one-hot, or indices of classes.

    Parameters
    ----------
    threshold_steps : int, default 0
        As of `ROC`.
    byte_limit : int or str, default "64MiB"
        As of `ROC`, for all classes together.
    spill_to : str or os.PathLike, optional
        As of `ROC`.
    labels : sequence of str, optional
        Names of the classes.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> roc = mc.evaluation.ROCMultiClass(10)
    >>> roc.eval([0, 1, 2], [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.3, 0.4, 0.3]])
    >>> roc.calculate_average_auc(), roc.state_bytes
    (1.0, 1056)
    """

    __slots__ = ()

    _indices = True
    metrics: ClassVar[tuple[str, ...]] = ("average_auc", "average_auprc")
    _what = "class"

    def __init__(
        self,
        threshold_steps: int = 0,
        *,
        byte_limit: int | str = "64MiB",
        spill_to: str | os.PathLike[str] | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        super().__init__(threshold_steps, byte_limit, spill_to, labels)

    def _check_columns(self, columns: int) -> None:
        if columns < 2:
            raise ValueError("ROCMultiClass needs an output for each class: use ROC")
        same_size(columns, len(self._labels) if self._labels else None, self._name)

    def _split(self, block: Block) -> Iterator[tuple[Any, Any, Any]]:
        labels = block.labels
        for i, scores in enumerate(block.predictions.T):
            own = labels == i if labels.ndim == 1 else labels[:, i]
            yield scores, own, block.weights
