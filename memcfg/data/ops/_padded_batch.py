"""`Dataset.padded_batch` and its relative for buckets of similar lengths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag
from memcfg._core import scope_out
from memcfg.data.elements._convert import apply
from memcfg.data.elements._spec import TensorSpec, stacked
from memcfg.data.elements._structure import flatten, is_nest, pack, same_structure
from memcfg.data.engine._run import closing
from memcfg.data.ops._batch import batches, cardinality_of_batches, reader_of
from memcfg.data.ops._batch_maker import TEXT, BatchMaker
from memcfg.data.ops._map import Map, unmapped
from memcfg.data.ops._node import UNKNOWN, UnaryNode, require_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from memcfg.data.engine._run import Run

# Kinds of dtypes that a padding value of a Python type may have.
_KINDS = {bool: "b", int: "iufc", float: "fc", complex: "c", str: "SU", bytes: "S"}


_END = object()


@dataclass(frozen=True, eq=False)
class PaddedBatch(UnaryNode):
    """Elements in batches, padded to one shape."""

    batch_size: int
    padded_shapes: Any
    padding_values: Any
    drop_remainder: bool
    name: str

    def __post_init__(self) -> None:
        require_arrays(self.source, self.name)
        object.__setattr__(self, "batch_size", count(self.batch_size, "batch_size"))
        flag(self.drop_remainder, "drop_remainder")
        if not self.source.is_probed:
            self._paddings(self.source.element_spec)

    @property
    def element_spec(self) -> Any:
        spec = self.source.element_spec
        if self.padded_shapes is not None:
            shapes = _padded_shapes(self.padded_shapes, spec)
            pairs = zip(shapes, flatten(spec), strict=True)
            spec = pack(spec, [TensorSpec(one, leaf.dtype) for one, leaf in pairs])
        return stacked(spec, self.batch_size if self.drop_remainder else None)

    @property
    def cardinality(self) -> int:
        return cardinality_of_batches(
            self.source, self.batch_size, drop_remainder=self.drop_remainder
        )

    def elements(self, run: Run) -> Iterator[Any]:
        source, function = self.source, None
        if isinstance(source, Map) and source.calls is None:
            source, function = unmapped(source)
        min_size = self.batch_size if self.drop_remainder else 1
        maker = _PaddingMaker(run, self.batch_size, min_size, function, is_certain=True)
        maker.paddings = self._paddings
        return batches(maker, reader_of(source, run))

    def _paddings(self, like: Any) -> list[_Padding]:
        return _paddings_of(self.padded_shapes, self.padding_values, like)


class _PaddingMaker(BatchMaker):
    """Makes padded batches; it collects all elements to find the largest shape."""

    paddings: Callable[[Any], list[_Padding]]

    def made(self, elements: Iterator[Any], target: AbstractContextManager[Any]) -> Any:
        some = islice(elements, self.max_size)
        mapped = [apply(self.function, element) for element in some]
        if len(mapped) < self.min_size:
            return None
        first = mapped[0]
        for number, element in enumerate(mapped):
            if not same_structure(first, element):
                raise TypeError(
                    "the elements of a batch must have the same structure, but that of "
                    f"element {number} differs from that of element 0"
                )
        return _padded(mapped, self.paddings(first), target)


def _padded(
    elements: Sequence[Any],
    paddings: Sequence[_Padding],
    target: AbstractContextManager[Any],
) -> Any:
    """Return elements of one structure as a batch, whose arrays lie in `target`."""
    columns = list(zip(*map(flatten, elements), strict=True))
    plan = [
        (padding, leaves, padding.target(leaves), padding.dtype(leaves))
        for padding, leaves in zip(paddings, columns, strict=True)
    ]
    with target:
        arrays = [np.empty((len(elements), *size), kind) for _, _, size, kind in plan]
    for array, (padding, leaves, _, _) in zip(arrays, plan, strict=True):
        padding.fill(array, leaves)
    return pack(elements[0], arrays)


@dataclass(frozen=True, eq=False)
class BucketBatch(UnaryNode):
    """Batches of elements of similar lengths, padded to one shape each.

    The elements of batches that are not full yet are held as arrays of the pool.
    """

    length_of: Callable[..., Any]
    boundaries: Any
    batch_sizes: Any
    padded_shapes: Any
    padding_values: Any
    to_boundary: bool
    no_padding: bool
    drop_remainder: bool
    name: str

    def __post_init__(self) -> None:
        require_arrays(self.source, self.name)
        bounds = [count(each, "a bucket boundary") for each in self.boundaries]
        sizes = [count(each, "a bucket's batch size") for each in self.batch_sizes]
        if bounds != sorted(set(bounds)) or not bounds:
            raise ValueError(f"bucket_boundaries must ascend, not {self.boundaries!r}")
        if len(sizes) != len(bounds) + 1:
            raise ValueError(
                f"{len(bounds)} bucket_boundaries make {len(bounds) + 1} buckets, and "
                f"bucket_batch_sizes has {len(sizes)}: the last is of longer elements"
            )
        if self.no_padding and (self.to_boundary or self.padded_shapes is not None):
            raise ValueError("no_padding excludes padded_shapes and a boundary")
        object.__setattr__(self, "boundaries", tuple(bounds))
        object.__setattr__(self, "batch_sizes", tuple(sizes))
        for each in ("to_boundary", "no_padding", "drop_remainder"):
            flag(getattr(self, each), each)

    @property
    def element_spec(self) -> Any:
        spec = self.source.element_spec
        if self.padded_shapes is not None:
            shapes = _padded_shapes(self.padded_shapes, spec)
            pairs = zip(shapes, flatten(spec), strict=True)
            spec = pack(spec, [TensorSpec(one, leaf.dtype) for one, leaf in pairs])
        return stacked(spec, None)

    @property
    def cardinality(self) -> int:
        return UNKNOWN

    def elements(self, run: Run) -> Iterator[Any]:
        return self._batches(self.source.elements(run), run)

    def _batches(self, elements: Iterator[Any], run: Run) -> Iterator[Any]:
        buckets: dict[int, list[Any]] = {}
        with closing(elements):
            while not run.closed:
                with scope_out():
                    element = next(elements, _END)
                    if element is _END:
                        break
                    bucket = self._bucket_of(element)
                held = buckets.setdefault(bucket, [])
                held.append(element)
                del element
                if len(held) == self.batch_sizes[bucket]:
                    yield self._batch(bucket, buckets.pop(bucket))
                del held
            while buckets and not (self.drop_remainder or run.closed):
                bucket = min(buckets)
                yield self._batch(bucket, buckets.pop(bucket))

    def _bucket_of(self, element: Any) -> int:
        length = int(np.asarray(apply(self.length_of, element)))
        bucket = bisect_right(self.boundaries, length)
        if self.to_boundary and bucket == len(self.boundaries):
            raise ValueError(
                f"an element has length {length}, and with pad_to_bucket_boundary they "
                f"are less than the last boundary, {self.boundaries[-1]}"
            )
        return bucket

    def _batch(self, bucket: int, held: list[Any]) -> Any:
        first = held[0]
        shapes = self.padded_shapes
        if self.to_boundary:
            spec = first if self.source.is_probed else self.source.element_spec
            wanted = [leaf.shape for leaf in flatten(spec)]
            if shapes is not None:
                wanted = _padded_shapes(shapes, first)
            elif self.source.is_probed:
                raise ValueError(
                    "pad_to_bucket_boundary needs padded_shapes, with None for the "
                    "axes to pad: the shapes of the elements are not known"
                )
            most = self.boundaries[bucket] - 1
            full = [tuple(most if n is None else n for n in each) for each in wanted]
            shapes = pack(first, full) if is_nest(first) else full[0]
        paddings = _paddings_of(shapes, self.padding_values, first)
        if self.no_padding:
            for number, leaves in enumerate(zip(*map(flatten, held), strict=True)):
                found = {leaf.shape for leaf in leaves}
                if len(found) > 1:
                    raise ValueError(
                        f"no_padding: component {number} of a batch has the shapes "
                        f"{sorted(found)}"
                    )
        return _padded(held, paddings, nullcontext())


@dataclass(frozen=True, slots=True)
class _Padding:
    """The padding of one component of the elements."""

    component: int  # for messages
    shape: tuple[int | None, ...]  # None: the largest size of the batch
    value: Any  # scalar of the component's dtype

    def target(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        for number, leaf in enumerate(leaves):
            if leaf.ndim != len(self.shape):
                raise ValueError(
                    f"component {self.component} of element {number} has shape "
                    f"{list(leaf.shape)}, which cannot be padded to {self}"
                )
        shapes = [leaf.shape for leaf in leaves]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        for axis, (size, needed) in enumerate(zip(self.shape, longest, strict=True)):
            if size is not None and size < needed:
                raise ValueError(
                    f"component {self.component} cannot be padded to {self}: an "
                    f"element has {needed} along axis {axis}"
                )
        pairs = zip(self.shape, longest, strict=True)
        return tuple(needed if size is None else size for size, needed in pairs)

    def dtype(self, leaves: Sequence[Any]) -> np.dtype[Any]:
        mine = self.value.dtype
        for number, leaf in enumerate(leaves):
            if leaf.dtype.kind != mine.kind or (
                mine.kind not in TEXT and leaf.dtype != mine
            ):
                raise TypeError(
                    f"cannot batch arrays of different dtypes in component "
                    f"{self.component}: {mine}, and element {number} is {leaf.dtype}"
                )
        return max([mine, *(leaf.dtype for leaf in leaves)], key=lambda d: d.itemsize)

    def fill(self, array: npt.NDArray[Any], leaves: Sequence[Any]) -> None:
        """Write arrays into the rows of a batch, padded with the value."""
        for row, leaf in enumerate(leaves):
            if leaf.shape != array.shape[1:]:
                array[row] = self.value
            array[row, ...][tuple(map(slice, leaf.shape))] = leaf

    def __str__(self) -> str:
        return str(list(self.shape))


def _paddings_of(shapes: Any, values: Any, like: Any) -> list[_Padding]:
    """Return the padding of each component of `like`, an element or a spec."""
    leaves, result = flatten(like), []
    sizes = [None] * len(leaves) if shapes is None else _padded_shapes(shapes, like)
    parts = zip(leaves, sizes, _scalars(values, like), strict=True)
    for number, (leaf, size, value) in enumerate(parts):
        if size is None:
            if leaf.shape is None:
                raise ValueError(
                    f"padded_shapes is needed: the number of axes of component "
                    f"{number} is unknown"
                )
            size = (None,) * len(leaf.shape)
        elif not _holds(size, leaf):
            raise ValueError(
                f"the padded shape {list(size)} is not compatible with shape "
                f"{list(leaf.shape)} of component {number}"
            )
        result.append(_Padding(number, size, _scalar(value, leaf.dtype)))
    return result


def _padded_shapes(shapes: Any, like: Any) -> list[tuple[int | None, ...]]:
    return [_as_padded_shape(one) for one in _up_to(like, shapes, "padded_shapes")]


def _scalars(values: Any, element: Any) -> list[Any]:
    """List the padding value of each component; None for the default."""
    if values is None or (is_nest(element) and not is_nest(values)):
        return [values] * len(flatten(element))
    return _up_to(element, values, "padding_values")


def _holds(padded: tuple[int | None, ...], leaf: Any) -> bool:
    """Return whether a leaf can be padded to a shape."""
    if leaf.shape is None:
        return True
    return len(padded) == len(leaf.shape) and (
        not isinstance(leaf, TensorSpec)
        or all(
            size is None or needed is None or size >= needed
            for size, needed in zip(padded, leaf.shape, strict=True)
        )
    )


def _up_to(like: Any, nest: Any, what: str) -> list[Any]:
    """List the parts of `nest` at the positions of the leaves of `like`."""
    if not is_nest(like):
        return [nest]
    kind = Mapping if isinstance(like, Mapping) else tuple
    if not isinstance(nest, kind):
        raise TypeError(
            f"{what} must be a {'dict' if kind is Mapping else 'tuple'} like the "
            f"elements, not {nest!r}"
        )
    if isinstance(like, Mapping):
        if set(like) != set(nest):
            raise ValueError(f"{what} has keys {list(nest)}, elements {list(like)}")
        pairs = [(like[key], nest[key]) for key in sorted(like)]
    else:
        if len(like) != len(nest):
            raise ValueError(f"{what} has {len(nest)} parts, elements {len(like)}")
        pairs = list(zip(like, nest, strict=True))
    return [leaf for one, other in pairs for leaf in _up_to(one, other, what)]


def _as_padded_shape(shape: Any) -> tuple[int | None, ...]:
    sizes = shape if isinstance(shape, Iterable) else [shape]
    try:
        result = [-1 if size is None else index(size) for size in sizes]
    except TypeError as error:
        raise TypeError(
            f"a padded shape must be a sequence of int and None, not {shape!r}"
        ) from error
    if min(result, default=0) < -1:
        raise ValueError(
            f"the sizes of a padded shape must be -1 or more, not {shape!r}"
        )
    return tuple(None if size == -1 else size for size in result)


def _scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a padding value to a component's dtype."""
    if value is None:
        return np.zeros((), dtype)[()]
    if np.ndim(value):
        raise ValueError(f"padding_values must be scalars, not {value!r}")
    if isinstance(value, np.generic | np.ndarray):
        result: Any = np.asarray(value)[()]
        fits = result.dtype.kind == dtype.kind and (
            dtype.kind in TEXT or result.dtype == dtype
        )
    else:
        fits = dtype.kind in _KINDS.get(type(value), "")
        result = _of_python(value, dtype) if fits else None
    if not fits:
        raise TypeError(
            f"padding value {value!r} does not have the component's dtype, {dtype}"
        )
    return result


def _of_python(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in TEXT:
        as_bytes = dtype.kind == "S" and isinstance(value, str)
        return np.asarray(value.encode() if as_bytes else value)[()]
    try:
        result = dtype.type(value)
    except OverflowError:
        result = None
    if result is None or (isinstance(value, int) and result != value):
        raise ValueError(f"padding value {value!r} is out of range for {dtype}")
    return result
