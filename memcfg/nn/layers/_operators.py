"""Operators on symbolic tensors: ``a + b``, ``2 * a``, ``a[:, -1]``, each one layer.

Each is exactly one layer, as in Keras, since a layer's distance from the output
determines the order of weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.errors import GraphError
from memcfg.graph import Builder
from memcfg.nn._argument_checks import constant, integer
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._integers import as_floats, filled_with
from memcfg.nn.layers._layer import (
    COMPARISONS,
    OPERATIONS,
    Layer,
    Scope,
    Shape,
    SymbolicTensor,
    Variable,
    WeightSpec,
    in_loss,
    is_whole,
    named_operation,
    operation,
    trace_whole,
    tried_with,
)
from memcfg.nn.layers._merge import (
    Add,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
    broadcast,
)
from memcfg.nn.layers._reshape import Rescaling
from memcfg.ops._dtypes import BFLOAT16, round_to_bfloat16, widen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "AlongLast",
    "Applied",
    "Constant",
    "Filled",
    "ForEachSample",
    "Function",
    "Gather",
    "GetItem",
    "Joined",
    "MaskOf",
    "Matmul",
    "OfBatch",
    "OfNumber",
    "OfWeight",
    "Operation",
    "Outputs",
    "OutputsOfOne",
    "Parameter",
    "Pointwise",
    "Power",
    "Reciprocal",
    "RowCount",
    "RowNumbers",
    "Rows",
    "Several",
    "apply_to",
    "as_tensor",
    "constant_tensor",
    "mask_of",
    "trace_whole",
]

_LARGEST_NUMBERED = 2**24  # rows: constants are of float32, exact up to there
_LARGEST_CONSTANT = 2**18  # elements: 1 MiB, which a graph's text has twice


class Constant(Layer):
    """An array as a part of the program; `data` has the bits of its float32 numbers."""

    __slots__ = ("data", "target", "target_shape")

    arity: ClassVar[int | None] = 0

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return True

    def __init__(
        self,
        target_shape: Sequence[int],
        data: str,
        target: str = "float32",
        *,
        name: str | None = None,
    ) -> None:
        self.target_shape = tuple(target_shape)
        self.data = data
        self.target = target
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the constant, and its conversion to integers."""
        shape = {"shape": self.target_shape, "data": self.data}
        (y,) = scope.apply("constant", inputs, shape)
        if self.target == "float32":
            return y
        return scope.apply("cast", (y,), {"dtype": self.target})[0]


class Parameter(Layer):
    """An array as a weight, which is there once for all samples."""

    __slots__ = ("learns", "target_shape")

    arity: ClassVar[int | None] = 0

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return True

    def __init__(
        self,
        target_shape: Sequence[int],
        learns: bool = True,
        *,
        name: str | None = None,
    ) -> None:
        self.target_shape = tuple(target_shape)
        self.learns = bool(learns)
        super().__init__(name)

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the array."""
        start = get_initializer("zeros")
        return (WeightSpec("value", self.target_shape, start, self.learns),)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the array."""
        return scope.weights["value"]


def as_tensor(value: Any, what: str, *, floats: bool = False) -> SymbolicTensor:
    """Return a symbolic tensor as it is, and a number or an array as a constant.

    Integers stay such, unless `floats`, which element-wise ops take.
    """
    if isinstance(value, SymbolicTensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.size == 0:
        raise TypeError(
            f"{what} must be a symbolic tensor, a number, or an array of numbers, got "
            f"{value!r}"
        )
    if array.size > _LARGEST_CONSTANT:
        raise ValueError(
            f"{what} is an array of {array.size} numbers: constants have at most "
            f"{_LARGEST_CONSTANT}: pass it as an input, or store it as a weight of a "
            "layer"
        )
    whole = array.dtype.kind in "iu" and not floats
    if whole and np.abs(array.astype(np.int64)).max() >= 2**24:
        return _large_integers(array, what)
    data = np.ascontiguousarray(array, ">f4").tobytes().hex()
    made: SymbolicTensor = Constant(array.shape, data, "int32" if whole else "float32")(
        []
    )
    return made


def _large_integers(array: Any, what: str) -> SymbolicTensor:
    """Return integers of 32 bits as constants, which are of float32, of 16 bits."""
    array = array.astype(np.int64)
    if not ((array >= -(2**31)) & (array < 2**31)).all():
        raise ValueError(f"{what}: integers must be of 32 bits")
    high, low = (as_tensor(each, what) for each in np.divmod(array, 2**16))
    upper = OfWeight("multiply")([high, as_tensor(2**16, what)])
    made: SymbolicTensor = OfWeight("add")([upper, low])
    return made


def constant_tensor(array: Any) -> SymbolicTensor:
    """Return numbers as a tensor of a function, in float32."""
    return as_tensor(np.array(array, np.float32), "an array")


def _with_batch(attributes: dict[str, Any], batch: int) -> dict[str, Any]:
    """Return attributes with the size of the batch in place of None in their tuples."""
    return {
        name: tuple(batch if each is None else each for each in value)
        if isinstance(value, list | tuple) and None in value
        else value
        for name, value in attributes.items()
    }


class Operation(Layer):
    """A function of tensors with axes of any length, called again for each length."""

    __slots__ = ("function", "label")

    def __init__(
        self, function: str, label: str = "", *, name: str | None = None
    ) -> None:
        self.function = function
        self.label = label or function
        super().__init__(name)
        self._is_built = True

    def _called(self) -> str:
        return self.label

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Connect the function to its arguments."""
        try:
            return self._join(*args, **options)
        except (TypeError, ValueError, IndexError) as error:
            kinds = (TypeError, ValueError, IndexError)
            kind = next(each for each in kinds if isinstance(error, each))
            raise kind(f"{error}{tried_with(args, options)}") from error

    def call(self, *args: Any, **options: Any) -> Any:
        """Call the function, with tensors of one length."""
        if self.function == "get_item" and isinstance(args[-1], list):
            args = (*args[:-1], tuple(args[-1]))  # which JSON does not have
        return OPERATIONS[self.function](*args, **options)


class Function(Layer):
    """An op on one tensor; None in a tuple of an attribute is the size of the batch."""

    __slots__ = ("attributes", "op")

    def __init__(
        self, op: str, attributes: dict[str, Any], *, name: str | None = None
    ) -> None:
        self.op = op
        self.attributes = attributes
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def _float_dtype(self, tensor: SymbolicTensor) -> str:
        """Return the target dtype of a cast, else the compute dtype."""
        dtype = self.attributes.get("dtype") if self.op == "cast" else None
        return super()._float_dtype(tensor) if dtype is None else str(dtype)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        shape = scope.builder.shape(inputs[0])
        attributes = _with_batch(self.attributes, shape[0] if shape else 1)
        return scope.apply(self.op, inputs, attributes)[0]


class Filled(Layer):
    """One number in the shape of a tensor, or in rows of other lengths.

    Of these there are `rows` for each sample.
    """

    __slots__ = ("lengths", "rows", "target", "value")

    def __init__(
        self,
        value: float,
        target: str = "float32",
        lengths: Sequence[int] | None = None,
        rows: int = 1,
        *,
        name: str | None = None,
    ) -> None:
        self.value = value
        self.target = target
        self.lengths = lengths
        self.rows = rows
        super().__init__(name)

    def _rows_of(self, operands: Sequence[SymbolicTensor]) -> int:
        own = super()._rows_of(operands)
        return own if self.lengths is None else self.rows

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op, which does not read the tensor."""
        shape = scope.builder.shape(inputs[0])
        if self.lengths is not None:
            shape = (shape[0] * self.rows, *self.lengths)
        if self.target == "int32":
            return filled_with(scope.builder, shape, int(self.value), self.name)
        attributes = {"shape": shape, "value": self.value, "dtype": self.target}
        return scope.apply("fill", (), attributes)[0]


class ForEachSample(Layer):
    """Repeat the first tensor, which has no batch, for each sample of the second."""

    __slots__ = ()

    arity: ClassVar[int | None] = 2

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append a reshape and a broadcast."""
        whole, like = inputs
        shape = scope.builder.shape(whole)
        (x,) = scope.apply("reshape", (whole,), {"shape": (1, *shape)})
        wide = {"shape": (scope.builder.shape(like)[0], *shape)}
        return scope.apply("broadcast_to", (x,), wide)[0]


class Rows(Layer):
    """A reshape to rows of other lengths, of which each sample has one or more."""

    __slots__ = ("lengths",)

    def __init__(self, lengths: Sequence[int], *, name: str | None = None) -> None:
        self.lengths = tuple(lengths)
        super().__init__(name)

    def _rows_of(self, operands: Sequence[SymbolicTensor]) -> int:
        (x,) = operands
        return x.node.rows * prod(x.sample_shape) // prod(self.lengths)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        count = prod(scope.builder.shape(inputs[0])) // prod(self.lengths)
        return scope.apply("reshape", inputs, {"shape": (count, *self.lengths)})[0]


class RowNumbers(Layer):
    """The numbers of rows, from 0; the tensor tells the size of the batch."""

    __slots__ = ("rows",)

    of_batch: ClassVar[bool] = True

    def __init__(self, rows: int, *, name: str | None = None) -> None:
        self.rows = rows
        super().__init__(name)

    def _rows_of(self, operands: Sequence[SymbolicTensor]) -> int:
        del operands
        return self.rows

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append a constant, in int32."""
        count = scope.builder.shape(inputs[0])[0] * self.rows
        if count > _LARGEST_NUMBERED:
            raise ValueError(
                f"{scope.name!r} numbers {count} rows: it numbers at most "
                f"{_LARGEST_NUMBERED}, so pass the numbers as an input, or use a "
                "smaller batch"
            )
        data = np.arange(count, dtype=">f4").tobytes().hex()
        (y,) = scope.apply("constant", (), {"shape": (count,), "data": data})
        return scope.apply("cast", (y,), {"dtype": "int32"})[0]


class RowCount(Layer):
    """The number of rows, in float32; the tensor tells the size of the batch."""

    __slots__ = ("rows",)

    of_batch: ClassVar[bool] = True

    def __init__(self, rows: int, *, name: str | None = None) -> None:
        self.rows = rows
        super().__init__(name)

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append a constant."""
        count = scope.builder.shape(inputs[0])[0] * self.rows
        number = {"shape": (), "value": float(count), "dtype": "float32"}
        return scope.apply("fill", (), number)[0]


class Joined(Layer):
    """Tensors one after another along an axis; those without a batch are repeated."""

    __slots__ = ("axis",)

    arity: ClassVar[int | None] = None

    def __init__(self, axis: int, *, name: str | None = None) -> None:
        self.axis = axis
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        shapes = [scope.builder.shape(tensor) for tensor in inputs]
        batch = max(shape[0] for shape in shapes)
        operands = []
        for tensor, shape in zip(inputs, shapes, strict=True):
            if self.axis and shape[0] == 1 < batch:
                wide = {"shape": (batch, *shape[1:])}
                (tensor,) = scope.apply("broadcast_to", (tensor,), wide)
            operands.append(tensor)
        return scope.apply("concatenate", operands, {"axis": self.axis})[0]


class OfBatch(Layer):
    """A reduction along the batch and other axes, by default to one number."""

    __slots__ = ("axes", "keepdims", "op")

    batch_size: ClassVar[int] = 1
    of_batch: ClassVar[bool] = True

    @property
    def _is_mean(self) -> bool:  # type: ignore[override]
        return self.axes is None and self.op == "reduce_mean"

    def _rows_of(self, operands: Sequence[SymbolicTensor]) -> int:
        del operands
        return 1

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        return self.axes is not None or super()._is_whole(operands)

    def __init__(
        self,
        op: str,
        keepdims: bool,
        axes: Sequence[int] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.op = op
        self.keepdims = keepdims
        self.axes = axes
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op and, for one number, a reshape to a batch of one."""
        if self.axes is not None:
            several = {"axes": tuple(self.axes), "keepdims": self.keepdims}
            return scope.apply(self.op, inputs, several)[0]
        rank = len(scope.builder.shape(inputs[0]))
        axes = {"axes": tuple(range(rank)), "keepdims": False}
        made = scope.apply(self.op, inputs, axes)
        shape = (1,) * (rank if self.keepdims else 1)
        return scope.apply("reshape", made, {"shape": shape})[0]


class Pointwise(Layer):
    """An op on several tensors; axes of length 1 are broadcast."""

    __slots__ = ("attributes", "op")

    arity: ClassVar[int | None] = None

    def __init__(
        self,
        op: str,
        attributes: dict[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.op = op
        self.attributes = attributes
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply(self.op, broadcast(scope, inputs), self.attributes)[0]


class OfNumber(Layer):
    """An op on each element with a number as the second operand."""

    __slots__ = ("number", "op")

    def __init__(self, op: str, number: float, *, name: str | None = None) -> None:
        self.op = op
        self.number = constant(number, f"{op}: a number")
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op, with the number rounded to the compute dtype."""
        number, builder = self.number, scope.builder
        if (builder.compute_dtype or builder.dtype(inputs[0])) == BFLOAT16:
            number = float(widen(round_to_bfloat16(np.array(number, np.float32))))
        return scope.apply(f"{self.op}_number", inputs, {"number": number})[0]


class Several(Layer):
    """An op on tensors as they are; None in an attribute is the last one's batch."""

    __slots__ = ("attributes", "op")

    arity: ClassVar[int | None] = None

    def __init__(
        self,
        op: str,
        attributes: dict[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.op = op
        self.attributes = attributes
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        batch = scope.builder.shape(inputs[-1])[0]
        attributes = _with_batch(self.attributes or {}, batch)
        return scope.apply(self.op, inputs, attributes)[0]


class OutputsOfOne(Layer):
    """All results of an op on one tensor."""

    __slots__ = ("attributes", "op")

    def __init__(
        self, op: str, attributes: dict[str, Any], *, name: str | None = None
    ) -> None:
        self.op = op
        self.attributes = attributes
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the op."""
        return scope.apply(self.op, inputs, self.attributes)


class Outputs(Layer):
    """All results of an op on a list of tensors as they are."""

    __slots__ = ("attributes", "op")

    arity: ClassVar[int | None] = None

    def __init__(
        self, op: str, attributes: dict[str, Any], *, name: str | None = None
    ) -> None:
        self.op = op
        self.attributes = attributes
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> Any:
        """Append the op."""
        return scope.apply(self.op, inputs, self.attributes)


class AlongLast(Layer):
    """An op on the last axes of two tensors; the axes before are broadcast."""

    __slots__ = ("op",)

    arity: ClassVar[int | None] = 2

    def __init__(self, op: str, *, name: str | None = None) -> None:
        self.op = op
        super().__init__(name)

    def _called(self) -> str:
        return self.op

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        shapes = [scope.builder.shape(tensor) for tensor in inputs]
        try:
            lead = np.broadcast_shapes(*(shape[:-1] for shape in shapes))
        except ValueError as error:
            raise GraphError(str(error)) from None
        operands = []
        for tensor, shape in zip(inputs, shapes, strict=True):
            wide = (*lead, shape[-1])
            if shape != wide:
                near = (*[1] * (len(wide) - len(shape)), *shape)
                (tensor,) = scope.apply("reshape", (tensor,), {"shape": near})
                (tensor,) = scope.apply("broadcast_to", (tensor,), {"shape": wide})
            operands.append(tensor)
        return scope.apply(self.op, operands)[0]


class Gather(Layer):
    """Take rows of a weight by index."""

    __slots__ = ()

    arity: ClassVar[int | None] = 2

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("gather", inputs)[0]


class Matmul(Layer):
    """Multiply the matrices in the last two axes."""

    __slots__ = ()

    arity: ClassVar[int | None] = 2

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("matmul", inputs)[0]


class Absolute(Layer):
    """Take the absolute value of each element."""

    __slots__ = ()

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("absolute", inputs)[0]


class OfWeight(Layer):
    """Combine tensors, of which at least one has no batch."""

    __slots__ = ("attributes", "op")

    arity: ClassVar[int | None] = None

    def __init__(
        self,
        op: str,
        attributes: dict[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.op = op
        self.attributes = attributes
        super().__init__(name)

    def _cannot_take(self, shown: str) -> str:
        return f"{self.op} cannot take tensors of shapes {shown}"

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op after broadcasting the operands by NumPy's rules."""
        if self.op == "matmul":
            return scope.apply("matmul", inputs)[0]
        shapes = [scope.builder.shape(tensor) for tensor in inputs]
        try:
            common = np.broadcast_shapes(*shapes)
        except ValueError:
            raise GraphError("they do not broadcast") from None
        operands = []
        for tensor, shape in zip(inputs, shapes, strict=True):
            if len(shape) < len(common):
                more = [1] * (len(common) - len(shape))
                (tensor,) = scope.apply(
                    "reshape", (tensor,), {"shape": (*more, *shape)}
                )
            if shape != common:
                (tensor,) = scope.apply("broadcast_to", (tensor,), {"shape": common})
            operands.append(tensor)
        return scope.apply(self.op, operands, self.attributes)[0]


class MaskOf(Layer):
    """The mask of a layer's result, of its inputs and their masks.

    `places` holds the positions of the masks among the inputs, or None.
    """

    __slots__ = ("layer", "places")

    arity: ClassVar[int | None] = None

    def __init__(self, layer: Layer, places: Sequence[int | None]) -> None:
        self.layer = layer
        self.places = places
        super().__init__()

    def _operands(self, inputs: Any) -> tuple[SymbolicTensor, ...]:
        """Return one tensor, or several."""
        return tuple(inputs)

    def mask(self, scope: Scope, inputs: Sequence[int]) -> int | None:
        """Append the layer's ops, of which the mask needs some; return the mask."""
        count = len(inputs) - sum(place is not None for place in self.places)
        builder = scope.builder
        shapes = [builder.shape(each)[1:] for each in inputs[:count]]
        weights = {
            spec.name: builder.apply(
                "fill", (), {"shape": spec.shape, "value": 0.0, "dtype": spec.dtype}
            )[0]
            for spec in self.layer.weight_specs or self.layer.specs(shapes)
        }
        masks = [None if place is None else inputs[place] for place in self.places]
        inner = replace(scope, weights=weights, masks=masks, penalties=[], sums=[])
        inner.run(self.layer, inputs[:count])
        return inner.mask if inner.mask is None or isinstance(inner.mask, int) else None

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops of the mask."""
        made = self.mask(scope, inputs)
        assert made is not None  # `mask_of` has tried it
        return made


def mask_of(layer: Layer, inputs: Any, mask: Any) -> Any:
    """Return the mask of a layer's result; None if no step is masked."""
    several = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
    masks = mask if isinstance(mask, list | tuple) else [mask] * (mask is not None)
    given = [each for each in masks if each is not None]
    counted = iter(range(len(several), len(several) + len(given)))
    places = [None if each is None else next(counted) for each in masks]
    of = MaskOf(layer, places)
    builder = Builder(layer.name)
    operands = [
        builder.tensor(f"input {i}", _lengths(each), _kind(each), "input")
        for i, each in enumerate([*several, *given])
    ]
    if of.mask(Scope(builder, layer.name, {}, training=False), operands) is None:
        return None
    return _masked(of, [*several, *given])


@operation
def _masked(of: MaskOf, tensors: Any) -> Any:
    return of(tensors)


def _lengths(x: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or an array, with 1 for a batch of any size."""
    return tuple(1 if n is None else n for n in getattr(x, "shape", np.shape(x)))


def _kind(x: Any) -> str:
    """Return the dtype in which a tensor or an array is computed with."""
    if isinstance(x, SymbolicTensor):
        return x.sample_dtype
    return "int32" if np.asarray(x).dtype.kind in "iu" else "float32"


class Applied(Layer):
    """Apply a regularizer or a constraint to a tensor without a batch."""

    __slots__ = ("of",)

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__()

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops."""
        made: int = self.of.trace(scope.builder, as_floats(scope.builder, inputs[0]))
        return made


@operation
def apply_to(of: Any, x: Any) -> Any:
    """Return what a regularizer or a constraint makes of a tensor without a batch."""
    if not is_whole(x):
        raise TypeError(
            f"{type(of).__name__} needs an array, a weight, or a tensor of a function, "
            f"got {x!r}: pass it to a layer, as in kernel_regularizer="
        )
    return Applied(of)(x)


class Reciprocal(Layer):
    """Divide a number by each element."""

    __slots__ = ("number",)

    def __init__(self, number: float = 1.0, *, name: str | None = None) -> None:
        self.number = constant(number, "Reciprocal: number")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        return scope.apply("quotient", inputs, {"number": self.number})[0]


class Power(Layer):
    """Raise each element to a power, as `numpy.power` does."""

    __slots__ = ("exponent",)

    def __init__(self, exponent: float, *, name: str | None = None) -> None:
        self.exponent = constant(exponent, "Power: exponent")
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op; squares and cubes are products."""
        (x,), exponent = inputs, self.exponent
        if exponent == 0.5:
            return scope.apply("root", (x,), {"term": -0.0})[0]
        if exponent == -1:
            return scope.apply("quotient", (x,), {"number": 1.0})[0]
        if exponent not in (1, 2, 3):
            return scope.apply("power", (x,), {"exponent": exponent})[0]
        y = x
        for _ in range(int(exponent) - 1):
            (y,) = scope.apply("multiply", (y, x))
        return y


class GetItem(Layer):
    """Take a slice of each sample, with some axes reversed, in a new shape."""

    __slots__ = ("begin", "end", "reverse", "strides", "target_shape")

    def __init__(
        self,
        begin: Shape,
        end: Shape,
        strides: Shape,
        reverse: Sequence[int],
        target_shape: Shape,
        *,
        name: str | None = None,
    ) -> None:
        self.begin, self.end, self.strides = begin, end, strides
        self.reverse, self.target_shape = tuple(reverse), target_shape
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the necessary ops."""
        (x,) = inputs
        shape = scope.builder.shape(x)
        batch = len(shape) - len(self.begin)  # 0 for a tensor that has none
        part = {
            "begin": (*(0,) * batch, *self.begin),
            "end": (*shape[:batch], *self.end),
            "strides": (*(1,) * batch, *self.strides),
        }
        if (part["begin"], part["end"]) != ((0,) * len(shape), shape) or any(
            step > 1 for step in self.strides
        ):
            (x,) = scope.apply("slice", (x,), part)
        if self.reverse:
            (x,) = scope.apply("reverse", (x,), {"axes": self.reverse})
        target = (*shape[:batch], *self.target_shape)
        if scope.builder.shape(x) != target:
            (x,) = scope.apply("reshape", (x,), {"shape": target})
        return x


_OF_TENSORS: dict[str, Callable[[], Layer]] = {
    "add": Add,
    "subtract": Subtract,
    "multiply": Multiply,
    "divide": partial(Pointwise, "divide"),
    "matmul": Matmul,
    "maximum": Maximum,
    "minimum": Minimum,
    "power": partial(Pointwise, "power_of"),
    **{
        kind: partial(Pointwise, kind)
        for kind in (
            *("less", "less_equal", "equal", "not_equal"),
            *("remainder", "truncated_remainder", "floor_divide", "divide_or_zero"),
            *("arctan2", "hypotenuse", "log_add_exp", "log_add_exp2"),
            *("logical_and", "logical_or", "logical_xor", "heaviside"),
            *("greater_not_nan", "smaller_not_nan"),
        )
    },
}


# The same comparison with swapped operands.
_SWAPPED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
# The layer of an operator whose right operand is a number. Products use the term -0.0,
# since adding 0.0 would change -0.0 to 0.0.
_OF_NUMBER: dict[str, Callable[[float], Layer]] = {
    "add": lambda number: Rescaling(1, number),
    "subtract": lambda number: Rescaling(1, -number),
    "multiply": lambda number: Rescaling(number, -0.0),
    "power": Power,
    **{
        kind: partial(OfNumber, kind)
        for kind in ("divide", "maximum", "minimum", *_SWAPPED)
    },
}
# The layer of an operator whose left operand is a number.
_OF_LEFT_NUMBER: dict[str, Callable[[float], Layer]] = {
    "power": lambda number: Function("exponential_of", {"base": number}),
    "subtract": lambda number: Rescaling(-1, number),
    "divide": Reciprocal,
    **{kind: _OF_NUMBER[kind] for kind in ("add", "multiply", "maximum", "minimum")},
    **{kind: _OF_NUMBER[swapped] for kind, swapped in _SWAPPED.items()},
}


_OF_WHOLE = {"power": "power_of"}


def check_batch(kind: str, tensors: Sequence[SymbolicTensor]) -> None:
    """Raise ValueError if one without a batch would be broadcast along the batch."""
    rank = max((len(each.shape) for each in tensors if not each.whole), default=0)
    for each in tensors:
        first = each.shape[: max(len(each.shape) - rank + 1, 0)]  # beside the batch
        if rank and each.whole and first not in ((), (1,)):
            raise ValueError(
                f"{kind}: {each!r} has no batch and would be combined with each sample "
                f"of a tensor of {rank} axes: at most {rank - 1} axes, or a first one "
                "of length 1"
            )


def _of_two(kind: str, a: SymbolicTensor, b: SymbolicTensor) -> Any:
    if kind in ("greater", "greater_equal"):
        kind, a, b = _SWAPPED[kind], b, a
    if a.whole or b.whole:
        if kind != "matmul":
            check_batch(kind, [a, b])
        return OfWeight(_OF_WHOLE.get(kind, kind))([a, b])
    if in_loss.get() and a.node.batch_size != b.node.batch_size:
        raise ValueError(
            "a scalar of the whole batch cannot be combined with samples: reduce "
            "along the axes of a sample, as in ops.mean(x, axis=-1, keepdims=True)"
        )
    if len(a.shape) != len(b.shape):
        raise ValueError(
            f"operands must have the same rank, got shapes {a.shape} and {b.shape}: "
            "add an axis, as in h[:, None]"
        )
    return _OF_TENSORS[kind]()([a, b])


def _in_order(a: Any, b: Any, swapped: bool) -> tuple[Any, Any]:
    return (b, a) if swapped else (a, b)


def _in_function(value: Any) -> Any:
    """Return a weight in a function as a tensor, and anything else as it is."""
    symbol = value.functions.symbol(value) if isinstance(value, Variable) else None
    return value if symbol is None else symbol


def _is_integer(value: Any) -> bool:
    """Return whether a value is an integer of 32 bits."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and -(2**31) <= value < 2**31


@named_operation
def binary(kind: str, a: Any, b: Any) -> Any:
    """Return the result of an operator with at least one symbolic operand."""
    a, b = _in_function(a), _in_function(b)
    if isinstance(a, SymbolicTensor) and isinstance(b, SymbolicTensor):
        return _of_two(kind, a, b)
    if isinstance(a, SymbolicTensor):
        tensor, other, reflected = a, b, False
    else:
        tensor, other, reflected = b, a, True
    if isinstance(other, np.ndarray) and other.ndim == 0:
        other = other[()]
    if isinstance(other, np.ndarray | list | tuple):
        numbers = as_tensor(other, kind, floats=tensor.sample_dtype != "int32")
        return _of_two(kind, *_in_order(tensor, numbers, reflected))
    logical = kind in COMPARISONS or kind.startswith("logical")
    if logical and isinstance(other, bool | np.bool_):
        other = float(other)
    if tensor.sample_dtype == "int32" and _is_integer(other):
        return _of_two(kind, *_in_order(tensor, as_tensor(other, kind), reflected))
    if isinstance(other, bool) or not isinstance(
        other, int | float | np.integer | np.floating
    ):
        return NotImplemented
    result = (_OF_LEFT_NUMBER if reflected else _OF_NUMBER).get(kind)
    if result is not None:
        return result(float(other))(tensor)
    if kind == "matmul":
        return NotImplemented
    number = as_tensor(float(other), kind)
    return _of_two(kind, *_in_order(tensor, number, reflected))


@named_operation
def negative(tensor: SymbolicTensor) -> Any:
    """Return ``-tensor``."""
    if tensor.sample_dtype == "int32":
        return binary("multiply", tensor, -1)
    return Rescaling(-1, -0.0)(tensor)


@named_operation
def absolute(tensor: SymbolicTensor) -> Any:
    """Return ``abs(tensor)``."""
    return Absolute()(tensor)


@named_operation
def get_item(tensor: SymbolicTensor, key: Any) -> Any:
    """Return ``tensor[key]``; the batch cannot be indexed."""
    rank = len(tensor.shape)
    begin, end, strides, reverse, shape = [], [], [], [], []
    axis = 0
    for each in _expanded(tensor, key, rank):
        if each is None:
            if not axis and not tensor.whole:
                raise _no_batch(tensor)
            shape.append(1)
            continue
        if axis == 0 and not tensor.whole:
            if each != slice(None):
                raise _no_batch(tensor)
            axis = 1
            continue
        length = int(tensor.shape[axis] or 1)
        first, count, step = _places(tensor, each, length, axis)
        last = first + (count - 1) * step
        begin.append(min(first, last))
        end.append(max(first, last) + 1)
        strides.append(abs(step))
        if step < 0 and count > 1:
            reverse.append(axis)
        if isinstance(each, slice):
            shape.append(count)
        axis += 1
    places = tuple(begin), tuple(end), tuple(strides)
    return GetItem(*places, reverse, tuple(shape))(tensor)


def _expanded(tensor: SymbolicTensor, key: Any, rank: int) -> list[Any]:
    """Return one key per axis, with None for new axes."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for each in keys:
        known = each is None or each is Ellipsis or isinstance(each, slice)
        if not known and (
            isinstance(each, bool) or not isinstance(each, int | np.integer)
        ):
            raise TypeError(
                f"{tensor!r} can be indexed with integers, slices, None and ..., got "
                f"{each!r}"
            )
    dots = [i for i, each in enumerate(keys) if each is Ellipsis]
    missing = rank - sum(each is not None and each is not Ellipsis for each in keys)
    if missing < 0 or len(dots) > 1:
        raise IndexError(f"too many indices for {tensor!r}: {key!r}")
    place = dots[0] if dots else len(keys)
    return [*keys[:place], *[slice(None)] * missing, *keys[place + 1 :]]


def _places(
    tensor: SymbolicTensor, key: Any, length: int, axis: int
) -> tuple[int, int, int]:
    """Return the first index, count and step of a key for an axis."""
    if not isinstance(key, slice):
        index = integer(key, "an index", None)
        if not -length <= index < length:
            raise IndexError(
                f"index {index} is out of range for axis {axis} of {tensor!r}"
            )
        return index % length, 1, 1
    first, last, step = key.indices(length)
    count = len(range(first, last, step))
    if not count:
        raise ValueError(f"{key} selects nothing of axis {axis} of {tensor!r}")
    return first, count, step


def _no_batch(tensor: SymbolicTensor) -> ValueError:
    return ValueError(
        f"axis 0 of {tensor!r} is the batch and cannot be indexed: start with a colon, "
        "as in h[:, 0]"
    )
