"""Symbolic tensors: what layers are called on before there is any data.

Owns the record of which layer was called on what. Refuses arrays and graphs: a
model is turned into a graph once its batch size is known.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NoReturn

from memcfg.nn._attributes import Settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.nn.layers._layer import Layer

__all__ = ["Node", "Shape", "SymbolicTensor", "show_shape"]

Shape = tuple[int, ...]  # of one sample, the batch left out

_order: Iterator[int] = itertools.count()  # calls of this process, in time


class SymbolicTensor(Settled):
    """The result of a layer that was called on other symbolic tensors.

    Parameters
    ----------
    sample_shape : tuple of int
        Its shape without the batch.
    node : Node
        The call that made it.
    """

    __slots__ = ("node", "sample_shape")

    def __init__(self, sample_shape: Shape, node: Node) -> None:
        self.sample_shape = sample_shape
        self.node = node

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its shape; None stands for the batch."""
        return (None, *self.sample_shape)

    @property
    def dtype(self) -> str:
        """Always ``"float32"``."""
        return "float32"

    @property
    def name(self) -> str:
        """The name of the layer that made it."""
        return self.node.layer.name

    def __repr__(self) -> str:
        return f"<SymbolicTensor shape={self.shape} of layer {self.name!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} is a call of a layer, and no copy of it could be: copy models, "
            "or call layers again"
        )

    def __array__(self, *_args: object, **_options: object) -> None:
        raise TypeError(f"{self!r} has no values: it stands for data to come")


class Node(Settled):
    """One call of a layer.

    Attributes
    ----------
    layer : Layer
        The layer that was called.
    inputs : tuple of SymbolicTensor
        What it was called on; empty for an input.
    output : SymbolicTensor
        What it returned.
    order : int
        Its place among all calls of this process: inputs come before outputs.
    """

    __slots__ = ("inputs", "layer", "order", "output")

    def __init__(
        self, layer: Layer, inputs: tuple[SymbolicTensor, ...], sample_shape: Shape
    ) -> None:
        self.layer = layer
        self.inputs = inputs
        self.order = next(_order)
        self.output = SymbolicTensor(sample_shape, self)


def show_shape(sample_shape: Shape) -> str:
    """Write a shape as Keras does, the batch as None.

    Parameters
    ----------
    sample_shape : tuple of int
        A shape without the batch.

    Returns
    -------
    str
        Such as ``"(None, 28, 28, 1)"``.
    """
    return str((None, *sample_shape))
