"""How the threads of the kernels wait for each other.

Owns one setting of GNU OpenMP, which it reads from the environment once, when the
library is loaded.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["short_spin"]

_SPIN = "GOMP_SPINCOUNT"
_CHOSEN_BY_USER = (_SPIN, "OMP_WAIT_POLICY")
_TURNS = "10000"  # 30 to 500 us, by the processor; the default is 30 times that


@contextmanager
def short_spin() -> Iterator[None]:
    """Load OpenMP in this context, and its threads sleep after a short spin.

    By default they spin for milliseconds. A step has dozens of short parallel
    loops; when another process holds a core, each would wait that long. Measured on
    two cores, a training step of 12 ms took up to 1.4 s so. A user's own choice is
    left alone, and the environment is as before afterwards.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        yield
        return
    os.environ[_SPIN] = _TURNS
    try:
        yield
    finally:
        del os.environ[_SPIN]
