"""Xception, for images of ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn.applications._application import Application
from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._remote_file import kernels
from memcfg.nn.applications._shared_layers import head, normalized
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import Activation, Conv2D, MaxPooling2D, SeparableConv2D, add

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["Xception", "decode_predictions", "preprocess_input"]

_MIDDLE = range(5, 13)  # the blocks without a stride


def _separable(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
    """Append a separable convolution and its normalisation."""
    x = SeparableConv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return normalized(x, f"{name}_bn")


def _block(x: SymbolicTensor, number: int, filters: Sequence[int]) -> SymbolicTensor:
    """Append separable convolutions beside a path around them."""
    around = x
    if number not in _MIDDLE:
        around = Conv2D(filters[-1], 1, 2, "same", use_bias=False)(x)
        around = normalized(around, None)
    for i, each in enumerate(filters, 1):
        name = f"block{number}_sepconv{i}"
        if number > 2 or i > 1:  # the first block follows an activation
            x = Activation("relu", name=f"{name}_act")(x)
        x = _separable(x, each, name)
    if number not in _MIDDLE:
        x = MaxPooling2D(3, 2, "same", name=f"block{number}_pool")(x)
    return add([x, around])


def _body(x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    del given
    for i, (filters, strides) in enumerate(((32, 2), (64, 1)), 1):
        name = f"block1_conv{i}"
        x = Conv2D(filters, 3, strides, use_bias=False, name=name)(x)
        x = normalized(x, f"{name}_bn")
        x = Activation("relu", name=f"{name}_act")(x)
    for number, width in ((2, 128), (3, 256), (4, 728)):
        x = _block(x, number, (width, width))
    for number in _MIDDLE:
        x = _block(x, number, (728, 728, 728))
    x = _block(x, 13, (728, 1024))
    for i, width in enumerate((1536, 2048), 1):
        name = f"block14_sepconv{i}"
        x = Activation("relu", name=f"{name}_act")(_separable(x, width, name))
    return x


Xception = constructor(
    __name__,
    classifier,
    Application(
        function="Xception",
        about="Xception, of separable convolutions",
        reference=(
            'Chollet, "Xception: deep learning with depthwise separable convolutions", '
            "CVPR 2017."
        ),
        name="xception",
        size=299,
        least=71,
        body=_body,
        head=head,
        files=kernels(
            "xception",
            "xception",
            ("0a58e3b7378bc2990ea3b43d5981f1f6", "b0042744bf5b25fce3cb969f33bebb97"),
        ),
    ),
)
