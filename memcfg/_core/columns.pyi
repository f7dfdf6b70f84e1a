from collections.abc import Callable, Iterator
from typing import Any, Self, final

import numpy.typing as npt

__all__ = ["RowWriter"]

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
