"""Seconds of ops that all ranks take from the one that measured first.

Plans of ranks that have the same graph are then the same, though clocks differ.
"""

from __future__ import annotations

from torch import distributed

_PREFIX = "memcfg/seconds/"


def agreed_seconds(key: str, seconds: float) -> float:
    """Return the seconds of the first rank that told its own for a key.

    It is this rank's own number without `torch.distributed`, or with one rank.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return seconds
    if distributed.get_world_size() == 1:
        return seconds
    store = distributed.distributed_c10d._get_default_store()
    told = store.compare_set(_PREFIX + key, "", seconds.hex())
    return float.fromhex(told.decode())
