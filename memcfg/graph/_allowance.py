"""Limit of the number of ops that are traced from an untrusted description.

A few lines can unfold to exponentially many ops: models nested in models, each called
twice. A reader of such descriptions sets an allowance, from which each op takes one.
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
    """A number of ops that may be traced, and how many are left.

    Parameters
    ----------
    count : int
        The number at the start.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.left = float(count)

    @property
    def is_exceeded(self) -> bool:
        """Whether more ops were requested than the allowance has."""
        return self.left < 0


_current: ContextVar[Allowance | None] = ContextVar("allowed_ops", default=None)


@contextmanager
def allowed_ops(count: int) -> Iterator[Allowance]:
    """Limit the ops that builders trace inside a ``with`` block.

    Parameters
    ----------
    count : int
        The most ops, over all builders.

    Yields
    ------
    Allowance
        The allowance, which counts the ops that are left.
    """
    allowance = Allowance(count)
    token = _current.set(allowance)
    try:
        yield allowance
    finally:
        _current.reset(token)


def spend(ops: float = 1) -> None:
    """Take ops from the current allowance, if there is one.

    Parameters
    ----------
    ops : float, default 1
        The number of ops, or of ops whose tracing is the same amount of work.

    Raises
    ------
    GraphError
        If fewer ops are left.
    """
    allowance = _current.get()
    if allowance is not None:
        allowance.left -= ops
        if allowance.is_exceeded:
            raise GraphError(f"there are more than {allowance.count:,} ops")
