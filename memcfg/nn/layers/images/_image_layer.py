"""The base of layers of images: of arrays, or of tensors where ops can express it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import check_channels_last, real
from memcfg.nn._random import derive_seed, fixed_seed
from memcfg.nn.layers._layer import (
    Layer,
    Scope,
    SymbolicTensor,
    calls_to,
    pattern,
    start_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Range = tuple[float, float]

_lock = threading.Lock()  # of the numbers of calls; held for an addition


class _ImageLayer(Layer):
    """A layer of images (height, width, channels), or of batches of them.

    Called on arrays, it computes with NumPy, as a step of `Dataset.map`; several
    threads may call it. Each call on arrays has random numbers of its own, which follow
    from the seed and the number of the call.
    """

    __slots__ = ("_calls_on_arrays",)

    takes_channels_first: ClassVar[bool] = False

    def _begin(self, name: str | None, data_format: Any, seed: Any = None) -> None:
        """Initialise the layer, after its own arguments are set."""
        check_channels_last(data_format, type(self).__name__)
        fixed = fixed_seed(seed)
        super().__init__(name)
        if fixed is not None:
            self._seed = fixed
        self._calls_on_arrays = 0

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Compute on arrays at once, or connect the layer to symbolic tensors."""
        symbols: list[Any] = []
        pattern((inputs, more, options), symbols, SymbolicTensor)
        if not symbols:
            return self._on_arrays(inputs, *more, **options)
        if type(self).trace is Layer.trace:
            raise TypeError(
                f"{type(self).__name__} computes on arrays, not in a model: call it in "
                "Dataset.map, before the images reach the model"
            )
        return super().__call__(inputs, *more, **options)

    def _on_arrays(self, data: Any, training: bool = True) -> Any:
        """Transform images, or a dict that has some."""
        check_mode(training, type(self).__name__)
        if not isinstance(data, dict):
            images = self._images(data)
            change = self.get_random_transformation(images, training=training)
            return self.transform_images(images, change, training=training)
        if "images" not in data or data.keys() - {
            "images",
            "labels",
            "segmentation_masks",
        }:
            raise ValueError(
                f"{type(self).__name__} takes a dict of images, labels and "
                f"segmentation_masks, not of {', '.join(map(str, data))}"
            )
        images = self._images(data["images"])
        change = self.get_random_transformation(images, training=training)
        result = data | {
            "images": self.transform_images(images, change, training=training)
        }
        if "labels" in data:
            result["labels"] = self.transform_labels(
                data["labels"], change, training=training
            )
        if "segmentation_masks" in data:
            masks = self._images(data["segmentation_masks"])
            result["segmentation_masks"] = self._transform_masks(
                masks, change, training=training
            )
        return result

    def _images(self, data: Any) -> np.ndarray:
        images = np.asarray(data)
        if images.ndim not in (3, 4) or images.dtype.kind not in "biuf":
            raise ValueError(
                f"{type(self).__name__} takes images (height, width, channels) or "
                f"batches of them, not {images.dtype}{list(images.shape)}"
            )
        return images

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> Any:
        """Draw the transformation of images.

        Parameters
        ----------
        data : array_like
            The images.
        training : bool, default True
            Whether the layer does anything.
        seed : int, optional
            The seed, instead of that of the next call.

        Returns
        -------
        dict or tuple or None
            What `transform_images` takes.
        """
        del data, training, seed
        return None

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Apply a transformation to images.

        Parameters
        ----------
        images : array_like
            The images.
        transformation : object
            The result of `get_random_transformation`.
        training : bool, default True
            Whether the layer does anything.

        Returns
        -------
        numpy.ndarray
            The images.
        """
        raise NotImplementedError

    def transform_labels(
        self, labels: Any, transformation: Any, training: bool = True
    ) -> Any:
        """Apply a transformation to labels; most leave them.

        Parameters
        ----------
        labels : array_like
            The labels.
        transformation : object
            The result of `get_random_transformation`.
        training : bool, default True
            Whether the layer does anything.

        Returns
        -------
        array_like
            The labels.
        """
        del transformation, training
        return labels

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        """Apply a transformation to masks; one of colors leaves them."""
        return self.transform_images(masks, transformation, training=training)

    def _generator(self, seed: int | None) -> np.random.Generator:
        """Return a generator for the next call, or of a seed."""
        if seed is not None:
            return np.random.default_rng(seed)
        with _lock:
            self._calls_on_arrays += 1
            number = self._calls_on_arrays
        return np.random.default_rng([self._seed, number])


def check_mode(training: Any, layer: str) -> None:
    """Raise TypeError for another second argument, such as the labels of pairs."""
    if not isinstance(training, bool | np.bool_ | int | None):
        raise TypeError(
            f"{layer}: training must be True or False. In Dataset.map of pairs use "
            "lambda x, y: (layer(x), y), or pass a dict of images and labels"
        )


def factor_of(value: Any, what: str, least: float = -1.0, most: float = 1.0) -> Range:
    """Return the lower and upper bound of a factor: a number or two."""
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(f"{what} is one number or two, not {value!r}")
        lower, upper = sorted(real(each, what) for each in value)
    else:
        upper = abs(real(value, what))
        lower = max(-upper, least)
    if not least <= lower <= upper <= most:
        raise ValueError(f"{what} must be in [{least:g}, {most:g}], not {value!r}")
    return lower, upper


def value_range_of(value: Any, what: str) -> Range:
    """Return the lowest and highest value of pixels."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{what} is a pair of numbers, not {value!r}")
    lower, upper = sorted(real(each, what) for each in value)
    return lower, upper


def floats(images: Any) -> np.ndarray:
    """Return images as float32, the compute dtype."""
    return np.asarray(images, np.float32)


def scaled(images: np.ndarray, of: Range, to: Range) -> np.ndarray:
    """Return images whose values are moved from one range to another."""
    if of == to:
        return images
    result = (images - of[0]) * ((to[1] - to[0]) / (of[1] - of[0])) + to[0]
    return result.astype(np.float32)


def drawn(scope: Scope, seed: int, samples: int, count: int) -> list[int]:
    """Append uniform numbers of each image, shape (samples, 1)."""
    assert scope.step is not None  # the caller has seen it
    result: list[int] = []
    seed, step = derive_seed(seed, scope.call), scope.step()
    for number in range(count):
        given = {"shape": (samples, 1), "key": derive_seed(seed, number)}
        result += scope.apply("random_uniform", (step,), given)
    return result


def traced(scope: Scope, call: Callable[..., Any], given: Sequence[int]) -> int:
    """Append the ops of a function of tensors without a batch, in float32."""
    builder = scope.builder
    starts = [start_of(builder.shape(each), builder.dtype(each)) for each in given]
    values = dict(zip(starts, given, strict=True))
    end = call(*starts)
    before, builder.compute_dtype = builder.compute_dtype, "float32"
    try:
        Scope(builder, scope.name, {}, training=False).trace(
            calls_to([end], values.keys()), values, {}
        )
    finally:
        builder.compute_dtype = before
    return values[end]
