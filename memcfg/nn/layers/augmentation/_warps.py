"""`RandomPerspective` and `RandomElasticTransform`: images seen through a lens."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import real
from memcfg.nn.layers.augmentation._patches import (
    blurred,
    chosen,
    count_of,
    per_image,
)
from memcfg.nn.layers.images._affine import (
    FILL_MODES,
    check_modes,
    sampled,
    transformed,
)
from memcfg.nn.layers.images._image_layer import (
    _ImageLayer,
    factor_of,
    floats,
    value_range_of,
)


class RandomPerspective(_ImageLayer):
    """Move the corners of images at random, on arrays.

    Parameters
    ----------
    factor : float or (float, float), default 1.0
        The range of the probability of an image, or its upper bound, in ``[0, 1]``.
    scale : float, default 1.0
        Coordinates of corners change by up to half of this fraction, in ``[0, 1]``.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    fill_value : float, default 0.0
        The value of pixels beyond the border.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.
    """

    __slots__ = ("factor", "fill_value", "interpolation", "scale")

    def __init__(
        self,
        factor: Any = 1.0,
        scale: float = 1.0,
        interpolation: str = "bilinear",
        fill_value: float = 0.0,
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "RandomPerspective"
        self.factor = factor_of(factor, f"{kind}: factor", 0.0)
        self.scale = real(scale, f"{kind}: scale")
        if not 0 <= self.scale <= 1:
            raise ValueError(f"{kind}: scale must be in [0, 1], not {scale!r}")
        check_modes("constant", interpolation, kind)
        self.interpolation = interpolation
        self.fill_value = real(fill_value, f"{kind}: fill_value")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw where the corners go, as (x, y) in pixels."""
        if not training:
            return None
        generator, shape = self._generator(seed), np.shape(data)
        count = count_of(data)
        right, bottom = shape[-2] - 1, shape[-3] - 1
        corners = np.array(
            [[0, 0], [right, 0], [0, bottom], [right, bottom]], np.float32
        )
        start = np.repeat(corners[None], count, axis=0)
        change = generator.uniform(-self.scale / 2, self.scale / 2, start.shape)
        return {
            "apply_perspective": chosen(generator, self.factor, count),
            "start_points": start,
            "end_points": start + start * change.astype(np.float32),
            "input_shape": shape,
        }

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Read pixels where they come from."""
        return self._moved(images, transformation, self.interpolation, training)

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        return self._moved(masks, transformation, "nearest", training)

    def _moved(
        self, images: Any, transformation: Any, interpolation: str, training: bool
    ) -> np.ndarray:
        result = floats(images)
        if not training or transformation is None or 1 in result.shape[-3:-1]:
            return result  # the corners of one row or column span no plane
        matrices = _homographies(
            np.asarray(transformation["end_points"], np.float32),
            np.asarray(transformation["start_points"], np.float32),
        )
        moved = transformed(
            result, matrices, interpolation, "constant", self.fill_value
        )
        which = per_image(transformation["apply_perspective"], result)
        return np.where(which, moved, result)


def _homographies(of: np.ndarray, to: np.ndarray) -> np.ndarray:
    """Return the 8 numbers of each projection that takes four points to others."""
    x, y = of[..., 0], of[..., 1]
    rows = np.zeros((*x.shape, 2, 8), np.float32)  # image, point, coordinate, number
    for coordinate in (0, 1):
        first = 3 * coordinate
        rows[..., coordinate, first : first + 3] = np.stack(
            [x, y, np.ones_like(x)], axis=-1
        )
        rows[..., coordinate, 6:] = -to[..., coordinate, None] * of
    found = np.linalg.solve(
        rows.reshape(-1, 8, 8).astype(np.float64), to.reshape(-1, 8, 1)
    )
    return np.asarray(found[..., 0], np.float32)


class RandomElasticTransform(_ImageLayer):
    """Bend images at random, on arrays.

    Each pixel is read at a place that is moved by smooth noise. With f drawn from
    `scale`, the noise has a deviation of ``0.05 f`` of the shorter side before it is
    smoothed over as much, and is multiplied by ``0.1 f`` of the longer one.

    Parameters
    ----------
    factor : float or (float, float), default 1.0
        The range of the probability of an image, or its upper bound, in ``[0, 1]``.
    scale : float or (float, float), default 1.0
        The range of f, or its upper bound, in ``[0, 1]``.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How places between pixels are read.
    fill_mode : {"reflect", "constant", "nearest", "wrap", "mirror"}, optional
        What pixels beyond the border are, by default ``"reflect"``. ``"mirror"`` does
        not repeat the border.
    fill_value : float, default 0.0
        The value for ``"constant"``.
    value_range : (float, float), default (0, 255)
        The range to which results are clipped.
    seed : int, optional
        The seed, by default drawn from `set_random_seed`'s sequence.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or out of range.

    References
    ----------
    Simard, Steinkraus and Platt, "Best practices for convolutional neural networks
    applied to visual document analysis", ICDAR 2003.
    """

    __slots__ = (
        "factor",
        "fill_mode",
        "fill_value",
        "interpolation",
        "scale",
        "value_range",
    )

    def __init__(
        self,
        factor: Any = 1.0,
        scale: Any = 1.0,
        interpolation: str = "bilinear",
        fill_mode: str = "reflect",
        fill_value: float = 0.0,
        value_range: Any = (0, 255),
        seed: int | None = None,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "RandomElasticTransform"
        self.factor = factor_of(factor, f"{kind}: factor", 0.0)
        self.scale = factor_of(scale, f"{kind}: scale", 0.0)
        modes = (*FILL_MODES, "mirror")
        if fill_mode not in modes:
            raise unknown("fill_mode", str(fill_mode), modes, f"{kind}: ")
        check_modes("constant", interpolation, kind)
        self.interpolation = interpolation
        self.fill_mode = fill_mode
        self.fill_value = real(fill_value, f"{kind}: fill_value")
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        self._begin(name, data_format, seed)

    def get_random_transformation(
        self, data: Any, training: bool = True, seed: int | None = None
    ) -> dict[str, Any] | None:
        """Draw which images are bent, how much, and the seed of the noise."""
        if not training or not self.scale[1] or not self.factor[1]:
            return None
        generator = self._generator(seed)
        return {
            "apply_transform": chosen(generator, self.factor, count_of(data)),
            "distortion_factor": np.float32(generator.uniform(*self.scale)),
            "seed": int(generator.integers(2**31)),
        }

    def transform_images(
        self, images: Any, transformation: Any, training: bool = True
    ) -> np.ndarray:
        """Bend images."""
        bent = self._bent(images, transformation, self.interpolation, training)
        if not training or transformation is None:
            return bent
        clipped: np.ndarray = np.clip(bent, *self.value_range)
        return clipped

    def _transform_masks(
        self, masks: np.ndarray, transformation: Any, *, training: bool
    ) -> np.ndarray:
        return self._bent(masks, transformation, "nearest", training)

    def _bent(
        self, images: Any, transformation: Any, interpolation: str, training: bool
    ) -> np.ndarray:
        result = floats(images)
        if not training or transformation is None:
            return result
        batch = result if result.ndim == 4 else result[None]
        height, width = batch.shape[1:3]
        factor = float(transformation["distortion_factor"])
        noise = np.random.default_rng(transformation["seed"]).standard_normal(
            (2, *batch.shape[:3]), np.float32
        )
        moves = smooth_moves(noise, factor)
        rows, columns = np.mgrid[:height, :width].astype(np.float32)
        bent = np.empty_like(batch)
        for image, across, down, target in zip(batch, *moves, bent, strict=True):
            place = rows + down, columns + across
            target[...] = sampled(
                image, place, interpolation, self.fill_mode, self.fill_value
            )
        which = per_image(transformation["apply_transform"], result)
        return np.where(which, bent.reshape(result.shape), result)


def smooth_moves(noise: np.ndarray, factor: float) -> np.ndarray:
    """Return how many pixels each moves, from normal noise (2, n, height, width)."""
    height, width = noise.shape[2:]
    longest = max(height, width) * 0.1 * factor
    sigma = min(height, width) * 0.05 * factor
    size = int(6 * sigma) | 1
    smooth = blurred((noise * sigma)[..., None], (size, size), (sigma, sigma))
    result: np.ndarray = longest * smooth[..., 0]
    return result
