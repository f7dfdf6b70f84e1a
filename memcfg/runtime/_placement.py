"""Placement of a plan's tensors in the model's arena or in separate buffers.

A plan defines what is computed and how long each tensor lives. A placement assigns
these tensors to buffers. So a workspace mode is a placement, and all modes run in the
same loop. A placement takes no memory; a program allocates its buffers.

See docs/decisions/0014-workspace-modes-are-placements.md.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memcfg import plan as planning
from memcfg.plan.format._place import Buffer as PackedBuffer
from memcfg.plan.format._place import plan_offsets
from memcfg.runtime._schedule import updates_last
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.config import WorkspaceConfig
    from memcfg.graph import Graph
    from memcfg.plan import Plan
    from memcfg.runtime._schedule import Schedule

__all__ = [
    "ARENA",
    "OWN_BUFFERS",
    "Buffer",
    "ExecutionMode",
    "Life",
    "Placement",
    "pack",
    "with_margin",
]

ARENA = -1
"""Stands for the model's arena where a buffer's number is expected."""

_PAGE = mmap.PAGESIZE
_LINE = 64  # bytes; sizes and offsets of blocks are multiples of it


@dataclass(frozen=True)
class Buffer:
    """A block that a program allocates in the pool or in a mapped file.

    Parameters
    ----------
    nbytes : int
        Its size in bytes.
    name : str, default ""
        Name under which it is listed after the model's name. If empty, it is listed
        under the model's name alone.
    kept : bool, default False
        Whether it is allocated before a step and kept for the next one. Otherwise it is
        allocated at its first use, or before the first change of state if that comes
        earlier, and freed after its last use.
    limit_bytes : int or None, default None
        Upper bound of `nbytes`; None is unlimited.
    config : WorkspaceConfig or None, default None
        Configuration of a workspace in a mapped file, which names the file.
    """

    nbytes: int
    name: str = ""
    kept: bool = False
    limit_bytes: int | None = None
    config: WorkspaceConfig | None = None


class Life(NamedTuple):
    """Interval in which bytes are in use.

    Parameters
    ----------
    lower, upper : int
        Half-open interval [lower, upper) of op numbers.
    nbytes : int
        Number of bytes, a multiple of 64.
    """

    lower: int
    upper: int
    nbytes: int


def pack(lives: Sequence[Life]) -> tuple[list[int], int]:
    """Place blocks in one arena so that blocks in use together do not overlap.

    Parameters
    ----------
    lives : sequence of Life
        Sizes and lifetimes of the blocks.

    Returns
    -------
    list of int
        Offsets in bytes, the same on every machine.
    int
        End of the highest block, in bytes.
    """
    buffers = [PackedBuffer(str(i), *life) for i, life in enumerate(lives)]
    offsets = plan_offsets(buffers, _LINE)
    ends = (at + life.nbytes for at, life in zip(offsets, lives, strict=True))
    return offsets, max(ends, default=0)


class Lifetime(NamedTuple):
    """Interval in which a buffer is held: before action `first` to after `last`."""

    first: int  # -1: before the first op
    last: int | None  # None: to the end of the step


@dataclass(frozen=True)
class Placement:
    """Placement of a plan's tensors, except for the state, which lies in the arena.

    Parameters
    ----------
    buffers : tuple of Buffer, default ()
        The buffers outside of the arena.
    tensors : mapping of int to (int, int), default {}
        Buffer (number or `ARENA`) and offset in bytes, by tensor.
    scratch : mapping of int to (int, int), default {}
        Buffer and offset of the scratch, by index of the op.
    arena_bytes : int, default 0
        Bytes of the arena for the state and these tensors; 0 if only the state is
        there.

    Notes
    -----
    The default places nothing: the plan's offsets are offsets in the arena.
    """

    buffers: tuple[Buffer, ...] = ()
    tensors: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    scratch: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    arena_bytes: int = 0

    def lifetimes(self, graph: Graph, plan: Plan) -> list[Lifetime]:
        """Return the interval in which each buffer is held.

        A buffer lives from the first tensor in it to the last. No buffer is allocated
        after the first change of state, since an allocation can fail.

        Parameters
        ----------
        graph : Graph
            The graph of the plan.
        plan : Plan
            A plan that computes each op once.

        Returns
        -------
        list of Lifetime
            One interval for each of `buffers`.
        """
        if not self.buffers:
            return []
        computes = [
            (index, action.op)
            for index, action in enumerate(plan.actions)
            if isinstance(action, planning.Compute)
        ]
        changes = next(
            (i for i, op in computes if graph.ops[op].phase == "update"),
            len(plan.actions),
        )
        first: dict[int, int] = {}
        last: dict[int, int | None] = {}
        alive: defaultdict[int, set[int]] = defaultdict(set)  # tensors by buffer
        made: list[int] = []  # buffers that the next op needs
        now = -1
        for index, action in enumerate(plan.actions):
            match action:
                case planning.Alloc(tensor) if tensor in self.tensors:
                    buffer, _ = self.tensors[tensor]
                    alive[buffer].add(tensor)
                    if graph.producer[tensor] is None:
                        first.setdefault(buffer, -1)
                    else:
                        made.append(buffer)
                case planning.Compute(op):
                    now = index
                    if op in self.scratch:
                        made.append(self.scratch[op][0])
                        last[made[-1]] = now
                    for buffer in made:
                        first.setdefault(buffer, min(now, changes))
                    made.clear()
                case planning.Free(tensor) if tensor in self.tensors:
                    buffer, _ = self.tensors[tensor]
                    alive[buffer].discard(tensor)
                    last[buffer] = now
        return [
            Lifetime(-1, None)
            if buffer.kept
            else Lifetime(first[i], None if alive[i] else last[i])
            for i, buffer in enumerate(self.buffers)
        ]

    def held(self, graph: Graph, plan: Plan) -> list[tuple[int, int]]:
        """Return the bytes of the pool and the number of buffers held at each op.

        A buffer in a mapped file takes no bytes of the pool.

        Parameters
        ----------
        graph : Graph
            The graph of the plan.
        plan : Plan
            A plan that computes each op once.

        Returns
        -------
        list of (int, int)
            Bytes and buffers, for each op in the order of the plan.
        """
        count = len(plan.actions)
        nbytes, buffers = [0] * (count + 1), [0] * (count + 1)
        for buffer, life in zip(self.buffers, self.lifetimes(graph, plan), strict=True):
            if buffer.config is not None:
                continue
            end = count if life.last is None else life.last + 1
            for place, sign in ((max(life.first, 0), 1), (end, -1)):
                nbytes[place] += sign * align_up(buffer.nbytes)
                buffers[place] += sign
        for place in range(count):
            nbytes[place + 1] += nbytes[place]
            buffers[place + 1] += buffers[place]
        return [
            (nbytes[index], buffers[index])
            for index, action in enumerate(plan.actions)
            if isinstance(action, planning.Compute)
        ]


@dataclass(frozen=True)
class ExecutionMode:
    """Order and layout of programs that no policy plans; modes compare by value.

    Parameters
    ----------
    name : str
        Name in reports.
    order : callable
        ``order(graph)`` returns the indices of all ops, each after its dependencies.
    layout : callable
        ``layout(schedule)`` returns the `Placement` of a schedule.
    """

    name: str
    order: Callable[[Graph], Sequence[int]]
    layout: Callable[[Schedule], Placement]


def with_margin(nbytes: int, buffers: int) -> int:
    """Return a limit under which a pool can hold an arena and these buffers.

    Parameters
    ----------
    nbytes : int
        Total size of the buffers.
    buffers : int
        Number of buffers.

    Returns
    -------
    int
        The limit in bytes, not counting the arena.

    Notes
    -----
    The pages of a pool never exceed its limit by more than one page. A block of n lines
    touches at most n / 64 + 2 pages of 64 lines, and an arena starts at a page
    boundary.
    """
    ends = buffers * (2 * _PAGE - _LINE) + (_PAGE - _LINE) - _PAGE
    return nbytes + max(ends, 0)


def _a_buffer_a_tensor(schedule: Schedule) -> Placement:
    graph = schedule.graph
    made = (*schedule.fed, *(t for each in schedule.ops for t in each.makes))
    sizes = [graph.tensors[tensor].nbytes for tensor in made]
    tensors = {tensor: (i, 0) for i, tensor in enumerate(made)}
    scratch = {}
    for each in schedule.ops:
        if schedule.scratch(each):
            scratch[each.op] = (len(sizes), 0)
            sizes.append(graph.ops[each.op].scratch_bytes)
    return Placement(tuple(map(Buffer, sizes)), tensors, scratch)


OWN_BUFFERS = ExecutionMode("none", updates_last, _a_buffer_a_tensor)
"""Neither a policy nor workspaces: each tensor and each op's scratch has a buffer of
its own, which is freed after the last op that reads it."""
