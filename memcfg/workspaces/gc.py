"""Control of Python's cyclic garbage collector: pauses, and its rate during `fit`.

Garbage-collection settings of DL4J's memory manager and their equivalents here:

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

`paused` suspends automatic collection around any code. CPython releases memory that is
not part of a reference cycle immediately, whether the collector runs or not.

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

_TIMEOUT = 1.0  # seconds; longest wait of a fork for the lock


@dataclass(eq=False)
class _Pause:
    """State that one pause saved, to be restored at its end.

    A pause that ends before a newer one hands its saved state to it. So the last pause
    to end restores what the first one found, whatever the order in which threads leave.
    """

    enabled: bool = True
    froze: bool = False
    thread: int = field(default_factory=threading.get_ident)


# Re-entrant, because finalizers may run in the thread that holds it.
_lock = threading.RLock()
_pauses: list[_Pause] = []


def paused(*, freeze: bool = False) -> AbstractContextManager[None]:
    """Suspend automatic garbage collection in all threads during a ``with`` block.

    Parameters
    ----------
    freeze : bool, default False
        Also move all existing objects out of the collector's reach (`gc.freeze`), so
        that `collect` inside the block examines newer objects only. It is faster, but
        does not find older garbage. Has no effect if objects are already frozen,
        because `gc.unfreeze` unfreezes all of them together.

    Returns
    -------
    contextlib.AbstractContextManager
        On exit, automatic collection is enabled or disabled as it was on entry, even if
        the block called `gc.enable` or `gc.disable`, and the objects that it froze are
        unfrozen. Blocks may be nested. If blocks in several threads overlap, the last
        one to end restores what the first one found.

    Raises
    ------
    TypeError
        If `freeze` is not a bool.

    Notes
    -----
    In the child of a fork, the pauses of the forking thread continue, and those of
    other threads end.
    """
    if not isinstance(freeze, bool):
        raise TypeError(f"freeze must be True or False, not {freeze!r}")
    return _paused(freeze=freeze)


def is_paused() -> bool:
    """Return whether a `paused` block is open in any thread."""
    return any(each is not _window.pause for each in _pauses)


def set_auto_gc_window(milliseconds: float | None) -> float | None:
    """Limit automatic collection during `fit` to at most one per time window.

    Parameters
    ----------
    milliseconds : float or None
        Length of the window. It begins when a collection, automatic or explicit, ends.
        The next one may begin after the step in which the window ends. 0 disables
        automatic collection while a model fits. None leaves the rate to Python.

    Returns
    -------
    float or None
        The previous value; None initially.

    Raises
    ------
    TypeError
        If `milliseconds` is neither a number nor None.
    ValueError
        If `milliseconds` is negative, infinite or NaN.

    Notes
    -----
    The limit applies during `fit` of any model in any thread, including its validation
    and callbacks, and takes effect immediately for running ones. Python still decides
    which generations are collected. Reference cycles that become unreachable in a
    window keep their memory until the window ends.

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
    """Return the window in milliseconds, or None if there is none."""
    return _window.milliseconds


def toggle_periodic_gc(enabled: bool) -> bool:
    """Enable or disable automatic collection while models fit.

    Parameters
    ----------
    enabled : bool
        False disables it. True allows it as often as the window permits.

    Returns
    -------
    bool
        The previous value; True initially.

    Raises
    ------
    TypeError
        If `enabled` is not a bool.

    Notes
    -----
    Like `set_auto_gc_window`, it applies during `fit`.

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
    """Apply the window while a model fits."""
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
    """Enable collection if the window has ended; cheap otherwise."""
    if time.monotonic() >= _window.due:
        _window.open()


class _Window:
    """State of the window in which collections are suspended while models fit.

    From the end of one collection until `due`, automatic collection is off; `pause` is
    an entry of `_pauses` like those of `paused`. From then on it is enabled until a
    collection ends, which Python reports through `gc.callbacks`.
    """

    def __init__(self) -> None:
        self.milliseconds: float | None = None
        self.periodic = True
        self.fits: list[int] = []  # threads in which models fit
        self.pause: _Pause | None = None
        self.due = math.inf  # monotonic seconds at which the window ends
        self.last = -math.inf  # monotonic seconds at which the last collection ended

    def update(self) -> None:
        """Begin or end the pause to match the settings and fits; the lock is held."""
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
        """Suspend collection until the window ends, if it has an end."""
        if self.pause is None or not self.periodic or not self.milliseconds:
            self.due = math.inf
        else:
            self.due = self.last + self.milliseconds / 1e3
        if self.pause is not None:
            gc.disable()

    def open(self) -> None:
        """Enable collection unless another pause is open."""
        with _lock:
            pause = self.pause
            if pause is not None and _pauses == [pause] and pause.enabled:
                # first: enabling may start a collection immediately
                self.due = math.inf
                gc.enable()

    def collected(self, phase: str, _: dict[str, Any]) -> None:
        """Begin a window after a collection; called by Python in any thread."""
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
            return  # interrupted before it began
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
    with contextlib.suppress(RuntimeError):  # not held: `_before_fork` timed out
        _lock.release()


def _after_fork_in_child() -> None:
    """Replace the lock and end the pauses of all other threads."""
    global _lock
    _lock = threading.RLock()
    here = threading.get_ident()
    _window.fits = [each for each in _window.fits if each == here]
    _window.update()
    for pause in [each for each in _pauses if each.thread != here]:
        if pause is not _window.pause:
            _end(pause)


_window = _Window()
window = _window  # training loops check `due` before they call `between_steps`
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
