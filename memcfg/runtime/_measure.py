"""Measuring: the canary, and the walk through the rooms that a program uses.

A predicted peak is checked against bytes: the arena above the state is filled with
a pattern, the step runs, and the highest byte that differs tells how far it
reached. Two patterns, since a step may write a byte that equals one of them. With
each pattern the step runs twice: plainly, which shows what the kernels change by
themselves, and timed, with the end of every scratch room marked as in use. State is
put back afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg import plan as planning
from memcfg.runtime._report import MemoryReport, TimelineEntry
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg._core.engine import Arena
    from memcfg.devices import Device
    from memcfg.graph import Graph, Op
    from memcfg.runtime._program import Program

__all__ = ["measure"]

_CANARIES = (0xA5, 0x3C)
_CHUNK = 1 << 20  # bytes looked at in one go


class _Moment(NamedTuple):
    """The rooms while one op runs: (offset, bytes, role)."""

    op: Op
    rooms: tuple[tuple[int, int, str], ...]

    @property
    def live_bytes(self) -> int:
        return sum(nbytes for _, nbytes, _ in self.rooms)

    @property
    def top_bytes(self) -> int:
        return max((offset + nbytes for offset, nbytes, _ in self.rooms), default=0)


def measure(
    program: Program, name: str, device: Device, arena: Arena, *, verify: bool
) -> MemoryReport:
    """Report on a program; with `verify`, run it against a canary first."""
    moments = _moments(program.graph, program.plan)
    seconds: list[float | None] = [None] * len(moments)
    peak, changed = program.touched_bytes, None
    if verify:
        peak, changed, seconds = _verify(program, arena)
    busiest = max(moments, key=lambda moment: moment.live_bytes)
    return MemoryReport(
        program=name,
        device=device.name,
        limit_bytes=device.pool.limit,
        predicted_peak_bytes=program.plan.peak_bytes,
        measured_peak_bytes=peak,
        changed_peak_bytes=changed,
        verified=verify,
        arena_bytes=arena.nbytes,
        by_role=_by_role(busiest),
        timeline=tuple(
            TimelineEntry(m.op.name, m.op.phase, m.live_bytes, m.top_bytes, s)
            for m, s in zip(moments, seconds, strict=True)
        ),
    )


def _verify(program: Program, arena: Arena) -> tuple[int, int, list[float | None]]:
    """Return the end of what is in use, of what kernels change, and seconds an op."""
    cells = np.frombuffer(memoryview(arena), np.uint8)
    state = _state_end(program)
    saved = cells[:state].copy()
    used = changed = 0
    seconds: list[float] = []

    def plain() -> None:
        program.run(guard=False)

    def timed() -> None:
        seconds[:] = program.run_timed()

    try:
        for canary in _CANARIES:
            changed = max(
                changed,
                _reach(program, cells, state, canary, lambda: program.run(guard=False)),
            )
            cells[:state] = saved
            used = max(used, _reach(program, cells, state, canary, timed))
            cells[:state] = saved
    finally:
        cells[:state] = saved
    line = program.plan.alignment
    ends = [align_up(state + reach, line) for reach in (used, changed)]
    return ends[0], ends[1], list(seconds)


def _reach(
    program: Program,
    cells: npt.NDArray[np.uint8],
    state: int,
    canary: int,
    run: Callable[[], object],
) -> int:
    """Fill what lies above the state, run, and find the end of what changed there."""
    cells[state:] = canary
    _feed(program)
    run()
    return _changed_end(cells[state:], canary)


def _changed_end(cells: npt.NDArray[np.uint8], canary: int) -> int:
    """End of the highest byte that differs from the canary, searched downwards."""
    for stop in range(cells.size, 0, -_CHUNK):
        start = max(stop - _CHUNK, 0)
        changed = np.flatnonzero(cells[start:stop] != canary)
        if changed.size:
            return start + int(changed[-1]) + 1
    return 0


def _state_end(program: Program) -> int:
    state = program.graph.persistent
    sizes = (align_up(program.graph.tensors[tensor].nbytes) for tensor in state)
    return sum(sizes)  # every plan places state first, without gaps


def _feed(program: Program) -> None:
    """Write made-up input: small numbers, labels and step zero."""
    rng = np.random.default_rng(0)
    for i, tensor in enumerate(program.graph.tensors):
        if tensor.role == "input" and program.graph.producer[i] is None:
            room = program.view(tensor.name, at_end=False)
            room[...] = 0
            if room.dtype.kind == "f" and room.ndim:
                room[...] = rng.standard_normal(room.shape, np.float32)


def _moments(graph: Graph, plan: planning.Plan) -> list[_Moment]:
    """Walk the plan; an aliased tensor shares its room, which counts once."""
    rooms: dict[int, int] = {}  # tensor -> offset
    encoded: dict[int, tuple[int, int, str]] = {}  # tensor -> its encoding
    moments: list[_Moment] = []
    for action in plan.actions:
        match action:
            case planning.Alloc(tensor, offset):
                rooms[tensor] = offset
            case planning.Alias(output, source):
                rooms[output] = rooms[source]
            case planning.Free(tensor):
                if rooms.pop(tensor, None) is None:
                    del encoded[tensor]
            case planning.Encode(tensor, _, nbytes, offset):
                role = graph.tensors[tensor].role
                encoded[tensor] = (offset, align_up(nbytes, plan.alignment), role)
            case planning.Decode(tensor, offset):
                rooms[tensor] = offset
                del encoded[tensor]
            case planning.Compute(index, _, scratch):
                moment = _moment(
                    graph, plan.alignment, graph.ops[index], rooms, scratch
                )
                both = (*moment.rooms, *encoded.values())
                moments.append(moment._replace(rooms=both))
            case _:
                pass
    return moments


def _moment(
    graph: Graph, line: int, op: Op, rooms: dict[int, int], scratch: int | None
) -> _Moment:
    found: dict[int, tuple[int, int, str]] = {}
    for tensor, offset in rooms.items():
        entry = graph.tensors[tensor]
        if offset not in found or align_up(entry.nbytes, line) > found[offset][1]:
            found[offset] = (offset, align_up(entry.nbytes, line), entry.role)
    used = list(found.values())
    if scratch is not None and op.scratch_bytes:
        used.append((scratch, align_up(op.scratch_bytes, line), "scratch"))
    return _Moment(op, tuple(used))


def _by_role(moment: _Moment) -> dict[str, int]:
    total: dict[str, int] = {}
    for _, nbytes, role in moment.rooms:
        total[role] = total.get(role, 0) + nbytes
    return total
