"""How long a kernel takes on the CPU, measured in memory of a pool."""

from __future__ import annotations

from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from memcfg._core import Program
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg._core import Arena, CallbackKernel, Kernel
    from memcfg.memory import Pool

_RUNS = 5  # of which the shortest counts
_ENOUGH = 0.05  # seconds, after which there is no further run


def measure_runs(kernel: Kernel, pool: Pool) -> float:
    """Return the seconds of a run on zeros; 0 if the pool has not the memory."""
    sizes = [nbytes for nbytes, _ in kernel.operands]
    return measure_instruction(kernel, sizes, kernel.scratch_bytes, pool)


def measure_instruction(
    instruction: Kernel | CallbackKernel,
    sizes: Sequence[int],
    scratch_bytes: int,
    pool: Pool,
) -> float:
    """Return the same of what `compute` of a program takes, on operands of these sizes.

    It runs in a program, as it does in a step: once, then up to five times.
    """
    lines = [align_up(nbytes) for nbytes in (*sizes, scratch_bytes)]
    *places, scratch, end = accumulate(lines, initial=0)
    arena = pool.arena(tag="measurement")  # its memory goes with it
    try:
        arena.grow(end)
    except ResourceExhaustedError:
        return 0.0
    _touch(arena)
    program = Program(arena)
    program.compute(instruction, places, sizes, scratch if lines[-1] else None)
    return _shortest(program)


def _touch(arena: Arena) -> None:
    """Write zeros: pages that nobody has written would all be one in the cache."""
    np.frombuffer(memoryview(arena), np.uint8)[:] = 0


def _shortest(program: Program) -> float:
    taken: list[float] = []
    program.run()  # what is run first is brought to the caches
    while len(taken) < _RUNS and sum(taken) < _ENOUGH:
        begin = perf_counter()
        program.run()
        taken.append(perf_counter() - begin)
    return min(taken)
