"""Iterators that make a pass shorter or longer.

Owns counts of batches and passes. Refuses to change a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.data._checks import count
from memcfg.data.dl4j._over import Over

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EarlyTerminationDataSetIterator", "MultipleEpochsIterator"]


class EarlyTerminationDataSetIterator(Over):
    """An iterator that ends after some batches.

    Parameters
    ----------
    base : iterable
        What it is over.
    termination_point : int
        How many batches a pass has at most.

    Raises
    ------
    TypeError
        If `base` is no iterable, or the number not an integer.
    ValueError
        If the number is not positive.

    Examples
    --------
    >>> import memcfg as mc
    >>> few = mc.data.EarlyTerminationDataSetIterator(range(1000), 2)
    >>> list(few), few.has_next()
    ([0, 1], False)
    """

    def __init__(self, base: Iterable[Any], termination_point: int) -> None:
        super().__init__(base)
        self._most = count(termination_point, "termination_point")
        self._taken = 0

    def has_next(self) -> bool:
        """Tell whether there is a batch.

        Returns
        -------
        bool
            False at the end.
        """
        return self._taken < self._most and super().has_next()

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            The batch.

        Raises
        ------
        StopIteration
            At the end.
        """
        if self._taken >= self._most:
            raise StopIteration
        item = super().next()
        self._taken += 1
        return item

    def reset(self) -> None:
        """Begin anew.

        Raises
        ------
        RuntimeError
            If the iterator below cannot.
        """
        super().reset()
        self._taken = 0


class MultipleEpochsIterator(Over):
    """Several passes over an iterator as one.

    Parameters
    ----------
    num_epochs : int
        How many passes.
    base : iterable
        What is passed over.

    Attributes
    ----------
    epoch : int
        The number of the running pass, from 0.

    Raises
    ------
    TypeError
        If `base` is no iterable, or the number not an integer.
    ValueError
        If the number is not positive, or more than 1 and `base` cannot begin anew.

    Examples
    --------
    >>> import memcfg as mc
    >>> list(mc.data.MultipleEpochsIterator(2, ["a", "b"]))
    ['a', 'b', 'a', 'b']
    """

    def __init__(self, num_epochs: int, base: Iterable[Any]) -> None:
        super().__init__(base)
        self._epochs = count(num_epochs, "num_epochs")
        self.epoch = 0
        if self._epochs > 1 and not self.reset_supported:
            raise ValueError(f"{base!r} can be passed over only once")

    def has_next(self) -> bool:
        """Tell whether there is a batch; begins the next pass if that is needed.

        Returns
        -------
        bool
            False at the end.
        """
        while not super().has_next():
            if not self._turn_over():
                return False
        return True

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            The batch.

        Raises
        ------
        StopIteration
            At the end of the last pass.
        """
        while True:
            try:
                return super().next()
            except StopIteration:
                if not self._turn_over():
                    raise

    def reset(self) -> None:
        """Begin with the first pass.

        Raises
        ------
        RuntimeError
            If the iterator below cannot begin anew.
        """
        super().reset()
        self.epoch = 0

    def _turn_over(self) -> bool:
        """Begin the next pass; False if there is none."""
        if self.epoch + 1 >= self._epochs:
            return False
        super().reset()
        self.epoch += 1
        return True
