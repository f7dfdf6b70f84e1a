"""What the thread of an asynchronous iterator reads, and what it fills.

Owns how a pass begins, that no batch is None, and when a ring is of no use. Refuses to
end anything.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from memcfg._caller import outside
from memcfg.data.dl4j._callbacks import finisher
from memcfg.data.engine._bounded_queue import FixedDepth
from memcfg.data.engine._producer import Producer
from memcfg.data.engine._ring import Ring
from memcfg.memory import numpy_allocator

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from memcfg.data.dl4j._callbacks import DataSetCallback
    from memcfg.data.dl4j._iterators import DataSetIterator
    from memcfg.memory import Resource
    from memcfg.workspaces import OwnedWorkspace

__all__ = ["Batches", "Passes", "WatchedRing", "tell_of_useless_ring"]

_TAG = "data"
_LAPS = 3  # turns of all blocks after which it is clear that batches are kept


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Passes over an iterator, each read ahead by a thread of its own.

    Parameters
    ----------
    base : DataSetIterator
        What is read.
    closes : bool
        Whether it is closed with a pass.
    buffer_size : int
        How many batches may wait.
    workspace : bool
        Whether batches lie in a ring.
    callback : DataSetCallback
        What is done to each batch.
    resource : Resource
        Where memory comes from.
    name : str
        For threads and messages.
    """

    base: DataSetIterator
    closes: bool
    buffer_size: int
    workspace: bool
    callback: DataSetCallback
    resource: Resource
    name: str

    def begin(self) -> tuple[Producer, WatchedRing | None]:
        """Begin a pass where the iterator is.

        Returns
        -------
        tuple of Producer and (WatchedRing or None)
            The thread, at work, and what it fills.
        """
        ring = WatchedRing(self.name, self.resource) if self.workspace else None
        producer = Producer(
            Batches(self.base, closes=self.closes),
            FixedDepth(self.buffer_size),
            self.name,
            ring=ring,
            allocator=partial(numpy_allocator, self.resource, tag=_TAG),
            finished=finisher(self.callback),
        )
        producer.start()
        return producer, ring


class Batches:
    """The batches of an iterator, none of which is None.

    Parameters
    ----------
    base : DataSetIterator
        What is read.
    closes : bool
        Whether it is closed with this.
    """

    def __init__(self, base: DataSetIterator, *, closes: bool) -> None:
        self._base = base
        self._closes = closes
        self._number = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        batch = next(self._base)
        if batch is None:
            raise TypeError(f"batch {self._number} is None, which is no batch")
        self._number += 1
        return batch

    def close(self) -> None:
        """Close what was made to be read here."""
        if self._closes:
            self._base.close()


class WatchedRing(Ring):
    """A ring that gives up when all batches of its last turns are alive.

    Parameters
    ----------
    name : str
        For messages and the resource's books.
    resource : Resource
        Where the blocks come from.

    Attributes
    ----------
    useless : bool
        Whether it has given up: arrays lie outside of it since.
    """

    def __init__(self, name: str, resource: Resource) -> None:
        super().__init__(name, resource)
        self.useless = False
        self._in_a_row = 0  # cycles whose block still had its last batch
        self._held: WeakKeyDictionary[OwnedWorkspace, int] = WeakKeyDictionary()

    def fit(self, buffer_size: int) -> None:
        """Have the blocks that are needed, unless it has given up.

        Parameters
        ----------
        buffer_size : int
            How many batches wait at most from now on.

        Raises
        ------
        ResourceExhaustedError
            If there is no room for them.
        """
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
        """Tell what batches hold that were in the block, its last one included."""
        return self._open.counters()["retired_bytes"]


def tell_of_useless_ring(name: str) -> None:
    """Warn that a ring has given up, and say what to do.

    Parameters
    ----------
    name : str
        Whose ring it was.

    Warns
    -----
    RuntimeWarning
        Always.
    """
    warnings.warn(
        f"so many batches of this {name} are alive that its ring is of no use; new "
        "ones lie outside of it. If the iterator below keeps them, pass "
        "workspace=False or have it give copies; if they are kept here, keep "
        "memcfg.detach(batch).",
        RuntimeWarning,
        stacklevel=outside(),
    )
