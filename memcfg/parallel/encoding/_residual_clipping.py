"""A bound of what is not sent, and waits in the residual."""

from __future__ import annotations

from math import inf

from memcfg.nn._argument_checks import integer, real

__all__ = ["ResidualClippingPostProcessor"]


class ResidualClippingPostProcessor:
    """Clip residuals now and then, so that old gradients do not pile up.

    Parameters
    ----------
    threshold_multiplier : float, default 5.0
        The limit of a residual's elements, in thresholds; 1 or more.
    frequency : int, default 5
        Steps from one clipping to the next.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a number in its range.

    Notes
    -----
    Names and rules are those of DL4J 1.0.
    """

    def __init__(self, threshold_multiplier: float = 5.0, frequency: int = 5) -> None:
        self.threshold_multiplier = real(threshold_multiplier, "threshold_multiplier")
        if self.threshold_multiplier < 1:
            raise ValueError(
                f"threshold_multiplier must be 1 or more, got {threshold_multiplier!r}"
            )
        self.frequency = integer(frequency, "frequency")

    def residual_limit(self, iteration: int, threshold: float) -> float:
        """Return the largest absolute value of residuals after a step.

        Parameters
        ----------
        iteration : int
            The number of the step, from 0.
        threshold : float
            Its threshold.

        Returns
        -------
        float
            Infinite in steps that do not clip. The first step never does.
        """
        if iteration and iteration % self.frequency == 0:
            return self.threshold_multiplier * threshold
        return inf
