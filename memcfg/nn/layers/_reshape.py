"""Layers that move, repeat, pad or crop elements."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import (
    check_channels_last,
    constant,
    integer,
    numbers,
    pair,
    sides,
)
from memcfg.nn.layers._axes import moved_back, moved_last
from memcfg.nn.layers._layer import Layer, Scope, Shape, show_shape
from memcfg.nn.loading._resize import check_interpolation, weights_along

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._argument_checks import Sides
__all__ = [
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "Permute",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
]

_SEQUENCES = "sequences (None, steps, features)"
_ENLARGING = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")
_IMAGES = "images (None, height, width, channels)"
_VOLUMES = "volumes (None, depth, height, width, channels)"


def reshape(scope: Scope, x: int, *shape: int) -> int:
    """Append a reshape of each sample."""
    batch = scope.builder.shape(x)[0]
    return scope.apply("reshape", (x,), {"shape": (batch, *shape)})[0]


class Reshape(Layer):
    """Reshape each sample.

    Parameters
    ----------
    target_shape : tuple of int
        The shape without the batch; one length may be -1, to be inferred from the
        others.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Reshape((-1, 2))(mc.nn.Input((6, 3))).shape
    (None, 9, 2)
    """

    __slots__ = ("target_shape",)

    def __init__(self, target_shape: Any, *, name: str | None = None) -> None:
        if not isinstance(target_shape, list | tuple):
            raise TypeError(
                f"Reshape: target_shape must be a tuple, got {target_shape!r}"
            )
        lengths = [integer(n, "Reshape: a length", None) for n in target_shape]
        if any(n < 1 and n != -1 for n in lengths) or lengths.count(-1) > 1:
            raise ValueError(
                "Reshape: lengths must be positive, except for one that may be -1; "
                f"got {tuple(lengths)}"
            )
        self.target_shape = tuple(lengths)
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shape."""
        self._shape(shapes[0])

    def _shape(self, shape: Shape) -> Shape:
        """Return the target shape for samples of a shape."""
        known = prod(n for n in self.target_shape if n > 0)
        rest, left = divmod(prod(shape), known)
        if left or (rest != 1 and -1 not in self.target_shape):
            raise ValueError(
                f"layer {self.name!r} (Reshape) cannot reshape {show_shape(shape)} to "
                f"{show_shape(self.target_shape)}: the numbers of elements differ"
            )
        return tuple(rest if n == -1 else n for n in self.target_shape)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        shape = self._shape(scope.builder.shape(inputs[0])[1:])
        return reshape(scope, inputs[0], *shape)


class Permute(Layer):
    """Reorder the axes of each sample.

    Parameters
    ----------
    dims : tuple of int
        The input axis of each output axis, from 1; axis 0, the batch, is not listed.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Permute((2, 1))(mc.nn.Input((6, 3))).shape
    (None, 3, 6)
    """

    __slots__ = ("dims",)

    def __init__(self, dims: Any, *, name: str | None = None) -> None:
        if not isinstance(dims, list | tuple) or sorted(dims) != list(
            range(1, len(dims) + 1)
        ):
            raise ValueError(
                "Permute: dims must be a permutation of the axes of a sample, from 1; "
                f"got {dims!r}"
            )
        self.dims = tuple(map(int, dims))
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        rank = len(self.dims)
        self.require_rank(shapes[0], rank, f"{rank} axes besides the batch")

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("transpose", inputs, {"axes": (0, *self.dims)})[0]


class RepeatVector(Layer):
    """Repeat each sample, a vector, to make a sequence.

    Parameters
    ----------
    n : int
        The number of repetitions.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.RepeatVector(4)(mc.nn.Input((3,))).shape
    (None, 4, 3)
    """

    __slots__ = ("n",)

    def __init__(self, n: int, *, name: str | None = None) -> None:
        self.n = integer(n, "RepeatVector: n")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        self.require_rank(shapes[0], 1, "vectors (None, features)")

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        batch, features = scope.builder.shape(inputs[0])
        x = reshape(scope, inputs[0], 1, features)
        shape = (batch, self.n, features)
        return scope.apply("broadcast_to", (x,), {"shape": shape})[0]


def _pad(scope: Scope, x: int, around: Sides) -> int:
    """Append padding with zeros of the axes between the batch and the channels."""
    if not any(map(any, around)):
        return x
    before, after = zip((0, 0), *around, (0, 0), strict=True)
    attributes = {"before": before, "after": after, "value": 0.0}
    return scope.apply("pad", (x,), attributes)[0]


def _check_crop(layer: Any, shape: Shape) -> None:
    for length, (before, after) in zip(shape, layer.cropping, strict=False):
        if before + after >= length:
            raise ValueError(
                f"layer {layer.name!r} ({type(layer).__name__}): "
                f"cropping={layer.cropping} removes all of an input of shape "
                f"{show_shape(shape)}"
            )


def _crop(scope: Scope, x: int, around: Sides) -> int:
    """Append the op that crops the axes between the batch and the channels."""
    if not any(map(any, around)):
        return x
    before, after = zip((0, 0), *around, (0, 0), strict=True)
    shape = scope.builder.shape(x)
    end = tuple(n - last for n, last in zip(shape, after, strict=True))
    return scope.apply("slice", (x,), {"begin": before, "end": end})[0]


class ZeroPadding1D(Layer):
    """Pad sequences with steps of zeros.

    Parameters
    ----------
    padding : int or tuple of int, default 1
        The number of steps at both ends, or ``(start, end)``.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("padding",)

    def __init__(
        self,
        padding: Any = 1,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "ZeroPadding1D")
        self.padding = sides(padding, 1, "ZeroPadding1D: padding")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        self.require_rank(shapes[0], 2, _SEQUENCES)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return _pad(scope, inputs[0], self.padding)


class ZeroPadding2D(Layer):
    """Pad images with zeros.

    Parameters
    ----------
    padding : int, tuple of int or tuple of tuple of int, default (1, 1)
        The number on all sides, ``(rows, columns)``, or ``((top, bottom), (left,
        right))``.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.ZeroPadding2D(((1, 0), (2, 2)))(mc.nn.Input((4, 4, 3))).shape
    (None, 5, 8, 3)
    """

    __slots__ = ("padding",)

    _reads_images = True

    def __init__(
        self,
        padding: Any = (1, 1),
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "ZeroPadding2D")
        self.padding = sides(padding, 2, "ZeroPadding2D: padding")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return _pad(scope, inputs[0], self.padding)


class Cropping1D(Layer):
    """Remove steps from the ends of sequences.

    Parameters
    ----------
    cropping : int or tuple of int, default (1, 1)
        The number of steps at both ends, or ``(start, end)``.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("cropping",)

    def __init__(self, cropping: Any = (1, 1), *, name: str | None = None) -> None:
        self.cropping = sides(cropping, 1, "Cropping1D: cropping")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shape."""
        self.require_rank(shapes[0], 2, _SEQUENCES)
        _check_crop(self, shapes[0])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return _crop(scope, inputs[0], self.cropping)


class Cropping2D(Layer):
    """Remove rows and columns from the borders of images.

    Parameters
    ----------
    cropping : int, tuple of int or tuple of tuple of int, default ((0, 0), (0, 0))
        The number on all sides, ``(rows, columns)``, or ``((top, bottom), (left,
        right))``.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("cropping",)

    def __init__(
        self,
        cropping: Any = ((0, 0), (0, 0)),
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "Cropping2D")
        self.cropping = sides(cropping, 2, "Cropping2D: cropping")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shape."""
        self.require_rank(shapes[0], 3, _IMAGES)
        _check_crop(self, shapes[0])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return _crop(scope, inputs[0], self.cropping)


def _repeat(scope: Scope, x: int, times: Sequence[int]) -> int:
    """Append ops that repeat elements along the axes between batch and channels."""
    batch, *sample = scope.builder.shape(x)
    *lengths, channels = sample
    once = [n for length in lengths for n in (length, 1)]
    wide = [n for pair_ in zip(lengths, times, strict=True) for n in pair_]
    x = reshape(scope, x, *once, channels)
    shape = {"shape": (batch, *wide, channels)}
    (x,) = scope.apply("broadcast_to", (x,), shape)
    return reshape(scope, x, *map(int.__mul__, lengths, times), channels)


class UpSampling1D(Layer):
    """Repeat each step of sequences.

    Parameters
    ----------
    size : int, default 2
        The number of repetitions.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("size",)

    def __init__(self, size: int = 2, *, name: str | None = None) -> None:
        self.size = integer(size, "UpSampling1D: size")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        self.require_rank(shapes[0], 2, _SEQUENCES)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        return _repeat(scope, inputs[0], (self.size,))


class UpSampling2D(Layer):
    """Enlarge images by integer factors.

    Parameters
    ----------
    size : int or tuple of int, default (2, 2)
        The factors of height and width.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    interpolation : str, default "nearest"
        Whether to repeat pixels, ``"nearest"``, or to interpolate between their
        centres: ``"bilinear"``, ``"bicubic"``, ``"lanczos3"`` or ``"lanczos5"``.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.UpSampling2D((2, 3))(mc.nn.Input((4, 4, 8))).shape
    (None, 8, 12, 8)
    """

    __slots__ = ("interpolation", "size")

    _reads_images = True

    def __init__(
        self,
        size: Any = (2, 2),
        data_format: str | None = None,
        interpolation: str = "nearest",
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "UpSampling2D")
        self.size = pair(size, "UpSampling2D: size")
        self.interpolation = check_interpolation(interpolation, _ENLARGING)
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        if self.interpolation == "nearest":
            return _repeat(scope, inputs[0], self.size)
        x = inputs[0]
        for axis, factor in enumerate(self.size, 1):
            if factor > 1 and self.interpolation == "bilinear":
                a = {"axis": axis, "factor": factor}
                (x,) = scope.apply("interpolate", (x,), a)
            elif factor > 1:
                wanted = factor * scope.builder.shape(x)[axis]
                x = resized_along(scope, x, axis, wanted, self.interpolation)
        return x


def resized_along(
    scope: Scope, x: int, axis: int, wanted: int, how: str, *, antialias: bool = False
) -> int:
    """Append the product of an axis with the weights of an interpolation."""
    length = scope.builder.shape(x)[axis]
    matrix = weights_along(length, wanted, how, antialias=antialias).T
    data = np.ascontiguousarray(matrix, ">f4").tobytes().hex()
    (kernel,) = scope.apply("constant", (), {"shape": matrix.shape, "data": data})
    turned = moved_last(scope, x, (axis,))
    (y,) = scope.apply("dense", (turned, kernel))
    return moved_back(scope, y, (axis,))


class ZeroPadding3D(Layer):
    """Pad volumes with zeros.

    Parameters
    ----------
    padding : int, tuple of int or tuple of tuple of int, optional
        The number on all sides, one for each axis, or a pair for each axis; 1 on all
        sides by default.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("padding",)

    def __init__(
        self,
        padding: Any = ((1, 1), (1, 1), (1, 1)),
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "ZeroPadding3D")
        self.padding = sides(padding, 3, "ZeroPadding3D: padding")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        self.require_rank(shapes[0], 4, _VOLUMES)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return _pad(scope, inputs[0], self.padding)


class Cropping3D(Layer):
    """Remove planes from the borders of volumes.

    Parameters
    ----------
    cropping : int, tuple of int or tuple of tuple of int
        The number on all sides, one for each axis, or a pair for each axis; 1 on all
        sides by default.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("cropping",)

    def __init__(
        self,
        cropping: Any = ((1, 1), (1, 1), (1, 1)),
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "Cropping3D")
        self.cropping = sides(cropping, 3, "Cropping3D: cropping")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shape."""
        self.require_rank(shapes[0], 4, _VOLUMES)
        _check_crop(self, shapes[0])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return _crop(scope, inputs[0], self.cropping)


class UpSampling3D(Layer):
    """Repeat the elements of volumes along each axis.

    Parameters
    ----------
    size : int or tuple of three int, default (2, 2, 2)
        The number of repetitions along depth, height and width.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("size",)

    def __init__(
        self,
        size: Any = (2, 2, 2),
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "UpSampling3D")
        self.size = numbers(size, 3, "UpSampling3D: size")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        self.require_rank(shapes[0], 4, _VOLUMES)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        return _repeat(scope, inputs[0], self.size)


class Rescaling(Layer):
    """Multiply by a factor and add an offset: ``y = x * scale + offset``.

    Parameters
    ----------
    scale : float or array_like
        The factor, or those along the last axes, such as one for each channel.
    offset : float or array_like, default 0.0
        The offset, or those along the last axes.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("offset", "scale")

    supports_masking: ClassVar[bool] = True

    def __init__(
        self, scale: Any, offset: Any = 0.0, *, name: str | None = None
    ) -> None:
        self.scale = _numbers(scale, "Rescaling: scale")
        self.offset = _numbers(offset, "Rescaling: offset")
        super().__init__(name)

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Compute on an array of any numbers at once, as a step of `Dataset.map`."""
        if isinstance(inputs, np.ndarray) and not (more or options):
            numbers = inputs.astype(np.float32)
            numbers *= np.array(self.scale, np.float32)
            numbers += np.array(self.offset, np.float32)
            return numbers
        return super().__call__(inputs, *more, **options)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Raise ValueError if several numbers do not match the last axes."""
        for name in ("scale", "offset"):
            lengths = np.shape(getattr(self, name))
            last = shapes[0][-len(lengths) :] if lengths else ()
            if len(last) < len(lengths) or any(
                n not in (1, wanted) for n, wanted in zip(lengths, last, strict=True)
            ):
                raise ValueError(
                    f"layer {self.name!r} (Rescaling): {name} of shape {lengths} does "
                    f"not fit {show_shape(shapes[0])}"
                )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append one op, or two for several numbers."""
        if not isinstance(self.scale, list) and not isinstance(self.offset, list):
            attributes = {"factor": self.scale, "term": self.offset}
            return scope.apply("affine", inputs, attributes)[0]
        (y,) = inputs
        for kind, given in (("multiply", self.scale), ("add", self.offset)):
            shape = scope.builder.shape(y)
            array = np.array(given, ">f4")
            constant = {
                "shape": (1,) * (len(shape) - array.ndim) + array.shape,
                "data": array.tobytes().hex(),
            }
            (wide,) = scope.apply("constant", (), constant)
            (wide,) = scope.apply("broadcast_to", (wide,), {"shape": shape})
            (y,) = scope.apply(kind, (y, wide))
        return y


def _numbers(value: Any, what: str) -> Any:
    """Return a number, or nested lists of them."""
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        for each in np.ravel(value):
            constant(each, what)
        return np.asarray(value, np.float32).tolist()
    return constant(value, what)
