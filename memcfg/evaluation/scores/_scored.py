"""Evaluators that keep the scores of each output, exactly or in bins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.errors import FormatError
from memcfg.evaluation._evaluator import Evaluator, label_name
from memcfg.evaluation._settings_checks import label_names, steps_of
from memcfg.evaluation._tallied import read_array
from memcfg.evaluation.scores._score_bins import ScoreBins
from memcfg.evaluation.scores._score_runs import ScoreRuns
from memcfg.evaluation.scores._sweep import Sweep
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from memcfg.evaluation._evaluated_rows import Block

__all__ = ["MAX_POINTS", "Scored"]

MAX_POINTS = 4096  # of a curve, by default
_LEAST = 1 << 12  # bytes of the smallest limit


class Scored(Evaluator):
    """An evaluator of one curve for each of some outputs."""

    __slots__ = ("_areas", "_labels", "_limit", "_spill_to", "_steps", "_stores")

    def __init__(
        self,
        threshold_steps: int,
        byte_limit: int | str,
        spill_to: str | os.PathLike[str] | None,
        labels: Sequence[str] | None = None,
    ) -> None:
        self._steps = steps_of(threshold_steps)
        self._limit = parse_bytes(byte_limit)
        if self._limit < _LEAST:
            raise ValueError(f"byte_limit is at least {_LEAST}, not {self._limit}")
        self._spill_to = None if spill_to is None else os.fspath(spill_to)
        if self._spill_to is not None and not Path(self._spill_to).is_dir():
            raise ValueError(f"spill_to is a folder, and {self._spill_to!r} is none")
        self._labels = label_names(labels)
        self._stores: list[Any] = []  # ScoreBins or ScoreRuns, one for each curve
        self._areas: dict[int, Sweep] = {}  # of the state as it is
        settings: dict[str, Any] = {
            "threshold_steps": self._steps,
            "byte_limit": self._limit,
        }
        if self._takes_labels:
            settings["labels"] = self._labels
        super().__init__(**settings)

    _takes_labels = True

    def _local(self) -> dict[str, Any]:
        return {"spill_to": self._spill_to}

    @property
    def threshold_steps(self) -> int:
        """The number of steps between thresholds, 0 for exact curves."""
        return self._steps

    @property
    def is_exact(self) -> bool:
        """Whether all scores are kept."""
        return self._steps == 0

    @property
    def state_bytes(self) -> int:
        """The bytes of the state in memory.

        They are fixed with thresholds. Without, they grow up to `byte_limit`, with
        what sorting takes.
        """
        return sum(each.nbytes for each in self._stores)

    @property
    def spilled_bytes(self) -> int:
        """The bytes of scores in files."""
        return sum(each.spilled_bytes for each in self._stores)

    # What a subclass defines

    def _curves(self, columns: int) -> int:
        """Return the number of curves for predictions of some outputs."""
        return columns

    def _split(self, block: Block) -> Iterable[tuple[Any, Any, Any]]:
        """Return scores, labels of 0 and 1, and weights for each curve."""
        raise NotImplementedError(f"{self._name} has no curves")

    # State

    def _sweep(self, index: int, max_points: int = 0) -> Sweep:
        place = self._place(index, "the index")
        if max_points:
            with self._memory():
                return Sweep(self._stores[place], max_points)
        if place not in self._areas:
            with self._memory():
                self._areas[place] = Sweep(self._stores[place])
        return self._areas[place]

    def _points(self, max_points: int | None) -> int:
        """Return the most points of a curve; None is all."""
        if max_points is None:
            return max(int(each.rows) for each in self._stores)
        return count(max_points, "max_points", 2)

    def _wide(self) -> int:
        self._require_data()
        return len(self._stores)

    def _each(self, of: Callable[[Sweep], float]) -> list[float]:
        return [of(self._sweep(i)) for i in range(self._wide())]

    def _made(self, columns: int) -> list[Any]:
        curves = self._curves(columns)
        if self._steps:
            return [ScoreBins(self._steps) for _ in range(curves)]
        each = self._limit // curves
        return [ScoreRuns(each, self._spill_to) for _ in range(curves)]

    def _check_block(self, block: Block) -> None:
        outputs = block.predictions
        if self._steps and not ((outputs >= 0) & (outputs <= 1)).all():
            raise ValueError(
                f"predictions of {self._name} with thresholds are probabilities from 0 "
                "to 1: let the model end in a softmax or a sigmoid, or pass "
                "threshold_steps=0"
            )
        labels = block.labels
        if labels.ndim == 1:
            columns = outputs.shape[1]
            known = (labels == np.floor(labels)) & (labels >= 0) & (labels < columns)
            if not known.all():
                raise ValueError(f"labels are indices of classes, 0 to {columns - 1}")
        elif not ((labels == 0) | (labels == 1)).all():
            raise ValueError(f"labels of {self._name} are 0 or 1")

    def _take(self, blocks: Iterable[Block], columns: int) -> None:
        stores = self._stores or self._made(columns)
        try:
            for block in blocks:
                for store, split in zip(stores, self._split(block), strict=True):
                    scores, labels, weights = split
                    positive = np.where(labels == 1, weights, 0.0)
                    store.add(scores, positive, weights - positive)
        except BaseException:
            for store in stores:
                store.rollback()
            raise
        for store in stores:
            store.commit()
        self._stores, self._areas = stores, {}

    def _join(self, other: Self) -> None:
        stores = self._stores or self._made(other._columns or 1)
        sources = other._stores
        if other is self:
            raise ValueError(f"{self._name} does not merge with itself")
        try:
            for store, source in zip(stores, sources, strict=True):
                store.extend(source)
        except BaseException:
            for store in stores:
                store.rollback()
            raise
        for store in stores:
            store.commit()
        self._stores, self._areas = stores, {}

    def _clear(self) -> None:
        self._stores, self._areas = [], {}

    def _parts(self) -> Iterator[Self]:
        if not self.spilled_bytes:
            yield self
            return
        assert self._columns is not None
        count = self._count
        for place, store in enumerate(self._stores):
            chunks = store.chunks()
            while True:
                with self._memory():  # ends before another one computes
                    chunk = next(chunks, None)
                    if chunk is None:
                        break
                    part = self.new_instance()
                    part._stores = part._made(self._columns)
                    part._stores[place].add(*chunk)
                    part._stores[place].commit()
                part._columns, part._weighted = self._columns, self._weighted
                part._count, count = count, 0
                yield part

    def _written(self) -> dict[str, Any]:
        with self._memory():
            return {"curves": [each.written() for each in self._stores]}

    def _read(self, state: dict[str, Any], columns: int) -> None:
        wanted, curves = self._curves(columns), state.get("curves")
        if not isinstance(curves, list) or len(curves) != wanted:
            raise FormatError(f"curves should be a list of length {wanted}")
        for each in curves if self._steps else ():  # before memory is taken for them
            read_array(each, (2, self._steps + 1), "curves")
        stores = self._made(columns)
        for store, value in zip(stores, curves, strict=True):
            store.read(value)
        self._stores, self._areas = stores, {}

    def _called(self, index: int) -> str:
        return label_name(self._labels, index)
