"""Stacks of convolutions and pools: VGG."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memcfg.nn.applications._application import Application
from memcfg.nn.applications._remote_file import kernels
from memcfg.nn.applications._shared_layers import pooled
from memcfg.nn.layers import Conv2D, Dense, Flatten, MaxPooling2D

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["plain_stack"]

_FILTERS = (64, 128, 256, 512, 512)
_UNITS = (4096, 4096)  # of the hidden layers of the classifier


def plain_stack(
    depth: int, counts: Sequence[int], hashes: Sequence[str]
) -> Application:
    """Return the network with these numbers of convolutions before the pools."""
    return Application(
        function=f"VGG{depth}",
        about=f"VGG-{depth}, of 3 x 3 convolutions and dense layers",
        reference=(
            'Simonyan and Zisserman, "Very deep convolutional networks for large-scale '
            'image recognition", ICLR 2015.'
        ),
        name=f"vgg{depth}",
        body=partial(_stack, counts),
        head=_head,
        files=kernels(f"vgg{depth}", f"vgg{depth}", hashes),
    )


def _stack(
    counts: Sequence[int], x: SymbolicTensor, given: Arguments
) -> SymbolicTensor:
    del given
    for i, (count, filters) in enumerate(zip(counts, _FILTERS, strict=True), 1):
        for j in range(1, count + 1):
            name = f"block{i}_conv{j}"
            x = Conv2D(filters, 3, padding="same", activation="relu", name=name)(x)
        x = MaxPooling2D(2, name=f"block{i}_pool")(x)
    return x


def _head(x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    if not given.include_top:
        return pooled(x, given.pooling, (None, None))
    x = Flatten(name="flatten")(x)
    for i, units in enumerate(_UNITS, 1):
        x = Dense(units, activation="relu", name=f"fc{i}")(x)
    result: SymbolicTensor = Dense(
        given.classes, given.classifier_activation, name="predictions"
    )(x)
    return result
