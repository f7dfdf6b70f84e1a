"""A block in use, as a value.

Owns the class that reports list.
"""

from __future__ import annotations

from dataclasses import dataclass

from memcfg._terminal import fit, fit_name
from memcfg.units import format_bytes

__all__ = ["LiveBlock"]

# A unit of time, its seconds, and the age from which it is used: ages that would be
# rounded up to one of the next unit are written in that unit.
_AGES = (("d", 86400, 84600), ("h", 3600, 3570), ("m", 60, 59.5), ("s", 1, 9.95))


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block of memory with its holder, printed as a line of at most 80 columns.

    Parameters
    ----------
    resource : str
        The name of its resource, or the kind of the resource if it has no name.
    address : int
        The address of the first byte.
    nbytes : int
        The requested bytes.
    rounded_bytes : int
        The bytes rounded up to 64, as limits count them.
    tag : str
        The holder.
    seconds : float or None, default None
        Its age in seconds; None unless a tracking resource knows it.
    stack : tuple of tuple (str, int, str), default ()
        File, line and function of the calls that took it, the innermost first; empty
        unless a tracking resource recorded them.
    kind : str, default "block"
        ``"block"``, or ``"arena"``: all bytes of one arena.
    thread : int or None, default None
        The system's number of the thread that took it, as `threading.get_native_id`
        gives it; None unless a tracking resource knows it.
    """

    resource: str
    address: int
    nbytes: int
    rounded_bytes: int
    tag: str
    seconds: float | None = None
    stack: tuple[tuple[str, int, str], ...] = ()
    kind: str = "block"
    thread: int | None = None

    def __str__(self) -> str:
        where = _call(*self.stack[0]) if self.stack else ""
        age = "" if self.seconds is None else _age(self.seconds)
        cells = (
            fit(format_bytes(self.nbytes), 11, right=True),
            fit(self.tag or "unnamed", 18),
            fit_name(self.resource, 14),
            fit(age, 5, right=True),
            fit(where or f"{self.kind} at {self.address:#x}", 28),
        )
        return " ".join(cells).rstrip()


def _call(filename: str, line: int, function: str) -> str:
    """Return a call as text of which the line number is always visible."""
    where = fit(f"{filename.rpartition('/')[2]}:{line}", 18, keep="end")
    return f"{where.rstrip()} {function.replace('.<locals>', '')}"


def _age(seconds: float) -> str:
    """Return an age in at most five columns."""
    for unit, length, minimum in _AGES:
        if seconds >= minimum:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"
