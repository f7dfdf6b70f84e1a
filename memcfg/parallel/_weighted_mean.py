"""The mean of a model's state over ranks, which goes on where it was interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcfg.parallel._members import Member

__all__ = ["WeightedMean"]


class WeightedMean:
    """A rank's part in replacing each float of the state by its mean over all ranks.

    If an exception ends `make` on some ranks, the next call on all of them goes on with
    the same bits. Invariant: ranks are at most one value apart, since none reduces a
    value before it has written the mean of the one before.
    """

    def __init__(self) -> None:
        # How many values are written, and the mean of the next one from its reduction
        # until it is counted as written. Both change at once.
        self._at: tuple[int, NDArray[Any] | None] = 0, None

    def make(self, member: Member, share: float, *, updaters: bool) -> None:
        """Write the sums over ranks of a share of each value; one is copied at a time.

        The shares of all ranks add up to 1. Afterwards another call changes nothing.
        """
        session, communicator = member.session, member.communicator
        names = session.lasting_names(optimizer=updaters)
        number, mean = self._at
        if mean is not None:
            self._write(member, names, number, mean)
        del mean
        of_all = communicator.exchange(self._at[0])
        most = max(of_all)
        if min(of_all) < most:  # others have replaced what they reduced
            name, is_behind = names[most - 1], self._at[0] < most
            value = session.empty(name) if is_behind else session.read_own(name)
            communicator.broadcast([value], of_all.index(most))
            if is_behind:
                self._write(member, names, most - 1, value)
            del value
        for number in range(most, len(names)):
            value = session.read_own(names[number])
            if value.dtype.kind != "f":
                continue
            value *= value.dtype.type(share)
            nbytes = communicator.work_bytes("all_reduce", value.nbytes, value.itemsize)
            communicator.all_reduce([value], np.empty(nbytes, np.uint8))
            self._write(member, names, number, value)

    def _write(
        self, member: Member, names: list[str], number: int, mean: NDArray[Any]
    ) -> None:
        self._at = number, mean
        member.session.write_own(names[number], mean)
        self._at = number + 1, None
