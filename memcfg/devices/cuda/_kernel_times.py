"""Measurement of the seconds of launches on a GPU, in memory of a pool."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from memcfg._core import CudaEvent, CudaStream
from memcfg.errors import KernelError, ResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg._core import CudaContext, CudaGraph
    from memcfg.devices.cuda._bound_launch import Bound
    from memcfg.memory import Pool

_RUNS = 5  # runs, of which the shortest counts
_ENOUGH = 0.05  # seconds after which no further run begins
_ALIGNMENT = 256  # bytes


def measure_launches(
    bind: Callable[[Sequence[int]], Sequence[Bound]],
    sizes: Sequence[int],
    context: CudaContext,
    pool: Pool,
) -> float:
    """Return the seconds of launches on zeros; 0 if the pool has too little memory.

    ``bind(addresses)`` returns them, loaded, for operands of these sizes in bytes. They
    run once without, then up to five times in a CUDA graph, as in a step.
    """
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += size + -size % _ALIGNMENT
    try:
        block = pool.allocate(end or 1, tag="measurement")
    except ResourceExhaustedError:
        return 0.0
    with block:
        launches = bind([block.address + place for place in places])
        stream = CudaStream(context)
        try:
            stream.fill(block.address, 0, end)
            for launch in launches:
                launch.issue(stream)
            return _shortest(stream, _captured(stream, launches))
        finally:
            stream.synchronize()


def _captured(stream: CudaStream, launches: Sequence[Bound]) -> CudaGraph:
    stream.synchronize()
    stream.begin_capture()
    try:
        for launch in launches:
            launch.issue(stream)
    except BaseException:
        with suppress(KernelError):  # the capture is invalid
            stream.end_capture()
        raise
    return stream.end_capture()


def _shortest(stream: CudaStream, graph: CudaGraph) -> float:
    begin, end = (CudaEvent(stream.context, timing=True) for _ in range(2))
    taken: list[float] = []
    stream.launch_graph(graph)  # uploads the graph
    while len(taken) < _RUNS and sum(taken) < _ENOUGH:
        stream.record(begin)
        stream.launch_graph(graph)
        stream.record(end)
        stream.synchronize()
        taken.append(end.seconds_since(begin))
    return min(taken)
