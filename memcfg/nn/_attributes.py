"""Fixed attributes and names of the objects that users construct."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import defaultdict
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import ATTRIBUTES, TORCH_ATTRIBUTES, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FixedAttributes",
    "automatic_name",
    "check_name",
    "constant",
    "constructor_arguments",
    "forget_names",
    "is_set",
    "next_number",
    "snake_case",
]

_FOREIGN = {"Keras's": ATTRIBUTES, "PyTorch's": TORCH_ATTRIBUTES}
_OF_LAYERS = ("name", "seed", "weights", "activity_regularizer", "trainable", "dtype")


class FixedAttributes:
    """Base class of the objects that users construct."""

    __slots__ = ("__weakref__",)

    _advice: ClassVar[str] = "its settings are arguments of its constructor"

    def __init_subclass__(cls, **options: Any) -> None:
        """Make constructors explain unsupported arguments of Keras."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = takes_arguments(cls.__init__)  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        known, kind = getattr(type(self), name, self), type(self).__name__
        if isinstance(known, MemberDescriptorType):
            if not name.startswith("_") and is_set(known, self):
                self._refuse(f"{name!r} of {kind} is fixed when it is made", name)
        elif not hasattr(known, "__set__") and hasattr(self, "__dict__"):
            pass  # a user's own attribute of a user's class
        elif known is self:
            self._refuse(f"{kind} has no attribute {name!r} and would ignore it", name)
        elif not getattr(known, "fset", hasattr(known, "__set__")):
            self._refuse(f"{name!r} of {kind} cannot be set", name)
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # otherwise type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Explain a missing attribute: unset, or one that only others have."""
            kind = type(self)
            if isinstance(getattr(kind, name, None), MemberDescriptorType):
                text = f"{kind.__name__}.__init__ must call super().__init__() first"
                raise AttributeError(text, name=name, obj=self)
            if not hasattr(kind, name):
                for whose, known in _FOREIGN.items():
                    if (why := reason(known, kind, name)) is not None:
                        text = f"{kind.__name__!r} object has no attribute {name!r}"
                        text = f"{text}, unlike {whose}: {why}"
                        raise AttributeError(text, name=name, obj=self)
            return object.__getattribute__(self, name)  # raises

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes by name, for copies and pickles."""
        state: Any = super().__getstate__()
        own, slots = state if isinstance(state, tuple) else (state, None)
        return (slots or {}) | (own or {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set attributes directly, bypassing `__setattr__`."""
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def _settings(self) -> dict[str, Any]:
        """Return the public attributes, in the order of their definition."""
        state = FixedAttributes.__getstate__(self)
        return {name: state[name] for name in state if not name.startswith("_")}

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self._settings().items())
        return f"{type(self).__name__}({shown})"

    def _refuse(self, why: str, name: str) -> None:
        raise AttributeError(f"{why}: {self._advice}", name=name, obj=self)


def is_set(slot: MemberDescriptorType, instance: object) -> bool:
    """Return whether a slot is set; fast, since every constructor calls it."""
    try:
        slot.__get__(instance)
    except AttributeError:
        return False
    return True


def constant(name: str, value: Any, why: str) -> property:
    """Return a property for an attribute of Keras that has a fixed value here."""

    def refuse(instance: object, given: Any) -> None:
        if given is not value:
            raise AttributeError(f"{name!r} of {instance!r} is {value}: {why}")

    return property(lambda _: value, refuse, doc=why)


def constructor_arguments(value: Any, *, complete: bool = False) -> dict[str, Any]:
    """Return the arguments of a constructor that are attributes of the same name.

    Arguments common to all layers and models are left out. With `complete`, a missing
    attribute raises TypeError.
    """
    state = getattr(value, "initializers", None) or {}
    result = {f"{name}_initializer": each for name, each in dict(state).items()}
    left_out = _OF_LAYERS if hasattr(value, "trainable") else ()
    given = getattr(value, "_given", {})
    kept_as = getattr(type(value), "_kept_as", {})  # attributes of other names
    _, *parameters = inspect.signature(type(value).__init__).parameters.values()
    for each in parameters:
        name = each.name
        if name in left_out or each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        if hasattr(value, kept_as.get(name, name)):
            result[name] = getattr(value, kept_as.get(name, name))
        elif name in given:
            result[name] = given[name]
        elif complete:
            kind = type(value).__name__
            raise TypeError(
                f"{kind} cannot be saved: its argument {name!r} is not an attribute. "
                f"Set self.{name} in {kind}.__init__, or write a get_config that "
                "returns all arguments"
            )
    return result


_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def snake_case(name: str) -> str:
    """Return a class name in snake case, as in Keras's automatic names."""
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()


def next_number(kind: str) -> int:
    """Return how many numbers of a kind have been asked for before."""
    return next(_counters[kind])  # atomic: both calls are implemented in C


def forget_names() -> None:
    """Start the numbers of automatic names from the beginning again."""
    _counters.clear()


def automatic_name(kind: str) -> str:
    """Return the next unused automatic name of a kind."""
    number = next_number(kind)
    return kind if number == 0 else f"{kind}_{number}"


def check_name(name: object) -> str:
    """Return a name; raise if it is not a valid one."""
    if not isinstance(name, str):
        raise TypeError(f"a name must be a string, got {name!r}")
    if not name or "/" in name:
        raise ValueError(f"a name must not be empty or contain '/', got {name!r}")
    return name
