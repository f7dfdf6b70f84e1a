"""What a rank has encoded so far."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EncodedTotals"]


class EncodedTotals(NamedTuple):
    """Numbers of all arrays that a rank has encoded since its group began.

    Attributes
    ----------
    elements : int
        The elements of the arrays.
    entries : int
        Those that were not 0.
    sent_bytes : int
        The bytes of the encodings, times the ranks that they were sent to.
    dense_bytes : int
        The same of the arrays themselves.
    """

    elements: int = 0
    entries: int = 0
    sent_bytes: int = 0
    dense_bytes: int = 0

    def plus(self, other: EncodedTotals) -> EncodedTotals:
        """Return the sums with other totals.

        Parameters
        ----------
        other : EncodedTotals
            Those of other arrays.

        Returns
        -------
        EncodedTotals
            Of both.
        """
        return EncodedTotals(*(a + b for a, b in zip(self, other, strict=True)))
