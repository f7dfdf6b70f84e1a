"""Ops of int32 tensors that stay integers, as in Keras.

Arithmetic keeps the lower 32 bits of a result, as NumPy's does. Comparisons are 1 or 0
in float32, as of floats. Ops that move or sort elements of float32 take the upper and
the lower 16 bits of integers, which float32 holds exactly. Products of matrices are
sums of those of bytes, exact in float32, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.graph import Builder

__all__ = ["as_floats", "filled_with", "of_integers"]

_ARITHMETIC = frozenset(
    {
        *("add", "subtract", "multiply", "maximum", "minimum", "power_of"),
        *("floor_divide", "remainder", "truncated_remainder"),
    }
)
_COMPARISONS = frozenset({"less", "less_equal", "equal", "not_equal"})
_MOVES = frozenset({"gather", "take_along", "triangle"})
_OF_NO_NAN = {"greater_not_nan": "maximum", "smaller_not_nan": "minimum"}
_BYTE, _BYTES = 8, 4  # bits of a byte, bytes of an integer
_TERMS = 256  # of a sum of products of two bytes, which is less than 2**24
_FOLDS = {"reduce_sum": "add", "reduce_max": "maximum"}


class _Integers:
    """Appends ops of integers."""

    def __init__(self, builder: Builder, name: str) -> None:
        self._builder = builder
        self._name = name

    def __call__(self, kind: str, a: int, b: int) -> int:
        """Append an op of two integers."""
        name = f"{self._name}/{kind}"
        return self._builder.apply(f"integer_{kind}", (a, b), name=name)[0]

    def cast(self, tensor: int, dtype: str) -> int:
        """Append a conversion, if it is needed."""
        if self._builder.dtype(tensor) == dtype:
            return tensor
        return self._builder.apply("cast", (tensor,), {"dtype": dtype})[0]

    def filled(self, like: int, value: int) -> int:
        """Append a constant of a tensor's shape, of at most 24 bits."""
        return self.fill(self._builder.shape(like), value)

    def fill(self, shape: tuple[int, ...], value: int) -> int:
        """Append a constant of a shape; one of more bits from its two halves."""
        if abs(value) > 2**24:
            high, low = (self.fill(shape, each) for each in divmod(value, 2**16))
            return self("add", self("multiply", high, self.fill(shape, 2**16)), low)
        data = {"shape": shape, "value": float(value), "dtype": "float32"}
        return self.cast(self._builder.apply("fill", (), data)[0], "int32")

    def rectified(self, x: int) -> int:
        """Append x where it is positive, else 0."""
        return self("maximum", x, self.filled(x, 0))

    def same(self, x: int) -> int:
        """Append a copy."""
        return self._builder.apply("reshape", (x,), {"shape": self._builder.shape(x)})[
            0
        ]

    def moved(self, kind: str, x: int, others: Sequence[int], attributes: Any) -> int:
        """Append an op of floats that moves elements, of both halves of integers."""
        halves = [
            self._builder.apply(kind, (half, *others), attributes)[0]
            for half in self._halves(x)
        ]
        high, low = (self.cast(half, "int32") for half in halves)
        return self("add", self("multiply", high, self.filled(high, 2**16)), low)

    def _halves(self, x: int) -> tuple[int, int]:
        """Append the upper and the lower 16 bits as floats."""
        high = self._builder.apply("right_shift", (x, self.filled(x, 16)))[0]
        low = self._builder.apply("bitwise_and", (x, self.filled(x, 2**16 - 1)))[0]
        return self.cast(high, "float32"), self.cast(low, "float32")

    def order(self, x: int, attributes: Any) -> int:
        """Append the places that sort rows: by the lower half, then by the upper one.

        A row has less than 2**24 places.
        """
        high, low = self._halves(x)

        def apply(kind: str, *inputs: int) -> int:
            given = attributes if kind == "order" else None
            return self._builder.apply(kind, inputs, given)[0]

        first = apply("order", low)
        second = apply("order", apply("take_along", high, first))
        places = apply("take_along", self.cast(first, "float32"), second)
        return self.cast(places, "int32")

    def folded(self, kind: str, x: int, attributes: Mapping[str, Any]) -> int:
        """Append a reduction by an op of two integers: of both halves, again and again.

        The odd one at the end is combined with the first.
        """
        shape = [*self._builder.shape(x)]
        axes = {axis % len(shape) for axis in attributes["axes"]}
        for axis in sorted(axes):
            while shape[axis] > 1:
                length, half = shape[axis], shape[axis] // 2
                y = self(
                    kind,
                    self._part(x, axis, 0, half),
                    self._part(x, axis, half, 2 * half),
                )
                if length % 2:
                    last = self._part(x, axis, length - 1, length)
                    first = self(kind, self._part(y, axis, 0, 1), last)
                    rest = [self._part(y, axis, 1, half)] if half > 1 else []
                    y = self._builder.apply(
                        "concatenate", [first, *rest], {"axis": axis}
                    )[0]
                x, shape[axis] = y, half
        if not attributes.get("keepdims"):
            shape = [n for axis, n in enumerate(shape) if axis not in axes]
        return self._builder.apply("reshape", (x,), {"shape": tuple(shape)})[0]

    def product(self, a: int, b: int, attributes: Mapping[str, Any] | None) -> int:
        """Append a product of matrices, of the lower 32 bits of its elements."""
        turned = attributes or {}
        along = [
            len(self._builder.shape(x)) - (2 if bool(turned.get(name)) == first else 1)
            for x, name, first in ((a, "transpose_a", True), (b, "transpose_b", False))
        ]
        length = self._builder.shape(a)[along[0]]
        dtype, self._builder.compute_dtype = self._builder.compute_dtype, None
        terms = []
        for begin in range(0, length, _TERMS):
            rows, columns = (
                self._bytes(self._part(x, axis, begin, min(begin + _TERMS, length)))
                for x, axis in zip((a, b), along, strict=True)
            )
            for i in range(_BYTES):
                for j in range(_BYTES - i):
                    pair = rows[i], columns[j]
                    (sums,) = self._builder.apply("matmul", pair, attributes)
                    whole = self.cast(sums, "int32")
                    scale = self.filled(whole, 1 << _BYTE * (i + j))
                    terms.append(self("multiply", whole, scale) if i + j else whole)
        self._builder.compute_dtype = dtype
        total = terms[0]
        for term in terms[1:]:
            total = self("add", total, term)
        return total

    def _bytes(self, x: int) -> list[int]:
        """Append the bytes of integers as floats, the lowest first."""
        result = []
        for place in range(_BYTES):
            shift = self.filled(x, _BYTE * place)
            part = self._builder.apply("right_shift", (x, shift))[0] if place else x
            last = self.filled(x, 2**_BYTE - 1)
            (byte,) = self._builder.apply("bitwise_and", (part, last))
            result.append(self.cast(byte, "float32"))
        return result

    def _part(self, x: int, axis: int, begin: int, end: int) -> int:
        """Append a part of an axis."""
        shape = self._builder.shape(x)
        if (begin, end) == (0, shape[axis]):
            return x
        first, last = [0] * len(shape), [*shape]
        first[axis], last[axis] = begin, end
        part = {
            "begin": tuple(first),
            "end": tuple(last),
            "strides": (1,) * len(shape),
        }
        return self._builder.apply("slice", (x,), part)[0]

    def of_integers_alone(
        self, kind: str, inputs: Sequence[int], attributes: Any
    ) -> int | None:
        """Append an op whose operands are all integers; None if there is none."""
        if kind in _ARITHMETIC:
            return self(kind, *inputs)
        if kind in _OF_NO_NAN:
            return self(_OF_NO_NAN[kind], *inputs)
        if kind in _COMPARISONS:
            return self.cast(self(kind, *inputs), "float32")
        if kind == "matmul":
            return self.product(inputs[0], inputs[1], attributes)
        if kind in _FOLDS:
            return self.folded(_FOLDS[kind], inputs[0], attributes)
        return self.order(inputs[0], attributes) if kind == "order" else None

    def absolute(self, x: int) -> int:
        """Append the absolute values."""
        return self("maximum", x, self("subtract", self.filled(x, 0), x))

    def sign(self, x: int) -> int:
        """Append -1, 0 or 1."""
        least = self("maximum", x, self.filled(x, -1))
        return self("minimum", least, self.filled(x, 1))

    def masked(self, mask: int, x: int) -> int:
        """Append the elements where a mask of 1 and 0 is 1, else 0."""
        return self("multiply", self.cast(mask, "int32"), x)

    def where(self, mask: int, a: int, b: int) -> int:
        """Append a where the mask is not 0, else b: b + (a - b), or b + 0."""
        zeros = {"number": 0.0}
        whole = self.cast(mask, "float32")  # no integer but 0 becomes 0
        (chosen,) = self._builder.apply("not_equal_number", (whole,), zeros)
        return self("add", b, self.masked(chosen, self("subtract", a, b)))


# Of the operands that stay integers: all, or those after a mask.
_OTHERS: dict[str, tuple[Callable[..., int], int]] = {
    "absolute": (_Integers.absolute, 0),
    "relu": (_Integers.rectified, 0),
    "sign": (_Integers.sign, 0),
    "stop_gradient": (_Integers.same, 0),
    "truncate": (_Integers.same, 0),
    "masked": (_Integers.masked, 1),
    "where": (_Integers.where, 1),
}


def as_floats(builder: Builder, tensor: int) -> int:
    """Append the conversion of integers to float32, or return other tensors."""
    if builder.dtype(tensor) != "int32":
        return tensor
    return builder.apply("cast", (tensor,), {"dtype": "float32"})[0]


def filled_with(builder: Builder, shape: tuple[int, ...], value: int, name: str) -> int:
    """Append an int32 tensor of one number, of all its bits."""
    return _Integers(builder, name).fill(shape, value)


def of_integers(
    builder: Builder, kind: str, inputs: Sequence[int], attributes: Any, name: str
) -> tuple[int, ...] | None:
    """Append an op of integers; return None if it is not one that stays integers.

    Parameters
    ----------
    builder : Builder
        Collects the ops.
    kind : str
        The op type.
    inputs : sequence of int
        Ids of the operands.
    attributes : mapping or None
        The op's attributes.
    name : str
        The name of the layer.

    Returns
    -------
    tuple of int or None
        The id of the result.
    """
    dtypes = [builder.dtype(each) for each in inputs]
    if "int32" not in dtypes:
        return None
    make = _Integers(builder, name)
    made = None
    if kind in _OTHERS:
        function, first = _OTHERS[kind]
        if {*dtypes[first:]} == {"int32"}:
            made = function(make, *inputs)
    elif kind in _MOVES:
        if dtypes[0] == "int32":
            made = make.moved(kind, inputs[0], inputs[1:], attributes)
    elif {*dtypes} == {"int32"}:
        made = make.of_integers_alone(kind, inputs, attributes)
    return None if made is None else (made,)
