"""`Equalization` of images: by one histogram, or by those of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.layers.images._image_layer import floats, scaled, value_range_of
from memcfg.nn.layers.images._random_color import _ColorLayer

_BYTES = (0.0, 255.0)
_LEVELS = 256


class Equalization(_ColorLayer):
    """Spread the values of each channel evenly over their range, on arrays.

    The histogram is of all images of a call: pass one image at a time where each is to
    have its own.

    Parameters
    ----------
    value_range : (float, float), default (0, 255)
        The range of values.
    bins : int, default 256
        The number of bins of the histogram.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.
    """

    __slots__ = ("bins",)

    def __init__(
        self,
        value_range: Any = (0, 255),
        bins: int = 256,
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.value_range = value_range_of(value_range, "Equalization: value_range")
        self.bins = integer(bins, "Equalization: bins")
        self._begin(name, data_format)

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Replace values by the share of smaller ones; a single bin stays."""
        del transformation
        result = floats(images)
        if not training:
            return result
        values = scaled(result, self.value_range, _BYTES)
        channels = [self._equalized(values[..., i]) for i in range(values.shape[-1])]
        return scaled(np.stack(channels, axis=-1), _BYTES, self.value_range)

    def _equalized(self, values: np.ndarray) -> np.ndarray:
        last = self.bins - 1
        places = np.clip((values * last / 255).astype(np.int32), 0, last)
        counts = np.bincount(places.ravel(), minlength=self.bins)
        if np.count_nonzero(counts) <= 1:
            return values
        total = np.cumsum(counts)
        least = total[np.argmax(total > 0)]
        more = ((total - least) * 255).astype(np.float32)
        shares = more / np.float32(total[-1] - least)
        table = np.clip(np.round(shares), *_BYTES)
        read = np.clip(values / np.float32(255) * last, 0, last).astype(np.int32)
        equalized: np.ndarray = table[read]
        return equalized


class ContrastLimitedAdaptiveHistogramEqualization(_ColorLayer):
    """Spread the values of tiles of each channel over their range, on arrays.

    A pixel is equalized by the four tiles around it, by how near each is. The results
    have the type of the images.

    Parameters
    ----------
    value_range : (float, float), default (0, 255)
        The range of values.
    clip_limit : float, default 4.0
        The largest count of a bin as a multiple of the mean; what is more is shared by
        all bins. 0 does not limit.
    tile_grid_size : (int, int), default (8, 8)
        The number of rows and columns of tiles.
    data_format : str, optional
        Must be ``"channels_last"`` or None.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    References
    ----------
    Zuiderveld, "Contrast limited adaptive histogram equalization", Graphics Gems IV,
    1994.
    """

    __slots__ = ("clip_limit", "tile_grid_size")

    def __init__(
        self,
        value_range: Any = (0, 255),
        clip_limit: float = 4.0,
        tile_grid_size: Any = (8, 8),
        data_format: str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        kind = "ContrastLimitedAdaptiveHistogramEqualization"
        self.value_range = value_range_of(value_range, f"{kind}: value_range")
        self.clip_limit = real(clip_limit, f"{kind}: clip_limit")
        what = f"{kind}: tile_grid_size"
        if not isinstance(tile_grid_size, tuple | list) or len(tile_grid_size) != 2:
            raise ValueError(f"{what} is a pair of integers, not {tile_grid_size!r}")
        rows, columns = (integer(each, what) for each in tile_grid_size)
        self.tile_grid_size = rows, columns
        self._begin(name, data_format)

    def transform_images(
        self, images: Any, transformation: Any = None, training: bool = True
    ) -> np.ndarray:
        """Equalize tiles, also where not training."""
        del transformation, training
        given = np.asarray(images)
        values = scaled(floats(given), self.value_range, _BYTES)
        batch = values if values.ndim == 4 else values[None]
        result = self._equalized(batch).reshape(values.shape)
        return scaled(result, _BYTES, self.value_range).astype(given.dtype)

    def _equalized(self, images: np.ndarray) -> np.ndarray:
        height, width = images.shape[1:3]
        sizes = [
            -(-size // count)
            for size, count in zip((height, width), self.tile_grid_size, strict=True)
        ]
        more = [
            (0, size * count - length)
            for size, count, length in zip(
                sizes, self.tile_grid_size, (height, width), strict=True
            )
        ]
        wide = np.pad(images, [(0, 0), *more, (0, 0)], mode="symmetric")
        levels = np.clip(wide, *_BYTES).astype(np.int64)
        tables = self._tables(levels, sizes)
        ways = [
            _around(size, count)
            for size, count in zip(sizes, self.tile_grid_size, strict=True)
        ]
        sample = np.arange(len(images))[:, None, None, None]
        channel = np.arange(images.shape[3])
        total = np.zeros(images.shape, np.float32)
        levels = levels[:, :height, :width]
        for row, down in ways[0]:
            for column, across in ways[1]:
                y = row[:height, None, None]
                x = column[None, :width, None]
                weight = down[:height, None, None] * across[None, :width, None]
                total += weight * tables[sample, y, x, channel, levels]
        return total

    def _tables(self, levels: np.ndarray, sizes: list[int]) -> np.ndarray:
        """Return what each level of each tile becomes: (n, rows, columns, channels)."""
        rows, columns = self.tile_grid_size
        height, width = sizes
        count, channels = len(levels), levels.shape[3]
        tiles = levels.reshape(count, rows, height, columns, width, channels)
        tiles = tiles.transpose(0, 1, 3, 5, 2, 4).reshape(-1, height * width)
        first = np.arange(len(tiles))[:, None] * _LEVELS
        found = np.bincount((first + tiles).ravel(), minlength=len(tiles) * _LEVELS)
        counts = found.reshape(-1, _LEVELS).astype(np.float32)
        if self.clip_limit > 0:
            limit = np.float32(self.clip_limit * (height * width) / _LEVELS)
            kept = np.minimum(counts, limit)
            counts = kept + (counts - kept).sum(-1, keepdims=True) / _LEVELS
        total = np.cumsum(counts, axis=-1)
        least = total.min(axis=-1, keepdims=True)
        most = height * width - least
        table = (total - least) * 255 / np.where(most == 0, 1, most)
        shape = (count, rows, columns, channels, _LEVELS)
        result: np.ndarray = np.clip(table, *_BYTES).astype(np.float32)
        return result.reshape(shape)


def _around(size: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the tiles before and after each pixel of an axis, with their weights."""
    place = (np.arange(size * count, dtype=np.float32) - size / 2) / np.float32(size)
    before = np.floor(place)
    part = place - before
    first = before.astype(np.int64)
    return [
        (np.clip(first, 0, count - 1), 1 - part),
        (np.clip(first + 1, 0, count - 1), part),
    ]
