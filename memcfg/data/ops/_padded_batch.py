"""Elements of different shapes in batches: `Dataset.padded_batch`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._checks import count, flag
from memcfg.data.elements._padding import (
    as_padded_shape,
    check_paddings,
    paddings_of,
    up_to,
)
from memcfg.data.elements._spec import TensorSpec, stacked
from memcfg.data.elements._structure import flatten, pack, same_structure
from memcfg.data.ops._batch import batches, cardinality_of_batches, reader_of
from memcfg.data.ops._batch_maker import BatchMaker
from memcfg.data.ops._map import Map, unmapped
from memcfg.data.ops._node import UnaryNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from memcfg.data.elements._padding import Padding
    from memcfg.data.engine._run import Run

__all__ = ["PaddedBatch"]


@dataclass(frozen=True, eq=False)
class PaddedBatch(UnaryNode):
    """Elements in batches, padded to one shape."""

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
        """Begin a pass."""
        source, function = self.source, None
        if isinstance(source, Map) and source.calls is None:
            source, function = unmapped(source)
        min_size = self.batch_size if self.drop_remainder else 1
        maker = _PaddingMaker(run, self.batch_size, min_size, function, is_certain=True)
        maker.paddings = lambda element: paddings_of(
            self.padded_shapes, self.padding_values, element
        )
        return batches(maker, reader_of(source, run))


class _PaddingMaker(BatchMaker):
    """Makes padded batches: the elements must all be there to know its shape."""

    paddings: Callable[[Any], list[Padding]]

    def made(self, elements: Iterator[Any], target: AbstractContextManager[Any]) -> Any:
        """Make a batch."""
        found = [self.applied(element) for element in islice(elements, self.max_size)]
        if len(found) < self.min_size:
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
        with target:
            arrays = [np.empty((len(found), *size), kind) for _, _, size, kind in plan]
        for array, (padding, leaves, _, _) in zip(arrays, plan, strict=True):
            padding.fill(array, leaves)
        return pack(first, arrays)
