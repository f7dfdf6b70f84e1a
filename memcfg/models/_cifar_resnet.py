"""Residual networks of any depth, for small images."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import batch_normalized, normalized
from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["resnet"]

_WIDTHS = (16, 32, 64)
_OF_IMAGENET = (18, 34, 50, 101, 152)  # depths with functions of their own


@network
def resnet(
    depth: int,
    input_shape: Sizes = (32, 32, 3),
    classes: int = 10,
    version: int | None = None,
    name: str | None = None,
) -> nn.Model:
    """Return a residual network of any depth for small images.

    Version 1 has ``6 n + 2`` layers (20, 32, 44, 56, 110, 1202): three stages of n
    blocks of two 3 x 3 convolutions, with shortcuts without weights. Version 2 has ``9
    n + 2`` layers (1001, and 164 with ``version=2``): bottleneck blocks with
    normalisation before convolutions.

    Parameters
    ----------
    depth : int
        The number of layers that have weights.
    input_shape : tuple of int, default (32, 32, 3)
        Shape of an image.
    classes : int, default 10
        Number of logits.
    version : {1, 2}, optional
        None: 1 if the depth is ``6 n + 2``, else 2.
    name : str, optional
        The model's name. None: ``"cifar_resnet"`` and the depth, as ``"resnet50"`` and
        the like are networks for ImageNet.

    Returns
    -------
    Model
        Not compiled.

    Raises
    ------
    TypeError, ValueError
        If there is no network of that depth, or an argument is invalid.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016,
    section 4.2, and "Identity mappings in deep residual networks", ECCV 2016.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.models.resnet(20)
    >>> sum(weight.numpy().size for weight in model.trainable_weights)
    269722
    """
    layers = integer(depth, "resnet: depth") - 2
    if version is None:
        version = 1 if layers % 6 == 0 else 2
    if version not in (1, 2):
        raise ValueError(f"resnet: version must be 1 or 2, not {version!r}")
    a_block = 6 if version == 1 else 9
    if layers < a_block or layers % a_block:
        other = f": resnet{depth}() has it" if depth in _OF_IMAGENET else ""
        raise ValueError(
            "resnet: the depth must be 6 n + 2 (8, 14, 20, ...) for version 1 or 9 n + "
            f"2 (11, 20, 29, ...) for version 2; version {version} has no depth "
            f"{depth}{other}"
        )
    count = layers // a_block
    name = f"cifar_resnet{depth}" if name is None else name
    x = inputs = nn.Input(input_shape)
    if version == 1:
        x = normalized(x, 16, 3, ("conv1", "bn1"), padding=1)
    else:
        x = _convolved(x, 16, 3, "conv1")
    block = _basic if version == 1 else _bottleneck
    for stage, width in enumerate(_WIDTHS, 1):
        for i in range(count):
            strides = 2 if stage > 1 and i == 0 else 1
            x = block(x, width, strides, f"layer{stage}.{i}")
    if version == 2:
        x = nn.ReLU()(batch_normalized(x, "bn"))
    x = nn.GlobalAveragePooling2D(name="avgpool")(x)
    return nn.Model(inputs, nn.Dense(classes, name="fc")(x), name=name)


def _basic(x: SymbolicTensor, width: int, strides: int, name: str) -> SymbolicTensor:
    """Append a block of two convolutions; the shortcut is zero-padded (option A)."""
    names = [(f"{name}.conv{i}", f"{name}.bn{i}") for i in (1, 2)]
    y = normalized(x, width, 3, names[0], strides=strides, padding=1)
    y = normalized(y, width, 3, names[1], padding=1, activation=None)
    if strides > 1:
        x = x[:, ::2, ::2]
    rows, columns, channels = x.sample_shape
    if channels < width:
        x = nn.Reshape((rows * columns, channels, 1))(x)
        x = nn.ZeroPadding2D(((0, 0), (0, width - channels)))(x)
        x = nn.Reshape((rows, columns, width))(x)
    result: SymbolicTensor = nn.ReLU()(nn.Add()([y, x]))
    return result


def _bottleneck(
    x: SymbolicTensor, width: int, strides: int, name: str
) -> SymbolicTensor:
    """Append a block of three times normalisation, ReLU and convolution."""
    wide = 4 * width
    y = nn.ReLU()(batch_normalized(x, f"{name}.bn1"))
    if x.sample_shape[-1] != wide:  # the shortcut is projected, after normalisation
        x = _convolved(y, wide, 1, f"{name}.downsample", strides)
    y = _convolved(y, width, 1, f"{name}.conv1", strides)
    y = nn.ReLU()(batch_normalized(y, f"{name}.bn2"))
    y = _convolved(y, width, 3, f"{name}.conv2")
    y = nn.ReLU()(batch_normalized(y, f"{name}.bn3"))
    result: SymbolicTensor = nn.Add()([x, _convolved(y, wide, 1, f"{name}.conv3")])
    return result


def _convolved(
    x: SymbolicTensor, filters: int, window: int, name: str, strides: int = 1
) -> SymbolicTensor:
    append = partial(nn.Conv2D, use_bias=False, kernel_initializer="he_normal")
    result: SymbolicTensor = append(filters, window, strides, window // 2, name=name)(x)
    return result
