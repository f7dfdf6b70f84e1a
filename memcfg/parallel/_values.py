"""Values of a model's state on all ranks: copied from one, or averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memcfg.parallel._members import Member

__all__ = ["average_values", "copy_values"]


def copy_values(member: Member) -> None:
    """Give a rank the weights and the optimizer state of the first one.

    Each rank keeps its parts of values that the ranks divide already.
    """
    session, communicator = member.session, member.communicator
    names = session.lasting_names(optimizer=True)
    # Layers of other processes may have other names.
    divided = communicator.exchange([*map(session.has_part, names)])[0]
    for name, is_divided in zip(names, divided, strict=True):
        if is_divided:
            continue
        is_first = communicator.rank == 0
        value = session.read_own(name) if is_first else session.empty(name)
        communicator.broadcast([value], 0)
        if not is_first:
            session.write_own(name, value)


def average_values(member: Member, share: float, *, updaters: bool) -> None:
    """Replace floats of the state by their sums over ranks, times a share of each.

    One array is copied at a time. The shares of all ranks add up to 1.
    """
    session, communicator = member.session, member.communicator
    for name in session.lasting_names(optimizer=updaters):
        value = session.read_own(name)
        if value.dtype.kind != "f":
            continue
        value *= value.dtype.type(share)
        nbytes = communicator.work_bytes("all_reduce", value.nbytes, value.itemsize)
        communicator.all_reduce([value], np.empty(nbytes, np.uint8))
        session.write_own(name, value)
