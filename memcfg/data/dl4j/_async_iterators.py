"""Iterators that read batches ahead in a thread, and their callbacks."""

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
from memcfg.data.engine._device_rings import DeviceRings
from memcfg.data.engine._producer import FixedDepth, Producer
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import NoReturn, Self

    from memcfg.memory import Resource
    from memcfg.workspaces import OwnedWorkspace

_TAG = "data"
_LAPS = 3  # cycles over all blocks after which batches count as kept by the consumer


class DataSetCallback(ABC):
    """A callback that an `AsyncDataSetIterator` applies to each batch.

    The thread that reads ahead calls it while the batch's block is the current
    workspace. A callback serves one iterator at a time.
    """

    @abstractmethod
    def call(self, batch: Any) -> Any:
        """Process a batch.

        Parameters
        ----------
        batch : object
            A batch of the underlying iterator.

        Returns
        -------
        object
            The batch to use instead; None keeps `batch`.
        """

    def reset(self) -> None:  # noqa: B027 - most have nothing to restart
        """Restart; called when the iterator is reset."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release resources; called when the iterator is closed."""


class DefaultCallback(DataSetCallback):
    """A callback that returns each batch unchanged."""

    def call(self, batch: Any) -> Any:
        return batch


class InterleavedDataSetCallback(DataSetCallback):
    """A callback that copies batches to devices, round-robin.

    The first batch goes to a ring of blocks in the first device's memory, the second
    to one of the second device, and so on.

    Parameters
    ----------
    buffer_size : int
        Number of batches that wait for a device; each ring has two more blocks.
    devices : iterable of str or LogicalDevice, optional
        The devices. None: all logical devices of the CPU.

    Raises
    ------
    TypeError
        If the number is not an integer.
    ValueError
        If the number is not positive, `devices` is empty, a name matches no or several
        devices, or a device is simulated.

    Notes
    -----
    Each device holds ``buffer_size + 2`` blocks of the size of a batch, in addition to
    the iterator's own. If a device has no memory for them, `next` of the iterator
    raises ResourceExhaustedError, whose hint is the largest `buffer_size` that fits.

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
            raise ValueError("devices is empty: there is no device for batches")
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
            If the batch is not of a supported type.
        WorkspaceError
            If another thread is using the ring.
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
    """Return the pool as NumPy's allocator uses it; ValueError if it is simulated."""
    return numpy_allocator(pool).resource


def _resources(given: Resource | Sequence[Resource] | None) -> list[Resource]:
    """Return the host memory of resources, or of the current device."""
    if given is None:
        given = config.logical_device(None).host_pool
    several = given if isinstance(given, list | tuple) else [given]
    if not several:
        raise ValueError("resource is empty: there is no memory for batches")
    return [*map(_host_memory, several)]


class _Plain(DataSetCallback):
    """A callback that calls a function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def call(self, batch: Any) -> Any:
        return self._function(batch)


def _as_callback(
    given: DataSetCallback | Callable[[Any], Any] | None,
) -> DataSetCallback:
    """Return a callback for a callback, a function or None."""
    if given is None:
        return DefaultCallback()
    if isinstance(given, DataSetCallback):
        return given
    if not callable(given):
        raise TypeError(
            f"callback must be a DataSetCallback or callable, not {given!r}"
        )
    return _Plain(given)


class AsyncDataSetIterator(DataSetIterator):
    """An iterator that reads batches ahead in a background thread.

    The thread starts at once. Arrays that NumPy allocates while a batch is read lie in
    a ring of blocks; a block is not reused while an array in it is alive. An error of
    the underlying iterator is raised after the batches before it.

    Parameters
    ----------
    base : iterable
        The batches: data sets, tuples, arrays or any object but None. From now on only
        the thread may read it. Closing this iterator does not close `base`.
    buffer_size : int, default 8
        Max. batches that are read ahead.
    workspace : bool, default True
        Whether batches lie in a ring. Otherwise each array is allocated separately.
    callback : DataSetCallback or callable, optional
        Applied by the thread to each batch. Its result replaces the batch unless it is
        None.
    resource : Resource or sequence of Resource, optional
        Resource of the memory. Of several, each has a ring, and batches lie in these in
        turn. None: the pool of the current device.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If the number is not positive, `base` must not be read ahead (its
        `async_supported` is False), `resource` is empty, or a device is simulated.

    Notes
    -----
    The ring has ``buffer_size + 2`` blocks, each of the size of a batch: the batches
    that wait, the consumer's, and the one that it takes next. The first batch, from
    which the size is learned, lies outside of the ring. With several resources, each
    ring has its part of the batches that wait.

    Unlike DL4J's, the constructor does not reset `base`: if it is exhausted, there are
    no batches until `reset`.

    `has_next` waits until the next batch, an error or the end is known. An error ends
    the pass. Several threads may consume batches; each batch goes to one of them. Other
    attributes are those of `base`. In a forked child, methods raise RuntimeError.

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
        resource: Resource | Sequence[Resource] | None = None,
    ) -> None:
        below = as_iterator(base)
        if not below.async_supported:
            raise ValueError(
                f"{base!r} must not be read ahead (async_supported is False): iterate "
                "over it directly"
            )
        self._closes = below is not base
        self._buffer_size = count(buffer_size, "buffer_size")
        self._workspace = flag(workspace, "workspace")
        self._callback = _as_callback(callback)
        self._resources = _resources(resource)
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
        """False: batches are already read ahead."""
        return False

    def has_next(self) -> bool:
        """Wait until the next item is known; return whether it is a batch or an error.

        Returns
        -------
        bool
            False at the end.

        Raises
        ------
        RuntimeError
            If it is closed, its last reset failed, or this is a forked child.
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
            If it is closed, its last reset failed, or this is a forked child.
        BaseException
            The exception of the underlying iterator or the callback, after the
            preceding batches.

        Warns
        -----
        RuntimeWarning
            Once, if so many batches are alive that no block of the ring can be reused.
        """
        if not self._warned and any(ring.useless for ring in self._rings):
            self._warned = True
            self._warn_of_useless_ring()  # may raise, so before a batch is taken
        while True:
            producer = self._reading()
            try:
                return producer.get()
            except StopIteration:
                if self._reading() is producer:
                    raise
            # Another thread reset the iterator during the wait: try again.

    def __next__(self) -> Any:
        return self.next()

    def reset(self) -> None:
        """Restart the pass; drop batches read ahead, and a pending error.

        Waits for the batch that is being read.

        Raises
        ------
        RuntimeError
            If the underlying iterator cannot restart, or is still reading after 5
            seconds, when `reset` may be called again; if this one is closed, or this is
            a forked child.
        BaseException
            The exception of the underlying iterator's `reset`.

        Warns
        -----
        RuntimeWarning
            If the underlying iterator is still reading after 5 seconds.
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
        """End the thread and release the ring.

        Waits for the batch that is being read. May be called repeatedly; other methods
        raise RuntimeError afterwards.

        Warns
        -----
        RuntimeWarning
            If the underlying iterator is still reading after 5 seconds. The thread
            then ends, and releases the ring, when the read returns.
        """
        if fork_count() != self._forks:
            self._base = None  # a thread of the parent may hold the lock for ever
            return
        with self._lock:
            if self._base is None:
                return
            self._base = None
            if self._producer.stop(wait=True):
                self._callback.close()

    def _begin(self, base: DataSetIterator) -> None:
        """Begin a pass at the current position of the underlying iterator."""
        self._rings = [
            _WatchedRing(self._name, each)
            for each in (self._resources if self._workspace else ())
        ]
        self._producer = Producer(
            _Batches(base, self._callback, closes=self._closes),
            FixedDepth(self._buffer_size),
            self._name,
            ring=DeviceRings(self._rings) if self._rings else None,
            allocator=partial(numpy_allocator, self._resources[0], tag=_TAG),
        )
        self._producer.start()
        self._running = True

    def _warn_of_useless_ring(self) -> None:
        warnings.warn(
            f"so many batches of this {self._name} are alive that no block of its ring "
            "can be reused; new batches are allocated outside of it. If the underlying "
            "iterator keeps its batches, pass workspace=False or let it return copies; "
            "if you keep them, keep memcfg.detach(batch) instead.",
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
            with self._lock:  # wait for a reset in another thread
                self._opened()
                if not self._running:
                    raise RuntimeError("the last reset failed: call reset() again")
        return self._producer

    def _require_process(self) -> None:
        if fork_count() != self._forks:
            raise RuntimeError(
                f"the thread of this {self._name} is in the process that was forked: "
                "make a new iterator in this process"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has a thread and cannot be copied or pickled: "
            "make another one"
        )

    def __getattr__(self, name: str) -> Any:
        return attribute_below(self, "_base", name)


class AsyncMultiDataSetIterator(AsyncDataSetIterator):
    """`AsyncDataSetIterator` under DL4J's name for iterators over `MultiDataSet`.

    Parameters
    ----------
    base : iterable
        The batches.
    buffer_size : int, default 8
        Max. batches that are read ahead.
    workspace : bool, default True
        Whether batches lie in a ring.
    callback : DataSetCallback or callable, optional
        Applied by the thread to each batch.
    resource : Resource, optional
        Resource of the memory.

    Raises
    ------
    TypeError, ValueError
        As `AsyncDataSetIterator` does.
    """


class _Batches:
    """An iterator over batches with a callback applied; None is refused."""

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
            raise TypeError(f"batch {self._number} is None, which is not a batch")
        self._number += 1
        try:
            result = self._callback.call(batch)
        except StopIteration as error:
            raise RuntimeError(f"{self._callback!r} raised StopIteration") from error
        return batch if result is None else result

    def close(self) -> None:
        """Close the iterator if it was made for this one."""
        if self._closes:
            self._base.close()


class _WatchedRing(Ring):
    """A ring that is released once its blocks are never free when they are reused."""

    def __init__(self, name: str, resource: Resource) -> None:
        super().__init__(name, resource)
        self.useless = False
        self._in_a_row = 0  # consecutive cycles whose block's last batch was alive
        self._held: WeakKeyDictionary[OwnedWorkspace, int] = WeakKeyDictionary()

    def fit(self, buffer_size: int) -> None:
        """Allocate the blocks that are needed, unless the ring is useless."""
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
        """Return the bytes that live batches of earlier cycles hold in the block."""
        return self._open.counters()["retired_bytes"]
