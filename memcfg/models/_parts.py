"""Pieces that several networks are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg import nn

if TYPE_CHECKING:
    from memcfg.nn import SymbolicTensor

__all__ = [
    "FAN_OUT",
    "Sizes",
    "adaptive_average",
    "batch_normalized",
    "ceil_pool",
    "normalized",
]

Sizes = tuple[int, int, int]  # height, width and channels of an image

# He et al., "Delving deep into rectifiers", ICCV 2015, by the outputs.
FAN_OUT = nn.VarianceScaling(2.0, "fan_out", "untruncated_normal")


def batch_normalized(
    x: SymbolicTensor, name: str, epsilon: float = 1e-5
) -> SymbolicTensor:
    """Normalise by the batch, with PyTorch's momentum of 0.1 for the new value."""
    result: SymbolicTensor = nn.BatchNormalization(
        momentum=0.9, epsilon=epsilon, name=name
    )(x)
    return result


def normalized(
    x: SymbolicTensor,
    filters: int,
    kernel_size: int | tuple[int, int],
    names: tuple[str, str],
    *,
    strides: int = 1,
    padding: Any = 0,
    epsilon: float = 1e-5,
    activation: str | None = "relu",
) -> SymbolicTensor:
    """Convolve without a bias and normalise; `names` are those of both layers."""
    x = nn.Conv2D(
        filters,
        kernel_size,
        strides,
        padding,
        use_bias=False,
        kernel_initializer=FAN_OUT,
        name=names[0],
    )(x)
    x = batch_normalized(x, names[1], epsilon)
    return x if activation is None else nn.Activation(activation)(x)


def ceil_pool(x: SymbolicTensor, pool_size: int, strides: int) -> SymbolicTensor:
    """Take maxima; a last window that begins in the image may end behind it."""
    beyond = tuple((0, -(size - pool_size) % strides) for size in x.sample_shape[:2])
    result: SymbolicTensor = nn.MaxPooling2D(pool_size, strides, beyond)(x)
    return result


def adaptive_average(x: SymbolicTensor, size: int) -> SymbolicTensor:
    """Take means of `size` windows an axis that cover it, as equal as can be.

    Window i of an axis of length n reaches from ``floor(i * n / size)`` to
    ``ceil((i + 1) * n / size)``, as in PyTorch's AdaptiveAvgPool2d. They may overlap,
    and repeat elements where n is smaller.
    """
    for axis in (1, 2):
        length = x.sample_shape[axis - 1]
        if length == size:
            continue
        parts = []
        for i in range(size):
            window = slice(i * length // size, -(-(i + 1) * length // size))
            part = x[:, window] if axis == 1 else x[:, :, window]
            parts.append(nn.ops.mean(part, axis=axis, keepdims=True))
        x = nn.Concatenate(axis)(parts)
    return x
