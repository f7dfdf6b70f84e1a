"""Threshold encoding: gradients as the few elements that are large, with one size.

After N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
Interspeech 2015, with the adaptive thresholds of DL4J.
"""

from __future__ import annotations

from memcfg.parallel.encoding._adaptive_threshold import AdaptiveThresholdAlgorithm
from memcfg.parallel.encoding._fixed_threshold import FixedThresholdAlgorithm
from memcfg.parallel.encoding._residual_clipping import ResidualClippingPostProcessor
from memcfg.parallel.encoding._threshold_algorithm import ThresholdAlgorithm

__all__ = [
    "AdaptiveThresholdAlgorithm",
    "FixedThresholdAlgorithm",
    "ResidualClippingPostProcessor",
    "ThresholdAlgorithm",
]
