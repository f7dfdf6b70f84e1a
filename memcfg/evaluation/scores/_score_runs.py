"""All distinct scores with their positives and negatives, in memory or in a file.

Scores are collected in a buffer. When it is full, it is sorted and equal scores are
joined; if it stays more than half full, it is written to a file as a sorted run. A scan
merges the runs.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg.errors import FormatError, ResourceExhaustedError
from memcfg.evaluation._tallied import read_array
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ScoreRuns"]

Floats = npt.NDArray[np.float64]

_ROW = 24  # bytes of a score, its positives and its negatives
_NEEDED = 72  # bytes a row: a row, and what sorting takes meanwhile
_FIRST, _LEAST = 1 << 7, 1 << 8  # rows of the first buffer, and of a part of a run
_CHUNK = 1 << 16  # rows that a scan yields at once
_SENT = 1 << 14  # rows of a chunk that is sent to another process


class _File:
    """A file without a name, which is gone when nothing refers to it."""

    def __init__(self, folder: str) -> None:
        self.descriptor, path = tempfile.mkstemp(prefix="memcfg-scores-", dir=folder)
        os.unlink(path)
        self.process = os.getpid()  # a forked child must not write to it
        self.size = 0
        weakref.finalize(self, os.close, self.descriptor)


class _Run(NamedTuple):
    """Sorted rows in a file: all scores, then all positives, then all negatives."""

    file: _File
    offset: int
    rows: int

    def read(self, begin: int, end: int) -> Floats:
        """Return rows as an array of shape (3, rows)."""
        result = np.empty((3, end - begin))
        for column, into in enumerate(result):
            offset = self.offset + 8 * (column * self.rows + begin)
            _read(self.file.descriptor, memoryview(into.data).cast("B"), offset)
        return result


def _read(descriptor: int, into: memoryview, offset: int) -> None:
    while into:
        count = os.preadv(descriptor, [into], offset)
        if not count:
            raise OSError("a file of spilled scores is shorter than it was written")
        into, offset = into[count:], offset + count


def _write(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


class ScoreRuns:
    """Distinct scores and the weights that they have as positives and negatives.

    Rows up to `_base`, and the first `_safe` runs, are of commits; what comes after
    them is forgotten by `rollback`.
    """

    __slots__ = (
        "_base",
        "_buffer",
        "_count",
        "_file",
        "_folder",
        "_most",
        "_runs",
        "_safe",
    )

    def __init__(self, limit_bytes: int, folder: str | None) -> None:
        self._most = max(limit_bytes // _NEEDED, 2)  # rows
        self._folder = folder
        self._buffer = np.empty((3, min(_FIRST, self._most)))
        self._count = self._base = self._safe = 0
        self._runs: list[_Run] = []
        self._file: _File | None = None

    @property
    def nbytes(self) -> int:
        """The bytes in memory."""
        return self._buffer.nbytes

    @property
    def spilled_bytes(self) -> int:
        """The bytes in the file."""
        return sum(run.rows * _ROW for run in self._runs)

    @property
    def rows(self) -> int:
        """At least the number of distinct scores."""
        return self._count + sum(run.rows for run in self._runs)

    def add(self, scores: Floats, positive: Floats, negative: Floats) -> None:
        """Add scores with the weights that they have as positives and negatives."""
        for begin in range(0, len(scores), self._most // 2):
            end = min(begin + self._most // 2, len(scores))
            size = end - begin
            self._make_room(size)
            into = self._buffer[:, self._count : self._count + size]
            into[0], into[1], into[2] = (
                scores[begin:end],
                positive[begin:end],
                negative[begin:end],
            )
            self._count += size

    def extend(self, other: ScoreRuns) -> None:
        """Add the scores of another."""
        for chunk in other.scan():
            self.add(*chunk)

    def commit(self) -> None:
        """Keep what was added."""
        self._base, self._safe = self._count, len(self._runs)

    def rollback(self) -> None:
        """Forget what was added since the last `commit`."""
        self._count = self._base
        del self._runs[self._safe :]

    def scan(self) -> Iterator[Floats]:
        """Yield distinct scores, positives and negatives, from the highest score."""
        self._base = self._count = self._compact(0, self._count)
        if not self._runs:
            for end in range(self._count, 0, -_CHUNK):
                yield self._buffer[:, max(end - _CHUNK, 0) : end][:, ::-1]
            return
        yield from self._merged()

    def chunks(self) -> Iterator[Floats]:
        """Yield what a scan does, in chunks that another with this limit can hold."""
        size = min(self._most // 2, _SENT)
        for chunk in self.scan():
            for begin in range(0, chunk.shape[1], size):
                yield chunk[:, begin : begin + size]

    def written(self) -> Any:
        """Return the scores as values of JSON; ValueError if some are in a file."""
        if self._runs:
            raise ValueError(
                f"{format_bytes(self.spilled_bytes)} of scores are in a file, which "
                "JSON would hold in memory: merge evaluators in one process or by a "
                "ParallelWrapper, or use threshold_steps=200"
            )
        self._base = self._count = self._compact(0, self._count)
        return self._buffer[:, : self._count].tolist()

    def read(self, value: Any) -> None:
        """Take the scores from values of JSON; FormatError if they are none."""
        if not isinstance(value, list) or len(value) != 3:
            raise FormatError("scores should be three lists")
        count = len(value[0]) if isinstance(value[0], list) else 0
        scores = read_array(value[0], (count,), "scores", signed=True)
        self.add(scores, *read_array(value[1:], (2, count), "the counts of scores"))
        self.commit()

    # The buffer

    def _make_room(self, size: int) -> None:
        """Grow the buffer, join equal scores, or spill, until rows fit."""
        if self._count + size <= self._buffer.shape[1]:
            return
        if self._buffer.shape[1] < self._most:
            self._grow(
                min(max(self._buffer.shape[1] * 2, self._count + size), self._most)
            )
            if self._count + size <= self._buffer.shape[1]:
                return
        self._join_equal()
        if self._count <= self._most // 2:
            return
        if self._folder is not None:
            self._spill()
        elif self._count + size > self._buffer.shape[1]:
            limit = self._most * _NEEDED
            raise ResourceExhaustedError(
                f"An exact ROC holds {self._count} distinct scores and needs room for "
                f"{size} more.",
                requested_bytes=size * _NEEDED,
                in_use_bytes=self._count * _NEEDED,
                limit_bytes=limit,
                hint="Pass spill_to=folder, a larger byte_limit, or "
                "threshold_steps=200, whose state does not grow.",
            )

    def _grow(self, rows: int) -> None:
        buffer = np.empty((3, rows))
        buffer[:, : self._count] = self._buffer[:, : self._count]
        self._buffer = buffer

    def _join_equal(self) -> None:
        """Join equal scores, of commits and of what was added since, apart."""
        base = self._compact(0, self._base)
        end = self._compact(self._base, self._count)
        if base < self._base:
            moved = self._buffer[:, self._base : end].copy()
            self._buffer[:, base : base + moved.shape[1]] = moved
        self._count = base + end - self._base
        self._base = base

    def _compact(self, begin: int, end: int) -> int:
        """Sort rows and join those of equal scores; return their new end."""
        if end - begin < 2:
            return end
        rows = self._buffer[:, begin:end]
        if (rows[0, 1:] > rows[0, :-1]).all():
            return end
        order = rows[0].argsort()
        scores = rows[0][order]
        starts = np.flatnonzero(np.concatenate(([True], scores[1:] != scores[:-1])))
        found = len(starts)
        rows[0, :found] = scores[starts]
        del scores
        for column in rows[1:]:
            column[:found] = np.add.reduceat(column[order], starts)
        return begin + found

    # The file

    def _spill(self) -> None:
        """Write the rows as runs: those of commits first, then the others."""
        committed = self._run_of(0, self._base)
        added = self._run_of(self._base, self._count)
        if committed is not None:
            self._runs.append(committed)
            self._safe = len(self._runs)
        if added is not None:
            self._runs.append(added)
        self._count = self._base = 0

    def _run_of(self, begin: int, end: int) -> _Run | None:
        if begin == end:
            return None
        assert self._folder is not None
        if self._file is None or self._file.process != os.getpid():
            self._file = _File(self._folder)
        file, rows = self._file, end - begin
        run = _Run(file, file.size, rows)
        for column, values in enumerate(self._buffer[:, begin:end]):
            data = memoryview(values).cast("B")
            _write(file.descriptor, data, run.offset + 8 * column * rows)
        file.size += rows * _ROW
        return run

    def _backward(self, run: _Run, size: int) -> Iterator[Floats]:
        """Yield the rows of a run from its end, with descending scores."""
        for end in range(run.rows, 0, -size):
            yield run.read(max(end - size, 0), end)[:, ::-1]

    def _merged(self) -> Iterator[Floats]:
        """Merge the runs and the buffer by their scores, joining equal ones.

        All that is at least as high as the lowest score read of each run is complete.
        """
        size = max(self._most // (3 * len(self._runs)), _LEAST)
        sources = [self._backward(run, size) for run in self._runs]
        heads = [next(each) for each in sources]
        if self._count:
            heads.append(self._buffer[:, : self._count][:, ::-1])
            sources.append(iter(()))
        while heads:
            bound = max(head[0, -1] for head in heads)
            parts = []
            for i, head in enumerate(heads):
                taken = np.searchsorted(-head[0], -bound, side="right")
                parts.append(head[:, :taken])
                heads[i] = head[:, taken:]
                if not heads[i].shape[1]:
                    heads[i] = next(sources[i], heads[i])
            left = [i for i, head in enumerate(heads) if head.shape[1]]
            heads, sources = [heads[i] for i in left], [sources[i] for i in left]
            yield _joined(parts)


def _joined(parts: list[Floats]) -> Floats:
    """Return sorted parts as one, with descending and distinct scores."""
    rows = np.concatenate(parts, axis=1)
    order = (-rows[0]).argsort()
    rows = rows[:, order]
    scores = rows[0]
    starts = np.flatnonzero(np.concatenate(([True], scores[1:] != scores[:-1])))
    counts = np.add.reduceat(rows[1:], starts, axis=1)
    return np.vstack((scores[starts], counts))
