"""Curves, histograms and matrices of evaluators, which draw themselves."""

from memcfg.evaluation.curves._confusion_matrix import ConfusionMatrix
from memcfg.evaluation.curves._figure import Figure
from memcfg.evaluation.curves._precision_recall_curve import PrecisionRecallCurve
from memcfg.evaluation.curves._probability_histogram import Histogram
from memcfg.evaluation.curves._reliability_diagram import ReliabilityDiagram
from memcfg.evaluation.curves._roc_curve import RocCurve

__all__ = [
    "ConfusionMatrix",
    "Figure",
    "Histogram",
    "PrecisionRecallCurve",
    "ReliabilityDiagram",
    "RocCurve",
]
