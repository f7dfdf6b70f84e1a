"""The threshold of one rank, from step to step."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from memcfg.ops import Communicator
    from memcfg.parallel.encoding._residual_clipping import (
        ResidualClippingPostProcessor,
    )
    from memcfg.parallel.encoding._threshold_algorithm import ThresholdAlgorithm

__all__ = ["GradientEncoder"]

_DENSE = 1 / 16  # the share of elements from which an encoding is a bitmap


class GradientEncoder:
    """Scalars of the encoding steps of a rank, which adapt to what it has sent."""

    def __init__(
        self,
        algorithm: ThresholdAlgorithm,
        post_processor: ResidualClippingPostProcessor | None,
        communicator: Communicator,
    ) -> None:
        self.algorithm = algorithm.clone()
        self._post_processor = post_processor
        self._communicator = communicator
        self._iteration = 0  # steps that have ended
        self._threshold: float | None = None  # of the next step, once it is known
        self._last_threshold: float | None = None
        self._last_sparsity: float | None = None
        self._before = communicator.encoded_totals

    def scalars(self) -> dict[str, float]:
        """Return the scalar inputs of the next step, by name; it may be repeated."""
        self._before = self._communicator.encoded_totals
        threshold = self._threshold
        if threshold is None:
            last = self._last_sparsity
            threshold = float(
                self.algorithm.calculate_threshold(
                    self._iteration,
                    self._last_threshold,
                    None if last is None else last >= _DENSE,
                    last,
                )
            )
            if not 0 < np.float32(threshold) < np.inf:
                name = type(self.algorithm).__name__
                raise ValueError(
                    f"{name} returned the threshold {threshold!r}, which is not "
                    "positive and finite in float32"
                )
            self._threshold = threshold
        limit = inf
        if self._post_processor is not None:
            limit = self._post_processor.residual_limit(self._iteration, threshold)
        return {"threshold": threshold, "residual_limit": limit}

    def advance(self) -> None:
        """End a step, and note what it has sent."""
        after, before = self._communicator.encoded_totals, self._before
        elements = after.elements - before.elements
        if elements:
            self._last_sparsity = (after.entries - before.entries) / elements
        self._last_threshold, self._threshold = self._threshold, None
        self._iteration += 1
