"""Checks of arguments: counts and switches."""

from __future__ import annotations

from operator import index
from typing import Any


def count(value: Any, what: str, minimum: int | None = 1) -> int:
    """Return a whole number, of any size without a minimum; or say what is wrong."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an integer, not {value!r}")
    number = index(value)
    if minimum is not None and number < minimum:
        raise ValueError(f"{what} is at least {minimum}, not {number}")
    return number


def flag(value: Any, what: str) -> bool:
    """Return a switch, or say what is wrong."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {value!r}")
    return value
