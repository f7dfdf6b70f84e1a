"""What weights start from: values that depend on the shape and the seed alone.

They are drawn in float32, in place, without memory beside the weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import nonnegative, real
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._random import fixed_seed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Initializer",
    "Ones",
    "RandomNormal",
    "Zeros",
]

# Standard deviation of the standard normal distribution truncated to [-2, 2].
_TRUNCATED_DEVIATION = 0.87962566103423978
_CHUNK = 2**16  # elements; what a temporary holds at most


class Initializer(FixedAttributes):
    """Base class of what draws the first value of a weight.

    `seed` is the seed that the caller fixed, or None to take the layer's.
    """

    __slots__ = ()

    seed: int | None = None

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight.

        Parameters
        ----------
        shape : tuple of int
            The weight's shape; the last two are input and output channels.
        seed : int
            Decides the values, alone.

        Returns
        -------
        numpy.ndarray
            float32 of `shape`.
        """
        raise NotImplementedError


class Zeros(Initializer):
    """Start from zeros."""

    __slots__ = ()

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return zeros."""
        return np.zeros(shape, np.float32)


class Ones(Initializer):
    """Start from ones."""

    __slots__ = ()

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return ones."""
        return np.ones(shape, np.float32)


class RandomNormal(Initializer):
    """Draw from a normal distribution.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation, zero or more.
    seed : int, optional
        Fix the values. None: a seed drawn by the layer.
    """

    __slots__ = ("mean", "seed", "stddev")

    def __init__(
        self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None
    ) -> None:
        self.seed = fixed_seed(seed)
        self.mean = real(mean, "RandomNormal: mean")
        self.stddev = nonnegative(stddev, "RandomNormal: stddev")

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight."""
        values = np.empty(shape, np.float32)
        np.random.default_rng(seed).standard_normal(dtype=np.float32, out=values)
        values *= self.stddev
        values += self.mean
        return values


class GlorotUniform(Initializer):
    """Draw uniformly from ±√(6 / (fan_in + fan_out)).

    Parameters
    ----------
    seed : int, optional
        Fix the values. None: a seed drawn by the layer.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    neural networks", AISTATS 2010.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight."""
        fan_in, fan_out = _fans(shape)
        return _uniform(shape, math.sqrt(6.0 / max(1, fan_in + fan_out)), seed)


class HeUniform(Initializer):
    """Draw uniformly from ±√(6 / fan_in).

    Parameters
    ----------
    seed : int, optional
        Fix the values. None: a seed drawn by the layer.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers: surpassing human-level
    performance on ImageNet classification", ICCV 2015.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight."""
        return _uniform(shape, math.sqrt(6.0 / max(1, _fans(shape)[0])), seed)


class HeNormal(Initializer):
    """Draw from a normal distribution of variance 2 / fan_in, cut at two deviations.

    Parameters
    ----------
    seed : int, optional
        Fix the values. None: a seed drawn by the layer.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers: surpassing human-level
    performance on ImageNet classification", ICCV 2015.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight."""
        deviation = math.sqrt(2.0 / max(1, _fans(shape)[0])) / _TRUNCATED_DEVIATION
        values = _truncated_normal(shape, seed)
        values *= deviation
        return values


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    field = math.prod(shape[:-2])
    return shape[-2] * field, shape[-1] * field


def _uniform(shape: tuple[int, ...], limit: float, seed: int) -> np.ndarray:
    values = np.empty(shape, np.float32)
    np.random.default_rng(seed).random(dtype=np.float32, out=values)
    values *= 2 * limit
    values -= limit
    return values


def _truncated_normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Draw from the standard normal distribution, again where it is beyond ±2."""
    generator = np.random.default_rng(seed)
    values = np.empty(shape, np.float32)
    flat = values.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        generator.standard_normal(dtype=np.float32, out=chunk)
        while len(outside := np.flatnonzero(np.abs(chunk) > 2)):
            chunk[outside] = generator.standard_normal(len(outside), np.float32)
    return values


_BY_NAME: dict[str, Callable[[], Initializer]] = {
    "glorot_uniform": GlorotUniform,
    "he_normal": HeNormal,
    "he_uniform": HeUniform,
    "ones": Ones,
    "random_normal": RandomNormal,
    "zeros": Zeros,
}


def get_initializer(initializer: Any) -> Initializer:
    """Return the initializer that a layer's argument means."""
    if isinstance(initializer, str):
        if initializer not in _BY_NAME:
            raise ValueError(
                f"unknown initializer {initializer!r}; known: "
                f"{', '.join(sorted(_BY_NAME))}"
            )
        return _BY_NAME[initializer]()
    if isinstance(initializer, type) or not callable(
        getattr(initializer, "draw", None)
    ):
        raise TypeError(
            f"an initializer is a name or an object such as GlorotUniform(), not "
            f"{initializer!r}"
        )
    found: Initializer = initializer
    return found
