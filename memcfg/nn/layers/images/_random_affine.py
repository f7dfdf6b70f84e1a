"""`RandomRotation`, `RandomZoom`, `RandomTranslation` and `RandomShear`."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import real
from memcfg.nn.layers.images._affine import check_modes, transformed
from memcfg.nn.layers.images._image_layer import _ImageLayer, factor_of, floats


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

    def _matrices(self, shape: tuple[int, ...], transformation: Any) -> np.ndarray:
        """Return the places that the pixels of each image are read at."""
        raise NotImplementedError

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
        matrices = self._matrices(result.shape, transformation)
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
    """Turn images around their middle at random, on arrays.

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
        lower, upper = self.factor
        (angles,) = self._uniform(data, [(lower * 360, upper * 360)], seed)
        angle = angles[:, 0]
        return {"angle": angle, "rotation_matrix": _rotations(np.shape(data), angle)}

    def _matrices(self, shape: tuple[int, ...], transformation: Any) -> np.ndarray:
        return _rotations(shape, transformation["angle"])


class RandomZoom(_AffineLayer):
    """Enlarge or shrink images at random, on arrays.

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
        factors = [each for each in (self.height_factor, self.width_factor) if each]
        drawn = self._uniform(data, [(1 + a, 1 + b) for a, b in factors], seed)
        return {
            "height_zoom": drawn[0],
            "width_zoom": drawn[-1],
            "input_shape": np.shape(data),
        }

    def _matrices(self, shape: tuple[int, ...], transformation: Any) -> np.ndarray:
        zooms = [
            np.asarray(transformation[name], np.float32).reshape(-1, 1)
            for name in ("width_zoom", "height_zoom")
        ]
        height, width = shape[-3:-1]
        zero = np.zeros_like(zooms[0])
        left, top = (width - 1) / 2 * (1 - zooms[0]), (height - 1) / 2 * (1 - zooms[1])
        columns = [zooms[0], zero, left, zero, zooms[1], top, zero, zero]
        return np.concatenate(columns, axis=1)


class RandomTranslation(_AffineLayer):
    """Move images at random, on arrays.

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
        down, right = self._uniform(data, [self.height_factor, self.width_factor], seed)
        moves = np.concatenate([right * width, down * height], axis=1)
        return {"translations": moves, "input_shape": np.shape(data)}

    def _matrices(self, shape: tuple[int, ...], transformation: Any) -> np.ndarray:
        moves = np.asarray(transformation["translations"], np.float32)
        zero = np.zeros_like(moves[:, :1])
        one = zero + 1
        columns = [one, zero, -moves[:, :1], zero, one, -moves[:, 1:], zero, zero]
        return np.concatenate(columns, axis=1)


class RandomShear(_AffineLayer):
    """Shear images at random, on arrays.

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
        ranges = [(0.0, 1.0), self.x_factor, self.y_factor]
        way, along_x, along_y = self._uniform(data, ranges, seed)
        slopes = np.concatenate([along_x, along_y], axis=1)
        slopes = np.where(way > 0.5, -slopes, slopes)
        return {"shear_factor": slopes, "input_shape": np.shape(data)}

    def _matrices(self, shape: tuple[int, ...], transformation: Any) -> np.ndarray:
        slopes = np.asarray(transformation["shear_factor"], np.float32)
        zero = np.zeros_like(slopes[:, :1])
        one = zero + 1
        columns = [one, slopes[:, :1], zero, slopes[:, 1:], one, zero, zero, zero]
        return np.concatenate(columns, axis=1)


def _rotations(shape: tuple[int, ...], degrees: Any) -> np.ndarray:
    """Return the matrices of turns around the middle."""
    angles = np.deg2rad(np.asarray(degrees, np.float32)).reshape(-1, 1)
    cos, sin = np.cos(angles), np.sin(angles)
    x, y = (shape[-2] - 1) / 2, (shape[-3] - 1) / 2
    left, top = x - (cos * x - sin * y), y - (sin * x + cos * y)
    zero = np.zeros_like(cos)
    columns = [cos, -sin, left, sin, cos, top, zero, zero]
    return np.concatenate(columns, axis=1).astype(np.float32)
