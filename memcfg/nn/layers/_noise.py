"""Layers that add noise while training and do nothing otherwise."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import (
    check_channels_last,
    integer,
    nonnegative,
    unit_interval,
)
from memcfg.nn._random import derive_seed, fixed_seed
from memcfg.nn.layers._integers import as_floats
from memcfg.nn.layers._layer import Layer, Scope
from memcfg.nn.layers._merge import broadcast
from memcfg.nn.regularizers import L1L2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Shape

__all__ = [
    "ActivityRegularization",
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
]


_LIMIT = -1.7580993408473766  # of selu for large negative numbers


class Dropout(Layer):
    """Drop elements at random while training and scale up the others.

    ``y = x * mask / (1 - rate)``; evaluation and prediction return ``x``. The mask
    depends only on the seed, the step and the index of the element, so it is never
    stored, and recomputing the layer reproduces it.

    Parameters
    ----------
    rate : float
        The fraction of the elements to drop, in ``[0, 1)``.
    noise_shape : sequence of (int or None), optional
        The shape of the mask, which is broadcast: 1 where elements along an axis are
        dropped together, None for the length of the axis.
    seed : int, optional
        The seed of the masks, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple
    way to prevent neural networks from overfitting", JMLR 15, 2014.
    """

    __slots__ = ("noise_shape", "rate")

    _after_inputs: ClassVar[tuple[str, ...]] = ("training",)

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.noise_shape = _noise_shape(noise_shape, "Dropout")
        self.rate = unit_interval(rate, "Dropout: rate")
        _with_seed(self, seed, name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the op when training, else nothing."""
        x = as_floats(scope.builder, inputs[0])
        if not scope.training or scope.step is None or self.rate == 0:
            return x
        if self.noise_shape is not None:
            kept = _kept(self, scope, _shape_of_noise(self, scope, x))
            return scope.apply("multiply", broadcast(scope, (x, kept)))[0]
        key = derive_seed(self._seed, scope.call)
        operands = (x, scope.step())
        return scope.apply("dropout", operands, {"rate": self.rate, "key": key})[0]


def _noise_shape(shape: Any, kind: str) -> tuple[int | None, ...] | None:
    """Return the shape of a mask as a tuple, or None."""
    if shape is None:
        return None
    if not isinstance(shape, list | tuple):
        raise TypeError(
            f"{kind}: noise_shape must be a tuple such as (None, 1, 8), got {shape!r}"
        )
    what = f"{kind}: a length of noise_shape"
    return tuple(None if each is None else integer(each, what) for each in shape)


def _shape_of_noise(layer: Any, scope: Scope, x: int) -> tuple[int, ...]:
    """Return the shape of the mask of a tensor."""
    shape = scope.builder.shape(x)
    given = layer.noise_shape or (None,) * len(shape)
    made = tuple(
        length if n is None else n for n, length in zip(given, shape, strict=False)
    )
    pairs = zip(made, shape, strict=False)
    if len(given) != len(shape) or any(n not in (1, length) for n, length in pairs):
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}): noise_shape="
            f"{layer.noise_shape} cannot be broadcast to an input of shape {shape}"
        )
    return made


def _kept(layer: Any, scope: Scope, shape: tuple[int, ...]) -> int:
    """Append factors that are 0 for what is dropped; the others have the mean 1."""
    assert scope.step is not None  # the layer is training
    ones = {"shape": shape, "value": 1.0, "dtype": "float32"}
    (kept,) = scope.apply("fill", (), ones)
    attributes = {"rate": layer.rate, "key": derive_seed(layer._seed, scope.call)}
    return scope.apply("dropout", (kept, scope.step()), attributes)[0]


class AlphaDropout(Layer):
    """Replace elements at random while training, and keep mean and variance.

    Dropped elements become the negative limit of `selu`, and all are shifted and
    scaled, so that an input of mean 0 and variance 1 keeps both.

    Parameters
    ----------
    rate : float
        The fraction of the elements to drop, in ``[0, 1)``.
    noise_shape : sequence of (int or None), optional
        The shape of the mask, as of `Dropout`.
    seed : int, optional
        The seed of the masks, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks",
    NIPS 2017.
    """

    __slots__ = ("noise_shape", "rate")

    _after_inputs: ClassVar[tuple[str, ...]] = ("training",)

    supports_masking: ClassVar[bool] = True

    def __init__(
        self,
        rate: float,
        noise_shape: Sequence[int | None] | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.noise_shape = _noise_shape(noise_shape, "AlphaDropout")
        self.rate = unit_interval(rate, "AlphaDropout: rate")
        _with_seed(self, seed, name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        x = as_floats(scope.builder, inputs[0])
        if not scope.training or scope.step is None or self.rate == 0:
            return x
        factors = _kept(self, scope, _shape_of_noise(self, scope, x))
        share = {"factor": 1 - self.rate, "term": -0.0}
        (kept,) = scope.apply("affine", (factors,), share)
        scale = ((1 - self.rate) * (1 + self.rate * _LIMIT**2)) ** -0.5
        low, shift = scale * _LIMIT, -scale * _LIMIT * self.rate
        scaled = {"factor": scale, "term": -0.0}
        (x,) = scope.apply("multiply", broadcast(scope, (x, kept)))
        (x,) = scope.apply("affine", (x,), scaled)
        rest = {"factor": -low, "term": low + shift}
        (more,) = scope.apply("affine", (kept,), rest)
        return scope.apply("add", broadcast(scope, (x, more)))[0]


class ActivityRegularization(Layer):
    """Return the input, and add a penalty on it to the loss.

    Parameters
    ----------
    l1, l2 : float, default 0.0
        The factors of the absolute values and of the squares, as of `L1L2`.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("l1", "l2")

    supports_masking: ClassVar[bool] = True

    def __init__(
        self, l1: float = 0.0, l2: float = 0.0, *, name: str | None = None
    ) -> None:
        penalty = L1L2(l1, l2)
        self.l1, self.l2 = penalty.l1, penalty.l2
        super().__init__(name, activity_regularizer=penalty)

    def _penalties(self) -> dict[str, Any]:
        return super()._penalties() | {"activity_regularizer": None}

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the input."""
        del scope
        return inputs[0]


def _drop_channels(layer: Any, scope: Scope, inputs: Sequence[int]) -> int:
    """Append dropout of one factor per sample and channel, and the product."""
    x = as_floats(scope.builder, inputs[0])
    if not scope.training or scope.step is None or layer.rate == 0:
        return x
    samples, *_, channels = scope.builder.shape(x)
    kept = _kept(layer, scope, (samples, *[1] * layer.rank, channels))
    return scope.apply("multiply", broadcast(scope, (x, kept)))[0]


class _SpatialDropout(Layer):
    """Base class of the layers that drop whole channels."""

    __slots__ = ()

    _after_inputs: ClassVar[tuple[str, ...]] = ("training",)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that Keras's layer takes, without `trainable`."""
        config = super().get_config()
        del config["trainable"]
        return config


class SpatialDropout2D(_SpatialDropout):
    """Drop whole channels of images while training, as `Dropout` does elements.

    Parameters
    ----------
    rate : float
        The fraction of the channels to drop, in ``[0, 1)``.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    seed : int, optional
        The seed of the masks, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Tompson, Goroshin, Jain, LeCun and Bregler, "Efficient object localization using
    convolutional networks", CVPR 2015.
    """

    __slots__ = ("rate",)

    supports_masking: ClassVar[bool] = True

    rank: ClassVar[int] = 2
    _reads_images: ClassVar[bool] = True
    trace = _drop_channels

    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "SpatialDropout2D")
        self.rate = unit_interval(rate, "SpatialDropout2D: rate")
        _with_seed(self, seed, name)


class SpatialDropout1D(_SpatialDropout):
    """Drop whole channels of sequences while training, as `Dropout` does elements.

    Parameters
    ----------
    rate : float
        The fraction of the channels to drop, in ``[0, 1)``.
    seed : int, optional
        The seed of the masks, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("rate",)

    supports_masking: ClassVar[bool] = True

    rank: ClassVar[int] = 1
    trace = _drop_channels

    def __init__(
        self, rate: float, seed: int | None = None, *, name: str | None = None
    ) -> None:
        self.rate = unit_interval(rate, "SpatialDropout1D: rate")
        _with_seed(self, seed, name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        self.require_rank(shapes[0], 2, "sequences (None, steps, channels)")


class SpatialDropout3D(_SpatialDropout):
    """Drop whole channels of volumes while training, as `Dropout` does elements.

    Parameters
    ----------
    rate : float
        The fraction of the channels to drop, in ``[0, 1)``.
    data_format : str, optional
        ``"channels_last"`` or None, or ``"channels_first"``, which is computed channels
        last.
    seed : int, optional
        The seed of the masks, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("rate",)

    supports_masking: ClassVar[bool] = True

    rank: ClassVar[int] = 3
    trace = _drop_channels

    def __init__(
        self,
        rate: float,
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        check_channels_last(data_format, "SpatialDropout3D")
        self.rate = unit_interval(rate, "SpatialDropout3D: rate")
        _with_seed(self, seed, name)

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Check the rank."""
        wanted = "volumes (None, depth, height, width, channels)"
        self.require_rank(shapes[0], 4, wanted)


class GaussianNoise(Layer):
    """Add normal noise while training.

    Parameters
    ----------
    stddev : float
        The standard deviation of the noise, zero or more.
    seed : int, optional
        The seed of the noise, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ("stddev",)

    _after_inputs: ClassVar[tuple[str, ...]] = ("training",)

    supports_masking: ClassVar[bool] = True

    def __init__(
        self, stddev: float, seed: int | None = None, *, name: str | None = None
    ) -> None:
        self.stddev = nonnegative(stddev, "GaussianNoise: stddev")
        _with_seed(self, seed, name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops of the noise when training."""
        return _noisy(self, scope, inputs[0], "gaussian_noise", self.stddev)


class GaussianDropout(Layer):
    """Multiply by normal noise around 1 while training.

    Parameters
    ----------
    rate : float
        In ``[0, 1)``; the variance of the noise is ``rate / (1 - rate)``.
    seed : int, optional
        The seed of the noise, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name, unique within a model.

    References
    ----------
    Srivastava et al., "Dropout", JMLR 15, 2014, section 10.
    """

    __slots__ = ("rate",)

    _after_inputs: ClassVar[tuple[str, ...]] = ("training",)

    supports_masking: ClassVar[bool] = True

    def __init__(
        self, rate: float, seed: int | None = None, *, name: str | None = None
    ) -> None:
        self.rate = unit_interval(rate, "GaussianDropout: rate")
        _with_seed(self, seed, name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops of the noise when training."""
        stddev = sqrt(self.rate / (1 - self.rate))
        return _noisy(self, scope, inputs[0], "gaussian_dropout", stddev)


def _with_seed(layer: Layer, seed: int | None, name: str | None) -> None:
    """Initialise a layer with a name and, if given, a seed."""
    fixed = fixed_seed(seed)
    Layer.__init__(layer, name)
    if fixed is not None:
        layer._seed = fixed


def _noisy(layer: Layer, scope: Scope, x: int, kind: str, stddev: float) -> int:
    x = as_floats(scope.builder, x)
    if not scope.training or scope.step is None or stddev == 0:
        return x
    key = derive_seed(layer._seed, scope.call)
    shape = {"shape": scope.builder.shape(x), "key": key}
    (uniform,) = scope.apply("random_uniform", (scope.step(),), shape)
    builder, dtype = scope.builder, scope.builder.compute_dtype
    if dtype is not None:
        builder.compute_dtype = "float32"  # bfloat16 has few numbers between 0 and 1
    (y,) = scope.apply(kind, (x, uniform), {"stddev": stddev})
    builder.compute_dtype = dtype
    return y
