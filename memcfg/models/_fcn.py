"""Fully convolutional networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["fcn8"]

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_UNITS = 4096  # of VGG's dense layers, here convolutions


@network
def fcn8(
    input_shape: Sizes = (500, 500, 3), classes: int = 21, name: str = "fcn8"
) -> nn.Model:
    """Return FCN-8s on VGG16: scores of three depths, upsampled and added.

    Images are padded by 100 pixels and scores are cropped, as published. Upsampling
    layers are trained from bilinear kernels, score layers from zeros.

    Parameters
    ----------
    input_shape : tuple of int, default (500, 500, 3)
        Shape of an image.
    classes : int, default 21
        Number of logits of a pixel.
    name : str, default "fcn8"
        The model's name.

    Returns
    -------
    Model
        A model of 134,489,759 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Long, Shelhamer and Darrell, "Fully convolutional networks for semantic
    segmentation", CVPR 2015; paddings and crops as in the authors' ``fcn8s.prototxt``.
    """
    x = inputs = nn.Input(input_shape)
    pools = []
    for block, (filters, count) in enumerate(_BLOCKS, 1):
        for i in range(1, count + 1):
            first = block == i == 1
            name_of = f"conv{block}_{i}"
            x = _convolved(x, filters, 3, name_of, 100 if first else 1)
        sizes = x.sample_shape[:2]
        x = nn.MaxPooling2D(2, 2, tuple((0, size % 2) for size in sizes))(x)
        pools.append(x)
    for i, window in ((6, 7), (7, 1)):
        x = nn.Dropout(0.5)(_convolved(x, _UNITS, window, f"fc{i}", 0))
    x = _scored(x, classes, "score_fr")
    for pool, label, offset in ((pools[3], "pool4", 5), (pools[2], "pool3", 9)):
        x = _upsampled(x, classes, 2, f"upscore_{label}")
        score = _scored(pool, classes, f"score_{label}")
        x = nn.Add()([x, _cropped(score, offset, x.sample_shape)])
    x = _upsampled(x, classes, 8, "upscore8")
    return nn.Model(inputs, _cropped(x, 31, input_shape), name=name)


def _convolved(
    x: SymbolicTensor, filters: int, window: int, name: str, padding: int
) -> SymbolicTensor:
    result: SymbolicTensor = nn.Conv2D(
        filters,
        window,
        padding=padding,
        activation="relu",
        kernel_initializer="he_normal",
        name=name,
    )(x)
    return result


def _scored(x: SymbolicTensor, classes: int, name: str) -> SymbolicTensor:
    result: SymbolicTensor = nn.Conv2D(
        classes, 1, kernel_initializer="zeros", name=name
    )(x)
    return result


def _upsampled(
    x: SymbolicTensor, classes: int, factor: int, name: str
) -> SymbolicTensor:
    result: SymbolicTensor = nn.Conv2DTranspose(
        classes,
        2 * factor,
        factor,
        use_bias=False,
        kernel_initializer="bilinear",
        name=name,
    )(x)
    return result


def _cropped(x: SymbolicTensor, offset: int, to: tuple[int, ...]) -> SymbolicTensor:
    """Crop to the height and width of a shape, from an offset on."""
    height, width = to[:2]
    result: SymbolicTensor = x[:, offset : offset + height, offset : offset + width]
    return result
