"""Arrays for predictions, in plain memory or in a workspace of the caller.

Programs write outputs of large samples straight into them, see `lies_outside`. They
need an address that is a multiple of 64, which the rows of a batch may not have; such a
batch is written up to 63 bytes before its place and then moved.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.runtime import aligned_empty
from memcfg.units import ALIGNMENT
from memcfg.workspaces import Workspace, WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.layers._layer import SymbolicTensor
    from memcfg.nn.training._compile_config import Modes

__all__ = ["Predictions", "Rows", "check_workspace", "lies_outside"]

Array = npt.NDArray[np.float32]

# Bytes of a sample from which its output is written into the result instead of copied.
# It does not depend on the batch, so that larger batches never need less memory.
_LARGE = 4096


def lies_outside(output: SymbolicTensor) -> bool:
    """Return whether programs write an output straight into the result."""
    dtype = np.dtype(output.sample_dtype)
    return prod(output.sample_shape) * dtype.itemsize >= _LARGE


class Rows:
    """The rows of results that receive the outputs of one batch."""

    __slots__ = ("_shifts", "begin", "end", "wholes")

    def __init__(self, wholes: Sequence[Array], begin: int, end: int) -> None:
        self.wholes = wholes
        self.begin = begin
        self.end = end
        self._shifts: list[_Shift] = []

    def arrays(self) -> list[Array]:
        """Return the rows of each output."""
        return [whole[self.begin : self.end] for whole in self.wholes]

    def spare(self) -> Rows:
        """Return rows of the same shapes in arrays of their own."""
        made: list[Any] = [
            aligned_empty(each.shape, each.dtype) for each in self.arrays()
        ]
        return Rows(made, 0, self.end - self.begin)

    def part(self, begin: int, end: int) -> Rows:
        """Return the rows of a part of the batch."""
        return Rows(self.wholes, self.begin + begin, self.begin + end)

    def target(self, output: int) -> Array:
        """Return an array to write an output to, at a multiple of 64 bytes.

        It has the rows, or overlaps them until `settle` moves its values there.
        """
        whole = self.wholes[output]
        rows = whole[self.begin : self.end]
        excess = self.begin * whole.strides[0] % ALIGNMENT
        if not excess:
            return rows
        raw = whole.reshape(-1).view(np.uint8).data
        begin = self.begin * whole.strides[0]
        self._shifts.append(_Shift(raw, begin, rows.nbytes, excess))
        return np.ndarray(rows.shape, rows.dtype, raw, begin - excess)

    def settle(self) -> None:
        """Move outputs that were written before their rows."""
        while self._shifts:
            self._shifts.pop().move()


class _Shift:
    """An output that is written some bytes before its place."""

    def __init__(self, raw: memoryview, begin: int, nbytes: int, excess: int) -> None:
        self._raw = raw
        self._begin = begin
        self._nbytes = nbytes
        self._excess = excess
        self._before = bytes(raw[begin - excess : begin])  # of the previous batch

    def move(self) -> None:
        """Move the output to its place and restore the bytes before it."""
        begin, start = self._begin, self._begin - self._excess
        # As memmove: the ranges overlap, for which NumPy would take a copy of them.
        self._raw[begin : begin + self._nbytes] = self._raw[
            start : start + self._nbytes
        ]
        self._raw[start:begin] = self._before


class Predictions:
    """The outputs of a model for a number of samples, or None if it is unknown."""

    def __init__(
        self,
        samples: int | None,
        outputs: Sequence[SymbolicTensor],
        workspace: Workspace | None,
    ) -> None:
        self._outputs = outputs
        self._workspace = workspace
        # one array per batch, if the number is unknown
        self._pieces: list[list[Array]] = []
        self._whole = [] if samples is None else self._make(samples)
        self._end = 0

    def at(self, outputs: Sequence[SymbolicTensor]) -> Predictions:
        """Return the same, with the outputs of the next batch, of another length."""
        self._outputs = outputs
        return self

    def _make(self, samples: int) -> list[Array]:
        empty = None if self._workspace is None else self._workspace.empty
        return self._made(samples, empty)

    def _made(self, samples: int, empty: Callable[..., Array] | None) -> list[Array]:
        return [
            (empty or _empty(each))(
                (samples, *each.sample_shape), np.dtype(each.sample_dtype)
            )
            for each in self._outputs
        ]

    def next_rows(self, size: int) -> Rows:
        """Return the rows that receive the outputs of the next batch."""
        begin, self._end = self._end, self._end + size
        if self._whole:
            return Rows(self._whole, begin, self._end)
        self._pieces.append(self._made(size, None))
        return Rows(self._pieces[-1], 0, size)

    def arrays(self) -> list[Array]:
        """Return an array for each output; pieces are freed as they are copied."""
        if self._whole:
            return self._whole
        shapes = [
            {piece.shape[1:] for piece in each}
            for each in zip(*self._pieces, strict=True)
        ]
        if any(len(each) > 1 for each in shapes):
            shown = " and ".join(
                map(str, sorted(next(e for e in shapes if len(e) > 1)))
            )
            raise ValueError(
                f"predict returns one array, and batches have outputs of shapes {shown}"
                ": pad them to one length, or call predict_on_batch for each"
            )
        self._whole, self._end = self._make(self._end), 0
        self._pieces.reverse()
        while self._pieces:
            pieces = self._pieces.pop()
            rows = self.next_rows(len(pieces[0])).arrays()
            for row, piece in zip(rows, pieces, strict=True):
                row[...] = piece
        return self._whole


def _empty(output: SymbolicTensor) -> Callable[..., Any]:
    """Return the function that makes an array for an output in plain memory."""
    return aligned_empty if lies_outside(output) else np.empty


def check_workspace(workspace: Workspace | None, modes: Modes) -> None:
    """Refuse a workspace that cannot hold predictions."""
    if workspace is None:
        return
    if not isinstance(workspace, Workspace):
        raise TypeError(
            f"workspace is a Workspace or None, not {workspace!r}: pass "
            "memcfg.workspace(name)"
        )
    if modes.inference is WorkspaceMode.NONE:
        raise WorkspaceConfigError(
            "the model was compiled with inference_workspace_mode='none', without "
            f"workspaces, so its output cannot go into {workspace.name!r}: "
            "compile it with another mode, or copy the output: workspace.array(output)"
        )
    if not workspace.is_open:
        raise WorkspaceError(
            f"workspace {workspace.name!r} is not open: call predict inside of `with` "
            "it, and use what it returns there"
        )
