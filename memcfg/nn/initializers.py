"""Initializers: the first values of weights, a function of the shape and the seed.

Values are float32. Most are drawn in place, without temporaries of the weight's size.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes, snake_case
from memcfg.nn._keras_names import absent
from memcfg.nn._random import fixed_seed, next_seed
from memcfg.nn.exchange._configs import Configured, functions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "STFT",
    "Bilinear",
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "IdentityInitializer",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "OrthogonalInitializer",
    "RandomNormal",
    "RandomUniform",
    "STFTInitializer",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "constant",
    "deserialize",
    "get",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "lecun_normal",
    "lecun_uniform",
    "ones",
    "orthogonal",
    "random_normal",
    "random_uniform",
    "serialize",
    "stft",
    "truncated_normal",
    "variance_scaling",
    "zeros",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

# Standard deviation of the standard normal distribution truncated to [-2, 2].
_TRUNCATED_DEVIATION = 0.87962566103423978
_CHUNK = 2**16  # the largest temporary of `_truncated_normal`, in elements

# Windows that are sums of cosines: the shares of the constant and of each cosine.
_COSINES = {
    "blackman": (0.42, -0.5, 0.08),
    "blackmanharris": (0.35875, -0.48829, 0.14128, -0.01168),
    "boxcar": (1.0,),
    "flattop": (0.21557895, -0.41663158, 0.277263158, -0.083578947, 0.006947368),
    "hamming": (0.54, -0.46),
    "hann": (0.5, -0.5),
    "nuttall": (0.3635819, -0.4891775, 0.1365995, -0.0106411),
}
WINDOWS = (*sorted([*_COSINES, "bartlett", "cosine"]),)


class Initializer(FixedAttributes, Configured):
    """Base class of the initializers, which draw the first values of weights.

    `seed` is the seed that the caller fixed, or None to use the layer's seed.
    """

    __slots__ = ("_drawn",)

    seed: int | None = None
    _drawn: int

    def __call__(self, shape: Sequence[int], dtype: str | None = None) -> np.ndarray:
        """Draw an array.

        Parameters
        ----------
        shape : sequence of int
            The shape; the last two axes are input and output channels.
        dtype : str, optional
            Only ``"float32"`` or None.

        Returns
        -------
        numpy.ndarray
            float32 of `shape`: the same in each call, as in Keras.

        Raises
        ------
        ValueError
            If `dtype` is another one.
        """
        if dtype not in (None, "float32"):
            raise ValueError(f"an initializer draws float32, not {dtype!r}")
        if self.seed is None and not hasattr(self, "_drawn"):
            self.__setstate__({"_drawn": next_seed()})
        lengths = tuple(integer(each, "a length of a shape", 0) for each in shape)
        return self.draw(lengths, self._drawn if self.seed is None else self.seed)

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight.

        Parameters
        ----------
        shape : tuple of int
            The weight's shape; the last two axes are input and output channels.
        seed : int
            The seed; equal seeds draw equal values.

        Returns
        -------
        numpy.ndarray
                float32 of `shape`: by default what ``__call__`` of a subclass returns.

        Raises
        ------
        NotImplementedError
            If a subclass defines neither.
        """
        if self._has_rule:
            values = np.empty(shape, np.float32)
            self._draw_into(values, seed)
            return values
        if type(self).__call__ is Initializer.__call__:
            kind = type(self).__name__
            raise NotImplementedError(f"{kind} must define __call__ or draw")
        return np.asarray(self(shape, dtype="float32"), np.float32)

    @property
    def draws_in_place(self) -> bool:
        """Whether `draw_into` needs no array of the weight's size."""
        return self._has_rule and type(self).draw is Initializer.draw

    @property
    def _has_rule(self) -> bool:
        return type(self)._draw_into is not Initializer._draw_into

    def draw_into(self, values: np.ndarray, seed: int) -> None:
        """Draw a weight, of which `draw` returns an equal one, into an array.

        Parameters
        ----------
        values : numpy.ndarray
            float32 and contiguous; overwritten.
        seed : int
            The seed.
        """
        if self.draws_in_place:
            self._draw_into(values, seed)
        else:
            values[...] = self.draw(values.shape, seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        """Draw a weight in place, where a class can."""
        raise NotImplementedError


class _Function(Initializer):
    """An initializer from a user's function of a shape and a dtype."""

    __slots__ = ("function",)

    def __init__(self, function: Any) -> None:
        self.function = function

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Call the function."""
        return np.asarray(self.function(shape, dtype="float32"), np.float32)


class Zeros(Initializer):
    """Start from zeros."""

    __slots__ = ()

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        values[...] = 0


class Ones(Initializer):
    """Start from ones."""

    __slots__ = ()

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        values[...] = 1


class RandomNormal(Initializer):
    """Draw from a normal distribution.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation, zero or more.
    seed : int, optional
        Seed of the values. None: the layer's seed.
    """

    __slots__ = ("mean", "seed", "stddev")

    def __init__(
        self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None
    ) -> None:
        self.seed = fixed_seed(seed)
        self.mean = real(mean, "RandomNormal: mean")
        self.stddev = nonnegative(stddev, "RandomNormal: stddev")

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        np.random.default_rng(seed).standard_normal(dtype=np.float32, out=values)
        values *= self.stddev
        values += self.mean


class TruncatedNormal(Initializer):
    """Draw from a normal distribution truncated at two standard deviations.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation before the truncation, zero or more.
    seed : int, optional
        Seed of the values. None: the layer's seed.
    """

    __slots__ = ("mean", "seed", "stddev")

    def __init__(
        self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None
    ) -> None:
        self.seed = fixed_seed(seed)
        self.mean = real(mean, "TruncatedNormal: mean")
        self.stddev = nonnegative(stddev, "TruncatedNormal: stddev")

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _truncated_normal(values, seed)
        values *= self.stddev
        values += self.mean


class RandomUniform(Initializer):
    """Draw from a uniform distribution.

    Parameters
    ----------
    minval, maxval : float, default -0.05 and 0.05
        The bounds; `minval` must not exceed `maxval`.
    seed : int, optional
        Seed of the values. None: the layer's seed.
    """

    __slots__ = ("maxval", "minval", "seed")

    def __init__(
        self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None
    ) -> None:
        self.seed = fixed_seed(seed)
        self.minval = real(minval, "RandomUniform: minval")
        self.maxval = real(maxval, "RandomUniform: maxval")
        if self.minval > self.maxval:
            raise ValueError(
                f"RandomUniform: minval must not exceed maxval, got {minval} and "
                f"{maxval}"
            )

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        np.random.default_rng(seed).random(dtype=np.float32, out=values)
        values *= self.maxval - self.minval
        values += self.minval


class Constant(Initializer):
    """Set all elements to one number, or to those of an array.

    Parameters
    ----------
    value : float or array_like, default 0.0
        The number, or an array that can be broadcast to the shape.

    Raises
    ------
    TypeError
        If the value is neither a number nor an array of numbers.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any = 0.0) -> None:
        if isinstance(value, list | tuple) or np.ndim(value):
            array = np.array(value)
            if array.dtype.kind not in "fiub":
                raise TypeError(f"Constant: value must be numbers, got {value!r}")
            self.value: Any = array.astype(np.float32)
        else:
            self.value = real(value, "Constant: value")

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        try:
            values[...] = self.value
        except ValueError:
            raise ValueError(
                f"Constant: values of shape {np.shape(self.value)} do not fit a weight "
                f"of shape {values.shape}"
            ) from None


class Identity(Initializer):
    """Return a multiple of the identity matrix.

    Parameters
    ----------
    gain : float, default 1.0
        The value on the diagonal.
    """

    __slots__ = ("gain",)

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = real(gain, "Identity: gain")

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return the matrix; ValueError if the weight is not one."""
        if len(shape) != 2:
            raise ValueError(
                f"Identity can only initialize matrices, got a weight of shape {shape}"
            )
        return self.gain * np.eye(*shape, dtype=np.float32)


class Bilinear(Initializer):
    """Make a transposed convolution interpolate bilinearly, channel by channel.

    For kernels with a square window twice as long as the strides. Caffe and MXNet have
    an initializer of this name; Keras has none.

    References
    ----------
    Long, Shelhamer and Darrell, "Fully convolutional networks for semantic
    segmentation", CVPR 2015, section 3.3.
    """

    __slots__ = ()

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return the kernel: a hat function for each channel, 0 between channels."""
        if len(shape) != 4 or shape[0] != shape[1] or shape[2] != shape[3]:
            raise ValueError(
                "Bilinear can only initialize kernels with square windows and as many "
                f"input as output channels, got a weight of shape {shape}"
            )
        size, _, channels, _ = shape
        places = np.arange(size, dtype=np.float32) - (size - 1) / 2
        hat = (1 - np.abs(places) / (size / 2)).astype(np.float32)
        kernel = np.zeros(shape, np.float32)
        diagonal = range(channels)
        kernel[..., diagonal, diagonal] = np.outer(hat, hat)[..., None]
        return kernel


class Orthogonal(Initializer):
    """Draw a matrix with orthogonal rows or columns.

    All axes but the last are flattened to one, the rows.

    Parameters
    ----------
    gain : float, default 1.0
        The norm of each row or column.
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    Saxe, McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of
    learning in deep linear neural networks", ICLR 2014.
    """

    __slots__ = ("gain", "seed")

    def __init__(self, gain: float = 1.0, seed: int | None = None) -> None:
        self.gain = real(gain, "Orthogonal: gain")
        self.seed = fixed_seed(seed)

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Draw a weight."""
        if len(shape) < 2:
            raise ValueError(
                f"Orthogonal needs weights with two or more axes, got shape {shape}"
            )
        rows, columns = math.prod(shape[:-1]), shape[-1]
        wide = max(rows, columns), min(rows, columns)
        normal = np.random.default_rng(seed).standard_normal(wide, np.float32)
        q, r = np.linalg.qr(normal)
        q *= np.where(np.diagonal(r) < 0, -self.gain, self.gain).astype(np.float32)
        return np.ascontiguousarray(q.T if rows < columns else q).reshape(shape)


class STFT(Initializer):
    """The kernel of a convolution that is a short-time Fourier transform.

    Weights have shape (steps of a window, 1, half of the length of the transform + 1).

    Parameters
    ----------
    side : {"real", "imag"}, default "real"
        The part of the transform.
    window : str or array_like, default "hann"
        The window, such as ``"hann"``, ``"hamming"`` or ``"blackman"``; None for ones.
    scaling : {"density", "spectrum"}, optional
        Whether the window has norm 1 (``"density"``, the default) or sum 1; None for
        neither.
    periodic : bool, default False
        Whether the window is one period of a longer one.

    Raises
    ------
    ValueError
        If an argument is unknown.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.initializers.STFT("real", window=None)((4, 1, 3))[:, 0, 2].round(3)
    array([ 1., -1.,  1., -1.], dtype=float32)
    """

    __slots__ = ("periodic", "scaling", "side", "window")

    def __init__(
        self,
        side: str = "real",
        window: Any = "hann",
        scaling: str | None = "density",
        periodic: bool = False,
    ) -> None:
        if side not in ("real", "imag"):
            raise unknown("side", str(side), ("real", "imag"), "STFT: ")
        if scaling not in ("density", "spectrum", None):
            raise unknown("scaling", str(scaling), ("density", "spectrum"), "STFT: ")
        check_window(window, "STFT")
        self.side = side
        self.window = window
        self.scaling = scaling
        self.periodic = bool(periodic)

    def draw(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return the kernel."""
        del seed
        if len(shape) != 3:
            raise ValueError(
                "STFT needs weights (steps, 1, half of the transform + 1), got shape "
                f"{shape}"
            )
        length, _, bins = shape
        steps = np.arange(length)[:, None] * np.arange(bins) / (2 * (bins - 1) or 1)
        angle = -2 * np.pi * steps
        kernel = np.cos(angle) if self.side == "real" else np.sin(angle)
        if self.window is not None:
            window = window_of(self.window, length, "STFT", self.periodic)
            if self.scaling == "density":
                window = window / np.sqrt(np.square(window).sum())
            elif self.scaling == "spectrum":
                window = window / np.abs(window).sum()
            kernel *= window[:, None]
        made = np.broadcast_to(kernel[:, None], shape)
        return np.ascontiguousarray(made, np.float32)


class VarianceScaling(Initializer):
    """Draw with a variance of ``scale / n``, where n depends on the mode.

    Parameters
    ----------
    scale : float, default 1.0
        The scale, above 0.
    mode : {"fan_in", "fan_out", "fan_avg"}, default "fan_in"
        n is the number of inputs of a unit, the number of its outputs, or their mean.
    distribution : {"truncated_normal", "untruncated_normal", "uniform"}
        The distribution; by default ``"truncated_normal"``.
    seed : int, optional
        Seed of the values. None: the layer's seed.
    """

    __slots__ = ("distribution", "mode", "scale", "seed")

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
    ) -> None:
        self.scale = real(scale, "VarianceScaling: scale")
        if self.scale <= 0:
            raise ValueError(f"VarianceScaling: scale must be positive, got {scale}")
        distribution = "truncated_normal" if distribution == "normal" else distribution
        for value, known in ((mode, _MODES), (distribution, _DISTRIBUTIONS)):
            if value not in known:
                raise ValueError(
                    f"VarianceScaling accepts {', '.join(known)}, got {value!r}"
                )
        self.mode = mode
        self.distribution = distribution
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, self.scale, self.mode, self.distribution)


class GlorotUniform(Initializer):
    """Draw uniformly from [-a, a] with a = sqrt(6 / (fan_in + fan_out)).

    Parameters
    ----------
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    neural networks", AISTATS 2010.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, 1.0, "fan_avg", "uniform")


class GlorotNormal(Initializer):
    """Draw from a truncated normal distribution of variance 2 / (fan_in + fan_out).

    Parameters
    ----------
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    Glorot and Bengio, "Understanding the difficulty of training deep feedforward
    neural networks", AISTATS 2010.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, 1.0, "fan_avg", "truncated_normal")


class HeUniform(Initializer):
    """Draw uniformly from [-a, a] with a = sqrt(6 / fan_in).

    Parameters
    ----------
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers: surpassing human-level
    performance on ImageNet classification", ICCV 2015.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, 2.0, "fan_in", "uniform")


class HeNormal(Initializer):
    """Draw from a truncated normal distribution of variance 2 / fan_in.

    Parameters
    ----------
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    He, Zhang, Ren and Sun, "Delving deep into rectifiers: surpassing human-level
    performance on ImageNet classification", ICCV 2015.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, 2.0, "fan_in", "truncated_normal")


class LecunUniform(Initializer):
    """Draw uniformly from [-a, a] with a = sqrt(3 / fan_in).

    Parameters
    ----------
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    LeCun, Bottou, Orr and Müller, "Efficient BackProp", in Neural Networks: Tricks
    of the Trade, 1998.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, 1.0, "fan_in", "uniform")


class LecunNormal(Initializer):
    """Draw from a truncated normal distribution of variance 1 / fan_in.

    Parameters
    ----------
    seed : int, optional
        Seed of the values. None: the layer's seed.

    References
    ----------
    LeCun, Bottou, Orr and Müller, "Efficient BackProp", in Neural Networks: Tricks
    of the Trade, 1998.
    """

    __slots__ = ("seed",)

    def __init__(self, seed: int | None = None) -> None:
        self.seed = fixed_seed(seed)

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        _scaled(values, seed, 1.0, "fan_in", "truncated_normal")


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "untruncated_normal", "uniform")


def _scaled(
    values: np.ndarray, seed: int, scale: float, mode: str, distribution: str
) -> None:
    """Draw as `VarianceScaling` documents."""
    fan_in, fan_out = _fans(values.shape)
    channels = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    variance = scale / max(1.0, channels[mode])
    generator = np.random.default_rng(seed)
    if distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        generator.random(dtype=np.float32, out=values)
        values *= 2 * limit
        values -= limit
    elif distribution == "untruncated_normal":
        generator.standard_normal(dtype=np.float32, out=values)
        values *= math.sqrt(variance)
    else:
        _truncated_normal(values, seed)
        values *= math.sqrt(variance) / _TRUNCATED_DEVIATION


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    if not shape:
        return 1, 1
    if len(shape) == 1:
        return shape[0], shape[0]
    field = math.prod(shape[:-2])
    return shape[-2] * field, shape[-1] * field


def _truncated_normal(values: np.ndarray, seed: int) -> None:
    """Draw from the standard normal distribution truncated to [-2, 2].

    Rejection sampling, chunk by chunk: elements beyond ±2 are drawn again.
    """
    generator = np.random.default_rng(seed)
    flat = values.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        generator.standard_normal(dtype=np.float32, out=chunk)
        while len(outside := np.flatnonzero(np.abs(chunk) > 2)):
            chunk[outside] = generator.standard_normal(len(outside), np.float32)


def check_window(window: Any, what: str) -> None:
    """Raise ValueError for an unknown name of a window."""
    if isinstance(window, str) and window not in WINDOWS:
        raise unknown("window", window, WINDOWS, f"{what}: ")


def window_of(
    window: Any, length: int, what: str, periodic: bool = False
) -> np.ndarray:
    """Return the numbers of a window in float64; None gives ones."""
    check_window(window, what)
    if window is None:
        return np.ones(length)
    if isinstance(window, str):
        if length == 1:
            return np.ones(1)
        size = length + 1 if periodic else length
        return _named(window, size)[:length]
    numbers = np.asarray(window, np.float64)
    if numbers.shape != (length,):
        raise ValueError(
            f"{what}: a window must have shape ({length},), got {numbers.shape}"
        )
    return numbers


def _named(window: str, size: int) -> np.ndarray:
    place = np.arange(size)
    if window == "bartlett":
        return np.bartlett(size)
    if window == "cosine":
        return np.asarray(np.sin(np.pi / size * (place + 0.5)))
    angle = 2 * np.pi * place / (size - 1)
    shares = _COSINES[window]
    return np.asarray(sum(share * np.cos(k * angle) for k, share in enumerate(shares)))


# Keras's other names.
IdentityInitializer, OrthogonalInitializer = Identity, Orthogonal
glorot_normal, glorot_uniform = GlorotNormal, GlorotUniform
he_normal, he_uniform = HeNormal, HeUniform
lecun_normal, lecun_uniform = LecunNormal, LecunUniform
random_normal, random_uniform = RandomNormal, RandomUniform
constant, identity, ones, zeros = Constant, Identity, Ones, Zeros
orthogonal, truncated_normal = Orthogonal, TruncatedNormal
stft, STFTInitializer, variance_scaling = STFT, STFT, VarianceScaling

_KINDS: tuple[type[Initializer], ...] = (
    Bilinear,
    Constant,
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    Identity,
    LecunNormal,
    LecunUniform,
    Ones,
    Orthogonal,
    RandomNormal,
    RandomUniform,
    STFT,
    TruncatedNormal,
    VarianceScaling,
    Zeros,
)
_BY_NAME: dict[str, type[Initializer]] = {
    **{snake_case(kind.__name__): kind for kind in _KINDS},
    "normal": RandomNormal,
    "uniform": RandomUniform,
    "one": Ones,
    "zero": Zeros,
}
_BY_CLASS = {kind.__name__: kind for kind in _KINDS} | {
    "IdentityInitializer": Identity,
    "OrthogonalInitializer": Orthogonal,
}


def get_initializer(initializer: Any) -> Initializer:
    """Return the initializer of a layer's argument, a name or an instance."""
    if isinstance(initializer, str):
        kind = _BY_NAME.get(initializer) or _BY_CLASS.get(initializer)
        if kind is None:
            raise unknown("initializer", initializer, sorted(_BY_NAME))
        return kind()
    if isinstance(initializer, type) and issubclass(initializer, Initializer):
        return initializer()
    if isinstance(initializer, dict):
        return get_initializer(deserialize(initializer))
    if inspect.isfunction(initializer):
        return _Function(initializer)
    if isinstance(initializer, np.ndarray):
        return Constant(initializer)
    if isinstance(initializer, type) or not callable(
        getattr(initializer, "draw", None)
    ):
        raise TypeError(
            "an initializer must be a name, an instance such as GlorotUniform() or a "
            f"function of shape and dtype, got {initializer!r}"
        )
    result: Initializer = initializer
    return result


serialize, deserialize, get = functions_of("initializers", Initializer, get_initializer)
