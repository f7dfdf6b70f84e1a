"""What the elements of one batch have in common.

Owns structure, shapes and dtypes, and the room that they need.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._structure import flatten, map_structure, pack, same_structure
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TEXT", "Form"]

TEXT = "SU"  # kinds of dtypes whose size may differ from element to element


class Form:
    """What elements of one batch have in common: structure, shapes, dtypes.

    Parameters
    ----------
    element : nest of numpy.ndarray or numpy.generic
        The first; nothing of it is kept.

    Attributes
    ----------
    shapes : list of tuple of int
        Of the leaves.
    dtypes : list of numpy.dtype
        Of the leaves.
    numbers : nest of int
        The structure, with the number of each leaf.
    """

    __slots__ = ("dtypes", "numbers", "shapes")

    def __init__(self, element: Any) -> None:
        leaves = flatten(element)
        self.shapes = [leaf.shape for leaf in leaves]
        self.dtypes = [leaf.dtype for leaf in leaves]
        self.numbers = pack(element, range(len(leaves)))

    @property
    def has_text(self) -> bool:
        """Whether a leaf is text, whose length may differ from element to element."""
        return any(dtype.kind in TEXT for dtype in self.dtypes)

    def fits(self, element: Any) -> bool:
        """Tell whether an element is of this form.

        Parameters
        ----------
        element : nest of numpy.ndarray or numpy.generic
            Any element.

        Returns
        -------
        bool
            Whether structure, shapes and dtypes are the same.
        """
        return same_structure(self.numbers, element) and all(
            leaf.shape == shape and leaf.dtype == dtype
            for leaf, shape, dtype in zip(
                flatten(element), self.shapes, self.dtypes, strict=True
            )
        )

    def widen(self, element: Any) -> None:
        """Make room for the text of an element.

        Parameters
        ----------
        element : nest of numpy.ndarray or numpy.generic
            Any element of the batch.

        Raises
        ------
        TypeError
            If its structure is another.
        """
        for index, leaf in enumerate(self.leaves(element)):
            mine = self.dtypes[index]
            if mine.kind in TEXT and leaf.dtype.kind == mine.kind:
                self.dtypes[index] = max(mine, leaf.dtype, key=lambda d: d.itemsize)

    def nbytes(self, rows: int) -> int:
        """Tell what the columns of a batch take in a workspace.

        Parameters
        ----------
        rows : int
            Of the batch.

        Returns
        -------
        int
            Bytes.
        """
        pairs = zip(self.shapes, self.dtypes, strict=True)
        sizes = [max(1, rows * prod(shape) * dtype.itemsize) for shape, dtype in pairs]
        return sum(map(align_up, sizes))

    def leaves(self, element: Any) -> Sequence[Any]:
        """List the leaves of an element, converted or not.

        Parameters
        ----------
        element : object
            What may be an element.

        Returns
        -------
        sequence
            As many as the form has.

        Raises
        ------
        TypeError
            If its structure is another.
        """
        if same_structure(self.numbers, element):
            return flatten(element)
        found = map_structure(lambda leaf: type(leaf).__name__, element)
        raise TypeError(
            "the elements of a batch must be of one structure: the first is "
            f"{self}, another is {found}"
        )

    def pack(self, leaves: Sequence[Any]) -> Any:
        """Make a nest of this structure.

        Parameters
        ----------
        leaves : sequence
            As many as the form has.

        Returns
        -------
        nest
            Of the leaves.
        """
        return pack(self.numbers, leaves)

    def __str__(self) -> str:
        pairs = zip(self.dtypes, self.shapes, strict=True)
        return str(self.pack([f"{dtype}{list(shape)}" for dtype, shape in pairs]))
