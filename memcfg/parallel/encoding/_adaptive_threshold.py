"""A threshold that keeps the share of elements that are sent within bounds."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import real
from memcfg.parallel.encoding._threshold_algorithm import ThresholdAlgorithm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

__all__ = ["AdaptiveThresholdAlgorithm"]

_DENSE_SPARSITY = 1 / 16  # what a dense encoding counts as, in DL4J


class AdaptiveThresholdAlgorithm(ThresholdAlgorithm):
    """Adapt the threshold so that a share of elements within two bounds is sent.

    The first step has the initial threshold. If a step has sent a smaller share than
    the bounds, the next threshold is the last one times the decay rate; if it has sent
    a larger share, it is the last one divided by the decay rate.

    Parameters
    ----------
    initial_threshold : float, default 1e-4
        The threshold of the first step, positive, on the scale of gradients.
    min_target_sparsity : float, default 1e-4
        The smallest share of elements to send.
    max_target_sparsity : float, default 1e-2
        The largest share of elements to send.
    decay_rate : float, default 0.5 ** (1 / 20)
        The factor, in ``(0, 1)``. With the default, 20 steps halve or double the
        threshold.

    Raises
    ------
    TypeError, ValueError
        If an argument is not a number in its range.

    Notes
    -----
    Names, defaults and rules are those of DL4J 1.0. A step that sends a sixteenth of
    the elements or more counts as one that sends a sixteenth. An instance that has been
    used, and is given no last threshold, continues from that of its last step.
    """

    def __init__(
        self,
        initial_threshold: float = 1e-4,
        min_target_sparsity: float = 1e-4,
        max_target_sparsity: float = 1e-2,
        decay_rate: float = 0.5 ** (1 / 20),
    ) -> None:
        self.initial_threshold = real(initial_threshold, "initial_threshold")
        self.min_target_sparsity = real(min_target_sparsity, "min_target_sparsity")
        self.max_target_sparsity = real(max_target_sparsity, "max_target_sparsity")
        self.decay_rate = real(decay_rate, "decay_rate")
        if self.initial_threshold <= 0:
            raise ValueError(
                f"initial_threshold must be positive, got {initial_threshold!r}"
            )
        if not 0 <= self.min_target_sparsity <= self.max_target_sparsity <= 1:
            raise ValueError(
                "min_target_sparsity and max_target_sparsity must be in [0, 1], the "
                f"first one not larger, got {min_target_sparsity!r} and "
                f"{max_target_sparsity!r}"
            )
        if not 0 < self.decay_rate < 1:
            raise ValueError(f"decay_rate must be in (0, 1), got {decay_rate!r}")
        self.last_threshold: float | None = None
        self._last_sparsity: float | None = None

    def calculate_threshold(
        self,
        iteration: int,
        last_threshold: float | None,
        last_was_dense: bool | None,
        last_sparsity_ratio: float | None,
    ) -> float:
        """Return the threshold of a step, which is also `last_threshold` then.

        Parameters
        ----------
        iteration : int
            Not used.
        last_threshold : float or None
            The threshold of the step before.
        last_was_dense : bool or None
            Whether a sixteenth of its elements or more were sent.
        last_sparsity_ratio : float or None
            The share of its elements that were sent.

        Returns
        -------
        float
            The threshold.
        """
        del iteration
        if last_threshold is None:
            last_threshold = self.last_threshold
        sparsity = _DENSE_SPARSITY if last_was_dense else last_sparsity_ratio
        if sparsity is None:
            sparsity = self._last_sparsity
        if last_threshold is None:
            result = self.initial_threshold
        elif sparsity is None:
            result = last_threshold
        elif sparsity < self.min_target_sparsity:
            result = last_threshold * self.decay_rate
        elif sparsity > self.max_target_sparsity:
            result = last_threshold / self.decay_rate
        else:
            result = last_threshold
        self.last_threshold, self._last_sparsity = result, sparsity
        return result

    def merge(self, others: Sequence[Self]) -> Self:
        """Return an algorithm that continues from the mean of the last thresholds.

        Parameters
        ----------
        others : sequence of AdaptiveThresholdAlgorithm
            Those of the other ranks. One that has not been used does not count.

        Returns
        -------
        AdaptiveThresholdAlgorithm
            With the arguments of this one.
        """
        result = self.clone()
        both = (self, *others)
        thresholds = [e.last_threshold for e in both if e.last_threshold is not None]
        sparsities = [e._last_sparsity for e in both if e._last_sparsity is not None]
        result.last_threshold = fmean(thresholds) if thresholds else None
        result._last_sparsity = fmean(sparsities) if sparsities else None
        return result
