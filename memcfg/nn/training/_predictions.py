"""Arrays for predictions, in plain memory or in a workspace of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from memcfg.errors import WorkspaceConfigError, WorkspaceError
from memcfg.workspaces import Workspace, WorkspaceMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.layers._layer import SymbolicTensor
    from memcfg.nn.training._compile_config import Modes

__all__ = ["Predictions", "check_workspace"]

Array = npt.NDArray[np.float32]


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
        empty = np.empty if self._workspace is None else self._workspace.empty
        return self._made(samples, empty)

    def _made(self, samples: int, empty: Callable[..., Array]) -> list[Array]:
        return [
            empty((samples, *each.sample_shape), np.dtype(each.sample_dtype))
            for each in self._outputs
        ]

    def next_rows(self, size: int) -> list[Array]:
        """Return the arrays that receive the outputs of the next batch."""
        begin, self._end = self._end, self._end + size
        if self._whole:
            return [array[begin : self._end] for array in self._whole]
        self._pieces.append(self._made(size, np.empty))
        return self._pieces[-1]

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
            for rows, piece in zip(self.next_rows(len(pieces[0])), pieces, strict=True):
                rows[...] = piece
        return self._whole


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
