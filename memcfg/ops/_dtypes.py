"""Bytes of element types, and bfloat16, which NumPy does not have, as bits.

A bfloat16 is the first 16 bits of a float32: 8 of exponent, 7 of fraction. It lies in
arrays of uint16. An op on bfloat16 means what it means on float32, its results rounded
to the nearest, ties to even; a NaN stays one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memcfg.ops._op_type import Arrays, Attributes, Meaning

__all__ = [
    "BFLOAT16",
    "array_dtype",
    "item_bytes",
    "round_to_bfloat16",
    "run_meaning",
    "widen",
]

BFLOAT16 = "bfloat16"


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the type of the arrays in which elements lie: of bfloat16 their bits."""
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the float32 that these bfloat16 are."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, of two the even one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x400000)
    rounded = np.where(np.isnan(values), quiet, bits + half) >> np.uint32(16)
    return rounded.astype(np.uint16).reshape(np.shape(values))


def run_meaning(
    meaning: Meaning,
    attributes: Attributes,
    inputs: Arrays,
    outputs: Arrays,
    dtypes: tuple[str, ...],
) -> None:
    """Fill an op's outputs as it is meant, also where operands are bfloat16.

    Parameters
    ----------
    meaning : callable
        What the op means on NumPy's types.
    attributes : mapping
        Its attributes.
    inputs, outputs : sequence of array
        The operands; of bfloat16 their bits.
    dtypes : tuple of str
        Their dtypes, inputs first.
    """
    if BFLOAT16 not in dtypes:
        meaning(attributes, inputs, outputs)
        return
    kinds = dtypes[: len(inputs)], dtypes[len(inputs) :]
    wide = [
        widen(array) if dtype == BFLOAT16 else array
        for array, dtype in zip(inputs, kinds[0], strict=True)
    ]
    made = [
        np.empty(array.shape, np.float32) if dtype == BFLOAT16 else array
        for array, dtype in zip(outputs, kinds[1], strict=True)
    ]
    meaning(attributes, wide, made)
    for output, result in zip(outputs, made, strict=True):
        if result is not output:
            output[...] = round_to_bfloat16(result)
