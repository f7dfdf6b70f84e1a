"""Weights of 8 or 4 bits, with a scale a channel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.compression._choice import compressible, plain_steps
from memcfg.compression.coding._integer_sections import IntegerForm
from memcfg.nn._argument_checks import integer, real
from memcfg.nn.layers._parametrization import Parametrization, Part
from memcfg.ops.integers import pack_nibbles, unpack_nibbles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder
    from memcfg.nn import Model

__all__ = ["channel_scales", "quantize"]

_BITS = {"int8": 8, "int4": 4}
_LARGEST = {"int8": 127, "int4": 7}  # symmetric: -127 to 127
CALIBRATIONS = ("minmax", "percentile", "mse")
PRODUCTS = ("float32", "int8")
_CLIPS = np.linspace(0.3, 1.0, 71)  # shares of the largest magnitude that mse tries


class QuantizedWeight(Parametrization):
    """Integers of 8 or 4 bits, times scales; training changes the scales.

    The weight is seen as rows of its last axis, of which each column has a scale in
    each group of `group` rows. Two rows of 4 bits are a row of bytes. With `products`
    of integers, inference multiplies rounded rows by them.
    """

    __slots__ = ("form", "shape")

    def __init__(self, shape: tuple[int, ...], form: IntegerForm) -> None:
        self.shape = shape
        self.form = form

    @property
    def bits(self) -> int:
        """The bits of an integer."""
        return self.form.bits

    @property
    def group(self) -> int | None:
        """Rows with one scale; None: all."""
        return self.form.group

    @property
    def parts(self) -> tuple[Part, ...]:
        """The scales, and the integers."""
        scales, integers = self.form.shapes(self.shape)
        return (
            Part("scales", scales, trainable=True),
            Part("integers", integers, self.form.dtype),
        )

    @property
    def rows(self) -> int:
        """The number of rows of the last axis."""
        return prod(self.shape[:-1])

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape of the scales."""
        if self.group is None:
            return self.shape[-1:]
        return self.form.groups(self.shape), self.shape[-1]

    def trace(
        self, builder: Builder, parts: Sequence[int], shape: tuple[int, ...], name: str
    ) -> int:
        """Append the product."""
        return self.form.trace(builder, parts, shape, name)

    def compute(
        self, parts: Sequence[np.ndarray], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Return the weight."""
        scales, codes = parts
        wide = self._wide(scales)
        result: np.ndarray = (self.integers(codes).astype(np.float32) * wide).reshape(
            shape
        )
        return result

    def integers(self, codes: np.ndarray) -> np.ndarray:
        """Return the integers as rows."""
        rows = codes.reshape(-1, self.shape[-1])
        result: np.ndarray = rows if self.bits == 8 else unpack_nibbles(rows, self.rows)
        return result

    def codes(self, integers: np.ndarray) -> np.ndarray:
        """Return rows of integers as they are held."""
        if self.bits == 8:
            return integers.astype(np.int8).reshape(self.shape)
        packed: np.ndarray = pack_nibbles(integers.astype(np.int8))
        return packed

    def _wide(self, scales: np.ndarray) -> np.ndarray:
        """Return the scale of each integer."""
        rows = scales.reshape(-1, self.shape[-1])
        result: np.ndarray = np.repeat(rows, self.group or self.rows, axis=0)
        return result[: self.rows]

    def split(
        self, value: np.ndarray, parts: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Return scales for a weight of the same integers."""
        rows = self.integers(parts[1]).astype(np.int64)
        given = np.asarray(value, np.float32).reshape(rows.shape)
        group = self.group or self.rows
        found = [
            _scales_of(given[begin : begin + group], rows[begin : begin + group])
            for begin in range(0, self.rows, group)
        ]
        return [np.stack(found).reshape(self.scales_shape), parts[1]]


def _scales_of(given: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the scale of each column of integers; ValueError if there is none."""
    place = np.abs(rows).argmax(0), np.arange(rows.shape[1])
    largest, of = given[place], rows[place].astype(np.float32)
    found = np.divide(largest, of, out=np.zeros_like(largest), where=of != 0)
    # A product is rounded: the scale is the quotient or next to it.
    floats = rows.astype(np.float32)
    for end in (-np.inf, np.inf):
        near = np.nextafter(found, np.float32(end))
        wrong = (floats * found != given).any(0)
        found = np.where(wrong & (floats * near == given).all(0), near, found)
    if not np.array_equal(floats * found, given):
        raise ValueError("the new value is not the same integers times scales")
    result: np.ndarray = found
    return result


def quantize(
    model: Model,
    dtype: str = "int8",
    *,
    calibration: str = "mse",
    percentile: float = 99.9,
    group: int | None = None,
    products: str = "float32",
) -> Model:
    """Return a copy of a model with weights of 8 or 4 bits.

    The copy holds integers, of a byte or half of one each, and a float32 scale of each
    channel, the last axis: a filter of a convolution, a unit of a `Dense`. Training
    changes the scales, and not the integers. Weights of one axis stay as they are.

    Parameters
    ----------
    model : Model
        The model, which is left as it is.
    dtype : {"int8", "int4"}, default "int8"
        Integers from -127 to 127, or from -7 to 7.
    calibration : {"minmax", "percentile", "mse"}, default "mse"
        What the largest integer of a channel stands for: the largest magnitude; a
        percentile of the magnitudes; or the share of the largest magnitude with the
        smallest mean squared error, of 71. Larger weights become the largest integer.
    percentile : float, default 99.9
        The percentile, above 0 and at most 100.
    group : int, optional
        Give each channel a scale for so many rows of weights, which are calibrated
        together: inputs of a `Dense`; of a convolution, inputs of each element of the
        window, one element after the other. None: one scale a channel. Of 4 bits, 32
        to 128 rows are usual.
    products : {"float32", "int8"}, default "float32"
        What a step computes with: kernels that it converts to float32; or, outside of
        training, integers, to which each row of the input of a `Dense`, and each image
        or sequence that is convolved, is rounded with a scale of its own. Sums of
        integers are exact. Layers compute with float32 kernels where there is no such
        product: convolutions of volumes, transposed and depthwise ones, convolutions
        by weights of 4 bits, and weights of 8 bits in groups.

    Returns
    -------
    Model
        The copy, compiled as `model`, with a new optimizer.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a weight has a constraint.
    RuntimeError
        If the shapes of the model are not known.

    Notes
    -----
    A step of Adam changes a scale by up to the learning rate. Scales of 8 bits are some
    thousandths: at a rate of 1e-3 training loses accuracy, at 1e-5 it does not.

    References
    ----------
    Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference",
    2018; Nagel et al., "A white paper on neural network quantization", 2021.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((100,)), mc.nn.Dense(10)])
    >>> small = mc.compression.quantize(model, "int4", calibration="minmax")
    >>> max(len(np.unique(each)) for each in small.layers[0].kernel.numpy().T)
    15
    """
    if dtype not in _LARGEST:
        raise unknown("dtype", dtype, _LARGEST, "quantize: ")
    if calibration not in CALIBRATIONS:
        raise unknown("calibration", calibration, CALIBRATIONS, "quantize: ")
    if products not in PRODUCTS:
        raise unknown("products", products, PRODUCTS, "quantize: ")
    size = None if group is None else integer(group, "group")
    rank = real(percentile, "percentile")
    if not 0 < rank <= 100:
        raise ValueError(f"percentile must be above 0 and at most 100, got {rank!r}")
    found = compressible(model, "quantize")
    plain_steps(model, "quantize")
    largest = _LARGEST[dtype]
    chosen: dict[str, Any] = {}
    for name, weight in found.items():
        if weight.constraint is not None:
            raise ValueError(f"quantize: {name!r} has a constraint")
        value = model._read_weight(weight.layer, weight.spec_name)
        rows = value.reshape(-1, value.shape[-1])
        form = IntegerForm(_BITS[dtype], size, products == "int8")
        by = QuantizedWeight(weight.shape, form)
        scales, integers = [], []
        for begin in range(0, by.rows, size or by.rows):
            part = rows[begin : begin + (size or by.rows)]
            scales.append(channel_scales(part, largest, calibration, rank))
            integers.append(_rounded(part, scales[-1], largest).astype(np.int8))
        held = np.stack(scales).reshape(by.scales_shape)
        chosen[name] = by, [held, by.codes(np.concatenate(integers))]
    return model._with_parts(chosen)


def channel_scales(
    value: Any, largest: int, calibration: str, percentile: float
) -> Any:
    """Return the scale of each last index of a weight in float32."""
    rows = np.abs(value.reshape(-1, value.shape[-1]))
    if calibration == "percentile":
        ends = np.percentile(rows, percentile, axis=0)
    else:
        ends = rows.max(0)
    ends = np.where(ends > 0, ends, 1.0)
    if calibration == "mse":
        errors = [_error(rows, clip * ends, largest) for clip in _CLIPS]
        ends = ends * _CLIPS[np.argmin(errors, axis=0)]
    return (ends / largest).astype(np.float32)


def _error(rows: Any, ends: Any, largest: int) -> Any:
    """Return the sum of squared errors of each column."""
    scales = (ends / largest).astype(np.float32)
    return np.square(_rounded(rows, scales, largest) * scales - rows).sum(0)


def _rounded(value: Any, scales: Any, largest: int) -> Any:
    """Return the nearest integers."""
    return np.clip(np.rint(value / scales), -largest, largest)
