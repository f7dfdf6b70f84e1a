"""Reference dropout and its generator.

Owns Philox4x32-10 in NumPy, written apart from the C++ one, and agreeing with it bit
for bit. Refuses state: which elements are kept is a function of (key, step, element).

References
----------
Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memcfg.devices.cpu._reference_types import Array, Attributes

__all__ = ["dropout", "keep_mask", "philox4x32"]

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: Array, key: tuple[int, int]) -> Array:
    """Turn counters into random words.

    Parameters
    ----------
    counter : ndarray of uint64, shape (..., 4)
        The four words of each counter, each below 2**32.
    key : tuple of int
        The two words of the key.

    Returns
    -------
    ndarray of uint64, shape (..., 4)
        Four random words for each counter, each below 2**32.
    """
    a, b, c, d = (counter[..., i].astype(np.uint64) for i in range(4))
    for i in range(_ROUNDS):
        bumped = [(key[j] + i * _WEYL[j]) & 0xFFFFFFFF for j in (0, 1)]
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (
            (second >> _HALF) ^ b ^ np.uint64(bumped[0]),
            second & _MASK,
            (first >> _HALF) ^ d ^ np.uint64(bumped[1]),
            first & _MASK,
        )
    return np.stack([a, b, c, d], axis=-1)


def keep_mask(key: int, step: int, count: int, rate: float) -> Array:
    """Say which of `count` elements dropout keeps.

    Parameters
    ----------
    key : int
        The op's seed, in [0, 2**63).
    step : int
        The training step.
    count : int
        Number of elements.
    rate : float
        The fraction that is dropped, in [0, 1].

    Returns
    -------
    ndarray of bool, shape (count,)
        Element i is kept iff lane ``i % 4`` of block ``i // 4`` is at least
        ``floor(rate * 2**32)``.
    """
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    counter = np.empty((len(block), 4), np.uint64)
    counter[:, 0], counter[:, 1] = block & _MASK, block >> _HALF
    unsigned = step % 2**64
    counter[:, 2], counter[:, 3] = unsigned & 0xFFFFFFFF, unsigned >> 32
    words = philox4x32(counter, (key & 0xFFFFFFFF, key >> 32))
    kept: Array = words.reshape(-1)[:count] >= floor(rate * 2**32)
    return kept


def dropout(a: Attributes, inputs: list[Array], outputs: list[Array]) -> None:
    """Drop a fraction of x, scale the rest by ``1 / (1 - rate)``."""
    x, step = inputs
    rate = a["rate"]
    kept = keep_mask(a["key"], int(step), x.size, rate).reshape(x.shape)
    scale = x.dtype.type(1 / (1 - rate) if rate < 1 else 0)
    outputs[0][...] = np.where(kept, x * scale, 0)
