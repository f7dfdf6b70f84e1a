"""How many programs of this process run at the same time.

Owns the count. The bound is `memcfg.config.threading`'s, read anew by everyone who
comes or waits.
"""

from __future__ import annotations

import os
from threading import Condition
from typing import TYPE_CHECKING

from memcfg.config.threading import get_inter_op_parallelism_threads

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Gate", "gate"]


class Gate:
    """A context that at most so many threads are in at once; the others wait.

    Invariant: `_running` is the number of threads inside, and whoever enters leaves
    at most the bound of them there.

    Notes
    -----
    A thread waits with its model's lock in hand. Nobody inside asks for another lock,
    so all of them leave, and a waiting thread delays only those that want its model.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start with nobody inside: in the child of a fork no other thread lives."""
        self._changed = Condition()
        self._running = 0

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._running += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _has_room(self) -> bool:
        bound = get_inter_op_parallelism_threads()
        return bound == 0 or self._running < bound


gate = Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=gate.renew)
