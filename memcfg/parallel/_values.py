"""Values of a model's state, copied from one rank to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.parallel._members import Member

__all__ = ["copy_values"]


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
