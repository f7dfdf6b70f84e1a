"""`Pipeline`: layers one after the other, on data or in a model."""

from __future__ import annotations

from typing import Any

from memcfg.nn.layers._layer import Layer, SymbolicTensor, pattern
from memcfg.nn.layers.images._image_layer import _ImageLayer, check_mode


class Pipeline(Layer):
    """Apply layers one after the other, such as those that vary images.

    Parameters
    ----------
    layers : sequence of Layer
        The layers. On arrays, as in `Dataset.map`, they may be of any kind; in a model,
        all must compute in models.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError
        If an entry is not a layer.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> L = mc.nn.layers
    >>> vary = L.Pipeline([L.RandomFlip("horizontal"), L.RandomRotation(0.1)])
    >>> vary(np.zeros((2, 8, 8, 3), np.float32)).shape
    (2, 8, 8, 3)
    """

    __slots__ = ("layers",)

    def __init__(self, layers: Any, *, name: str | None = None) -> None:
        self.layers = list(layers)
        for each in self.layers:
            if not isinstance(each, Layer):
                raise TypeError(f"Pipeline accepts layers, got {each!r}")
        super().__init__(name)

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Compute on arrays, or dicts of them, at once, or connect to a tensor."""
        symbols: list[Any] = []
        pattern((inputs, more, options), symbols, SymbolicTensor)
        if symbols:
            return super().__call__(inputs, *more, **options)
        return self._on_arrays(inputs, *more, **options)

    def _sublayers(self) -> list[Layer]:
        """Return the layers."""
        return list(dict.fromkeys(self.layers))

    def _on_arrays(self, inputs: Any, training: bool = True) -> Any:
        check_mode(training, "Pipeline")
        for layer in self.layers:
            if isinstance(layer, Pipeline | _ImageLayer):
                inputs = layer(inputs, training=training)
            else:
                inputs = layer(inputs)
        return inputs

    def call(self, inputs: Any) -> Any:
        """Connect the layers."""
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs
