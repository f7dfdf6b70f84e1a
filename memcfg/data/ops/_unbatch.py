"""Batches taken apart: `Dataset.unbatch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data._closing import closing
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.elements._structure import flatten, map_structure
from memcfg.data.ops._node import INFINITE, UNKNOWN, UnaryNode
from memcfg.data.rows._readers import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run

__all__ = ["Unbatch"]

_END = object()


@dataclass(frozen=True, eq=False)
class Unbatch(UnaryNode):
    """The rows of batches."""

    name: str

    def __post_init__(self) -> None:
        if not self.source.is_probed:
            map_structure(_row_spec, self.source.element_spec)

    @property
    def element_spec(self) -> Any:
        """That of the step before, without its first axis."""
        return map_structure(_row_spec, self.source.element_spec)

    @property
    def cardinality(self) -> int:
        """The number of rows, where all batches are known to be of one size."""
        total = self.source.cardinality
        if total == INFINITE:
            return INFINITE
        if total < 0 or self.source.is_probed:
            return UNKNOWN
        first = flatten(self.source.element_spec)[0]
        size = first.shape[0] if first.shape else None
        return total * size if size else UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass."""
        return _rows(self.source.elements(run), run)


def _rows(batches: Iterator[Any], run: Run) -> Iterator[Any]:
    with closing(batches):
        while True:
            with run.outside():  # a batch is kept until its last row has been pulled
                batch = next(batches, _END)
            if batch is _END:
                return
            yield from rows_of(batch)
            del batch


def _row_spec(spec: TensorSpec) -> TensorSpec:
    if spec.shape is None:
        return TensorSpec(None, spec.dtype)
    if not spec.shape:
        raise ValueError("unbatch needs arrays with a first axis, and this has none")
    return TensorSpec(spec.shape[1:], spec.dtype)
