"""Groups of ranks, whose collectives an op names.

A rank is one of several processes, or one of several workers of a process, that run the
same sequence of collectives on tensors of their own. What moves the bytes is a
communicator of `memcfg.parallel`; ops know it by the name of its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.ops._encoded_totals import EncodedTotals
    from memcfg.ops._op_type import Array

__all__ = ["Communicator", "add_group", "group_of"]


class Communicator(Protocol):
    """The collectives of one rank of a group; each waits until all ranks are in it.

    All ranks call the same methods in the same order, with arrays of the same lengths
    and dtypes. Arrays are C-contiguous, of float32, float64, int32 or int64. Sums are
    taken in the order of the ranks, ``((a_0 + a_1) + a_2) + ...``, so they have the
    same bits on all ranks and in all runs. ``work`` has `work_bytes`, for scratch.

    Parts are of flat arrays, equally long on all ranks: rank r has the elements from
    ``r * part.size`` on, and zeros, or any contents in `all_gather`, for those behind
    the end.

    A method raises CommunicationError, which names the ranks, if another rank has
    failed, or has not arrived within the timeout. Arrays may then have any contents,
    and later calls raise it as well.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def rate(self) -> tuple[float, float] | None:
        """Seconds of a collective, and bytes per second to others; None: not known."""

    @property
    def encoded_totals(self) -> EncodedTotals:
        """What calls of `all_reduce_encoded` have encoded on this rank so far."""

    def work_bytes(self, collective: str, nbytes: int, item_bytes: int) -> int:
        """Return the scratch of a collective.

        Parameters
        ----------
        collective : str
            ``all_reduce``, ``reduce_scatter``, ``all_gather`` or ``broadcast``.
        nbytes : int
            Bytes of whole arrays, in all.
        item_bytes : int
            Bytes of an element, of the largest if they differ.

        Returns
        -------
        int
            Bytes, the same on all ranks.
        """

    def all_reduce(self, arrays: Sequence[Array], work: Array) -> None:
        """Replace arrays by their sums over the ranks.

        Parameters
        ----------
        arrays : sequence of ndarray
            This rank's.
        work : ndarray
            Scratch of `work_bytes` in uint8.
        """

    def all_reduce_encoded(self, arrays: Sequence[Array], work: Array) -> None:
        """Replace arrays of few values by their sums over the ranks.

        The sums are those of `all_reduce`. The arrays of a rank have the values 0, T
        and -T, where T is the rank's own, so that they are sent in few bytes.

        Parameters
        ----------
        arrays : sequence of ndarray
            This rank's, in float32, 64 at most.
        work : ndarray
            Scratch of `work_bytes` in uint8.

        Raises
        ------
        ValueError
            If there are other values.
        """

    def reduce_scatter(self, whole: Array, part: Array, work: Array) -> None:
        """Write this rank's part of the sum of flat arrays.

        Parameters
        ----------
        whole : ndarray
            Flat; it is not changed.
        part : ndarray
            Flat, of the length of `whole` divided by the number of ranks, rounded up.
        work : ndarray
            Scratch of `work_bytes` in uint8.
        """

    def all_gather(self, part: Array, whole: Array, work: Array) -> None:
        """Write the parts of all ranks to a flat array.

        Parameters
        ----------
        part : ndarray
            Flat.
        whole : ndarray
            Flat, at most as long as all parts together.
        work : ndarray
            Scratch of `work_bytes` in uint8.
        """

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Replace arrays by those of a rank.

        Parameters
        ----------
        arrays : sequence of ndarray
            This rank's.
        root : int
            The rank whose arrays are copied.
        """

    def exchange(self, value: Any) -> list[Any]:
        """Return what all ranks have given, in their order.

        Parameters
        ----------
        value : object
            What can be pickled, and is small.

        Returns
        -------
        list of object
            Of all ranks.
        """

    def fail(self, reason: str) -> None:
        """Make collectives of all ranks raise CommunicationError from now on.

        Parameters
        ----------
        reason : str
            The message of that error.
        """

    def renewed(self) -> Communicator:
        """Return a communicator of the same ranks, after one of them has failed.

        All ranks call this. The new one is closed by its `close`, if it has one.

        Returns
        -------
        Communicator
            This rank's.

        Raises
        ------
        CommunicationError
            If one does not answer.
        """


_groups: WeakValueDictionary[str, Communicator] = WeakValueDictionary()


def add_group(name: str, communicator: Communicator) -> None:
    """Make a communicator known to ops, as long as it exists.

    Parameters
    ----------
    name : str
        The name that ops give in their attribute ``group``. One that is in use is given
        anew, for a rank that has been replaced.
    communicator : Communicator
        This rank's.
    """
    _groups[name] = communicator


def group_of(name: str) -> Communicator:
    """Return the communicator of a group.

    Parameters
    ----------
    name : str
        As of `add_group`.

    Returns
    -------
    Communicator
        This rank's.

    Raises
    ------
    KernelError
        If there is none, or it has been closed.
    """
    try:
        return _groups[name]
    except KeyError:
        raise KernelError(
            f"there is no group of ranks {name!r}: it has been closed, or the step was "
            "traced in another process"
        ) from None
