"""Sections of weights of integers: their scales, then their codes.

A weight is seen as rows of its last axis. A section has the scales of its columns in
each group of rows, as float32, and the integers of its columns: a byte each, or two
rows of 4 bits in a row of bytes, the first in the low bits.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg.errors import FormatError
from memcfg.graph import Integers
from memcfg.ops.integers import unpack_nibbles

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from memcfg.graph import Builder

__all__ = ["IntegerForm"]

_ROWS = 64  # that are decoded at a time


class IntegerForm(NamedTuple):
    """How a weight of integers is held.

    Parameters
    ----------
    bits : int
        8 or 4.
    group : int or None
        Rows with one scale for each column; None: all.
    products : bool
        Whether inference multiplies by the integers.
    """

    bits: int
    group: int | None
    products: bool

    def held_rows(self, shape: Sequence[int]) -> int:
        """Return the rows of bytes."""
        rows = prod(shape[:-1])
        return rows if self.bits == 8 else -(-rows // 2)

    def groups(self, shape: Sequence[int]) -> int:
        """Return the rows of scales."""
        rows = prod(shape[:-1])
        return -(-rows // (self.group or max(rows, 1)))

    def shapes(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of the scales and of the codes of a weight."""
        last = shape[-1:]
        scales = last if self.group is None else (self.groups(shape), *last)
        return scales, shape if self.bits == 8 else (self.held_rows(shape), *last)

    @property
    def dtype(self) -> str:
        """The dtype of codes."""
        return "int8" if self.bits == 8 else "uint8"

    def has_products(self, shape: Sequence[int]) -> bool:
        """Return whether layers multiply by the integers of a weight."""
        alike = self.group is None if self.bits == 8 else len(shape) == 2
        return self.products and alike

    def trace(
        self, builder: Builder, parts: Sequence[int], shape: tuple[int, ...], name: str
    ) -> int:
        """Append the weight of scales and codes, by which layers may multiply."""
        scales, codes = parts
        group = self.group or prod(shape[:-1])
        how = {"shape": shape, "group": group}
        (made,) = builder.apply("dequantize", (codes, scales), how, name=name)
        if self.has_products(shape) and not builder.training:
            of = None if self.bits == 8 else group
            builder.integers[made] = [Integers(codes, scales, of)]
        return made

    def nbytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of a section of some shape."""
        return self.scales_bytes(shape) + shape[-1] * self.held_rows(shape)

    def scales_bytes(self, shape: Sequence[int]) -> int:
        """Return the bytes of the scales of a section, with which it begins."""
        return 4 * shape[-1] * self.groups(shape)

    def pack(
        self, scales: npt.NDArray[Any], codes: npt.NDArray[Any], columns: slice
    ) -> bytes:
        """Return the bytes of a section of some columns."""
        own = [
            np.ascontiguousarray(each.reshape(-1, each.shape[-1])[:, columns])
            for each in (scales.astype("<f4", copy=False), codes)
        ]
        return b"".join(each.tobytes() for each in own)

    def unpack(
        self, data: Any, shape: Sequence[int]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return scales and codes as rows; FormatError if bytes are none of them."""
        if len(data) != self.nbytes(shape):
            raise FormatError(f"it has {len(data)} bytes, not {self.nbytes(shape)}")
        columns, groups = shape[-1], self.groups(shape)
        scales = np.frombuffer(data, "<f4", groups * columns).reshape(groups, columns)
        codes = np.frombuffer(data, self.dtype, offset=self.scales_bytes(shape))
        self.check(codes)
        return scales.astype(np.float32, copy=False), codes.reshape(-1, columns)

    def check(self, codes: npt.NDArray[Any]) -> None:
        """Raise FormatError for codes that are none."""
        if self.bits == 8 and codes.size and codes.min() == -128:
            raise FormatError("-128 is no integer of it")

    def decode(self, data: Any, out: npt.NDArray[Any]) -> None:
        """Write the weight; FormatError if the bytes are not those of a section."""
        scales, codes = self.unpack(data, out.shape)
        rows = out.reshape(-1, out.shape[-1])
        group = self.group or max(len(rows), 1)
        for begin in range(0, len(rows), _ROWS):
            count = min(_ROWS, len(rows) - begin)
            if self.bits == 8:
                integers = codes[begin : begin + count]
            else:
                integers = unpack_nibbles(codes[begin // 2 :][: -(-count // 2)], count)
            own = scales[np.arange(begin, begin + count) // group]
            np.multiply(integers, own, out=rows[begin : begin + count])
