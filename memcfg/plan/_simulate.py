"""The planner's own reading of a plan: what it costs, moment by moment.

Owns the arithmetic of peak, time and bytes by role. Trusts the plan to be legal;
`validate` is the judge and shares no code with this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.errors import PlanError
from memcfg.plan._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    SwapIn,
    SwapOut,
)
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.graph import Graph
    from memcfg.plan._plan import Plan

__all__ = ["Simulation", "simulate"]

_Key = tuple[str, int]  # ("tensor" or "encoded", tensor id)


@dataclass(frozen=True)
class Simulation:
    """What a plan costs.

    Parameters
    ----------
    peak_bytes : int
        The highest end of any room in use at any time.
    host_peak_bytes : int
        The most bytes on other tiers at a time; a copy is held until it is copied
        back for the last time.
    moved_bytes : int
        Bytes copied out and in.
    seconds : float
        The time of all computed ops, in seconds; copies are not in it.
    recompute_seconds : float
        The part of `seconds` beyond the first computation of each op.
    by_role_at_peak : mapping of str to int
        Bytes in use at the busiest moment, by role; ``"scratch"`` is one.
    busiest_op : int or None
        The op that runs at the busiest moment; None: the start or the end.
    timeline : tuple of (int, int)
        For each computed op, in order: the op, and the bytes in use while it runs.
    """

    peak_bytes: int
    host_peak_bytes: int
    moved_bytes: int
    seconds: float
    recompute_seconds: float
    by_role_at_peak: Mapping[str, int]
    busiest_op: int | None
    timeline: tuple[tuple[int, int], ...]


def simulate(graph: Graph, plan: Plan) -> Simulation:
    """Follow a plan and count its bytes and seconds.

    Parameters
    ----------
    graph : Graph
        The graph that the plan is for.
    plan : Plan
        The plan.

    Returns
    -------
    Simulation
        What it costs.

    Raises
    ------
    PlanError
        If the plan names something that the graph or the arena does not have at
        that moment.
    """
    machine = _Machine(graph, plan.alignment)
    for index, action in enumerate(plan.actions):
        try:
            machine.run(action)
        except LookupError as error:
            raise PlanError(
                f"action {index} ({action}) does not fit the graph {graph.name!r}"
            ) from error
    machine.note_moment(None)
    host_peak, moved = _traffic(graph, plan)
    return Simulation(
        peak_bytes=machine.peak,
        host_peak_bytes=host_peak,
        moved_bytes=moved,
        seconds=machine.seconds,
        recompute_seconds=machine.recompute_seconds,
        by_role_at_peak=machine.most_by_role,
        busiest_op=machine.busiest_op,
        timeline=tuple(machine.timeline),
    )


class _Machine:
    """The arena as a set of rooms."""

    def __init__(self, graph: Graph, alignment: int) -> None:
        self.graph = graph
        self.alignment = alignment
        self.rooms: dict[_Key, tuple[int, int]] = {}  # offset, bytes
        self.takers: dict[int, int] = {}  # input -> output that takes its room
        self.state = set(graph.persistent)  # tensors in the rooms of the state
        self.by_role: dict[str, int] = {}
        self.live = 0
        self.peak = 0
        self.most = -1
        self.most_by_role: dict[str, int] = {}
        self.busiest_op: int | None = None
        self.computed: set[int] = set()
        self.seconds = 0.0
        self.recompute_seconds = 0.0
        self.timeline: list[tuple[int, int]] = []

    def run(self, action: Action) -> None:
        match action:
            case Alloc(tensor, offset):
                self.open(("tensor", tensor), offset, self.graph.tensors[tensor].nbytes)
            case Alias(output, input):
                if input in self.state:
                    self.state.add(output)
                else:
                    self.takers[input] = output
            case Free(tensor):
                self.free(tensor)
            case Compute(op, algorithm, scratch_offset):
                self.compute(op, algorithm, scratch_offset)
            case Encode(tensor, _, nbytes, offset):
                self.open(("encoded", tensor), offset, nbytes)
            case Decode(tensor, offset):
                self.open(("tensor", tensor), offset, self.graph.tensors[tensor].nbytes)
                self.note_moment(None)
                self.close(("encoded", tensor))

    def open(self, key: _Key, offset: int, nbytes: int) -> None:
        size = align_up(nbytes, self.alignment)
        self.rooms[key] = (offset, size)
        self.count(key, size)
        self.peak = max(self.peak, offset + size)

    def close(self, key: _Key) -> int:
        offset, size = self.rooms.pop(key)
        self.count(key, -size)
        return offset

    def count(self, key: _Key, nbytes: int) -> None:
        role = self.graph.tensors[key[1]].role
        self.by_role[role] = self.by_role.get(role, 0) + nbytes
        self.live += nbytes

    def free(self, tensor: int) -> None:
        device = ("tensor", tensor) in self.rooms
        offset = self.close(("tensor" if device else "encoded", tensor))
        if device and tensor in self.takers:
            output = self.takers.pop(tensor)
            self.open(("tensor", output), offset, self.graph.tensors[output].nbytes)

    def compute(self, index: int, algorithm: str | None, scratch: int | None) -> None:
        op = self.graph.ops[index]
        seconds, nbytes = op.seconds, op.scratch_bytes
        if algorithm is not None:
            choices = {choice.name: choice for choice in op.algorithms}
            seconds = choices[algorithm].seconds
            nbytes = choices[algorithm].scratch_bytes
        size = align_up(nbytes, self.alignment)
        if scratch is not None:
            self.peak = max(self.peak, scratch + size)
        self.note_moment(index, size)
        self.timeline.append((index, self.live + size))
        self.seconds += seconds
        self.recompute_seconds += seconds if index in self.computed else 0.0
        self.computed.add(index)

    def note_moment(self, op: int | None, scratch: int = 0) -> None:
        if self.live + scratch <= self.most:
            return
        self.most = self.live + scratch
        self.most_by_role = {**self.by_role, "scratch": scratch}
        self.busiest_op = op


def _traffic(graph: Graph, plan: Plan) -> tuple[int, int]:
    """Return the most bytes held on other tiers, and the bytes copied."""
    last_use: dict[int, int] = {}  # by tensor, its last copy back
    for index, action in enumerate(plan.actions):
        if isinstance(action, SwapIn):
            last_use[action.tensor] = index
    held: dict[int, int] = {}
    most = moved = 0
    for index, action in enumerate(plan.actions):
        if not isinstance(action, SwapOut | SwapIn):
            continue
        nbytes = align_up(graph.tensors[action.tensor].nbytes, plan.alignment)
        moved += nbytes
        if isinstance(action, SwapOut):
            held[action.tensor] = nbytes
        most = max(most, sum(held.values()))
        if last_use.get(action.tensor, -1) <= index:
            held.pop(action.tensor, None)
    return most, moved
