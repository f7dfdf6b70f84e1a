"""What the steps of one pass may use together, and how long its consumer waits.

Owns the sums that AUTOTUNE's choices are kept within. Refuses to choose.

Nothing here waits or holds a lock: finalizers may call it, and a fork may come at any
moment. Each operation on a dictionary is one that nothing divides.
"""

from __future__ import annotations

import os
import time
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memcfg._core import resident_bytes
from memcfg._core._machine import machine_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.data._options import Options
    from memcfg.memory import Resource

__all__ = ["Budget", "Stall"]


class Budget:
    """Bytes and threads that the steps of one pass share.

    Parameters
    ----------
    resource : Resource
        Where buffers lie.
    options : Options
        The dataset's.

    Attributes
    ----------
    changes : int
        How often a choice was changed for the better.
    """

    def __init__(self, resource: Resource, options: Options) -> None:
        self.changes = 0
        self._resource = resource
        self._options = options
        self._held: dict[int, int] = {}  # bytes, by owner
        self._threads: dict[int, int] = {}
        self._item_bytes = 0
        self._trier: weakref.ref[Any] | None = None

    @property
    def enabled(self) -> bool:
        """Whether choices may change while the pass is on."""
        return self._options.autotune.enabled is not False

    @cached_property
    def ram_bytes(self) -> int:
        """What all buffers of the pass may hold: as set, or half of what was free."""
        given = self._options.autotune.ram_budget
        return free_bytes(self._resource) // 2 if given is None else given

    @cached_property
    def cpus(self) -> int:
        """How many threads may work: as set, or one a core that we may run on."""
        given = self._options.autotune.cpu_budget
        return max(1, cores() if given is None else given)

    @property
    def item_bytes(self) -> int:
        """The most that an item takes that lies in no ring."""
        return self._item_bytes

    def note_item(self, nbytes: int) -> None:
        """Note the size of an item that is handed on from where it was made.

        Parameters
        ----------
        nbytes : int
            Bytes.
        """
        self._item_bytes = max(self._item_bytes, nbytes)

    def hold(self, owner: object, nbytes: int) -> None:
        """Note what a buffer holds.

        Parameters
        ----------
        owner : object
            Whose it is; forgotten when that is gone.
        nbytes : int
            Bytes; in place of what was noted before.
        """
        self._note(self._held, owner, nbytes)

    def room(self, owner: object) -> int:
        """Tell how much a buffer may hold.

        Parameters
        ----------
        owner : object
            Whose it is.

        Returns
        -------
        int
            Bytes that others do not hold.
        """
        others = sum(self._held.copy().values()) - self._held.get(id(owner), 0)
        return max(0, self.ram_bytes - others)

    def employ(self, owner: object, wanted: int) -> int:
        """Take threads for a step.

        Parameters
        ----------
        owner : object
            Which; its threads are free again when it is gone.
        wanted : int
            How many, in place of those that it had.

        Returns
        -------
        int
            How many it may have: at least 1, and not more than
            ``threading.private_threadpool_size`` leaves.
        """
        most = self._options.threading.private_threadpool_size
        if most:
            wanted = min(wanted, most - self._others(owner))
        wanted = max(1, wanted)
        self._note(self._threads, owner, wanted)
        return wanted

    def threads_for(self, owner: object) -> int:
        """Tell how many threads AUTOTUNE may give to a step.

        Parameters
        ----------
        owner : object
            Which.

        Returns
        -------
        int
            At least 1.
        """
        return max(1, self.cpus - self._others(owner))

    def try_alone(self, tuner: object) -> bool:
        """Ask to change something while nothing else is being tried.

        Parameters
        ----------
        tuner : object
            Who asks.

        Returns
        -------
        bool
            Whether it may. If so, it must call `tried`.
        """
        current = None if self._trier is None else self._trier()
        if current is not None and current is not tuner:
            return False
        self._trier = weakref.ref(tuner)
        return True

    def tried(self, *, kept: bool) -> None:
        """End what was tried.

        Parameters
        ----------
        kept : bool
            Whether it was for the better. What others tried in vain may be worth
            another attempt then.
        """
        self._trier = None
        self.changes += kept

    def _others(self, owner: object) -> int:
        found = sum(self._threads.copy().values())
        return found - self._threads.get(id(owner), 0)

    def _note(self, table: dict[int, int], owner: object, number: int) -> None:
        key = id(owner)
        if key not in table:
            weakref.finalize(owner, table.pop, key, None).atexit = False
        table[key] = number


class Stall:
    """How long the consumer of a pass has waited for it.

    Parameters
    ----------
    clock : callable, default time.perf_counter
        Tells the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._seconds = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        """Note that the consumer asks for an element."""
        self._since = self.clock()

    def end(self) -> None:
        """Note that it has it."""
        if self._since is not None:
            self._seconds += self.clock() - self._since
            self._since = None

    def seconds(self) -> float:
        """Tell how long it has waited until now, in all.

        Returns
        -------
        float
            Seconds.
        """
        since = self._since  # another thread may end it meanwhile
        return self._seconds + (0.0 if since is None else self.clock() - since)


def free_bytes(resource: Resource) -> int:
    """Tell how much memory a resource has left.

    Parameters
    ----------
    resource : Resource
        Any.

    Returns
    -------
    int
        Bytes, under its limit if it has one, else of the machine.
    """
    free = resource.stats().largest_free_bytes
    machine = max(0, machine_bytes() - resident_bytes())
    return machine if free is None else min(free, machine)


def cores() -> int:
    """Count the cores that this process may run on.

    Returns
    -------
    int
        At least 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
