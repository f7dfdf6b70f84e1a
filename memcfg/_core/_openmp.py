"""The waiting of kernel threads for each other.

Owns one setting of GNU OpenMP, which the library reads from the environment once, when
it is loaded.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["short_spin"]

_SPIN = "GOMP_SPINCOUNT"
_CHOSEN_BY_USER = (_SPIN, "OMP_WAIT_POLICY")
_TURNS = "10000"  # takes 30 to 500 us, by processor; the default is 30 times as long
_NO_TURNS = "0"


@contextmanager
def short_spin() -> Iterator[None]:
    """Make OpenMP's threads sleep after a short spin if it is loaded in this context.

    By default they spin for milliseconds. A step has dozens of short parallel loops,
    each of which would wait that long if another process occupies a core: on two cores,
    a training step of 12 ms took up to 1.4 s. Where a BLAS with threads of its own
    computes products, they do not spin at all: its threads would wait for the cores.
    A user's own setting is respected, and the environment is restored.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        yield
        return
    os.environ[_SPIN] = _NO_TURNS if _products_by_blas() else _TURNS
    try:
        yield
    finally:
        del os.environ[_SPIN]


def _products_by_blas() -> bool:
    """Whether BLAS is asked for, or is all there is: see `memcfg.devices.cpu`."""
    chosen = os.environ.get("MEMCFG_KERNELS") or "auto"
    packaged = sys.platform == "linux" and platform.machine() == "x86_64"
    return chosen == "blas" or (chosen == "auto" and not packaged)
