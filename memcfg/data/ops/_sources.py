"""Steps that read no other step: arrays, and slices of arrays."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._convert import as_leaf, as_scalars, read_only
from memcfg.data.elements._spec import spec_of
from memcfg.data.elements._structure import flatten, map_structure
from memcfg.data.ops._node import Node
from memcfg.data.rows._file_rows import mapped_column
from memcfg.data.rows._rows import ArrayColumn, Column, Rows, RowStream, in_order
from memcfg.workspaces import check_valid, scope_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from memcfg.data.engine._run import Run

__all__ = ["Slices", "Tensors", "sliced", "whole"]


@dataclass(frozen=True, eq=False)
class Tensors(Node):
    """One element."""

    arrays: Any
    name: str

    @property
    def inputs(self) -> tuple[Node, ...]:
        """None."""
        return ()

    @property
    def element_spec(self) -> Any:
        """The element's."""
        return spec_of(self.arrays)

    @property
    def cardinality(self) -> int:
        """One."""
        return 1

    def elements(self, run: Run) -> Iterator[Any]:  # numpydoc ignore=YD01
        """Yield the element."""
        for array in flatten(self.arrays):
            check_valid(array, "read it")
        yield map_structure(lambda array: as_scalars(read_only(array)), self.arrays)


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """Rows, in order."""

    source: Rows
    name: str

    @property
    def inputs(self) -> tuple[Node, ...]:
        """None."""
        return ()

    @property
    def element_spec(self) -> Any:
        """A row's."""
        return self.source.spec

    @property
    def cardinality(self) -> int:
        """How many rows there are."""
        return self.source.count

    def elements(self, run: Run) -> Iterator[Any]:
        """Iterate over the rows."""
        return self.source.elements()

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers."""
        return RowStream(self.source, in_order(self.source.count))

    @property
    def has_rows(self) -> bool:
        """True."""
        return True

    def row_source(self) -> Rows:
        """Return what the numbers mean."""
        return self.source


def whole(value: Any, name: str) -> Tensors:
    """Make the step of one element."""
    return Tensors(_arrays(value), name)


def sliced(value: Any, name: str) -> Slices:
    """Make the step of the slices of arrays."""
    arrays = _arrays(value, swap=False)
    leaves = flatten(arrays)
    for leaf in leaves:
        if leaf.ndim == 0:
            raise ValueError(
                f"slices are taken along the first axis, and {leaf[()]!r} has none; "
                "from_tensors takes it whole"
            )
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) > 1:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(f"arrays differ in length along the first axis: {shapes}")
    complaints: list[str] = []
    columns = map_structure(lambda array: _column(array, complaints), arrays)
    if complaints:
        warnings.warn(complaints[0], stacklevel=3)  # the line that makes the dataset
    return Slices(Rows(columns, lengths.pop()), name)


def _column(array: npt.NDArray[Any], complaints: list[str]) -> Column:
    """Read the rows of a mapped file from the file, where that can be."""
    column, complaint = mapped_column(array)
    if complaint:
        complaints.append(complaint)
    return ArrayColumn(array) if column is None else column


def _arrays(value: Any, *, swap: bool = True) -> Any:
    """Convert what a user hands over; what is made is outside of any workspace."""
    with scope_out():
        arrays = map_structure(lambda leaf: as_leaf(leaf, swap=swap), value)
    if not flatten(arrays):
        raise ValueError(f"an element has at least one leaf, and {value!r} has none")
    return arrays
