"""Reads of weights that calls of layers move, at their place in a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from memcfg.nn.layers._layer import Layer, Node, SymbolicTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope, Variable

__all__ = ["Reading", "read_moving"]


class Reading(Layer):
    """A read of a weight after the calls before it; it is made for one node.

    The tracer of a function knows what these calls have made of the weight.
    """

    __slots__ = ("variable",)

    arity: ClassVar[int | None] = None

    def __init__(self, variable: Variable) -> None:
        super().__init__()
        self.variable = variable

    def trace(self, scope: Scope, inputs: Sequence[int]) -> NoReturn:
        """Raise: a read belongs to a function."""
        raise RuntimeError("weights are read by a function, not by a layer")


def read_moving(variable: Variable) -> SymbolicTensor:
    """Return the value of a moving weight at this place of a function."""
    results: Any = [(variable.shape, variable.dtype)]
    return Node(Reading(variable), (), results, whole=True).outputs[0]
