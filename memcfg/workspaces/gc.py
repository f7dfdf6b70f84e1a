"""When Python's cyclic garbage collector runs: a timer, an occasion, a pause.

Owns the controls that DL4J has on its memory manager, made real, and reporting what is
the case. Refuses to free anything by itself: memory that no cycle holds goes back at
once in Python, collected or not.

=============================================  =====================================
DL4J                                           here
=============================================  =====================================
setAutoGcWindow, getAutoGcWindow               `set_window`, `get_window`
togglePeriodicGc, isPeriodicGcActive           `set_periodic`, `is_periodic`
setOccasionalGcFrequency,                      `set_occasional_frequency`,
getOccasionalGcFrequency                       `get_occasional_frequency`
invokeGcOccasionally                           `collect_occasionally`
invokeGc, getLastGcTime                        `collect`, `last_collection_time`
toggleAveraging, getAverageLoopTime            `toggle_averaging`,
                                               `get_average_loop_time`
none                                           `paused`, `is_paused`
=============================================  =====================================

All of it is for the whole process and may be called in any thread, finalizers included.
A call that fails has changed nothing. The child of a fork has its parent's settings and
no timer, as it has no other thread of its parent's: `is_periodic` is False there until
`set_periodic` starts one. A fork waits for a collection of this module, a second at
most: amid one the child's collector would never work again, as it does not when a fork
comes amid one of Python's own.

Examples
--------
>>> import memcfg as mc
>>> with mc.gc.paused():
...     cycle = []
...     cycle.append(cycle)
...     del cycle
>>> mc.gc.collect() > 0
True
"""

from __future__ import annotations

import atexit
from operator import index
from typing import TYPE_CHECKING

from memcfg.workspaces._collector import Collector, register

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "collect",
    "collect_occasionally",
    "get_average_loop_time",
    "get_occasional_frequency",
    "get_window",
    "is_paused",
    "is_periodic",
    "last_collection_time",
    "paused",
    "set_occasional_frequency",
    "set_periodic",
    "set_window",
    "toggle_averaging",
]

_LONGEST = 2**31 - 1  # milliseconds, 25 days
_collector = Collector()
register(_collector)
atexit.register(_collector.finish)


def set_window(ms: int) -> None:
    """Set the time between collections of the timer, and between occasional ones.

    Parameters
    ----------
    ms : int
        In milliseconds. 0 stops the timer's collections; occasional ones are then as
        frequent as their calls. A timer that waits takes the new time at once.

    Raises
    ------
    TypeError
        If it is no int, or a bool.
    ValueError
        If it is negative or beyond 2,147,483,647 (25 days).
    """
    _collector.set_window(_count(ms, "a window", _LONGEST))


def get_window() -> int:
    """Return the time between collections.

    Returns
    -------
    int
        In milliseconds; 100 unless `set_window` said otherwise.
    """
    return _collector.window_ms


def set_periodic(periodic: bool) -> None:
    """Start or stop the timer, a thread that collects every window.

    Parameters
    ----------
    periodic : bool
        True: the first collection comes a window from now. False: none comes any more;
        one that is at work comes to its end first, and is waited for, a second at most.

    Raises
    ------
    TypeError
        If it is no bool.
    RuntimeError
        If the system has no thread to give; the timer is off then, as it was.

    Notes
    -----
    The window is counted from the end of a collection, so collections never follow each
    other without a rest. The thread is a daemon and is stopped when the interpreter
    ends, which it does not delay by more than two seconds, whatever finalizers do.
    """
    if _flag(periodic, "periodic"):
        _collector.start()
    else:
        _collector.stop()


def is_periodic() -> bool:
    """Tell whether a timer is at work.

    Returns
    -------
    bool
        True if a living thread collects every window. False also where `set_periodic`
        asked for it, but the window is 0, or the process is the child of a fork. During
        `paused` the timer skips its collections and is still there: True.
    """
    return _collector.is_periodic


def set_occasional_frequency(n: int) -> None:
    """Set which calls of `collect_occasionally` may collect.

    Parameters
    ----------
    n : int
        Every n-th from now on; 0, the default, is none.

    Raises
    ------
    TypeError
        If it is no int, or a bool.
    ValueError
        If it is negative.
    """
    _collector.set_frequency(_count(n, "a frequency"))


def get_occasional_frequency() -> int:
    """Return which calls of `collect_occasionally` may collect.

    Returns
    -------
    int
        Every n-th; 0 is none.
    """
    return _collector.frequency


def collect_occasionally() -> bool:
    """Collect now and then: to be called once in each turn of a loop.

    Returns
    -------
    bool
        Whether it collected: if this is the n-th call of `set_occasional_frequency`,
        more than a window has passed since `last_collection_time`, and no `paused`
        block is open. Of several threads one collects.
    """
    return _collector.collect_occasionally()


def collect() -> int:
    """Collect now, in `paused` blocks too.

    Another thread's collection is waited for, a second at most.

    Returns
    -------
    int
        The unreachable objects found, as `gc.collect` of the standard library counts
        them; 0 also if another thread's collection is still at work.
    """
    return _collector.collect()


def last_collection_time() -> float | None:
    """Return when a call or the timer of this module last collected.

    Returns
    -------
    float or None
        In seconds since 1970, as `time.time`; None: not yet. What Python collects by
        itself does not count.
    """
    return _collector.collected_at


def paused(*, freeze: bool = False) -> AbstractContextManager[None]:
    """Let no collection begin by itself inside a ``with`` block, in any thread.

    Neither Python's own, nor the timer's, nor an occasional one; `collect` does what it
    is told. A collection that is at work is waited for, a second at most.

    Parameters
    ----------
    freeze : bool, default False
        Also put all objects there are out of the collector's reach (`gc.freeze`), so
        that `collect` inside looks at newer ones only: it is quicker, and does not find
        older garbage. Not if something is frozen already, since objects are only ever
        unfrozen together.

    Returns
    -------
    contextlib.AbstractContextManager
        At its end, however it comes about, collection is on or off as it was at its
        beginning, also if the block called `gc.enable` or `gc.disable`, and what it
        froze is unfrozen. Blocks may be nested; of blocks in several threads the last
        to end puts back what the first one found.

    Raises
    ------
    TypeError
        If `freeze` is no bool.
    """
    return _collector.paused(freeze=_flag(freeze, "freeze"))


def is_paused() -> bool:
    """Tell whether a `paused` block is open in some thread.

    Returns
    -------
    bool
        True if at least one is.
    """
    return _collector.is_paused


def toggle_averaging(enabled: bool) -> None:
    """Begin or end to note the times between calls of `collect_occasionally`.

    Parameters
    ----------
    enabled : bool
        True: note the last 100. False: forget them.

    Raises
    ------
    TypeError
        If it is no bool.
    """
    _collector.set_averaging(enabled=_flag(enabled, "enabled"))


def get_average_loop_time() -> float | None:
    """Return the mean time between calls of `collect_occasionally`.

    Returns
    -------
    float or None
        In milliseconds, of the last 100 intervals at most; None before the second call
        after `toggle_averaging`, or if it is off.
    """
    return _collector.mean_interval_ms()


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return value


def _count(value: int, what: str, most: int | None = None) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {value!r}")
    try:
        count = index(value)
    except TypeError:
        raise TypeError(f"{what} must be an int, not {value!r}") from None
    if count < 0:
        raise ValueError(f"{what} must not be negative: {count}")
    if most is not None and count > most:
        raise ValueError(f"{what} must be at most {most}: {count}")
    return count
