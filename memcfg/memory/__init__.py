"""Memory under hard limits: resources that stack, and the pool among them.

Owns the names under which a user meets the native core's memory. Refuses devices:
which pool belongs to which device stands in `memcfg.config`.

A resource hands out blocks. `system`, `mmap_file` and `simulated` are where it is from,
`Pool` keeps it and places blocks in it, `limiting`, `statistics` and
`failure_callback` stand on top of another resource. All have the methods of
`Resource`; every size is in bytes. ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES``
bound what all of them hold of the host, from the first one on; making it raises what is
wrong with these variables.

Inside ``with numpy_allocator(resource):`` NumPy's arrays are taken from a resource, and
`owner_of` finds it again.

`summary`, `occupancy` and `list_live` tell who holds what, of some resources or of all
that are alive; `snapshot` writes it to a file that PyTorch's memory_viz opens.
`tracking` and `logging` stand on a resource and note what goes through; `replay` plays
such a `Trace` into another one.

Examples
--------
>>> from memcfg import memory
>>> pool = memory.Pool(limit="64MiB", name="scratch")
>>> with pool.allocate(1000, tag="window") as block:
...     view = memoryview(block)
...     view[:5] = b"hello"
...     view.release()
...     pool.stats().current_bytes, pool.owners()
(1024, {'window': 1024})
>>> pool.stats().current_bytes, pool.stats().peak_bytes
(0, 1024)

A device larger than the machine has addresses only; the arithmetic is the same:

>>> gpu = memory.Pool(memory.simulated("1TiB", name="GPU:0"), limit="600GiB")
>>> weights = gpu.allocate(500 * 2**30, tag="weights", lifetime="long")
>>> try:
...     gpu.allocate(200 * 2**30)
... except MemoryError as error:
...     print(error.message, error.owners)
A request does not fit the memory limit. {'weights': 536870912000}
"""

from __future__ import annotations

from memcfg._core import (
    Arena,
    Block,
    FailureCallbackResource,
    LimitingResource,
    LiveBlock,
    LoggingResource,
    MappedFile,
    NumpyAllocator,
    Pool,
    PoolStats,
    RegionStats,
    Resource,
    SimulatedResource,
    StatisticsResource,
    SystemResource,
)
from memcfg.memory._arrays import numpy_allocator, owner_of
from memcfg.memory._files import MappedArray, mapped_array, mmap_file
from memcfg.memory._recording import TrackingResource, logging, tracking
from memcfg.memory._replay import ReplayReport, ReplayRun, replay
from memcfg.memory._reports import list_live, occupancy, summary
from memcfg.memory._resources import (
    failure_callback,
    limiting,
    simulated,
    statistics,
    system,
    tag,
)
from memcfg.memory._snapshot import snapshot
from memcfg.memory._trace import Trace

__all__ = [
    "Arena",
    "Block",
    "FailureCallbackResource",
    "LimitingResource",
    "LiveBlock",
    "LoggingResource",
    "MappedArray",
    "MappedFile",
    "NumpyAllocator",
    "Pool",
    "PoolStats",
    "RegionStats",
    "ReplayReport",
    "ReplayRun",
    "Resource",
    "SimulatedResource",
    "StatisticsResource",
    "SystemResource",
    "Trace",
    "TrackingResource",
    "failure_callback",
    "limiting",
    "list_live",
    "logging",
    "mapped_array",
    "mmap_file",
    "numpy_allocator",
    "occupancy",
    "owner_of",
    "replay",
    "simulated",
    "snapshot",
    "statistics",
    "summary",
    "system",
    "tag",
    "tracking",
]
