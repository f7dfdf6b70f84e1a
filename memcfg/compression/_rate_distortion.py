"""Uniform quantisation in which the bits of an adaptive coder count, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg.compression._choice import compressible, plain_steps, settings_of
from memcfg.compression._pruning import survivors
from memcfg.compression._sharing import shared
from memcfg.nn._argument_checks import nonnegative, real

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from memcfg.nn import Model

__all__ = ["Quantized", "quantize_by_rate", "rate_distortion", "step_of"]

_CONTEXTS = 3  # by how many of the two entries before are not 0
_ROUNDS = 30  # of choices and of the statistics that they lead to


class Quantized(NamedTuple):
    """Integers for numbers, and what they cost.

    Parameters
    ----------
    levels : numpy.ndarray
        The integers in int32, in the shape of the numbers.
    bits : float
        The bits of all of them, as the adaptive model estimates.
    distortion : float
        The sum of squared errors, in steps.
    """

    levels: npt.NDArray[np.int32]
    bits: float
    distortion: float


def quantize_by_rate(
    model: Model,
    step: float | Mapping[str, float] = 0.5,
    rate_weight: float = 0.05,
) -> Model:
    """Return a copy of a model with weights that are few bits to a context coder.

    Each weight becomes a multiple of a step: the one with the smallest sum of squared
    error and weighted bits. Small weights become 0 where that is cheap, so this prunes
    as well. The copy holds the multiples as shared values, as `share_weights` does,
    and training changes them.

    Parameters
    ----------
    model : Model
        The model, such as what `prune` returned; it is left as it is. Weights that are
        0 stay 0.
    step : float or mapping of str to float, default 0.5
        The step, in standard deviations of the weights of a layer that are not 0; or
        by name of a weight or layer, as of `prune`. Weights that are not named stay.
    rate_weight : float, default 0.05
        What a bit counts, in squared steps. 0: weights are rounded to the nearest
        multiple.

    Returns
    -------
    Model
        The copy, compiled as `model`, with a new optimizer.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, a name is unknown, a weight has a constraint, or the
        step is so small that there are more than 65,536 values.
    RuntimeError
        If the shapes of the model are not known.

    See Also
    --------
    rate_distortion : The same for an array.
    """
    found = compressible(model, "quantize_by_rate")
    plain_steps(model, "quantize_by_rate")
    steps = settings_of(found, step, step_of, "quantize_by_rate: step")
    chosen = {}
    for name, share in steps.items():
        weight = found[name]
        if weight.constraint is not None:
            raise ValueError(f"quantize_by_rate: {name!r} has a constraint")
        value = model._read_weight(weight.layer, weight.spec_name)
        kept = value[value != 0]
        width = share * float(np.sqrt(np.square(kept, dtype=np.float64).mean() or 1.0))
        made = rate_distortion(value, width, rate_weight).levels.ravel()
        chosen[name] = _held(value, made, width, name)
    return model._with_parts(chosen)


def rate_distortion(
    values: npt.ArrayLike, step: float, rate_weight: float
) -> Quantized:
    """Quantise numbers to multiples of a step, weighing errors against bits.

    The bits are those of an adaptive coder: whether an integer is 0, given how many of
    the two before it are not; its sign; and its magnitude. The statistics follow from
    the integers, and the integers from the statistics, until both stay.

    Parameters
    ----------
    values : array_like
        The numbers. Those that are 0 stay 0.
    step : float
        The distance of two values.
    rate_weight : float
        What a bit counts, in squared steps.

    Returns
    -------
    Quantized
        The integers, with estimated bits and the error.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or a number is not finite.

    References
    ----------
    Wiedemann et al., "DeepCABAC: a universal compression algorithm for deep neural
    networks", IEEE Journal of Selected Topics in Signal Processing 14, 2020; Chou,
    Lookabaugh and Gray, "Entropy-constrained vector quantization", IEEE Transactions
    on Acoustics, Speech, and Signal Processing 37, 1989.

    Examples
    --------
    >>> from memcfg import compression
    >>> x = [0.0, 0.1, 0.9, -0.6, 0.1, 0.1, 1.1, 0.1]
    >>> compression.rate_distortion(x, 1.0, 0.0).levels.tolist()
    [0, 0, 1, -1, 0, 0, 1, 0]
    >>> compression.rate_distortion(x, 1.0, 0.2).levels.tolist()
    [0, 0, 1, 0, 0, 0, 1, 0]
    """
    width = step_of(step, "step")
    weight = nonnegative(rate_weight, "rate_weight")
    given = np.asarray(values, np.float32)
    if not np.isfinite(given).all():
        raise ValueError("rate_distortion takes finite numbers")
    x = given.ravel().astype(np.float64) / width
    if np.abs(x).max(initial=0) > np.iinfo(np.int32).max / 2:
        raise ValueError(f"step {step!r} is too small for numbers as large as these")
    size = np.abs(x)
    magnitude = np.rint(size).astype(np.int64)
    best, result = np.inf, magnitude
    for _ in range(_ROUNDS):
        costs = _Costs(magnitude)
        total = float(np.square(size - magnitude).sum() + weight * costs.bits)
        if total >= best:
            break
        best, result = total, magnitude
        if not weight:
            break
        magnitude = _choose(size, costs, weight)
    levels = (np.sign(x) * result).astype(np.int32)
    error = float(np.square(size - result).sum())
    return Quantized(levels.reshape(given.shape), _Costs(result).bits, error)


class _Costs:
    """The bits of magnitudes, by their statistics, with a bit for each sign."""

    def __init__(self, magnitude: Any) -> None:
        nonzero = magnitude != 0
        before = np.zeros(len(magnitude) + 2, np.int8)
        before[2:] = nonzero
        self.context = before[1:-1] + before[:-2]
        index = 2 * self.context + nonzero
        counts = np.bincount(index, minlength=2 * _CONTEXTS).reshape(_CONTEXTS, 2) + 0.5
        # of zero and of another number, by context
        self.significance = np.log2(counts.sum(1, keepdims=True) / counts)
        sizes = np.bincount(magnitude, minlength=2)[1:] + 0.5
        self.magnitudes = np.concatenate([[0.0], 1 + np.log2(sizes.sum() / sizes)])
        self.bits = float(
            self.significance.ravel()[index].sum() + self.magnitudes[magnitude].sum()
        )

    def of(self, magnitude: Any) -> Any:
        """Return the bits of other magnitudes, none larger, in the same contexts."""
        index = (magnitude != 0).astype(np.int8)
        return self.significance[self.context, index] + self.magnitudes[magnitude]


def _choose(size: Any, costs: _Costs, weight: float) -> Any:
    """Return the magnitudes of the smallest cost, of those next to a number and 0."""
    largest = len(costs.magnitudes) - 1
    below = np.minimum(np.floor(size).astype(np.int64), largest)
    tried = [below, np.minimum(below + 1, largest), np.maximum(below - 1, 0)]
    best, result = np.square(size) + weight * costs.of(np.zeros_like(below)), 0 * below
    for each in tried:
        cost = np.square(size - each) + weight * costs.of(each)
        better = (cost < best) & (size > 0)
        best, result = np.where(better, cost, best), np.where(better, each, result)
    return result


def _held(value: Any, levels: Any, width: float, name: str) -> Any:
    """Return how a model holds multiples of a width; one at least is not 0."""
    if not levels.any():
        by, parts = survivors(value, np.abs(value) == np.abs(value).max())
        levels = np.zeros(value.size, np.int32)
        largest = parts[-1][:1] if by.sparse else [0]
        levels[largest] = np.sign(value.ravel()[largest])
    (indices,) = np.nonzero(levels)
    known, codes = np.unique(levels[indices], return_inverse=True)
    if len(known) > 1 << 16:
        raise ValueError(f"quantize_by_rate: the step of {name!r} is too small")
    where = () if len(indices) == len(levels) else (indices.astype(np.int32),)
    return shared(known * np.float32(width), codes.astype(np.int32), *where)


def step_of(value: Any, what: str) -> float:
    """Return a number above 0."""
    number = real(value, what)
    if number <= 0:
        raise ValueError(f"{what} must be above 0, got {value!r}")
    return number
