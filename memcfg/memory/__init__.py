"""Memory under hard limits: resources that stack, and the pool among them.

Owns the names under which a user meets the native core's memory. Refuses devices:
which pool belongs to which device stands in `memcfg.config`.

A resource hands out blocks. `system` and `simulated` are where memory comes from,
`Pool` keeps it and places blocks in it, `limiting`, `statistics` and
`failure_callback` stand on top of another resource. All have the methods of
`Resource`; every size is in bytes. ``MEMCFG_MAX_BYTES`` and ``MEMCFG_MAX_RSS_BYTES``
bound what all of them hold of the host, from the first one on; making it raises what is
wrong with these variables.

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
    Pool,
    PoolStats,
    RegionStats,
    Resource,
    SimulatedResource,
    StatisticsResource,
    SystemResource,
)
from memcfg.memory._resources import (
    failure_callback,
    limiting,
    simulated,
    statistics,
    system,
    tag,
)

__all__ = [
    "Arena",
    "Block",
    "FailureCallbackResource",
    "LimitingResource",
    "Pool",
    "PoolStats",
    "RegionStats",
    "Resource",
    "SimulatedResource",
    "StatisticsResource",
    "SystemResource",
    "failure_callback",
    "limiting",
    "simulated",
    "statistics",
    "system",
    "tag",
]
