"""What the readers of snapshots can show: frames, and addresses.

Owns the detours around what PyTorch's tools drop, cut or round. Refuses to gather.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg._terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Frames", "shown_address"]

# A frame with one of these in its function's name is dropped.
_DROPPED = (
    "unwind::unwind",
    "CapturedTraceback::gather",
    "gather_with_cpp",
    "_start",
    "__libc_start_main",
    "PyEval_",
    "PyObject_",
    "PyFunction_",
)
_SIMULATED = 2**62  # the addresses of simulated devices start here
_SHOWN_AT = 2**32  # and are shown from here on

Frame = dict[str, Any]
Stack = tuple[tuple[str, int, str], ...]


def shown_address(address: int) -> int:
    """Move an address below 2⁵³, above which the web page rounds."""
    if address < _SIMULATED:
        return address
    return address - _SIMULATED + _SHOWN_AT


class Frames:
    """Lists of frames, each made once, so that a pickle has each once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, Stack], list[Frame]] = {}

    def of(self, tag: str, stack: Sequence[tuple[str, int, str]] = ()) -> list[Frame]:
        """Return a stack's frames, the innermost first, and the tag behind them."""
        return self._list("tag", tag or "unnamed", tuple(stack))

    def of_resource(self, name: str) -> list[Frame]:
        """Return the frame of a segment: whose it is."""
        return self._list("resource", name, ())

    def _list(self, what: str, name: str, stack: Stack) -> list[Frame]:
        key = (what, name, stack)
        if key not in self._made:
            frames = [_frame(*call) for call in stack]
            self._made[key] = [*frames, _named(what, name)]
        return self._made[key]


def _named(what: str, name: str) -> Frame:
    """Show a name as a function, or as a file where such functions are dropped."""
    if any(word in name for word in _DROPPED):
        return _frame(name, 0, what)
    return _frame(what, 0, name)


def _frame(filename: str, line: int, name: str) -> Frame:
    return {"filename": _plain(filename), "line": line, "name": _plain(name)}


def _plain(text: str) -> str:
    """Escape what divides frames from one another in a flame graph."""
    return printable(text).replace(";", r"\x3b")
