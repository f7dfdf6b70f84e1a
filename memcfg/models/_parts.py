"""Building blocks that several networks share."""

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

# He et al., "Delving deep into rectifiers", ICCV 2015, with fan-out.
FAN_OUT = nn.VarianceScaling(2.0, "fan_out", "untruncated_normal")


def batch_normalized(
    x: SymbolicTensor, name: str, epsilon: float = 1e-5
) -> SymbolicTensor:
    """Append batch normalisation, with PyTorch's momentum of 0.1."""
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
    """Append a convolution without bias and normalisation, with these two names."""
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
    """Append max pooling whose last window may extend beyond the image (ceil mode)."""
    beyond = tuple((0, -(size - pool_size) % strides) for size in x.sample_shape[:2])
    result: SymbolicTensor = nn.MaxPooling2D(pool_size, strides, beyond)(x)
    return result


def adaptive_average(x: SymbolicTensor, size: int) -> SymbolicTensor:
    """Append adaptive average pooling to a height and width of `size`.

    Window i of an axis of length n reaches from ``floor(i * n / size)`` to
    ``ceil((i + 1) * n / size)``, as in PyTorch's AdaptiveAvgPool2d. Windows may
    overlap, and elements are repeated if n is smaller than `size`.
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
