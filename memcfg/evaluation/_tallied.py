"""Evaluators whose state is a few arrays of sums, of a size known from the start."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg.errors import FormatError
from memcfg.evaluation._evaluator import Evaluator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["Tallied", "read_array", "whole_if_possible"]

Floats = npt.NDArray[np.float64]


class Tallied(Evaluator):
    """An evaluator whose state is arrays of sums, which `_add` adds to."""

    __slots__ = ("_sums",)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._sums: dict[str, Floats] = {}

    @property
    def state_bytes(self) -> int:
        """The bytes of the state in memory, which do not grow with the samples."""
        return sum(each.nbytes for each in self._sums.values())

    def _shapes(self, columns: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the sums by name."""
        raise NotImplementedError(f"{self._name} has no sums")

    def _add(self, sums: dict[str, Floats], block: Block) -> None:
        """Add a block to sums."""
        raise NotImplementedError(f"{self._name} adds nothing")

    def _combined(
        self, one: Mapping[str, Floats], other: Mapping[str, Floats]
    ) -> dict[str, Floats]:
        """Return the sums of both, as new arrays."""
        return {name: one[name] + other[name] for name in one}

    def _made(self, columns: int) -> dict[str, Floats]:
        return {name: np.zeros(shape) for name, shape in self._shapes(columns).items()}

    def _take(self, blocks: Iterable[Block], columns: int) -> None:
        new = self._made(columns)
        for block in blocks:
            self._add(new, block)
        self._sums = self._combined(self._sums, new) if self._sums else new

    def _join(self, other: Self) -> None:
        own = self._sums or self._made(other._columns or 0)
        self._sums = self._combined(own, other._sums)

    def _clear(self) -> None:
        self._sums = {}

    def _written(self) -> dict[str, Any]:
        return {name: each.tolist() for name, each in self._sums.items()}

    def _read(self, state: dict[str, Any], columns: int) -> None:
        shapes = self._shapes(columns)
        if state.keys() != shapes.keys():
            raise FormatError(
                f"the state of {self._name} has {', '.join(shapes)}, not "
                f"{', '.join(state)}"
            )
        self._sums = {
            name: read_array(state[name], shape, name, signed=name in self._signed)
            for name, shape in shapes.items()
        }

    _signed: frozenset[str] = frozenset()  # sums that may be negative


def read_array(
    value: Any, shape: tuple[int, ...], where: str, *, signed: bool = False
) -> Floats:
    """Read nested lists of numbers of a shape; FormatError for anything else."""
    numbers: list[float] = []
    _flatten(value, shape, where, numbers)
    result = np.array(numbers, np.float64).reshape(shape)
    if not signed and (result < 0).any():
        raise FormatError(f"{where} holds numbers below 0")
    return result


def _flatten(
    value: Any, shape: tuple[int, ...], where: str, numbers: list[float]
) -> None:
    if shape:
        if not isinstance(value, list) or len(value) != shape[0]:
            raise FormatError(f"{where} should be a list of length {shape[0]}")
        for each in value:
            _flatten(each, shape[1:], where, numbers)
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{where} should hold numbers, not {value!r:.40}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatError(f"{where} should hold finite numbers")
    numbers.append(number)


def whole_if_possible(array: Floats, *, weighted: bool) -> npt.NDArray[Any]:
    """Return counts as integers, unless they are sums of weights."""
    return array.copy() if weighted else array.astype(np.int64)
