"""The length of the batch, which no number stands for while a `call` is traced."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["BatchSize"]


class BatchSize:
    """A number of rows for each sample of a batch, as a length of shapes.

    ``ops.shape(x)[0]`` is one. It can be multiplied by integers and divided by them;
    with tensors it is a number, a tensor without a batch.

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
        if isinstance(other, int | float):
            self._refuse()
        return isinstance(other, BatchSize) and other.rows == self.rows

    def __hash__(self) -> int:
        return hash(("the batch", self.rows))

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, int):
            return BatchSize(self.like, self.rows * other)
        return self._combined("multiply", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        by = other.rows if isinstance(other, BatchSize) else other
        if not isinstance(by, int) or self.rows % by:
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
