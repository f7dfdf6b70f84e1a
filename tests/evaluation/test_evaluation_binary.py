"""EvaluationBinary against scikit-learn, one output at a time."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from memcfg.evaluation import EvaluationBinary

EXACT = 1e-12


@settings(max_examples=40)
@given(st.integers(1, 25), st.integers(1, 4), st.integers(0, 999), st.booleans())
def test_each_output_is_scored_as_scikit_learn_does(rows, outputs, seed, weighted):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (rows, outputs))
    scores = rng.integers(0, 5, (rows, outputs)) / 4  # 0.5 is at the threshold
    weights = rng.random(rows) + 0.1 if weighted else None
    mask = rng.random((rows, outputs)) < 0.7
    evaluation = EvaluationBinary()
    evaluation.eval(np.where(mask, labels, 7), scores, mask, sample_weight=weights)
    chosen = scores > 0.5
    for i in range(outputs):
        kept = mask[:, i]
        if evaluation.count == 0:
            continue
        if not kept.any():
            assert evaluation.total_count(i) == 0
            assert evaluation.accuracy(i) == 0
            continue
        y, p = labels[kept, i], chosen[kept, i]
        w = None if weights is None else weights[kept]
        how = {"sample_weight": w}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for ours, theirs in (
                (evaluation.accuracy, sk.accuracy_score),
                (evaluation.precision, sk.precision_score),
                (evaluation.recall, sk.recall_score),
                (evaluation.matthews_correlation, sk.matthews_corrcoef),
            ):
                assert ours(i) == pytest.approx(theirs(y, p, **how), abs=EXACT)
            if p.any() and y.any():
                assert evaluation.f1(i) == pytest.approx(
                    sk.f1_score(y, p, **how), abs=EXACT
                )
                assert evaluation.g_measure(i) == pytest.approx(
                    (evaluation.precision(i) * evaluation.recall(i)) ** 0.5, abs=EXACT
                )


def test_counts_rates_and_averages():
    evaluation = EvaluationBinary(2, decision_threshold=[0.5, 0.25])
    evaluation.eval(
        [[1, 0], [1, 1], [0, 1], [0, 0]],
        [[0.9, 0.3], [0.4, 0.2], [0.6, 0.7], [0.1, 0.25]],
    )
    assert evaluation.true_positives().tolist() == [1, 1]
    assert evaluation.false_negatives().tolist() == [1, 1]
    assert evaluation.false_positives().tolist() == [1, 1]
    assert evaluation.true_negatives().tolist() == [1, 1]
    assert evaluation.total_count(0) == 4
    assert evaluation.false_positive_rate(0) == 0.5
    assert evaluation.false_negative_rate(1) == 0.5
    for name in EvaluationBinary.metrics:
        expected = 0.0 if "matthews" in name else 0.5
        assert evaluation.get_value(name) == expected


def test_the_text_has_a_row_for_each_output():
    evaluation = EvaluationBinary(labels=["red", "round"])
    evaluation.eval([[1, 0], [0, 1]], [[0.9, 0.2], [0.7, 0.6]])
    assert evaluation.stats() == (
        "EvaluationBinary of 2 outputs, 2 rows.\n"
        " output  accuracy  precision  recall      F1     MCC  yes  no\n"
        " ────────────────────────────────────────────────────────────\n"
        " red       0.5000     0.5000  1.0000  0.6667       -    1   1\n"
        " round     1.0000     1.0000  1.0000  1.0000  1.0000    1   1\n"
        " mean      0.7500     0.7500  1.0000  0.8333  1.0000"
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"num_outputs": 0}, ValueError, "num_outputs is at least 1"),
        ({"num_outputs": 2, "labels": ["a"]}, ValueError, "ambiguous"),
        ({"decision_threshold": [0.5, 3]}, ValueError, "is from 0 to 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, kind, words):
    with pytest.raises(kind, match=words):
        EvaluationBinary(**arguments)


def test_labels_other_than_0_and_1_are_refused():
    with pytest.raises(ValueError, match="labels of EvaluationBinary are 0 or 1"):
        EvaluationBinary().eval([[2]], [[0.5]])
