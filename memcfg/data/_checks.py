"""Readers of the arguments that iterators share.

Owns the checks of counts and switches. Refuses silence: what cannot be honoured raises.
"""

from __future__ import annotations

from operator import index
from typing import Any

__all__ = ["count", "flag"]


def count(value: Any, what: str, least: int = 1) -> int:
    """Return a whole number, or say what is wrong.

    Parameters
    ----------
    value : object
        What was given.
    what : str
        The argument's name, for the message.
    least : int, default 1
        What it is not below.

    Returns
    -------
    int
        The number.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is below `least`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an integer, not {value!r}")
    number = index(value)
    if number < least:
        raise ValueError(f"{what} is {least} or more, not {number}")
    return number


def flag(value: Any, what: str) -> bool:
    """Return a switch, or say what is wrong.

    Parameters
    ----------
    value : object
        What was given.
    what : str
        The argument's name, for the message.

    Returns
    -------
    bool
        The switch.

    Raises
    ------
    TypeError
        If it is no bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {value!r}")
    return value
