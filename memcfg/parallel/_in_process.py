"""Ranks that are threads of one process, and sum each other's arrays in place."""

from __future__ import annotations

import time
from threading import Condition
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.errors import CommunicationError
from memcfg.ops import EncodedTotals
from memcfg.parallel._late_ranks import late
from memcfg.parallel.encoding._encoded_round import count_encoded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["InProcessCommunicator", "in_process_group"]

Array = npt.NDArray[Any]


def in_process_group(size: int, timeout: float) -> list[InProcessCommunicator]:
    """Return the communicators of new ranks of this process.

    Parameters
    ----------
    size : int
        The number of ranks.
    timeout : float
        Seconds that a rank waits for others.

    Returns
    -------
    list of InProcessCommunicator
        One for each rank, to be used by one thread at a time.
    """
    meeting = _Meeting(size, timeout)
    return [InProcessCommunicator(meeting, rank) for rank in range(size)]


class _Meeting:
    """A place where all ranks wait for each other, and see what each has brought."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self._condition = Condition()
        self._brought: dict[int, Any] = {}  # by rank, of the round under way
        self._met: list[Any] = []  # what all brought to the round before
        self._round = 0
        self._failure: CommunicationError | None = None
        self._next: _Meeting | None = None  # after a failure

    def renewed(self) -> _Meeting:
        """Return the place where ranks meet after a failure."""
        with self._condition:
            if self._next is None:
                self._next = _Meeting(self.size, self.timeout)
            return self._next

    def meet(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all ranks, when all have come."""
        with self._condition:
            self._check()
            self._brought[rank] = value
            this = self._round
            if len(self._brought) == self.size:
                self._met = [self._brought[each] for each in range(self.size)]
                self._brought = {}
                self._round += 1
                self._condition.notify_all()
                return self._met
            end = time.monotonic() + self.timeout
            while self._round == this and self._failure is None:
                left = end - time.monotonic()
                if left <= 0:
                    missing = [r for r in range(self.size) if r not in self._brought]
                    self._fail(late(missing, self.timeout), missing)
                self._condition.wait(left)
            if self._round == this:
                self._check()
            return self._met

    def fail(self, reason: str, ranks: Sequence[int]) -> None:
        """Make all calls raise, those that wait and those that come."""
        with self._condition:
            self._fail(reason, ranks)

    def _fail(self, reason: str, ranks: Sequence[int]) -> None:
        if self._failure is None:
            self._failure = CommunicationError(reason, ranks)
        self._brought = {}
        self._condition.notify_all()

    def _check(self) -> None:
        if self._failure is not None:
            raise CommunicationError(str(self._failure), self._failure.ranks)


class InProcessCommunicator:
    """The collectives of one rank of a process; see `memcfg.ops.Communicator`.

    Each rank computes its share of a sum in the arrays of all, so that no scratch is
    needed and each element is read and written by one thread.
    """

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.encoded_totals = EncodedTotals()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._meeting.size

    @property
    def rate(self) -> tuple[float, float]:
        """Of waking a thread, and of memory that two threads read and write."""
        return 3e-5, 5e9

    def work_bytes(self, collective: str, nbytes: int, item_bytes: int) -> int:
        """Return 0, as arrays of all ranks have addresses here."""
        del collective, nbytes, item_bytes
        return 0

    def fail(self, reason: str) -> None:
        """Make the collectives of all ranks raise CommunicationError from now on."""
        self._meeting.fail(reason, (self.rank,))

    def renewed(self) -> InProcessCommunicator:
        """Return the communicator of this rank in a group of the same ranks."""
        return InProcessCommunicator(self._meeting.renewed(), self.rank)

    def all_reduce(self, arrays: Sequence[Array], work: Array) -> None:
        """Replace arrays by their sums over the ranks."""
        del work
        self._together("all_reduce", arrays, self._sum_share)

    def all_reduce_encoded(self, arrays: Sequence[Array], work: Array) -> None:
        """Replace arrays by their sums; encodings are counted, and none is needed."""
        del work
        try:
            counted = count_encoded(arrays, self.size - 1)
        except ValueError as error:
            self.fail(f"rank {self.rank} failed in all_reduce_encoded: {error}")
            raise
        self._together("all_reduce_encoded", arrays, self._sum_share)
        self.encoded_totals = self.encoded_totals.plus(counted)

    def reduce_scatter(self, whole: Array, part: Array, work: Array) -> None:
        """Write this rank's part of the sum of flat arrays."""
        del work

        def add(of_all: Sequence[Sequence[Array]]) -> None:
            wholes = [_share(each[0], self.rank, self.size) for each in of_all]
            length = wholes[0].size
            part[length:] = 0
            np.copyto(part[:length], wholes[0])
            for each in wholes[1:]:
                part[:length] += each

        self._together("reduce_scatter", (whole,), add)

    def all_gather(self, part: Array, whole: Array, work: Array) -> None:
        """Write the parts of all ranks to a flat array."""
        del work

        def gather(of_all: Sequence[Sequence[Array]]) -> None:
            for rank, (each,) in enumerate(of_all):
                share = _share(whole, rank, self.size)
                np.copyto(share, each[: share.size])

        self._together("all_gather", (part,), gather)

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Replace arrays by those of a rank."""

        def copy(of_all: Sequence[Sequence[Array]]) -> None:
            if self.rank != root:
                for target, source in zip(arrays, of_all[root], strict=True):
                    np.copyto(target, source)

        self._together("broadcast", arrays, copy)

    def exchange(self, value: Any) -> list[Any]:
        """Return what each rank has given, in the order of ranks."""
        return self._meeting.meet(self.rank, value)

    def _sum_share(self, of_all: Sequence[Sequence[Array]]) -> None:
        """Sum this rank's share of each array, in the array of rank 0, for all."""
        for same in zip(*of_all, strict=True):
            first, *others = (
                _share(each.reshape(-1), self.rank, self.size) for each in same
            )
            for each in others:
                first += each
            for each in others:
                np.copyto(each, first)

    def _together(
        self,
        name: str,
        arrays: Sequence[Array],
        compute: Callable[[Sequence[Sequence[Array]]], None],
    ) -> None:
        """Compute on the arrays of all ranks, which stay as they are until all have."""
        with np.errstate(all="ignore"):  # as kernels in C++: infinities are values
            called = self._meeting.meet(self.rank, (name, arrays))
            kinds = [
                (each, *((array.shape, array.dtype) for array in given))
                for each, given in called
            ]
            if kinds.count(kinds[0]) < len(kinds):
                reason = "ranks differ in the collective that they call, or its arrays"
                self._meeting.fail(f"{reason}: {kinds}", ())
                self._meeting.meet(self.rank, None)
            try:
                compute([given for _, given in called])
            except BaseException as error:
                self.fail(f"rank {self.rank} failed in {name}: {error}")
                raise
            self._meeting.meet(self.rank, None)


def _share(array: Array, rank: int, size: int) -> Array:
    """Return a rank's part of a flat array; the last ones may be shorter or empty."""
    length = -(-array.size // size)
    return array[rank * length : (rank + 1) * length]
