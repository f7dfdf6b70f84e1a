"""Pauses of Python's cyclic garbage collector.

What DL4J's memory manager can be told of garbage collection, and what does it here:

============================================  ======================================
DL4J                                          here
============================================  ======================================
togglePeriodicGc(false)                       `paused`
togglePeriodicGc(true), setAutoGcWindow,      Python's own collector; `gc.set_threshold`
setOccasionalGcFrequency                      of the standard library
invokeGc, invokeGcOccasionally                `collect`
isPeriodicGcActive                            `is_paused`
============================================  ======================================

Memory that no reference cycle holds is released at once in Python, collected or not.

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

import contextlib
import gc
import os
import threading
from dataclasses import dataclass, field
from gc import collect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["collect", "is_paused", "paused"]

_TIMEOUT = 1.0  # seconds that a fork waits for a pause that begins or ends


@dataclass(eq=False)
class _Pause:
    """What one pause found and did, to be put back.

    A pause that ends before a newer one leaves both to it. So the last one to end puts
    back what the first one found, in whatever order threads leave theirs.
    """

    enabled: bool = True
    froze: bool = False
    thread: int = field(default_factory=threading.get_ident)


# The lock is re-entrant, for finalizers that run while it is held.
_lock = threading.RLock()
_pauses: list[_Pause] = []


def paused(*, freeze: bool = False) -> AbstractContextManager[None]:
    """Let no collection begin by itself inside a ``with`` block, in any thread.

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

    Notes
    -----
    In the child of a fork the pauses of the thread that forked go on; those of other
    threads end.
    """
    if not isinstance(freeze, bool):
        raise TypeError(f"freeze must be True or False, not {freeze!r}")
    return _paused(freeze=freeze)


def is_paused() -> bool:
    """Tell whether a `paused` block is open in some thread."""
    return bool(_pauses)


@contextlib.contextmanager
def _paused(*, freeze: bool) -> Iterator[None]:
    pause = _Pause()
    try:
        with _lock:
            pause.enabled = gc.isenabled()
            _pauses.append(pause)
            gc.disable()
            if freeze and gc.get_freeze_count() == 0:
                gc.freeze()
                pause.froze = True
        yield
    finally:
        _end(pause)


def _end(pause: _Pause) -> None:
    with _lock:
        if pause not in _pauses:
            return  # it had not begun when it was interrupted
        number = _pauses.index(pause)
        del _pauses[number]
        if number < len(_pauses):
            newer = _pauses[number]
            newer.enabled = pause.enabled
            newer.froze |= pause.froze
            return
        if pause.froze:
            gc.unfreeze()
        (gc.enable if pause.enabled else gc.disable)()


def _before_fork() -> None:
    _lock.acquire(timeout=_TIMEOUT)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # not held: the wait was too long
        _lock.release()


def _after_fork_in_child() -> None:
    """Go on with a new lock and the pauses of this thread alone."""
    global _lock
    _lock = threading.RLock()
    here = threading.get_ident()
    for pause in [each for each in _pauses if each.thread != here]:
        _end(pause)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
