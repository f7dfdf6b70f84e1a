"""The first line of an error's message."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its class's name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
