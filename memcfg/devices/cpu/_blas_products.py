"""Matrix products and convolutions by NumPy's BLAS, in memory of the caller alone.

Owns their scratch and how they divide work. A convolution is a product of columns: of
some places of its output at a time, each of the pixels that its window sees there. The
columns are made in scratch, so that a step takes nothing from the heap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from memcfg.devices._contract import OperandSpec

    _Array = NDArray[Any]
    _Run = Callable[[Sequence[_Array], Sequence[_Array], _Array], None]

__all__ = ["PRODUCTS", "Product", "product_of"]

_COLUMN_BYTES = 4 * 2**20  # of columns at a time, if a place of the output has fewer
# With so few channels, copies are longer along places than along channels.
_GATHERED_CHANNELS, _SCATTERED_CHANNELS = 4, 16
_ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class Product:
    """What an op does with arrays and an array of scratch, of so many floats."""

    run: _Run
    scratch: int = 0


def product_of(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> Product | None:
    """Return how an op is computed here; None if it is not."""
    if any(spec.dtype != "float32" for spec in (*inputs, *outputs)):
        return None
    if op_type in _DENSE:
        return Product(_DENSE[op_type])
    if op_type == "matmul":
        return _matmul(attributes)
    if op_type in _CONVOLUTIONS and attributes["groups"] == 1:
        return _CONVOLUTIONS[op_type](attributes, inputs, outputs)
    return None


def _rows(x: _Array) -> _Array:
    """Return a matrix of the last axis' rows."""
    return x.reshape(-1, x.shape[-1])


def _dense(inputs: Sequence[_Array], outputs: Sequence[_Array], _: _Array) -> None:
    x, kernel = inputs
    np.matmul(_rows(x), kernel, out=_rows(outputs[0]))


def _dense_bias(inputs: Sequence[_Array], outputs: Sequence[_Array], _: _Array) -> None:
    x, kernel, bias = inputs
    y = _rows(outputs[0])
    np.matmul(_rows(x), kernel, out=y)
    np.add(y, bias, out=y)


def _dense_bias_relu(
    inputs: Sequence[_Array], outputs: Sequence[_Array], scratch: _Array
) -> None:
    _dense_bias(inputs, outputs, scratch)
    np.maximum(outputs[0], 0, out=outputs[0])


def _dense_kernel(
    inputs: Sequence[_Array], outputs: Sequence[_Array], _: _Array
) -> None:
    x, dy = map(_rows, inputs)
    np.matmul(x.T, dy, out=outputs[0])


def _dense_input(
    inputs: Sequence[_Array], outputs: Sequence[_Array], _: _Array
) -> None:
    kernel, dy = inputs
    np.matmul(_rows(dy), kernel.T, out=_rows(outputs[0]))


_DENSE: dict[str, _Run] = {
    "dense": _dense,
    "dense_bias": _dense_bias,
    "dense_bias_relu": _dense_bias_relu,
    "dense_gradient_kernel": _dense_kernel,
    "dense_gradient_input": _dense_input,
}


def _matmul(attributes: Mapping[str, Any]) -> Product:
    turns = [bool(attributes.get(f"transpose_{name}")) for name in "ab"]

    def run(inputs: Sequence[_Array], outputs: Sequence[_Array], _: _Array) -> None:
        a, b = (
            np.swapaxes(each, -1, -2) if turned else each
            for each, turned in zip(inputs, turns, strict=True)
        )
        y = outputs[0]
        if b.ndim == 2 and not turns[0]:  # one matrix for all
            a, y = _rows(a), _rows(y)
        np.matmul(a, b, out=y)

    return Product(run)


class _Columns:
    """The columns of a convolution over images or volumes, a part at a time."""

    def __init__(
        self,
        attributes: Mapping[str, Any],
        x: Sequence[int],
        kernel: Sequence[int],
        y: Sequence[int],
        few_channels: int,
    ) -> None:
        self.x, self.kernel, self.y = tuple(x), tuple(kernel), tuple(y)
        self._by_element = self.x[-1] <= few_channels
        self.taps, self.places = self.kernel[:-2], self.y[1:-1]
        self.depth = prod(self.kernel[:-1])  # elements of a column
        how = (attributes[key] for key in ("strides", "dilation", "padding"))
        self._axes = list(zip(self.x[1:-1], self.taps, *how, strict=True))
        self.is_plain = all(
            taps == stride == 1 and tuple(padding) == (0, 0)
            for _, taps, stride, _, padding in self._axes
        )
        self._is_inside = not any(any(padding) for *_, padding in self._axes)
        image = prod(self.places) * self.depth * _ITEM
        line = image // self.places[0]
        self._images = max(_COLUMN_BYTES // image, 1)
        self._lines = self.places[0]
        if self._images == 1 and image > _COLUMN_BYTES:
            self._lines = max(_COLUMN_BYTES // line, 1)
        self.count = min(self._images, self.x[0]) * self._lines
        self.count *= prod(self.places[1:])  # places at a time, at most
        self.floats = 0 if self.is_plain else self.count * self.depth

    def parts(self) -> Iterator[tuple[slice, slice]]:
        """Yield images, and lines of the first axis of places, of each part."""
        for image in range(0, self.x[0], self._images):
            images = slice(image, min(image + self._images, self.x[0]))
            for line in range(0, self.places[0], self._lines):
                yield images, slice(line, min(line + self._lines, self.places[0]))

    @property
    def is_whole(self) -> bool:
        """Whether there is one part."""
        return len(list(self.parts())) == 1

    def matrix(self, scratch: _Array, images: slice, lines: slice) -> _Array:
        """Return the columns of a part as rows of a matrix in scratch."""
        rows = (images.stop - images.start) * (lines.stop - lines.start)
        rows *= prod(self.places[1:])
        if self._by_element:
            return scratch[: rows * self.depth].reshape(self.depth, rows).T
        return scratch[: rows * self.depth].reshape(rows, self.depth)

    def gather(self, x: _Array, columns: _Array, images: slice, lines: slice) -> None:
        """Copy pixels to columns; what lies outside of an image is 0."""
        view = self._view(columns, images, lines)
        if self._is_inside and not self._by_element:
            view[...] = self._seen(x, images, lines)
            return
        for tap, inside, seen, is_full in self._windows(lines):
            target = view[self._of(tap)]
            if not is_full:
                target[...] = 0
            if seen is not None:
                target[inside] = self._ordered(x[(images, *seen)])

    def _seen(self, x: _Array, images: slice, lines: slice) -> _Array:
        """Return a view of the pixels of each window; all are inside of an image."""
        stride = self._axes[0][2]
        shape = (images.stop - images.start, lines.stop - lines.start, *self.places[1:])
        image, *axes, channel = x.strides
        steps = [step * axis[2] for step, axis in zip(axes, self._axes, strict=True)]
        apart = [step * axis[3] for step, axis in zip(axes, self._axes, strict=True)]
        return np.lib.stride_tricks.as_strided(
            x[images, lines.start * stride :],
            (*shape, *self.taps, self.x[-1]),
            (image, *steps, *apart, channel),
        )

    def scatter(self, columns: _Array, x: _Array, images: slice, lines: slice) -> None:
        """Add columns to the pixels that they were of."""
        view = self._view(columns, images, lines)
        for tap, inside, seen, _ in self._windows(lines):
            if seen is not None:
                pixels = self._ordered(x[(images, *seen)])
                np.add(pixels, view[self._of(tap)][inside], out=pixels)

    def _view(self, columns: _Array, images: slice, lines: slice) -> _Array:
        places = (lines.stop - lines.start, *self.places[1:])
        outer = (images.stop - images.start, *places)
        inner = (*self.taps, self.x[-1])
        if self._by_element:
            return columns.T.reshape(*inner, *outer)
        return columns.reshape(*outer, *inner)

    def _of(self, tap: tuple[int, ...]) -> Any:
        """Return the index of a tap's elements in columns."""
        if self._by_element:
            return tap
        return (*(slice(None),) * (len(self.places) + 1), *tap)

    def _ordered(self, pixels: _Array) -> _Array:
        """Return a view with channels where a tap of the columns has them.

        NumPy's loops follow the order of axes where that of strides differs.
        """
        return np.moveaxis(pixels, -1, 0) if self._by_element else pixels

    def _windows(
        self, lines: slice
    ) -> Iterator[tuple[tuple[int, ...], Any, Any, bool]]:
        """Yield each tap: the places inside of an image, their pixels, if all are."""
        spans = [lines, *(slice(0, count) for count in self.places[1:])]
        outer = (slice(None),) * (1 + self._by_element)  # images, channels
        for tap in np.ndindex(*self.taps):
            inside, seen, is_full, is_empty = [], [], True, False
            for at, span, (size, _, stride, apart, padding) in zip(
                tap, spans, self._axes, strict=True
            ):
                shift = at * apart - padding[0]  # pixel of place 0
                first = max(span.start, -(shift // stride))
                last = min(span.stop, (size - 1 - shift) // stride + 1)
                is_empty |= first >= last
                is_full &= (first, last) == (span.start, span.stop)
                inside.append(slice(first - span.start, last - span.start))
                low = first * stride + shift
                seen.append(slice(low, low + (last - first - 1) * stride + 1, stride))
            pixels = None if is_empty else tuple(seen)
            yield tap, (*outer, *inside), pixels, is_full and not is_empty


def _forward(
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> Product:
    x, kernel, y = (spec.shape for spec in (*inputs, *outputs))
    columns = _Columns(attributes, x, kernel, y, few_channels=_GATHERED_CHANNELS)

    def run(
        inputs: Sequence[_Array], outputs: Sequence[_Array], scratch: _Array
    ) -> None:
        x, kernel = inputs
        matrix = _rows(kernel)
        if columns.is_plain:
            np.matmul(_rows(x), matrix, out=_rows(outputs[0]))
            return
        for part in columns.parts():
            made = columns.matrix(scratch, *part)
            columns.gather(x, made, *part)
            np.matmul(made, matrix, out=_rows(outputs[0][part]))

    return Product(run, columns.floats)


def _to_kernel(
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> Product:
    x, dy = (spec.shape for spec in inputs)
    columns = _Columns(
        attributes, x, outputs[0].shape, dy, few_channels=_GATHERED_CHANNELS
    )
    own = 0 if columns.is_plain or columns.is_whole else prod(outputs[0].shape)

    def run(
        inputs: Sequence[_Array], outputs: Sequence[_Array], scratch: _Array
    ) -> None:
        x, dy = inputs
        total = _rows(outputs[0])
        if columns.is_plain:
            np.matmul(_rows(x).T, _rows(dy), out=total)
            return
        piece = scratch[columns.floats :][:own].reshape(total.shape) if own else total
        for number, part in enumerate(columns.parts()):
            made = columns.matrix(scratch, *part)
            columns.gather(x, made, *part)
            target = piece if number else total
            np.matmul(made.T, _rows(dy[part]), out=target)
            if number:
                np.add(total, piece, out=total)

    return Product(run, columns.floats + own)


def _to_input(
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> Product:
    kernel, dy = (spec.shape for spec in inputs)
    columns = _Columns(
        attributes, outputs[0].shape, kernel, dy, few_channels=_SCATTERED_CHANNELS
    )

    def run(
        inputs: Sequence[_Array], outputs: Sequence[_Array], scratch: _Array
    ) -> None:
        kernel, dy = inputs
        matrix, dx = _rows(kernel).T, outputs[0]
        if columns.is_plain:
            np.matmul(_rows(dy), matrix, out=_rows(dx))
            return
        dx[...] = 0
        for part in columns.parts():
            made = columns.matrix(scratch, *part)
            # Its rows or its columns are contiguous: `out` must be, or NumPy copies.
            if made.flags.c_contiguous:
                np.matmul(_rows(dy[part]), matrix, out=made)
            else:
                np.matmul(matrix.T, _rows(dy[part]).T, out=made.T)
            columns.scatter(made, dx, *part)

    return Product(run, columns.floats)


_CONVOLUTIONS = {
    f"conv{rank}d{name}": make
    for rank in (2, 3)
    for name, make in (
        ("", _forward),
        ("_gradient_kernel", _to_kernel),
        ("_gradient_input", _to_input),
    )
}

PRODUCTS = frozenset({*_DENSE, *_CONVOLUTIONS, "matmul"})
"""The types of ops that BLAS computes, of float32 and without groups."""
