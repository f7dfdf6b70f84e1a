"""Batches taken apart: `Dataset.unbatch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg.data._closing import closing
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.elements._structure import flatten, is_nest, map_structure, pack
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run

__all__ = ["Unbatch", "rows_of"]

_END = object()


@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """The rows of batches.

    Parameters
    ----------
    source : Node
        The step before.
    name : str
        For messages.

    Raises
    ------
    ValueError
        If it is known that elements have no first axis.
    """

    source: Node
    name: str

    def __post_init__(self) -> None:
        if not self.source.is_probed:
            map_structure(_row_spec, self.source.element_spec)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @property
    def element_spec(self) -> Any:
        """That of the step before, without its first axis.

        Raises
        ------
        ValueError
            If there is no first axis.
        """
        return map_structure(_row_spec, self.source.element_spec)

    @property
    def cardinality(self) -> int:
        """The number of rows, where all batches are known to be of one size.

        As in tf.data, it is unknown where batches are known to have no rows.
        """
        total = self.source.cardinality
        if total == INFINITE:
            return INFINITE
        if total < 0 or self.source.is_probed:
            return UNKNOWN
        first = flatten(self.source.element_spec)[0]
        size = first.shape[0] if first.shape else None
        return total * size if size else UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over rows, which are views of the batches.
        """
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


def rows_of(batch: Any) -> Iterator[Any]:
    """Iterate over the rows of a batch, with as little Python for each as possible.

    Parameters
    ----------
    batch : nest of numpy.ndarray
        The batch.

    Returns
    -------
    iterator
        Over nests of views and NumPy scalars.

    Raises
    ------
    ValueError
        If an array has no first axis, or those of two arrays differ.
    """
    leaves = flatten(batch)
    for index, leaf in enumerate(leaves):
        if not leaf.ndim:
            raise ValueError(
                f"unbatch needs arrays with a first axis: component {index} is a number"
            )
        if len(leaf) != len(leaves[0]):
            raise ValueError(
                "unbatch needs components of one length: component 0 has "
                f"{len(leaves[0])} rows, component {index} has {len(leaf)}"
            )
    if not is_nest(batch):
        return iter(batch)
    rows = zip(*leaves, strict=True)
    if type(batch) is tuple and not any(map(is_nest, batch)):
        return rows
    form = map_structure(lambda _: None, batch)
    return (pack(form, row) for row in rows)


def _row_spec(spec: TensorSpec) -> TensorSpec:
    if spec.shape is None:
        return TensorSpec(None, spec.dtype)
    if not spec.shape:
        raise ValueError("unbatch needs arrays with a first axis, and this has none")
    return TensorSpec(spec.shape[1:], spec.dtype)
