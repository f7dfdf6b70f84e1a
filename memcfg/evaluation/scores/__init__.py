"""Evaluators of scores: curves over thresholds, and the areas under them."""

from memcfg.evaluation.scores._roc import ROC
from memcfg.evaluation.scores._roc_binary import ROCBinary
from memcfg.evaluation.scores._roc_multi_class import ROCMultiClass

__all__ = ["ROC", "ROCBinary", "ROCMultiClass"]
