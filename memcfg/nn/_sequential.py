"""Models that are a chain of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._foundation import Foundation
from memcfg.nn._input import Input, InputLayer, sample_shape
from memcfg.nn._layer import Layer
from memcfg.nn._model import Model
from memcfg.nn._names import automatic_name
from memcfg.nn._network import Network
from memcfg.nn._symbolic import Shape, SymbolicTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sequential"]


class Sequential(Model):
    """A chain of layers.

    If it starts with an `Input`, shapes are known at once; otherwise from the first
    data, or from `build`.

    Parameters
    ----------
    layers : sequence of Layer, optional
        From input to output; the first may be an `Input`.
    name : str, optional
        None: ``"sequential"``, ``"sequential_1"``, ...

    Raises
    ------
    TypeError
        If something is not a layer.
    ValueError
        If two layers have one name, a layer cannot take what the one before gives,
        or a layer with weights belongs to another model.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((8, 8, 1)), mc.nn.Conv2D(4, 3),
    ...                           mc.nn.Flatten(), mc.nn.Dense(10)])
    >>> model.count_params()
    1490
    """

    def __init__(
        self,
        layers: Sequence[Layer | SymbolicTensor] | None = None,
        name: str | None = None,
    ) -> None:
        Foundation.__init__(
            self, automatic_name("sequential") if name is None else name
        )
        self._stack: list[Layer] = []
        self._input: SymbolicTensor | None = None
        if layers is not None and not isinstance(layers, list | tuple):
            raise TypeError(f"Sequential takes a list of layers, not {layers!r}")
        for layer in layers or ():
            self.add(layer)

    @property
    def layers(self) -> list[Layer]:
        """The layers, in order; an `Input` is not counted, as in Keras."""
        return list(self._stack)

    def add(self, layer: Layer | SymbolicTensor) -> None:
        """Append a layer.

        Parameters
        ----------
        layer : Layer
            The layer; the first may be the result of `Input`.

        Raises
        ------
        TypeError
            If it is not a layer.
        ValueError
            If its name is taken, it cannot take what the layer before gives, or it
            belongs to another model; the model is as it was.
        RuntimeError
            If the model is compiled, or was built from data.
        """
        if self._setup is not None or (self.built and self._input is None):
            raise RuntimeError(
                f"{self.name!r} is compiled or built: add all layers before that"
            )
        if isinstance(layer, SymbolicTensor):
            self._start(layer)
            return
        if not isinstance(layer, Layer) or isinstance(layer, InputLayer):
            raise TypeError(
                "Sequential takes layers, and an Input as the first of them; models "
                f"inside models are not supported yet. Got {layer!r}"
            )
        if any(layer.name == other.name for other in self._stack):
            raise ValueError(
                f"layer names must be unique in a model; {layer.name!r} is taken"
            )
        if self._input is not None:
            self._extend(self._built_network().outputs, [layer])
        self._stack.append(layer)

    def build(self, input_shape: Sequence[int | None]) -> None:
        """Find all shapes before there is data.

        Parameters
        ----------
        input_shape : sequence of int or None
            As in Keras, the batch first: ``(None, 28, 28, 1)``.

        Raises
        ------
        RuntimeError
            If the model is built already.
        TypeError, ValueError
            If the shape is wrong or a layer cannot take it; the model is as it was.
        """
        if not isinstance(input_shape, list | tuple) or len(input_shape) < 2:
            raise ValueError(
                f"input_shape counts the batch, as (None, 28, 28, 1); not {input_shape}"
            )
        with self._lock:
            if self.built:
                raise RuntimeError(f"{self.name!r} is built already")
            self._build(sample_shape(tuple(input_shape[1:])))

    def _start(self, tensor: SymbolicTensor) -> None:
        if not isinstance(tensor.node.layer, InputLayer):
            raise TypeError(
                f"Sequential takes layers, not the result of one: {tensor!r}"
            )
        if self._stack or self._input is not None:
            raise ValueError("an Input can only be the first of a Sequential")
        self._adopt(Network(tensor, tensor))
        self._input = tensor

    def _build(self, shape: Shape) -> None:
        if not self._stack:
            raise ValueError(f"{self.name!r} has no layers")
        self._extend(Input(shape), self._stack)

    def _unbuild(self) -> None:
        if self._programs is not None:
            self._programs.close()
        self._network = self._programs = None
        for layer in self._stack:
            layer.release()

    def _extend(self, tensor: SymbolicTensor, layers: Sequence[Layer]) -> None:
        """Call layers one after the other; as they were if one of them cannot."""
        start = tensor if self._network is None else self._network.inputs
        fresh = [layer for layer in layers if layer.weight_specs is None]
        try:
            for layer in layers:
                layer.check_free(self)
                tensor = layer(tensor)
            self._adopt(Network(start, tensor))
        except BaseException:
            for layer in fresh:
                layer.release()
            raise
