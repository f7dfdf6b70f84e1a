"""The length of the batch, which no number stands for while a `call` is traced."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any, NoReturn

__all__ = ["BatchSize"]


class BatchSize:
    """A number of rows for each sample of a batch, as a length of shapes.

    ``ops.shape(x)[0]`` is one. It can be multiplied by positive integers and divided
    by them; what else is computed with it is a number, a tensor without a batch.

    Parameters
    ----------
    like : SymbolicTensor
        A tensor with a row for each sample.
    rows : int, default 1
        The rows.
    """

    __slots__ = ("like", "rows")

    __array_ufunc__ = None  # arrays of NumPy leave the operators to this class

    def __init__(self, like: Any, rows: int = 1) -> None:
        self.like, self.rows = like, rows

    def tensor(self) -> Any:
        """Return the number as a tensor of the program."""
        return self.like.operators.RowCount(self.rows)(self.like)

    def __repr__(self) -> str:
        return "the batch" if self.rows == 1 else f"{self.rows} * the batch"

    def _refuse(self) -> NoReturn:
        raise TypeError(
            "the size of the batch is not known while a call is traced: it may be a "
            "length of a shape, as in ops.reshape(x, (ops.shape(x)[0], -1)), or an "
            "operand of tensors"
        )

    def __bool__(self) -> NoReturn:
        self._refuse()

    def __int__(self) -> NoReturn:
        self._refuse()

    def __index__(self) -> NoReturn:
        self._refuse()

    def __float__(self) -> NoReturn:
        self._refuse()

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Real):
            self._refuse()
        return isinstance(other, BatchSize) and other.rows == self.rows

    def __lt__(self, other: object) -> NoReturn:
        self._refuse()

    __le__ = __gt__ = __ge__ = __lt__

    def __hash__(self) -> int:
        return hash(("the batch", self.rows))

    def __mul__(self, other: Any) -> Any:
        by = _integer(other)
        if by is not None and by > 0:
            return BatchSize(self.like, self.rows * by)
        return self._combined("multiply", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        by = other.rows if isinstance(other, BatchSize) else _integer(other)
        if by is None or by <= 0 or self.rows % by:
            return self._combined("floor_divide", other)
        left = self.rows // by
        return left if isinstance(other, BatchSize) else BatchSize(self.like, left)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._combined("floor_divide", other, swapped=True)

    def _combined(self, kind: str, other: Any, *, swapped: bool = False) -> Any:
        """Return the result of an operator with a tensor or a number."""
        own = self.tensor()
        other = other.tensor() if isinstance(other, BatchSize) else other
        pair = (other, own) if swapped else (own, other)
        return self.like.operators.binary(kind, *pair)

    def __add__(self, other: Any) -> Any:
        return self._combined("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combined("subtract", other)

    def __rsub__(self, other: Any) -> Any:
        return self._combined("subtract", other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._combined("divide", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combined("divide", other, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._combined("remainder", other)

    def __rmod__(self, other: Any) -> Any:
        return self._combined("remainder", other, swapped=True)

    def __pow__(self, other: Any) -> Any:
        return self._combined("power", other)

    def __rpow__(self, other: Any) -> Any:
        return self._combined("power", other, swapped=True)

    def __neg__(self) -> Any:
        return self._combined("multiply", -1)


def _integer(value: Any) -> int | None:
    """Return an integer of Python or NumPy as one of Python; None for what is none."""
    if isinstance(value, BatchSize):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
