"""Evaluation of predictions in one pass, in state of bounded size.

An evaluator takes labels and predictions batch by batch, and holds counts and sums.
`model.do_evaluation(data, *evaluators)` passes data through a model once for any number
of them. Evaluators of different workers can be merged, and are stored as JSON; curves
and matrices draw themselves. Names and rules are those of Deeplearning4j.

Examples
--------
>>> from memcfg import evaluation
>>> one, roc = evaluation.Evaluation(2), evaluation.ROC(threshold_steps=100)
>>> batches = [([0, 1], [[0.9, 0.1], [0.3, 0.7]]), ([1], [[0.6, 0.4]])]
>>> for labels, predictions in batches:
...     one.eval(labels, predictions)
...     roc.eval(labels, predictions)
>>> one.accuracy(), roc.calculate_auc()
(0.6666666666666666, 1.0)
"""

from memcfg.evaluation._evaluation import Evaluation
from memcfg.evaluation._evaluation_binary import EvaluationBinary
from memcfg.evaluation._evaluation_calibration import EvaluationCalibration
from memcfg.evaluation._evaluator import Evaluator
from memcfg.evaluation._regression_evaluation import RegressionEvaluation
from memcfg.evaluation.curves import (
    ConfusionMatrix,
    Figure,
    Histogram,
    PrecisionRecallCurve,
    ReliabilityDiagram,
    RocCurve,
)
from memcfg.evaluation.scores import ROC, ROCBinary, ROCMultiClass

__all__ = [
    "ROC",
    "ConfusionMatrix",
    "Evaluation",
    "EvaluationBinary",
    "EvaluationCalibration",
    "Evaluator",
    "Figure",
    "Histogram",
    "PrecisionRecallCurve",
    "ROCBinary",
    "ROCMultiClass",
    "RegressionEvaluation",
    "ReliabilityDiagram",
    "RocCurve",
]
