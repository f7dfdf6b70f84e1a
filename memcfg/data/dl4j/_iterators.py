"""Iterators as DL4J has them: Python's, with `has_next`, `reset` and `close`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memcfg.workspaces import scope_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

__all__ = [
    "DataSetIterator",
    "ExistingDataSetIterator",
    "WrappingIterator",
    "as_iterator",
    "cannot_reset",
]

_NOTHING = object()
_END = object()


class DataSetIterator(ABC):
    """An iterator over batches that can restart.

    The base of memcfg's own, and of those that a user writes: `has_next` and `next` are
    enough. A batch is a `DataSet`, a `MultiDataSet` or anything else.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> class Countdown(mc.data.DataSetIterator):
    ...     left = 3
    ...     def has_next(self):
    ...         return self.left > 0
    ...     def next(self):
    ...         self.left -= 1
    ...         return np.full(2, self.left)
    >>> for batch in Countdown():
    ...     print(batch)
    [2 2]
    [1 1]
    [0 0]
    """

    @abstractmethod
    def has_next(self) -> bool:
        """Tell whether there is a batch; it may have to be read for that.

        Returns
        -------
        bool
            False at the end.
        """

    @abstractmethod
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

    @property
    def reset_supported(self) -> bool:
        """Whether `reset` can restart."""
        return type(self).reset is not DataSetIterator.reset

    @property
    def async_supported(self) -> bool:
        """Whether a thread may read ahead.

        False of what uses its arrays again, reads ahead itself, or gives batches that
        depend on when they are asked for.
        """
        return True

    def reset(self) -> None:
        """Restart.

        Raises
        ------
        RuntimeError
            If it cannot; see `reset_supported`.
        """
        raise cannot_reset(self)

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds; it may be called again."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self.has_next():
            raise StopIteration
        return self.next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ExistingDataSetIterator(DataSetIterator):
    """An iterator over anything that Python iterates over.

    Parameters
    ----------
    iterable : iterable
        What can be iterated over several times, such as a list or a `Dataset`, can
        restart. An iterator, such as a generator, can if it has ``reset()``.

    Raises
    ------
    TypeError
        If it is no iterable, or a mapping or a string.

    Notes
    -----
    Other attributes are the iterable's. `has_next` reads a batch ahead, outside of the
    workspace that is current, for it may be kept for long; `next` alone does not.

    Examples
    --------
    >>> import memcfg as mc
    >>> batches = mc.data.ExistingDataSetIterator([1, 2])
    >>> list(batches), batches.has_next(), batches.reset(), batches.next()
    ([1, 2], False, None, 1)
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        iterates = hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")
        if not iterates or isinstance(iterable, Mapping | str | bytes):
            raise TypeError(f"an iterable of batches is needed, not {iterable!r:.80}")
        self._iterable = iterable
        self._once = hasattr(iterable, "__next__")
        self._items: Iterator[Any] | None = None
        self._ahead: Any = _NOTHING

    @property
    def reset_supported(self) -> bool:
        """Whether it can restart."""
        if not self._once:
            return True
        resets = callable(getattr(self._iterable, "reset", None))
        return resets and bool(getattr(self._iterable, "reset_supported", True))

    @property
    def async_supported(self) -> bool:
        """Whether a thread may read ahead: unless the iterable says that it may not."""
        return bool(getattr(self._iterable, "async_supported", True))

    def has_next(self) -> bool:
        """Tell whether there is a batch, by reading it.

        Returns
        -------
        bool
            False at the end.

        Raises
        ------
        BaseException
            What the iterable raises.
        """
        if self._ahead is _NOTHING:
            with scope_out():
                self._ahead = next(self._started(), _END)
        return self._ahead is not _END

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
        BaseException
            What the iterable raises.
        """
        if self._ahead is _END:
            raise StopIteration
        if self._ahead is _NOTHING:
            return next(self._started())
        item, self._ahead = self._ahead, _NOTHING
        return item

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        """Restart.

        Raises
        ------
        RuntimeError
            If the iterable is an iterator without ``reset()``.
        BaseException
            What its ``reset()`` raises.
        """
        if not self.reset_supported:
            raise cannot_reset(self)
        self.close()
        if self._once:
            self._iterable.reset()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the iterator of this pass; one that was given is not closed."""
        items, self._items, self._ahead = self._items, None, _NOTHING
        close = getattr(items, "close", None)
        if close is not None and not self._once:
            close()

    def _started(self) -> Iterator[Any]:
        if self._items is None:
            self._items = iter(self._iterable)
        return self._items

    def __repr__(self) -> str:
        return f"ExistingDataSetIterator({self._iterable!r:.80})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        try:
            return getattr(self._iterable, name)
        except AttributeError as error:
            raise AttributeError(
                f"{name!r} is no attribute of the iterator, nor of what it is over "
                f"({error})"
            ) from error


class WrappingIterator(DataSetIterator):
    """The base of iterators over another one: what they do not have is that one's."""

    def __init__(self, base: Iterable[Any]) -> None:
        self._base = as_iterator(base)

    @property
    def reset_supported(self) -> bool:
        """Whether the iterator below can restart."""
        return self._base.reset_supported

    @property
    def async_supported(self) -> bool:
        """Whether a thread may read ahead, as the iterator below has it."""
        return self._base.async_supported

    def has_next(self) -> bool:
        """Ask the iterator below."""
        return self._base.has_next()

    def next(self) -> Any:
        """Return the next batch of the iterator below."""
        return next(self._base)

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        """Have the iterator below restart."""
        self._base.reset()

    def close(self) -> None:
        """Close the iterator below."""
        self._base.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._base, name)


def as_iterator(base: Any) -> DataSetIterator:
    """Return an iterator as it is, and anything else in one."""
    if isinstance(base, DataSetIterator):
        return base
    return ExistingDataSetIterator(base)


def cannot_reset(iterator: DataSetIterator) -> RuntimeError:
    """Tell that an iterator cannot restart."""
    return RuntimeError(
        f"{iterator!r} cannot restart: give an iterable that makes a new iterator "
        "each time, such as a Dataset or a class with __iter__"
    )
