"""`RandomRotation`, `RandomZoom`, `RandomTranslation` and `RandomShear`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import real
from memcfg.nn.layers._layer import OPERATIONS, Scope
from memcfg.nn.layers.images._affine import check_modes, transformed
from memcfg.nn.layers.images._image_layer import (
    _ImageLayer,
    drawn,
    factor_of,
    floats,
    traced,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class _AffineLayer(_ImageLayer):
    """The base of layers that read each pixel at another place."""

    __slots__ = ("fill_mode", "fill_value", "interpolation")

    fill_mode: str
    fill_value: float
    interpolation: str

    def _fill(self, fill_mode: str, interpolation: str, fill_value: float) -> None:
        """Set the arguments that all have."""
        what = type(self).__name__
        check_modes(fill_mode, interpolation, what)
        self.fill_mode = fill_mode
        self.interpolation = interpolation
        self.fill_value = real(fill_value, f"{what}: fill_value")

    def _numbers(self, transformation: Any, shape: tuple[int, ...]) -> list[Any]:
        """Return the numbers of each image, shape (n, 1), that say how it is moved."""
        raise NotImplementedError

    def _ranges(self, height: int, width: int) -> list[tuple[float, float]]:
        """Return the ranges of what is drawn for each image."""
        raise NotImplementedError

    def _numbers_of_draws(self, drawn: Sequence[Any]) -> list[Any]:
        """Return the numbers of each image for what a model has drawn."""
        return list(drawn)

    def _places(self, numbers: Sequence[Any], height: int, width: int) -> list[Any]:
        """Return the 8 numbers of the places that pixels are read at."""
        raise NotImplementedError

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the ops when training, else nothing."""
        (x,) = inputs
        if not scope.training or scope.step is None:
            return x
        samples, height, width, _ = scope.builder.shape(x)
        ranges = self._ranges(height, width)
        draws = drawn(scope, self._seed, samples, len(ranges))

        def moved(images: Any, *uniform: Any) -> Any:
            numbers = self._numbers_of_draws(
                [
                    u * (upper - lower) + lower
                    for u, (lower, upper) in zip(uniform, ranges, strict=True)
                ]
            )
            columns = self._places(numbers, height, width)
            row = OPERATIONS["concatenate"](columns, axis=1)
            return OPERATIONS["affine_transform"](
                images, row, self.interpolation, self.fill_mode, self.fill_value
            )

        return traced(scope, moved, (x, *draws))

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Move pixels."""
        return self._moved(images, transformation, self.interpolation, training)

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        return self._moved(masks, transformation, "nearest", training)

    def _moved(
        self, images: Any, transformation: Any, interpolation: str, training: bool
    ) -> np.ndarray:
        result = floats(images)
        if not training or transformation is None:
            return result
        height, width = result.shape[-3:-1]
        numbers = [
            np.asarray(each, np.float32).reshape(-1, 1)
            for each in self._numbers(transformation, result.shape)
        ]
        columns = self._places(numbers, height, width)
        matrices = np.concatenate(np.broadcast_arrays(*columns), axis=1)
        return transformed(
            result, matrices, interpolation, self.fill_mode, self.fill_value
        )

    def _uniform(
        self, data: Any, ranges: list[tuple[float, float]], seed: int | None
    ) -> list[np.ndarray]:
        """Draw numbers of shape (images, 1), or (1, 1) for a single image."""
        shape = np.shape(data)
        samples = shape[0] if len(shape) == 4 else 1
        generator = self._generator(seed)
        return [
            generator.uniform(*bounds, (samples, 1)).astype(np.float32)
            for bounds in ranges
        ]


class RandomRotation(_AffineLayer):
    """Turn images around their middle at random while training.

    Parameters
    ----------
    factor : float or (float, float)
        The largest turn either way, or the range of turns, as a fraction of a full one;
        positive is counter-clockwise.
    fill_mode : {"reflect", "constant", "nearest", "wrap"}, default "reflect"
        What pixels beyond the border are.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    fill_value : float, default 0.0
        The value for ``"constant"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.
    """

    __slots__ = ("factor",)

    def __init__(
        self,
        factor: Any,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.factor = factor_of(factor, "RandomRotation: factor")
        self._fill(fill_mode, interpolation, fill_value)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw angles in degrees."""
        if not training:
            return None
        height, width = np.shape(data)[-3:-1]
        (angles,) = self._uniform(data, self._ranges(height, width), seed)
        columns = self._places(self._turns(np.deg2rad(angles), np), height, width)
        matrix = np.concatenate(np.broadcast_arrays(*columns), axis=1)
        return {"angle": angles[:, 0], "rotation_matrix": matrix.astype(np.float32)}

    def _ranges(self, height: int, width: int) -> list[tuple[float, float]]:
        del height, width
        return [(self.factor[0] * 360, self.factor[1] * 360)]

    @staticmethod
    def _turns(angles: Any, functions: Any) -> list[Any]:
        return [functions.cos(angles), functions.sin(angles)]

    def _numbers(self, transformation: Any, shape: tuple[int, ...]) -> list[Any]:
        del shape
        angles = np.deg2rad(np.asarray(transformation["angle"], np.float32))
        return self._turns(angles, np)

    def _numbers_of_draws(self, drawn: Sequence[Any]) -> list[Any]:
        angles = drawn[0] * (np.pi / 180)
        return [OPERATIONS["cos"](angles), OPERATIONS["sin"](angles)]

    def _places(self, numbers: Sequence[Any], height: int, width: int) -> list[Any]:
        (cos, sin), none = numbers, numbers[0] * 0
        x, y = (width - 1) / 2, (height - 1) / 2
        left, top = x - (cos * x - sin * y), y - (sin * x + cos * y)
        return [cos, -sin, left, sin, cos, top, none, none]


class RandomZoom(_AffineLayer):
    """Enlarge or shrink images at random while training.

    Parameters
    ----------
    height_factor : float or (float, float)
        The largest change of the height, or its range; negative enlarges.
    width_factor : float or (float, float), optional
        That of the width. None: images keep their aspect ratio.
    fill_mode : {"reflect", "constant", "nearest", "wrap"}, default "reflect"
        What pixels beyond the border are.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    fill_value : float, default 0.0
        The value for ``"constant"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.
    """

    __slots__ = ("height_factor", "width_factor")

    def __init__(
        self,
        height_factor: Any,
        width_factor: Any = None,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.height_factor = factor_of(height_factor, "RandomZoom: height_factor")
        self.width_factor = (
            None
            if width_factor is None
            else factor_of(width_factor, "RandomZoom: width_factor")
        )
        self._fill(fill_mode, interpolation, fill_value)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw the factors of both axes."""
        if not training:
            return None
        height, width = np.shape(data)[-3:-1]
        drawn = self._uniform(data, self._ranges(height, width), seed)
        return {
            "height_zoom": drawn[0],
            "width_zoom": drawn[-1],
            "input_shape": np.shape(data),
        }

    def _ranges(self, height: int, width: int) -> list[tuple[float, float]]:
        del height, width
        factors = [each for each in (self.height_factor, self.width_factor) if each]
        return [(1 + lower, 1 + upper) for lower, upper in factors]

    def _numbers(self, transformation: Any, shape: tuple[int, ...]) -> list[Any]:
        del shape
        return [transformation["height_zoom"], transformation["width_zoom"]]

    def _places(self, numbers: Sequence[Any], height: int, width: int) -> list[Any]:
        down, across = numbers[0], numbers[-1]
        left, top = (width - 1) / 2 * (1 - across), (height - 1) / 2 * (1 - down)
        none = down * 0
        return [across, none, left, none, down, top, none, none]


class RandomTranslation(_AffineLayer):
    """Move images at random while training.

    Parameters
    ----------
    height_factor, width_factor : float or (float, float)
        The largest move either way, or its range, as a fraction of the height or width;
        positive is down or right.
    fill_mode : {"reflect", "constant", "nearest", "wrap"}, default "reflect"
        What pixels beyond the border are.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    fill_value : float, default 0.0
        The value for ``"constant"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.
    """

    __slots__ = ("height_factor", "width_factor")

    def __init__(
        self,
        height_factor: Any,
        width_factor: Any,
        fill_mode: str = "reflect",
        interpolation: str = "bilinear",
        seed: int | None = None,
        fill_value: float = 0.0,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        what = "RandomTranslation"
        self.height_factor = factor_of(height_factor, f"{what}: height_factor")
        self.width_factor = factor_of(width_factor, f"{what}: width_factor")
        self._fill(fill_mode, interpolation, fill_value)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw moves in pixels."""
        if not training:
            return None
        height, width = np.shape(data)[-3:-1]
        down, right = self._uniform(data, self._ranges(height, width), seed)
        moves = np.concatenate([right, down], axis=1)
        return {"translations": moves, "input_shape": np.shape(data)}

    def _ranges(self, height: int, width: int) -> list[tuple[float, float]]:
        factors = (self.height_factor, height), (self.width_factor, width)
        return [(low * length, high * length) for (low, high), length in factors]

    def _numbers(self, transformation: Any, shape: tuple[int, ...]) -> list[Any]:
        del shape
        moves = np.asarray(transformation["translations"], np.float32).reshape(-1, 2)
        return [moves[:, 1], moves[:, 0]]

    def _places(self, numbers: Sequence[Any], height: int, width: int) -> list[Any]:
        del height, width
        (down, right), none = numbers, numbers[0] * 0
        one = none + 1
        return [one, none, -right, none, one, -down, none, none]


class RandomShear(_AffineLayer):
    """Shear images at random while training.

    Parameters
    ----------
    x_factor, y_factor : float or (float, float), default 0.0
        The range of the slope along each axis, or its bound either way. One way is
        drawn for both axes of an image.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    fill_mode : {"reflect", "constant", "nearest", "wrap"}, default "reflect"
        What pixels beyond the border are.
    fill_value : float, default 0.0
        The value for ``"constant"``.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.
    """

    __slots__ = ("x_factor", "y_factor")

    def __init__(
        self,
        x_factor: Any = 0.0,
        y_factor: Any = 0.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        data_format: str | None = None,
        seed: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.x_factor = factor_of(x_factor, "RandomShear: x_factor")
        self.y_factor = factor_of(y_factor, "RandomShear: y_factor")
        self._fill(fill_mode, interpolation, fill_value)
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw slopes along x and y."""
        if not training:
            return None
        height, width = np.shape(data)[-3:-1]
        drawn = self._uniform(data, self._ranges(height, width), seed)
        slopes = np.concatenate(self._numbers_of_draws(drawn), axis=1)
        return {"shear_factor": slopes, "input_shape": np.shape(data)}

    def _ranges(self, height: int, width: int) -> list[tuple[float, float]]:
        del height, width
        return [(0.0, 1.0), self.x_factor, self.y_factor]

    def _numbers(self, transformation: Any, shape: tuple[int, ...]) -> list[Any]:
        del shape
        slopes = np.asarray(transformation["shear_factor"], np.float32).reshape(-1, 2)
        return [slopes[:, 0], slopes[:, 1]]

    def _numbers_of_draws(self, drawn: Sequence[Any]) -> list[Any]:
        way, along_x, along_y = drawn
        sign = 1.0 - 2.0 * (way > 0.5)
        return [along_x * sign, along_y * sign]

    def _places(self, numbers: Sequence[Any], height: int, width: int) -> list[Any]:
        del height, width
        (along_x, along_y), none = numbers, numbers[0] * 0
        one = none + 1
        return [one, along_x, none, along_y, one, none, none, none]
