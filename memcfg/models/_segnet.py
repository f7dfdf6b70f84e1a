"""SegNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import batch_normalized

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["segnet"]

_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


@network
def segnet(
    input_shape: Sizes = (360, 480, 3), classes: int = 11, name: str = "segnet"
) -> nn.Model:
    """Return SegNet: VGG16's convolutions, and a decoder that unpools by max indices.

    Parameters
    ----------
    input_shape : tuple of int, default (360, 480, 3)
        Shape of an image.
    classes : int, default 11
        Number of logits of a pixel.
    name : str, default "segnet"
        The model's name.

    Returns
    -------
    Model
        A model of 29,449,355 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Badrinarayanan, Kendall and Cipolla, "SegNet: a deep convolutional encoder-decoder
    architecture for image segmentation", IEEE TPAMI 39, 2017.
    """
    x = inputs = nn.Input(input_shape)
    pooled = []
    for block, (filters, count) in enumerate(_BLOCKS, 1):
        for i in range(1, count + 1):
            x = _normalized(x, filters, f"conv{block}_{i}")
        sizes = x.sample_shape[0], x.sample_shape[1]
        padding = tuple(
            (0, size % 2) for size in sizes
        )  # ceil mode: odd sizes are padded
        x, places = nn.MaxPooling2D(2, 2, padding, return_indices=True)(x)
        pooled.append((places, padding, sizes))
    for block, (filters, count) in reversed(list(enumerate(_BLOCKS, 1))):
        places, padding, sizes = pooled.pop()
        x = nn.MaxUnpooling2D(2, 2, padding, output_size=sizes)([x, places])
        narrower = _BLOCKS[max(block - 2, 0)][0]
        for i in range(count, 0, -1):
            label = f"conv{block}_{i}_D"
            if block == i == 1:
                x = _convolved(x, classes, label)
            else:
                x = _normalized(x, narrower if i == 1 else filters, label)
    return nn.Model(inputs, x, name=name)


def _convolved(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
    result: SymbolicTensor = nn.Conv2D(
        filters, 3, padding=1, kernel_initializer="he_normal", name=name
    )(x)
    return result


def _normalized(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
    x = _convolved(x, filters, name)
    result: SymbolicTensor = nn.ReLU()(batch_normalized(x, f"{name}_bn"))
    return result
