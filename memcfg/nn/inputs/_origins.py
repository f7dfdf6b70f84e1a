"""Where streams of batches come from: datasets, and whatever Python iterates over.

Owns how a pass begins and ends, and which thread prepares it. Refuses to look into
batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from memcfg.data import AsyncDataSetIterator, DataSetIterator, ExistingDataSetIterator
from memcfg.data._static_info import BUFFER_SIZE, Outlook, begin, outlook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from memcfg.data import Dataset, PipelineReport
    from memcfg.memory import Resource

__all__ = ["DatasetOrigin", "Items", "IterableOrigin", "Origin"]


class Items(Protocol):
    """Elements of a pass, which is closed at the end."""

    def __next__(self) -> Any:
        """Return the next element."""

    def report(self) -> PipelineReport | None:
        """Tell what was chosen for the steps that make elements."""

    def close(self) -> None:
        """End the pass."""


class Origin(Protocol):
    """What passes over elements come from."""

    @property
    def outlook(self) -> Outlook:
        """What is known of its batches before a pass."""

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""

    @property
    def threaded(self) -> bool:
        """Whether a thread reads ahead."""

    def begin(self, resource: Resource) -> Items:
        """Begin a pass; the one before is closed.

        Parameters
        ----------
        resource : Resource
            Where the memory of what is read ahead comes from.

        Returns
        -------
        Items
            The pass.
        """


class DatasetOrigin:
    """A dataset; see `Origin`.

    Parameters
    ----------
    dataset : Dataset
        The dataset.
    """

    restartable = True
    threaded = True

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.outlook = outlook(dataset)

    def begin(self, resource: Resource) -> Items:
        """Begin a pass of its own."""
        return begin(self._dataset, resource)


class IterableOrigin:
    """Anything else that gives batches; see `Origin`.

    An iterator that a user made is never closed, and reset where it can be: before a
    second pass, and before the first if it has come to its end.

    Parameters
    ----------
    iterable : iterable
        A `DataSetIterator`, an iterator, or what can be iterated over several times.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._made = not isinstance(iterable, DataSetIterator)
        self._base: DataSetIterator = (
            iterable
            if isinstance(iterable, DataSetIterator)
            else ExistingDataSetIterator(iterable)
        )
        self._passes = 0
        count = len(iterable) if isinstance(iterable, list | tuple) else None
        self.outlook = Outlook(count, False, None, (), 0)

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""
        return self._base.reset_supported

    @property
    def threaded(self) -> bool:
        """Whether a thread reads ahead."""
        return self._base.async_supported

    def begin(self, resource: Resource) -> Items:
        """Begin anew where the last pass left nothing, and start a thread."""
        base = self._base
        if base.reset_supported and (self._passes or self._is_over()):
            base.reset()
        self._passes += 1
        if not self.threaded:
            return _Items(base, base.close if self._made else _nothing)
        reading = AsyncDataSetIterator(base, BUFFER_SIZE, resource=resource)
        return _Items(reading, lambda: self._end(reading))

    def _is_over(self) -> bool:
        return not self._made and not self._base.has_next()

    def _end(self, reading: AsyncDataSetIterator) -> None:
        try:
            reading.close()
        finally:
            if self._made:
                self._base.close()


class _Items:
    """An iterator with an end of its own."""

    def __init__(self, items: Iterator[Any], close: Callable[[], None]) -> None:
        self._items = items
        self.close = close

    def __next__(self) -> Any:
        return next(self._items)

    def report(self) -> None:
        """Return None: nothing was chosen."""


def _nothing() -> None:
    """Leave what is the user's as it is."""
