"""Pooling over sequences, images and volumes, channels-last.

Windows of volumes are pooled by planes, and then along the depth: maxima of maxima, and
means of means, each of as many elements along an axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import (
    check_channels_last,
    numbers,
    padding_of,
    pair,
    resolve_padding,
)
from memcfg.nn.layers._conv import INPUTS
from memcfg.nn.layers._layer import Layer, Scope
from memcfg.nn.layers._masking import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._argument_checks import Sides
    from memcfg.nn.layers._layer import Shape

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "MaxUnpooling2D",
    "check_windowed",
]

Window = int | tuple[int, ...]
Padding = str | int | tuple[int, ...] | tuple[tuple[int, int], ...]

_SLOTS = ("padding", "pool_size", "strides")


class _Windowed:
    """Base class of the layers that pool over windows."""

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
    """Check and set the arguments of pooling."""
    kind, rank = type(layer).__name__, layer.rank
    check_channels_last(data_format, kind)
    layer.pool_size = numbers(pool_size, rank, f"{kind}: pool_size")
    steps = layer.pool_size if strides is None else strides
    layer.strides = numbers(steps, rank, f"{kind}: strides")
    layer.padding = padding_of(padding, rank, kind)
    Layer.__init__(layer, name)


def check_windowed(layer: Any, shapes: Sequence[Shape]) -> None:
    """Check the rank."""
    layer.require_rank(shapes[0], layer.rank + 1, INPUTS[layer.rank])


def _window(layer: Any, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of pooling images of a size."""
    one = (1,) * (2 - layer.rank)
    size, strides = one + layer.pool_size, one + layer.strides
    padding = resolve_padding(layer.padding, sizes, size, strides)
    return {"pool_size": size, "strides": strides, "padding": padding}


def _pool(layer: Any, scope: Scope, x: int, kind: str) -> int:
    """Append a pooling op; a sequence is treated as an image of one row."""
    if layer.rank == 3:
        return _pool_volumes(layer, scope, x, kind)
    one = (1,) * (2 - layer.rank)
    if one:
        samples, *sample = scope.builder.shape(x)
        (x,) = scope.apply("reshape", (x,), {"shape": (samples, 1, *sample)})
    y = scope.apply(kind, (x,), _window(layer, scope.builder.shape(x)[1:3]))[0]
    if one:
        samples, _, *sample = scope.builder.shape(y)
        (y,) = scope.apply("reshape", (y,), {"shape": (samples, *sample)})
    return y


def _pool_volumes(layer: Any, scope: Scope, x: int, kind: str) -> int:
    """Append the pooling of planes, and that of the depth."""

    def shaped(x: int, *shape: int) -> int:
        return scope.apply("reshape", (x,), {"shape": shape})[0]

    samples, depth, height, width, channels = scope.builder.shape(x)
    sizes = depth, height, width
    around = resolve_padding(layer.padding, sizes, layer.pool_size, layer.strides)
    planes = {
        "pool_size": layer.pool_size[1:],
        "strides": layer.strides[1:],
        "padding": around[1:],
    }
    x = shaped(x, samples * depth, height, width, channels)
    x = scope.apply(kind, (x,), planes)[0]
    _, height, width, _ = scope.builder.shape(x)
    along = {
        "pool_size": (layer.pool_size[0], 1),
        "strides": (layer.strides[0], 1),
        "padding": (around[0], (0, 0)),
    }
    x = shaped(x, samples, depth, height * width, channels)
    x = scope.apply(kind, (x,), along)[0]
    depth = scope.builder.shape(x)[1]
    return shaped(x, samples, depth, height, width, channels)


def _trace_max(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the op, with the indices of maxima if gradients need them."""
    kind = "max_pool2d" if scope.builder.training else "max_pool2d_inference"
    return _pool(layer, scope, inputs[0], kind)


def _trace_max_and_places(
    layer: Any, scope: Scope, inputs: Sequence[int]
) -> int | tuple[int, ...]:
    """Append the op; `return_indices` adds the indices to the results."""
    if not layer.return_indices:
        return _trace_max(layer, scope, inputs)
    attributes = _window(layer, scope.builder.shape(inputs[0])[1:3])
    return scope.apply("max_pool2d", inputs, attributes)


def _trace_average(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the op."""
    return _pool(layer, scope, inputs[0], "average_pool2d")


def _reduce(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the reduction over all axes except samples and channels."""
    axes = list(range(1, layer.rank + 1))
    attributes = {"axes": axes, "keepdims": layer.keepdims}
    return scope.apply(layer.op, inputs, attributes)[0]


def _mean_of_steps(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the mean of the unmasked steps, or zeros if there are none."""
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
    """Check and set the arguments of global pooling."""
    check_channels_last(data_format, type(layer).__name__)
    layer.keepdims = bool(keepdims)
    Layer.__init__(layer, name)


def _global_mean(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append the op for images."""
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
        The height and width of the window, at most 256 elements.
    strides : int or tuple of two int, optional
        The strides of the window, by default `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding2D` takes them; padding is
        never the maximum.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    return_indices : bool, default False
        Whether to return a pair of the maxima and their uint8 indices within the
        windows, for `MaxUnpooling2D`.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = (*_SLOTS, "return_indices")

    rank: ClassVar[int] = 2
    _check_shapes = check_windowed
    trace = _trace_max_and_places

    def __init__(
        self,
        pool_size: Window = (2, 2),
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        return_indices: bool = False,
        name: str | None = None,
    ) -> None:
        self.return_indices = bool(return_indices)
        _take(self, pool_size, strides, padding, data_format, name)


class MaxUnpooling2D(_Windowed, Layer):
    """Put each element at the position of a maximum, with zeros elsewhere.

    The layer is called on a list of images and the indices that `MaxPooling2D` with
    ``return_indices=True`` and the same windows returned.

    Parameters
    ----------
    pool_size : int or tuple of two int, default (2, 2)
        The height and width of the windows.
    strides : int or tuple of two int, optional
        The strides of the windows, by default `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        As for the pooling layer.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    output_size : tuple of two int, optional
        The height and width before pooling, by default the smallest possible with
        padding ``"valid"``. Required with other paddings.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Zeiler and Fergus, "Visualizing and understanding convolutional networks", ECCV
    2014.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((8, 6, 3))
    >>> y, places = mc.nn.MaxPooling2D(return_indices=True)(x)
    >>> mc.nn.MaxUnpooling2D()([y, places]).shape
    (None, 8, 6, 3)
    """

    __slots__ = (*_SLOTS, "output_size")

    arity: ClassVar[int | None] = 2
    rank: ClassVar[int] = 2
    _check_shapes = check_windowed

    def __init__(
        self,
        pool_size: Window = (2, 2),
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        output_size: tuple[int, int] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)
        what = "MaxUnpooling2D: output_size"
        self.output_size = None if output_size is None else pair(output_size, what)
        if self.output_size is None and self.padding != "valid":
            raise ValueError(f"{what} is required with padding={padding!r}")

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the gradient op of the pooling."""
        x, places = inputs
        samples, *sizes, channels = scope.builder.shape(x)
        out = self.output_size or tuple(
            (count - 1) * step + window
            for count, step, window in zip(
                sizes, self.strides, self.pool_size, strict=True
            )
        )
        attributes = {**_window(self, out), "input_shape": (samples, *out, channels)}
        return scope.apply("max_pool2d_gradient", (places, x), attributes)[0]


class AveragePooling2D(_Windowed, Layer):
    """Take the mean of each window, without padding. Also named `AvgPool2D`.

    Parameters
    ----------
    pool_size : int or tuple of two int, default (2, 2)
        The height and width of the window, at most 256 elements.
    strides : int or tuple of two int, optional
        The strides of the window, by default `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding2D` takes them; padding does
        not count in the mean.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 2
    _check_shapes = check_windowed
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
        The length of the window, at most 256.
    strides : int, optional
        The strides of the window, by default `pool_size`.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding1D` takes them; padding is
        never the maximum.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 1
    _check_shapes = check_windowed
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
        The length of the window, at most 256.
    strides : int, optional
        The strides of the window, by default `pool_size`.
    padding : str, int or tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding1D` takes them; padding does
        not count in the mean.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 1
    _check_shapes = check_windowed
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
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    keepdims : bool, default False
        Whether to keep the axes of height and width, with length 1.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 2
    op: ClassVar[str] = "reduce_mean"
    _check_shapes = check_windowed
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
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    keepdims : bool, default False
        Whether to keep the axis of the steps, with length 1.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    takes_mask: ClassVar[bool] = True
    _after_inputs: ClassVar[tuple[str, ...]] = ("mask",)
    rank: ClassVar[int] = 1
    op: ClassVar[str] = "reduce_mean"
    _check_shapes = check_windowed
    trace = _mean_of_steps
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

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
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    keepdims : bool, default False
        Whether to keep the axes of height and width, with length 1.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 2
    op: ClassVar[str] = "reduce_max"
    _check_shapes = check_windowed
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
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    keepdims : bool, default False
        Whether to keep the axis of the steps, with length 1.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 1
    op: ClassVar[str] = "reduce_max"
    _check_shapes = check_windowed
    trace = _reduce

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        _take_global(self, data_format, keepdims, name)


class MaxPooling3D(_Windowed, Layer):
    """Take the largest element of each window of volumes. Also named `MaxPool3D`.

    Parameters
    ----------
    pool_size : int or tuple of three int, default (2, 2, 2)
        The depth, height and width of the window; height and width have at most 256
        elements.
    strides : int or tuple of three int, optional
        The strides of the window, by default `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding3D` takes them; padding is
        never the maximum.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 3
    _check_shapes = check_windowed
    trace = _trace_max

    def __init__(
        self,
        pool_size: Window = (2, 2, 2),
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)


class AveragePooling3D(_Windowed, Layer):
    """Take the mean of each window of volumes. Also named `AvgPool3D`.

    Parameters
    ----------
    pool_size : int or tuple of three int, default (2, 2, 2)
        The depth, height and width of the window; height and width have at most 256
        elements.
    strides : int or tuple of three int, optional
        The strides of the window, by default `pool_size`.
    padding : str, int, tuple of int or tuple of tuple of int, default "valid"
        ``"valid"``, ``"same"`` or numbers as `ZeroPadding3D` takes them; padding does
        not count in the mean.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = _SLOTS

    rank: ClassVar[int] = 3
    _check_shapes = check_windowed
    trace = _trace_average

    def __init__(
        self,
        pool_size: Window = (2, 2, 2),
        strides: Window | None = None,
        padding: Padding = "valid",
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        _take(self, pool_size, strides, padding, data_format, name)


class GlobalAveragePooling3D(Layer):
    """Take the mean of each channel: ``(N, D, H, W, C)`` to ``(N, C)``.

    Also named `GlobalAvgPool3D`.

    Parameters
    ----------
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    keepdims : bool, default False
        Whether to keep the axes of the volume, with length 1.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 3
    op: ClassVar[str] = "reduce_mean"
    _check_shapes = check_windowed
    trace = _reduce

    def __init__(
        self,
        data_format: str | None = None,
        keepdims: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        _take_global(self, data_format, keepdims, name)


class GlobalMaxPooling3D(Layer):
    """Take the largest element of each channel: ``(N, D, H, W, C)`` to ``(N, C)``.

    Also named `GlobalMaxPool3D`.

    Parameters
    ----------
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    keepdims : bool, default False
        Whether to keep the axes of the volume, with length 1.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("keepdims",)

    keepdims: bool
    rank: ClassVar[int] = 3
    op: ClassVar[str] = "reduce_max"
    _check_shapes = check_windowed
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
AvgPool3D, MaxPool3D = AveragePooling3D, MaxPooling3D
GlobalAvgPool3D, GlobalMaxPool3D = GlobalAveragePooling3D, GlobalMaxPooling3D
