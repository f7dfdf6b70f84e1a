"""What steps that give out another step's elements have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memcfg.data.ops._node import Node

__all__ = ["Selection"]


@dataclass(frozen=True, eq=False)
class Selection(Node):
    """Some of the elements of another step, in some order.

    Parameters
    ----------
    source : Node
        The step before.
    """

    source: Node

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @property
    def element_spec(self) -> Any:
        """That of the step before."""
        return self.source.element_spec

    @property
    def has_rows(self) -> bool:
        """As the step before."""
        return self.source.has_rows
