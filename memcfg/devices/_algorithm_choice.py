"""Which of an op's algorithms is the default: the library's, the fastest, the smallest.

Owns the seconds that are kept on the disk. A choice holds for the process, so that all
plans and policies compute the same bits.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

from memcfg._core import Lock
from memcfg.devices._file_cache import CacheKind, digest, find_file_cache, warn_once
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CHOICES", "asked_choice", "choose_fastest"]

CHOICES = ("default", "fastest", "least_scratch")
_VARIABLE = "MEMCFG_CPU_ALGORITHMS"
_GAIN = 0.95  # of the default's time; what gains less may be noise
_KEPT = CacheKind(
    "algorithms",
    "MEMCFG_ALGORITHM_CACHE",
    16 << 20,
    "the seconds of algorithms are not kept on the disk ({reason}), and are measured "
    "again in each process",
)

_lock = Lock("algorithms")
_chosen: dict[str, str] = {}  # by digest, in this process


def asked_choice() -> str:
    """Return what ``MEMCFG_CPU_ALGORITHMS`` asks for; KernelError if it is odd."""
    value = os.environ.get(_VARIABLE, "") or CHOICES[0]
    if value not in CHOICES:
        raise KernelError(
            f"{_VARIABLE} is {value!r}; it takes one of {', '.join(CHOICES)}"
        )
    return value


def choose_fastest(
    names: Sequence[str],
    machine: Sequence[str],
    op: str,
    measure: Callable[[], Sequence[float]],
) -> str:
    """Return the name of the fastest of an op's algorithms, the same in a process.

    Parameters
    ----------
    names : sequence of str
        The algorithms, the library's choice first.
    machine : sequence of str
        All that seconds depend on beside the op: processor, library, threads.
    op : str
        The op with its attributes and shapes.
    measure : callable
        Returns the seconds of each; 0 where they cannot be had.

    Returns
    -------
    str
        One of `names`: the first, unless another takes 5 % less. So it is as well where
        seconds cannot be had.
    """
    key = digest(*machine, op, *names)
    with _lock.turn():
        if key not in _chosen:
            cache = find_file_cache(_KEPT)
            seconds = None if cache is None else _read(cache.read(key), names)
            if seconds is None:
                if cache is not None and cache.has(key):
                    warn_once(
                        f"a file of seconds in {cache.folder} is damaged, and is "
                        "measured again"
                    )
                seconds = dict(zip(names, measure(), strict=True))
                if cache is not None and all(seconds.values()):
                    cache.write(key, json.dumps(seconds).encode())
            _chosen[key] = _fastest(names, seconds)
        return _chosen[key]


def _read(data: bytes | None, names: Sequence[str]) -> dict[str, float] | None:
    """Return the seconds in a file; None if it does not say them."""
    if data is None:
        return None
    try:
        found = json.loads(data)
        seconds = {name: float(found[name]) for name in names}
    except (ValueError, TypeError, KeyError):
        return None
    fine = all(math.isfinite(each) and each > 0 for each in seconds.values())
    return seconds if fine else None


def _fastest(names: Sequence[str], seconds: dict[str, float]) -> str:
    if not all(seconds.values()):
        return names[0]
    best = min(names, key=seconds.__getitem__)
    return best if seconds[best] < _GAIN * seconds[names[0]] else names[0]
