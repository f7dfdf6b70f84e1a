"""Values of an ONNX graph as symbolic tensors in another order of axes.

A model's tensors have the batch first and channels last; in ONNX channels come second,
the batch may come anywhere, and a reshape may join it with other axes. So a `View` says
which axes of a tensor make up each axis of the value. Transposes and most reshapes only
change the view. Lengths are numbers: for a batch of any size a prime stands for it,
which no other length is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.nn import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "BATCH",
    "Known",
    "Places",
    "Rounded",
    "UnsupportedError",
    "View",
    "aligned",
    "arranged",
    "in_order",
    "last",
    "natural_order",
    "plain",
    "reshaped",
    "squeezed",
    "transposed",
    "unsqueezed",
    "whole",
]

Array: TypeAlias = np.ndarray[Any, Any]
Axes: TypeAlias = tuple[tuple[int, ...], ...]
BATCH = 1_000_003  # a prime, for a batch of any size
_READ = 2**24  # most elements of an array that is made while a graph is read


class UnsupportedError(NotImplementedError):
    """What a node asks for that layers do not do; the importer names the node."""


@dataclass(frozen=True)
class View:
    """A value that depends on the inputs.

    Axis i of the value is made of the axes ``axes[i]`` of the tensor, slowest first;
    those of length 1 are left out, but for axis 0, the batch.
    """

    x: SymbolicTensor
    axes: Axes
    batch: int  # its length

    def __post_init__(self) -> None:
        lengths = self.lengths
        axes = tuple(
            tuple(axis for axis in group if axis == 0 or lengths[axis] != 1)
            for group in self.axes
        )
        object.__setattr__(self, "axes", axes)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the tensor's axes."""
        return (self.batch, *self.x.sample_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the value's axes."""
        lengths = self.lengths
        return tuple(prod(lengths[axis] for axis in group) for group in self.axes)

    @property
    def dtype(self) -> str:
        """The dtype."""
        return self.x.sample_dtype


@dataclass(frozen=True)
class Known:
    """A value that does not depend on the inputs, read when it is needed."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]
    weight: str | None = None  # the name of the array in the file, if it is one

    @classmethod
    def of(cls, array: Any) -> Known:
        """Return an array as a value."""
        made = np.asarray(array)
        return cls(made.shape, str(made.dtype), lambda: made)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def array(self) -> Array:
        """Return the array; UnsupportedError if it is too large for what it is for."""
        if self.size > _READ:
            raise UnsupportedError(
                f"computes with {self.size} constants, of {_READ} at most"
            )
        return self.read()

    def reshaped(self, shape: Sequence[int]) -> Known:
        """Return the value in another shape."""
        return self.changed(shape, lambda array: array.reshape(shape))

    def changed(
        self, shape: Sequence[int], function: Callable[[Array], Array]
    ) -> Known:
        """Return the value after a function, which is called when it is read."""

        def read() -> Array:
            return function(self.read())

        return replace(self, shape=tuple(shape), read=read)


@dataclass(frozen=True)
class Rounded:
    """What QuantizeLinear makes of a value: DequantizeLinear gives its numbers back."""

    value: View
    numbers: View  # rounded, less the zero point, in the place of integers
    scale: float


@dataclass(frozen=True)
class Places:
    """The places of maxima in their windows, which MaxUnpool reads."""

    x: SymbolicTensor


def whole(view: View) -> bool:
    """Return whether the batch is an axis of its own."""
    return any(group == (0,) for group in view.axes)


def plain(view: View) -> tuple[SymbolicTensor, Axes]:
    """Return a tensor with an axis for each of the value, the batch first."""
    if not whole(view):
        raise UnsupportedError("joins the batch with other axes")
    first = view.axes.index((0,))
    order = [first, *(axis for axis in range(len(view.axes)) if axis != first)]
    return in_order(view, order)


def in_order(view: View, order: Sequence[int]) -> tuple[SymbolicTensor, Axes]:
    """Return a tensor whose axes are those of the value in an order, and the axes."""
    x = arranged(view, [view.axes[axis] for axis in order])
    return x, tuple((order.index(axis),) for axis in range(len(order)))


def natural_order(view: View) -> list[int]:
    """Return the axes of the value in the order in which the tensor has them."""
    places = [min(group, default=len(view.lengths)) for group in view.axes]
    return sorted(range(len(places)), key=lambda axis: (places[axis], axis))


def transposed(view: View, perm: Sequence[int]) -> View:
    """Return the value with its axes in another order."""
    return replace(view, axes=tuple(view.axes[axis] for axis in perm))


def unsqueezed(view: View, axes: Sequence[int]) -> View:
    """Return the value with axes of length 1 at these places of the result."""
    left = iter(view.axes)
    rank = len(view.axes) + len(axes)
    return replace(
        view, axes=tuple(() if i in axes else next(left) for i in range(rank))
    )


def squeezed(view: View, axes: Sequence[int]) -> View:
    """Return the value without axes of length 1."""
    for axis in axes:
        if view.shape[axis] != 1:
            raise UnsupportedError(f"drops an axis of length {view.shape[axis]}")
        if 0 in view.axes[axis]:
            raise UnsupportedError("drops the axis of the batch")
    kept = (group for axis, group in enumerate(view.axes) if axis not in axes)
    return replace(view, axes=tuple(kept))


def arranged(view: View, order: Sequence[Sequence[int]]) -> SymbolicTensor:
    """Return a tensor whose axes are groups of those of the view's, the batch first."""
    flat = [axis for group in order for axis in group]
    x, lengths = view.x, view.lengths
    if flat[:1] != [0] or len(order[0]) > 1:
        raise UnsupportedError("joins the batch with other axes")
    hidden = [axis for axis in range(len(lengths)) if axis not in flat]
    if any(lengths[axis] != 1 for axis in hidden):
        raise AssertionError(f"axes {hidden} of {lengths} are lost")
    wanted = tuple(prod(lengths[axis] for axis in group) for group in order[1:])
    if flat != sorted(flat):
        x = ops.transpose(x, (*flat, *hidden))
    if tuple(x.sample_shape) != wanted:
        x = ops.reshape(x, (-1, *wanted))
    return x


def last(view: View, axis: int) -> tuple[SymbolicTensor, Axes]:
    """Return a tensor whose last axis is an axis of the value, and the axes then."""
    group = view.axes[axis]
    if 0 in group:
        raise UnsupportedError("works along the axis of the batch")
    used = {each for other in view.axes for each in other}
    order = [(each,) for each in range(len(view.lengths)) if each in used - {*group}]
    x = arranged(view, [*order, group])
    places = {each: i for i, (each,) in enumerate(order)}
    axes = [
        tuple(places[each] for each in other) if i != axis else (len(order),)
        for i, other in enumerate(view.axes)
    ]
    return x, tuple(axes)


def _split(view: View, axis: int, lengths: Sequence[int]) -> View:
    """Return the value with an axis of the tensor divided into several."""
    shape = view.lengths
    made = (*shape[:axis], *lengths, *shape[axis + 1 :])
    more = len(lengths) - 1
    parts = tuple(range(axis, axis + len(lengths)))
    axes = tuple(
        tuple(
            part
            for each in group
            for part in (parts if each == axis else (each + more * (each > axis),))
        )
        for group in view.axes
    )
    return View(ops.reshape(view.x, (-1, *made[1:])), axes, view.batch)


def reshaped(view: View, shape: Sequence[int]) -> View:
    """Return the value in another shape, whose lengths are known."""
    found = _regrouped(view, shape)
    if found is not None:
        return found
    # Join what lies in order, so that the batch is left alone and all else is one axis.
    batch = next((i for i, g in enumerate(view.axes) if g == (0,)), None)
    if batch is None or any(n != 1 for n in view.shape[:batch]):
        raise UnsupportedError("joins the batch with other axes")
    rest = tuple(each for i, g in enumerate(view.axes) if i != batch for each in g)
    flat = View(arranged(view, [(0,), rest]), ((0,), (1,)), view.batch)
    found = _regrouped(flat, shape)
    if found is None:
        raise UnsupportedError(f"reshapes {view.shape} to {tuple(shape)}")
    return found


def _regrouped(view: View, shape: Sequence[int]) -> View | None:
    """Return the value in a shape whose axes are parts or groups of the view's."""
    atoms = [each for group in view.axes for each in group]
    groups: list[tuple[int, ...]] = []
    place = 0
    for length in shape:
        group: list[int] = []
        size = 1
        while size < length or (
            place < len(atoms) and _opens(view, atoms[place], length, size)
        ):
            if place == len(atoms):
                return None
            atom = atoms[place]
            have = view.lengths[atom]
            if size * have > length:
                part, rest = divmod(length, size)
                if rest or have % part or atom == 0:
                    return None
                view = _split(view, atom, (part, have // part))
                atoms = [each + (each > atom) for each in atoms]
                groups = [tuple(each + (each > atom) for each in g) for g in groups]
                group = [each + (each > atom) for each in group]
                atoms.insert(place + 1, atom + 1)
                have = part
            size *= have
            group.append(atom)
            place += 1
        if size != length:
            return None
        groups.append(tuple(group))
    left = atoms[place:]
    if any(view.lengths[each] != 1 for each in left):
        return None
    if 0 in left:  # a batch of 1 that no axis took
        return None
    return replace(view, axes=tuple(groups))


def _opens(view: View, atom: int, length: int, size: int) -> bool:
    """Return whether an axis of length 1 belongs to the next axis of the result."""
    return view.lengths[atom] == 1 and length == size and atom == 0


def aligned(
    values: Sequence[View | Known], tail: int = 0
) -> tuple[list[SymbolicTensor | Known], Axes, int]:
    """Return values in one layout, for ops of elements, with their axes and the batch.

    Axes of length 1 are broadcast. Arrays are returned as such, in that layout. The
    last `tail` axes of each value follow as they are; they are not among the axes.
    """
    rank = max(len(each.shape) for each in values) - tail
    batch = next(each.batch for each in values if isinstance(each, View))
    wide: list[View | Known] = []
    for value in values:
        more = rank + tail - len(value.shape)
        if isinstance(value, View):
            wide.append(unsqueezed(value, range(more)))
        else:
            wide.append(value.reshaped((1,) * more + value.shape))
    wide = _refined(wide, rank)
    order, lengths = _layout(wide, rank)
    axes = tuple(
        tuple(
            sorted(
                (i for i, (other, _) in enumerate(order) if other == axis),
                key=lambda i: order[i][1],
            )
        )
        for axis in range(rank)
    )
    results: list[SymbolicTensor | Known] = []
    for value in wide:
        if isinstance(value, View):
            results.append(_laid_out(value, order, rank))
        else:
            results.append(_array_laid_out(value, axes, lengths, batch))
    return results, axes, batch


def _layout(
    values: Sequence[View | Known], rank: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the parts of the first axes in the order of a common tensor."""
    order: list[tuple[int, int]] = []  # axis of the value, and which part of it
    lengths: list[int] = []
    views = [each for each in values if isinstance(each, View)]
    for view in sorted(views, key=lambda each: -prod(each.lengths)):
        places = {
            each: (axis, part)
            for axis, group in enumerate(view.axes[:rank])
            for part, each in enumerate(group)
            if view.shape[axis] != 1 or each == 0
        }
        for each in sorted(places):
            if places[each] not in order:
                order.append(places[each])
                lengths.append(view.lengths[each])
    for value in values:
        for axis, length in enumerate(value.shape[:rank]):
            if length != 1 and not any(axis == other for other, _ in order):
                order.append((axis, 0))
                lengths.append(length)
    return order, lengths


def _refined(values: Sequence[View | Known], rank: int) -> list[View | Known]:
    """Divide axes so that all views have the same parts of each axis of the value."""
    result = list(values)
    for axis in range(rank):
        rows = [
            (i, [each.lengths[a] for a in each.axes[axis]])
            for i, each in enumerate(result)
            if isinstance(each, View) and each.shape[axis] != 1
        ]
        ends = sorted({e for _, row in rows for e in _ends(row)})
        for i, row in rows:
            view = result[i]
            assert isinstance(view, View)
            if _ends(row) != ends:
                result[i] = _cut(view, axis, ends)
    return result


def _ends(lengths: Sequence[int]) -> list[int]:
    """Return the products of the first lengths."""
    found, size = [], 1
    for length in lengths:
        size *= length
        if length != 1:
            found.append(size)
    return found


def _cut(view: View, axis: int, ends: Sequence[int]) -> View:
    wanted, before = [], 1
    for end in ends:
        if end % before:
            raise UnsupportedError(f"has axes of {view.shape} divided in two ways")
        wanted.append(end // before)
        before = end
    shape = [*view.shape[:axis], *wanted, *view.shape[axis + 1 :]]
    found = reshaped(view, shape)
    group = tuple(e for g in found.axes[axis : axis + len(wanted)] for e in g)
    return replace(
        found, axes=(*found.axes[:axis], group, *found.axes[axis + len(wanted) :])
    )


def _laid_out(
    view: View, order: Sequence[tuple[int, int]], rank: int
) -> SymbolicTensor:
    """Return a tensor with the axes of a layout, of length 1 where it has none."""
    groups: list[tuple[int, ...]] = []
    for axis, part in order:
        group = view.axes[axis]
        has = part < len(group) and (view.shape[axis] != 1 or group[part] == 0)
        groups.append((group[part],) if has else ())
    groups += view.axes[rank:]
    if groups[:1] != [(0,)]:
        raise UnsupportedError("has a batch that other values do not have")
    return arranged(view, groups)


def _array_laid_out(
    value: Known, axes: Axes, lengths: Sequence[int], batch: int
) -> Known:
    """Return an array in a layout, without axes of length 1 in front."""
    rank = len(axes)
    divided: list[int] = []
    order: list[int] = []
    of_batch = False
    for length, group in zip(value.shape, axes, strict=False):
        parts = [lengths[i] for i in group]
        if length == 1:
            parts = [1] * len(group)
        elif prod(parts) != length or (0 in group and len(group) > 1):
            raise UnsupportedError(f"has constants of the shape {value.shape}")
        of_batch = of_batch or (0 in group and length != 1)
        divided += parts
        order += group
    if of_batch and lengths[0] != batch:
        raise UnsupportedError("has constants that differ between samples")
    tail = value.shape[rank:]
    places = [order.index(i) for i in range(len(order))]
    final = [divided[i] for i in places]
    if of_batch:
        final[0] = 1
    final += tail
    while len(final) > len(tail) and final[0] == 1:
        final = final[1:]
    turned = [*places, *range(len(places), len(places) + len(tail))]

    def change(array: Array) -> Array:
        made = array.reshape((*divided, *tail)).transpose(turned)
        if of_batch:
            if not (made == made[:1]).all():
                raise UnsupportedError("has constants that differ between samples")
            made = made[:1]
        return made.reshape(final)

    return value.changed(final, change)
