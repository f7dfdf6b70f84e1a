"""Steps without inputs: arrays, slices of arrays, and users' generators."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._cached import cached_property
from memcfg._caller import outside
from memcfg.data.elements._convert import as_array, as_leaf, as_scalars
from memcfg.data.elements._spec import TensorSpec
from memcfg.data.elements._structure import (
    flatten,
    is_nest,
    map_structure,
    pack,
    same_structure,
)
from memcfg.data.engine._iterator import probe
from memcfg.data.ops._node import Node
from memcfg.data.rows._file_rows import mapped_column
from memcfg.data.rows._rows import ArrayColumn, Rows, RowStream, in_order
from memcfg.workspaces import scope_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._rows import _Column

_END = object()
_TAKEN = {  # kind of a signature's dtype: kinds that can be converted to it
    "b": "b",
    "i": "biu",
    "u": "biu",
    "f": "biuf",
    "c": "biufc",
    "U": "U",
    "S": "S",
    "M": "M",
    "m": "m",
}


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """Rows, in order."""

    source: Rows
    name: str

    has_rows = True

    @property
    def element_spec(self) -> Any:
        return self.source.spec

    @property
    def cardinality(self) -> int:
        return self.source.count

    def elements(self, run: Run) -> Iterator[Any]:
        return self.source.elements()

    def rows(self, run: Run) -> RowStream:
        return RowStream(self.source, in_order(self.source.count))


def whole(value: Any, name: str) -> Slices:
    """Make the step of one element, as a single row."""
    rows = map_structure(lambda array: ArrayColumn(array[None]), _arrays(value))
    return Slices(Rows(rows, 1), name)


def sliced(value: Any, name: str) -> Slices:
    """Make the step of the slices of arrays."""
    arrays = _arrays(value, swap=False)
    leaves = flatten(arrays)
    for leaf in leaves:
        if leaf.ndim == 0:
            raise ValueError(
                f"slices are taken along the first axis, but {leaf[()]!r} has none; "
                "use from_tensors"
            )
    lengths = {len(leaf) for leaf in leaves}
    if len(lengths) > 1:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves)
        raise ValueError(f"arrays differ in length along the first axis: {shapes}")
    complaints: list[str] = []
    columns = map_structure(lambda array: _column(array, complaints), arrays)
    if complaints:
        warnings.warn(complaints[0], stacklevel=outside())
    return Slices(Rows(columns, lengths.pop()), name)


def _column(array: npt.NDArray[Any], complaints: list[str]) -> _Column:
    """Return a column of the file for a mapped array if possible, or of the array."""
    column, complaint = mapped_column(array)
    if complaint:
        complaints.append(complaint)
    return ArrayColumn(array) if column is None else column


def _arrays(value: Any, *, swap: bool = True) -> Any:
    """Convert a user's nest to arrays, outside of any workspace."""
    with scope_out():
        arrays = map_structure(lambda leaf: as_leaf(leaf, swap=swap), value)
    if not flatten(arrays):
        raise ValueError(
            f"an element must have at least one leaf, but {value!r} has none"
        )
    return arrays


@dataclass(frozen=True, eq=False)
class Generated(Node):
    """Copies of the elements of a user's generator, which may reuse its arrays."""

    generator: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Any
    name: str

    @cached_property
    def element_spec(self) -> Any:
        """The signature, or the specs of the first element without one."""
        return probe(self) if self.signature is None else self.signature

    @property
    def is_probed(self) -> bool:
        """Whether there is no signature."""
        return self.signature is None

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass; the generator is called at the first element."""
        with scope_out():  # its arrays may outlive the reader's workspace
            values = iter(self.generator(*self.args))
        try:
            while True:
                with scope_out():
                    value = next(values, _END)
                if value is _END:
                    return
                yield self._element(value)
                del value
        finally:
            close = getattr(values, "close", None)
            if close is not None:
                with scope_out():
                    close()

    def _element(self, value: Any) -> Any:
        if self.signature is None:
            return map_structure(lambda leaf: as_scalars(_copied(leaf)), value)
        leaves = _leaves(value, self.signature)
        specs = flatten(self.signature)
        made = [_fitted(*pair) for pair in zip(leaves, specs, strict=True)]
        return pack(self.signature, made)


def signature_of(types: Any, shapes: Any, signature: Any) -> Any:
    """Return the signature of a generator, however it is given; None if it is not."""
    if signature is None:
        return _from_types(types, shapes)
    if types is not None or shapes is not None:
        raise TypeError(
            "give either output_signature, or output_types and output_shapes"
        )
    for leaf in flatten(signature):
        if not isinstance(leaf, TensorSpec):
            raise TypeError(
                f"output_signature must be a nest of memcfg.data.TensorSpec, but has "
                f"a leaf {leaf!r}"
            )
    return signature


def _from_types(types: Any, shapes: Any) -> Any:
    if types is None:
        if shapes is not None:
            raise TypeError("output_shapes needs output_types")
        return None
    if shapes is None:
        return map_structure(lambda dtype: TensorSpec(None, dtype), types)
    dtypes = flatten(types)
    sizes = [shapes] if not is_nest(types) else _shapes_like(types, shapes)
    specs = [TensorSpec(*pair) for pair in zip(sizes, dtypes, strict=True)]
    return pack(types, specs)


def _shapes_like(types: Any, shapes: Any) -> list[Any]:
    """List shapes, which are tuples too, in the order of the dtypes."""
    if not is_nest(types):
        return [shapes]
    keys = sorted(types) if isinstance(types, dict) else range(len(types))
    try:
        return [leaf for key in keys for leaf in _shapes_like(types[key], shapes[key])]
    except (TypeError, KeyError, IndexError) as error:
        raise TypeError(
            f"output_shapes and output_types differ in structure: {shapes!r} and "
            f"{types!r}"
        ) from error


def _leaves(value: Any, signature: Any) -> list[Any]:
    if is_nest(signature) and not same_structure(value, signature):
        raise TypeError(
            "the generator yielded an element whose structure differs from its "
            f"output_signature: {value!r:.120} and {signature!r}"
        )
    return flatten(value) if is_nest(signature) else [value]


def _fitted(leaf: Any, spec: TensorSpec) -> Any:
    made = _typed(leaf, spec.dtype)
    actual = TensorSpec(made.shape, made.dtype)
    if not spec.is_compatible_with(actual):
        raise ValueError(
            f"the generator yielded an array of shape {made.shape}, but its "
            f"output_signature has {spec.shape}"
        )
    return as_scalars(made)


def _typed(leaf: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Copy a leaf to a dtype; raise if the conversion would change its values."""
    raw = as_array(leaf)
    if raw.size == 0 and isinstance(leaf, list | tuple | range):
        return np.empty(raw.shape, dtype)
    if raw.dtype.kind not in _TAKEN[dtype.kind]:
        raise TypeError(
            f"the generator yielded {raw.dtype}, but its output_signature has "
            f"{dtype}: {leaf!r:.80}"
        )
    if dtype.kind in "iu" and not _in_range(raw, dtype):
        raise ValueError(
            f"the generator yielded an integer that {dtype} can't hold: {leaf!r:.80}"
        )
    return np.array(raw, dtype)


def _copied(leaf: Any) -> npt.NDArray[Any]:
    result = as_leaf(leaf)
    return np.array(result) if hasattr(leaf, "__array__") else result


def _in_range(raw: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    if raw.size == 0 or np.can_cast(raw.dtype, dtype):
        return True
    limits = np.iinfo(dtype)
    return limits.min <= int(raw.min()) and int(raw.max()) <= limits.max
