"""The resources and arenas that are alive in this process.

Owns the two lists that reports read by default. They keep nothing alive and need no
lock, so they may be read in any thread and after a fork.

See docs/decisions/0021-forks-are-counted.md.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import KeyedRef

if TYPE_CHECKING:
    from memcfg._core.engine import Arena, Resource

__all__ = ["Living", "live_arenas", "live_resources"]

T = TypeVar("T")


class Living(Generic[T]):
    """Weak references, the oldest first; copying the dict is atomic."""

    def __init__(self) -> None:
        self._references: dict[int, KeyedRef[int, T]] = {}
        self._numbers = count()
        remove = self._references.pop  # bound here, as the module may already be gone
        self._drop = lambda reference: remove(reference.key, None)

    def add(self, thing: T) -> None:
        """Add an object that has just been made."""
        number = next(self._numbers)
        self._references[number] = KeyedRef(thing, self._drop, number)

    def alive(self) -> list[T]:
        """List the objects that are alive."""
        held = (reference() for reference in list(self._references.values()))
        return [thing for thing in held if thing is not None]

    def __len__(self) -> int:
        return len(self._references)


live_resources: Living[Resource] = Living()
live_arenas: Living[Arena] = Living()
