"""What all evaluators promise: merging, JSON, reset, bytes, errors before any data."""

from __future__ import annotations

import json
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import FormatError, ResourceExhaustedError
from memcfg.evaluation import (
    ROC,
    Evaluation,
    EvaluationBinary,
    EvaluationCalibration,
    Evaluator,
    RegressionEvaluation,
    ROCBinary,
    ROCMultiClass,
)

MAKERS = {
    "evaluation": partial(Evaluation, 3, top_n=2, labels=["a", "b", "c"]),
    "binary": partial(EvaluationBinary, 3, decision_threshold=[0.2, 0.5, 0.7]),
    "calibration": partial(EvaluationCalibration, 5, 7),
    "regression": RegressionEvaluation,
    "roc": ROC,
    "roc-steps": partial(ROC, threshold_steps=9),
    "roc-binary": ROCBinary,
    "roc-binary-steps": partial(ROCBinary, 9),
    "roc-classes": partial(ROCMultiClass, labels=["a", "b", "c"]),
    "roc-classes-steps": partial(ROCMultiClass, 9),
}
NAMES = sorted(MAKERS)


def batch(kind, rows, rng, weighted=False):
    """Return labels, predictions and weights that an evaluator reads."""
    if kind.startswith("roc") and "-b" not in kind and "-c" not in kind:
        given_rows = rng.integers(0, 2, rows), rng.integers(0, 20, rows) / 20
    else:
        hot = np.eye(3)[rng.integers(0, 3, rows)]
        given_rows = hot, rng.dirichlet(np.ones(3), rows)
    weights = rng.integers(1, 4, rows) if weighted else None
    return *given_rows, weights


def numbers(evaluator):
    return [evaluator.get_value(name) for name in evaluator.metrics]


def add(evaluator, given_rows):
    labels, predictions, weights = given_rows
    evaluator.eval(labels, predictions, sample_weight=weights)


@pytest.mark.parametrize("kind", NAMES)
@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    weighted=st.booleans(),
    seed=st.integers(0, 999),
)
def test_merging_and_json_equal_a_single_pass(kind, sizes, weighted, seed):
    rng = np.random.default_rng(seed)
    whole, merged = MAKERS[kind](), MAKERS[kind]()
    for size in sizes:
        part, given_rows = MAKERS[kind](), batch(kind, size, rng, weighted)
        add(whole, given_rows)
        add(part, given_rows)
        sent = part.to_json()
        merged.merge(Evaluator.from_json(sent))
        assert part.to_json() == sent  # the other stays as it is
    assert merged.count == whole.count == sum(sizes)
    if not sum(sizes):
        assert merged.to_json() == MAKERS[kind]().to_json()
        return
    np.testing.assert_allclose(numbers(merged), numbers(whole), atol=1e-12)
    assert merged.stats() == whole.stats()
    read = type(whole).from_json(whole.to_json())
    assert read.to_json() == whole.to_json()
    assert pickle.loads(pickle.dumps(whole)).to_json() == whole.to_json()
    np.testing.assert_array_equal(numbers(read), numbers(whole))


@pytest.mark.parametrize("kind", NAMES)
@settings(max_examples=15)
@given(
    samples=st.integers(1, 5),
    steps=st.integers(1, 6),
    kept=st.floats(0, 1),
    weighted=st.booleans(),
    seed=st.integers(0, 999),
)
def test_time_series_with_a_mask_are_the_rows_that_are_left(
    kind, samples, steps, kept, weighted, seed
):
    """What is masked may be anything."""
    rng = np.random.default_rng(seed)
    labels, outputs, weights = batch(kind, samples * steps, rng, weighted)
    mask = rng.random(samples * steps) < kept
    series, rows = MAKERS[kind](), MAKERS[kind]()
    left = None if weights is None else weights[mask]
    rows.eval(labels[mask], outputs[mask], sample_weight=left)
    hidden = mask.reshape(-1, *[1] * (outputs.ndim - 1))
    series.eval(
        np.where(hidden, labels, np.nan).reshape(samples, steps, -1),
        np.where(hidden, outputs, np.nan).reshape(samples, steps, -1),
        mask.reshape(samples, steps),
        sample_weight=None if weights is None else weights.reshape(samples, steps),
    )
    assert series.count == rows.count == mask.sum()
    assert series.state_bytes == rows.state_bytes
    if mask.any():
        np.testing.assert_allclose(numbers(series), numbers(rows), atol=1e-12)
        assert series.stats() == rows.stats()


@pytest.mark.parametrize("kind", NAMES)
def test_an_empty_one_merges_both_ways(kind):
    rng = np.random.default_rng(0)
    full = MAKERS[kind]()
    add(full, batch(kind, 20, rng))
    before = full.to_json()
    full.merge(MAKERS[kind]())
    assert full.to_json() == before
    empty = MAKERS[kind]()
    empty.merge(full)
    assert empty.to_json() == before
    empty.reset()
    assert empty.to_json() == MAKERS[kind]().to_json() == full.new_instance().to_json()


@pytest.mark.parametrize("kind", NAMES)
def test_numbers_before_any_data_are_an_error(kind):
    evaluator = MAKERS[kind]()
    labels, predictions, _ = batch(kind, 5, np.random.default_rng(0))
    evaluator.eval(labels, predictions, np.zeros(5))  # all is masked
    evaluator.eval(labels[:0], predictions[:0])
    for ask in (
        evaluator.stats,
        *(partial(evaluator.get_value, name) for name in evaluator.metrics),
    ):
        with pytest.raises(RuntimeError, match="no evaluation has been performed") as e:
            ask()
        assert "eval must be called" in str(e.value)
        assert "no data" in str(e.value)
    assert evaluator.count == 0
    assert "0 rows" in repr(evaluator)


@pytest.mark.parametrize("kind", NAMES)
def test_the_text_fits_eighty_columns(kind):
    evaluator = MAKERS[kind]()
    add(evaluator, batch(kind, 1000, np.random.default_rng(0)))
    assert max(map(len, evaluator.stats().splitlines())) <= 80
    assert evaluator._repr_html_().startswith("<div")


@pytest.mark.parametrize("kind", NAMES)
def test_the_state_is_in_the_pool_of_the_device_and_is_given_back(kind):
    evaluator = MAKERS[kind]()
    add(evaluator, batch(kind, 50, np.random.default_rng(0)))
    held = mc.config.get_memory_info("CPU:0")["current"]
    assert held >= evaluator.state_bytes > 0
    bytes_before = evaluator.state_bytes
    if "steps" in kind or not kind.startswith("roc"):
        add(evaluator, batch(kind, 5000, np.random.default_rng(1)))
        assert evaluator.state_bytes == bytes_before  # bounded
    evaluator.reset()
    assert evaluator.state_bytes == 0
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


@pytest.mark.parametrize("kind", NAMES)
def test_a_limit_that_is_too_low_refuses_and_changes_nothing(kind):
    evaluator = MAKERS[kind]()
    add(evaluator, batch(kind, 50, np.random.default_rng(0)))
    before = evaluator.to_json()
    many = batch(kind, 5000, np.random.default_rng(1))
    with mc.budget("32KiB"), pytest.raises(ResourceExhaustedError) as raised:
        evaluator.eval(*many[:2])
    assert "evaluation" in raised.value.owners
    assert evaluator.to_json() == before


@pytest.mark.parametrize(
    ("labels", "predictions", "more", "words"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), {"mask": [1, 2]}, "a mask holds 0 and 1"),
        (np.ones((2, 3)), np.ones((2, 3)), {"mask": [1]}, "mask has shape"),
        (np.ones((2, 3)), np.ones((2, 3)), {"sample_weight": [1, -1]}, "are not < 0"),
        (np.ones((2, 3)), np.full((2, 3), np.inf), {}, "predictions hold NaN or inf"),
        (np.ones((2, 2)), np.ones((2, 3)), {}, r"labels have shape \(2, 2\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(labels, predictions, more, words):
    evaluator = EvaluationBinary()
    with pytest.raises(ValueError, match=words):
        evaluator.eval(labels, predictions, **more)
    assert evaluator.count == 0


def test_only_equal_evaluators_merge():
    one, two = Evaluation(3), Evaluation(3, top_n=2)
    with pytest.raises(ValueError, match="different arguments"):
        one.merge(two)
    with pytest.raises(TypeError, match="merges with its own class"):
        one.merge(ROC())
    first, second = Evaluation(), Evaluation()
    first.eval([0], [[1, 0]])
    second.eval([0], [[1, 0, 0]])
    with pytest.raises(ValueError, match="one has 2 outputs and the other 3"):
        first.merge(second)
    assert first.count == second.count == 1


def changed(text, **fields):
    return json.dumps(json.loads(text) | fields)


def test_documents_that_are_wrong_are_format_errors():
    evaluation, roc = Evaluation(2), ROC()
    evaluation.eval([0, 1], [[1, 0], [0, 1]])
    roc.eval([0, 1], [0.2, 0.7])
    text, exact = evaluation.to_json(), roc.to_json()
    for wrong, words in (
        ("{", "not JSON"),
        ("{}", "no 'format' key"),
        (changed(text, format="other"), "this version reads 'memcfg-evaluation-1'"),
        (changed(text, kind="Nothing"), "'Nothing' is no Evaluator"),
        (changed(text, settings={"num_classes": 0}), "wrong settings"),
        (changed(text, settings={"unknown": 0}), "wrong settings"),
        (changed(exact, settings={"spill_to": "."}), "'spill_to' is none of them"),
        (changed(text, state={}), "has confusion, not"),
        (changed(text, state={"confusion": [[1, 2]]}), "a list of length 2"),
        (changed(text, state={"confusion": [[1, 2], [3, "x"]]}), "hold numbers"),
        (changed(text, state={"confusion": [[1, 2], [3, -1]]}), "below 0"),
        (changed(text, state={"confusion": [[1, 2], [3, 1e999]]}), "Infinity"),
        (changed(text, columns=3), "of 2 classes"),
        (changed(text, count=-1), "whole number >= 0"),
        (changed(exact, state={"curves": []}), "a list of length 1"),
        (changed(exact, state={"curves": [[[1], [1]]]}), "three lists"),
        (changed(exact, state={"curves": [[[1], [1, 2], [1]]]}), "of length 1"),
    ):
        with pytest.raises(FormatError, match=words):
            Evaluator.from_json(wrong)
    with pytest.raises(FormatError, match="'ROC' is no Evaluation"):
        Evaluation.from_json(exact)
