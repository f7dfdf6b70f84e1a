"""Weights of 8 or 4 bits, with a scale a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.compression._choice import compressible, plain_steps
from memcfg.nn._argument_checks import real
from memcfg.nn.layers._parametrization import Parametrization, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder
    from memcfg.nn import Model

__all__ = ["channel_scales", "quantize"]

_LARGEST = {"int8": 127, "int4": 7}  # symmetric: -127 to 127
CALIBRATIONS = ("minmax", "percentile", "mse")
PRODUCTS = ("float32", "int8")
_CLIPS = np.linspace(0.3, 1.0, 71)  # shares of the largest magnitude that mse tries


class QuantizedWeight(Parametrization):
    """8-bit integers, times a scale of each last index; training changes the scales.

    With `products` of integers, inference multiplies rounded rows by them.
    """

    __slots__ = ("products", "shape")

    def __init__(self, shape: tuple[int, ...], *, products: bool = False) -> None:
        self.shape = shape
        self.products = products

    @property
    def parts(self) -> tuple[Part, ...]:
        """The scales, and the integers."""
        return (
            Part("scales", self.shape[-1:], trainable=True),
            Part("integers", self.shape, "int8"),
        )

    def trace(
        self, builder: Builder, parts: Sequence[int], shape: tuple[int, ...], name: str
    ) -> int:
        """Append the conversion and the product."""
        scales, integers = parts
        to, wide = {"dtype": "float32"}, {"shape": shape}
        (x,) = builder.apply("cast", (integers,), to, name=f"{name}/float32")
        (y,) = builder.apply("broadcast_to", (scales,), wide, name=f"{name}/scales")
        (made,) = builder.apply("multiply", (x, y), name=name)
        if self.products and not builder.training:
            builder.integers[made] = integers, scales
        return made

    def compute(
        self, parts: Sequence[np.ndarray], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Return the weight."""
        scales, integers = parts
        result: np.ndarray = integers.astype(np.float32) * scales
        return result

    def split(
        self, value: np.ndarray, parts: Sequence[np.ndarray]
    ) -> Sequence[np.ndarray]:
        """Return scales for a weight of the same integers."""
        rows = parts[1].astype(np.int64).reshape(-1, self.shape[-1])
        given = np.asarray(value, np.float32).reshape(rows.shape)
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
        return [found, parts[1]]


def quantize(
    model: Model,
    dtype: str = "int8",
    *,
    calibration: str = "mse",
    percentile: float = 99.9,
    products: str = "float32",
) -> Model:
    """Return a copy of a model with weights of 8 or 4 bits.

    The copy holds integers, of a byte each, and a float32 scale of each channel, the
    last axis: a filter of a convolution, a unit of a `Dense`. Training changes the
    scales, and not the integers. Weights of one axis stay as they are.

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
    products : {"float32", "int8"}, default "float32"
        What a step computes with: kernels that it converts to float32; or, in the
        products of `Dense` outside of training, integers, to which each row of the
        input is rounded with a scale of its own. Sums of integers are exact.

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
        scales = channel_scales(value, largest, calibration, rank)
        integers = _rounded(value, scales, largest).astype(np.int8)
        by = QuantizedWeight(weight.shape, products=products == "int8")
        chosen[name] = by, [scales, integers]
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
