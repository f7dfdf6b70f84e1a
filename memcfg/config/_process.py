"""What devices share in a process beside its memory: the kernels' threads.

Owns handing their number to the core, and putting back what was before. Refuses to
decide when: the registry does.
"""

from __future__ import annotations

from memcfg._core import get_num_threads, set_num_threads

__all__ = ["KernelThreads"]


class KernelThreads:
    """How many threads a kernel uses."""

    def __init__(self) -> None:
        self._automatic: int | None = None  # the number before ours; None: untouched

    def use(self, count: int) -> None:
        """Use so many threads from now on; 0 is the number before the first call."""
        if count > 0:
            before = get_num_threads()
            set_num_threads(count)
            self._automatic = before if self._automatic is None else self._automatic
        elif self._automatic is not None:
            set_num_threads(self._automatic)
            self._automatic = None
