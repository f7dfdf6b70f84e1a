"""Iterators over other iterators.

Owns what they have in common: what they do not have themselves is that one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.data.dl4j._iterators import DataSetIterator, as_iterator

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Over"]


class Over(DataSetIterator):
    """The base of iterators over another one: what they do not have is that one's.

    Parameters
    ----------
    base : iterable
        What it is over. It is closed with this one.
    """

    def __init__(self, base: Iterable[Any]) -> None:
        self._base = as_iterator(base)

    @property
    def reset_supported(self) -> bool:
        """Whether the iterator below can begin anew."""
        return self._base.reset_supported

    @property
    def async_supported(self) -> bool:
        """Whether a thread may read ahead, as the iterator below has it."""
        return self._base.async_supported

    def has_next(self) -> bool:
        """Ask the iterator below.

        Returns
        -------
        bool
            False at the end.
        """
        return self._base.has_next()

    def next(self) -> Any:
        """Return the next batch of the iterator below.

        Returns
        -------
        object
            The batch.

        Raises
        ------
        StopIteration
            At the end.
        """
        return next(self._base)

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        """Have the iterator below begin anew.

        Raises
        ------
        RuntimeError
            If it cannot.
        """
        self._base.reset()

    def close(self) -> None:
        """Close the iterator below."""
        self._base.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._base, name)
