"""Arrays of float32 as the bytes of a code, and back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcfg._core import codec_bounds, decode_bytes, encode_codebook
from memcfg.compression.coding._coding import Coding
from memcfg.compression.coding._range_coding import decode_range, encode_range
from memcfg.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EncodedArray", "Parts", "encode"]

Floats = npt.NDArray[np.float32]

_HEADER = 16  # bytes
_WORD = 4  # bytes
_KINDS = {1: "plain", 2: "none", 3: "huffman", 4: "range"}  # by the first byte


class Parts(NamedTuple):
    """The bytes of a code by purpose.

    Parameters
    ----------
    header : int
        The 16 bytes that say what follows.
    codebook : int
        The different values.
    tables : int
        The lengths of Huffman codes.
    indices : int
        The gaps; 0 for a range code in which gaps and assignments alternate.
    assignments : int
        The numbers in the codebook.
    """

    header: int
    codebook: int
    tables: int
    indices: int
    assignments: int


class EncodedArray:
    """An array of float32 as the bytes of its code.

    Parameters
    ----------
    data : bytes-like
        The code, as `encode` made it.
    shape : sequence of int
        The shape of the array.

    Attributes
    ----------
    data : memoryview
        The bytes of the code.
    shape : tuple of int
        The shape of the array.

    Raises
    ------
    FormatError
        If the bytes do not begin as a code does.

    Notes
    -----
    Decoding takes memory for the array, some 70 KB for tables, and, of a range code,
    0.7 MB; its time grows with the array's size, whatever the bytes are.
    """

    def __init__(self, data: Any, shape: Sequence[int]) -> None:
        self.data = memoryview(data).cast("B")
        self.shape = tuple(shape)
        if len(self.data) < _HEADER or self.data[0] not in _KINDS:
            raise FormatError("these bytes are not those of an encoded array")

    @property
    def nbytes(self) -> int:
        """The size of the code in bytes."""
        return self.data.nbytes

    @property
    def coder(self) -> str:
        """How it is coded; ``"plain"`` for an array that coding does not shrink."""
        return _KINDS[self.data[0]]

    @property
    def index_bits(self) -> int | None:
        """Bits of a gap; None for an array that is not coded."""
        return None if self.coder == "plain" else self.data[1]

    @property
    def entries(self) -> int:
        """The number of values that are coded, those that fill gaps included."""
        if self.coder == "plain":
            return math.prod(self.shape)
        return int.from_bytes(self.data[8:12], "little")

    @property
    def parts(self) -> Parts:
        """The bytes by purpose; an array that is not coded has assignments only."""
        if self.coder == "plain":
            return Parts(_HEADER, 0, 0, 0, self.nbytes - _HEADER)
        codewords = int.from_bytes(self.data[2:4], "little")
        tables = (codewords + 1) // 2 + (2 ** self.data[1] + 1) // 2
        first = (
            _HEADER,
            codewords * _WORD,
            tables if self.coder == "huffman" else 0,
            int.from_bytes(self.data[12:16], "little"),
        )
        return Parts(*first, self.nbytes - sum(first))

    def decode(self, out: Floats | None = None) -> Floats:
        """Return the array, with the bits that it had.

        Parameters
        ----------
        out : ndarray of float32, optional
            A C-contiguous, writable array of the same shape to write to.

        Returns
        -------
        ndarray of float32
            `out`, or a new array.

        Raises
        ------
        FormatError
            If the bytes are damaged; `out` then has other values.
        ValueError
            If `out` has another shape or dtype, is read-only or not C-contiguous.
        """
        if out is None:
            out = np.empty(self.shape, np.float32)
        elif out.shape != self.shape or out.dtype != np.float32:
            raise ValueError(
                f"out must be float32 of shape {self.shape}, got {out.dtype} of shape "
                f"{out.shape}"
            )
        elif not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("out must be C-contiguous and writable")
        words = out.reshape(-1).view(np.uint32)
        if self.coder == "range":
            decode_range(self.data, words)
            return out
        try:
            decode_bytes("codebook", self.data, words.data)
        except ValueError as error:
            raise FormatError(f"an encoded array is damaged: {error}") from None
        return out

    def __repr__(self) -> str:
        return (
            f"<EncodedArray of shape {self.shape}: {self.nbytes} bytes, "
            f"coder={self.coder!r}>"
        )


def encode(
    array: npt.ArrayLike, *, index_bits: int | None = None, coder: str = "huffman"
) -> EncodedArray:
    """Encode an array in which many values are 0 and the others take few values.

    Parameters
    ----------
    array : array_like of float32
        The values. All bits come back: those of -0.0, of infinities and of NaN, too.
    index_bits : int or None, default None
        As of `Coding`.
    coder : {"huffman", "range", "none"}, default "huffman"
        As of `Coding`.

    Returns
    -------
    EncodedArray
        The code. An array of more than 4,096 different values, or one that coding would
        not shrink, is kept as it is, with a header of 16 bytes.

    Raises
    ------
    TypeError
        If the array is not of float32.
    MissingDependencyError
        If the coder is ``"range"`` and constriction is not installed.
    ValueError
        If `index_bits` or `coder` is none of those.

    Examples
    --------
    >>> import numpy as np
    >>> from memcfg import compression
    >>> weights = np.zeros((64, 64), np.float32)
    >>> weights[::7, ::5] = 0.5
    >>> code = compression.encode(weights)
    >>> code.nbytes, weights.nbytes
    (113, 16384)
    >>> np.array_equal(code.decode(), weights)
    True
    """
    coding = Coding(index_bits, coder)
    values = np.asarray(array)
    if values.dtype != np.float32:
        raise TypeError(f"encode takes float32, got {values.dtype}")
    words = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    if coding.coder == "range":
        return EncodedArray(encode_range(words, coding.index_bits), values.shape)
    target = np.empty(codec_bounds(words.nbytes)["codebook"], np.uint8)
    huffman = coding.coder == "huffman"
    size = encode_codebook(words.data, target.data, coding.index_bits, huffman)
    return EncodedArray(target[:size].tobytes(), values.shape)
