"""Counts of actual and predicted classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg._tables import draw, new_table
from memcfg.evaluation.curves._chart import Cells, Chart
from memcfg.evaluation.curves._figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConfusionMatrix"]

_LETTERS = 12  # of a name in the text


class ConfusionMatrix(Figure):
    r"""Counts of rows by their actual and their predicted class.

    Parameters
    ----------
    counts : numpy.ndarray
        Of shape ``(classes, classes)``: a row for each actual class.
    labels : sequence of str, optional
        Names of the classes. None: their numbers.

    Attributes
    ----------
    counts : numpy.ndarray
        The counts.
    labels : list of str
        The names.

    Examples
    --------
    >>> import numpy as np
    >>> from memcfg import evaluation
    >>> print(evaluation.ConfusionMatrix(np.array([[3, 1], [0, 2]]), ["cat", "dog"]))
     actual \ predicted  cat  dog
     ────────────────────────────
     cat                   3    1
     dog                   0    2
    """

    __slots__ = ("counts", "labels")

    def __init__(
        self, counts: npt.NDArray[Any], labels: Sequence[str] | None = None
    ) -> None:
        self.counts = counts
        self.labels = (
            [str(i) for i in range(len(counts))] if labels is None else list(labels)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the counts, so that NumPy reads it as an array."""
        return np.array(self.counts, dtype, copy=copy)

    def __str__(self) -> str:
        """Return a table."""
        names = [each[:_LETTERS] for each in self.labels]
        table = new_table("actual \\ predicted", numbers=names)
        for name, row in zip(names, self.counts, strict=True):
            table.add_row(name, *(f"{each:g}" for each in row))
        return draw(table)

    def __repr__(self) -> str:
        """Return the number of classes and rows."""
        return f"<ConfusionMatrix of {len(self.counts)} classes, {self.counts.sum():g}>"

    def _chart(self) -> Chart:
        counts = np.asarray(self.counts, np.float64)
        rows = counts.sum(1, keepdims=True)
        shades = np.divide(counts, rows, out=np.zeros_like(counts), where=rows != 0)
        texts = [[f"{each:g}" for each in row] for row in self.counts]
        cells = Cells(shades, texts, self.labels, self.labels)
        return Chart("Confusion matrix", "predicted", "actual", (cells,))
