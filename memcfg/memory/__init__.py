"""Memory under hard limits: pools, and resources that stand on one another.

Owns the public names of the native core's memory. Devices are not its concern:
`memcfg.config` assigns pools to devices.

A resource hands out blocks. `system`, `mmap_file` and `simulated` provide memory,
`Pool` keeps memory and places blocks in it, and `limiting`, `statistics` and
`failure_callback` stand on another resource. All have the methods of `Resource`. Every
size is in bytes. ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES`` limit the host
memory of all resources together, from the first one on. Creating that one raises an
error if these variables are invalid.

Inside ``with numpy_allocator(resource):``, NumPy's arrays are allocated from a
resource; `owner_of` returns the resource of an array.

`summary`, `occupancy` and `list_live` report who holds what, for some resources or for
all that are alive; `snapshot` writes it to a file for PyTorch's memory_viz, and
`crash_report` to a text with everything around it. `tracking` and `logging` stand on a
resource and record its allocations; `replay` plays such a `Trace` into another
resource. `MemoryHistory` records all blocks of pools, whoever takes them.

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

A device larger than the machine has only addresses; the arithmetic is the same:

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
from memcfg.memory.crash import _crash_hooks as _crash_hooks
from memcfg.memory.crash._crash_report import crash_report
from memcfg.memory.history._memory_history import MemoryHistory
from memcfg.memory.live import _reporter as _reporter

__all__ = [
    "Arena",
    "Block",
    "FailureCallbackResource",
    "LimitingResource",
    "LiveBlock",
    "LoggingResource",
    "MappedArray",
    "MappedFile",
    "MemoryHistory",
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
    "crash_report",
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
