"""Arrays that lie in a file until they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["StoredArray"]


@dataclass(frozen=True)
class StoredArray:
    """A first value that is read straight into the array that wants it."""

    draws_in_place: ClassVar[bool] = True

    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # in the file
    read: Callable[[npt.NDArray[np.uint8]], None]  # into bytes

    def first_value(self) -> npt.NDArray[Any]:
        """Read the value."""
        values = np.empty(self.shape, self.dtype)
        self.draw_into(values)
        return values

    def draw_into(self, values: npt.NDArray[Any], /) -> None:
        """Read the value into a contiguous array of its shape."""
        self.read(values.reshape(-1).view(np.uint8))
