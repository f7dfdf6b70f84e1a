"""Who can do without memory of a pool, and is asked before a request is refused.

Owns the list of holders of each pool, and the order in which they are asked. It takes
no lock: holders may be asked in any thread, amid any allocation.

See docs/decisions/0036-memory-is-asked-back.md.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Protocol
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from memcfg.errors import ResourceExhaustedError

__all__ = [
    "GivingOrder",
    "Holder",
    "Holders",
    "is_budgeted",
    "list_holder",
    "make_room",
    "margin_beside",
    "margin_of",
    "pools_below",
    "refusal_observers",
    "sparing_models",
    "undemanding",
]

_PAGE = 4096

# What plans under a program's budget leave to arrays of the program: a part of the
# limit, and at most these bytes.
_MARGIN_PART = 16
_MAX_MARGIN = 64 * 2**20

# Holders of an order below this one are asked if a request does not fit; none while
# memory is given back.
_ALL, _NOBODY = 1 << 30, -(1 << 30)
_asks: ContextVar[int] = ContextVar("memcfg_asks_for_memory", default=_ALL)

# Called with the resource and the error of a request that is refused in the end.
refusal_observers: list[Callable[[Any, ResourceExhaustedError], None]] = []


class GivingOrder(IntEnum):
    """Who gives first: what costs least to do without."""

    READ_AHEAD = 0  # batches that would wait for a model
    CACHE = 1  # elements that can be read again
    MODEL = 2  # bytes without which steps take longer


class Holder(Protocol):
    """Something that can do without memory of a pool.

    Both are called in any thread, during an allocation, and wait for nothing but the
    end of a model's step.
    """

    @property
    def spare_bytes(self) -> int:
        """Bytes that it could give back, and that plans count on."""

    def give_back(self, nbytes: int) -> int:
        """Free at least `nbytes`, or all that can be freed; return the freed bytes."""


class Holders:
    """The holders of a pool that can do without some of its memory.

    None is kept alive by being listed. Each update is one operation of a dictionary, so
    a thread or a fork may come at any time.
    """

    def __init__(self) -> None:
        # Bytes that plans leave to arrays of the program; 0 outside of budgets.
        self.margin_bytes = 0
        self._holders: dict[tuple[int, int], ref[Holder]] = {}
        self._numbers = count()

    def add(self, holder: Holder, order: GivingOrder) -> None:
        """List a holder; of those of one order, the first is asked first."""
        key = int(order), next(self._numbers)
        drop = self._holders.pop  # bound here: it may be called at exit
        self._holders[key] = ref(holder, lambda _: drop(key, None))

    @property
    def spare_bytes(self) -> int:
        """Bytes that all holders together could give back."""
        return sum(holder.spare_bytes for holder in self._in_order())

    def give_back(self, nbytes: int) -> int:
        """Let holders free `nbytes`, in their order; return the freed bytes."""
        given, below = 0, _asks.get()
        with undemanding():
            for holder in self._in_order(below):
                if given >= nbytes:
                    break
                given += holder.give_back(nbytes - given)
        return given

    def _in_order(self, below: int = _ALL) -> list[Holder]:
        rows = sorted(self._holders.copy().items())
        found = (refers() for (order, _), refers in rows if order < below)
        return [holder for holder in found if holder is not None]

    def __len__(self) -> int:
        return len(self._holders)


def margin_of(limit_bytes: int) -> int:
    """Return the bytes of a budget that plans leave to arrays of the program."""
    return min(_MAX_MARGIN, limit_bytes // _MARGIN_PART)


def margin_beside(needed_bytes: int) -> int:
    """Return the margin of the smallest budget that has these bytes in addition."""
    return min(_MAX_MARGIN, -(-needed_bytes // (_MARGIN_PART - 1)))


@contextmanager
def undemanding() -> Iterator[None]:
    """Let requests that do not fit fail in a ``with`` block, without asking holders."""
    with _asking(_NOBODY):
        yield


@contextmanager
def sparing_models() -> Iterator[None]:
    """Let requests that do not fit ask data alone for memory, in a ``with`` block."""
    with _asking(GivingOrder.MODEL):
        yield


@contextmanager
def _asking(below: int) -> Iterator[None]:
    token = _asks.set(min(below, _asks.get()))
    try:
        yield
    finally:
        _asks.reset(token)


def list_holder(resource: Any, holder: Holder, order: GivingOrder) -> None:
    """List a holder of memory of a resource with the pools that this is of."""
    for pool in pools_below(resource):
        pool.holders.add(holder, order)


def is_budgeted(resource: Any) -> bool:
    """Return whether a resource is under a program's budget."""
    return any(pool.holders.margin_bytes for pool in pools_below(resource))


def make_room(resource: Any, error: ResourceExhaustedError) -> bool:
    """Have memory given back for a request that failed; return whether any was."""
    if _asks.get() == _NOBODY:
        return False
    seen = {id(pool): pool for pool in pools_below(resource)}
    given = [_ask(pool, error) for pool in seen.values()]
    if any(given):
        return True
    for observe in refusal_observers:
        observe(resource, error)
    return False


def pools_below(resource: Any) -> Iterator[Any]:
    """Yield the pools that a resource takes memory from, itself included."""
    while resource is not None:
        if isinstance(getattr(resource, "holders", None), Holders):
            yield resource
        pages = getattr(resource, "pages", None)  # of a workspace
        if pages is not None and pages is not resource.upstream:
            yield from pools_below(pages)
        resource = resource.upstream


def _ask(pool: Any, error: ResourceExhaustedError) -> bool:
    holders, wanted = pool.holders, error.rounded_bytes
    if not len(holders):
        return False
    limit = pool.limit
    if limit is not None:
        wanted -= limit - pool.stats().current_bytes
        if wanted <= 0 and error.limit_bytes != limit:
            return False  # it is another resource's limit
        if wanted <= 0:  # pages are missing: how many blocks lie on them is not known
            wanted = max(_PAGE, error.rounded_bytes // 16)
    return bool(holders.give_back(wanted) > 0)
