"""Layers that prepare data with its statistics."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn.initializers import Initializer, Ones, Zeros
from memcfg.nn.layers._layer import (
    Layer,
    Scope,
    Shape,
    Variable,
    WeightSpec,
    show_shape,
)
from memcfg.nn.layers._operators import Function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

_ROWS = 1024  # elements of data converted at once


class _Numbers(Initializer):
    """An initializer with given values."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: npt.NDArray[np.float32]) -> None:
        self.numbers = numbers

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return the values."""
        return self.numbers.reshape(shape).copy()


class Normalization(Layer):
    """Shift and scale data to mean 0 and variance 1.

    ``y = (x - mean) / max(sqrt(variance), 1e-7)``. The statistics are given, or
    computed by `adapt` and held in weights that are not trained.

    Parameters
    ----------
    axis : int, tuple of int or None, default -1
        The axes with separate statistics, where axis 0 is the batch; None for no axis.
    mean, variance : float or array_like, optional
        The statistics, both or neither.
    invert : bool, default False
        Whether to invert the normalisation.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    ValueError
        If only one of `mean` and `variance` is given, or a variance is negative.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> layer = mc.nn.Normalization()
    >>> data = np.array([[1, 10], [3, 30]], np.float32)
    >>> layer.adapt(data)
    >>> model = mc.nn.Sequential([mc.nn.Input((2,)), layer])
    >>> model.predict(data, verbose=0)
    array([[-1., -1.],
           [ 1.,  1.]], dtype=float32)
    """

    __slots__ = (
        *("_lengths", "_statistics", "axis"),
        *("input_mean", "input_variance", "invert"),
    )
    _kept_as: ClassVar[Mapping[str, str]] = {
        "mean": "input_mean",
        "variance": "input_variance",
    }

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        axis: Any = -1,
        mean: Any = None,
        variance: Any = None,
        invert: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        axes = (
            () if axis is None else axis if isinstance(axis, list | tuple) else [axis]
        )
        self.axis = tuple(integer(each, "Normalization: axis", None) for each in axes)
        if 0 in self.axis:
            raise ValueError("Normalization: axis must not be 0, the batch")
        if (mean is None) != (variance is None):
            raise ValueError("Normalization: pass both mean and variance, or neither")
        given = [
            None if each is None else np.asarray(each, np.float32)
            for each in (mean, variance)
        ]
        if given[1] is not None and not (given[1] >= 0).all():
            raise ValueError("Normalization: variance must be zero or more")
        self.input_mean, self.input_variance = given
        self._lengths: tuple[int, ...] | None = None  # of statistics beside an input
        self.invert = bool(invert)
        self._statistics: tuple[np.ndarray, np.ndarray] | None = None
        super().__init__(name)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor; statistics as lists, as in Keras."""
        given = super().get_config()
        return {
            name: each.tolist() if isinstance(each, np.ndarray) else each
            for name, each in given.items()
        }

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Compute on an array of any numbers at once, or connect to a tensor."""
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biu":
            inputs = inputs.astype(np.float32)
        return super().__call__(inputs, *more, **options)

    @property
    def mean(self) -> Any:
        """The mean, to be broadcast to inputs; None until their shape is known."""
        return self._statistic(0)

    @property
    def variance(self) -> Any:
        """The variance, to be broadcast to inputs; None until their shape is known."""
        return self._statistic(1)

    def _statistic(self, place: int) -> Any:
        """Return an array, or a tensor in a function."""
        if self._lengths is None:
            return None
        given = (self.input_mean, self.input_variance)[place]
        if given is not None:
            kept = [n for axis, n in enumerate(self._lengths) if axis in self._axes]
            return np.broadcast_to(given, kept).reshape(self._lengths).copy()
        variable = self.weights[place]
        symbol = Variable.functions.symbol(variable)
        if symbol is not None:
            return Function("reshape", {"shape": self._lengths})(symbol)
        return variable.numpy().reshape(self._lengths)

    @property
    def _axes(self) -> tuple[int, ...]:
        return self._kept((self._lengths or ())[1:])

    def adapt(self, data: Any) -> None:
        """Compute the mean and variance of data.

        Parameters
        ----------
        data : array_like or iterable
            Samples, as an array or nested lists of numbers, or an iterable of batches.
            If batches are tuples, their first entries are the samples.

        Raises
        ------
        ValueError
            If the layer was constructed with statistics, the shape of the samples does
            not match the layer's input, or there are no samples.
        """
        if self.input_mean is not None:
            raise ValueError(
                f"layer {self.name!r} was constructed with mean and variance and "
                "cannot be adapted"
            )
        count, mean, squares = 0, np.zeros(()), np.zeros(())
        for rows in _blocks(data):
            axes = self._kept(rows.shape[1:])
            others = tuple(i for i in range(rows.ndim) if i not in axes)
            size = prod(rows.shape[i] for i in others)
            difference = rows.mean(axis=others) - mean
            count += size
            # Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
            # computing sample variances", 1979
            mean = mean + difference * size / count
            spread = rows.var(axis=others) * size
            squares = squares + spread + difference**2 * size * (count - size) / count
        if not count:
            raise ValueError(f"layer {self.name!r}: adapt got no samples")
        statistics = mean, squares / count
        if self.weight_specs is not None:
            self._check(statistics, self.weight_specs[0].shape)
            self.set_weights([*statistics, 0])
        self._statistics = statistics
        if self.weight_specs is None and rows.ndim > 1:
            self.build((None, *rows.shape[1:]))

    def _check(self, statistics: tuple[np.ndarray, np.ndarray], shape: Shape) -> None:
        """Raise ValueError if statistics do not match the shape of the input."""
        if statistics[0].shape != shape:
            raise ValueError(
                f"layer {self.name!r} (Normalization) was adapted to data with "
                f"statistics of shape {statistics[0].shape}, but its input has "
                f"statistics of shape {shape}"
            )

    def _kept(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the axes with separate statistics; axis 0 is the batch."""
        rank = len(shape) + 1
        for axis in self.axis:
            if not -rank < axis < rank:
                raise ValueError(
                    f"layer {self.name!r} (Normalization): axis={self.axis} is out of "
                    f"range for data of shape {show_shape(tuple(shape))}"
                )
        return tuple(sorted({axis % rank for axis in self.axis}))

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return weights for statistics that were not given; `count` is Keras's."""
        lengths, kept = (0, *shapes[0]), self._kept(shapes[0])
        self._lengths = tuple(n if i in kept else 1 for i, n in enumerate(lengths))
        if self.input_mean is not None:
            return ()
        shape = tuple(lengths[axis] for axis in kept)
        first: list[Initializer] = [Zeros(), Ones()]
        if self._statistics is not None:
            self._check(self._statistics, shape)
            first = [_Numbers(each.astype(np.float32)) for each in self._statistics]
        return (
            WeightSpec("mean", shape, first[0], trainable=False),
            WeightSpec("variance", shape, first[1], trainable=False),
            WeightSpec("count", (), Zeros(), trainable=False, dtype="int32"),
        )

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the normalisation, or its inverse."""
        (x,) = inputs
        shape = scope.builder.shape(x)
        mean = self._wide(scope, "mean", shape)
        factor = self._wide(scope, "variance", shape)
        if self.invert:
            (x,) = scope.apply("divide", (x, factor))
            return scope.apply("add", (x, mean))[0]
        (x,) = scope.apply("subtract", (x, mean))
        return scope.apply("multiply", (x, factor))[0]

    def _wide(self, scope: Scope, name: str, shape: Sequence[int]) -> int:
        """Append the broadcast of a statistic to the shape of the input."""
        axes = self._kept(shape[1:])
        narrow = [n if i in axes else 1 for i, n in enumerate(shape)]
        given = getattr(self, self._kept_as[name])
        if given is None:
            tensor = scope.weights[name]
        else:
            lengths = [shape[axis] for axis in axes]
            try:
                numbers = np.broadcast_to(given, lengths)
            except ValueError:
                raise ValueError(
                    f"layer {self.name!r} (Normalization): {name} of shape "
                    f"{given.shape} does not fit {show_shape(tuple(shape[1:]))} with "
                    f"axis={self.axis}"
                ) from None
            data = numbers.astype(">f4").tobytes().hex()
            (tensor,) = scope.apply("constant", (), {"shape": lengths, "data": data})
        if name == "variance":  # the square root is at least 1e-7
            (tensor,) = scope.apply("inverse_root", (tensor,), {"least": 1e-14})
        (tensor,) = scope.apply("reshape", (tensor,), {"shape": tuple(narrow)})
        return scope.apply("broadcast_to", (tensor,), {"shape": tuple(shape)})[0]


def _blocks(data: Any) -> Iterator[npt.NDArray[np.float64]]:
    """Yield blocks of rows of data, or of its batches, in float64."""
    if isinstance(data, list) and data and isinstance(data[0], list | int | float):
        data = np.array(data, np.float64)
    batches: Iterable[Any] = [data] if hasattr(data, "shape") else data
    for batch in batches:
        rows = batch[0] if isinstance(batch, tuple) else batch
        for start in range(0, len(rows), _ROWS):
            yield np.asarray(rows[start : start + _ROWS], np.float64)
