"""Sizes of dtypes, and bfloat16, which NumPy lacks, as uint16 bits.

A bfloat16 is the upper 16 bits of a float32: sign, 8 bits of exponent, 7 of fraction.
It is stored in arrays of uint16. An op on bfloat16 computes in float32 and rounds its
results to nearest, ties to even; NaN stays NaN.

See docs/decisions/0015-bfloat16-in-the-graph.md.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _item_bytes(dtype: str) -> int:
    """Return the bytes of an element of a dtype."""
    return 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize


item_bytes: Callable[[str], int] = cache(_item_bytes)  # few dtypes, many tensors


def array_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of arrays of a dtype: uint16 for bfloat16."""
    return np.dtype(np.uint16 if dtype == BFLOAT16 else dtype)


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Convert bfloat16 bits to float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even."""
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
    """Compute an op's outputs with its NumPy meaning, for operands of any dtype.

    Parameters
    ----------
    meaning : callable
        The op's NumPy meaning.
    attributes : mapping
        The op's attributes.
    inputs, outputs : sequence of array
        The operands; bfloat16 as uint16 bits.
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
