"""Measuring a program that runs op by op.

Owns the walk through the tensors that live at each moment, and the step that is run
while the pool's books are read. State is put back afterwards.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from memcfg.runtime._report import MemoryReport, TimelineEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memcfg._core.engine import Arena
    from memcfg.devices import Device
    from memcfg.graph import Op
    from memcfg.memory import Pool
    from memcfg.runtime._stepwise import Stepwise
    from memcfg.runtime._walk import Moment, Walk
    from memcfg.runtime._ways import Room

__all__ = ["measure_stepwise"]


def measure_stepwise(
    program: Stepwise, name: str, device: Device, arena: Arena, *, verify: bool
) -> MemoryReport:
    """Report on a program; with `verify`, run it and read the pool's books first."""
    state = program.walk.state_bytes
    seconds: list[float | None] = [None] * len(program.walk.moments)
    held, peak = program.held_bytes, program.top_bytes
    if verify:
        held, seconds = _verify(program, device, arena)
        peak = max(held)
    roles = list(_roles(program.walk))
    live = [sum(found.values()) for found in roles]
    return MemoryReport(
        program=name,
        device=device.name,
        limit_bytes=device.pool.limit,
        predicted_peak_bytes=program.predicted_bytes,
        measured_peak_bytes=state + peak,
        changed_peak_bytes=None,
        verified=verify,
        arena_bytes=arena.nbytes,
        by_role=dict(roles[live.index(max(live))]),
        timeline=tuple(
            TimelineEntry(op.name, op.phase, live[i], state + held[i], seconds[i])
            for i, op in enumerate(_ops(program.walk))
        ),
        mode=program.mode,
    )


class _Books:
    """Reads the pool's books and the clock around each op."""

    def __init__(self, pool: Pool, others: int, count: int) -> None:
        self._pool = pool
        self._others = others
        self.held = [0] * count
        self.seconds: list[float | None] = [None] * count
        self._began = 0.0

    def ready(self, moment: Moment, rooms: Mapping[int, Room], scratch: Room) -> None:
        self.held[moment.number] = self._pool.stats().current_bytes - self._others
        self._began = time.perf_counter()

    def done(self, moment: Moment) -> None:
        self.seconds[moment.number] = time.perf_counter() - self._began


def _verify(
    program: Stepwise, device: Device, arena: Arena
) -> tuple[list[int], list[float | None]]:
    """Run a step on made-up input: bytes beside the arena, and seconds, for each op."""
    program.give_back()
    pool = device.pool
    watch = _Books(pool, pool.stats().current_bytes, len(program.walk.moments))
    cells = device.staging(arena, 0, (program.walk.state_bytes,), "uint8")
    saved = cells.copy()
    try:
        _feed(program)
        program.run_watched(watch)
    finally:
        program.finish()
        cells[:] = saved
    return watch.held, watch.seconds


def _feed(program: Stepwise) -> None:
    """Write made-up input: small numbers, labels and step zero."""
    rng = np.random.default_rng(0)
    for tensor in program.walk.fed:
        room = program.view(program.graph.tensors[tensor].name, at_end=False)
        room[...] = 0
        if room.dtype.kind == "f" and room.ndim:
            room[...] = rng.standard_normal(room.shape, np.float32)


def _ops(walk: Walk) -> Iterator[Op]:
    return (walk.graph.ops[moment.op] for moment in walk.moments)


def _roles(walk: Walk) -> Iterator[Counter[str]]:
    """Bytes in use by role at each moment."""
    tensors = walk.graph.tensors
    live: Counter[str] = Counter()
    for tensor in (*walk.graph.persistent, *walk.fed):
        live[tensors[tensor].role] += walk.rounded(tensor)
    for moment in walk.moments:
        for tensor in moment.makes:
            live[tensors[tensor].role] += walk.rounded(tensor)
        yield live + Counter(scratch=walk.scratch(moment))
        for tensor in moment.ends:
            live[tensors[tensor].role] -= walk.rounded(tensor)
