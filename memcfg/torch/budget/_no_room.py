"""The bytes that other passes of a model hold, and the error if they are too many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from memcfg.errors import InfeasiblePlanError

OTHERS = "other passes"  # a name of bytes beside a graph
STALE = "outputs of the pass before"  # the name of a tensor


@dataclass(frozen=True)
class Room:
    """Bytes that other passes hold while a pass runs.

    Parameters
    ----------
    others : int, default 0
        Bytes that are held during the whole step.
    stale : int, default 0
        Outputs of a pass that has ended. A loop's variable holds them until it is
        assigned again, at the end of forward.
    loss : int, default 0
        Bytes that a loss of all passes needs for the outputs of the others.
    """

    others: int = 0
    stale: int = 0
    loss: int = 0

    def covers(self, other: Room) -> bool:
        """Whether a plan that leaves this room leaves the other as well."""
        return (
            self.others >= other.others
            and self.stale >= other.stale
            and self.loss >= other.loss
        )


class NoRoomError(InfeasiblePlanError):
    """A plan leaves too little room for other passes; nothing has run.

    Parameters
    ----------
    message : str
        The pass that does not fit.
    room : Room
        The bytes that the other passes hold.
    is_own : bool
        Whether another plan of the refused pass might leave enough room.
    **fields
        The attributes of `InfeasiblePlanError`.
    """

    WAYS: ClassVar[str] = (
        "Run each backward before the next forward, run both batches in one pass, run "
        "passes that need no gradient under torch.no_grad(), delete outputs that are "
        "no longer needed, or raise the limit."
    )
    _fields = (*InfeasiblePlanError._fields, "room", "is_own")

    def __init__(
        self, message: str, *, room: Room, is_own: bool, **fields: Any
    ) -> None:
        self.room = room
        self.is_own = is_own
        super().__init__(message, **fields)
