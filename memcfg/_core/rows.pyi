from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "RandomWords",
    "RangeDecoder",
    "RowWriter",
    "ShuffleOrder",
    "crc32c",
    "decode_pair",
    "place_entries",
    "read_rows",
]

_Numbers: TypeAlias = npt.NDArray[np.int64]
_Shares: TypeAlias = npt.NDArray[np.float64]
_Symbols: TypeAlias = npt.NDArray[np.int32]

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
class RangeDecoder:
    def __new__(cls, code: bytes | memoryview | npt.NDArray[np.uint8]) -> Self: ...
    def decode(self, probabilities: _Shares, out: _Symbols) -> bool: ...
    @property
    def may_end(self) -> bool: ...

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
def decode_pair(
    first: RangeDecoder,
    of_first: _Shares,
    to_first: _Symbols,
    second: RangeDecoder,
    of_second: _Shares,
    to_second: _Symbols,
) -> bool: ...
def place_entries(
    steps: _Symbols,
    numbers: _Symbols,
    codebook: npt.NDArray[np.uint32],
    out: npt.NDArray[np.uint32],
    last: int,
    of_steps: _Numbers,
    of_numbers: _Numbers,
) -> int: ...
def read_rows(
    fd: int, offset: int, row_bytes: int, rows: _Numbers, out: npt.NDArray[Any]
) -> None: ...
