"""Iterators that end when their reader ends."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["closing"]


@contextmanager
def closing(*iterators: Iterator[Any]) -> Iterator[None]:
    """Close iterators at the end of a block, in every case."""
    with ExitStack() as stack:
        for iterator in iterators:
            close = getattr(iterator, "close", None)
            if close is not None:
                stack.callback(close)
        yield
