"""Diagrams and histograms against a loop over bins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from memcfg.evaluation import EvaluationCalibration

BINNED = 1e-6


def in_bin(values, i, bins):
    """Whether values are in a bin; the last has its upper limit."""
    return (values >= i / bins) & ((values < (i + 1) / bins) | (i == bins - 1))


@given(
    st.integers(1, 40),
    st.integers(2, 4),
    st.integers(0, 999),
    st.integers(1, 11),
    st.integers(1, 9),
    st.booleans(),
)
def test_bins_hold_what_a_loop_finds(rows, classes, seed, bins, wide, weighted):
    rng = np.random.default_rng(seed)
    outputs = rng.integers(0, 9, (rows, classes)) / 8  # often at a limit
    labels = rng.integers(0, classes, rows)
    weights = rng.random(rows) + 0.1 if weighted else np.ones(rows)
    evaluation = EvaluationCalibration(bins, wide, exclude_empty_bins=False)
    evaluation.eval(labels, outputs, sample_weight=weights if weighted else None)
    hot, w = np.eye(classes)[labels], np.repeat(weights[:, None], classes, 1)
    error = []
    for c in range(classes):
        diagram = evaluation.get_reliability_diagram(c)
        distances = 0.0
        for i in range(bins):
            inside = in_bin(outputs[:, c], i, bins)
            count = weights[inside].sum()
            assert diagram.counts[i] == pytest.approx(count, abs=BINNED)
            if count:
                share = (weights * hot[:, c])[inside].sum() / count
                mean = (weights * outputs[:, c])[inside].sum() / count
                assert diagram.fraction_positives[i] == pytest.approx(share, abs=BINNED)
                assert diagram.mean_predicted_value[i] == pytest.approx(
                    mean, abs=BINNED
                )
                distances += count * abs(share - mean)
        error.append(distances / weights.sum())
        assert evaluation.expected_calibration_error(c) == pytest.approx(
            error[-1], abs=BINNED
        )
        own = labels == c
        for found, values in (
            (evaluation.get_residual_plot(c), 1 - outputs[own, c]),
            (evaluation.get_probability_histogram(c), outputs[own, c]),
        ):
            expected = [
                weights[own][in_bin(values, i, wide)].sum() for i in range(wide)
            ]
            np.testing.assert_allclose(found.counts, expected, atol=BINNED)
    assert evaluation.expected_calibration_error() == pytest.approx(np.mean(error))
    for found, values in (
        (evaluation.get_residual_plot_all_classes(), abs(hot - outputs)),
        (evaluation.get_probability_histogram_all_classes(), outputs),
    ):
        expected = [w[in_bin(values, i, wide)].sum() for i in range(wide)]
        np.testing.assert_allclose(found.counts, expected, atol=BINNED)
    np.testing.assert_allclose(
        evaluation.get_label_counts_each_class(), weights @ hot, atol=BINNED
    )
    chosen = np.eye(classes)[outputs.argmax(1)]
    np.testing.assert_allclose(
        evaluation.get_prediction_counts_each_class(), weights @ chosen, atol=BINNED
    )


def test_the_diagram_is_scikit_learns():
    rng = np.random.default_rng(0)
    outputs = rng.random(500)
    labels = (rng.random(500) < outputs**2).astype(int)
    evaluation = EvaluationCalibration(10)
    evaluation.eval(labels, outputs)
    share, mean = calibration_curve(labels, outputs, n_bins=10)
    diagram = evaluation.get_reliability_diagram(0)
    np.testing.assert_allclose(diagram.fraction_positives, share, atol=1e-12)
    np.testing.assert_allclose(diagram.mean_predicted_value, mean, atol=1e-12)


def test_what_is_no_probability_is_refused():
    evaluation = EvaluationCalibration()
    with pytest.raises(ValueError, match="probabilities from 0 to 1"):
        evaluation.eval([0, 1], [[0.5, 0.5], [1.5, -0.5]])
    with pytest.raises(ValueError, match="labels of EvaluationCalibration are 0 or 1"):
        evaluation.eval([[0.5, 0.5]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="indices of classes, 0 to 1"):
        evaluation.eval([2], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="histogram_num_bins is at least 1"):
        EvaluationCalibration(10, 0)
    assert evaluation.count == 0
