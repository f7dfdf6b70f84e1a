"""Errors that are kept, without the frames that they have passed."""

from __future__ import annotations

from typing import TypeVar

_Error = TypeVar("_Error", bound=BaseException)


def without_frames(error: _Error) -> _Error:
    """Return an error without its traceback, nor those of its contexts.

    A frame holds its variables and all frames that called it. An error that one of them
    keeps would hold them, and what they return, until garbage is collected.
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = None
        each = each.__context__
    return error
