"""A threshold that does not change."""

from __future__ import annotations

from memcfg.nn._argument_checks import real
from memcfg.parallel.encoding._threshold_algorithm import ThresholdAlgorithm

__all__ = ["FixedThresholdAlgorithm"]


class FixedThresholdAlgorithm(ThresholdAlgorithm):
    """The same threshold in all steps.

    Parameters
    ----------
    threshold : float
        The threshold, positive, on the scale of gradients.

    Raises
    ------
    TypeError, ValueError
        If the threshold is not a positive number.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = real(threshold, "threshold")
        if self.threshold <= 0:
            raise ValueError(f"threshold must be positive, got {threshold!r}")

    def calculate_threshold(
        self,
        iteration: int,
        last_threshold: float | None,
        last_was_dense: bool | None,
        last_sparsity_ratio: float | None,
    ) -> float:
        """Return the threshold.

        Parameters
        ----------
        iteration : int
            Not used.
        last_threshold : float or None
            Not used.
        last_was_dense : bool or None
            Not used.
        last_sparsity_ratio : float or None
            Not used.

        Returns
        -------
        float
            `threshold`.
        """
        del iteration, last_threshold, last_was_dense, last_sparsity_ratio
        return self.threshold
