"""Sources of arrays that ops read when they run, such as compressed files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from memcfg.errors import KernelError

if TYPE_CHECKING:
    from memcfg.ops._op_type import Array

__all__ = ["Source", "add_source", "source_of"]


class Source(Protocol):
    """Arrays in numbered sections."""

    def read_section(
        self, section: int, out: Array, work: Array, part: str | None = None
    ) -> None:
        """Read one array.

        Parameters
        ----------
        section : int
            Its number.
        out : ndarray
            Receives it.
        work : ndarray
            Scratch in uint8, as large as the section says.
        part : {"scales", "codes"}, optional
            What to read of an array of integers; None: the array.
        """

    def read_codes(self, first: int, count: int, out: Array) -> None:
        """Read consecutive sections as they are.

        Parameters
        ----------
        first : int
            The number of the first one.
        count : int
            How many there are.
        out : ndarray
            Receives their bytes.
        """

    def decode_section(self, section: int, code: Array, out: Array) -> None:
        """Decode a section that has been read.

        Parameters
        ----------
        section : int
            Its number.
        code : ndarray
            Its bytes.
        out : ndarray
            Receives the array.
        """


_sources: WeakValueDictionary[str, Source] = WeakValueDictionary()


def add_source(name: str, source: Source) -> None:
    """Make a source known to ops, as long as it exists.

    Parameters
    ----------
    name : str
        The name that ops give in their attribute ``source``.
    source : Source
        The source.
    """
    _sources[name] = source


def source_of(name: str) -> Source:
    """Return a source by its name.

    Parameters
    ----------
    name : str
        As of `add_source`.

    Returns
    -------
    Source
        The source.

    Raises
    ------
    KernelError
        If there is none, or it exists no more.
    """
    try:
        return _sources[name]
    except KeyError:
        raise KernelError(
            f"there is no source {name!r}: it has been closed, or the step was traced "
            "in another process"
        ) from None
