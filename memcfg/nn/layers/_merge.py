"""Layers that combine tensors element by element, along an axis, or as products."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._layer import Layer, Scope, Shape, show_shape
from memcfg.nn.layers._masking import either, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = [
    "Add",
    "Average",
    "Concatenate",
    "Dot",
    "Maximum",
    "Minimum",
    "Multiply",
    "Subtract",
    "add",
    "average",
    "broadcast",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]


def common_shape(shapes: Sequence[Shape]) -> Shape | None:
    """Return the broadcast shape of samples, by NumPy's rules; None if impossible."""
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    longest = tuple(map(max, zip(*wide, strict=True)))
    fit = all(n in (1, most) for w in wide for n, most in zip(w, longest, strict=True))
    return longest if fit else None


def broadcast(scope: Scope, inputs: Sequence[int]) -> list[int]:
    """Append the broadcast of all tensors to one shape; the batch is not broadcast."""
    builder = scope.builder
    common = common_shape([builder.shape(tensor)[1:] for tensor in inputs])
    if common is None:
        return list(inputs)  # the op raises
    result = []
    for tensor in inputs:
        batch, *sample = builder.shape(tensor)
        if len(sample) < len(common):
            more = [1] * (len(common) - len(sample))
            shape = (batch, *more, *sample)
            (tensor,) = scope.apply("reshape", (tensor,), {"shape": shape})
        if builder.shape(tensor)[1:] != common:
            shape = (batch, *common)
            (tensor,) = scope.apply("broadcast_to", (tensor,), {"shape": shape})
        result.append(tensor)
    return result


def aligned_masks(scope: Scope, inputs: Sequence[int]) -> list[int | None]:
    """Append the masks of tensors, adapted to the broadcast shape."""
    builder = scope.builder
    common = common_shape([builder.shape(tensor)[1:] for tensor in inputs])
    result: list[int | None] = []
    for tensor, mask in zip(inputs, scope.masks, strict=False):
        if mask is not None and common is not None:
            batch, *sample = builder.shape(tensor)
            shape = (batch, common[0])
            if len(sample) < len(common):
                mask = None  # after broadcasting, the first axis is not the steps
            elif builder.shape(mask) != shape:
                (mask,) = scope.apply("broadcast_to", (mask,), {"shape": shape})
        result.append(mask)
    return result or [None]


def _merge(scope: Scope, kind: str, inputs: Sequence[int]) -> int:
    """Append a binary op of all inputs, from left to right."""
    scope.mask = either(scope, aligned_masks(scope, inputs))
    first, *rest = broadcast(scope, inputs)
    for each in rest:
        (first,) = scope.apply(kind, (first, each))
    return first


def _merge_counted(scope: Scope, kind: str, inputs: Sequence[int]) -> int:
    """Append a binary op that ignores masked steps of inputs, as in Keras."""
    masks = aligned_masks(scope, inputs)
    if not any(mask is not None for mask in masks):
        return _merge(scope, kind, inputs)
    first, *rest = broadcast(scope, inputs)
    total, *others = masks
    shape = scope.builder.shape(first)
    for each, mask in zip(rest, others, strict=True):
        (both,) = scope.apply(kind, (first, each))
        if total is not None:  # a masked step takes the other input's value
            wide = spread(scope, total, shape)
            (both,) = scope.apply("choose", (wide, both, each))
        if mask is not None:
            wide = spread(scope, mask, shape)
            (both,) = scope.apply("choose", (wide, both, first))
        first, total = both, either(scope, (total, mask))
    scope.mask = total
    return first


def _check(layer: Layer, shapes: Sequence[Shape]) -> None:
    """Check that the shapes can be broadcast."""
    if common_shape(shapes) is None:
        shown = ", ".join(show_shape(shape) for shape in shapes)
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) expects tensors whose "
            f"shapes can be broadcast, got {shown}"
        )


class Add(Layer):
    """Add two tensors or more; lengths of 1 are broadcast.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((8,))
    >>> mc.nn.Add()([x, mc.nn.Dense(8)(x)]).shape
    (None, 8)
    """

    __slots__ = ()

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        _check(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the sum, from left to right."""
        return _merge(scope, "add", inputs)


class Subtract(Layer):
    """Subtract the second tensor from the first; lengths of 1 are broadcast.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    arity: ClassVar[int | None] = 2
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        _check(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the difference."""
        return _merge(scope, "subtract", inputs)


class Multiply(Layer):
    """Multiply two tensors or more; lengths of 1 are broadcast.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        _check(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the product, from left to right."""
        y = _merge_counted(scope, "multiply", inputs)
        if scope.mask is None:
            return y
        wide = spread(scope, scope.mask, scope.builder.shape(y))
        return scope.apply("masked", (wide, y))[0]


class Average(Layer):
    """Take the mean of two tensors or more; lengths of 1 are broadcast.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        _check(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the sum and its division."""
        total = _merge(scope, "add", inputs)
        factor = {"factor": 1 / len(inputs), "term": 0.0}
        return scope.apply("affine", (total,), factor)[0]


class Maximum(Layer):
    """Take the maximum of two tensors or more; lengths of 1 are broadcast.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        _check(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the maxima, from left to right."""
        return _merge_counted(scope, "maximum", inputs)


class Minimum(Layer):
    """Take the minimum of two tensors or more; lengths of 1 are broadcast.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        _check(self, shapes)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the minima, from left to right."""
        return _merge_counted(scope, "minimum", inputs)


class Concatenate(Layer):
    """Concatenate two tensors or more along an axis.

    Parameters
    ----------
    axis : int, default -1
        The axis; axis 0, the batch, is not supported.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x = mc.nn.Input((8,))
    >>> mc.nn.Concatenate()([x, mc.nn.Dense(2)(x)]).shape
    (None, 10)
    """

    __slots__ = ("axis",)

    arity: ClassVar[int | None] = None
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def __init__(self, axis: int = -1, *, name: str | None = None) -> None:
        self.axis = integer(axis, "Concatenate: axis", None)
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        rank = len(shapes[0]) + 1
        if not -rank < self.axis < rank or self.axis == 0:
            raise ValueError(
                f"layer {self.name!r} (Concatenate): axis must be an axis of a sample, "
                f"got axis={self.axis} for an input of shape {show_shape(shapes[0])}"
            )
        place = self.axis - 1 if self.axis > 0 else self.axis
        others = {(len(shape), shape[:place], shape[place:][1:]) for shape in shapes}
        if len(others) > 1:
            shown = ", ".join(show_shape(shape) for shape in shapes)
            raise ValueError(
                f"layer {self.name!r} (Concatenate) expects tensors that agree in all "
                f"axes but one, got {shown} with axis={self.axis}"
            )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op; masks are concatenated with the steps, else united."""
        builder, masks = scope.builder, scope.masks
        if self.axis % len(builder.shape(inputs[0])) > 1:
            scope.mask = either(scope, masks or [None])
        elif any(mask is not None for mask in masks):
            parts = []
            for tensor, mask in zip(inputs, masks, strict=True):
                if mask is None:
                    ones = {"shape": builder.shape(tensor)[:2], "value": 1.0}
                    (mask,) = scope.apply("fill", (), ones | {"dtype": "float32"})
                parts.append(mask)
            (scope.mask,) = scope.apply("concatenate", parts, {"axis": 1})
        return scope.apply("concatenate", inputs, {"axis": self.axis})[0]


class Dot(Layer):
    """Multiply two tensors and sum along an axis of each.

    Parameters
    ----------
    axes : int or tuple of int
        The axis of both tensors, or of each; axis 0, the batch, is not allowed.
    normalize : bool, default False
        Whether to normalise along the axes first, which gives cosines.
    name : str, optional
        The name, unique within a model.

    Examples
    --------
    >>> import memcfg as mc
    >>> x, y = mc.nn.Input((3, 5)), mc.nn.Input((10, 3))
    >>> mc.nn.Dot(axes=(1, 2))([x, y]).shape
    (None, 5, 10)
    """

    __slots__ = ("axes", "normalize")

    arity: ClassVar[int | None] = 2
    supports_masking: ClassVar[bool] = True
    _makes_mask: ClassVar[bool] = True

    def __init__(
        self, axes: Any, normalize: bool = False, *, name: str | None = None
    ) -> None:
        several = isinstance(axes, list | tuple)
        if several and len(axes) != 2:
            raise ValueError(f"Dot: axes must be one integer or two, got {axes!r}")
        both = axes if several else (axes, axes)
        self.axes = tuple(integer(axis, "Dot: an axis", None) for axis in both)
        self.normalize = bool(normalize)
        super().__init__(name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the shapes."""
        lengths = []
        for axis, shape in zip(self.axes, shapes, strict=True):
            rank = len(shape) + 1
            if not -rank < axis < rank or axis == 0:
                raise ValueError(
                    f"layer {self.name!r} (Dot): axes must be axes of a sample, got "
                    f"axes={self.axes} for an input of shape {show_shape(shape)}"
                )
            lengths.append(shape[axis - 1 if axis > 0 else axis])
        if len(set(lengths)) > 1:
            shown = " and ".join(show_shape(shape) for shape in shapes)
            raise ValueError(
                f"layer {self.name!r} (Dot): axes must have the same length, got "
                f"{shown} with axes={self.axes}"
            )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the matrix product over the remaining axes."""
        rows, columns = (
            self._matrix(scope, tensor, axis, last)
            for tensor, axis, last in zip(inputs, self.axes, (True, False), strict=True)
        )
        (y,) = scope.apply("matmul", (rows, columns))
        shape = [
            length
            for tensor, axis in zip(inputs, self.axes, strict=True)
            for length in _without(scope.builder.shape(tensor), axis)
        ]
        batch = scope.builder.shape(inputs[0])[0]
        return scope.apply("reshape", (y,), {"shape": (batch, *(shape or [1]))})[0]

    def _matrix(self, scope: Scope, x: int, axis: int, last: bool) -> int:
        """Append the reshape of each sample to a matrix with the axis last or first."""
        shape = scope.builder.shape(x)
        axis %= len(shape)
        if self.normalize:
            x = normalize(scope, x, axis)
        rest = _without(shape, axis)
        others = [i for i in range(1, len(shape)) if i != axis]
        axes = (0, *others, axis) if last else (0, axis, *others)
        if axes != tuple(range(len(shape))):
            (x,) = scope.apply("transpose", (x,), {"axes": axes})
        sides = (prod(rest), shape[axis]) if last else (shape[axis], prod(rest))
        return scope.apply("reshape", (x,), {"shape": (shape[0], *sides)})[0]


def _without(shape: Sequence[int], axis: int) -> list[int]:
    """Return the shape of a sample without an axis; axis 0 is the batch."""
    return [n for i, n in enumerate(shape) if i not in (0, axis % len(shape))]


def normalize(scope: Scope, x: int, axis: int) -> int:
    """Append a division by the norm along an axis, at least 1e-12."""
    shape = scope.builder.shape(x)
    (squares,) = scope.apply("multiply", (x, x))
    (total,) = scope.apply("reduce_sum", (squares,), {"axes": (axis,), "keepdims": 1})
    (factor,) = scope.apply("inverse_root", (total,), {"least": 1e-24})
    (factor,) = scope.apply("broadcast_to", (factor,), {"shape": shape})
    return scope.apply("multiply", (x, factor))[0]


def add(inputs: Sequence[SymbolicTensor], **options: Any) -> SymbolicTensor:
    """Add tensors, as the layer `Add`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Add(**options)(inputs)
    return result


def subtract(inputs: Sequence[SymbolicTensor], **options: Any) -> SymbolicTensor:
    """Subtract two tensors, as the layer `Subtract`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Subtract(**options)(inputs)
    return result


def multiply(inputs: Sequence[SymbolicTensor], **options: Any) -> SymbolicTensor:
    """Multiply tensors, as the layer `Multiply`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Multiply(**options)(inputs)
    return result


def average(inputs: Sequence[SymbolicTensor], **options: Any) -> SymbolicTensor:
    """Take the mean of tensors, as the layer `Average`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Average(**options)(inputs)
    return result


def maximum(inputs: Sequence[SymbolicTensor], **options: Any) -> SymbolicTensor:
    """Take the maximum of tensors, as the layer `Maximum`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Maximum(**options)(inputs)
    return result


def minimum(inputs: Sequence[SymbolicTensor], **options: Any) -> SymbolicTensor:
    """Take the minimum of tensors, as the layer `Minimum`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Minimum(**options)(inputs)
    return result


def concatenate(
    inputs: Sequence[SymbolicTensor], axis: int = -1, **options: Any
) -> SymbolicTensor:
    """Concatenate tensors along an axis, as the layer `Concatenate`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The tensors.
    axis : int, default -1
        The axis; axis 0 is the batch.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Concatenate(axis, **options)(inputs)
    return result


def dot(
    inputs: Sequence[SymbolicTensor], axes: Any = -1, **options: Any
) -> SymbolicTensor:
    """Multiply two tensors and sum along an axis of each, as the layer `Dot`.

    Parameters
    ----------
    inputs : sequence of SymbolicTensor
        The two tensors.
    axes : int or tuple of int, default -1
        The axis of both tensors, or of each; axis 0 is the batch.
    **options : Any
        Arguments of the layer.

    Returns
    -------
    SymbolicTensor
        The layer's result.
    """
    result: SymbolicTensor = Dot(axes, **options)(inputs)
    return result
