"""Records of allocations: what was taken and freed, by whom, in which order.

Owns the columns, what makes them a valid record, and a file format: a NumPy archive,
with names as JSON, since NumPy's strings lose trailing zeros. Other formats have
modules of their own, and `_replay` plays a record into a resource.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from memcfg.archives import read_arrays, write_arrays
from memcfg.documents import read_json
from memcfg.errors import FormatError
from memcfg.files import write_atomically
from memcfg.memory import _trace_csv, _trace_snapshot
from memcfg.memory._trace_columns import (
    ALLOCATE,
    FAILURE,
    FREE,
    NOT_GIVEN,
    as_integers,
    as_seconds,
    as_stacks,
    as_tags,
    first_fault,
)
from memcfg.timeline._record_timeline import (
    Recorded,
    origin_of,
    record_timeline,
)
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, NDArray

    from memcfg.memory._trace_columns import StackOfCalls
    from memcfg.timeline import MemoryTimeline

__all__ = ["Trace"]

_VERSION = 1
_WHAT = "saved trace"
_COLUMNS = ("action", "address", "nbytes", "thread", "seconds", "tag", "stack")


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Allocations and frees in order, as columns of one length.

    A trace is made by `TrackingResource.trace`, read from a file, or built from arrays,
    which are copied. Its arrays are read-only.

    Parameters
    ----------
    action : ndarray of uint8
        0 for an allocation, 1 for a free, 2 for a request that failed.
    address : ndarray of uint64
        The address of the block, which identifies it until it is freed; 0 if the
        request failed.
    nbytes : ndarray of uint64
        The requested size in bytes; a free has that of its block.
    thread : ndarray of int64, optional
        A number for the thread, not negative; 0 by default.
    seconds : ndarray of float64, optional
        The time in seconds, from any origin; 0 by default.
    tag : ndarray of int32, optional
        The holder of the block, as an index of `tags`; 0 by default.
    stack : ndarray of int32, optional
        The calls that took the block, as an index of `stacks`; -1 by default.
    tags : tuple of str, default ("",)
        Names.
    stacks : tuple of tuple of tuple (str, int, str), default ()
        File, line and function of each call, the innermost first.

    Raises
    ------
    TypeError
        If a column has numbers of the wrong kind, or the names are not strings.
    ValueError
        If columns differ in length, a number is out of range, or a row allocates an
        address in use, or frees one that is not in use or has another size. The message
        names the row, from 0.

    Notes
    -----
    `tracking` and `from_snapshot` put blocks allocated before the history at the front,
    so that every freed block was allocated earlier.

    Examples
    --------
    >>> from memcfg.memory import Trace
    >>> trace = Trace(action=[0, 0, 1], address=[64, 128, 64], nbytes=[10, 20, 10])
    >>> trace
    <Trace: 2 allocations, 1 frees, 0 failures>
    >>> Trace(action=[0, 1], address=[64, 128], nbytes=[10, 10])
    Traceback (most recent call last):
        ...
    ValueError: row 1 frees 0x80, which is not out
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    nbytes: NDArray[np.uint64]
    thread: NDArray[np.int64] = field(default_factory=lambda: NOT_GIVEN)
    seconds: NDArray[np.float64] = field(default_factory=lambda: NOT_GIVEN)
    tag: NDArray[np.int32] = field(default_factory=lambda: NOT_GIVEN)
    stack: NDArray[np.int32] = field(default_factory=lambda: NOT_GIVEN)
    tags: tuple[str, ...] = ("",)
    stacks: tuple[StackOfCalls, ...] = ()

    def __post_init__(self) -> None:
        tags, stacks = as_tags(self.tags), as_stacks(self.stacks)
        count = len(np.atleast_1d(np.asarray(self.action)))

        def integers(
            name: str, dtype: Any, minimum: int, maximum: int, default: int = 0
        ) -> NDArray[Any]:
            values: ArrayLike = getattr(self, name)
            if values is NOT_GIVEN:
                values = np.full(count, default)
            return as_integers(name, values, dtype, count, (minimum, maximum))

        columns = {
            "action": integers("action", np.uint8, ALLOCATE, FAILURE),
            "address": integers("address", np.uint64, 0, 2**64 - 1),
            "nbytes": integers("nbytes", np.uint64, 1, 2**64 - 1),
            "thread": integers("thread", np.int64, 0, 2**63 - 1),
            "seconds": as_seconds(self.seconds, count),
            "tag": integers("tag", np.int32, 0, len(tags) - 1),
            "stack": integers("stack", np.int32, -1, len(stacks) - 1, -1),
        }
        fault = first_fault(columns["action"], columns["address"], columns["nbytes"])
        if fault is not None:
            raise ValueError("row {} {}".format(*fault))
        for name, column in columns.items():
            object.__setattr__(self, name, column)
        object.__setattr__(self, "tags", tags)
        object.__setattr__(self, "stacks", stacks)

    def __len__(self) -> int:
        return len(self.action)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, each.name), getattr(other, each.name))
            if each.name not in ("tags", "stacks")
            else getattr(self, each.name) == getattr(other, each.name)
            for each in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = np.bincount(self.action, minlength=3)
        return (
            f"<Trace: {counts[ALLOCATE]} allocations, {counts[FREE]} frees, "
            f"{counts[FAILURE]} failures>"
        )

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> Self:
        """Read a log written by `logging` or by RMM.

        Parameters
        ----------
        path : str or path-like
            A CSV file with the columns ``Thread``, ``Time``, ``Action``, ``Pointer``
            and ``Size`` in any order; others, such as ``Stream``, are ignored.

        Returns
        -------
        Trace
            The rows in order, without those of zero bytes, which hold nothing.

        Raises
        ------
        FormatError
            If the file is not such a log, or not a valid record; the message names the
            line.
        OSError
            If it cannot be read.

        Notes
        -----
        Times are times of day, or seconds since 1970. For times of day, `seconds`
        counts from the midnight before the log, and a log may pass midnight.
        ``deallocate`` is read as ``free``, and ``(nil)`` as 0.
        """
        return cls(**_trace_csv.read(path))

    def to_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a log that RMM's replay benchmark reads.

        Parameters
        ----------
        path : str or path-like
            The file.
        overwrite : bool, default False
            Whether a file that is there is replaced.

        Raises
        ------
        OSError
            If it cannot be written, or is there (FileExistsError); nothing is changed.

        Notes
        -----
        Times are written as times of day, to the microsecond. Tags and stacks are not
        written.
        """
        columns = (self.thread, self.seconds, self.action, self.address, self.nbytes)
        _trace_csv.write(path, *columns, overwrite=overwrite)

    @classmethod
    def from_snapshot(
        cls, path: str | os.PathLike[str], *, device: int | None = None
    ) -> Self:
        """Read a memory snapshot of PyTorch, as ``_dump_snapshot`` writes it.

        Parameters
        ----------
        path : str or path-like
            The pickle, of protocol 2 to 5. Only dictionaries, lists, tuples, strings,
            bytes and numbers are accepted. Nothing in it is run, and reading it takes
            time and memory in proportion to its size.
        device : int or None, default None
            The index of the device; None for the only one that has events.

        Returns
        -------
        Trace
            The events ``alloc``, ``free_completed`` and ``oom``; others are ignored.
            Blocks allocated before the history come first. The tag is the event's
            ``user_metadata`` if that is a string.

        Raises
        ------
        FormatError
            If the file is not such a snapshot.
        OSError
            If it cannot be read.
        ValueError
            If there is no such device, or `device` is None and several have events.
        """
        columns = _trace_snapshot.read(path, device)
        try:
            return cls(**columns)
        except ValueError as error:
            raise FormatError(f"{path} is not a snapshot: {error}") from None

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the whole record to a NumPy archive, without pickles.

        Parameters
        ----------
        path : str or path-like
            The file, usually ``.npz``.
        overwrite : bool, default False
            Whether a file that is there is replaced.

        Raises
        ------
        OSError
            If it cannot be written, or is there (FileExistsError); nothing is changed.
        """
        names = json.dumps({"tags": self.tags, "stacks": self.stacks})
        arrays = {
            "memcfg_trace": np.array(_VERSION),
            "names": np.frombuffer(names.encode("ascii"), np.uint8),
            **{name: getattr(self, name) for name in _COLUMNS},
        }
        write_atomically(path, write_arrays(arrays, compress=True), overwrite=overwrite)

    def timeline(self, limit: int | str | None = None) -> MemoryTimeline:
        """Return which holder had which addresses when.

        Parameters
        ----------
        limit : int or str or None, default None
            The limit to draw, such as ``"64MiB"``; None for none.

        Returns
        -------
        MemoryTimeline
            A box for each allocation, by its tag. Its `save` writes a page to zoom and
            search, a picture or a file for Perfetto. Addresses that were never in use
            are left out.

        Raises
        ------
        TypeError, ValueError
            If the limit is not a size.
        """
        tags = [self.tags[tag] for tag in self.tag.tolist()]
        columns = (self.action, self.address, self.nbytes, self.seconds)
        numbers = (column.tolist() for column in columns)
        origins = [*map(origin_of, self.stacks), ("", "")]  # last: of none
        rows = (
            Recorded(action, address, nbytes, seconds, tag, *origins[stack])
            for action, address, nbytes, seconds, tag, stack in zip(
                *numbers, tags, self.stack.tolist(), strict=True
            )
        )
        nbytes = None if limit is None else parse_bytes(limit)
        return record_timeline(rows, nbytes)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a record that `save` wrote.

        Parameters
        ----------
        path : str or path-like
            The file.

        Returns
        -------
        Trace
            A trace equal to the one that was saved.

        Raises
        ------
        FormatError
            If the file is not such an archive, or is damaged.
        OSError
            If it cannot be read.
        """
        # all at once, so that the columns are of one file
        arrays = read_arrays(path, _WHAT)
        try:
            version = arrays["memcfg_trace"]
            if int(version) != _VERSION:
                raise ValueError(f"version {version} is none that is known")
            names = read_json(arrays["names"].tobytes(), "trace")
            columns = {name: arrays[name] for name in _COLUMNS}
            return cls(tags=names["tags"], stacks=names["stacks"], **columns)
        except (
            AttributeError,
            KeyError,
            OverflowError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise FormatError(f"{path} is not a saved trace: {error}") from None
