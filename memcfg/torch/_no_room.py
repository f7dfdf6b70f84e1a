"""What other passes of a model have beside one, and what says that it is too much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from memcfg.errors import InfeasiblePlanError

OTHERS = "other passes"  # bytes beside a graph
STALE = "outputs of the pass before"  # a tensor of it


@dataclass(frozen=True)
class Room:
    """Bytes that other passes have beside one.

    Parameters
    ----------
    others : int, default 0
        Those that live during the whole step.
    stale : int, default 0
        Outputs of a pass that has ended, which a loop's variable holds until it is set
        anew: when forward has ended.
    loss : int, default 0
        What a loss of all passes needs for the outputs of others.
    """

    others: int = 0
    stale: int = 0
    loss: int = 0

    def covers(self, other: Room) -> bool:
        """Whether what fits beside this one fits beside another."""
        return (
            self.others >= other.others
            and self.stale >= other.stale
            and self.loss >= other.loss
        )


class NoRoomError(InfeasiblePlanError):
    """A plan leaves no room for what other passes have; nothing has run.

    Parameters
    ----------
    message : str
        What there is no room for.
    room : Room
        What others have.
    is_own : bool
        Whether another plan of the pass that was to begin might leave room.
    **fields
        The attributes of `InfeasiblePlanError`.
    """

    WAYS: ClassVar[str] = (
        "Run backward of one pass before the next, or both batches in one pass; passes "
        "of which no gradient is wanted under torch.no_grad; delete outputs that are "
        "not needed; or raise the limit."
    )
    _fields = (*InfeasiblePlanError._fields, "room", "is_own")

    def __init__(
        self, message: str, *, room: Room, is_own: bool, **fields: Any
    ) -> None:
        self.room = room
        self.is_own = is_own
        super().__init__(message, **fields)
