"""The bytes of a sparse weight in the format of Deep Compression, by its formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memcfg.nn._argument_checks import integer, real

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["count_fillers", "expected_fillers", "sparse_bytes"]


def count_fillers(indices: npt.ArrayLike, index_bits: int) -> int:
    """Return how many zeros are stored because gaps between indices are too long.

    An entry says how many zeros come before it, up to ``2**index_bits - 1``. A longer
    gap has an entry of value 0 after as many zeros.

    Parameters
    ----------
    indices : array_like of int
        The indices of the entries that are not 0, in ascending order.
    index_bits : int
        The bits of a relative index.

    Returns
    -------
    int
        The number of entries of value 0.

    Raises
    ------
    TypeError, ValueError
        If `index_bits` is not a positive integer, or indices do not ascend from 0.

    Examples
    --------
    >>> from memcfg import compression
    >>> compression.count_fillers([1, 4, 15], index_bits=3)
    1
    """
    bits = integer(index_bits, "index_bits")
    zeros = np.diff(np.asarray(indices, np.int64).ravel(), prepend=-1) - 1
    if (zeros < 0).any():
        raise ValueError("indices must ascend, from 0 or more")
    return int((zeros >> bits).sum())


def expected_fillers(count: int, density: float, index_bits: int) -> float:
    """Return how many zeros are stored on average, at random indices.

    Parameters
    ----------
    count : int
        The number of entries that are not 0.
    density : float
        Their share.
    index_bits : int
        As of `count_fillers`.

    Returns
    -------
    float
        The number of entries of value 0: gaps are geometric.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Examples
    --------
    >>> from memcfg import compression
    >>> round(compression.expected_fillers(21_000, 0.08, index_bits=5))
    1566
    """
    share = real(density, "density")
    if not 0 < share <= 1:
        raise ValueError(f"density must be above 0 and at most 1, got {density!r}")
    long = (1 - share) ** (2 ** integer(index_bits, "index_bits"))
    return float(integer(count, "count", 0) * long / (1 - long))


def sparse_bytes(
    entries: float, bits: float, index_bits: float, codebook: int = 0
) -> float:
    """Return the bytes of a sparse weight.

    Parameters
    ----------
    entries : float
        The number of entries that are not 0, and of fillers.
    bits : float
        The bits of a value: 32, those of a code, or the mean length of a coded one.
    index_bits : float
        The bits of a relative index.
    codebook : int, default 0
        The number of shared values, of 4 bytes each.

    Returns
    -------
    float
        The bytes, without what a file has besides.

    References
    ----------
    Han et al., "Deep compression", ICLR 2016, section 3 and tables 2 to 5.

    Examples
    --------
    >>> from memcfg import compression
    >>> compression.sparse_bytes(1000, 5, 5, codebook=32)
    1378.0
    """
    return entries * (bits + index_bits) / 8 + 4 * codebook
