"""Densely connected networks, for images of ImageNet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memcfg.nn.applications._application import Application
from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import torch_pixels as preprocess_input
from memcfg.nn.applications._remote_file import kernels
from memcfg.nn.applications._residual_stacks import EPSILON, activated, start
from memcfg.nn.applications._shared_layers import head, normalized
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import Activation, AveragePooling2D, Concatenate, Conv2D

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "DenseNet121",
    "DenseNet169",
    "DenseNet201",
    "decode_predictions",
    "preprocess_input",
]

_GROWTH = 32  # channels that a layer adds


def _layer(x: SymbolicTensor, name: str) -> SymbolicTensor:
    """Append two convolutions, and join their result to the input."""
    y = activated(x, f"{name}_0")
    y = Conv2D(4 * _GROWTH, 1, use_bias=False, name=f"{name}_1_conv")(y)
    y = activated(y, f"{name}_1")
    y = Conv2D(_GROWTH, 3, padding="same", use_bias=False, name=f"{name}_2_conv")(y)
    result: SymbolicTensor = Concatenate(name=f"{name}_concat")([x, y])
    return result


def _body(counts: Sequence[int], x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    del given
    x = start(x, (None, None, "pool1"))
    for stage, count in enumerate(counts, 2):
        if stage > 2:
            name = f"pool{stage - 1}"
            x = activated(x, name)
            filters = x.sample_shape[-1] // 2
            x = Conv2D(filters, 1, use_bias=False, name=f"{name}_conv")(x)
            x = AveragePooling2D(2, name=f"{name}_pool")(x)
        for i in range(1, count + 1):
            x = _layer(x, f"conv{stage}_block{i}")
    x = normalized(x, "bn", epsilon=EPSILON)
    result: SymbolicTensor = Activation("relu", name="relu")(x)
    return result


# Layers, those in each of the four blocks, and the MD5s of the files.
_ROWS = (
    (
        121,
        (6, 12, 24, 16),
        ("9d60b8095a5708f2dcce2bca79d332c7", "30ee3e1110167f948a6b9946edeeb738"),
    ),
    (
        169,
        (6, 12, 32, 32),
        ("d699b8f76981ab1b30698df4c175e90b", "b8c4d4c20dd625c148057b9ff1c1176b"),
    ),
    (
        201,
        (6, 12, 48, 32),
        ("1ceb130c1ea1b78c3bf6114dbdfd8807", "c13680b51ded0fb44dff2d8f86ac8bb1"),
    ),
)

DenseNet121, DenseNet169, DenseNet201 = (
    constructor(
        __name__,
        classifier,
        Application(
            function=f"DenseNet{depth}",
            about=f"a densely connected network of {depth} layers",
            reference=(
                'Huang, Liu, van der Maaten and Weinberger, "Densely connected '
                'convolutional networks", CVPR 2017.'
            ),
            name=f"densenet{depth}",
            body=partial(_body, counts),
            head=partial(head, names=("avg_pool", "max_pool")),
            files=kernels("densenet", f"densenet{depth}", hashes),
        ),
    )
    for depth, counts, hashes in _ROWS
)
