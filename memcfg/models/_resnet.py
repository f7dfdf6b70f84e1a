"""Residual networks for ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import normalized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


@network
def resnet18(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "resnet18"
) -> nn.Model:
    """Return a residual network of 18 layers, in blocks of two convolutions.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    name : str, default "resnet18"
        The model's name.

    Returns
    -------
    Model
        A model of 11,689,512 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.
    """
    return _resnet(_basic, (2, 2, 2, 2), input_shape, classes, name)


@network
def resnet34(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "resnet34"
) -> nn.Model:
    """Return a residual network of 34 layers, in blocks of two convolutions.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    name : str, default "resnet34"
        The model's name.

    Returns
    -------
    Model
        A model of 21,797,672 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.
    """
    return _resnet(_basic, (3, 4, 6, 3), input_shape, classes, name)


@network
def resnet50(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "resnet50"
) -> nn.Model:
    """Return a residual network of 50 layers, in bottleneck blocks.

    The stride of a block is in its 3 x 3 convolution, as in torchvision ("v1.5"); in
    the paper it is in the first 1 x 1 convolution.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    name : str, default "resnet50"
        The model's name.

    Returns
    -------
    Model
        A model of 25,557,032 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.models.resnet50(classes=10)
    >>> model.output_shape
    (None, 10)
    """
    return _resnet(_bottleneck, (3, 4, 6, 3), input_shape, classes, name)


@network
def resnet101(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "resnet101"
) -> nn.Model:
    """Return a residual network of 101 layers, in bottleneck blocks as in `resnet50`.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    name : str, default "resnet101"
        The model's name.

    Returns
    -------
    Model
        A model of 44,549,160 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.
    """
    return _resnet(_bottleneck, (3, 4, 23, 3), input_shape, classes, name)


@network
def resnet152(
    input_shape: Sizes = (224, 224, 3), classes: int = 1000, name: str = "resnet152"
) -> nn.Model:
    """Return a residual network of 152 layers, in bottleneck blocks as in `resnet50`.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image.
    classes : int, default 1000
        Number of logits.
    name : str, default "resnet152"
        The model's name.

    Returns
    -------
    Model
        A model of 60,192,808 trainable parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016.
    """
    return _resnet(_bottleneck, (3, 8, 36, 3), input_shape, classes, name)


def _resnet(
    block: Callable[[SymbolicTensor, int, int, str], SymbolicTensor],
    counts: Sequence[int],
    input_shape: Sizes,
    classes: int,
    name: str,
) -> nn.Model:
    x = inputs = nn.Input(input_shape)
    x = normalized(x, 64, 7, ("conv1", "bn1"), strides=2, padding=3)
    x = nn.MaxPooling2D(3, 2, padding=1)(x)
    for stage, count in enumerate(counts):
        for i in range(count):
            strides = 2 if stage and i == 0 else 1
            x = block(x, 64 << stage, strides, f"layer{stage + 1}.{i}")
    x = nn.GlobalAveragePooling2D(name="avgpool")(x)
    return nn.Model(inputs, nn.Dense(classes, name="fc")(x), name=name)


def _basic(x: SymbolicTensor, width: int, strides: int, name: str) -> SymbolicTensor:
    """Append a residual block of two 3 x 3 convolutions."""
    names = [(f"{name}.conv{i}", f"{name}.bn{i}") for i in (1, 2)]
    y = normalized(x, width, 3, names[0], strides=strides, padding=1)
    y = normalized(y, width, 3, names[1], padding=1, activation=None)
    result: SymbolicTensor = nn.ReLU()(nn.Add()([y, _shortcut(x, y, strides, name)]))
    return result


def _bottleneck(
    x: SymbolicTensor, width: int, strides: int, name: str
) -> SymbolicTensor:
    """Append a residual block of a 3 x 3 convolution between two 1 x 1."""
    names = [(f"{name}.conv{i}", f"{name}.bn{i}") for i in (1, 2, 3)]
    y = normalized(x, width, 1, names[0])
    y = normalized(y, width, 3, names[1], strides=strides, padding=1)
    y = normalized(y, 4 * width, 1, names[2], activation=None)
    result: SymbolicTensor = nn.ReLU()(nn.Add()([y, _shortcut(x, y, strides, name)]))
    return result


def _shortcut(
    x: SymbolicTensor, y: SymbolicTensor, strides: int, name: str
) -> SymbolicTensor:
    """Return the block's input `x`, projected if the shape of `y` differs."""
    if strides == 1 and x.sample_shape == y.sample_shape:
        return x
    names = f"{name}.downsample.0", f"{name}.downsample.1"
    width = y.sample_shape[-1]
    return normalized(x, width, 1, names, strides=strides, activation=None)
