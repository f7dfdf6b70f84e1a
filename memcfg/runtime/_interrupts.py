"""Interrupts wait until a step is over.

Owns the handler of SIGINT while a step is walked through in Python: a step that
stopped between two updates would leave weights of no step at all. A compiled program
needs none, since Python's handlers do not run inside it.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["interrupts_wait"]


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Put an interrupt off to the end of the block.

    Only the main thread gets interrupts, and only a handler that Python knows of can
    be put back; otherwise nothing is done.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() != threading.main_thread():
        yield
        return
    waiting: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if waiting:
        signal.raise_signal(waiting[0])
