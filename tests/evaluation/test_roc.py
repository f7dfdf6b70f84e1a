"""ROC and precision-recall curves: scikit-learn, DL4J's numbers, and brute force."""

from __future__ import annotations

import pickle
import re
import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

import memcfg as mc
from memcfg.errors import ResourceExhaustedError
from memcfg.evaluation import ROC, ROCBinary, ROCMultiClass

EXACT, BINNED = 1e-12, 1e-6


@st.composite
def scored(draw):
    """Labels, scores with many ties, and weights or None."""
    rows = draw(st.integers(1, 40))
    scores = draw(st.lists(st.integers(0, 8), min_size=rows, max_size=rows))
    labels = draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
    weights = draw(
        st.none() | st.lists(st.floats(0.25, 4), min_size=rows, max_size=rows)
    )
    return np.array(labels), np.array(scores) / 8, weights


def auprc_of(labels, scores, weights=None):
    precision, recall, _ = sk.precision_recall_curve(
        labels, scores, sample_weight=weights
    )
    return sk.auc(recall, precision)


@given(scored())
def test_exact_curves_and_areas_are_those_of_scikit_learn(drawn):
    labels, scores, weights = drawn
    roc = ROC()
    roc.eval(labels, scores, sample_weight=weights)
    curve = roc.get_roc_curve(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        false_rate, true_rate, thresholds = sk.roc_curve(
            labels, scores, sample_weight=weights, drop_intermediate=False
        )
    np.testing.assert_allclose(curve.thresholds, thresholds, atol=EXACT)
    np.testing.assert_allclose(curve.false_positive_rate, false_rate, atol=EXACT)
    np.testing.assert_allclose(curve.true_positive_rate, true_rate, atol=EXACT)
    if 0 < labels.sum() < len(labels):
        expected = sk.roc_auc_score(labels, scores, sample_weight=weights)
        assert roc.calculate_auc() == pytest.approx(expected, abs=EXACT)
    else:
        assert np.isnan(roc.calculate_auc())
    if labels.any():
        expected = auprc_of(labels, scores, weights)
        assert roc.calculate_auprc() == pytest.approx(expected, abs=EXACT)
        precision, recall, _ = sk.precision_recall_curve(
            labels, scores, sample_weight=weights
        )
        found = roc.get_precision_recall_curve(None)
        np.testing.assert_allclose(found.recall, recall[::-1], atol=EXACT)
        np.testing.assert_allclose(found.precision, precision[::-1], atol=EXACT)
    else:
        assert np.isnan(roc.calculate_auprc())


@given(scored(), st.integers(1, 12))
def test_binned_counts_and_areas_are_those_of_brute_force(drawn, steps):
    labels, scores, weights = drawn
    w = np.ones(len(labels)) if weights is None else np.array(weights)
    roc = ROC(threshold_steps=steps)
    roc.eval(labels, scores, sample_weight=weights)
    thresholds = [i / steps for i in range(steps, -1, -1)]
    tp = [0.0, *(w[(scores >= t) & (labels == 1)].sum() for t in thresholds)]
    fp = [0.0, *(w[(scores >= t) & (labels == 0)].sum() for t in thresholds)]
    curve = roc.get_roc_curve()
    assert curve.thresholds.tolist() == [np.inf, *thresholds]
    np.testing.assert_allclose(curve.true_positives, tp, atol=EXACT)
    np.testing.assert_allclose(curve.false_positives, fp, atol=EXACT)
    if tp[-1] and fp[-1]:
        area = np.trapezoid(np.array(tp) / tp[-1], np.array(fp) / fp[-1])
        assert roc.calculate_auc() == pytest.approx(area, abs=BINNED)
    if tp[-1]:
        precision = [t / (t + f) if t + f else 1.0 for t, f in zip(tp, fp, strict=True)]
        area = np.trapezoid(precision, np.array(tp) / tp[-1])
        assert roc.calculate_auprc() == pytest.approx(area, abs=BINNED)


def test_ten_perfect_examples_have_eleven_thresholds():
    roc = ROC(threshold_steps=10)
    labels = np.array([0, 1] * 5)
    for _ in range(2):
        roc.eval(np.eye(2)[labels], np.eye(2)[labels])
        curve = roc.get_roc_curve()
        assert curve.thresholds[:0:-1].tolist() == [i / 10 for i in range(11)]
        assert roc.calculate_auc() == 1.0
        assert roc.calculate_auprc() == 1.0
        roc.reset()


@pytest.mark.parametrize("steps", [10, 0])
def test_the_area_of_five_examples(steps):
    roc = ROC(threshold_steps=steps)
    roc.eval([0, 0, 0, 1, 1], [0.15, 0.25, 0.65, 0.55, 0.85])
    assert roc.calculate_auc() == pytest.approx(1 / 6 + 2 / 3, abs=EXACT)
    near = 1e-4 if steps else 1e-8
    assert roc.calculate_auprc() == pytest.approx(0.7916666666667, abs=near)
    if steps:
        curve = roc.get_roc_curve()
        tp, fp = curve.true_positives[:0:-1], curve.false_positives[:0:-1]
        assert tp.tolist() == [2, 2, 2, 2, 2, 2, 1, 1, 1, 0, 0]
        assert fp.tolist() == [3, 3, 2, 1, 1, 1, 1, 0, 0, 0, 0]


def test_the_thirty_points_that_dl4j_compares_with_scikit_learn():
    random = np.random.RandomState(12345)
    scores, labels = random.rand(30), random.randint(0, 2, 30)
    roc = ROC()
    roc.eval(labels, scores)
    assert roc.calculate_auc() == pytest.approx(0.459330143541, abs=1e-12)
    assert roc.calculate_auprc() == pytest.approx(0.398963619227, abs=1e-12)


@pytest.mark.parametrize("steps", [0, 20])
def test_three_parts_merge_to_one(steps):
    rng = np.random.default_rng(3)
    parts = [ROC(threshold_steps=steps) for _ in range(3)]
    one = ROC(threshold_steps=steps)
    for number in range(30):
        labels, scores = rng.integers(0, 2, 64), rng.random(64)
        parts[number % 3].eval(labels, scores)
        one.eval(labels, scores)
    parts[0].merge(parts[1])
    parts[0].merge(parts[2])
    assert parts[0].calculate_auc() == pytest.approx(one.calculate_auc(), abs=EXACT)
    assert parts[0].calculate_auprc() == pytest.approx(one.calculate_auprc(), abs=EXACT)
    assert parts[0].count == one.count == 1920


@pytest.mark.parametrize("steps", [0, 20])
def test_classes_against_the_others_are_separate_rocs(steps):
    rng = np.random.default_rng(4)
    outputs, labels = rng.dirichlet(np.ones(3), 100), rng.integers(0, 3, 100)
    several = ROCMultiClass(steps)
    several.eval(labels, outputs)
    areas = []
    for i in range(3):
        one, two = ROC(threshold_steps=steps), ROCMultiClass(steps)
        one.eval(labels == i, outputs[:, i])
        two.eval(labels == i, np.stack((1 - outputs[:, i], outputs[:, i]), 1))
        areas.append(one.calculate_auc())
        assert several.calculate_auc(i) == one.calculate_auc() == two.calculate_auc(1)
        assert several.calculate_auprc(i) == one.calculate_auprc()
    assert several.calculate_average_auc() == pytest.approx(np.mean(areas), abs=EXACT)
    if not steps:
        hot = np.eye(3)[labels]
        assert several.calculate_average_auc() == pytest.approx(
            sk.roc_auc_score(hot, outputs), abs=EXACT
        )


@settings(max_examples=60)
@given(
    rows=st.integers(1, 30),
    classes=st.integers(2, 5),
    present=st.integers(1, 5),
    levels=st.integers(1, 8),
    weighted=st.booleans(),
    seed=st.integers(0, 999),
)
def test_areas_of_classes_and_outputs_are_those_of_scikit_learn(
    rows, classes, present, levels, weighted, seed
):
    """With ties, weights, some of 0, and classes that no row has."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, min(present, classes), rows)
    hot = np.eye(classes)[labels]
    scores = rng.integers(0, levels + 1, (rows, classes)) / levels
    weights = rng.integers(0, 4, rows) if weighted else np.ones(rows)
    assume(weights.any())  # rows of weight 0 are none
    each, one = ROCBinary(), ROCMultiClass()
    given_weights = weights if weighted else None
    each.eval(hot, scores, sample_weight=given_weights)
    one.eval(labels, scores, sample_weight=given_weights)
    areas = []
    for i in range(classes):
        total, positive = weights.sum(), weights[labels == i].sum()
        if 0 < positive < total:
            expected = sk.roc_auc_score(hot[:, i], scores[:, i], sample_weight=weights)
            areas.append(expected)
        else:
            expected = np.nan
        for roc in (each, one):
            assert roc.calculate_auc(i) == pytest.approx(
                expected, abs=EXACT, nan_ok=True
            )
    for roc in (each, one):
        assert roc.calculate_average_auc() == pytest.approx(
            np.mean(areas) if areas else np.nan, abs=EXACT, nan_ok=True
        )


def test_time_series_with_masks_are_rows():
    rng = np.random.default_rng(5)
    outputs, labels = rng.random((8, 9, 2)), rng.integers(0, 2, (8, 9, 2))
    mask = rng.random((8, 9)) < 0.5
    each = rng.random((8, 9, 2)) < 0.5  # a mask of each output
    series, rows, by_output = ROCBinary(), ROCBinary(), ROCBinary()
    series.eval(labels, outputs, mask)
    rows.eval(labels[mask], outputs[mask])
    assert series.calculate_average_auc() == rows.calculate_average_auc()
    by_output.eval(labels, np.where(each, outputs, np.nan), each)
    for i in range(2):
        kept = each[..., i]
        expected = sk.roc_auc_score(labels[..., i][kept], outputs[..., i][kept])
        assert by_output.calculate_auc(i) == pytest.approx(expected, abs=EXACT)


def test_an_output_of_one_class_is_left_out_of_the_average():
    roc = ROCBinary()
    roc.eval([[1, 1], [0, 1], [1, 1]], [[0.3, 0.1], [0.2, 0.6], [0.1, 0.7]])
    assert np.isnan(roc.calculate_auc(1))
    assert roc.calculate_average_auc() == roc.calculate_auc(0) == 0.5
    assert " -  " in roc.stats()


def test_a_curve_has_at_most_as_many_points_as_asked_for():
    rng = np.random.default_rng(6)
    labels, scores = rng.integers(0, 2, 10_000), rng.random(10_000)
    roc = ROC()
    roc.eval(labels, scores)
    whole, some = roc.get_roc_curve(None), roc.get_roc_curve(100)
    assert len(whole) == 10_001
    assert len(some) == 101
    assert some.area == whole.area == roc.calculate_auc()
    for first in (whole, some):
        assert (first.true_positives[0], first.false_positives[0]) == (0, 0)
        assert first.true_positives[-1] == labels.sum()
    assert set(some.thresholds) <= set(whole.thresholds)


# Memory of exact curves


def rank_auc(labels, scores):
    """Return the area by ranks of distinct scores (Mann and Whitney)."""
    ranks = np.empty(len(scores))
    ranks[scores.argsort()] = np.arange(1, len(scores) + 1)
    positives = labels.sum()
    above = ranks[labels].sum() - positives * (positives + 1) / 2
    return above / (positives * (len(labels) - positives))


def test_scores_that_do_not_fit_are_spilled_to_a_file(tmp_path):
    rng = np.random.default_rng(7)
    kept, spilled = ROC(), ROC(byte_limit="64KiB", spill_to=tmp_path)
    every = []
    for _ in range(60):
        scores = rng.integers(0, 5000, 500) / 5000  # with ties over batches
        labels = rng.random(500) < scores
        for each in (kept, spilled):
            each.eval(labels, scores)
        every.append((labels, scores))
    labels, scores = map(np.concatenate, zip(*every, strict=True))
    assert spilled.state_bytes <= 65536 // 3
    assert spilled.spilled_bytes > 100_000
    assert list(tmp_path.iterdir()) == []  # the file has no name
    assert kept.spilled_bytes == 0
    for each in (kept, spilled):
        assert each.calculate_auc() == pytest.approx(
            sk.roc_auc_score(labels, scores), abs=EXACT
        )
        assert each.calculate_auprc() == pytest.approx(
            auprc_of(labels, scores), abs=EXACT
        )
    whole, merged = kept.get_roc_curve(None), spilled.get_roc_curve(None)
    np.testing.assert_array_equal(whole.thresholds, merged.thresholds)
    np.testing.assert_array_equal(whole.true_positives, merged.true_positives)
    fresh = ROC(byte_limit="64KiB", spill_to=tmp_path)
    fresh.merge(spilled)
    fresh.merge(spilled.new_instance())
    assert fresh.calculate_auc() == pytest.approx(kept.calculate_auc(), abs=EXACT)
    with pytest.raises(ValueError, match="of scores are in a file"):
        spilled.to_json()
    spilled.reset()
    assert spilled.spilled_bytes == 0


def test_where_scores_are_spilled_is_no_part_of_merging_and_json(tmp_path):
    """Each process has a folder of its own, which others need not have."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, two = ROC(spill_to=first), ROC(spill_to=second)
    one.eval([0, 1, 1], [0.2, 0.1, 0.7])
    two.eval([0, 1], [0.3, 0.4])
    text = one.to_json()
    assert str(tmp_path) not in text
    first.rmdir()
    read = ROC.from_json(text)
    assert read.to_json() == pickle.loads(pickle.dumps(one)).to_json() == text
    two.merge(read)
    assert two.count == 5
    assert two.new_instance().to_json() == ROC().to_json()
    assert str(second) in repr(two.new_instance())


@pytest.mark.parametrize("make", [ROC, ROCMultiClass])
def test_parts_of_spilled_scores_merge_to_the_same_curve(make, tmp_path):
    """Workers of other processes send them, and none is larger than the limit."""
    rng = np.random.default_rng(12)
    options = {"byte_limit": "16KiB"}
    whole, small = make(), make(**options, spill_to=tmp_path)
    for _ in range(4):
        labels, outputs = rng.integers(0, 2, 200), rng.dirichlet(np.ones(2), 200)
        weights = rng.integers(1, 4, 200)
        given = outputs if make is ROCMultiClass else outputs[:, 1]
        for each in (whole, small):
            each.eval(labels, given, sample_weight=weights)
    assert small.spilled_bytes > 0
    parts = [pickle.dumps(each) for each in small._parts()]
    assert len(parts) > 4
    merged = make(**options, spill_to=tmp_path)
    for each in map(pickle.loads, parts):
        assert each.spilled_bytes == 0
        assert 0 < each.state_bytes <= 16384
        merged.merge(each)
    assert merged.count == 800
    assert merged.stats() == small.stats()
    for name in make.metrics:
        expected = pytest.approx(whole.get_value(name), abs=EXACT)
        assert merged.get_value(name) == expected
        assert small.get_value(name) == expected
    (same,) = whole._parts()
    assert same is whole


def test_scores_that_do_not_fit_are_refused_with_numbers_and_ways_out():
    roc = ROC(byte_limit="8KiB")
    rng = np.random.default_rng(8)
    roc.eval(rng.integers(0, 2, 60), rng.random(60))
    before = roc.to_json()
    for rows in (80, 100_000):  # within a block, and over several
        with pytest.raises(ResourceExhaustedError, match="spill_to=folder") as raised:
            roc.eval(rng.integers(0, 2, rows), rng.random(rows))
        assert raised.value.limit_bytes <= 8192
        assert roc.to_json() == before
    other = ROC(byte_limit="8KiB")
    other.eval(rng.integers(0, 2, 60), rng.random(60))
    with pytest.raises(ResourceExhaustedError):
        roc.merge(other)
    assert roc.to_json() == before
    roc.eval(rng.integers(0, 2, 20), rng.random(20))  # it goes on
    assert roc.count == 80


def test_equal_scores_take_no_further_memory():
    roc = ROC(byte_limit="8KiB")
    rng = np.random.default_rng(9)
    scores, labels = rng.integers(0, 40, 100_000) / 40, rng.integers(0, 2, 100_000)
    roc.eval(labels, scores)
    assert roc.state_bytes <= 8192
    expected = sk.roc_auc_score(labels, scores)
    assert roc.calculate_auc() == pytest.approx(expected, abs=EXACT)


def test_a_batch_that_fails_after_a_spill_is_forgotten(tmp_path):
    """The limit of the device refuses in the middle of a large batch."""
    rng = np.random.default_rng(10)
    roc = ROCMultiClass(byte_limit="64KiB", spill_to=tmp_path)
    outputs = rng.dirichlet(np.ones(2), 300)
    labels = rng.integers(0, 2, 300)
    roc.eval(labels, outputs)
    before = roc.calculate_auc(1)
    many = rng.dirichlet(np.ones(2), 60_000)
    with mc.budget("2MiB"), pytest.raises(MemoryError):
        roc.eval(rng.integers(0, 2, 60_000), many)
    assert roc.count == 300
    roc.eval(labels[:0], outputs[:0])
    assert roc.get_roc_curve(1).area == before
    assert roc.get_roc_curve(1, None).true_positives[-1] == labels.sum()


@pytest.mark.slow
def test_ten_million_samples_in_sixteen_mebibytes(tmp_path):
    """Peak of the pool 13,985,408 bytes when written, of 16,777,216 allowed."""
    limit = 16 << 20
    roc, binned = ROC(byte_limit=limit, spill_to=tmp_path), ROC(threshold_steps=200)
    rng = np.random.default_rng(11)
    labels, scores = [], []
    mc.config.reset_memory_stats("CPU:0")
    before = mc.config.get_memory_info("CPU:0")["current"]
    for _ in range(1000):
        s = rng.random(10_000)
        y = rng.random(10_000) < s
        for each in (roc, binned):
            each.eval(y, s)
        labels.append(y)
        scores.append(s)
    found = roc.calculate_auc()
    peak = mc.config.get_memory_info("CPU:0")["peak"] - before
    expected = rank_auc(np.concatenate(labels), np.concatenate(scores))
    assert roc.count == 10_000_000
    assert peak <= limit
    assert roc.spilled_bytes > 200_000_000
    assert found == pytest.approx(expected, abs=EXACT)
    assert binned.state_bytes == 2 * 2 * 201 * 8
    assert binned.calculate_auc() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: ROC(2), TypeError, r"ROC\(threshold_steps=2\).*ROCMultiClass"),
        (lambda: ROC(threshold_steps=-1), ValueError, "at least 0"),
        (lambda: ROC(byte_limit=10), ValueError, "byte_limit is at least 4096"),
        (lambda: ROC(spill_to="/nowhere/at/all"), ValueError, "is a folder"),
        (lambda: ROCMultiClass(labels="ab"), TypeError, "labels are names"),
    ],
)
def test_wrong_arguments_are_refused(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


@pytest.mark.parametrize(
    ("roc", "labels", "outputs", "words"),
    [
        (ROC(), [0, 2], [0.1, 0.2], "labels of ROC are 0 or 1"),
        (ROC(), [0, 1], np.ones((2, 3)), "use ROCMultiClass, or ROCBinary"),
        (ROC(threshold_steps=5), [0, 1], [0.1, 1.2], "probabilities from 0 to 1"),
        (ROCMultiClass(), [0, 3], np.ones((2, 3)), "indices of classes, 0 to 2"),
        (ROCMultiClass(), [0, 1], [[0.1], [0.2]], "use ROC"),
        (ROCBinary(labels=["a"]), np.ones((2, 2)), np.ones((2, 2)), "of 1 outputs"),
    ],
)
def test_what_cannot_be_read_is_refused(roc, labels, outputs, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        roc.eval(labels, outputs)
    assert roc.count == 0


def test_a_roc_does_not_merge_with_itself():
    roc = ROC()
    roc.eval([0, 1], [0.2, 0.6])
    with pytest.raises(ValueError, match="does not merge with itself"):
        roc.merge(roc)
    assert roc.count == 2
