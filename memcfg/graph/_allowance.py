"""How many ops may be traced of what somebody else has described.

A description of a few lines can unfold without end: models inside of models, each
called twice. Whoever reads one sets an allowance, from which each op takes one.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from memcfg.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Allowance", "allowed_ops", "spend"]


class Allowance:
    """A number of ops, and how many of them are left.

    Parameters
    ----------
    count : int
        How many there are at first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.left = float(count)

    @property
    def is_exceeded(self) -> bool:
        """Whether more ops were asked for."""
        return self.left < 0


_current: ContextVar[Allowance | None] = ContextVar("allowed_ops", default=None)


@contextmanager
def allowed_ops(count: int) -> Iterator[Allowance]:
    """Let at most so many ops be traced inside a ``with`` block, by all builders.

    Parameters
    ----------
    count : int
        How many.

    Yields
    ------
    Allowance
        What is left of them.
    """
    allowance = Allowance(count)
    token = _current.set(allowance)
    try:
        yield allowance
    finally:
        _current.reset(token)


def spend(ops: float = 1) -> None:
    """Take ops from the allowance, if there is one.

    Parameters
    ----------
    ops : float, default 1
        How many, or what is as much work as so many.

    Raises
    ------
    GraphError
        If fewer are left.
    """
    allowance = _current.get()
    if allowance is not None:
        allowance.left -= ops
        if allowance.is_exceeded:
            raise GraphError(f"there are more than {allowance.count:,} ops")
