"""Measurement of a kernel's seconds on the CPU, in memory of a pool."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from memcfg._core import Program
from memcfg.devices._algorithm_times import shortest_run
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg._core import Arena, CallbackKernel, Kernel
    from memcfg.memory import Pool


def measure_runs(kernel: Kernel, pool: Pool) -> float:
    """Return the seconds of a run on zeros; 0 if the pool has too little memory."""
    sizes = [nbytes for nbytes, _ in kernel.operands]
    return measure_instruction(kernel, sizes, kernel.scratch_bytes, pool)


def measure_instruction(
    instruction: Kernel | CallbackKernel,
    sizes: Sequence[int],
    scratch_bytes: int,
    pool: Pool,
) -> float:
    """Return the same for an argument of a program's `compute`, by operand sizes.

    It runs in a program, as in a step: once, then up to five times.
    """
    lines = [align_up(nbytes) for nbytes in (*sizes, scratch_bytes)]
    *places, scratch, end = accumulate(lines, initial=0)
    # frees its memory when it is garbage-collected
    arena = pool.arena(tag="measurement")
    try:
        arena.grow(end)
    except ResourceExhaustedError:
        return 0.0
    _touch(arena)
    program = Program(arena)
    program.compute(instruction, places, sizes, scratch if lines[-1] else None)
    return shortest_run(program.run)


def _touch(arena: Arena) -> None:
    """Write zeros, as pages never written to would all share one page of the cache."""
    np.frombuffer(memoryview(arena), np.uint8)[:] = 0
