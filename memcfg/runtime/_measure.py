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

from memcfg import plan as planning
from memcfg.runtime._report import MemoryReport, TimelineEntry
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable

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


def measure(program: Program, name: str, *, verify: bool) -> MemoryReport:
    """Report on a program; with `verify`, run it against a canary first."""
    device, arena = program.device, program.arena
    moments = _moments(program.graph, program.plan)
    seconds: list[float | None] = [None] * len(moments)
    peak, changed = program.touched_bytes, None
    if verify:
        peak, changed, seconds = _verify(program)
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


def _verify(program: Program) -> tuple[int, int, list[float | None]]:
    """Return the end of what is in use, of what kernels change, and seconds an op."""
    device, arena = program.device, program.arena
    state = _state_end(program)
    saved = np.empty(state, np.uint8)
    device.read(arena, 0, saved)
    used = changed = 0
    seconds: list[float] = []

    def plain() -> None:
        program.run(guard=False)

    def timed() -> None:
        seconds[:] = program.run_timed()

    try:
        for canary in _CANARIES:
            changed = max(changed, _reach(program, state, canary, plain))
            device.write(arena, 0, saved)
            used = max(used, _reach(program, state, canary, timed))
            device.write(arena, 0, saved)
    finally:
        device.write(arena, 0, saved)
    line = program.plan.alignment
    ends = [align_up(state + reach, line) for reach in (used, changed)]
    return ends[0], ends[1], list(seconds)


def _reach(program: Program, state: int, canary: int, run: Callable[[], None]) -> int:
    """Fill what lies above the state, run, and find the end of what changed there."""
    chunk = np.full(_CHUNK, canary, np.uint8)
    for start, stop in _chunks(program, state):
        program.device.write(program.arena, start, chunk[: stop - start])
    _feed(program)
    run()
    for start, stop in reversed(_chunks(program, state)):
        found = chunk[: stop - start]
        program.device.read(program.arena, start, found)
        changed = np.flatnonzero(found != canary)
        if changed.size:
            return start - state + int(changed[-1]) + 1
    return 0


def _chunks(program: Program, state: int) -> list[tuple[int, int]]:
    end = program.arena.nbytes
    return [(at, min(at + _CHUNK, end)) for at in range(state, end, _CHUNK)]


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
