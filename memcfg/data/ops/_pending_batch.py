"""Batches in the making.

Owns what has become of their parts, and how a batch is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memcfg.data.ops._batch_maker import stacked_elements

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from memcfg.data.elements._columns import Columns
    from memcfg.data.engine._thread_pool import Ticket

__all__ = ["Draft", "Part"]


@dataclass(slots=True, eq=False)
class Draft:
    """A batch in the making.

    Parameters
    ----------
    tickets : list of Ticket
        For its parts, in order.
    columns : Columns or None
        Its arrays. None: elements are collected first.
    parts : list of Part
        What has become of them, after `wait`.
    """

    tickets: list[Ticket[Part]] = field(default_factory=list)
    columns: Columns | None = None

    parts: list[Part] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether nobody works at it any more."""
        return all(ticket.done for ticket in self.tickets)

    def wait(self) -> Self:
        """Wait until nobody works at it any more.

        Returns
        -------
        Draft
            This one.

        Raises
        ------
        StopIteration
            If the threads were stopped.
        """
        if not self.parts:
            self.parts = [ticket.result() for ticket in self.tickets]
        return self

    @property
    def count(self) -> int:
        """How many elements there are."""
        return sum(part.count for part in self.parts)

    @property
    def seconds(self) -> float:
        """What the elements took together."""
        return sum(part.seconds * part.count for part in self.parts)

    @property
    def has_failed(self) -> bool:
        """Whether anything was raised."""
        return any(part.failure is not None for part in self.parts)

    def throw(self) -> None:
        """Raise what was raised first, in the order of the elements."""
        failures = (part.failure for part in self.parts)
        failure = next(failure for failure in failures if failure is not None)
        try:
            raise failure
        finally:
            del failure  # it refers to this frame by now

    def first(self) -> Any:
        """Return the first element.

        Returns
        -------
        nest of numpy.ndarray and numpy.generic
            The element.
        """
        return next(self._elements())

    def batch(self) -> Any:
        """Make the batch.

        Returns
        -------
        nest of numpy.ndarray
            Its arrays.

        Raises
        ------
        ValueError, TypeError
            If elements are not alike.
        """
        collected = [part.elements is not None for part in self.parts if part.count]
        if self.columns is None or any(collected):
            return stacked_elements(list(self._elements()))
        return self.columns.batch(self.count)

    def _elements(self) -> Iterator[Any]:
        for part in self.parts:
            if part.elements is not None:
                yield from part.elements
            elif self.columns is not None:
                yield from self.columns.elements(part.begin, part.begin + part.count)


@dataclass(slots=True)
class Part:
    """What has become of some rows of a batch.

    Parameters
    ----------
    begin : int
        The first row.
    count : int
        How many elements there were.
    elements : list or None
        The elements, in no workspace. None: they have been written.
    failure : BaseException or None
        What was raised.
    seconds : float
        What an element took.
    """

    begin: int
    count: int = 0
    elements: list[Any] | None = None
    failure: BaseException | None = None
    seconds: float = 0.0
