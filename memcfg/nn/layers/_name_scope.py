"""`name_scope`: names of ops in plans and reports."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

__all__ = ["current_scope", "end_scope", "name_scope", "outermost_scope"]

_scope: ContextVar[str] = ContextVar("name_scope", default="")


class name_scope:  # noqa: N801  (Keras's name)
    """Put a name before those of the ops that a block makes.

    The names of ops are in graphs, plans, memory reports and timelines. Layers that
    have weights keep theirs, by which files know the weights.

    Parameters
    ----------
    name : str
        The name, without ``"/"``. Within another block the names are joined.

    Raises
    ------
    ValueError
        If the name is not such a string.

    Examples
    --------
    >>> import memcfg as mc
    >>> nn = mc.nn
    >>> x = nn.Input((3,))
    >>> with nn.name_scope("scaling"):
    ...     y = x * 2
    >>> model = nn.Model(x, nn.Dense(1)(y))
    >>> model.compile("sgd", "mse")
    >>> [op.name for op in model.graph(1).ops][0].partition("/")[0]
    'scaling'
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(
                f"name_scope takes a string without '/', got {name!r}: nest blocks"
            )
        self.name = name
        self._tokens: list[Token[str]] = []

    def __enter__(self) -> Self:
        around = _scope.get()
        name = f"{around}/{self.name}" if around else self.name
        self._tokens.append(_scope.set(name))
        return self

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._tokens.pop())


def current_scope() -> str:
    """Return the joined names of the blocks around; empty without any."""
    return _scope.get()


def outermost_scope() -> Token[str]:
    """Begin without a name, as in the `call` of a layer; return what ends it."""
    return _scope.set("")


def end_scope(token: Token[str]) -> None:
    """Go back to the blocks before `outermost_scope`."""
    _scope.reset(token)
