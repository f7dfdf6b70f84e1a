"""Pooling over sequences and images, channels-last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import (
    check_channels_last,
    numbers,
    padding_of,
    resolve_padding,
)
from memcfg.nn.layers._layer import Layer, Scope, WeightSpec
from memcfg.nn.layers._masking import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._argument_checks import Sides
    from memcfg.nn.layers._layer import Shape

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "AvgPool1D",
    "AvgPool2D",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPooling1D",
    "MaxPooling2D",
]

Window = int | tuple[int, ...]
Padding = str | int | tuple[int, ...] | tuple[tuple[int, int], ...]

_SLOTS = ("padding", "pool_size", "strides")


class _Windowed:
    """What pooling over windows has, beside `Layer`."""

    __slots__ = ()

    padding: str | Sides
    pool_size: tuple[int, ...]
    strides: tuple[int, ...]


def _take(
    layer: Any,
    pool_size: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    name: str | None,
) -> None:
    """Check and take the arguments of pooling."""
    kind, rank = type(layer).__name__, layer.rank
    check_channels_last(data_format, kind)
    layer.pool_size = numbers(pool_size, rank, f"{kind}: pool_size")
    steps = layer.pool_size if strides is None else strides
    layer.strides = numbers(steps, rank, f"{kind}: strides")
    layer.padding = padding_of(padding, rank, kind)
    Layer.__init__(layer, name)


def _specs(layer: Any, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
    """Check the rank; there are no weights."""
    wanted = "images (None, height, width, channels)"
    if layer.rank == 1:
        wanted = "sequences (None, steps, channels)"
    layer.require_rank(shapes[0], layer.rank + 1, wanted)
    return ()


def _pool(layer: Any, scope: Scope, x: int, kind: str) -> int:
    """Append a pooling op; a sequence is an image of one row."""
    one = (1,) * (2 - layer.rank)
    if one:
        samples, *sample = scope.builder.shape(x)
        (x,) = scope.apply("reshape", (x,), {"shape": (samples, 1, *sample)})
    size, strides = one + layer.pool_size, one + layer.strides
    sizes = scope.builder.shape(x)[1:3]
    attributes = {
        "pool_size": size,
        "strides": strides,
        "padding": resolve_padding(layer.padding, sizes, size, strides),
    }
    y = scope.apply(kind, (x,), attributes)[0]
    if one:
        samples, _, *sample = scope.builder.shape(y)
        (y,) = scope.apply("reshape", (y,), {"shape": (samples, *sample)})
    return y


def _trace_max(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the op; the winners' places are noted if gradients will ask."""
    kind = "max_pool2d" if scope.builder.training else "max_pool2d_inference"
    return _pool(layer, scope, inputs[0], kind)


def _trace_average(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the op."""
    return _pool(layer, scope, inputs[0], "average_pool2d")


def _reduce(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the reduction over all but samples and channels."""
    axes = list(range(1, layer.rank + 1))
    attributes = {"axes": axes, "keepdims": layer.keepdims}
    return scope.apply(layer.op, inputs, attributes)[0]


def _mean_of_steps(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the mean of the steps that count; of none it is zeros."""
    mask = scope.masks[0] if scope.masks else None
    if mask is None:
        return _reduce(layer, scope, inputs)
    (x,), over = inputs, {"axes": (1,), "keepdims": layer.keepdims}
    wide = spread(scope, mask, scope.builder.shape(x))
    counted = scope.apply("masked", (wide, x))
    totals = scope.apply("reduce_sum", counted, over)
    counts = scope.apply("reduce_sum", (wide,), over)
    return scope.apply("divide_no_nan", (*totals, *counts))[0]


def _take_global(
    layer: Any, data_format: str | None, keepdims: bool, name: str | None
) -> None:
    """Check and take the arguments of global pooling."""
    check_channels_last(data_format, type(layer).__name__)
    layer.keepdims = bool(keepdims)
    Layer.__init__(layer, name)


def _global_mean(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the op of its own that images have."""
    (y,) = scope.apply("global_average_pool2d", inputs)
    if not layer.keepdims:
        return y
    samples, channels = scope.builder.shape(y)
    return scope.apply("reshape", (y,), {"shape": (samples, 1, 1, channels)})[0]


class MaxPooling2D(_Windowed, Layer):
    """Take the largest element of each window. Also named `MaxPool2D`.

    Parameters
    ----------
    pool_size : int or tuple of two int, default (2, 2)
        Height and width of the window, at most 256 places.
    strides : int or tuple of two int, optional
        Steps of the window. None: `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding2D` takes them; padding never
        wins.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 2
    specs = _specs
    trace = _trace_max

    def __init__(
        self,
        pool_size: Window = (2, 2),
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)


class AveragePooling2D(_Windowed, Layer):
    """Take the mean of each window, padding left out. Also named `AvgPool2D`.

    Parameters
    ----------
    pool_size : int or tuple of two int, default (2, 2)
        Height and width of the window, at most 256 places.
    strides : int or tuple of two int, optional
        Steps of the window. None: `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding2D` takes them; padding does
        not count in the mean.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 2
    specs = _specs
    trace = _trace_average

    def __init__(
        self,
        pool_size: Window = (2, 2),
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)


class MaxPooling1D(_Windowed, Layer):
    """Take the largest element of each window of steps. Also named `MaxPool1D`.

    Parameters
    ----------
    pool_size : int, default 2
        Length of the window, at most 256.
    strides : int, optional
        Steps of the window. None: `pool_size`.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding1D` takes them; padding never
        wins.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 1
    specs = _specs
    trace = _trace_max

    def __init__(
        self,
        pool_size: Window = 2,
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)


class AveragePooling1D(_Windowed, Layer):
    """Take the mean of each window of steps. Also named `AvgPool1D`.

    Parameters
    ----------
    pool_size : int, default 2
        Length of the window, at most 256.
    strides : int, optional
        Steps of the window. None: `pool_size`.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding1D` takes them; padding does
        not count in the mean.
    data_format : str, optional
        Only ``"channels_last"`` or None.
    name : str, optional
        Unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 1
    specs = _specs
    trace = _trace_average

    def __init__(
        self,
        pool_size: Window = 2,
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)


class GlobalAveragePooling2D(Layer):
    """Take the mean of each channel: ``(N, H, W, C)`` to ``(N, C)``.

    Also named `GlobalAvgPool2D`.

    Parameters
    ----------
    data_format : str, optional
        Only ``"channels_last"`` or None.
    keepdims : bool, default False
        Whether height and width stay, of length 1.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 2
    op: ClassVar[str] = "reduce_mean"
    specs = _specs
    trace = _global_mean

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        _take_global(self, data_format, keepdims, name)


class GlobalAveragePooling1D(Layer):
    """Take the mean of each channel: ``(N, L, C)`` to ``(N, C)``.

    Also named `GlobalAvgPool1D`.

    Parameters
    ----------
    data_format : str, optional
        Only ``"channels_last"`` or None.
    keepdims : bool, default False
        Whether the axis of the steps stays, of length 1.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 1
    op: ClassVar[str] = "reduce_mean"
    specs = _specs
    trace = _mean_of_steps

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        _take_global(self, data_format, keepdims, name)


class GlobalMaxPooling2D(Layer):
    """Take the largest element of each channel: ``(N, H, W, C)`` to ``(N, C)``.

    Also named `GlobalMaxPool2D`.

    Parameters
    ----------
    data_format : str, optional
        Only ``"channels_last"`` or None.
    keepdims : bool, default False
        Whether height and width stay, of length 1.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 2
    op: ClassVar[str] = "reduce_max"
    specs = _specs
    trace = _reduce

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        _take_global(self, data_format, keepdims, name)


class GlobalMaxPooling1D(Layer):
    """Take the largest element of each channel: ``(N, L, C)`` to ``(N, C)``.

    Also named `GlobalMaxPool1D`.

    Parameters
    ----------
    data_format : str, optional
        Only ``"channels_last"`` or None.
    keepdims : bool, default False
        Whether the axis of the steps stays, of length 1.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 1
    op: ClassVar[str] = "reduce_max"
    specs = _specs
    trace = _reduce

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        _take_global(self, data_format, keepdims, name)


AvgPool1D, AvgPool2D = AveragePooling1D, AveragePooling2D
MaxPool1D, MaxPool2D = MaxPooling1D, MaxPooling2D
GlobalAvgPool1D, GlobalAvgPool2D = GlobalAveragePooling1D, GlobalAveragePooling2D
GlobalMaxPool1D, GlobalMaxPool2D = GlobalMaxPooling1D, GlobalMaxPooling2D
