"""`FeatureSpace`: columns of a table as numbers, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer
from memcfg.nn.layers._lambda import Identity
from memcfg.nn.layers._layer import Layer, SymbolicTensor
from memcfg.nn.layers._preprocessing import Normalization
from memcfg.nn.layers._reshape import Rescaling
from memcfg.nn.layers.categories._category_encoding import CategoryEncoding
from memcfg.nn.layers.categories._discretization import Discretization
from memcfg.nn.layers.categories._hashing import HashedCrossing, Hashing
from memcfg.nn.layers.categories._lookups import IntegerLookup, StringLookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["FeatureSpace"]

_KINDS = (
    *("float", "float_discretized", "float_normalized", "float_rescaled"),
    *("integer_categorical", "integer_hashed"),
    *("string_categorical", "string_hashed"),
)
_EPSILON = 1e-7  # of the layer Normalization
_BEYOND = {
    "get_inputs": "it computes on arrays: use Dataset.map(space), and Input(shape)",
    "get_encoded_features": "it computes on arrays: use Dataset.map(space)",
    "save": "use pickle, or make it of the vocabularies of its preprocessors",
}


@dataclass(frozen=True)
class _Feature:
    """A column: its type, the layer that reads it, and what is made of that."""

    dtype: str
    preprocessor: Any
    output_mode: str

    def __post_init__(self) -> None:
        modes = ("int", "one_hot", "float")
        if self.output_mode not in modes:
            raise unknown("output_mode", str(self.output_mode), modes, "FeatureSpace: ")
        if not isinstance(self.preprocessor, Layer):
            raise TypeError(
                f"FeatureSpace: a preprocessor is a layer, not {self.preprocessor!r}"
            )


@dataclass(frozen=True)
class _Cross:
    """Columns whose combinations are hashed to numbers."""

    feature_names: tuple[str, ...]
    crossing_dim: int
    output_mode: str

    def __post_init__(self) -> None:
        modes = ("int", "one_hot")
        if self.output_mode not in modes:
            raise unknown("output_mode", str(self.output_mode), modes, "FeatureSpace: ")

    @property
    def name(self) -> str:
        """The name of the result."""
        return "_X_".join(self.feature_names)


def _named(name: str | None) -> dict[str, Any]:
    """Return the name of a layer as an option; nothing if there is none."""
    return {} if name is None else {"name": f"{name}_preprocessor"}


class FeatureSpace:
    """Encode the columns of a table as numbers, on arrays.

    It is called on a dict of columns, of rows, or of numbers of one row, as a step of
    `Dataset.map`. `adapt` finds vocabularies, bins and statistics.

    Parameters
    ----------
    features : dict
        The columns by name: a kind such as ``"float_normalized"``, which is also a
        method with more arguments, or the result of such a method.
    output_mode : {"concat", "dict"}, default "concat"
        Whether the result is one array, in the order of the sorted names, with crosses
        behind, or a dict.
    crosses : list, optional
        Tuples of names of columns whose combinations are hashed, or results of
        `cross`.
    crossing_dim, hashing_dim, num_discretization_bins : int, default 32
        The numbers of values of crosses, of hashed columns, and of bins that are given
        by their kind alone.
    name : str, optional
        The name.

    Raises
    ------
    ValueError
        If there are no features, a kind or a mode is unknown, or a cross has a column
        that is not one of the features.

    Examples
    --------
    >>> import memcfg as mc
    >>> table = {"age": [20.0, 40.0, 60.0], "kind": ["a", "b", "a"]}
    >>> space = mc.nn.utils.FeatureSpace(
    ...     {"age": "float_normalized", "kind": "string_categorical"}
    ... )
    >>> space.adapt(table)
    >>> space({"age": 40.0, "kind": "a"})
    array([0., 0., 1., 0.], dtype=float32)
    """

    def __init__(
        self,
        features: Mapping[str, Any],
        output_mode: str = "concat",
        crosses: Sequence[Any] | None = None,
        crossing_dim: int = 32,
        hashing_dim: int = 32,
        num_discretization_bins: int = 32,
        name: str | None = None,
    ) -> None:
        if not features:
            raise ValueError("FeatureSpace: features must not be empty")
        if output_mode not in ("concat", "dict"):
            modes = ("concat", "dict")
            raise unknown("output_mode", str(output_mode), modes, "FeatureSpace: ")
        self.crossing_dim = integer(crossing_dim, "FeatureSpace: crossing_dim")
        self.hashing_dim = integer(hashing_dim, "FeatureSpace: hashing_dim")
        self.num_discretization_bins = integer(
            num_discretization_bins, "FeatureSpace: num_discretization_bins"
        )
        self.name = name
        self.output_mode = output_mode
        self.features = {key: self._feature(each) for key, each in features.items()}
        self.crosses = [self._cross(each) for each in crosses or ()]
        self.preprocessors = {k: each.preprocessor for k, each in self.features.items()}
        self.crossers = {
            each.name: HashedCrossing(each.crossing_dim) for each in self.crosses
        }
        self._adaptable = [
            name for name, layer in self.preprocessors.items() if _is_adaptable(layer)
        ]
        self._is_adapted = False

    def _feature(self, value: Any) -> _Feature:
        if isinstance(value, _Feature):
            return value
        if value not in _KINDS:
            raise unknown("kind of a feature", str(value), _KINDS, "FeatureSpace: ")
        given: dict[str, tuple[int, ...]] = {
            "float_discretized": (self.num_discretization_bins,),
            "integer_hashed": (self.hashing_dim,),
            "string_hashed": (self.hashing_dim,),
        }
        made: _Feature = getattr(self, value)(*given.get(value, ()))
        return made

    def _cross(self, value: Any) -> _Cross:
        made = value
        if not isinstance(value, _Cross):
            made = self.cross(value, self.crossing_dim)
        lone = [each for each in made.feature_names if each not in self.features]
        if lone:
            raise ValueError(
                f"FeatureSpace: a cross has {lone[0]!r}, which is not a feature"
            )
        result: _Cross = made
        return result

    # Kinds of columns

    @classmethod
    def cross(
        cls,
        feature_names: Sequence[str],
        crossing_dim: int,
        output_mode: str = "one_hot",
    ) -> _Cross:
        """Describe the combinations of columns, hashed.

        Parameters
        ----------
        feature_names : sequence of str
            The columns, which have integers or strings.
        crossing_dim : int
            The number of values.
        output_mode : {"one_hot", "int"}, default "one_hot"
            What is made of a value.

        Returns
        -------
        object
            An entry of `crosses`.
        """
        dim = integer(crossing_dim, "FeatureSpace: crossing_dim")
        return _Cross(tuple(feature_names), dim, output_mode)

    @classmethod
    def feature(cls, dtype: str, preprocessor: Any, output_mode: str) -> _Feature:
        """Describe a column by a layer of arrays.

        Parameters
        ----------
        dtype : str
            ``"float32"``, ``"int32"`` or ``"string"``.
        preprocessor : Layer
            The layer that reads it.
        output_mode : {"float", "int", "one_hot"}
            What the layer returns, or what is made of its integers.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature(dtype, preprocessor, output_mode)

    @classmethod
    def float(cls, name: str | None = None) -> _Feature:
        """Describe numbers that stay as they are.

        Parameters
        ----------
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature("float32", Identity(**_named(name)), "float")

    @classmethod
    def float_rescaled(
        cls, scale: Any = 1.0, offset: Any = 0.0, name: str | None = None
    ) -> _Feature:
        """Describe numbers that are multiplied and added to.

        Parameters
        ----------
        scale, offset : float
            The factor, and what is added.
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature("float32", Rescaling(scale, offset, **_named(name)), "float")

    @classmethod
    def float_normalized(cls, name: str | None = None) -> _Feature:
        """Describe numbers that are moved to mean 0 and variance 1.

        Parameters
        ----------
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature("float32", Normalization(**_named(name)), "float")

    @classmethod
    def float_discretized(
        cls,
        num_bins: int,
        bin_boundaries: Any = None,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> _Feature:
        """Describe numbers by the bin that they are in.

        Parameters
        ----------
        num_bins : int
            The number of bins.
        bin_boundaries : sequence of float, optional
            The boundaries, by default such that bins have equally many numbers.
        output_mode : {"one_hot", "int"}, default "one_hot"
            What is made of a bin.
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        if bin_boundaries is None:
            layer = Discretization(num_bins=num_bins, **_named(name))
        else:
            layer = Discretization(bin_boundaries, **_named(name))
        return _Feature("float32", layer, output_mode)

    @classmethod
    def integer_categorical(
        cls,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> _Feature:
        """Describe integers that are looked up in a vocabulary.

        Parameters
        ----------
        max_tokens : int, optional
            The largest size of the vocabulary.
        num_oov_indices : int, default 1
            The number of values of what is not in it.
        output_mode : {"one_hot", "int"}, default "one_hot"
            What is made of a place in it.
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature(
            "int32",
            IntegerLookup(max_tokens, num_oov_indices, **_named(name)),
            output_mode,
        )

    @classmethod
    def string_categorical(
        cls,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        output_mode: str = "one_hot",
        name: str | None = None,
    ) -> _Feature:
        """Describe strings that are looked up in a vocabulary.

        Parameters
        ----------
        max_tokens : int, optional
            The largest size of the vocabulary.
        num_oov_indices : int, default 1
            The number of values of what is not in it.
        output_mode : {"one_hot", "int"}, default "one_hot"
            What is made of a place in it.
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature(
            "string",
            StringLookup(max_tokens, num_oov_indices, **_named(name)),
            output_mode,
        )

    @classmethod
    def string_hashed(
        cls, num_bins: int, output_mode: str = "one_hot", name: str | None = None
    ) -> _Feature:
        """Describe strings that are hashed.

        Parameters
        ----------
        num_bins : int
            The number of values.
        output_mode : {"one_hot", "int"}, default "one_hot"
            What is made of a value.
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature("string", Hashing(num_bins, **_named(name)), output_mode)

    @classmethod
    def integer_hashed(
        cls, num_bins: int, output_mode: str = "one_hot", name: str | None = None
    ) -> _Feature:
        """Describe integers that are hashed.

        Parameters
        ----------
        num_bins : int
            The number of values.
        output_mode : {"one_hot", "int"}, default "one_hot"
            What is made of a value.
        name : str, optional
            The name of the layer that prepares the column, with ``_preprocessor``.

        Returns
        -------
        object
            An entry of `features`.
        """
        return _Feature("int32", Hashing(num_bins, **_named(name)), output_mode)

    # Use

    def adapt(self, dataset: Any) -> None:
        """Find vocabularies, bins and statistics.

        Parameters
        ----------
        dataset : dict of array_like, or iterable of dicts
            The table, or batches or rows of it, such as a `Dataset`, which is read
            once for each column that needs it.

        Raises
        ------
        ValueError
            If a column is missing.
        """
        for name in self._adaptable:
            self.preprocessors[name].adapt(_column(dataset, name))
        self._is_adapted = True

    def __call__(self, data: Mapping[str, Any]) -> Any:
        """Encode a table, or a row.

        Parameters
        ----------
        data : dict of array_like
            The columns by name, of shape (rows,) or (rows, values), or numbers.

        Returns
        -------
        numpy.ndarray or dict of numpy.ndarray
            The encoded columns, float32 where they are joined.

        Raises
        ------
        ValueError
            If a column is missing, `adapt` was not called, or a column of integers is
            to be joined with others.
        """
        if not isinstance(data, dict):
            raise ValueError(f"FeatureSpace: data is a dict of columns, not {data!r}")
        if self._adaptable and not self._is_adapted:
            raise ValueError("FeatureSpace: call adapt before")
        values, alone = {}, False
        for name, layer in self.preprocessors.items():
            column = _given(data, name)
            alone |= column.ndim == 0
            values[name] = _read(
                layer,
                column.reshape(len(column), -1)
                if column.ndim
                else column.reshape(1, 1),
            )
        crossed = {
            each.name: self.crossers[each.name]([values[n] for n in each.feature_names])
            for each in self.crosses
        }
        made = {name: self._encoded(name, values[name]) for name in sorted(values)}
        made |= {name: self._encoded(name, crossed[name]) for name in sorted(crossed)}
        if alone:
            made = {name: each[0] for name, each in made.items()}
        if self.output_mode == "dict":
            return made
        for name, each in made.items():
            if each.dtype.kind != "f":
                raise ValueError(
                    f"FeatureSpace: {name!r} has integers, which are not joined with "
                    "others: use output_mode='dict', or one_hot for the column"
                )
        return np.concatenate([*made.values()], axis=-1, dtype=np.float32)

    def _encoded(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return one row of 0 and 1 for each integer, if the column wants that."""
        feature = self.features.get(name)
        spec: Any = feature or next(each for each in self.crosses if each.name == name)
        if spec.output_mode != "one_hot":
            return values
        layer = self.preprocessors.get(name) or self.crossers[name]
        if values.dtype.kind not in "iu":
            raise ValueError(
                f"FeatureSpace: {name!r} is to be one_hot, and its layer returns "
                f"{values.dtype}"
            )
        if isinstance(layer, StringLookup | IntegerLookup):
            count = layer.vocabulary_size()
        elif isinstance(layer, Discretization):
            count = len(layer.bin_boundaries or ()) + 1
        elif isinstance(layer, Hashing | HashedCrossing):
            count = layer.num_bins
        else:
            raise ValueError(
                f"FeatureSpace: {name!r} is to be one_hot, and how many integers "
                f"{type(layer).__name__} returns is unknown: use output_mode='int'"
            )
        made: np.ndarray = CategoryEncoding(count)(values)
        return made

    if not TYPE_CHECKING:  # otherwise type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Explain what only Keras has."""
            why = f": {_BEYOND[name]}" if name in _BEYOND else ""
            raise AttributeError(
                f"'FeatureSpace' object has no attribute {name!r}{why}",
                name=name,
                obj=self,
            )


def _is_adaptable(layer: Any) -> bool:
    """Return whether a layer needs data before it is called."""
    given = any(
        getattr(layer, name, None) is not None for name in ("bin_boundaries", "mean")
    )
    return hasattr(layer, "adapt") and not given and not getattr(layer, "_fixed", False)


def _given(data: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in data:
        raise ValueError(f"FeatureSpace: the data have no column {name!r}")
    if isinstance(data[name], SymbolicTensor):
        raise TypeError(f"FeatureSpace: {_BEYOND['get_inputs']}")
    return np.asarray(data[name])


def _column(dataset: Any, name: str) -> Any:
    """Return a column, or an iterable of its batches, of shape (rows, 1)."""
    if isinstance(dataset, dict):
        return _given(dataset, name).reshape(-1, 1)
    return _Batches(dataset, name)


@dataclass(frozen=True)
class _Batches:
    """The batches of a column, as often as they are wanted."""

    dataset: Iterable[Mapping[str, Any]]
    name: str

    def __iter__(self) -> Iterator[np.ndarray]:
        for each in self.dataset:
            yield _given(each, self.name).reshape(-1, 1)


def _read(layer: Any, column: np.ndarray) -> np.ndarray:
    """Return what a layer makes of a column; simple ones are computed by NumPy."""
    if isinstance(layer, Identity):
        return column.astype(np.float32)
    if isinstance(layer, Rescaling):
        scaled: np.ndarray = column * np.array(layer.scale) + np.array(layer.offset)
        return scaled.astype(np.float32)
    if isinstance(layer, Normalization):
        given: Any = (layer.input_mean, layer.input_variance)
        mean, variance = layer._statistics or given
        deviation = np.maximum(np.sqrt(variance), _EPSILON)
        numbers: np.ndarray = (column - mean) / deviation
        return numbers.astype(np.float32)
    made: np.ndarray = np.asarray(layer(column))
    return made
