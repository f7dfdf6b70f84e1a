"""Ops that give elements another place or shape."""

from __future__ import annotations

import re
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import check_channels_last, constant, integer
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers import _operators as operators
from memcfg.nn.layers._batch_size import BatchSize
from memcfg.nn.layers._layer import has_batch_size
from memcfg.nn.layers._operators import Function, Joined, Rows, as_tensor
from memcfg.nn.ops._along_axes import sum as sum_of
from memcfg.nn.ops._declaring import (
    aligned,
    as_dtype_of,
    axis_of,
    batch_size_of,
    described,
    documented,
    for_each_row,
    lengths_of,
    reordered,
    reshaped,
    tensor_of,
)
from memcfg.nn.ops._moved_batch import MovedBatch, transposed
from memcfg.nn.ops._of_elements import where

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = [
    "append",
    "array_split",
    "broadcast_to",
    "concatenate",
    "depth_to_space",
    "diag",
    "diagflat",
    "diagonal",
    "dsplit",
    "dstack",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "get_item",
    "hsplit",
    "hstack",
    "moveaxis",
    "ndim",
    "pad",
    "part",
    "ravel",
    "rearrange",
    "repeat",
    "reshape",
    "roll",
    "rot90",
    "shape",
    "size",
    "slice_of",
    "slice_update",
    "space_to_depth",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "tile",
    "trace",
    "transpose",
    "tril",
    "triu",
    "unstack",
    "vector_of",
    "vsplit",
    "vstack",
]


@documented
def get_item(x: Any, key: Any) -> Any:
    """Return ``x[key]``."""
    return operators.get_item(x, key)


def _is_array(x: Any) -> bool:
    return not hasattr(x, "shape")


@described
def shape(x: Any) -> tuple[Any, ...]:
    """Return the shape; None stands for a batch of any size.

    In a `call` or a loss, the first length is an object that other ops take as a length
    of shapes; ``2 * ops.shape(x)[0]`` is one, too.
    """
    if isinstance(x, SymbolicTensor):
        size = batch_size_of(x)
        return x.shape if size is None else (size, *x.shape[1:])
    result: tuple[int, ...] = np.shape(x) if _is_array(x) else x.shape
    return result


@described
def ndim(x: Any) -> int:
    """Return the number of axes."""
    return len(shape(x))


@described
def size(x: Any) -> Any:
    """Return the number of elements; None for a batch of any size."""
    lengths = shape(x)
    counts = [n for n in lengths if not isinstance(n, BatchSize)]
    if None in counts:
        return None
    count = prod(n or 0 for n in counts)
    return count if len(counts) == len(lengths) else lengths[0] * count


@documented
def reshape(x: Any, newshape: Sequence[int | None]) -> Any:
    """Change the shape; axes that are joined to the batch give it more rows."""
    x = tensor_of(x, "reshape")
    given: Any = newshape if isinstance(newshape, list | tuple) else (newshape,)
    if x.whole:
        return reshaped(x, _complete(given, prod(lengths_of(x)), x))
    first, *rest = given
    if not isinstance(first, BatchSize) and first not in (-1, None, x.shape[0]):
        raise ValueError(
            f"reshape: axis 0 of {x!r} is the batch, of any size: the new shape must "
            f"start with -1, or in a call with ops.shape(x)[0], got {first}"
        )
    own = x.node.rows
    count = own * prod(x.sample_shape)  # of elements for each sample
    known = [n for n in rest if n not in (-1, None)]
    of_row = prod(integer(n, "reshape: a length") for n in known)
    rows = own
    if isinstance(first, BatchSize):
        rows = first.rows
    elif first == -1 and len(known) == len(rest) and not count % of_row:
        rows = count // of_row
    if count % rows:
        raise _unfitting(x, given)
    lengths = _complete(rest, count // rows, x)
    return reshaped(x, [None, *lengths]) if rows == own else Rows(lengths)(x)


def _complete(lengths: Sequence[Any], count: int, x: Any) -> list[int]:
    """Return lengths with the one that is -1 or None; ValueError if they do not fit."""
    open_ones = [place for place, n in enumerate(lengths) if n in (-1, None)]
    known = [1 if n in (-1, None) else integer(n, "reshape: a length") for n in lengths]
    rest, left = divmod(count, prod(known))
    if len(open_ones) > 1 or left or (rest != 1 and not open_ones):
        raise _unfitting(x, lengths)
    for place in open_ones:
        known[place] = rest
    return known


def _unfitting(x: Any, lengths: Sequence[Any]) -> ValueError:
    return ValueError(
        f"reshape: {x!r} cannot have the shape {tuple(lengths)}: the numbers of "
        "elements differ"
    )


@documented
def ravel(x: Any) -> Any:
    """Return a tensor in one dimension."""
    return reshape(tensor_of(x, "ravel"), (-1,))


def vector_of(x: Any) -> Any:
    """Return a tensor without a batch in one dimension; ValueError for others."""
    x = tensor_of(x, "ravel")
    if not x.whole:
        raise ValueError(
            f"ravel: axis 0 of {x!r} is the batch, whose samples would be mixed: give "
            "an axis, or flatten samples by ops.reshape(x, (-1, n))"
        )
    return reshape(x, (-1,))


@documented
def expand_dims(x: Any, axis: Any) -> Any:
    """Insert axes of length 1."""
    if isinstance(x, BatchSize):  # a vector of lengths
        return [x]
    x = tensor_of(x, "expand_dims")
    several = axis if isinstance(axis, list | tuple) else (axis,)
    rank = len(x.shape) + len(several)
    places = sorted(axis_of(x, each, rank) for each in several)
    lengths = lengths_of(x)
    for place in places:
        lengths.insert(place, 1)
    return reshaped(x, lengths)


@documented
def squeeze(x: Any, axis: Any = None) -> Any:
    """Remove axes of length 1, by default all of them."""
    x = tensor_of(x, "squeeze")
    several = axis if isinstance(axis, list | tuple) else (axis,)
    gone = {axis_of(x, each) for each in several if each is not None}
    lengths = lengths_of(x)
    gone = gone or {place for place, length in enumerate(lengths) if length == 1}
    if any(lengths[place] != 1 for place in gone):
        raise ValueError(f"squeeze: axis {axis} of {x!r} does not have length 1")
    return reshaped(x, [n for place, n in enumerate(lengths) if place not in gone])


@documented
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Reorder the axes; to index some before the batch, they may be put there."""
    if not isinstance(x, MovedBatch):
        x = tensor_of(x, "transpose")
    rank, whole = len(x.shape), getattr(x, "whole", False)
    if axes is None and not whole:
        raise ValueError(
            f"transpose: axis 0 of {x!r} is the batch and must stay first: pass "
            "axes=(0, ...), got None"
        )
    given = range(rank)[::-1] if axes is None else axes
    known = [integer(each, "an axis", None) for each in given]
    places = [each % rank for each in known if -rank <= each < rank]
    if sorted(places) != list(range(rank)):
        raise ValueError(f"transpose: axes {tuple(given)} are not those of {x!r}")
    if isinstance(x, MovedBatch):
        return x.transpose(places)
    return reordered(x, places) if whole else transposed(x, places)


@documented
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Move axes to other positions."""
    x = tensor_of(x, "moveaxis")
    pairs = []
    for each in (source, destination):
        several = each if isinstance(each, list | tuple) else (each,)
        pairs.append([axis_of(x, place) for place in several])
    if len(pairs[0]) != len(pairs[1]):
        raise ValueError(f"moveaxis: {source} and {destination} are not as many axes")
    order = [place for place in range(len(x.shape)) if place not in pairs[0]]
    for target, place in sorted(zip(pairs[1], pairs[0], strict=True)):
        order.insert(target, place)
    return reordered(x, order)


@documented
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Swap two axes."""
    order = list(range(len(tensor_of(x, "swapaxes").shape)))
    a, b = axis_of(x, axis1), axis_of(x, axis2)
    order[a], order[b] = b, a
    return reordered(x, order)


@documented
def flip(x: Any, axis: Any = None) -> Any:
    """Reverse the elements along axes."""
    x = tensor_of(x, "flip")
    if axis is None and x.whole:
        axis = tuple(range(len(x.shape)))
    several = axis if isinstance(axis, list | tuple) else (axis,)
    return Function("reverse", {"axes": tuple(axis_of(x, each) for each in several)})(x)


@documented
def fliplr(x: Any) -> Any:
    """Reverse the elements along axis 1."""
    return flip(x, 1)


@documented
def flipud(x: Any) -> Any:
    """Reverse the elements along axis 0, of a tensor without a batch."""
    return flip(x, 0)


@documented
def rot90(array: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """Rotate by 90 degrees in the plane of two axes, from the first to the second."""
    x = tensor_of(array, "rot90")
    first, second = (axis_of(x, each) for each in axes)
    if first == second:
        raise ValueError(f"rot90: axes {axes} must differ")
    turns = integer(k, "rot90: k", None) % 4
    if turns == 2:
        return flip(x, (first, second))
    if turns == 1:
        return swapaxes(flip(x, second), first, second)
    return flip(swapaxes(x, first, second), second) if turns else x


def _sized(x: Any, lengths: Any, name: str) -> SymbolicTensor:
    """Return a tensor; an array is one where a length is that of the batch."""
    return as_tensor(x, name) if has_batch_size(lengths) else tensor_of(x, name)


@documented
def broadcast_to(x: Any, shape: Sequence[Any]) -> Any:
    """Repeat axes of length 1; the batch is -1, None, or ``ops.shape(x)[0]``."""
    x = _sized(x, shape, "broadcast_to")
    first = shape[0] if shape else None
    if x.whole and isinstance(first, BatchSize):
        if len(x.shape) == len(shape) and x.shape[0] == 1:
            x = reshaped(x, x.shape[1:])
        return for_each_row(broadcast_to(x, [*shape[1:]]), first)
    lengths = lengths_of(x)
    wide = [*shape] if x.whole else [None, *shape[1:]]
    ends = wide[max(len(wide) - len(lengths), 0) :]
    wrong = len(lengths) > len(wide) or any(
        a not in (1, b) or (b is None and a is not None)
        for a, b in zip(lengths, ends, strict=True)
    )
    if wrong or (not x.whole and len(lengths) < len(wide)):
        raise ValueError(f"broadcast_to: {x!r} does not fit {tuple(shape)}")
    return Function("broadcast_to", {"shape": tuple(wide)})(x)


def part(x: SymbolicTensor, axis: int, begin: int, end: int) -> Any:
    """Return a slice along one axis."""
    if begin == 0 and end == x.shape[axis]:
        return x
    return x[(*[slice(None)] * axis, slice(begin, end))]


@documented
def concatenate(xs: Sequence[Any], axis: int = 0) -> Any:
    """Join tensors along an axis; those without a batch are repeated."""
    if has_batch_size(xs):  # vectors of lengths
        return [length for each in xs for length in each]
    tensors = [as_tensor(each, "concatenate") for each in xs]
    like = next((each for each in tensors if not each.whole), tensors[0])
    place = axis_of(like, axis)
    rank = len(like.shape)
    joined = []
    for each in tensors:
        alone = each.whole and not like.whole and len(each.shape) < rank
        joined.append(aligned(each, like) if alone else each)
    if any(len(each.shape) != rank for each in joined):
        shapes = ", ".join(str(each.shape) for each in tensors)
        raise ValueError(f"concatenate: shapes {shapes} must have the same rank")
    return Joined(place)(joined) if len(joined) > 1 else joined[0]


@documented
def append(x1: Any, x2: Any, axis: int | None = None) -> Any:
    """Join two tensors along an axis; by default flattened, without a batch."""
    if axis is None:
        both = [vector_of(as_tensor(each, "append")) for each in (x1, x2)]
        return concatenate(both, 0)
    return concatenate([x1, x2], axis)


@documented
def stack(x: Any, axis: int = 0) -> Any:
    """Join tensors along a new axis."""
    if has_batch_size(x):  # lengths
        return [*x]
    tensors = [as_tensor(each, "stack") for each in x]
    like = next((each for each in tensors if not each.whole), tensors[0])
    place = axis_of(like, axis, len(like.shape) + 1)
    tensors = [aligned(each, like) for each in tensors]
    return concatenate([expand_dims(each, place) for each in tensors], place)


def _at_least(xs: Any, rank: int) -> list[Any]:
    """Return tensors with axes of length 1 added, at the end or around one axis."""
    made = []
    for each in (as_tensor(x, "a tensor") for x in xs):
        lengths = lengths_of(each)
        if rank == 2 and len(lengths) < 2:
            lengths = [1, *lengths, *[1] * (1 - len(lengths))]
        elif rank == 3 and len(lengths) < 3:
            lengths = [1, *lengths, 1] if len(lengths) == 1 else [*lengths, 1]
        made.append(reshaped(each, lengths))
    return made


@documented
def hstack(xs: Any) -> Any:
    """Join tensors along axis 1, or vectors without a batch along axis 0."""
    tensors = [as_tensor(each, "hstack") for each in xs]
    flat = all(len(each.shape) == 1 and each.whole for each in tensors)
    return concatenate(tensors, 0 if flat else 1)


@documented
def vstack(xs: Any) -> Any:
    """Join tensors without a batch along axis 0; vectors become rows."""
    return concatenate(_at_least(xs, 2), 0)


@documented
def dstack(xs: Any) -> Any:
    """Join tensors along axis 2, which is added where there is none."""
    return concatenate(_at_least(xs, 3), 2)


@documented
def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split a tensor into parts along an axis."""
    return _parts(x, indices_or_sections, axis, "split")


def _parts(x: Any, ends: Any, axis: int, name: str) -> list[Any]:
    place = axis_of(tensor_of(x, name), axis)
    length = x.shape[place]
    if not isinstance(ends, list | tuple | np.ndarray):
        count = integer(ends, f"{name}: a number of parts")
        if length % count and name != "array_split":
            raise ValueError(
                f"{name}: length {length} cannot be split into {count} equal parts"
            )
        if count > length:
            raise ValueError(
                f"{name}: length {length} cannot be split into {count} parts: parts "
                "have at least one element"
            )
        longer = length % count
        sizes = [length // count + (i < longer) for i in range(count)]
        ends = np.cumsum(sizes)[:-1]
    bounds = [0, *map(int, ends), length]
    return [get_item(x, _key(place, a, b)) for a, b in pairwise(bounds)]


def _key(axis: int, begin: int, end: int) -> Any:
    return (*[slice(None)] * axis, slice(begin, end))


@documented
def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Split into parts of lengths that differ by at most 1."""
    return _parts(x, indices_or_sections, axis, "array_split")


@documented
def hsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Split into parts along axis 1, or a vector without a batch along axis 0."""
    flat = len(tensor_of(x, "hsplit").shape) == 1
    return _parts(x, indices_or_sections, 0 if flat else 1, "hsplit")


@documented
def vsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Split a tensor without a batch into parts along axis 0."""
    return _parts(x, indices_or_sections, 0, "vsplit")


@documented
def dsplit(x: Any, indices_or_sections: Any) -> list[Any]:
    """Split into parts along axis 2."""
    return _parts(x, indices_or_sections, 2, "dsplit")


@documented
def unstack(x: Any, num: int | None = None, axis: int = 0) -> list[Any]:
    """Return the parts of length 1 along an axis, without that axis."""
    if isinstance(x, MovedBatch) and axis in (0, -len(x.shape)):
        return list(x)
    place = axis_of(tensor_of(x, "unstack"), axis)
    length = x.shape[place]
    if num not in (None, length):
        raise ValueError(f"unstack: axis {axis} of {x!r} has {length} parts, not {num}")
    return [get_item(x, (*[slice(None)] * place, i)) for i in range(length)]


@documented
def tile(x: Any, repeats: Any) -> Any:
    """Repeat the whole tensor along each axis; a batch once.

    A tensor without a batch may be repeated for each sample, ``ops.shape(x)[0]`` times.
    """
    x = _sized(x, repeats, "tile")
    counts = list(repeats) if isinstance(repeats, list | tuple) else [repeats]
    lengths = lengths_of(x)
    counts = [1] * (len(lengths) - len(counts)) + counts
    first = counts[0]
    if x.whole and isinstance(first, BatchSize):
        made = tile(x, [1, *counts[1:]])
        if made.shape[0] != 1:
            return reshape(for_each_row(made, first), (-1, *made.shape[1:]))
        return for_each_row(reshaped(made, made.shape[1:]), first)
    counts = [integer(each, "tile: a number of repeats") for each in counts]
    if not x.whole and (counts[0] != 1 or len(counts) > len(lengths)):
        raise ValueError(
            f"tile: axis 0 of {x!r} is the batch: repeats must start with 1, one for "
            f"each axis; got {repeats!r}"
        )
    lengths = [1] * (len(counts) - len(lengths)) + lengths
    apart: list[Any] = []
    wide: list[Any] = []
    for count, length in zip(counts, lengths, strict=True):
        apart += [length] if count == 1 else [1, length]
        wide += [length] if count == 1 else [count, length]
    joined = [n if k == 1 else n * k for n, k in zip(lengths, counts, strict=True)]
    x = reshaped(x, apart)
    if wide != apart:
        x = Function("broadcast_to", {"shape": tuple(wide)})(x)
    return reshaped(x, joined)


@documented
def repeat(x: Any, repeats: Any, axis: int | None = None) -> Any:
    """Repeat each element along an axis; by default of the flattened tensor."""
    x = _sized(x, repeats, "repeat")
    if axis is None:
        x, axis = vector_of(x), 0
    place = axis_of(x, axis)
    lengths = lengths_of(x)
    if isinstance(repeats, BatchSize) and x.whole and lengths[place] == 1 == place + 1:
        return for_each_row(reshaped(x, x.shape[1:]), repeats)
    counts = np.atleast_1d(np.asarray(repeats))
    if counts.size == 1:
        count = integer(counts.item(), "repeat: repeats")
        shape = [*lengths[: place + 1], 1, *lengths[place + 1 :]]
        x = reshaped(x, shape)
        shape[place + 1] = count
        x = Function("broadcast_to", {"shape": tuple(shape)})(x)
        joined = [*lengths[:place], lengths[place] * count, *lengths[place + 1 :]]
        return reshaped(x, joined)
    if counts.shape != (lengths[place],):
        raise ValueError(
            f"repeat: {lengths[place]} numbers of repeats are needed for axis {axis} "
            f"of {x!r}, got {counts.size}"
        )
    parts = [
        repeat(part(x, place, i, i + 1), int(count), place)
        for i, count in enumerate(counts)
        if count
    ]
    return concatenate(parts, place)


@documented
def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    """Move elements along axes; those that leave come in at the other end."""
    x = tensor_of(x, "roll")
    if axis is None:
        lengths = lengths_of(x)
        return reshaped(roll(vector_of(x), shift, 0), lengths)
    shifts = shift if isinstance(shift, list | tuple) else (shift,)
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    for by, each in zip(shifts, axes, strict=True):
        place = axis_of(x, each)
        length = int(x.shape[place] or 1)
        first = -integer(by, "roll: shift", None) % length
        if first:
            ends = part(x, place, first, length), part(x, place, 0, first)
            x = concatenate(ends, place)
    return x


@documented
def pad(
    x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = None
) -> Any:
    """Surround with a number, or with mirrored elements or those at the edge."""
    x = tensor_of(x, "pad")
    rank = len(x.shape)
    widths = np.broadcast_to(np.asarray(pad_width), (rank, 2)).tolist()
    if not x.whole and widths[0] != [0, 0]:
        raise ValueError(
            f"pad: axis 0 of {x!r} is the batch: pad_width must start with (0, 0), got "
            f"{pad_width!r}"
        )
    if np.min(widths) < 0:
        raise ValueError(f"pad: widths must be zero or more, got {pad_width!r}")
    if mode == "constant":
        value = 0.0 if constant_values is None else constant_values
        given = {
            "before": tuple(a for a, _ in widths),
            "after": tuple(b for _, b in widths),
            "value": constant(value, "pad: constant_values"),
        }
        return Function("pad", given)(x)
    if mode not in ("reflect", "symmetric", "edge", "wrap"):
        raise ValueError(
            "pad: mode must be 'constant', 'reflect', 'symmetric', 'edge' or 'wrap', "
            f"got {mode!r}"
        )
    if constant_values is not None:
        raise ValueError(f"pad: constant_values is of mode 'constant', not {mode!r}")
    for place, (before, after) in enumerate(widths):
        if before or after:
            x = _padded_by_itself(x, place, before, after, mode)
    return x


def _padded_by_itself(x: Any, axis: int, before: int, after: int, mode: str) -> Any:
    """Return x with its own elements around it along an axis."""
    length = int(x.shape[axis])
    most = length - 1 if mode == "reflect" else length
    if mode != "edge" and max(before, after) > most:
        raise ValueError(
            f"pad: mode {mode!r} adds at most {most} elements along axis {axis} of "
            f"{x!r}, got {before} and {after}"
        )
    if mode == "edge":
        first, last = part(x, axis, 0, 1), part(x, axis, length - 1, length)
        sides = [first] * before, [last] * after
        return concatenate([*sides[0], x, *sides[1]], axis)
    if mode == "wrap":
        start, end = part(x, axis, length - before, length), part(x, axis, 0, after)
    else:
        skip = mode == "reflect"
        start = end = x
        if before:
            start = flip(part(x, axis, skip, before + skip), axis)
        if after:
            end = flip(part(x, axis, length - after - skip, length - skip), axis)
    sides = [start] * (before > 0), [end] * (after > 0)
    return concatenate([*sides[0], x, *sides[1]], axis)


@documented
def slice_of(inputs: Any, start_indices: Any, shape: Any) -> Any:
    """Return the part of a shape that starts at static indices."""
    x = tensor_of(inputs, "slice")
    begin, lengths = _box(x, start_indices, shape, "slice")
    keys = [
        slice(None) if length is None else slice(first, first + length)
        for first, length in zip(begin, lengths, strict=True)
    ]
    return get_item(x, tuple(keys))


def _box(x: Any, start: Any, shape: Any, name: str) -> tuple[list[int], list[Any]]:
    """Return the first indices and the lengths of a part; None is all of the batch."""
    begin = [integer(each, f"{name}: an index", 0) for each in start]
    lengths = [*shape]
    whole = lengths_of(x)
    if len(begin) != len(whole) or len(lengths) != len(whole):
        raise ValueError(f"{name}: {start} and {shape} are not of the axes of {x!r}")
    if not x.whole:
        if begin[0]:
            raise ValueError(f"{name}: axis 0 of {x!r} is the batch: start at 0")
        lengths[0] = None
    for first, length, most in zip(begin, lengths, whole, strict=True):
        if length is not None and not 0 < length <= most - first:
            raise ValueError(f"{name}: {start} and {tuple(shape)} are not within {x!r}")
    return begin, lengths


@documented
def slice_update(inputs: Any, start_indices: Any, updates: Any) -> Any:
    """Return the input with a part replaced, which starts at static indices."""
    x, new = tensor_of(inputs, "slice_update"), as_tensor(updates, "slice_update")
    new = as_dtype_of(new, x)
    new = aligned(new, x) if len(new.shape) < len(x.shape) else new
    begin, lengths = _box(x, start_indices, new.shape, "slice_update")
    around = [
        (first, 0 if length is None else most - first - length)
        for first, length, most in zip(begin, lengths, lengths_of(x), strict=True)
    ]
    inside = np.zeros([1 if n is None else n for n in lengths_of(x)], np.float32)
    keys = [
        slice(None) if n is None else slice(first, first + n)
        for first, n in zip(begin, lengths, strict=True)
    ]
    inside[tuple(keys)] = 1
    return where(inside, pad(new, around), x)


@documented
def tril(x: Any, k: int = 0) -> Any:
    """Return matrices with zeros above the k-th diagonal."""
    return _triangle(x, k, "tril", 1)


@documented
def triu(x: Any, k: int = 0) -> Any:
    """Return matrices with zeros below the k-th diagonal."""
    return _triangle(x, k, "triu", 0)


def _triangle(x: Any, k: int, name: str, lower: int) -> Any:
    lengths = lengths_of(tensor_of(x, name))
    if len(lengths) < 2 or None in lengths[-2:]:
        raise ValueError(f"{name}: {x!r} has no matrices in its last two axes")
    given = {"lower": lower, "offset": integer(k, f"{name}: k", None)}
    return Function("triangle", given)(x)


@documented
def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return a diagonal of the matrices in two axes, as the last axis."""
    x = tensor_of(x, "diagonal")
    first, second = axis_of(x, axis1), axis_of(x, axis2)
    if first == second:
        raise ValueError(f"diagonal: axis1 and axis2 are both axis {first} of {x!r}")
    rest = [each for each in range(len(x.shape)) if each not in (first, second)]
    x = reordered(x, [*rest, first, second])
    rows, columns = x.shape[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    length = min(rows - down, columns - right)
    if length < 1:
        raise ValueError(f"diagonal: {x!r} has no diagonal {offset}")
    x = x[..., down : down + length, right : right + length]
    return sum_of(where(np.eye(length, dtype=np.float32), x, 0), len(x.shape) - 1)


@documented
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the sums of a diagonal of the matrices in two axes."""
    found = diagonal(x, offset, axis1, axis2)
    return sum_of(found, len(found.shape) - 1)


@documented
def diag(x: Any, k: int = 0) -> Any:
    """Return a matrix with a vector on a diagonal, or the diagonal of a matrix."""
    x = tensor_of(x, "diag")
    if not x.whole or len(x.shape) > 2:
        raise ValueError(
            f"diag is of vectors and matrices without a batch, got {x!r}: use "
            "ops.diagonal(x, axis1=1, axis2=2), or multiply by NumPy's eye"
        )
    if len(x.shape) == 2:
        return diagonal(x, k)
    length, shift = x.shape[0], abs(k)
    square = where(np.eye(length, dtype=np.float32), expand_dims(x, 1), 0)
    return pad(
        square, [(max(-k, 0), max(k, 0)), (max(k, 0), max(-k, 0))] if shift else 0
    )


@documented
def diagflat(x: Any, k: int = 0) -> Any:
    """Return a matrix with the flattened tensor on a diagonal."""
    return diag(vector_of(x), k)


@documented
def depth_to_space(x: Any, block_size: int, data_format: str = "channels_last") -> Any:
    """Move channels to blocks of pixels."""
    x, block = _images(x, block_size, data_format, "depth_to_space")
    batch, height, width, channels = lengths_of(x)
    rest, left = divmod(channels, block * block)
    if left:
        raise ValueError(
            f"depth_to_space: {channels} channels are not a multiple of {block**2}"
        )
    x = reshaped(x, [batch, height, width, block, block, rest])
    x = reordered(x, [0, 1, 3, 2, 4, 5])
    return reshaped(x, [batch, height * block, width * block, rest])


@documented
def space_to_depth(x: Any, block_size: int, data_format: str = "channels_last") -> Any:
    """Move blocks of pixels to channels."""
    x, block = _images(x, block_size, data_format, "space_to_depth")
    batch, height, width, channels = lengths_of(x)
    if height % block or width % block:
        raise ValueError(
            f"space_to_depth: height {height} and width {width} must be multiples of "
            f"{block}"
        )
    x = reshaped(x, [batch, height // block, block, width // block, block, channels])
    x = reordered(x, [0, 1, 3, 2, 4, 5])
    return reshaped(x, [batch, height // block, width // block, block**2 * channels])


def _images(x: Any, block: Any, data_format: Any, name: str) -> tuple[Any, int]:
    check_channels_last(data_format, name)
    x = tensor_of(x, name)
    if len(x.shape) != 4:
        raise ValueError(
            f"{name} is of images (None, height, width, channels), got {x!r}"
        )
    return x, integer(block, f"{name}: block_size")


@documented
def rearrange(tensor: Any, pattern: str, **axes_lengths: int) -> Any:
    """Reorder, join and part axes by a pattern such as ``"b (h w) c -> b c h w"``."""
    x = tensor_of(tensor, "rearrange")
    sides = pattern.split("->")
    if len(sides) != 2:
        raise ValueError(f"rearrange: the pattern {pattern!r} needs one '->'")
    left, right = ([_names(each) for each in _groups(side)] for side in sides)
    lengths = lengths_of(x)
    if len(left) != len(lengths):
        raise ValueError(f"rearrange: {pattern!r} is not of the axes of {x!r}")
    known: dict[str, Any] = dict(axes_lengths)
    for names, length in zip(left, lengths, strict=True):
        _settle(names, length, known, pattern)
    before = [name for names in left for name in names]
    after = [name for names in right for name in names]
    if sorted(before) != sorted(after) or len({*before}) < len(before):
        raise ValueError(
            f"rearrange: both sides of {pattern!r} must name the same axes once"
        )
    x = reshaped(x, [known[name] for name in before])
    x = transpose(x, [before.index(name) for name in after]) if after else x
    return reshaped(x, [_product([known[name] for name in names]) for names in right])


def _groups(side: str) -> list[str]:
    return re.findall(r"\([^()]*\)|[^\s()]+", side)


def _names(group: str) -> list[str]:
    return group.strip("()").split()


def _product(lengths: Sequence[Any]) -> Any:
    return None if None in lengths else prod(n or 0 for n in lengths)


def _settle(
    names: Sequence[str], length: Any, known: dict[str, Any], pattern: str
) -> None:
    """Add the length of the one axis of a group that is not known."""
    if length is None and len(names) == 1:
        known[names[0]] = None
        return
    open_ones = [name for name in names if name not in known and name != "1"]
    known.update(dict.fromkeys((name for name in names if name == "1"), 1))
    rest = prod(known[name] for name in names if name in known)
    if length is None or len(open_ones) > 1 or length % rest:
        raise ValueError(
            f"rearrange: the lengths of {' '.join(names)} in {pattern!r} are unknown "
            f"or do not give {length}: pass them by name"
        )
    if open_ones:
        known[open_ones[0]] = length // rest
    elif rest != length:
        raise ValueError(f"rearrange: {' '.join(names)} has length {length}")
