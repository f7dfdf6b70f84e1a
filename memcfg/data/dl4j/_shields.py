"""Iterators that keep something away from those below them.

Owns two shields: against threads that read ahead, and against workspaces. Both are for
finding out what goes wrong, and for iterators that must not be read ahead.
"""

from __future__ import annotations

from typing import Any

from memcfg.data.dl4j._moving import shielded
from memcfg.data.dl4j._over import Over

__all__ = [
    "AsyncShieldDataSetIterator",
    "AsyncShieldMultiDataSetIterator",
    "WorkspacesShieldDataSetIterator",
]


class AsyncShieldDataSetIterator(Over):
    """An iterator that no thread reads ahead of.

    `fit` and `evaluate` read it in the thread that calls them, and an
    `AsyncDataSetIterator` refuses it. If a fault is gone with it, the fault has to do
    with reading ahead.

    Parameters
    ----------
    base : iterable
        What it is over. All but `async_supported` is that one's.

    Raises
    ------
    TypeError
        If it is no iterable.

    Examples
    --------
    >>> import memcfg as mc
    >>> shield = mc.data.AsyncShieldDataSetIterator([1, 2])
    >>> list(shield), shield.async_supported
    ([1, 2], False)
    """

    @property
    def async_supported(self) -> bool:
        """False."""
        return False


class AsyncShieldMultiDataSetIterator(AsyncShieldDataSetIterator):
    """The same, under the name that DL4J has for iterators over `MultiDataSet`.

    Parameters
    ----------
    base : iterable
        What it is over.

    Raises
    ------
    TypeError
        If it is no iterable.
    """


class WorkspacesShieldDataSetIterator(Over):
    """An iterator whose batches are in no workspace but the consumer's.

    A batch that is in another workspace, such as the ring of a thread that reads ahead,
    is copied: into the current workspace, or out of all where none is current. What is
    in none stays as it is.

    Parameters
    ----------
    base : iterable
        What it is over. Its batches are data sets, arrays, or tuples, lists or dicts
        of them.

    Raises
    ------
    TypeError
        If it is no iterable.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> def batches():
    ...     with mc.workspace("reader"):
    ...         batch = np.ones(3)
    ...     yield batch
    >>> [mc.is_attached(each) for each in batches()]
    [True]
    >>> shield = mc.data.WorkspacesShieldDataSetIterator(batches())
    >>> [mc.is_attached(each) for each in shield]
    [False]
    >>> mc.destroy_all_workspaces()
    """

    def next(self) -> Any:
        """Return the next batch.

        Returns
        -------
        object
            The batch, or a copy.

        Raises
        ------
        StopIteration
            At the end.
        TypeError
            If it has a form in which arrays cannot be found.
        WorkspaceLeakError, WorkspaceStaleError, ResourceExhaustedError, MemoryError
            What `memcfg.detach` raises.
        """
        return shielded(super().next())
