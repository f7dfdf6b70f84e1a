"""A step of a pipeline, as a value: what it reads, and how it makes a pass.

Two forms of a pass give the same elements. `elements` yields element after element.
`rows` is for data that can be indexed: the pass is a stream of row numbers, which
shuffling, repeating and taking rearrange at next to no cost, and a batch is gathered at
once.

Memory: who pulls decides where fresh arrays lie. An element may lie in the workspace
that is current when it is pulled, and then is the puller's until it pulls again. A node
that keeps anything for longer pulls inside ``scope_out()``. No generator yields
inside a ``with`` block of a workspace or an allocator.
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
    """A step of a pipeline. It never changes, and makes any number of passes."""

    name: str  # for threads, messages and reports

    @cached_property
    def tuned_state(self) -> dict[str, dict[str, Any]]:
        """What passes that end here have learned of their steps, by name."""
        return {}

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The steps before."""
        return ()

    @property
    @abstractmethod
    def element_spec(self) -> Any:
        """What the elements are: a nest of `TensorSpec`."""

    @property
    def is_probed(self) -> bool:
        """Whether `element_spec` has to run the pipeline, users' functions included."""
        return any(node.is_probed for node in self.inputs)

    @property
    def cardinality(self) -> int:
        """How many elements a pass has; `INFINITE` or `UNKNOWN`."""
        return UNKNOWN

    @abstractmethod
    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass, and those of the steps before, as tf.data does.

        A seeded shuffle draws a seed whenever a pass begins, so this is not a generator
        itself, and may return one.
        """

    @property
    def has_rows(self) -> bool:
        """Whether `rows` can make a pass; asking begins none."""
        return False

    def rows(self, run: Run) -> RowStream:
        """Make a pass over row numbers, if `has_rows`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class UnaryNode(Node):
    """A step over one other step, of whose elements nothing is said to change."""

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
