"""Execution modes without a plan: in which buffers tensors lie, and for how long.

Owns layouts, and the mode in which every tensor has a buffer of its own. Refuses to
take memory: a program allocates what a layout says.

See docs/decisions/0014-workspace-modes-are-layouts.md.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.runtime._schedule import updates_last
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.graph import Graph
    from memcfg.runtime._schedule import Schedule

__all__ = [
    "OWN_BUFFERS",
    "ExecutionMode",
    "Layout",
    "Lifetime",
    "lifetimes",
    "with_margin",
]

_PAGE = mmap.PAGESIZE
_LINE = 64  # bytes; the size and the place of each block are multiples of it


@dataclass(frozen=True)
class Layout:
    """Where a schedule's tensors lie, the state apart, which is in the arena.

    Parameters
    ----------
    sizes : tuple of int
        The bytes of each buffer.
    tensors : mapping of int to (int, int)
        By tensor: its buffer, and its offset there in bytes.
    scratch : mapping of int to (int, int)
        The same by the number of an op in the schedule, for those that have scratch.
    names : tuple of str, default ()
        What the buffers are listed under in the pool, beside the model's name.
    kept : bool, default False
        Whether all buffers are allocated before a step and kept for the next one; else
        each is allocated when it is first used, or before state first changes, and
        freed when it was used last.
    """

    sizes: tuple[int, ...]
    tensors: Mapping[int, tuple[int, int]]
    scratch: Mapping[int, tuple[int, int]]
    names: tuple[str, ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class ExecutionMode:
    """How programs run that are not planned; a value that can be compared.

    Parameters
    ----------
    name : str
        What reports call it.
    order : callable
        ``order(graph)``: the indices of all ops, each after those it depends on.
    layout : callable
        ``layout(schedule)``: the `Layout` of a schedule.
    """

    name: str
    order: Callable[[Graph], Sequence[int]]
    layout: Callable[[Schedule], Layout]


@dataclass(frozen=True)
class Lifetime:
    """When a buffer is held: from before one op to behind another, by their numbers."""

    first: int  # -1: before the first op
    last: int | None  # None: to the end of the step


def lifetimes(schedule: Schedule, layout: Layout) -> list[Lifetime]:
    """Find when each buffer of a layout is held."""
    if layout.kept:
        return [Lifetime(-1, None)] * len(layout.sizes)
    # No allocation, which can fail, behind the first change of state.
    phases = [schedule.graph.ops[each.op].phase for each in schedule.ops]
    changes = phases.index("update") if "update" in phases else len(phases)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for tensor in schedule.fed:
        first[layout.tensors[tensor][0]] = -1
    for each in schedule.ops:
        used = [layout.tensors[tensor][0] for tensor in each.makes]
        if each.number in layout.scratch:
            used.append(layout.scratch[each.number][0])
            last[used[-1]] = each.number
        for buffer in used:
            first.setdefault(buffer, min(each.number, changes))
    ends = {tensor: each.number for each in schedule.ops for tensor in each.ends}
    lasting = set()
    for tensor, (buffer, _) in layout.tensors.items():
        if tensor in ends:
            last[buffer] = max(last.get(buffer, -1), ends[tensor])
        else:
            lasting.add(buffer)
    return [
        Lifetime(first[buffer], None if buffer in lasting else last[buffer])
        for buffer in range(len(layout.sizes))
    ]


def held(schedule: Schedule, layout: Layout) -> list[tuple[int, int]]:
    """Tell how many bytes of the pool, and how many buffers, are held at each op."""
    count = len(schedule.ops)
    nbytes, buffers = [0] * (count + 1), [0] * (count + 1)
    for size, life in zip(layout.sizes, lifetimes(schedule, layout), strict=True):
        begin, end = max(life.first, 0), count if life.last is None else life.last + 1
        for place, sign in ((begin, 1), (end, -1)):
            nbytes[place] += sign * align_up(size)
            buffers[place] += sign
    for place in range(count):
        nbytes[place + 1] += nbytes[place]
        buffers[place + 1] += buffers[place]
    return list(zip(nbytes[:count], buffers[:count], strict=True))


def with_margin(nbytes: int, buffers: int) -> int:
    """Return a limit under which a pool surely has so many buffers beside an arena.

    Parameters
    ----------
    nbytes : int
        The sum of their sizes.
    buffers : int
        How many there are.

    Returns
    -------
    int
        In bytes, the arena not counted.

    Notes
    -----
    The pages of a pool never exceed its limit by more than a page. A block of n lines
    is in at most n / 64 + 2 pages of 64 lines, and an arena begins with a page.
    """
    ends = buffers * (2 * _PAGE - _LINE) + (_PAGE - _LINE) - _PAGE
    return nbytes + max(ends, 0)


def _a_buffer_a_tensor(schedule: Schedule) -> Layout:
    graph = schedule.graph
    sizes: list[int] = []
    tensors, scratch = {}, {}
    for tensor in (*schedule.fed, *(t for each in schedule.ops for t in each.makes)):
        tensors[tensor] = (len(sizes), 0)
        sizes.append(graph.tensors[tensor].nbytes)
    for each in schedule.ops:
        if schedule.scratch(each):
            scratch[each.number] = (len(sizes), 0)
            sizes.append(graph.ops[each.op].scratch_bytes)
    return Layout(tuple(sizes), tensors, scratch)


OWN_BUFFERS = ExecutionMode("none", updates_last, _a_buffer_a_tensor)
"""Neither plans nor workspaces: a buffer for each tensor and for each op's scratch,
freed behind the last op that reads it."""
