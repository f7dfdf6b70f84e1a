"""Memory under a hard limit: the public face of the native pool.

Owns the names under which a user meets it. Refuses devices: which pool belongs to
which device stands in `memcfg.config`.

Examples
--------
>>> from memcfg.memory import Pool
>>> pool = Pool(4096, name="scratch")
>>> with pool.allocate(1000, owner="window") as block:
...     view = memoryview(block)
...     view[:5] = b"hello"
...     view.release()
...     pool.stats().current_bytes, pool.owners()
(1024, {'window': 1024})
>>> pool.stats().current_bytes, pool.stats().peak_bytes
(0, 1024)
"""

from __future__ import annotations

from memcfg._core import Arena, Block, Pool, PoolStats

__all__ = ["Arena", "Block", "Pool", "PoolStats"]
