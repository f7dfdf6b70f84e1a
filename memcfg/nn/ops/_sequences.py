"""Sums and products up to each place, and counts by comparison."""

from __future__ import annotations

from typing import Any

from memcfg.nn.ops._control import associative_scan
from memcfg.nn.ops._declaring import documented, tensor_of
from memcfg.nn.ops._of_elements import (
    add,
    cast,
    isnan,
    multiply,
    where,
)
from memcfg.nn.ops._shapes import ravel

__all__ = [
    "cumprod",
    "cumsum",
    "nancumprod",
    "nancumsum",
]


def _cumulated(f: Any, x: Any, axis: Any, dtype: str | None) -> Any:
    if axis is None:
        x, axis = ravel(x), 0
    made = associative_scan(f, x, axis=axis)
    return made if dtype in (None, "float32") else cast(made, dtype)


@documented
def cumsum(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the sums up to each element along an axis."""
    return _cumulated(add, tensor_of(x, "cumsum"), axis, dtype)


@documented
def cumprod(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the products up to each element along an axis."""
    return _cumulated(multiply, tensor_of(x, "cumprod"), axis, dtype)


@documented
def nancumsum(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the sums up to each element along an axis without NaN."""
    return cumsum(where(isnan(x), 0.0, x), axis, dtype)


@documented
def nancumprod(x: Any, axis: int | None = None, dtype: str | None = None) -> Any:
    """Return the products up to each element along an axis without NaN."""
    return cumprod(where(isnan(x), 1.0, x), axis, dtype)
