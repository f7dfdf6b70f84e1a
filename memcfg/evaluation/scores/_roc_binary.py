"""The ROC of each of several yes-or-no outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.evaluation._settings_checks import same_size
from memcfg.evaluation.scores._scored import Scored
from memcfg.evaluation.scores._several_curves import SeveralCurves

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["ROCBinary"]


class ROCBinary(SeveralCurves, Scored):
    """ROC and precision-recall curve of each of several yes-or-no outputs.

    Labels are 0 and 1, of the shape of the predictions, and a mask may have a number
    for each output.

    Parameters
    ----------
    threshold_steps : int, default 0
        As of `ROC`.
    byte_limit : int or str, default "64MiB"
        As of `ROC`, for all outputs together.
    spill_to : str or os.PathLike, optional
        As of `ROC`.
    labels : sequence of str, optional
        Names of the outputs.

    Raises
    ------
    TypeError, ValueError
        If an argument is out of its range.

    Examples
    --------
    >>> import memcfg as mc
    >>> roc = mc.evaluation.ROCBinary()
    >>> roc.eval([[1, 0], [0, 1]], [[0.9, 0.2], [0.7, 0.1]])
    >>> roc.calculate_auc(0), roc.calculate_auc(1)
    (1.0, 0.0)
    """

    __slots__ = ()

    _by_output = True
    metrics: ClassVar[tuple[str, ...]] = ("average_auc", "average_auprc")
    _what = "output"

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
        same_size(columns, len(self._labels) if self._labels else None, self._name)

    def _split(self, block: Block) -> Iterator[tuple[Any, Any, Any]]:
        weights = block.by_output
        for i, scores in enumerate(block.predictions.T):
            kept = weights[:, i] > 0
            yield scores[kept], block.labels[kept, i], weights[kept, i]
