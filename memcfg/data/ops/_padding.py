"""Arrays of different shapes made alike: the arithmetic of `Dataset.padded_batch`.

Owns the filling of what no element reaches. Refuses to read arguments, and to know
where elements come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._form import TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

__all__ = ["Padding"]


@dataclass(frozen=True, slots=True)
class Padding:
    """How a component of the elements is padded.

    Parameters
    ----------
    component : int
        Which, for messages.
    shape : tuple of int or None
        What its arrays are padded to; None is the longest of the batch.
    value : numpy.generic
        What fills the rest; its dtype is the component's.
    """

    component: int
    shape: tuple[int | None, ...]
    value: Any

    def target(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Find the shape that all arrays of a batch are given.

        Parameters
        ----------
        leaves : sequence of numpy.ndarray or numpy.generic
            The arrays.

        Returns
        -------
        tuple of int
            The shape.

        Raises
        ------
        ValueError
            If an array is larger than it, or has another number of axes.
        """
        for number, leaf in enumerate(leaves):
            if leaf.ndim != len(self.shape):
                raise ValueError(
                    f"component {self.component} of element {number} has shape "
                    f"{list(leaf.shape)}, which cannot be padded to {self}"
                )
        shapes = [leaf.shape for leaf in leaves]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        for axis, (size, least) in enumerate(zip(self.shape, longest, strict=True)):
            if size is not None and size < least:
                raise ValueError(
                    f"component {self.component} is to be padded to {self}, and an "
                    f"element has {least} along axis {axis}"
                )
        pairs = zip(self.shape, longest, strict=True)
        return tuple(least if size is None else size for size, least in pairs)

    def dtype(self, leaves: Sequence[Any]) -> np.dtype[Any]:
        """Find the dtype of a batch's array.

        Parameters
        ----------
        leaves : sequence of numpy.ndarray or numpy.generic
            The arrays.

        Returns
        -------
        numpy.dtype
            That of all arrays; the widest of text.

        Raises
        ------
        TypeError
            If they differ.
        """
        mine = self.value.dtype
        for number, leaf in enumerate(leaves):
            if leaf.dtype.kind != mine.kind or (
                mine.kind not in TEXT and leaf.dtype != mine
            ):
                raise TypeError(
                    f"cannot batch arrays of different dtypes in component "
                    f"{self.component}: {mine}, and element {number} is {leaf.dtype}"
                )
        return max([mine, *(leaf.dtype for leaf in leaves)], key=lambda d: d.itemsize)

    def fill(self, array: npt.NDArray[Any], leaves: Sequence[Any]) -> None:
        """Write arrays into the rows of a batch, and the value around them.

        Parameters
        ----------
        array : numpy.ndarray
            The batch's.
        leaves : sequence of numpy.ndarray or numpy.generic
            A row each.
        """
        for row, leaf in enumerate(leaves):
            if leaf.shape != array.shape[1:]:
                array[row] = self.value
            array[row, ...][tuple(map(slice, leaf.shape))] = leaf

    def __str__(self) -> str:
        return str(list(self.shape))
