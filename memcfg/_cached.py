"""A property that is computed once."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801  (the name of functools')
    """A cached property like functools', which two threads never compute at once.

    Each value has a lock while it is computed. The child of a fork discards it, since
    it may lack the thread that holds the lock. If computing raises an error, the next
    thread tries.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Record the attribute's name."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        """Compute the value, and store it as the instance's own attribute."""
        if instance is None:
            return self
        values, key = instance.__dict__, (id(instance), self._name)
        try:
            with _turns.setdefault(key, threading.RLock()):
                if self._name not in values:
                    values[self._name] = self._compute(instance)
        finally:
            # waiting threads have this lock, and new ones find the value
            _turns.pop(key, None)
        value: T = values[self._name]
        return value


# by the id of the instance, which is alive meanwhile
_turns: dict[tuple[int, str], threading.RLock] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.clear)
