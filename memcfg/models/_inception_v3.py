"""Inception v3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.models._parts import normalized

if TYPE_CHECKING:
    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["inception_v3"]

_ROW, _COLUMN = (1, 7), (7, 1)  # kernels of a factored 7 x 7 convolution


@network
def inception_v3(
    input_shape: Sizes = (299, 299, 3),
    classes: int = 1000,
    aux_logits: bool = False,
    name: str = "inception_v3",
) -> nn.Model:
    """Return Inception v3, as in torchvision.

    Parameters
    ----------
    input_shape : tuple of int, default (299, 299, 3)
        Shape of an image, at least 75 pixels a side; 299 with `aux_logits`.
    classes : int, default 1000
        Number of logits.
    aux_logits : bool, default False
        Whether to return two outputs: the logits, and those of the auxiliary
        classifier. torchvision weighs the auxiliary loss by 0.4.
    name : str, default "inception_v3"
        The model's name.

    Returns
    -------
    Model
        A model of 23,834,568 trainable parameters by default and 27,161,264 with the
        auxiliary classifier, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception architecture
    for computer vision", CVPR 2016.
    """
    x = inputs = nn.Input(input_shape)
    x = _convolved(x, 32, 3, "Conv2d_1a_3x3", 2, 0)
    x = _convolved(x, 32, 3, "Conv2d_2a_3x3", 1, 0)
    x = nn.MaxPooling2D(3, 2)(_convolved(x, 64, 3, "Conv2d_2b_3x3"))
    x = _convolved(x, 80, 1, "Conv2d_3b_1x1")
    x = nn.MaxPooling2D(3, 2)(_convolved(x, 192, 3, "Conv2d_4a_3x3", 1, 0))
    for place, pooled in (("b", 32), ("c", 64), ("d", 64)):
        x = _squares(x, pooled, f"Mixed_5{place}")
    x = _first_reduction(x, "Mixed_6a")
    for place, width in (("b", 128), ("c", 160), ("d", 160), ("e", 192)):
        x = _factored(x, width, f"Mixed_6{place}")
    aux = [_auxiliary(x, classes)] if aux_logits else []
    x = _second_reduction(x, "Mixed_7a")
    for place in ("b", "c"):
        x = _widened(x, f"Mixed_7{place}")
    x = nn.Dropout(0.5)(nn.GlobalAveragePooling2D()(x))
    logits = nn.Dense(classes, name="fc")(x)
    return nn.Model(inputs, [logits, *aux] if aux_logits else logits, name=name)


def _convolved(
    x: SymbolicTensor,
    filters: int,
    window: int | tuple[int, int],
    name: str,
    strides: int = 1,
    padding: int | None = None,  # None: keeps height and width
) -> SymbolicTensor:
    height, width = (window, window) if isinstance(window, int) else window
    return normalized(
        x,
        filters,
        window,
        (f"{name}.conv", f"{name}.bn"),
        strides=strides,
        padding=(height // 2, width // 2) if padding is None else padding,
        epsilon=1e-3,
    )


def _chain(
    x: SymbolicTensor, name: str, *steps: tuple[int, int | tuple[int, int]]
) -> SymbolicTensor:
    """Append convolutions of given filters and kernels; names are numbered from 1."""
    for i, (filters, window) in enumerate(steps, 1):
        x = _convolved(x, filters, window, f"{name}_{i}")
    return x


def _averaged(x: SymbolicTensor, filters: int, name: str) -> SymbolicTensor:
    """Append 3 x 3 average pooling, including padding, and a 1 x 1 convolution."""
    x = nn.AveragePooling2D(3, 1)(nn.ZeroPadding2D()(x))
    return _convolved(x, filters, 1, f"{name}.branch_pool")


def _squares(x: SymbolicTensor, pooled: int, name: str) -> SymbolicTensor:
    branches = [
        _convolved(x, 64, 1, f"{name}.branch1x1"),
        _chain(x, f"{name}.branch5x5", (48, 1), (64, 5)),
        _chain(x, f"{name}.branch3x3dbl", (64, 1), (96, 3), (96, 3)),
        _averaged(x, pooled, name),
    ]
    result: SymbolicTensor = nn.Concatenate()(branches)
    return result


def _first_reduction(x: SymbolicTensor, name: str) -> SymbolicTensor:
    y = _chain(x, f"{name}.branch3x3dbl", (64, 1), (96, 3))
    branches = [
        _convolved(x, 384, 3, f"{name}.branch3x3", 2, 0),
        _convolved(y, 96, 3, f"{name}.branch3x3dbl_3", 2, 0),
        nn.MaxPooling2D(3, 2)(x),
    ]
    result: SymbolicTensor = nn.Concatenate()(branches)
    return result


def _factored(x: SymbolicTensor, width: int, name: str) -> SymbolicTensor:
    branches = [
        _convolved(x, 192, 1, f"{name}.branch1x1"),
        _chain(x, f"{name}.branch7x7", (width, 1), (width, _ROW), (192, _COLUMN)),
        _chain(
            x,
            f"{name}.branch7x7dbl",
            (width, 1),
            *((width, _COLUMN), (width, _ROW), (width, _COLUMN), (192, _ROW)),
        ),
        _averaged(x, 192, name),
    ]
    result: SymbolicTensor = nn.Concatenate()(branches)
    return result


def _second_reduction(x: SymbolicTensor, name: str) -> SymbolicTensor:
    y = _convolved(x, 192, 1, f"{name}.branch3x3_1")
    z = _chain(x, f"{name}.branch7x7x3", (192, 1), (192, _ROW), (192, _COLUMN))
    branches = [
        _convolved(y, 320, 3, f"{name}.branch3x3_2", 2, 0),
        _convolved(z, 192, 3, f"{name}.branch7x7x3_4", 2, 0),
        nn.MaxPooling2D(3, 2)(x),
    ]
    result: SymbolicTensor = nn.Concatenate()(branches)
    return result


def _widened(x: SymbolicTensor, name: str) -> SymbolicTensor:
    branches = [_convolved(x, 320, 1, f"{name}.branch1x1")]
    for y, start in (
        (_convolved(x, 384, 1, f"{name}.branch3x3_1"), f"{name}.branch3x3_2"),
        (
            _chain(x, f"{name}.branch3x3dbl", (448, 1), (384, 3)),
            f"{name}.branch3x3dbl_3",
        ),
    ):
        row = _convolved(y, 384, (1, 3), f"{start}a")
        branches += [row, _convolved(y, 384, (3, 1), f"{start}b")]
    result: SymbolicTensor = nn.Concatenate()([*branches, _averaged(x, 192, name)])
    return result


def _auxiliary(x: SymbolicTensor, classes: int) -> SymbolicTensor:
    """Append an auxiliary classifier, whose gradients reach the layers before it."""
    x = _convolved(nn.AveragePooling2D(5, 3)(x), 128, 1, "AuxLogits.conv0")
    x = _convolved(x, 768, 5, "AuxLogits.conv1", 1, 0)
    x = nn.GlobalAveragePooling2D()(x)
    result: SymbolicTensor = nn.Dense(classes, name="AuxLogits.fc")(x)
    return result
