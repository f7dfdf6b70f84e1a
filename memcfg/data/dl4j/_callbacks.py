"""What is done to each batch by the thread that reads ahead: DL4J's callbacks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from memcfg import config
from memcfg.config import LogicalDevice
from memcfg.data._checks import count
from memcfg.data.dl4j._data_sets import migrated
from memcfg.data.engine._batch_blocks import Ring
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memcfg.memory import Resource

__all__ = [
    "DataSetCallback",
    "DefaultCallback",
    "InterleavedDataSetCallback",
    "as_callback",
    "finisher",
    "host_memory",
]


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
        """Return the batch.

        Parameters
        ----------
        batch : object
            The batch.

        Returns
        -------
        object
            The same.
        """
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
        self._pools = [host_memory(config.logical_device(name).pool) for name in names]
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
        """Go on with the first device."""
        self._next = 0

    def close(self) -> None:
        """Release the rings; batches that are alive keep their blocks."""
        rings, self._rings = self._rings, []
        self._next = 0
        for ring in rings:
            ring.destroy()


def host_memory(pool: Resource) -> Resource:
    """Return a pool that NumPy's arrays can lie in; ValueError: it is simulated."""
    return numpy_allocator(pool).resource


class _Plain(DataSetCallback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def call(self, batch: Any) -> Any:
        return self._function(batch)


def as_callback(
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


def finisher(callback: DataSetCallback) -> Callable[[Any], Any] | None:
    """Return what a thread applies to each batch."""
    if type(callback) is DefaultCallback:
        return None

    def finish(batch: Any) -> Any:
        result = callback.call(batch)
        return batch if result is None else result

    return finish
