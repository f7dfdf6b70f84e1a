"""Pooling to an output of a given size, whatever that of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from memcfg.nn._argument_checks import check_channels_last, numbers
from memcfg.nn.layers._layer import Layer, Scope
from memcfg.nn.layers._pool import check_windowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Shape

__all__ = [
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
]


def bins(length: int, count: int) -> list[tuple[int, int]]:
    """Return where each of so many windows begins and ends; they may overlap."""
    return [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]


def _along(scope: Scope, op: str, x: int, axis: int, count: int) -> int:
    """Append the reduction of an axis to a number of parts."""
    shape = scope.builder.shape(x)
    each, left = divmod(shape[axis], count)
    if not left:
        if each == 1:
            return x
        parts = {"shape": (*shape[:axis], count, each, *shape[axis + 1 :])}
        (x,) = scope.apply("reshape", (x,), parts)
        (x,) = scope.apply(op, (x,), {"axes": (axis + 1,), "keepdims": False})
        return x
    made: list[int] = []
    for first, last in bins(shape[axis], count):
        ends = {
            "begin": tuple(first if i == axis else 0 for i in range(len(shape))),
            "end": tuple(last if i == axis else n for i, n in enumerate(shape)),
        }
        (part,) = scope.apply("slice", (x,), ends)
        made += scope.apply(op, (part,), {"axes": (axis,), "keepdims": True})
    if len(made) == 1:
        return made[0]
    return scope.apply("concatenate", made, {"axis": axis})[0]


class _Adaptive(Layer):
    """Base class: each axis is divided into windows, whose lengths differ by one."""

    __slots__ = ("output_size",)

    rank: ClassVar[int]
    op: ClassVar[str]

    def __init__(
        self,
        output_size: int | tuple[int, ...],
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = type(self).__name__
        check_channels_last(data_format, kind)
        self.output_size = numbers(output_size, self.rank, f"{kind}: output_size")
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        check_windowed(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the reductions of one axis after the other."""
        (x,) = inputs
        for axis, count in enumerate(self.output_size, 1):
            x = _along(scope, self.op, x, axis, count)
        return x


class AdaptiveAveragePooling1D(_Adaptive):
    """Take the mean of windows that divide sequences into a number of parts.

    Parameters
    ----------
    output_size : int
        The number of steps of the output. Windows that cannot have one length
        overlap.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.AdaptiveAveragePooling1D(3)(mc.nn.Input((7, 4))).shape
    (None, 3, 4)
    """

    __slots__ = ()

    rank = 1
    op = "reduce_mean"


class AdaptiveAveragePooling2D(_Adaptive):
    """Take the mean of windows that divide images into a number of parts.

    Parameters
    ----------
    output_size : int or tuple of two int
        The height and width of the output. Windows that cannot have one length
        overlap.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.AdaptiveAveragePooling2D((2, 3))(mc.nn.Input((7, 9, 4))).shape
    (None, 2, 3, 4)
    """

    __slots__ = ()

    rank = 2
    op = "reduce_mean"


class AdaptiveMaxPooling1D(_Adaptive):
    """Take the maximum of windows that divide sequences into a number of parts.

    Parameters
    ----------
    output_size : int
        The number of steps of the output. Windows that cannot have one length
        overlap.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.AdaptiveMaxPooling1D(3)(mc.nn.Input((7, 4))).shape
    (None, 3, 4)
    """

    __slots__ = ()

    rank = 1
    op = "reduce_max"


class AdaptiveMaxPooling2D(_Adaptive):
    """Take the maximum of windows that divide images into a number of parts.

    Parameters
    ----------
    output_size : int or tuple of two int
        The height and width of the output. Windows that cannot have one length
        overlap.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.AdaptiveMaxPooling2D((2, 3))(mc.nn.Input((7, 9, 4))).shape
    (None, 2, 3, 4)
    """

    __slots__ = ()

    rank = 2
    op = "reduce_max"


class AdaptiveAveragePooling3D(_Adaptive):
    """Take the mean of windows that divide volumes into a number of parts.

    Parameters
    ----------
    output_size : int or tuple of three int
        The depth, height and width of the output. Windows that cannot have one length
        overlap.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    rank = 3
    op = "reduce_mean"


class AdaptiveMaxPooling3D(_Adaptive):
    """Take the maximum of windows that divide volumes into a number of parts.

    Parameters
    ----------
    output_size : int or tuple of three int
        The depth, height and width of the output. Windows that cannot have one length
        overlap.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    rank = 3
    op = "reduce_max"
