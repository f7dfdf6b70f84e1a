"""The base class of what chooses the threshold of an encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

__all__ = ["ThresholdAlgorithm"]


class ThresholdAlgorithm(ABC):
    """Choose the threshold of each step; subclasses define `calculate_threshold`.

    Each rank has a clone of its own, which sees the encodings of that rank.
    """

    @abstractmethod
    def calculate_threshold(
        self,
        iteration: int,
        last_threshold: float | None,
        last_was_dense: bool | None,
        last_sparsity_ratio: float | None,
    ) -> float:
        """Return the threshold of a step.

        Parameters
        ----------
        iteration : int
            The number of the step, from 0.
        last_threshold : float or None
            The threshold of the step before; None for the first one.
        last_was_dense : bool or None
            Whether a sixteenth of its elements or more were sent.
        last_sparsity_ratio : float or None
            The share of its elements that were sent, in ``[0, 1]``.

        Returns
        -------
        float
            Positive and finite in float32.
        """

    def clone(self) -> Self:
        """Return a copy, with what it has learned.

        Returns
        -------
        ThresholdAlgorithm
            Of the same class.
        """
        return deepcopy(self)

    def merge(self, others: Sequence[Self]) -> Self:
        """Return an algorithm with what several ranks have learned.

        Parameters
        ----------
        others : sequence of ThresholdAlgorithm
            Those of the other ranks, of the same class.

        Returns
        -------
        ThresholdAlgorithm
            By default a clone of this one.
        """
        del others
        return self.clone()
