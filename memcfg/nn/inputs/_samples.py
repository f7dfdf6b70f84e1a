"""Samples, targets and sample weights that belong together, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn._nesting import Structure, is_part, taken_apart
from memcfg.nn.inputs._array_checks import (
    check_samples,
    check_steps,
    check_x,
    check_y,
    class_weights,
    conform_weights,
    conform_x,
    target_column,
)
from memcfg.nn.inputs._array_likes import Frame
from memcfg.nn.inputs._batches import Column, is_worth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from memcfg.data.rows._file_rows import FileColumn
    from memcfg.nn.inputs._array_checks import Field
    from memcfg.nn.inputs._batches import Targets
    from memcfg.nn.layers._layer import Shape

__all__ = [
    "SampleShapes",
    "Samples",
    "Wanted",
    "columns",
    "samples",
    "samples_of",
    "targets_as_given",
    "targets_of",
    "weight_columns",
]

Array = Any  # numpy.ndarray


class Wanted(NamedTuple):
    """The contents of a batch that a model reads; without y for prediction."""

    xs: tuple[Field, ...]
    ys: tuple[Field, ...]
    takes: Structure
    targets: Structure  # of all outputs
    places: tuple[int, ...] = ()  # indices of the outputs that have a y
    steps: tuple[Shape, ...] = ()  # per-sample shapes of each output's losses
    lengths: tuple[int, ...] = ()  # of the axes of any length
    # What samples of some shapes must be, if shapes of `xs` have None.
    fitting: Callable[[Sequence[Shape]], Wanted] | None = None

    def of(self, found: Samples) -> Wanted:
        """Return what a batch with such samples must contain."""
        if self.fitting is None:  # runs in each step: callers may look before
            return self
        for x, name, field in zip(found.xs, found.x_names, self.xs, strict=True):
            conform_x(x, field, name)
        return self.fitting([x.shape[1:] for x in found.xs])


class SampleShapes(NamedTuple):
    """The shapes of a sample of each input, and the containers that they came in."""

    shapes: list[Shape]
    structure: Structure | None = None  # None for one array or a list


class Samples(NamedTuple):
    """A user's arrays, split by input and output, with their names for messages."""

    xs: list[npt.NDArray[Any]]
    x_names: list[str]
    ys: list[npt.NDArray[Any]]
    y_names: list[str]
    weights: list[npt.NDArray[Any]]
    weighing: tuple[Shape, ...] = ()  # per-sample shape of each weight array
    x_form: Structure | None = None  # containers of x, if the model was unknown
    y_form: Structure | None = None

    @property
    def sample_shapes(self) -> SampleShapes:
        """The shape of a sample for each input."""
        return SampleShapes([x.shape[1:] for x in self.xs], self.x_form)

    def arranged(self, wanted: Wanted) -> Samples:
        """Return the arrays in the order of a model, if their containers matter."""
        result = self
        if self.x_form is not None and wanted.takes.kind is not None:
            given = self.x_form.pack(self.xs)
            xs, names = samples_of(wanted, given, self.x_names[0].partition("[")[0])
            result = result._replace(xs=xs, x_names=names)
        if self.y_form is not None:
            given = self.y_form.pack(self.ys)
            ys, names = targets_of(wanted, given, self.y_names[0].partition("[")[0])
            result = result._replace(ys=ys, y_names=names)
        return result._replace(x_form=None, y_form=None)

    def part(self, rows: slice) -> Samples:
        """Return a slice of the samples."""
        xs, ys, weights = (
            [array[rows] for array in arrays]
            for arrays in (self.xs, self.ys, self.weights)
        )
        return self._replace(xs=xs, ys=ys, weights=weights)


def samples(
    wanted: Wanted | None,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    labelled: bool,
    prefix: str = "",
) -> Samples:
    """Split a user's arrays and run the checks that need no model."""
    xs, x_names = samples_of(wanted, x, f"{prefix}x")
    fields: Sequence[Field | None] = [None] * len(xs) if wanted is None else wanted.xs
    xs = [check_x(*given) for given in zip(xs, x_names, fields, strict=True)]
    if len(xs) > 1:
        check_samples(xs, x_names)
    fresh = wanted is None
    x_form = _containers(x) if fresh else None
    if not labelled:
        return Samples(xs, x_names, [], [], [], x_form=x_form)
    count = len(xs[0])
    y_form = None
    if fresh:
        y = _without_none(y)
        y_form = _containers(y)
    ys, y_names = targets_of(wanted, y, f"{prefix}y")
    ys = [check_y(array, count, name) for array, name in zip(ys, y_names, strict=True)]
    if sample_weight is None:
        return Samples(xs, x_names, ys, y_names, [], (), x_form, y_form)
    if fresh and isinstance(sample_weight, dict):
        raise ValueError(
            f"{prefix}sample_weight is by output, and the outputs are not known: call "
            "build(input_shape) first"
        )
    weights, names = [sample_weight], [f"{prefix}sample_weight"]
    if isinstance(sample_weight, list | tuple | dict):
        weights, names = targets_of(wanted, sample_weight, names[0])
    weights = [
        conform_weights(array, count, name)
        for array, name in zip(weights, names, strict=True)
    ]
    weighing = tuple(array.shape[1:] for array in weights)
    return Samples(xs, x_names, ys, y_names, weights, weighing, x_form, y_form)


def columns(
    found: Samples,
    wanted: Wanted,
    table: Mapping[int, float] | None = None,
    *,
    in_place: bool | None = None,
) -> list[Column]:
    """Check arrays against a model and return them as columns.

    `table` holds class weights. `in_place` permits reading samples without a copy; with
    None, large arrays only are read so.
    """
    made = []
    for x, name, field in zip(found.xs, found.x_names, wanted.xs, strict=True):
        array: Any = conform_x(x, field, name)
        as_it_is = not isinstance(array, Frame) and array.dtype == field.dtype
        worth = as_it_is and (is_worth(array) if in_place is None else in_place)
        made.append(Column(field.name, array, in_place=worth))
    for y, name, field in zip(found.ys, found.y_names, wanted.ys, strict=False):
        made.append(target_column(y, field, name))
    if table is not None or found.weights:
        ys = made[len(wanted.xs) :]
        made += weight_columns(found.weights, ys, wanted, table)
    return made


def weight_columns(
    weights: Sequence[npt.NDArray[Any]],
    ys: Sequence[Column],
    wanted: Wanted,
    table: Mapping[int, float] | None,
) -> list[Column]:
    """Return the columns of sample weights, multiplied by class weights if given."""
    if table is not None and len(wanted.ys) != 1:
        raise ValueError(
            f"class_weight is for models of one output, and {len(wanted.ys)} have "
            "a y here: pass sample_weight, by output"
        )
    names = _weight_names(len(weights))
    each = [*weights] * len(wanted.steps) if len(weights) == 1 else weights
    for array, steps in zip(each, wanted.steps, strict=False):
        check_steps(array, steps)
    if table is not None:
        own = weights[0] if weights else None
        return [class_weights(_weight_names(1)[0], table, ys[0], wanted.ys[0], own)]
    return [Column(n, array) for n, array in zip(names, weights, strict=True)]


def targets_as_given(
    found: Samples, file_of: Callable[[Any], FileColumn | None] = lambda _: None
) -> Targets:
    """Return y and sample weights as columns that no loss has shaped."""
    ys = [
        Column(name, array, file=file_of(array))
        for name, array in zip(found.y_names, found.ys, strict=True)
    ]
    return ys, [Column("sample_weight", array) for array in found.weights]


def _weight_names(count: int) -> list[str]:
    """Return the names of the program's inputs for sample weights."""
    return [f"sample_weight_{i}" if i else "sample_weight" for i in range(count)]


def samples_of(wanted: Wanted | None, x: Any, what: str) -> tuple[list[Any], list[str]]:
    """Return the arrays of all inputs, and their names for messages."""
    if wanted is None:
        return _parts_of(x, what)
    parts = wanted.takes.unpack(x, what, "inputs")
    if len(parts) == 1:
        return parts, [what]
    return parts, [f"{what}[{name!r}]" for name in wanted.takes.names]


def _parts_of(given: Any, what: str) -> tuple[list[Any], list[str]]:
    """Return the arrays of nested containers, and their names for messages."""
    parts, form = taken_apart(given, is_part)
    names = Structure.of(form, list(map(str, range(len(parts))))).names
    if len(parts) == 1:
        return parts, [what]
    return parts, [f"{what}[{name!r}]" for name in names]


def _containers(given: Any) -> Structure | None:
    """Return the structure of dicts and nested containers; None of others."""
    parts, form = taken_apart(given, is_part)
    result = Structure.of(form, list(map(str, range(len(parts)))))
    return result if result.kind is dict or result.form is not None else None


def _without_none(given: Any) -> Any:
    """Return targets without those that a dict says are None."""
    if not isinstance(given, dict):
        return given
    kept = {name: each for name, each in given.items() if each is not None}
    return {name: _without_none(each) for name, each in kept.items()}


def targets_of(wanted: Wanted | None, y: Any, what: str) -> tuple[list[Any], list[str]]:
    """Return the arrays of all outputs that have a y, and their names for messages."""
    if wanted is None:
        return _parts_of(y, what)
    targets, places = wanted.targets, wanted.places
    parts = targets.unpack(y, what, "outputs with a loss", places)
    if len(parts) == 1:
        return parts, [what]
    return parts, [f"{what}[{targets.names[i]!r}]" for i in places]
