"""GoogLeNet, with batch normalisation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import adaptive_average, ceil_pool, normalized

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["googlenet"]

# Filters of the 1 x 1 branch, of both convolutions of the next two branches, and of the
# pooling branch: table 1.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


@network
def googlenet(
    input_shape: Sizes = (224, 224, 3),
    classes: int = 1000,
    aux_logits: bool = False,
    name: str = "googlenet",
) -> nn.Model:
    """Return torchvision's GoogLeNet (Inception v1) with batch normalisation.

    The kernel of the third branch is 3 x 3, as in torchvision; in the paper it is
    5 x 5.

    Parameters
    ----------
    input_shape : tuple of int, default (224, 224, 3)
        Shape of an image, at least 15 pixels a side.
    classes : int, default 1000
        Number of logits.
    aux_logits : bool, default False
        Whether to return three outputs: the logits, and those of the second and of the
        first auxiliary classifier. The paper weighs the auxiliary losses by 0.3.
    name : str, default "googlenet"
        The model's name.

    Returns
    -------
    Model
        A model of 6,624,904 trainable parameters by default and 13,004,888 with the
        auxiliary classifiers, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Szegedy et al., "Going deeper with convolutions", CVPR 2015; Ioffe and Szegedy,
    "Batch normalization", ICML 2015.
    """
    x = inputs = nn.Input(input_shape)
    x = _convolved(x, 64, 7, "conv1", strides=2, padding=3)
    x = _convolved(ceil_pool(x, 3, 2), 64, 1, "conv2")
    x = ceil_pool(_convolved(x, 192, 3, "conv3", padding=1), 3, 2)
    aux: list[SymbolicTensor] = []
    for place, channels in _INCEPTIONS.items():
        x = _inception(x, channels, f"inception{place}")
        if place in ("4a", "4d") and aux_logits:
            aux.append(_auxiliary(x, classes, f"aux{1 + len(aux)}"))
        if place == "3b":
            x = ceil_pool(x, 3, 2)
        elif place == "4e":
            x = ceil_pool(x, 2, 2)
    x = nn.Dropout(0.2)(nn.GlobalAveragePooling2D()(x))
    logits = nn.Dense(classes, name="fc")(x)
    outputs = [logits, *reversed(aux)] if aux_logits else logits
    return nn.Model(inputs, outputs, name=name)


def _convolved(
    x: SymbolicTensor,
    filters: int,
    window: int,
    name: str,
    *,
    strides: int = 1,
    padding: int = 0,
) -> SymbolicTensor:
    names = f"{name}.conv", f"{name}.bn"
    append = partial(normalized, strides=strides, padding=padding, epsilon=1e-3)
    return append(x, filters, window, names)


def _inception(
    x: SymbolicTensor, channels: tuple[int, ...], name: str
) -> SymbolicTensor:
    one, reduce3, three, reduce5, five, pooled = channels
    first = _convolved(x, one, 1, f"{name}.branch1")
    branches = [first]
    for i, (reduce, filters) in enumerate(((reduce3, three), (reduce5, five)), 2):
        y = _convolved(x, reduce, 1, f"{name}.branch{i}.0")
        branches.append(_convolved(y, filters, 3, f"{name}.branch{i}.1", padding=1))
    y = nn.MaxPooling2D(3, 1, padding=1)(x)
    branches.append(_convolved(y, pooled, 1, f"{name}.branch4.1"))
    result: SymbolicTensor = nn.Concatenate()(branches)
    return result


def _auxiliary(x: SymbolicTensor, classes: int, name: str) -> SymbolicTensor:
    """Append an auxiliary classifier, whose gradients reach the layers before it."""
    x = _convolved(adaptive_average(x, 4), 128, 1, f"{name}.conv")
    x = nn.Dense(1024, "relu", name=f"{name}.fc1")(nn.Flatten()(x))
    result: SymbolicTensor = nn.Dense(classes, name=f"{name}.fc2")(nn.Dropout(0.7)(x))
    return result
