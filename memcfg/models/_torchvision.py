"""Weights of torchvision's models, by the names of its modules.

Layers with weights have the names of torchvision's modules, so a name in a file is that
of a layer and a parameter: ``layer1.0.conv1.weight``.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg import nn
from memcfg.errors import WeightsError
from memcfg.nn._weight_files import Entry, read_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn import Layer, Model

__all__ = ["load_torchvision_weights"]

Floats = np.ndarray[Any, np.dtype[np.float32]]

_COUNTER = "num_batches_tracked"  # of batch normalisation; not used
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # classifiers that models may lack
_OLD = re.compile(r"(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)")  # before 2018
_NORMS = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


class _Source(NamedTuple):
    """The entry of a file for a weight, and its conversion to our layout."""

    entry: Entry
    arrange: Callable[[Floats], Floats]


def load_torchvision_weights(model: Model, filepath: str | os.PathLike[str]) -> None:
    """Load the weights of torchvision's model of the same name.

    Kernels are transposed to channels-last. The rows of the first dense layer after a
    feature map are permuted, as its elements are flattened in another order.

    Parameters
    ----------
    model : Model
        A model of `memcfg.models` that torchvision has, too: `alexnet`, `vgg16`,
        `vgg19`, `googlenet`, `inception_v3`, `resnet18` to `resnet152`, `mobilenet_v2`,
        `densenet121`.
    filepath : str or path-like
        A safetensors file of the ``state_dict()`` of torchvision's model, in float32.
        Counters of batches are ignored, and auxiliary classifiers if the model has
        none.

    Raises
    ------
    TypeError
        If `model` is not a model or `filepath` is not a path.
    OSError
        If the file cannot be read.
    WeightsError
        If names, shapes or dtypes differ, or the file is damaged; the model is then
        unchanged.
    """
    if not isinstance(model, nn.Model):
        raise TypeError(
            f"load_torchvision_weights: the model is a {type(model).__name__}; write "
            "the model first, then the path"
        )
    if not isinstance(filepath, str | os.PathLike):
        raise TypeError(
            f"load_torchvision_weights: the path is a {type(filepath).__name__}; write "
            "a state_dict() to a file by safetensors.torch.save_file"
        )
    sources = [
        _source(layer, variable.name, variable.shape)
        for layer in model.layers
        for variable in layer.weights
    ]
    known = {source.entry.key for source in sources}
    auxiliary = any(key.startswith(_AUXILIARY) for key in known)

    def key_of(name: str) -> str | None:
        """Return our name of an entry of the file; None to ignore it."""
        if name.endswith(_COUNTER) or (not auxiliary and name.startswith(_AUXILIARY)):
            return None
        old = _OLD.fullmatch(name)
        return f"{old[1]}{old[2]}" if old else name

    arrays = read_file(filepath, [each.entry for each in sources], key_of=key_of)
    pairs = zip(sources, arrays, strict=True)
    model.set_weights([source.arrange(array) for source, array in pairs])


def _source(layer: Layer, weight: str, shape: tuple[int, ...]) -> _Source:
    """Return the entry and the conversion for a layer's weight."""
    if weight == "bias":
        return _Source(_entry(layer, "bias", shape), lambda x: x)
    if isinstance(layer, nn.BatchNormalization):
        return _Source(_entry(layer, _NORMS[weight], shape), lambda x: x)
    if isinstance(layer, nn.DepthwiseConv2D):
        height, width, channels, multiplier = shape
        return _Source(
            _entry(layer, "weight", (channels * multiplier, 1, height, width)),
            lambda x: x.transpose(2, 3, 0, 1).reshape(shape),
        )
    if isinstance(layer, nn.Conv2D):
        return _Source(
            _entry(layer, "weight", (shape[3], shape[2], *shape[:2])),
            lambda x: x.transpose(2, 3, 1, 0),
        )
    if isinstance(layer, nn.Dense):
        return _Source(_entry(layer, "weight", shape[::-1]), _rows(layer))
    raise WeightsError(
        f"torchvision has no model like this one: layer {layer.name!r} is a "
        f"{type(layer).__name__}"
    )


def _entry(layer: Layer, parameter: str, shape: tuple[int, ...]) -> Entry:
    key = f"{layer.name}.{parameter}"
    return Entry(key, key, shape, "float32")


def _rows(layer: Layer) -> Callable[[Floats], Floats]:
    """Return the conversion of a matrix, whose columns may be a flattened image's."""
    tensor = layer.input
    while isinstance(tensor.node.layer, nn.Dropout):
        (tensor,) = tensor.node.inputs
    if not isinstance(tensor.node.layer, nn.Flatten):
        return lambda x: x.T
    height, width, channels = tensor.node.inputs[0].sample_shape

    def arrange(x: Floats) -> Floats:
        units, columns = x.shape
        image = x.reshape(units, channels, height, width)
        return image.transpose(2, 3, 1, 0).reshape(columns, units)

    return arrange
