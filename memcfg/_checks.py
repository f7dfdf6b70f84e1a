"""Checks of arguments: counts, switches, names."""

from __future__ import annotations

import inspect
from functools import wraps
from operator import index
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from memcfg._missing import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")


def count(value: Any, what: str, minimum: int | None = 1) -> int:
    """Return an integer, not below a minimum if there is one, or raise an error."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an integer, not {value!r}")
    number = index(value)
    if minimum is not None and number < minimum:
        raise ValueError(f"{what} is at least {minimum}, not {number}")
    return number


def flag(value: Any, what: str) -> bool:
    """Return a bool, or raise an error."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {value!r}")
    return value


def check_policy(policy: Callable[..., object]) -> None:
    """Raise TypeError if a policy cannot be called as policies are."""
    try:
        taken = inspect.signature(policy)
    except (TypeError, ValueError):  # a compiled callable without a signature
        return
    try:
        taken.bind(None, limit_bytes=None)
    except TypeError:
        name = getattr(policy, "__name__", type(policy).__name__)
        raise TypeError(
            "a policy is called as policy(graph, limit_bytes=...): name the limit of "
            f"{name}{taken} so"
        ) from None


def name_of(policy: Callable[..., object]) -> str:
    """Return the name of a policy; that of a function is its own."""
    return str(getattr(policy, "name", getattr(policy, "__name__", "a policy")))


def unknown(what: str, given: str, known: Iterable[str], start: str = "") -> ValueError:
    """Return the error for an unknown name, with the nearest one or all names."""
    names = list(known)
    near = nearest(given, names, 0.7)
    hint = f": did you mean {near!r}?" if near else f"; known: {', '.join(names)}"
    return ValueError(f"{start}unknown {what} {given!r}{hint}")


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name its arguments in the error of a wrong call."""
    taken = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            taken.bind(*args, **kwargs)
        except TypeError as error:
            why = str(error)
        else:
            return function(*args, **kwargs)
        names = [name for name in taken.parameters if name not in ("self", "cls")]
        for name in kwargs:
            if name not in names:
                near = nearest(name, names, 0.7)
                near = near or next(filter(name.startswith, names), None)
                hint = f": did you mean {near!r}?" if near else ""
                why = f"has no argument {name!r}{hint}"
                break
        raise TypeError(f"{function.__name__}() {why}; it takes {', '.join(names)}")

    return call
