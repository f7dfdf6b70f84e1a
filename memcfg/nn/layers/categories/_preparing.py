"""The base of layers that prepare the data of a model on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.errors import GraphError
from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._layer import InputLayer, show_shape
from memcfg.nn.layers.categories._data_layer import _DataLayer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.nn.layers._layer import Scope, Shape, SymbolicTensor, WeightSpec

_WHERE = "call it in Dataset.map, before the data reach the model"


class _Preparing(_DataLayer):
    """A layer of arrays that may follow an `Input` of a model.

    The model computes it on the host for each batch, and its program reads the result.
    """

    __slots__ = ()

    prepares: ClassVar[bool] = True

    def _prepared(self, shape: Shape) -> tuple[Shape, str]:
        """Return the shape and dtype of the result for one sample."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create a layer; a file may hold its vocabulary beside the configuration."""
        given = dict(config)
        size = given.pop("vocabulary_size", None)
        made = super().from_config(given)
        if size is not None:
            made._expect(integer(size, f"{cls.__name__}: vocabulary_size", 0))
        return made

    def _expect(self, size: int) -> None:
        """Note the size of a vocabulary that is read later."""
        raise NotImplementedError

    def _rows(self, shape: Shape, mode: str, depth: int) -> tuple[Shape, str]:
        """Return the shape and dtype of encoded numbers."""
        if mode == "int":
            return shape, "int32"
        kept = shape[:-1] if mode != "one_hot" or shape[-1:] == (1,) else shape
        return (*kept, depth), "float32"

    def _operands(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor]
    ) -> tuple[SymbolicTensor, ...]:
        what = type(self).__name__
        found: Any = inputs if isinstance(inputs, list | tuple) else [inputs]
        if len(found) != 1 or found[0].whole:
            raise TypeError(f"{what} computes on arrays, not in a function: {_WHERE}")
        (operand,) = found
        layer = operand.node.layer
        if not (isinstance(layer, InputLayer) or layer.prepares):
            raise TypeError(
                f"{what} computes on arrays, not on what the layer {layer.name!r} of a "
                "model gives: call it on an Input"
            )
        if operand.twin is not None:
            raise ValueError(
                f"{what} prepares samples of one shape, and "
                f"{show_shape(operand.open_shape)} has an axis of any length: give "
                "Input its length"
            )
        return (operand,)

    def _infer(
        self, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[type | None, list[tuple[Shape, str]]]:
        """Return no structure, and the shape and dtype of the result."""
        del specs
        return None, [self._prepared(operands[0].sample_shape)]

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return what the program reads, which is prepared."""
        if "/" in scope.name:
            raise GraphError(
                f"{type(self).__name__} prepares the data of a model, not of a model "
                "or layer within one: call it on an Input of the outer model"
            )
        return inputs[0]
