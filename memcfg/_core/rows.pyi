from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "RandomWords",
    "RowWriter",
    "ShuffleOrder",
    "crc32c",
    "decode_entries",
    "read_rows",
]

_Numbers: TypeAlias = npt.NDArray[np.int64]

@final
class RandomWords:
    def __new__(cls, key: int, stream: int) -> Self: ...
    def next(self) -> int: ...
    def pair(self) -> tuple[int, int]: ...

@final
class ShuffleOrder:
    def __new__(
        cls, size: int, seed: int, seed2: int, allocate: Callable[[int], _Numbers]
    ) -> Self: ...
    @property
    def held(self) -> int: ...
    def exchange(self, number: int) -> int: ...
    def exchange_rows(self, rows: _Numbers, out: _Numbers) -> int: ...
    def drain(self, out: _Numbers) -> int: ...

@final
class RowWriter:
    def __new__(cls, arrays: tuple[npt.NDArray[Any], ...], form: Any) -> Self: ...
    def fill(
        self,
        row: int,
        stop: int,
        elements: Iterator[Any],
        function: Callable[..., Any] | None,
        unpack: bool,
    ) -> tuple[int, tuple[Any, ...]]: ...

def crc32c(data: bytes | bytearray | memoryview, before: int = 0) -> int: ...
def decode_entries(
    code: bytes | memoryview | npt.NDArray[np.uint8],
    apart: int,
    count: int,
    of_gaps: npt.NDArray[np.float64],
    of_numbers: npt.NDArray[np.float64],
    codebook: npt.NDArray[np.uint32],
    out: npt.NDArray[np.uint32],
) -> bool: ...
def read_rows(
    fd: int, offset: int, row_bytes: int, rows: _Numbers, out: npt.NDArray[Any]
) -> None: ...
