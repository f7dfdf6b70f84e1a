"""The bytes that passes of one model hold and need at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.plan import Alloc, Compute, Free
from memcfg.torch.trace._infeasible import InfeasibleStepError
from memcfg.torch.trace._traced import STALE
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.plan import Plan
    from memcfg.torch.trace._traced import Traced

# Names of bytes outside a graph.
OTHERS = "other passes"
SO_FAR, MISSED = "gradients so far", "not planned"
STATE, WORKSPACES = "optimizer state", "cuBLAS workspaces"
HELD, UNREAD = "held by functions", "not read by the step"
OF_LOSS = "loss and its gradient"  # the user's scalars, which outlive the op of a loss
OUTPUTS = "copies of outputs"  # by wrappers
READ_AHEAD = "weights read ahead"
BESIDE = "beside tensors"  # of the process
UNTIL_BACKWARD = (SO_FAR, MISSED, HELD)  # freed by the time the optimizer steps


@dataclass(frozen=True)
class Room:
    """Bytes that other passes hold while a pass runs.

    Parameters
    ----------
    others : int, default 0
        Bytes held during the whole step.
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
        """Return whether a plan that leaves this room also leaves the other room."""
        return (
            self.others >= other.others
            and self.stale >= other.stale
            and self.loss >= other.loss
        )


class NoRoomError(InfeasibleStepError):
    """A plan leaves too little room for other passes, and nothing has run.

    Parameters
    ----------
    message : str
        Which pass does not fit.
    room : Room
        The bytes that the other passes hold.
    is_own : bool
        Whether another plan of the refused pass might leave enough room.
    **fields
        The attributes of `InfeasibleStepError`.
    """

    WAYS: ClassVar[str] = (
        "Run each backward before the next forward, run both batches in one pass, run "
        "passes that need no gradient under torch.no_grad(), delete outputs that are "
        "no longer needed, or raise the limit."
    )
    KEPT: ClassVar[str] = (
        "Add the losses and run one backward, run a forward for each backward, or "
        "raise the limit."
    )
    _fields = (*InfeasibleStepError._fields, "room", "is_own")

    def __init__(
        self, message: str, *, room: Room, is_own: bool, **fields: Any
    ) -> None:
        self.room = room
        self.is_own = is_own
        super().__init__(message, **fields)


@dataclass(frozen=True)
class Needs:
    """Bytes of a step, without those that other passes hold.

    Parameters
    ----------
    overhead : int
        Bytes outside the graph.
    forward, at_loss, backward : int
        The most bytes of the graph in use before, during and after the loss.
    backward_kept : int
        The most after the loss, if what backward reads is kept (`retain_graph`).
    loss : int
        The part of `at_loss` that the loss itself has in use.
    resident : int
        Bytes that live between the two phases, including the gradients of outputs,
        without parameters, inputs and outputs.
    outputs, tangents, gradients : int
        Bytes of the outputs, of their gradients, and of all results of backward.
    """

    overhead: int
    forward: int
    at_loss: int
    backward: int
    backward_kept: int
    loss: int
    resident: int
    outputs: int
    tangents: int
    gradients: int

    @classmethod
    def of(
        cls, traced: Traced, plan: Plan, overhead: Mapping[str, int], room: Room
    ) -> Needs:
        """Return the needs of a plan that leaves room for other passes."""
        graph = traced.graph
        sizes = [align_up(tensor.nbytes) for tensor in graph.tensors]
        roles = [tensor.role for tensor in graph.tensors]
        absent = set(traced.unused_states(plan))
        absent |= {at for at, each in enumerate(graph.tensors) if each.name == STALE}
        there: set[int] = set()
        between: set[int] = set()
        forward = at_loss = backward = backward_kept = 0
        is_late = False
        for action in plan.actions:
            if isinstance(action, Alloc) and action.tensor not in absent:
                there.add(action.tensor)
            elif isinstance(action, Free):
                there.discard(action.tensor)
            scratch = 0
            if isinstance(action, Compute):
                scratch = align_up(graph.ops[action.op].scratch_bytes)
            now = sum(sizes[each] for each in there) + scratch
            if isinstance(action, Compute) and action.op == traced.boundary:
                between, at_loss, is_late = set(there), now, True
            elif is_late:
                backward = max(backward, now)
                kept = sum(sizes[each] for each in there | between)
                backward_kept = max(backward_kept, kept + scratch)
            else:
                forward = max(forward, now)
        loss = None if traced.boundary is None else graph.ops[traced.boundary]
        shown = {at for at, role in enumerate(roles) if role == "output"}
        outputs = sum(sizes[each] for each in shown)
        given = ("parameter", "input")
        inner = {e for e in between - shown if roles[e] not in given}
        return cls(
            sum(overhead.values()) - overhead.get(OTHERS, 0),
            forward,
            at_loss - room.loss,
            backward,
            backward_kept,
            # A graph without a loss of its own: another loss may read its outputs.
            3 * outputs if loss is None else align_up(loss.scratch_bytes) - room.loss,
            sum(sizes[each] for each in inner),
            outputs,
            0 if loss is None else sum(sizes[each] for each in loss.outputs),
            sum(sizes[at] for at, role in enumerate(roles) if role == "gradient"),
        )

    def in_room(self, room: Room) -> int:
        """Return the bytes of the step together with what others hold."""
        until = max(self.forward + room.stale, self.at_loss + room.loss)
        return self.overhead + room.others + max(until, self.backward)

    def in_backward(self, room: Room, *, is_kept: bool = False) -> int:
        """Return the bytes of the backward phase together with what others hold."""
        backward = self.backward_kept if is_kept else self.backward
        return self.overhead + room.others + backward

    def from_loss(self, room: Room) -> int:
        """Return the bytes from the loss on, together with what others hold."""
        return (
            self.overhead + room.others + max(self.at_loss + room.loss, self.backward)
        )
