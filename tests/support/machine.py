"""What the process takes of the machine: memory, and threads for kernels.

`memcfg._core` counts and sets these for the package; tests outside of tests/core ask
here.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from memcfg._core import (
    get_num_threads,
    resident_bytes,
    set_num_threads,
    tracked_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["get_num_threads", "resident_bytes", "threads", "tracked_bytes"]


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Have kernels run on so many threads."""
    before = set_num_threads(number)
    try:
        yield
    finally:
        set_num_threads(before)
