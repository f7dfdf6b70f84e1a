"""Attributes that mean something, and no others.

Owns what is said when another is set, which nothing would read, and what a copy takes
along.
"""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any, ClassVar

__all__ = ["Constant", "Settled"]


class Settled:
    """Base of the objects that users make.

    A class names its attributes in `__slots__`. The constructor sets them, and those
    without an underscore stay as they are; what may change is a property with a setter.
    A user's subclass without `__slots__` has any attributes of its own besides.
    """

    __slots__ = ("__weakref__",)

    _advice: ClassVar[str] = "its settings are arguments of its constructor"

    def __setattr__(self, name: str, value: Any) -> None:
        known, kind = getattr(type(self), name, self), type(self).__name__
        if isinstance(known, MemberDescriptorType):
            if not name.startswith("_") and hasattr(self, name):
                self._refuse(f"{name!r} of {kind} is fixed when it is made", name)
        elif not hasattr(known, "__set__") and hasattr(self, "__dict__"):
            pass  # a user's class, and no attribute of ours
        elif known is self:
            self._refuse(f"{kind} has no attribute {name!r}, nobody reads it", name)
        elif not getattr(known, "fset", hasattr(known, "__set__")):
            self._refuse(f"{name!r} of {kind} cannot be set", name)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes by name; for copies and pickles."""
        found: Any = super().__getstate__()
        own, slots = found if isinstance(found, tuple) else (found, None)
        return (slots or {}) | (own or {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take attributes; `__setattr__` has no say."""
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def _settings(self) -> dict[str, Any]:
        """Return the attributes that people may know, in the order of the classes."""
        state = Settled.__getstate__(self)
        return {name: state[name] for name in state if not name.startswith("_")}

    def _refuse(self, why: str, name: str) -> None:
        raise AttributeError(f"{why}: {self._advice}", name=name, obj=self)


class Constant:
    """An attribute of Keras's that has one value here.

    Parameters
    ----------
    value : object
        The value.
    why : str
        What is said when it is set to another.
    """

    def __init__(self, value: Any, why: str) -> None:
        self._value = value
        self._why = why
        self.__doc__ = why

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Return the value."""
        return self if instance is None else self._value

    def __set__(self, instance: object, value: Any) -> None:
        """Refuse another value."""
        if value is not self._value:
            raise AttributeError(
                f"{self._name!r} of {instance!r} is {self._value}: {self._why}"
            )
