"""Iterators whose batches a thread reads ahead, and what it does to each batch."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from memcfg import config
from memcfg._caller import outside
from memcfg._checks import count, flag
from memcfg._core import fork_count
from memcfg.config import LogicalDevice
from memcfg.data.dl4j._data_sets import migrated
from memcfg.data.dl4j._iterators import (
    DataSetIterator,
    as_iterator,
    attribute_below,
    cannot_reset,
)
from memcfg.data.engine._batch_blocks import Ring
from memcfg.data.engine._producer import FixedDepth, Producer
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import NoReturn, Self

    from memcfg.memory import Resource
    from memcfg.workspaces import OwnedWorkspace

_TAG = "data"
_LAPS = 3  # uses of all blocks after which it is clear that batches are kept


class DataSetCallback(ABC):
    """What an `AsyncDataSetIterator` does to each batch.

    The thread that reads ahead calls it, inside of the block that the batch lies in. A
    callback is for one iterator at a time.
    """

    @abstractmethod
    def call(self, batch: Any) -> Any:
        """Take a batch in hand.

        Parameters
        ----------
        batch : object
            What the iterator below gave.

        Returns
        -------
        object
            What replaces it; None leaves it.
        """

    def reset(self) -> None:  # noqa: B027 - most have nothing to restart
        """Hear that the iterator restarts."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Hear that the iterator is closed: release what is held."""


class DefaultCallback(DataSetCallback):
    """Leaves each batch as it is."""

    def call(self, batch: Any) -> Any:
        return batch


class InterleavedDataSetCallback(DataSetCallback):
    """Deals batches out to the devices, one after the other.

    The first batch goes to a ring of blocks in the first device's memory, the second
    to one of the second device, and so on.

    Parameters
    ----------
    buffer_size : int
        How many batches wait for a device; each ring has two blocks more.
    devices : iterable of str or LogicalDevice, optional
        The devices. None: all logical devices of the CPU.

    Raises
    ------
    TypeError
        If the number is not an integer.
    ValueError
        If it is not positive, there is no device, a name fits none or several, or a
        device is simulated.

    Notes
    -----
    Each device holds ``buffer_size + 2`` blocks of the size of a batch, beside what the
    iterator holds. A device without memory raises ResourceExhaustedError in place of
    the batch, and says which `buffer_size` fits.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> callback = mc.data.InterleavedDataSetCallback(4)
    >>> batches = [np.full(3, number) for number in range(2)]
    >>> with mc.data.AsyncDataSetIterator(batches, callback=callback) as iterator:
    ...     for batch in iterator:
    ...         print(batch, mc.workspace_of(batch).name)
    [0 0 0] IDSC-0
    [1 1 1] IDSC-0
    """

    def __init__(
        self, buffer_size: int, devices: Iterable[str | LogicalDevice] | None = None
    ) -> None:
        self._buffer_size = count(buffer_size, "buffer_size")
        given = config.list_logical_devices("CPU") if devices is None else devices
        names = [
            each.name if isinstance(each, LogicalDevice) else each for each in given
        ]
        self._pools = [_host_memory(config.logical_device(n).host_pool) for n in names]
        if not self._pools:
            raise ValueError("there is no device to deal batches out to")
        self._rings: list[Ring] = []
        self._next = 0

    def call(self, batch: Any) -> Any:
        """Copy a batch to the next device.

        Parameters
        ----------
        batch : DataSet, MultiDataSet, numpy.ndarray, tuple, list or dict
            The batch.

        Returns
        -------
        object
            The copy, in the device's ring.

        Raises
        ------
        TypeError
            If it has a form in which arrays cannot be found.
        WorkspaceError
            If another thread is at it.
        ResourceExhaustedError
            If the device has no memory for the ring.
        """
        if not self._rings:
            pools = enumerate(self._pools)
            self._rings = [Ring(f"IDSC-{number}", pool) for number, pool in pools]
        ring = self._rings[self._next]
        ring.fit(self._buffer_size)
        with ring:
            moved = migrated(batch)
        self._next = (self._next + 1) % len(self._rings)
        return moved

    def reset(self) -> None:
        self._next = 0

    def close(self) -> None:
        rings, self._rings = self._rings, []
        self._next = 0
        for ring in rings:
            ring.destroy()


def _host_memory(pool: Resource) -> Resource:
    """Return a pool that NumPy's arrays can lie in; ValueError: it is simulated."""
    return numpy_allocator(pool).resource


class _Plain(DataSetCallback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def call(self, batch: Any) -> Any:
        return self._function(batch)


def _as_callback(
    given: DataSetCallback | Callable[[Any], Any] | None,
) -> DataSetCallback:
    """Return a callback as it is, and a function as one."""
    if given is None:
        return DefaultCallback()
    if isinstance(given, DataSetCallback):
        return given
    if not callable(given):
        raise TypeError(f"callback is a DataSetCallback or callable, not {given!r}")
    return _Plain(given)


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
        What the thread does to each batch. What it returns replaces the batch;
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
        self._closes = below is not base
        self._buffer_size = count(buffer_size, "buffer_size")
        self._workspace = flag(workspace, "workspace")
        self._callback = _as_callback(callback)
        pool = config.logical_device(None).host_pool if resource is None else resource
        self._resource = _host_memory(pool)
        self._name = type(self).__name__
        self._base: DataSetIterator | None = below
        self._forks = fork_count()
        self._lock = threading.RLock()
        self._warned = False
        self._begin(below)

    @property
    def reset_supported(self) -> bool:
        return self._opened().reset_supported

    @property
    def async_supported(self) -> bool:
        """False: one thread that reads ahead is enough."""
        return False

    def has_next(self) -> bool:
        """Return whether `next` has a batch or an error; wait until that is known.

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
        if self._ring is not None and self._ring.useless and not self._warned:
            self._warned = True
            self._warn_of_useless_ring()  # it may raise: nothing is taken yet
        while True:
            producer = self._reading()
            try:
                return producer.get()
            except StopIteration:
                if self._reading() is producer:
                    raise
            # It was reset while this was waiting.

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        """Restart; what was read ahead is dropped, and an error too.

        Waits for the batch that is being read.

        Raises
        ------
        RuntimeError
            If the iterator below cannot restart, or is still reading after some
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
                    f"cannot restart: {base!r} has not returned from `next`. Call "
                    "reset() again when it has."
                )
            base.reset()
            self._callback.reset()
            self._begin(base)

    def close(self) -> None:
        """End the thread, and release the ring.

        Waits for the batch that is being read. It may be called again; anything else is
        a RuntimeError then.

        Warns
        -----
        RuntimeWarning
            If the iterator below is still reading after some seconds. The thread ends,
            and releases the ring, when it returns.
        """
        if fork_count() != self._forks:
            self._base = None  # the lock may be held for ever
            return
        with self._lock:
            if self._base is None:
                return
            self._base = None
            if self._producer.stop(wait=True):
                self._callback.close()

    def _begin(self, base: DataSetIterator) -> None:
        """Begin a pass where the iterator below is."""
        named = self._name, self._resource
        self._ring = _WatchedRing(*named) if self._workspace else None
        self._producer = Producer(
            _Batches(base, self._callback, closes=self._closes),
            FixedDepth(self._buffer_size),
            self._name,
            ring=self._ring,
            allocator=partial(numpy_allocator, self._resource, tag=_TAG),
        )
        self._producer.start()
        self._running = True

    def _warn_of_useless_ring(self) -> None:
        warnings.warn(
            f"so many batches of this {self._name} are alive that its ring is of no "
            "use; new ones lie outside of it. If the iterator below keeps them, pass "
            "workspace=False or have it give copies; if they are kept here, keep "
            "memcfg.detach(batch).",
            RuntimeWarning,
            stacklevel=outside(),
        )

    def _opened(self) -> DataSetIterator:
        if self._base is None:
            raise RuntimeError(f"this {self._name} is closed: make another one")
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
        if fork_count() != self._forks:
            raise RuntimeError(
                f"this {self._name} has its thread in the process that was "
                "forked: make another one in this one"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has a thread, and cannot be copied or pickled: "
            "make another one"
        )

    def __getattr__(self, name: str) -> Any:
        return attribute_below(self, "_base", name)


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


class _Batches:
    """The batches of an iterator, none of which is None, as a callback leaves them."""

    def __init__(
        self, base: DataSetIterator, callback: DataSetCallback, *, closes: bool
    ) -> None:
        self._base = base
        self._callback = callback
        self._closes = closes
        self._number = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        batch = next(self._base)
        if batch is None:
            raise TypeError(f"batch {self._number} is None, which is no batch")
        self._number += 1
        try:
            result = self._callback.call(batch)
        except StopIteration as error:
            raise RuntimeError(f"{self._callback!r} raised StopIteration") from error
        return batch if result is None else result

    def close(self) -> None:
        """Close what was made to be read here."""
        if self._closes:
            self._base.close()


class _WatchedRing(Ring):
    """A ring that gives up when all batches of its last cycles are alive."""

    def __init__(self, name: str, resource: Resource) -> None:
        super().__init__(name, resource)
        self.useless = False
        self._in_a_row = 0  # cycles whose block still had its last batch
        self._held: WeakKeyDictionary[OwnedWorkspace, int] = WeakKeyDictionary()

    def fit(self, buffer_size: int) -> None:
        """Have the blocks that are needed, unless it has given up."""
        if not self.useless:
            super().fit(buffer_size)

    def __enter__(self) -> Self:
        super().__enter__()
        held = self._held.get(self._open, 0)
        alive = held > 0 and self._retired() >= held
        self._in_a_row = self._in_a_row + 1 if alive else 0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._blocks:
            self._held[self._open] = self._retired()
            if self._in_a_row > _LAPS * len(self._blocks):
                self.useless = True
                self.destroy()

    def _retired(self) -> int:
        """Return what batches hold that were in the block, its last one included."""
        return self._open.counters()["retired_bytes"]
