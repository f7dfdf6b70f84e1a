"""Tensors whose batch is not the first axis, on their way to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from memcfg.nn.ops._declaring import reordered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memcfg.nn.layers import SymbolicTensor

__all__ = ["MovedBatch"]


class MovedBatch:
    """A transposed tensor, whose batch is not the first axis.

    Programs make one to take queries, keys and values apart, by its first axis. It can
    be indexed, iterated and transposed, and then is a tensor if the batch is first.

    Parameters
    ----------
    tensor : SymbolicTensor
        The tensor before, whose batch is first.
    axes : sequence of int
        Its axes, in the new order.
    """

    __slots__ = ("axes", "tensor")

    __array_ufunc__ = None  # arrays of NumPy leave the operators to this class

    def __init__(self, tensor: SymbolicTensor, axes: Sequence[int]) -> None:
        self.tensor, self.axes = tensor, tuple(axes)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape; None stands for the batch."""
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    def __repr__(self) -> str:
        place = self.axes.index(0)
        return f"<a tensor of shape {self.shape}, whose batch is axis {place}>"

    def __len__(self) -> int:
        return int(self.shape[0] or 0)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        keys += [slice(None)] * (len(self.axes) - len(keys))
        simple = all(isinstance(each, int | slice) for each in keys)
        if len(keys) > len(self.axes) or not simple:
            self.refuse("indexed so")
        own: list[Any] = [slice(None)] * len(self.axes)
        for axis, each in zip(self.axes, keys, strict=True):
            own[axis] = each
        kept = [axis for axis, each in enumerate(own) if isinstance(each, slice)]
        order = [
            kept.index(axis)
            for axis, each in zip(self.axes, keys, strict=True)
            if isinstance(each, slice)
        ]
        return transposed(self.tensor[tuple(own)], order)

    def transpose(self, axes: Sequence[int]) -> Any:
        """Return it with its axes in another order."""
        return transposed(self.tensor, [self.axes[axis] for axis in axes])

    def refuse(self, what: str) -> NoReturn:
        """Raise a TypeError."""
        raise TypeError(
            f"{self!r} cannot be {what}: index the axes before the batch, or transpose "
            "it so that the batch is first. Matrices of the batch by the batch belong "
            "in a step of your own, or the `call` of a model that has one"
        )

    def __array__(self, *_args: object, **_options: object) -> NoReturn:
        self.refuse("an array")

    def _refuse_operand(self, _: Any) -> NoReturn:
        self.refuse("an operand")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse_operand
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = _refuse_operand


def transposed(tensor: Any, order: Sequence[int]) -> Any:
    """Return a tensor with its axes in another order; the batch may be any of them."""
    if order and order[0] != 0:
        return MovedBatch(tensor, order)
    return reordered(tensor, order)
