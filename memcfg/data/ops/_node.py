"""The base classes of the steps of a pipeline.

There are two forms of a pass, with the same elements. `elements` yields one element
after the other. `rows` is for data that can be indexed: the pass is a stream of row
numbers, which `shuffle`, `repeat` and `take` rearrange at little cost, and a batch is
gathered at once.

Memory: new arrays lie in the workspace that is current when an element is pulled, and
are valid until the next element is pulled. A node that keeps an element for longer
pulls it inside ``scope_out()``. No generator yields inside a ``with`` block of a
workspace or an allocator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memcfg._cached import cached_property

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import RowStream

INFINITE = -1  # a cardinality, as in tf.data
UNKNOWN = -2


class Node(ABC):
    """A step of a pipeline: immutable, for any number of passes."""

    name: str  # for threads, messages and reports

    @cached_property
    def tuned_state(self) -> dict[str, dict[str, Any]]:
        """AUTOTUNE's state of each step, by name, for passes that end at this step."""
        return {}

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The steps that this one reads."""
        return ()

    @property
    @abstractmethod
    def element_spec(self) -> Any:
        """The specs of an element: a nest of `TensorSpec`."""

    @property
    def is_probed(self) -> bool:
        """Whether `element_spec` has to run the pipeline, users' functions included."""
        return any(node.is_probed for node in self.inputs)

    @property
    def has_datasets(self) -> bool:
        """Whether elements consist of datasets, as those of a window do."""
        return any(node.has_datasets for node in self.inputs)

    @property
    def repeats(self) -> bool:
        """Whether each pass gives the same elements in the same order.

        Users' functions and generators are taken to.
        """
        return all(node.repeats for node in self.inputs)

    @property
    def cardinality(self) -> int:
        """Number of elements of a pass, `INFINITE` or `UNKNOWN`."""
        return UNKNOWN

    @abstractmethod
    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass, and passes of the inputs, as tf.data does.

        A seeded shuffle draws a seed when a pass begins. Implementations may therefore
        return a generator, but not be one.
        """

    @property
    def has_rows(self) -> bool:
        """Whether `rows` is supported."""
        return False

    def rows(self, run: Run) -> RowStream:
        """Begin a pass over row numbers, if `has_rows`."""
        raise NotImplementedError


def require_arrays(source: Node, what: str) -> None:
    """Raise TypeError if elements are datasets, where arrays are needed."""
    if source.has_datasets:
        raise TypeError(
            f"{what} takes arrays, but window gives datasets: use flat_map, as in "
            "window(n).flat_map(lambda window: window.batch(n))"
        )


@dataclass(frozen=True, eq=False)
class UnaryNode(Node):
    """A step over one source, with its specs and cardinality by default."""

    source: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.source,)

    @property
    def element_spec(self) -> Any:
        return self.source.element_spec

    @property
    def cardinality(self) -> int:
        return self.source.cardinality
