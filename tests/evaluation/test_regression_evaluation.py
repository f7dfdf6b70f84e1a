"""Errors and correlations against scikit-learn, NumPy and DL4J's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from memcfg.evaluation import RegressionEvaluation

EXACT = 1e-12


def test_the_numbers_that_dl4j_pins():
    evaluation = RegressionEvaluation(3)
    evaluation.eval(
        [[1, 2, 3], [0.1, 0.2, 0.3], [6, 5, 4]],
        [[2.5, 3.2, 3.8], [2.15, 1.3, -1.2], [7, 4.5, 3]],
    )
    for name, expected in (
        ("mean_squared_error", [2.484166667, 0.966666667, 1.296666667]),
        ("mean_absolute_error", [1.516666667, 0.933333333, 1.1]),
        ("relative_squared_error", [0.368813923, 0.246598639, 0.530937216]),
        ("pearson_correlation", [0.997013483, 0.968619605, 0.915603032]),
        ("r_squared", [0.63118608, 0.75340136, 0.46906278]),
    ):
        found = [getattr(evaluation, name)(i) for i in range(3)]
        assert found == pytest.approx(expected, abs=1e-8), name
        assert evaluation.get_value(f"average_{name}") == pytest.approx(
            np.mean(expected), abs=1e-8
        )


@settings(max_examples=40)
@given(
    st.integers(2, 30),
    st.integers(1, 3),
    st.integers(1, 30),
    st.booleans(),
    st.integers(0, 999),
)
def test_errors_are_those_of_scikit_learn_in_any_batches(
    rows, columns, step, weighted, seed
):
    rng = np.random.default_rng(seed)
    labels, outputs = rng.integers(-400, 400, (2, rows, columns)) / 4
    weights = rng.random(rows) + 0.5 if weighted else None
    evaluation = RegressionEvaluation()
    for begin in range(0, rows, step):
        part = slice(begin, begin + step)
        some = None if weights is None else weights[part]
        evaluation.eval(labels[part], outputs[part], sample_weight=some)
    how = {"sample_weight": weights, "multioutput": "raw_values"}
    squared = sk.mean_squared_error(labels, outputs, **how)
    absolute = sk.mean_absolute_error(labels, outputs, **how)
    for i in range(columns):
        assert evaluation.mean_squared_error(i) == pytest.approx(
            squared[i], rel=EXACT, abs=EXACT
        )
        assert evaluation.mean_absolute_error(i) == pytest.approx(
            absolute[i], rel=EXACT, abs=EXACT
        )
        assert evaluation.root_mean_squared_error(i) == pytest.approx(
            squared[i] ** 0.5, rel=EXACT, abs=EXACT
        )
        y, p = labels[:, i], outputs[:, i]
        if len({*y}) > 1:
            expected = sk.r2_score(y, p, sample_weight=weights)
            assert evaluation.r_squared(i) == pytest.approx(
                expected, rel=EXACT, abs=EXACT
            )
        if len({*y}) > 1 and len({*p}) > 1:
            moments = np.cov(y, p, aweights=weights)
            expected = moments[0, 1] / (moments[0, 0] * moments[1, 1]) ** 0.5
            assert evaluation.pearson_correlation(i) == pytest.approx(
                expected, abs=EXACT
            )


def test_moments_do_not_cancel_far_from_zero():
    rng = np.random.default_rng(0)
    labels = rng.random(3000) + 1e8
    outputs = labels + rng.random(3000) - 0.5
    evaluation = RegressionEvaluation()
    for begin in range(0, 3000, 32):
        part = slice(begin, begin + 32)
        evaluation.eval(labels[part], outputs[part])
    near_l, near_o = labels - 1e8, outputs - 1e8  # exact differences
    assert evaluation.r_squared(0) == pytest.approx(
        sk.r2_score(near_l, near_o), abs=1e-6
    )
    assert evaluation.pearson_correlation(0) == pytest.approx(
        np.corrcoef(near_l, near_o)[0, 1], abs=1e-6
    )


def test_outputs_with_masks_of_their_own():
    rng = np.random.default_rng(1)
    labels, outputs = rng.random((50, 3)), rng.random((50, 3))
    mask = rng.random((50, 3)) < 0.5
    mask[:, 2] = False
    evaluation = RegressionEvaluation(labels=["a", "b", "c"])
    evaluation.eval(np.where(mask, labels, np.nan), outputs, mask)
    for i in range(2):
        kept = mask[:, i]
        assert evaluation.mean_squared_error(i) == pytest.approx(
            sk.mean_squared_error(labels[kept, i], outputs[kept, i]), abs=EXACT
        )
        assert evaluation.pearson_correlation(i) == pytest.approx(
            np.corrcoef(labels[kept, i], outputs[kept, i])[0, 1], abs=EXACT
        )
    assert np.isnan(evaluation.mean_squared_error(2))
    both = [evaluation.mean_squared_error(i) for i in range(2)]
    assert evaluation.average_mean_squared_error() == pytest.approx(np.mean(both))
    assert " c" in evaluation.stats()


def test_time_series_are_rows():
    rng = np.random.default_rng(2)
    labels, outputs = rng.random((2, 4, 5, 2))
    series, rows = RegressionEvaluation(), RegressionEvaluation()
    series.eval(labels, outputs)
    rows.eval(labels.reshape(20, 2), outputs.reshape(20, 2))
    assert series.to_json() == rows.to_json()


def test_equal_labels_have_no_correlation():
    evaluation = RegressionEvaluation()
    evaluation.eval([2.0, 2.0], [1.0, 3.0])
    assert np.isnan(evaluation.pearson_correlation(0))
    assert np.isnan(evaluation.r_squared(0))
    assert evaluation.mean_squared_error(0) == 1.0


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="num_columns is 3, and labels has 1"):
        RegressionEvaluation(3, labels=["a"])
    with pytest.raises(ValueError, match="is of 2 outputs, and the predictions have 1"):
        RegressionEvaluation(2).eval([1.0], [1.0])
    evaluation = RegressionEvaluation()
    evaluation.eval([1.0], [1.0])
    with pytest.raises(ValueError, match="column is from 0 to 0"):
        evaluation.r_squared(1)
