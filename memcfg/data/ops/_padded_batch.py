"""Elements of different shapes in batches: `Dataset.padded_batch`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._checks import count, flag
from memcfg.data.elements._spec import TensorSpec, stacked
from memcfg.data.elements._structure import flatten, pack, same_structure
from memcfg.data.ops._batch import batches, cardinality_of_batches, drawer_of
from memcfg.data.ops._batch_maker import Maker
from memcfg.data.ops._map import Map, unmapped
from memcfg.data.ops._node import Node
from memcfg.data.ops._padding_arguments import (
    as_padded_shape,
    check_paddings,
    paddings_of,
    up_to,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from memcfg.data.engine._run import Run
    from memcfg.data.ops._padding import Padding

__all__ = ["PaddedBatch"]


@dataclass(frozen=True, eq=False)
class PaddedBatch(Node):
    """Elements in batches, padded to one shape.

    Parameters
    ----------
    source : Node
        The step before.
    batch_size : int
        Elements a batch, at least 1.
    padded_shapes : nest of sequence of int and None, or None
        What is padded to; None, and -1 or None for a size, is the longest of the batch.
    padding_values : nest of scalar and None, or None
        What the rest is filled with; None is zero, False or no text.
    drop_remainder : bool
        Whether a last batch with fewer elements is left out.
    name : str
        For messages.

    Raises
    ------
    TypeError
        If a number is none, or the switch no bool.
    ValueError
        If `batch_size` is below 1, or it is known that elements cannot be padded so.
    """

    source: Node
    batch_size: int
    padded_shapes: Any
    padding_values: Any
    drop_remainder: bool
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", count(self.batch_size, "batch_size"))
        flag(self.drop_remainder, "drop_remainder")
        if not self.source.is_probed:
            spec = self.source.element_spec
            check_paddings(self.padded_shapes, self.padding_values, spec)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @property
    def element_spec(self) -> Any:
        """That of the step before, padded, with an axis in front."""
        spec = self.source.element_spec
        if self.padded_shapes is not None:
            shapes = up_to(spec, self.padded_shapes, "padded_shapes")
            pairs = zip(shapes, flatten(spec), strict=True)
            leaves = [
                TensorSpec(as_padded_shape(one), leaf.dtype) for one, leaf in pairs
            ]
            spec = pack(spec, leaves)
        return stacked(spec, self.batch_size if self.drop_remainder else None)

    @property
    def cardinality(self) -> int:
        """The number of batches."""
        return cardinality_of_batches(
            self.source, self.batch_size, drop_remainder=self.drop_remainder
        )

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the batches.
        """
        source, function = self.source, None
        if type(source) is Map:
            source, function = unmapped(source)
        least = self.batch_size if self.drop_remainder else 1
        padder = _Padder(run, self.batch_size, least, function, is_certain=True)
        padder.paddings = lambda element: paddings_of(
            self.padded_shapes, self.padding_values, element
        )
        return batches(padder, drawer_of(source, run))


class _Padder(Maker):
    """Makes padded batches: the elements must all be there to know its shape."""

    paddings: Callable[[Any], list[Padding]]

    def made(self, elements: Iterator[Any], place: AbstractContextManager[Any]) -> Any:
        """Make a batch.

        Parameters
        ----------
        elements : iterator
            Where the elements come from.
        place : context manager
            Where the batch's arrays are to be made.

        Returns
        -------
        nest of numpy.ndarray or None
            None at the end.
        """
        found = [self.applied(element) for element in islice(elements, self.room)]
        if len(found) < self.least:
            return None
        first = found[0]
        for number, element in enumerate(found):
            if not same_structure(first, element):
                raise TypeError(
                    "the elements of a batch must be of one structure, and element "
                    f"{number} is not like element 0"
                )
        columns = list(zip(*map(flatten, found), strict=True))
        paddings = self.paddings(first)
        plan = [
            (padding, leaves, padding.target(leaves), padding.dtype(leaves))
            for padding, leaves in zip(paddings, columns, strict=True)
        ]
        with place:
            arrays = [np.empty((len(found), *size), kind) for _, _, size, kind in plan]
        for array, (padding, leaves, _, _) in zip(arrays, plan, strict=True):
            padding.fill(array, leaves)
        return pack(first, arrays)
