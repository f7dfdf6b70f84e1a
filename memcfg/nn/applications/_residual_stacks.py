"""Stacks of residual blocks of three convolutions, with ReLU after or before them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from memcfg.nn.applications._application import Application
from memcfg.nn.applications._remote_file import kernels
from memcfg.nn.applications._shared_layers import head, normalized
from memcfg.nn.layers import Activation, Add, Conv2D, MaxPooling2D, ZeroPadding2D

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["EPSILON", "activated", "residual_network", "start"]

EPSILON = 1.001e-5
_WIDTHS = (64, 128, 256, 512)
_PAPERS = {
    "": (
        'He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR '
        "2016."
    ),
    "V2": (
        'He, Zhang, Ren and Sun, "Identity mappings in deep residual networks", ECCV '
        "2016."
    ),
}


def residual_network(
    depth: int, version: str, counts: Sequence[int], hashes: Sequence[str]
) -> Application:
    """Return a network of four stacks of blocks; its version is "" or "V2"."""
    name = f"resnet{depth}{version.lower()}"
    kind = "residual network"
    if version:
        kind += ", with ReLU before the convolutions,"
    return Application(
        function=f"ResNet{depth}{version}",
        about=f"a {kind} of {depth} layers",
        reference=_PAPERS[version],
        name=name,
        body=partial(_after if not version else _before, counts),
        head=partial(head, names=("avg_pool", "max_pool")),
        files=kernels("resnet", name, hashes),
    )


def activated(x: SymbolicTensor, name: str) -> SymbolicTensor:
    """Append normalisation and ReLU, named after what they follow."""
    x = normalized(x, f"{name}_bn", epsilon=EPSILON)
    result: SymbolicTensor = Activation("relu", name=f"{name}_relu")(x)
    return result


def start(
    x: SymbolicTensor,
    names: Sequence[str | None],
    *,
    use_bias: bool = False,
    is_activated: bool = True,
) -> SymbolicTensor:
    """Append the first convolution and pool; names are of two pads and the pool."""
    x = ZeroPadding2D(3, name=names[0])(x)
    x = Conv2D(64, 7, 2, use_bias=use_bias, name="conv1_conv")(x)
    if is_activated:
        x = activated(x, "conv1")
    x = ZeroPadding2D(1, name=names[1])(x)
    result: SymbolicTensor = MaxPooling2D(3, 2, name=names[2])(x)
    return result


_NAMES = ("conv1_pad", "pool1_pad", "pool1_pool")


def _convolved(
    x: SymbolicTensor, filters: int, size: int, name: str, **options: Any
) -> SymbolicTensor:
    result: SymbolicTensor = Conv2D(filters, size, name=f"{name}_conv", **options)(x)
    return result


def _after(
    counts: Sequence[int], x: SymbolicTensor, given: Arguments
) -> SymbolicTensor:
    """Append stacks of blocks with ReLU at their ends."""
    del given
    x = start(x, _NAMES, use_bias=True)
    for stage, (count, width) in enumerate(zip(counts, _WIDTHS, strict=True), 2):
        for i in range(1, count + 1):
            strides = 2 if stage > 2 and i == 1 else 1
            x = _block_after(x, width, strides, f"conv{stage}_block{i}", i == 1)
    return x


def _block_after(
    x: SymbolicTensor, width: int, strides: int, name: str, projects: bool
) -> SymbolicTensor:
    around = x
    if projects:
        around = _convolved(x, 4 * width, 1, f"{name}_0", strides=strides)
        around = normalized(around, f"{name}_0_bn", epsilon=EPSILON)
    x = activated(_convolved(x, width, 1, f"{name}_1", strides=strides), f"{name}_1")
    x = activated(_convolved(x, width, 3, f"{name}_2", padding="same"), f"{name}_2")
    x = _convolved(x, 4 * width, 1, f"{name}_3")
    x = normalized(x, f"{name}_3_bn", epsilon=EPSILON)
    x = Add(name=f"{name}_add")([around, x])
    result: SymbolicTensor = Activation("relu", name=f"{name}_out")(x)
    return result


def _before(
    counts: Sequence[int], x: SymbolicTensor, given: Arguments
) -> SymbolicTensor:
    """Append stacks of blocks with ReLU at their beginnings."""
    del given
    x = start(x, _NAMES, use_bias=True, is_activated=False)
    for stage, (count, width) in enumerate(zip(counts, _WIDTHS, strict=True), 2):
        for i in range(1, count + 1):
            strides = 2 if stage < 5 and i == count else 1
            x = _block_before(x, width, strides, f"conv{stage}_block{i}", i == 1)
    return activated(x, "post")


def _block_before(
    x: SymbolicTensor, width: int, strides: int, name: str, projects: bool
) -> SymbolicTensor:
    y = activated(x, f"{name}_preact")
    around = x
    if projects:
        around = _convolved(y, 4 * width, 1, f"{name}_0", strides=strides)
    elif strides > 1:
        around = MaxPooling2D(1, strides)(x)
    y = activated(_convolved(y, width, 1, f"{name}_1", use_bias=False), f"{name}_1")
    y = ZeroPadding2D(1, name=f"{name}_2_pad")(y)
    y = _convolved(y, width, 3, f"{name}_2", strides=strides, use_bias=False)
    y = activated(y, f"{name}_2")
    y = _convolved(y, 4 * width, 1, f"{name}_3")
    result: SymbolicTensor = Add(name=f"{name}_out")([around, y])
    return result
