"""Iterators whose batches a thread reads ahead.

Owns when the thread begins and ends, and what begins anew. Refuses the thread itself,
which is `Producer`'s, and where batches lie, which is `Ring`'s.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from memcfg import config
from memcfg.data._checks import count, flag
from memcfg.data.dl4j._callbacks import as_callback
from memcfg.data.dl4j._iterators import DataSetIterator, as_iterator, cannot_reset
from memcfg.data.dl4j._reading_ahead import Passes, tell_of_useless_ring
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from memcfg.data.dl4j._callbacks import DataSetCallback
    from memcfg.data.engine._producer import Producer
    from memcfg.memory import Resource

__all__ = ["AsyncDataSetIterator", "AsyncMultiDataSetIterator"]


class AsyncDataSetIterator(DataSetIterator):
    """An iterator whose batches a thread reads ahead.

    The thread begins at once. What NumPy makes while it reads a batch lies in a ring of
    blocks, which are used again and again; a batch that is kept is never overwritten.
    An error of the iterator below is raised behind the batches before it.

    Parameters
    ----------
    base : iterable
        What is read: data sets, tuples, arrays or anything else but None. Only the
        thread reads it from now on. It is not closed with this one.
    buffer_size : int, default 8
        How many batches may wait.
    workspace : bool, default True
        Whether batches lie in a ring. Else each array is a block of its own.
    callback : DataSetCallback or callable, optional
        What the thread does to each batch. What it returns takes the batch's place;
        None leaves it.
    resource : Resource, optional
        Where the memory comes from. None: the pool of the current device.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If the number is not positive, `base` says that it must not be read ahead
        (`async_supported`), or the device is simulated.

    Notes
    -----
    The ring has ``buffer_size + 2`` blocks, each of the size of a batch: those that
    wait, the consumer's, and the one that it takes next. The first batch, which tells
    the size, lies beside them.

    Making one asks `base` nothing: one that has come to its end has no batches until
    `reset`. DL4J resets it.

    `has_next` waits until it is known what comes. After an error the pass is over.
    Several consumers may take turns; each batch goes to one of them. Other attributes
    are those of `base`. A forked child cannot go on with it, which is a RuntimeError.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> def batches():
    ...     for number in range(3):
    ...         yield mc.data.DataSet(np.full((2, 2), number))
    >>> with mc.data.AsyncDataSetIterator(batches(), buffer_size=2) as iterator:
    ...     [float(batch.features.mean()) for batch in iterator]
    [0.0, 1.0, 2.0]
    """

    def __init__(
        self,
        base: Iterable[Any],
        buffer_size: int = 8,
        workspace: bool = True,
        callback: DataSetCallback | Callable[[Any], Any] | None = None,
        *,
        resource: Resource | None = None,
    ) -> None:
        below = as_iterator(base)
        if not below.async_supported:
            raise ValueError(
                f"{base!r} must not be read ahead (async_supported is False): iterate "
                "over it as it is"
            )
        self._passes = Passes(
            base=below,
            closes=below is not base,
            buffer_size=count(buffer_size, "buffer_size"),
            workspace=flag(workspace, "workspace"),
            callback=as_callback(callback),
            resource=_touchable(resource),
            name=type(self).__name__,
        )
        self._base: DataSetIterator | None = below
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._told = False
        self._begin()

    @property
    def reset_supported(self) -> bool:
        """Whether the iterator below can begin anew."""
        return self._opened().reset_supported

    @property
    def async_supported(self) -> bool:
        """False: one thread that reads ahead is enough."""
        return False

    def has_next(self) -> bool:
        """Tell whether `next` has a batch or an error; wait until that is known.

        Returns
        -------
        bool
            False at the end.

        Raises
        ------
        RuntimeError
            If it is closed, its last reset has failed, or this is a forked child.
        """
        while True:
            producer = self._reading()
            if producer.has_next():
                return True
            if self._reading() is producer:
                return False

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
        RuntimeError
            If it is closed, its last reset has failed, or this is a forked child.
        BaseException
            What the iterator below or the callback raised, behind the batches before.

        Warns
        -----
        RuntimeWarning
            Once, if so many batches are alive that the ring is of no use.
        """
        if self._ring is not None and self._ring.useless and not self._told:
            self._told = True
            tell_of_useless_ring(
                self._passes.name
            )  # it may raise: nothing is taken yet
        while True:
            producer = self._reading()
            try:
                return producer.get()
            except StopIteration:
                if self._reading() is producer:
                    raise
            # It began anew while this was waiting.

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        """Begin anew; what was read ahead is dropped, and an error forgotten.

        Waits for the batch that is being read.

        Raises
        ------
        RuntimeError
            If the iterator below cannot begin anew, or is still reading after some
            seconds; then another `reset` can be tried. If it is closed, or this is a
            forked child.
        BaseException
            What the iterator below raises.

        Warns
        -----
        RuntimeWarning
            If the iterator below is still reading after some seconds.
        """
        self._opened()
        self._require_process()
        with self._lock:
            base = self._opened()
            if not base.reset_supported:
                raise cannot_reset(base)
            self._running = False
            if not self._producer.stop(wait=True):
                raise RuntimeError(
                    f"cannot begin anew: {base!r} has not returned from `next`. Call "
                    "reset() again when it has."
                )
            base.reset()
            self._passes.callback.reset()
            self._begin()

    def close(self) -> None:
        """End the thread, and give the ring back.

        Waits for the batch that is being read. It may be called again; anything else is
        a RuntimeError then.

        Warns
        -----
        RuntimeWarning
            If the iterator below is still reading after some seconds. The thread ends,
            and gives the ring back, when it returns.
        """
        if os.getpid() != self._process:
            self._base = None  # the lock may be held for ever
            return
        with self._lock:
            if self._base is None:
                return
            self._base = None
            if self._producer.stop(wait=True):
                self._passes.callback.close()

    def _begin(self) -> None:
        self._producer, self._ring = self._passes.begin()
        self._running = True

    def _opened(self) -> DataSetIterator:
        if self._base is None:
            raise RuntimeError(f"this {self._passes.name} is closed: make another one")
        return self._base

    def _reading(self) -> Producer:
        self._opened()
        if not self._running:
            self._require_process()
            with self._lock:  # a reset may be on its way
                self._opened()
                if not self._running:
                    raise RuntimeError("the last reset has failed: call reset() again")
        return self._producer

    def _require_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this {self._passes.name} has its thread in the process that was "
                "forked: make another one in this one"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has a thread, and cannot be copied or pickled: "
            "make another one"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._base is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._base, name)


def _touchable(resource: Resource | None) -> Resource:
    """Return where memory is to come from; tell what is wrong with it here."""
    pool = config.logical_device(None).pool if resource is None else resource
    return numpy_allocator(pool).resource


class AsyncMultiDataSetIterator(AsyncDataSetIterator):
    """The same, under the name that DL4J has for iterators over `MultiDataSet`.

    Parameters
    ----------
    base : iterable
        What is read.
    buffer_size : int, default 8
        How many batches may wait.
    workspace : bool, default True
        Whether batches lie in a ring.
    callback : DataSetCallback or callable, optional
        What the thread does to each batch.
    resource : Resource, optional
        Where the memory comes from.

    Raises
    ------
    TypeError, ValueError
        What `AsyncDataSetIterator` raises.
    """
