"""Numbers in few bits and back, with Keras's names.

These are functions of arrays and of tensors, for steps and layers of one's own, such as
training that is aware of quantization. `memcfg.compression` stores weights of models in
few bits, and trains and streams such models.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._checks import unknown
from memcfg.nn import ops
from memcfg.nn._argument_checks import integer, real
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._keras_names import absent
from memcfg.nn.exchange._configs import _Described, functions_of
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.ops._computing import computing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = [
    "AbsMaxQuantizer",
    "Quantizer",
    "abs_max_quantize",
    "abs_max_quantize_grouped_with_zero_point",
    "compute_float8_amax_history",
    "compute_float8_scale",
    "deserialize",
    "fake_quant_with_min_max_vars",
    "get",
    "pack_int4",
    "quantize_and_dequantize",
    "serialize",
    "unpack_int4",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_EPSILON = 1e-7  # Keras's backend.epsilon()


class _Format(NamedTuple):
    """Floats of few bits: of the mantissa, the least exponent, the largest number."""

    bits: int
    least: int
    largest: float


# Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433; IEEE 754.
_FORMATS = {
    "float8_e4m3fn": _Format(3, -6, 448.0),
    "float8_e5m2": _Format(2, -14, 57344.0),
    "float16": _Format(10, -14, 65504.0),
}


class Quantizer(FixedAttributes, _Described):
    """Base class of the quantizers.

    A subclass overrides ``__call__``; by default it returns its argument.

    Parameters
    ----------
    output_dtype : str, default "int8"
        The dtype of the numbers in few bits.
    """

    __slots__ = ("output_dtype",)

    def __init__(self, output_dtype: str = "int8") -> None:
        self.output_dtype = output_dtype

    def __call__(self, x: Any) -> Any:
        """Return numbers in few bits; by default the argument."""
        return x


class AbsMaxQuantizer(Quantizer):
    """Integers in proportion to numbers, whose largest becomes the end of the range.

    Parameters
    ----------
    axis : int or sequence of int, optional
        The axes along which the largest number is found, if a call has none.
    value_range : (int, int), default (-127, 127)
        The least and the largest integer.
    epsilon : float, default 1e-7
        Added to the largest number.
    output_dtype : str, default "int8"
        The dtype of the integers.

    Raises
    ------
    ValueError
        If the range is not that of int8.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> quantizer = mc.nn.quantizers.AbsMaxQuantizer(axis=0)
    >>> integers, scale = quantizer(np.float32([[-1.0], [0.5], [2.0]]))
    >>> integers.ravel().tolist(), scale.round(2).tolist()
    ([-64, 32, 127], [[63.5]])
    """

    __slots__ = ("axis", "epsilon", "value_range")

    def __init__(
        self,
        axis: int | Sequence[int] | None = None,
        value_range: tuple[int, int] = (-127, 127),
        epsilon: float = _EPSILON,
        output_dtype: str = "int8",
    ) -> None:
        super().__init__(output_dtype)
        several = [axis] if isinstance(axis, int) else axis
        self.axis = None if several is None else tuple(several)
        self.value_range = tuple(value_range)
        self.epsilon = real(epsilon, "AbsMaxQuantizer: epsilon")
        low, high = self.value_range
        if output_dtype == "int8" and not -128 <= low <= high <= 127:
            raise ValueError(
                "AbsMaxQuantizer: value_range of int8 is within (-128, 127), got "
                f"{value_range}"
            )

    def __call__(self, x: Any, axis: Any = None, to_numpy: bool = False) -> Any:
        """Return integers and their scale, as `abs_max_quantize` does.

        `axis` goes before that of the constructor; without both it is the last one.
        """
        axis = self.axis if axis is None else axis
        given = (self.value_range, self.output_dtype, self.epsilon, to_numpy)
        return abs_max_quantize(x, -1 if axis is None else axis, *given)


def abs_max_quantize(
    inputs: Any,
    axis: Any,
    value_range: Sequence[int] = (-127, 127),
    dtype: str = "int8",
    epsilon: float = _EPSILON,
    to_numpy: bool = False,
) -> tuple[Any, Any]:
    """Return integers in proportion to numbers, and the factor.

    Parameters
    ----------
    inputs : array_like or SymbolicTensor
        The numbers.
    axis : int or tuple of int
        The axes along which the largest absolute value is found.
    value_range : (int, int), default (-127, 127)
        The least integer, and that of the largest absolute value.
    dtype : str, default "int8"
        The dtype of the integers of arrays; those of tensors are int32.
    epsilon : float, default 1e-7
        Added to the largest absolute value.
    to_numpy : bool, default False
        Not read: arrays are computed by NumPy.

    Returns
    -------
    tuple
        The integers, of the shape of the numbers, and the factor, with the axes as
        length 1: numbers are about the integers over the factor.

    Raises
    ------
    ValueError
        If an axis is out of range, or that of a batch.
    """
    del to_numpy
    low, high = value_range
    module = computing(inputs)
    if module is np:
        inputs = np.asarray(inputs)
        axis = tuple(axis) if isinstance(axis, list) else axis
    largest = module.max(abs(inputs), axis=axis, keepdims=True)
    scale = high / (largest + epsilon)
    whole = module.clip(module.round(inputs * scale), low, high)
    if module is np:
        return whole.astype(dtype), scale.astype(inputs.dtype)
    return ops.cast(whole, "int32"), scale


def abs_max_quantize_grouped_with_zero_point(
    inputs: Any,
    block_size: int,
    value_range: Sequence[int] = (-8, 7),
    dtype: str = "int8",
    epsilon: float = _EPSILON,
    to_numpy: bool = False,
) -> tuple[Any, Any, Any]:
    """Return integers of blocks of rows, which span the range from least to largest.

    Parameters
    ----------
    inputs : array_like
        A matrix.
    block_size : int
        The rows of a block; a last one that is shorter is filled up with zeros.
    value_range : (int, int), default (-8, 7)
        The least and the largest integer, a power of two numbers apart.
    dtype : str, default "int8"
        The dtype of the integers.
    epsilon : float, default 1e-7
        Added to the span of a block.
    to_numpy : bool, default False
        Not read: arrays are computed by NumPy.

    Returns
    -------
    tuple of numpy.ndarray
        The integers, of the shape of the matrix, and the scales and the integers of
        zero, ``(blocks, columns)``: numbers are about ``(integers - zeros) * scales``.

    Raises
    ------
    TypeError
        If `inputs` is a tensor of a model or a function.
    ValueError
        If it is no matrix.
    """
    del to_numpy
    rows = _array(inputs, "abs_max_quantize_grouped_with_zero_point")
    if rows.ndim != 2:
        raise ValueError(
            "abs_max_quantize_grouped_with_zero_point takes a matrix, got shape "
            f"{rows.shape}"
        )
    size, (low, high) = integer(block_size, "block_size"), value_range
    count = -(-len(rows) // size)
    wide = np.pad(rows, ((0, count * size - len(rows)), (0, 0)))
    blocks = wide.reshape(count, size, -1)
    least, most = blocks.min(axis=1), blocks.max(axis=1)
    flat = least == most
    least, most = np.where(flat, least - 1, least), np.where(flat, most + 1, most)
    bits = int(math.log2(high - low + 1))
    scale = (most - least + np.asarray(epsilon, rows.dtype)) / (2**bits - 1)
    zero = np.round(-least / scale) - 2 ** (bits - 1)
    zero = np.clip(zero, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    whole = np.clip(np.round(blocks / scale[:, None]) + zero[:, None], low, high)
    whole = whole.reshape(wide.shape)[: len(rows)]
    return whole.astype(dtype), scale.astype(rows.dtype), zero.astype(np.int8)


def _array(given: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(given, SymbolicTensor):
        raise TypeError(
            f"{name} takes arrays, and no tensors, which have no numbers of 4 or 8 bits"
        )
    return np.asarray(given)


def fake_quant_with_min_max_vars(
    inputs: Any,
    min_vals: Any,
    max_vals: Any,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Any:
    """Round numbers to those that integers of a range stand for.

    The gradient of a number within the range is that of its result. Those of numbers
    below and above it are of `min_vals` and `max_vals`, which may train.

    Parameters
    ----------
    inputs : array_like or SymbolicTensor
        The numbers.
    min_vals, max_vals : array_like or SymbolicTensor
        The range, or that of each position along `axis`. It is moved so that 0 is one
        of the numbers.
    num_bits : int, default 8
        The bits of an integer.
    narrow_range : bool, default False
        Whether the integers begin at 1 instead of 0.
    axis : int, optional
        The axis with separate ranges; None: there is one range.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The rounded numbers, of the same shape.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    References
    ----------
    Jacob et al., "Quantization and training of neural networks for efficient
    integer-arithmetic-only inference", CVPR 2018.
    """
    bits = integer(num_bits, "fake_quant_with_min_max_vars: num_bits", 2)
    low, high = int(bool(narrow_range)), 2**bits - 1
    rank = len(np.shape(inputs)) if not hasattr(inputs, "shape") else len(inputs.shape)
    if axis is not None:
        axis = integer(axis, "fake_quant_with_min_max_vars: axis", None)
        if not -rank <= axis < rank:
            raise ValueError(
                f"fake_quant_with_min_max_vars: axis {axis} of numbers with {rank} axes"
            )
        axis %= rank

    def rounded(x: Any, least: Any, most: Any) -> Any:
        wide = [1] * rank
        if axis is not None:
            wide[axis] = -1
        first, last = (ops.reshape(each, wide) for each in (least, most))
        scale = (last - first) / (high - low)
        by = (high - low) / (last - first)
        zero = ops.round(ops.clip(low - first / scale, low, high))
        begin, end = (low - zero) * scale, (high - zero) * scale
        lowest = ops.floor(0.5 - begin * by)
        places = (ops.clip(x, begin, end) - begin) * by - lowest
        result = ops.floor(places + 0.5) * scale
        others = [each for each in range(rank) if each != axis]

        def grad(upstream: Any) -> tuple[Any, Any, Any]:
            none = ops.zeros_like(upstream)
            within = ops.where(x >= begin, ops.where(x <= end, upstream, none), none)
            below = ops.sum(ops.where(x <= begin, upstream, none), axis=others)
            above = ops.sum(ops.where(x >= end, upstream, none), axis=others)
            return (
                within,
                ops.reshape(below, least.shape),
                ops.reshape(above, most.shape),
            )

        return result, grad

    return ops.custom_gradient(rounded)(inputs, min_vals, max_vals)


def compute_float8_scale(
    amax: Any, scale: Any, dtype_max: float, margin: int = 0
) -> Any:
    """Return the scale by which numbers are divided before they become float8.

    Parameters
    ----------
    amax : float, array_like or SymbolicTensor
        The largest absolute value so far.
    scale : float, array_like or SymbolicTensor
        The scale before, which stays if `amax` is 0 or not finite.
    dtype_max : float
        The largest number of the format, such as 448.
    margin : int, default 0
        How many bits of the range stay free.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The scale.
    """
    amax, scale = (_tensor(each) for each in (amax, scale))
    module = computing(amax, scale)
    counts = module.where(amax > 0, module.where(module.isfinite(amax), 1.0, 0.0), 0.0)
    known = module.where(counts > 0, amax, 1.0)
    found = known * (2.0**margin / float(dtype_max))
    return _as_float(module.where(counts > 0, found, scale))


def compute_float8_amax_history(x: Any, amax_history: Any) -> Any:
    """Return the largest absolute values of the last steps, with that of another.

    Parameters
    ----------
    x : array_like or SymbolicTensor
        The numbers of this step.
    amax_history : array_like or SymbolicTensor
        The values before, of which the first one is that of the last step.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The values one place further, and that of this step first.
    """
    x, history = (_tensor(each) for each in (x, amax_history))
    module = computing(x, history)
    newest = module.reshape(module.max(abs(x)), (1,))
    moved = module.roll(history, -1)
    return _as_float(module.concatenate([newest, moved[1:]]))


def _tensor(given: Any) -> Any:
    """Return a tensor, or an array of floats."""
    known = isinstance(given, SymbolicTensor | np.ndarray)
    return given if known else np.asarray(given, np.float32)


def _as_float(value: Any) -> Any:
    return value.astype(np.float32) if computing(value) is np else value


def quantize_and_dequantize(
    inputs: Any, scale: Any, quantized_dtype: str, compute_dtype: str
) -> Any:
    """Round numbers to those of a format of few bits, times a scale.

    Parameters
    ----------
    inputs : array_like or SymbolicTensor
        The numbers.
    scale : float, array_like or SymbolicTensor
        What they are divided by before, and multiplied by afterwards.
    quantized_dtype : {"float8_e4m3fn", "float8_e5m2", "float16"}
        The format; larger numbers become its largest one.
    compute_dtype : str
        The dtype of the result of arrays, such as ``"float32"``, which that of tensors
        is.

    Returns
    -------
    numpy.ndarray or SymbolicTensor
        The rounded numbers, of the same shape.

    Raises
    ------
    ValueError
        If the format is unknown.

    Examples
    --------
    >>> from memcfg.nn.quantizers import quantize_and_dequantize
    >>> quantize_and_dequantize([0.33, 1000.0], 1.0, "float8_e4m3fn", "float32")
    array([3.4375e-01, 4.4800e+02], dtype=float32)
    """
    form = _FORMATS.get(quantized_dtype)
    if form is None:
        raise unknown("quantized_dtype", str(quantized_dtype), _FORMATS)
    x, by = _tensor(inputs), _tensor(scale)
    module = computing(x, by)
    if module is np:
        x, by = x.astype(compute_dtype), by.astype(compute_dtype)
    result = _rounded(x / by, form) * by
    return result.astype(compute_dtype) if module is np else result


def _rounded(x: Any, form: _Format) -> Any:
    """Return numbers rounded to a format, half to even; all steps are exact."""
    module = computing(x)
    x = module.clip(x, -form.largest, form.largest)
    # The power of two below a number, from that of the smallest normal one: `rest` is
    # the number over it, and is brought below 2.
    unit = 2.0**form.least
    rest = module.maximum(abs(x) / unit, 1.0)
    power = rest * 0 + unit
    for exponent in (16, 8, 4, 2, 1):
        is_large = rest >= 2.0**exponent
        rest = module.where(is_large, rest * 2.0**-exponent, rest)
        power = module.where(is_large, power * 2.0**exponent, power)
    step = power * 2.0**-form.bits
    return module.round(x / step) * step


def pack_int4(
    arr: Any, axis: int = 0, dtype: str = "int8"
) -> tuple[npt.NDArray[Any], tuple[int, ...], int]:
    """Put two integers of 4 bits into each byte.

    Parameters
    ----------
    arr : array_like of int8 or uint8
        Integers of -8 to 7, or of 0 to 15.
    axis : int, default 0
        The axis whose neighbours share a byte; the first is in its lower half.
    dtype : {"int8", "uint8"}, default "int8"
        The dtype of the integers, and of the result.

    Returns
    -------
    tuple
        The bytes, their shape, and the length of the axis before, which may be odd.

    Raises
    ------
    TypeError
        If the array has another dtype, or is a tensor of a model.
    ValueError
        If `dtype` is neither of the two, or an integer has more than 4 bits.
    """
    given = _array(arr, "pack_int4")
    _check_bytes(dtype)
    if given.dtype != dtype:
        raise TypeError(f"pack_int4 takes {dtype}, got {given.dtype}")
    low, high = (-8, 7) if dtype == "int8" else (0, 15)
    if given.size and not (low <= given.min() and given.max() <= high):
        raise ValueError(
            f"pack_int4 takes integers of {low} to {high} as {dtype}, got "
            f"{given.min()} to {given.max()}"
        )
    rows = np.moveaxis(given, axis, 0)
    count = len(rows)
    if count % 2:
        rows = np.concatenate([rows, np.zeros_like(rows[:1])])
    halves = rows.view(np.uint8) & 0xF
    packed = np.moveaxis(halves[::2] | (halves[1::2] << 4), 0, axis)
    result = np.ascontiguousarray(packed).view(dtype)
    return result, result.shape, count


def unpack_int4(
    packed: Any, orig_len: int, axis: int = 0, dtype: str = "int8"
) -> npt.NDArray[Any]:
    """Return the integers of 4 bits that `pack_int4` has put into bytes.

    Parameters
    ----------
    packed : array_like of int8 or uint8
        The bytes.
    orig_len : int
        The length of the axis before.
    axis : int, default 0
        The axis whose neighbours share a byte.
    dtype : {"int8", "uint8"}, default "int8"
        The dtype of the result: integers of -8 to 7, or of 0 to 15.

    Returns
    -------
    numpy.ndarray
        The integers.

    Raises
    ------
    TypeError
        If the bytes have another dtype, or are a tensor of a model.
    ValueError
        If `dtype` is neither of the two.
    """
    given = _array(packed, "unpack_int4")
    _check_bytes(dtype)
    if given.dtype not in (np.int8, np.uint8):
        raise TypeError(f"unpack_int4 takes bytes, got {given.dtype}")
    rows = np.moveaxis(np.ascontiguousarray(given).view(np.uint8), axis, 0)
    pairs = np.stack([rows & 0xF, rows >> 4], axis=1)
    halves = pairs.reshape(-1, *rows.shape[1:])[: integer(orig_len, "orig_len", 0)]
    if dtype == "int8":  # 8 to 15 are negative
        halves = (halves ^ 8).astype(np.int8) - np.int8(8)
    return np.ascontiguousarray(np.moveaxis(halves, 0, axis))


def _check_bytes(dtype: str) -> None:
    if dtype not in ("int8", "uint8"):
        raise unknown("dtype", str(dtype), ("int8", "uint8"))


def _named(identifier: Any) -> Quantizer:
    """Return a quantizer of a name, a class or itself."""
    if isinstance(identifier, str):
        if identifier not in ("AbsMaxQuantizer", "abs_max_quantizer"):
            raise unknown("quantizer", identifier, ["abs_max_quantizer"])
        return AbsMaxQuantizer()
    if isinstance(identifier, type) and issubclass(identifier, Quantizer):
        return identifier()
    if not isinstance(identifier, Quantizer):
        raise TypeError(
            "a quantizer is a name, or an instance such as AbsMaxQuantizer(), got "
            f"{identifier!r}"
        )
    return identifier


serialize, deserialize, get = functions_of(
    "quantizers", Quantizer, _named, argument="initializer"
)
