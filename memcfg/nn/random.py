"""Keras's random numbers, drawn by a generator whose counter is the step.

In a step, a function or a `call`, a draw depends on its seed and on the number of the
step alone, so nothing is stored and a plan may draw it again. On its own, a call
returns an array.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn import ops
from memcfg.nn._argument_checks import integer, nonnegative, real, unit_interval
from memcfg.nn._attributes import FixedAttributes, check_name
from memcfg.nn._keras_names import absent
from memcfg.nn._random import derive_seed, fixed_seed, next_seed
from memcfg.nn.layers._batch_size import BatchSize
from memcfg.nn.layers._layer import (
    OPERATIONS,
    Layer,
    Node,
    Scope,
    SymbolicTensor,
    Variable,
    current_call,
    named_operation,
)
from memcfg.nn.layers._operators import Several, as_tensor
from memcfg.nn.ops._declaring import axis_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "SeedGenerator",
    "beta",
    "binomial",
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "randint",
    "shuffle",
    "truncated_normal",
    "uniform",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_BOUND = 2.0  # standard deviations of a truncated normal distribution


class SeedGenerator(FixedAttributes):
    """A sequence of seeds, one for each draw that gets it.

    Parameters
    ----------
    seed : int, optional
        The seed of the sequence; by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        Accepted for Keras's programs.
    """

    __slots__ = ("_count", "seed")

    def __init__(self, seed: int | None = None, name: str | None = None) -> None:
        check_name(name or "seed_generator")
        fixed = fixed_seed(seed)
        self.seed = next_seed() if fixed is None else fixed
        self._count = 0

    def next(self) -> int:
        """Return the next seed.

        Returns
        -------
        int
            A seed.
        """
        self._count += 1
        return derive_seed(self.seed, self._count)


class Draw(Layer):
    """Uniform numbers in (0, 1); an input only tells the size of the batch."""

    __slots__ = ("fixed", "key", "lengths", "rows")

    arity: ClassVar[int | None] = None

    def __init__(self, lengths: Sequence[int | None], seed: Any, rows: int = 1) -> None:
        super().__init__()
        self.lengths = tuple(lengths)
        self.rows = rows  # for each sample
        # With a number as its seed, a draw is the same in all steps, as in Keras.
        self.fixed = fixed_seed(seed) is not None if _is_number(seed) else False
        self.key = seed if self.fixed else _seed(seed)

    def _called(self) -> str:
        return "random_uniform"

    def _rows_of(self, operands: Sequence[SymbolicTensor]) -> int:
        del operands
        return self.rows

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op."""
        lengths = self.lengths
        if inputs:
            count = scope.builder.shape(inputs[0])[0] * self.rows
            lengths = (count, *lengths[1:])
        if self.fixed or scope.step is None:
            zero = {"shape": (), "value": 0, "dtype": "int64"}
            (step,) = scope.apply("fill", (), zero)
        else:
            step = scope.step()
        given = {"shape": lengths, "key": derive_seed(self.key, scope.call)}
        return scope.apply("random_uniform", (step,), given)[0]


def _is_number(seed: Any) -> bool:
    return seed is not None and not isinstance(seed, SeedGenerator)


def _seed(seed: Any) -> int:
    return seed.next() if isinstance(seed, SeedGenerator) else next_seed()


def _drawn(shape: Any, seed: Any) -> SymbolicTensor:
    """Return uniform numbers as a tensor of the `call` or function that is traced."""
    lengths = list(shape) if isinstance(shape, list | tuple) else [shape]
    call, size = current_call(), lengths[0] if lengths else 0
    if size is None and call is not None:
        size = BatchSize(call.starts[0])
    if call is not None or isinstance(size, BatchSize):
        if not isinstance(size, BatchSize):
            raise ValueError(
                f"in a call, the first length of a draw must be that of the batch, "
                f"ops.shape(x)[0], got {tuple(lengths)}"
            )
        rest = [integer(each, "a length of a draw") for each in lengths[1:]]
        layer = Draw([None, *rest], seed, size.rows)
        results = [(tuple(rest), "float32")]
        made = Node(layer, (size.like,), results).outputs[0]
    else:
        lengths = [integer(each, "a length of a draw") for each in lengths]
        results = [(tuple(lengths), "float32")]
        made = Node(Draw(lengths, seed), (), results, whole=True).outputs[0]
    made.node.layer._weight_specs = ()
    return made


def _of_shape(draw: Callable[[Any], Any], shape: Any, seed: Any) -> Any:
    """Return a function of uniform numbers, at once outside of steps."""
    if isinstance(shape, list | tuple) and not shape:
        return _of_shape(lambda u: ops.reshape(draw(u), ()), (1,), seed)
    if current_call() is None and not Variable.functions.is_tracing():
        key = _seed(seed) if not _is_number(seed) else seed
        return Variable.functions.at_once(lambda: draw(_drawn(shape, key)), (), {})
    return draw(_drawn(shape, seed))


def _float32(dtype: Any) -> None:
    if dtype not in (None, "float32"):
        raise ValueError(f"draws are float32, got dtype={dtype!r}")


def uniform(
    shape: Sequence[int],
    minval: float = 0.0,
    maxval: float = 1.0,
    dtype: str | None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw from a uniform distribution.

    Parameters
    ----------
    shape : sequence of int
        The shape; in a `call` it starts with the batch, ``ops.shape(x)[0]``.
    minval, maxval : float, default 0.0 and 1.0
        The bounds.
    dtype : str, optional
        ``"float32"`` or None.
    seed : int or SeedGenerator, optional
        With an int the numbers are the same in all steps; by default, and with a
        generator, they differ.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    _float32(dtype)
    low, high = real(minval, "minval"), real(maxval, "maxval")
    return _of_shape(lambda u: u * (high - low) + low, shape, seed)


def normal(
    shape: Sequence[int],
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: str | None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw from a normal distribution.

    Parameters
    ----------
    shape : sequence of int
        As of `uniform`.
    mean : float, default 0.0
        The mean.
    stddev : float, default 1.0
        The standard deviation, zero or more.
    dtype : str, optional
        ``"float32"`` or None.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    _float32(dtype)
    center, width = real(mean, "mean"), nonnegative(stddev, "stddev")
    return _of_shape(lambda u: _quantile(u, center, width), shape, seed)


OPERATIONS["normal"] = normal  # of `ops.image`, which this module imports


def _quantile(u: SymbolicTensor, mean: float, stddev: float) -> Any:
    center = ops.full_like(u, mean)
    return Several("gaussian_noise", {"stddev": stddev})([center, u])


def truncated_normal(
    shape: Sequence[int],
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: str | None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw from a normal distribution within two standard deviations of its mean.

    Parameters
    ----------
    shape : sequence of int
        As of `uniform`.
    mean : float, default 0.0
        The mean.
    stddev : float, default 1.0
        The standard deviation before numbers are cut off, zero or more.
    dtype : str, optional
        ``"float32"`` or None.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    _float32(dtype)
    center, width = real(mean, "mean"), nonnegative(stddev, "stddev")
    low = NormalDist().cdf(-_BOUND)
    return _of_shape(
        lambda u: _quantile(u * (1 - 2 * low) + low, center, width), shape, seed
    )


def randint(
    shape: Sequence[int],
    minval: int,
    maxval: int,
    dtype: str = "int32",
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw integers from a uniform distribution.

    Parameters
    ----------
    shape : sequence of int
        As of `uniform`.
    minval, maxval : int
        The least integer, and one above the largest; at most 2**23 apart and from 0.
    dtype : {"int32"}, default "int32"
        The dtype.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers, in int32.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    if dtype != "int32":
        raise ValueError(f"integers are int32, got dtype={dtype!r}")
    low, high = integer(minval, "minval", None), integer(maxval, "maxval", None)
    if not 0 < high - low <= 1 << 23 or max(-low, high) > 1 << 23:
        raise ValueError(
            "randint: integers are at most 2**23 apart and from 0, got "
            f"{low} and {high}"
        )
    count = high - low
    return _of_shape(
        lambda u: ops.cast(
            ops.minimum(ops.floor(u * count), count - 1.0) + float(low), "int32"
        ),
        shape,
        seed,
    )


_TRIES = 8  # each is rejected with a probability of 0.05, all with one of 4e-11


def _log_gamma_draws(u: SymbolicTensor, alpha: Any) -> Any:
    """Return logarithms of draws from a gamma distribution, of uniform numbers.

    The last axis has two numbers for each try, and one for a small parameter, as in
    Marsaglia and Tsang, ACM Trans. Math. Software 26, 2000.
    """
    above = ops.where(ops.less(alpha, 1.0), alpha + 1.0, alpha)
    d = above - 1 / 3
    wide = ops.expand_dims(d, -1)
    x = _quantile(u[..., :_TRIES], 0.0, 1.0)
    v = (1.0 + x / ops.sqrt(9.0 * wide)) ** 3
    logs = ops.log(ops.maximum(v, 1e-30))
    bound = 0.5 * x * x + wide - wide * v + wide * logs
    taken = (v > 0.0) * (ops.log(u[..., _TRIES : 2 * _TRIES]) < bound)
    place = ops.expand_dims(ops.argmax(taken, axis=-1), -1)
    result = ops.log(d) + ops.take_along_axis(logs, place, axis=-1)[..., 0]
    small = ops.log(u[..., 2 * _TRIES]) / alpha
    return result + ops.where(ops.less(alpha, 1.0), small, 0.0)


def _parameter(value: Any, name: str, u: SymbolicTensor) -> Any:
    """Return a parameter for each draw; ValueError if a number is not above 0."""
    if not isinstance(value, SymbolicTensor) and not (np.asarray(value) > 0).all():
        raise ValueError(f"{name} must be above 0, got {value!r}")
    return value + 0.0 * u


def gamma(
    shape: Sequence[int],
    alpha: Any,
    dtype: str | None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw from a gamma distribution.

    Parameters
    ----------
    shape : sequence of int
        As of `uniform`.
    alpha : float, array_like or SymbolicTensor
        The parameter, above 0, of a shape that is broadcast to `shape`.
    dtype : str, optional
        ``"float32"`` or None.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    _float32(dtype)

    def draw(u: SymbolicTensor) -> Any:
        a = _parameter(alpha, "gamma: alpha", u[..., 0])
        return ops.exp(_log_gamma_draws(u, a))

    return _of_shape(draw, [*_several(shape), 2 * _TRIES + 1], seed)


def beta(
    shape: Sequence[int],
    alpha: Any,
    beta: Any,
    dtype: str | None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw from a beta distribution.

    Parameters
    ----------
    shape : sequence of int
        As of `uniform`.
    alpha, beta : float, array_like or SymbolicTensor
        The parameters, above 0, of shapes that are broadcast to `shape`.
    dtype : str, optional
        ``"float32"`` or None.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    _float32(dtype)
    count = 2 * _TRIES + 1

    def draw(u: SymbolicTensor) -> Any:
        a = _parameter(alpha, "beta: alpha", u[..., 0])
        b = _parameter(beta, "beta: beta", u[..., 0])
        first, second = u[..., :count], u[..., count:]
        return ops.sigmoid(_log_gamma_draws(first, a) - _log_gamma_draws(second, b))

    return _of_shape(draw, [*_several(shape), 2 * count], seed)


def _several(shape: Any) -> list[Any]:
    return list(shape) if isinstance(shape, list | tuple) else [shape]


_TAIL = 2.0**-26  # less than the smallest distance of a draw from 0 and 1


def _binomial_table(count: int, share: float) -> tuple[int, np.ndarray]:
    """Return the first number worth mentioning, and the sums of probabilities up to it.

    The logarithm of a probability is a sum of those of quotients of neighbours.
    """
    if not 0 < share < 1 or not count:
        return (count if share >= 1 else 0), np.ones(1)
    steps = np.arange(1, count + 1, dtype=np.float64)
    ratios = np.log(count + 1 - steps) - np.log(steps) + np.log(share / (1 - share))
    logs = np.concatenate([[0.0], np.cumsum(ratios)])
    powers = np.exp(logs - logs.max())
    sums = np.cumsum(powers) / powers.sum()
    first, last = np.searchsorted(sums, [_TAIL, 1 - _TAIL])
    return int(first), sums[first : last + 1]


def binomial(
    shape: Sequence[int],
    counts: Any,
    probabilities: Any,
    dtype: str | None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw from a binomial distribution.

    Parameters
    ----------
    shape : sequence of int
        As of `uniform`.
    counts : int or array_like
        The number of trials, from 0 to 2**24.
    probabilities : float or array_like
        The probability of success, in ``[0, 1]``; both have a shape that is broadcast
        to `shape`.
    dtype : str, optional
        ``"float32"`` or None.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The numbers of successes, in float32.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a parameter is a symbolic tensor.
    """
    _float32(dtype)
    for name, given in (("counts", counts), ("probabilities", probabilities)):
        if isinstance(given, SymbolicTensor):
            raise TypeError(
                f"binomial: {name} must be numbers or an array, got {given!r}"
            )
    trials, shares = np.broadcast_arrays(counts, np.asarray(probabilities, np.float64))
    if (trials != np.floor(trials)).any() or trials.min() < 0 or trials.max() > 2**24:
        raise ValueError(f"binomial: counts are 0 to 2**24, got {counts!r}")
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"binomial: probabilities are 0 to 1, got {probabilities!r}")
    pairs = zip(trials.ravel().tolist(), shares.ravel().tolist(), strict=True)
    found = [_binomial_table(int(count), share) for count, share in pairs]
    # Sums after the last one are above all draws.
    width = max(len(sums) for _, sums in found)
    tables = np.full((len(found), width), 2.0, np.float32)
    for row, (_, sums) in zip(tables, found, strict=True):
        row[: len(sums) - 1] = sums[:-1]
    first = np.reshape([start for start, _ in found], trials.shape).astype(np.float32)

    def draw(u: SymbolicTensor) -> Any:
        if len(found) == 1:
            return _place_of(tables[0], u) + float(first.item())
        wide = tables.reshape(*trials.shape, width)
        return ops.sum(ops.expand_dims(u, -1) > wide, axis=-1) + first

    return _of_shape(draw, shape, seed)


def _place_of(table: np.ndarray, u: SymbolicTensor) -> Any:
    """Return how many ascending numbers are less than those drawn, by bisection."""
    bits = len(table).bit_length()
    padded = np.full(1 << bits, 2.0, np.float32)
    padded[: len(table)] = table
    sums = as_tensor(padded, "binomial: a table")
    place = 0.0 * u
    for bit in reversed(range(bits)):
        further = place + float(1 << bit)
        before = ops.take(sums, ops.cast(further - 1.0, "int32"), axis=0)
        place = ops.where(before < u, further, place)
    return place


@named_operation
def categorical(
    logits: Any,
    num_samples: int,
    dtype: str = "int32",
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Draw classes by their logits.

    Parameters
    ----------
    logits : SymbolicTensor or array_like
        Logarithms of probabilities, up to a constant, of shape (batch, classes).
    num_samples : int
        The number of draws for each row.
    dtype : {"int32"}, default "int32"
        The dtype.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        Classes of shape (batch, num_samples), in int32.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    if dtype != "int32":
        raise ValueError(f"classes are int32, got dtype={dtype!r}")
    count = integer(num_samples, "num_samples")
    if len(logits.shape) != 2:
        raise ValueError(
            f"categorical: logits must have shape (batch, classes), got {logits.shape}"
        )
    batch, classes = logits.shape
    u = _drawn((batch, count, classes), seed)
    noise = -ops.log(-ops.log(u))
    return ops.argmax(ops.expand_dims(logits, 1) + noise, axis=-1)


@named_operation
def dropout(
    inputs: Any,
    rate: float,
    noise_shape: None = None,
    seed: int | SeedGenerator | None = None,
) -> Any:
    """Drop elements at random and scale up the others.

    Parameters
    ----------
    inputs : SymbolicTensor or array_like
        The input.
    rate : float
        The fraction of the elements to drop, in ``[0, 1)``.
    noise_shape : None, optional
        Not supported.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The input with zeros where elements are dropped, times ``1 / (1 - rate)``.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    if noise_shape is not None:
        raise ValueError("dropout: noise_shape must be None")
    part = unit_interval(rate, "dropout: rate")
    u = _drawn(inputs.shape, seed)
    return ops.where(u >= part, inputs * (1 / (1 - part)), 0.0)


@named_operation
def shuffle(x: Any, axis: int = 0, seed: int | SeedGenerator | None = None) -> Any:
    """Return elements along an axis in a random order.

    Parameters
    ----------
    x : SymbolicTensor or array_like
        A tensor of a function, whose first axis is like any other.
    axis : int, default 0
        The axis.
    seed : int or SeedGenerator, optional
        As of `uniform`.

    Returns
    -------
    SymbolicTensor or numpy.ndarray
        The elements, in the shape of x.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    length = x.shape[axis_of(x, axis)]
    order = ops.argsort(_drawn((length,), seed))
    return ops.take(x, order, axis=axis)
