"""Pooling over images, channels-last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import (
    check_channels_last,
    padding_name,
    pair,
    resolve_padding,
)
from memcfg.nn.layers._layer import Layer, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AveragePooling2D",
    "AvgPool2D",
    "GlobalAveragePooling2D",
    "GlobalAvgPool2D",
    "MaxPool2D",
    "MaxPooling2D",
]


def _pooling2d(
    layer: MaxPooling2D | AveragePooling2D,
    pool_size: int | tuple[int, int] = (2, 2),
    strides: int | tuple[int, int] | None = None,
    padding: str = "valid",
    data_format: str | None = None,
    *,
    name: str | None = None,
) -> None:
    """Check and take the arguments of pooling: the constructor of both layers."""
    kind = type(layer).__name__
    check_channels_last(data_format, kind)
    layer.pool_size = pair(pool_size, f"{kind}: pool_size")
    layer.strides = (
        layer.pool_size if strides is None else pair(strides, f"{kind}: strides")
    )
    layer.padding = padding_name(padding, kind)
    Layer.__init__(layer, name)


def _window(
    layer: MaxPooling2D | AveragePooling2D, scope: Scope, x: int
) -> dict[str, Any]:
    """Return the attributes of a pooling op."""
    sizes = scope.builder.shape(x)[1:3]
    return {
        "pool_size": layer.pool_size,
        "strides": layer.strides,
        "padding": resolve_padding(
            layer.padding, sizes, layer.pool_size, layer.strides
        ),
    }


class MaxPooling2D(Layer):
    """Take the largest element of each window. Also named `MaxPool2D`.

    Parameters
    ----------
    pool_size : int or tuple of two int, default (2, 2)
        Height and width of the window, at most 256 places.
    strides : int or tuple of two int, optional
        Steps of the window. None: `pool_size`.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``; padding never wins.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("padding", "pool_size", "strides")

    pool_size: tuple[int, int]
    strides: tuple[int, int]
    padding: str

    __init__ = _pooling2d
    _reads_images = True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op; the winners' places are noted only when training."""
        kind = "max_pool2d" if scope.training else "max_pool2d_inference"
        return scope.apply(kind, inputs, _window(self, scope, inputs[0]))[0]


class AveragePooling2D(Layer):
    """Take the mean of each window, padding left out. Also named `AvgPool2D`.

    Parameters
    ----------
    pool_size : int or tuple of two int, default (2, 2)
        Height and width of the window, at most 256 places.
    strides : int or tuple of two int, optional
        Steps of the window. None: `pool_size`.
    padding : str, default "valid"
        ``"valid"`` or ``"same"``; padding does not count in the mean.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("padding", "pool_size", "strides")

    pool_size: tuple[int, int]
    strides: tuple[int, int]
    padding: str

    __init__ = _pooling2d
    _reads_images = True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        attributes = _window(self, scope, inputs[0])
        return scope.apply("average_pool2d", inputs, attributes)[0]


class GlobalAveragePooling2D(Layer):
    """Take the mean of each channel: ``(N, H, W, C)`` to ``(N, C)``.

    Also named `GlobalAvgPool2D`.

    Parameters
    ----------
    data_format : str, optional
        Only ``"channels_last"`` or None.
    keepdims : bool, default False
        Only False can be honoured yet.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ()

    _reads_images = True

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "GlobalAveragePooling2D")
        if keepdims:
            raise ValueError("GlobalAveragePooling2D: keepdims=True is not supported")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("global_average_pool2d", inputs)[0]


MaxPool2D = MaxPooling2D
AvgPool2D = AveragePooling2D
GlobalAvgPool2D = GlobalAveragePooling2D
