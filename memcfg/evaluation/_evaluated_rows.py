"""Labels and predictions of a batch as rows, read in blocks of bounded size."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Block", "EvaluatedRows"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_BLOCK = 1 << 16  # numbers of a block


class Block(NamedTuple):
    """Rows that count: a row is a sample, or a time step of one."""

    labels: Floats  # (rows, columns), or (rows,) for the indices of classes
    predictions: Floats  # (rows, columns)
    weights: Floats  # (rows,), or (rows, columns) if outputs have masks of their own

    @property
    def by_output(self) -> Floats:
        """The weights of each output, (rows, columns)."""
        if self.weights.ndim == 2:
            return self.weights
        return np.broadcast_to(self.weights[:, None], self.predictions.shape)


class EvaluatedRows:
    """The rows of a batch, in blocks; shapes are checked at once, values as read.

    Parameters
    ----------
    labels, predictions, mask, sample_weight : array_like
        As of `Evaluator.eval`; the last axis of predictions are outputs.
    indices : bool
        Whether labels may be the indices of classes.
    by_output : bool
        Whether masks and weights may have a number for each output.
    """

    def __init__(
        self,
        labels: Any,
        predictions: Any,
        mask: Any,
        sample_weight: Any,
        *,
        indices: bool,
        by_output: bool,
    ) -> None:
        given = _numbers(predictions, "predictions")
        if not given.ndim or (given.ndim > 1 and not given.shape[-1]):
            raise ValueError(
                "predictions have an axis of samples and one of outputs, got shape "
                f"{given.shape}"
            )
        shape = (*given.shape, 1) if given.ndim == 1 else given.shape
        lead, self.columns = shape[:-1], shape[-1]
        self.count = prod(lead)  # rows, masked ones included
        self.weighted = sample_weight is not None
        self._predictions = given.reshape(self.count, self.columns)
        self._labels = self._shaped(_numbers(labels, "labels"), lead, indices)
        wide = shape if by_output else None
        self._mask = _spread(mask, "mask", lead, wide)
        self._weight = _spread(sample_weight, "sample_weight", lead, wide)
        self._step = max(_BLOCK // self.columns, 1)

    def _shaped(self, labels: Array, lead: tuple[int, ...], indices: bool) -> Array:
        shape = (*lead, self.columns)
        if self.columns > 1 and indices and labels.shape in (lead, (*lead, 1)):
            return labels.reshape(self.count)
        if labels.shape == shape or (self.columns == 1 and labels.shape == lead):
            return labels.reshape(self.count, self.columns)
        several = f", or {lead} for indices of classes" if indices else ""
        raise ValueError(
            f"labels have shape {labels.shape}, and predictions of shape {shape} need "
            f"{shape}{several}"
        )

    def __iter__(self) -> Iterator[Block]:
        for begin in range(0, self.count, self._step):
            yield self._block(begin, min(begin + self._step, self.count))

    @property
    def is_single(self) -> bool:
        """Whether there is one block at most."""
        return bool(self.count <= self._step)

    def _block(self, begin: int, end: int) -> Block:
        rows = slice(begin, end)
        weights = self._weights(rows)
        labels = np.asarray(self._labels[rows], np.float64)
        predictions = np.asarray(self._predictions[rows], np.float64)
        if weights is None:
            weights = np.ones(end - begin)
        elif weights.ndim == 1:
            kept = weights > 0
            if not kept.all():
                labels, predictions = labels[kept], predictions[kept]
                weights = weights[kept]
        else:  # what is masked may be anything, and is not read
            labels = np.where(weights > 0, labels, 0.0)
            predictions = np.where(weights > 0, predictions, 0.0)
        for values, what in ((labels, "labels"), (predictions, "predictions")):
            if not np.isfinite(values).all():
                raise ValueError(f"{what} hold NaN or infinity where no mask is 0")
        return Block(labels, predictions, weights)

    def _weights(self, rows: slice) -> Floats | None:
        """Return the product of mask and weights, or None without either."""
        parts = []
        if self._mask is not None:
            mask = self._mask.of(rows)
            if not ((mask == 0) | (mask == 1)).all():
                raise ValueError(
                    "a mask holds 0 and 1, or False and True: pass other numbers as "
                    "sample_weight"
                )
            parts.append(mask)
        if self._weight is not None:
            weight = self._weight.of(rows)
            if not (np.isfinite(weight) & (weight >= 0)).all():
                raise ValueError("sample_weight holds finite numbers that are not < 0")
            parts.append(weight)
        if len(parts) == 2 and parts[0].ndim != parts[1].ndim:
            parts = [each if each.ndim == 2 else each[:, None] for each in parts]
        return np.multiply(*parts) if len(parts) == 2 else (*parts, None)[0]


class _Spread(NamedTuple):
    """Numbers of samples, which hold for `repeats` rows each."""

    values: Array
    repeats: int

    def of(self, rows: slice) -> Floats:
        """Return the numbers of rows."""
        if self.repeats == 1:
            return np.asarray(self.values[rows], np.float64)
        places = np.arange(rows.start, rows.stop) // self.repeats
        return np.asarray(self.values[places], np.float64)


def _spread(
    given: Any, what: str, lead: tuple[int, ...], wide: tuple[int, ...] | None
) -> _Spread | None:
    """Return a mask or weights by row, or by row and output."""
    if given is None:
        return None
    values = _numbers(given, what)
    if wide is not None and values.shape == wide and wide[-1] > 1:
        return _Spread(values.reshape(-1, wide[-1]), 1)
    if values.ndim > 1 and values.shape[-1] == 1 and values.shape != lead:
        values = values[..., 0]
    if values.ndim and values.shape == lead[: values.ndim]:
        return _Spread(values.reshape(-1), prod(lead[values.ndim :]))
    each = "" if wide is None else f", or {wide} for a number of each output"
    raise ValueError(f"{what} has shape {values.shape}; it needs {lead}{each}")


def _numbers(given: Any, what: str) -> Array:
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{what} are numbers, got {array.dtype}")
    return array
