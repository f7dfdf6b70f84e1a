"""bfloat16, which NumPy does not have, as the bits that lie in arrays of uint16."""

from __future__ import annotations

import numpy as np


def widen(bits):
    """Return the float32 that bfloat16 are: their bits are its upper half."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to_bfloat16(values):
    """Return the bits of the nearest bfloat16, of two the even one; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    upper, rest = bits >> np.uint32(16), bits & np.uint32(0xFFFF)
    up = (rest > 0x8000) | ((rest == 0x8000) & (upper % 2 == 1))
    rounded = np.where(np.isnan(values), upper | np.uint32(0x40), upper + up)
    return rounded.astype(np.uint16).reshape(np.shape(values))
