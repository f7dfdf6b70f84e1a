"""Sizes of encoded tensors, as defined in docs/plan-format.md.

See docs/decisions/0024-lossy-by-name-only.md.
"""

from __future__ import annotations

from math import ceil

from memcfg.units import align_up

HEADER = 64  # bytes that a lossless encoding may exceed the tensor by
SPARSE = ("csr", "zvc")  # codecs whose size follows from the density
_WORD = 4  # bytes
_BITS = {"fp16": 16, "fp8": 8, "group2": 2, "group4": 4, "group8": 8, "mask": 1}
LOSSY = (*_BITS, "fp10")  # codecs of fixed size


def code_bytes(codec: str, nbytes: int, density: float = 1.0) -> int:
    """Return the encoded size in bytes; `density` is the fraction of nonzero words.

    A sparse codec stores a tensor that it would not shrink unencoded, with a header.

    Parameters
    ----------
    codec : str
        ``"zvc"``, ``"csr"``, ``"mask"``, or a lossy codec, such as ``"fp16"``.
    nbytes : int
        Bytes of the tensor.
    density : float, default 1.0
        The fraction of its 4-byte words that are not 0.

    Returns
    -------
    int
        The encoded size in bytes.

    Raises
    ------
    KeyError
        If the size of the codec's encodings is not known in advance.
    """
    words = ceil(nbytes / _WORD)
    kept = ceil(density * words)
    match codec:
        case "zvc":
            return HEADER + min(_WORD * ceil(words / 32) + _WORD * kept, nbytes)
        case "csr":
            return HEADER + min(_WORD * ceil(words / 256) + 5 * kept, nbytes)
        case "fp10":
            return 4 * ceil(words / 3)
    heads = 8 * ceil(words / 256) if codec.startswith("group") else 0
    return heads + ceil(words * _BITS[codec] / 8)


def saves(codec: str, nbytes: int, density: float = 1.0) -> bool:
    """Return whether the encoding takes fewer bytes of an arena than the tensor."""
    return align_up(code_bytes(codec, nbytes, density)) < align_up(nbytes)
