"""A model among those that are asked for memory before a request is refused.

See docs/decisions/0036-memory-is-asked-back.md.
"""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Protocol
from weakref import ref

from memcfg._core import fork_count, holds_turn
from memcfg._core._holders import GivingOrder, margin_of, undemanding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg._core import Lock
    from memcfg.memory import Pool

__all__ = ["ModelHolder"]

_PATIENCE = 30.0  # seconds for the step of another thread to end


class _Programs(Protocol):
    """The programs of a model."""

    lock: Lock

    @property
    def may_shrink(self) -> bool:
        """Whether they may be planned for fewer bytes now."""

    def shrink_by(self, sizes: Sequence[int]) -> int:
        """Plan them for the first of these sizes less that fits; return bytes freed."""


class ModelHolder:
    """Have a model run in less memory, between two steps, if a pool has no other left.

    A model gives all that is asked for, or nothing. It gives nothing in a thread that
    is amid a step or a load of any model, so no two wait for each other.
    """

    spare_bytes = 0  # plans of other models count on none

    def __init__(self, session: _Programs, pool: Pool) -> None:
        self._session = ref(session)
        self._pool = pool
        self._forks = fork_count()
        pool.holders.add(self, GivingOrder.MODEL)

    def give_back(self, nbytes: int) -> int:
        """Plan the model for fewer bytes; return those that are free now."""
        session, pool = self._session(), self._pool
        if session is None or self._forks != fork_count() or holds_turn():
            return 0
        limit, before = pool.limit, pool.stats().current_bytes
        if limit is None or not session.may_shrink:
            return 0
        with session.lock.turn_within(_PATIENCE) as taken:
            if not taken:
                return 0
            freed = before - pool.stats().current_bytes  # by others, meanwhile
            if freed >= nbytes:
                return freed
            # In a context of its own, arrays of planning are not in the full pool.
            return Context().run(_shrink, session, nbytes - freed, margin_of(limit))


def _shrink(session: _Programs, nbytes: int, margin: int) -> int:
    with undemanding():
        # The next request should not need a plan again.
        return session.shrink_by((nbytes + margin, nbytes))
