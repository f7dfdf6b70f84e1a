"""What devices share in a process: the limits on its memory, the kernels' threads.

Owns handing both to the core, and putting back what was before. Refuses to decide
when: the registry does.
"""

from __future__ import annotations

from typing import NamedTuple

from memcfg._core import (
    get_host_limits,
    get_num_threads,
    set_host_limits,
    set_num_threads,
)
from memcfg.config import _environment as environment

__all__ = ["HostLimits", "HostMemory", "KernelThreads"]


class HostLimits(NamedTuple):
    """The two limits on the memory of a process.

    Attributes
    ----------
    tracked : int or None
        The most bytes that may be in use in all pools together; None is no limit.
    rss : int or None
        The most bytes that the process may have resident when a pool takes memory;
        None is no limit.
    """

    tracked: int | None
    rss: int | None


class HostMemory:
    """The process' limits: what code said, else what the environment says.

    Invariant: the core's limits are not ours to put back unless `_touched`.
    """

    def __init__(self) -> None:
        self._settled = False  # whether the environment no longer counts
        self._touched = False

    def settle(self, total_bytes: int) -> HostLimits:
        """Apply the environment at first need, and return what holds now.

        Raises
        ------
        FormatError
            If it cannot be read.
        ResourceExhaustedError
            If more is in use.
        """
        if not self._settled:
            limits = HostLimits(*environment.host_limits(total_bytes))
            if limits != HostLimits(None, None):
                self._hand_over(limits)
            self._settled = True
        return HostLimits(*get_host_limits())

    def replace(self, limits: HostLimits) -> None:
        """Let code decide from now on."""
        self._hand_over(limits)
        self._settled = True

    def forget(self) -> None:
        """Lift the limits that were set here."""
        if self._touched:
            set_host_limits(None, None)
        self._settled = self._touched = False

    def _hand_over(self, limits: HostLimits) -> None:
        set_host_limits(limits.tracked, limits.rss)
        self._touched = True


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
