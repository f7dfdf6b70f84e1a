"""Python's cyclic garbage collector: pauses, and how often it runs while models fit.

What DL4J's memory manager can be told of garbage collection, and what does it here:

============================================  ======================================
DL4J                                          here
============================================  ======================================
setAutoGcWindow, getAutoGcWindow              `set_auto_gc_window`,
                                              `get_auto_gc_window`
togglePeriodicGc, isPeriodicGcActive          `toggle_periodic_gc`,
                                              `is_periodic_gc_active`
setOccasionalGcFrequency                      `gc.set_threshold` of the standard library
invokeGc, invokeGcOccasionally                `collect`
============================================  ======================================

`paused` lets no collection begin in a block of any code. Memory that no reference cycle
holds is released at once in Python, collected or not.

Examples
--------
>>> import memcfg as mc
>>> with mc.gc.paused():
...     cycle = []
...     cycle.append(cycle)
...     del cycle
>>> mc.gc.collect() > 0
True
>>> mc.gc.set_auto_gc_window(500)  # while models fit, two collections a second at most
>>> mc.gc.set_auto_gc_window(None)
500
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import threading
import time
from dataclasses import dataclass, field
from gc import collect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = [
    "collect",
    "get_auto_gc_window",
    "is_paused",
    "is_periodic_gc_active",
    "paused",
    "set_auto_gc_window",
    "toggle_periodic_gc",
]

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
        If `freeze` is not a bool.

    Notes
    -----
    In the child of a fork the pauses of the thread that forked go on; those of other
    threads end.
    """
    if not isinstance(freeze, bool):
        raise TypeError(f"freeze must be True or False, not {freeze!r}")
    return _paused(freeze=freeze)


def is_paused() -> bool:
    """Return whether a `paused` block is open in some thread."""
    return any(each is not _window.pause for each in _pauses)


def set_auto_gc_window(milliseconds: float | None) -> float | None:
    """Let at most one automatic collection begin in a window while models fit.

    Parameters
    ----------
    milliseconds : float or None
        How long a window is. It begins when a collection ends, an automatic one or one
        that was asked for; the next may begin after the step in which the window ends.
        0: none begins by itself while a model fits. None: as often as Python likes.

    Returns
    -------
    float or None
        What it was before; None at first.

    Raises
    ------
    TypeError
        If it is not a number.
    ValueError
        If it is negative, infinite or NaN.

    Notes
    -----
    It holds during `fit` of any model in any thread, its validation and callbacks
    included, and at once for those that are running. Which generations are collected
    stays Python's decision. Reference cycles that die in a window keep their memory
    until it has passed.

    References
    ----------
    ND4J 1.0.0-M1, ``MemoryManager.setAutoGcWindow``, whose default is 100.
    """
    if milliseconds is not None:
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
            raise TypeError(f"milliseconds is a number or None, not {milliseconds!r}")
        if not 0 <= milliseconds < math.inf:
            raise ValueError(
                f"milliseconds is finite and not negative, not {milliseconds!r}"
            )
    with _lock:
        before, _window.milliseconds = _window.milliseconds, milliseconds
        _window.update()
    return before


def get_auto_gc_window() -> float | None:
    """Return the window in milliseconds; None: there is none."""
    return _window.milliseconds


def toggle_periodic_gc(enabled: bool) -> bool:
    """Let automatic collections begin while models fit, or not.

    Parameters
    ----------
    enabled : bool
        False: none begins. True: as often as the window lets them.

    Returns
    -------
    bool
        What it was before; True at first.

    Raises
    ------
    TypeError
        If it is not a bool.

    Notes
    -----
    As with `set_auto_gc_window`, it holds during `fit`.

    References
    ----------
    ND4J 1.0.0-M1, ``MemoryManager.togglePeriodicGc``.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"enabled must be True or False, not {enabled!r}")
    with _lock:
        before, _window.periodic = _window.periodic, enabled
        _window.update()
    return before


def is_periodic_gc_active() -> bool:
    """Return whether automatic collections may begin while models fit."""
    return _window.periodic and _window.milliseconds != 0


@contextlib.contextmanager
def while_fitting() -> Iterator[None]:
    """Let the window hold while a model fits."""
    here = threading.get_ident()
    try:
        with _lock:
            _window.fits.append(here)
            _window.update()
        yield
    finally:
        with _lock:
            if here in _window.fits:
                _window.fits.remove(here)
            _window.update()


def between_steps() -> None:
    """Let Python collect if the window has passed; quick otherwise."""
    if time.monotonic() >= _window.due:
        _window.open()


class _Window:
    """When collections may begin while models fit.

    From the end of one until `due` they are off: `pause` is one like those of `paused`.
    Then they are on until one has ended, which Python tells.
    """

    def __init__(self) -> None:
        self.milliseconds: float | None = None
        self.periodic = True
        self.fits: list[int] = []  # threads in which models fit
        self.pause: _Pause | None = None
        self.due = math.inf  # seconds
        self.last = -math.inf  # when a collection ended

    def update(self) -> None:
        """Pause, or end it, as settings and running fits have it; under the lock."""
        wanted = bool(self.fits) and not (self.periodic and self.milliseconds is None)
        if wanted and self.pause is None:
            self.pause = _begin(_Pause())
            gc.callbacks.append(self.collected)
        elif not wanted and self.pause is not None:
            pause, self.pause = self.pause, None
            gc.callbacks.remove(self.collected)
            _end(pause)
        self.shut()

    def shut(self) -> None:
        """Let no collection begin until the window has passed, if ever."""
        if self.pause is None or not self.periodic or not self.milliseconds:
            self.due = math.inf
        else:
            self.due = self.last + self.milliseconds / 1e3
        if self.pause is not None:
            gc.disable()

    def open(self) -> None:
        """Let a collection begin, unless somebody else has paused it."""
        with _lock:
            pause = self.pause
            if pause is not None and _pauses == [pause] and pause.enabled:
                self.due = math.inf  # before the collection, which may come at once
                gc.enable()

    def collected(self, phase: str, _: dict[str, Any]) -> None:
        """Begin a window; Python calls it, in whatever thread, after a collection."""
        if phase == "stop":
            with _lock:
                self.last = time.monotonic()
                self.shut()


@contextlib.contextmanager
def _paused(*, freeze: bool) -> Iterator[None]:
    pause = _Pause()
    try:
        with _lock:
            _begin(pause)
            if freeze and gc.get_freeze_count() == 0:
                gc.freeze()
                pause.froze = True
        yield
    finally:
        _end(pause)


def _begin(pause: _Pause) -> _Pause:
    pause.enabled = gc.isenabled()
    _pauses.append(pause)
    gc.disable()
    return pause


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
    _window.fits = [each for each in _window.fits if each == here]
    _window.update()
    for pause in [each for each in _pauses if each.thread != here]:
        if pause is not _window.pause:
            _end(pause)


_window = _Window()
window = _window  # loops look at `due` before they call `between_steps`
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
