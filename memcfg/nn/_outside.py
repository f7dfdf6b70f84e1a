"""A model's arrays are its own, whatever workspace its caller is in.

Owns the way out. Without it a `fit` inside a workspace would fill that with the arrays
of all its steps, and what a model keeps would keep pages of its caller.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from memcfg.workspaces import scope_out

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["outside"]

P = ParamSpec("P")
R = TypeVar("R")


def outside(method: Callable[P, R]) -> Callable[P, R]:
    """Run a method outside of all workspaces.

    Parameters
    ----------
    method : callable
        The method.

    Returns
    -------
    callable
        The same, with `memcfg.scope_out` around each call.
    """

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with scope_out():
            return method(*args, **kwargs)

    return call
