"""Evaluation against scikit-learn, and against the numbers that DL4J's tests pin."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from memcfg.evaluation import Evaluation

EXACT = 1e-12


@st.composite
def predictions(draw):
    """Outputs of few values, so that there are ties, labels, and weights or None."""
    classes, rows = draw(st.integers(2, 5)), draw(st.integers(1, 30))
    number = st.integers(0, 4)
    outputs = draw(st.lists(number, min_size=rows * classes, max_size=rows * classes))
    few = draw(st.integers(1, classes))  # so that some classes are empty
    labels = draw(st.lists(st.integers(0, few - 1), min_size=rows, max_size=rows))
    weights = draw(
        st.none() | st.lists(st.integers(1, 3), min_size=rows, max_size=rows)
    )
    return np.reshape(outputs, (rows, classes)) / 4, np.array(labels), weights


def one_hot(labels, classes):
    return np.eye(classes)[labels]


@given(predictions())
def test_counts_and_metrics_are_those_of_scikit_learn(drawn):
    outputs, labels, weights = drawn
    classes = outputs.shape[1]
    evaluation = Evaluation(classes, binary_positive_class=None)
    evaluation.eval(labels, outputs, sample_weight=weights)
    chosen, every = outputs.argmax(1), np.arange(classes)
    given_as = {"sample_weight": weights, "labels": every}
    matrix = sk.confusion_matrix(labels, chosen, **given_as)
    np.testing.assert_array_equal(evaluation.confusion_matrix().counts, matrix)
    assert evaluation.accuracy() == pytest.approx(
        sk.accuracy_score(labels, chosen, sample_weight=weights), abs=EXACT
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for ours, theirs in (
            (evaluation.precision, sk.precision_score),
            (evaluation.recall, sk.recall_score),
        ):
            each = theirs(
                labels, chosen, average=None, zero_division=np.nan, **given_as
            )
            known = each[~np.isnan(each)]
            expected = known.mean() if known.size else 0.0
            assert ours() == pytest.approx(expected, abs=EXACT)
            assert ours(averaging="micro") == pytest.approx(
                theirs(labels, chosen, average="micro", **given_as), abs=EXACT
            )
            for i in every:
                assert ours(i) == pytest.approx(np.nan_to_num(each[i]), abs=EXACT)
        # Deeplearning4j's average is of classes with a precision and a recall.
        scores = sk.fbeta_score(labels, chosen, beta=3.5, average=None, **given_as)
        defined = (matrix.sum(0) > 0) & (matrix.sum(1) > 0)
        mean = scores[defined].mean() if defined.any() else 0.0
        assert evaluation.f_beta(3.5) == pytest.approx(mean, abs=EXACT)
        assert evaluation.f_beta(3.5, averaging="micro") == pytest.approx(
            sk.fbeta_score(labels, chosen, beta=3.5, average="micro", **given_as),
            abs=EXACT,
        )
        for i in every:
            assert evaluation.matthews_correlation(i) == pytest.approx(
                sk.matthews_corrcoef(labels == i, chosen == i, sample_weight=weights),
                abs=EXACT,
            )


@given(predictions(), st.integers(1, 5))
def test_top_n_counts_the_larger_outputs(drawn, top_n):
    outputs, labels, weights = drawn
    evaluation = Evaluation(top_n=top_n)
    evaluation.eval(one_hot(labels, outputs.shape[1]), outputs, sample_weight=weights)
    right = [
        sum(each > row[label] for each in row) < top_n
        for row, label in zip(outputs, labels, strict=True)
    ]
    expected = np.average(right, weights=weights)
    if top_n == 1:  # a tie is right for one of the classes
        assert evaluation.top_n_accuracy() == evaluation.accuracy() <= expected
    else:
        assert evaluation.top_n_accuracy() == pytest.approx(expected, abs=EXACT)


@given(predictions(), st.randoms(use_true_random=False))
def test_masked_rows_do_not_count_whatever_they_hold(drawn, random):
    outputs, labels, weights = drawn
    mask = np.array([random.random() < 0.6 for _ in labels])
    spoilt = np.where(mask[:, None], outputs, np.nan)
    masked, plain = Evaluation(outputs.shape[1]), Evaluation(outputs.shape[1])
    masked.eval(labels, spoilt, mask, sample_weight=weights)
    if not mask.any():
        assert masked.count == 0
        return
    left = None if weights is None else np.array(weights)[mask]
    plain.eval(labels[mask], outputs[mask], sample_weight=left)
    assert masked.to_json() == plain.to_json()


def test_a_correct_and_a_wrong_row_of_five_classes():
    evaluation = Evaluation(5)
    evaluation.eval(one_hot([0], 5), one_hot([0], 5))
    assert evaluation.class_count(0) == 1
    assert evaluation.f1() == 1.0
    evaluation.eval(one_hot([1], 5), one_hot([0], 5))
    assert (evaluation.class_count(0), evaluation.class_count(1)) == (1, 1)
    assert evaluation.f1() == pytest.approx(0.6, abs=0.1)
    assert evaluation.accuracy() == 0.5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_text_is_the_same_for_every_dtype(dtype):
    labels = [1] * 23 + [0] * 15
    chosen = [1] * 20 + [0] * 3 + [1] * 10 + [0] * 5
    evaluation = Evaluation(2, labels=["no", "yes"])
    evaluation.eval(one_hot(labels, 2).astype(dtype), one_hot(chosen, 2).astype(dtype))
    assert evaluation.accuracy() == 25 / 38
    assert evaluation.stats() == (
        "Evaluation of 2 classes: rows 38  accuracy 0.6579\n"
        "Numbers of the positive class yes:\n"
        "precision 0.6667  recall 0.8696  F1 0.7547  G 0.7614  MCC 0.2433\n"
        " class  rows  precision  recall      F1       G     MCC\n"
        " ──────────────────────────────────────────────────────\n"
        " no       15     0.6250  0.3333  0.4348  0.4564  0.2433\n"
        " yes      23     0.6667  0.8696  0.7547  0.7614  0.2433\n"
        "\n"
        " actual \\ predicted  no  yes\n"
        " ───────────────────────────\n"
        " no                   5   10\n"
        " yes                  3   20"
    )


def test_a_single_output_is_two_classes():
    evaluation = Evaluation()
    for _ in range(3):
        evaluation.eval([[0], [1], [1], [1]], [[0.2], [0.7], [0.9], [0.1]])
        assert evaluation.accuracy() == 0.75
        assert evaluation.true_positives().tolist() == [1, 2]
        assert evaluation.false_negatives().tolist() == [0, 1]
        evaluation.reset()


def test_class_zero_of_two_mirrors_class_one():
    labels = [1] * 13 + [0] * 6
    chosen = [1] * 10 + [0] * 3 + [1] * 4 + [0] * 2
    evaluation = Evaluation(2)
    evaluation.eval(labels, one_hot(chosen, 2))
    assert evaluation.accuracy() == 12 / 19
    assert evaluation.precision() == evaluation.precision(1) == 10 / 14
    assert evaluation.recall() == evaluation.recall(1) == 10 / 13
    assert (evaluation.precision(0), evaluation.recall(0)) == (2 / 5, 2 / 6)
    assert evaluation.true_positives().tolist() == [2, 10]
    assert evaluation.false_positives().tolist() == [3, 4]
    assert evaluation.false_negatives().tolist() == [4, 3]
    assert evaluation.true_negatives().tolist() == [10, 2]
    mirrored = Evaluation(2, binary_positive_class=0)
    mirrored.eval(labels, one_hot(chosen, 2))
    assert mirrored.precision() == 2 / 5


# Rows of four classes of which the label is: first, second, third, last, and so on.
RANKS = [1, 2, 3, 4, 1, 3, 2, 4]


def test_top_three_accuracy_grows_with_the_rows():
    evaluation = Evaluation(4, top_n=3)
    parts = [Evaluation(4, top_n=3) for _ in range(2)]
    found = []
    for number, rank in enumerate(RANKS):
        row = np.roll([0.4, 0.3, 0.2, 0.1], number)  # class `number` is the largest
        label = (number + rank - 1) % 4
        for each in (evaluation, parts[number % 2]):
            each.eval([label], [row])
        found.append((evaluation.accuracy(), evaluation.top_n_accuracy()))
    accuracies = [1, 1 / 2, 1 / 3, 1 / 4, 2 / 5, 1 / 3, 2 / 7, 1 / 4]
    top_three = [1, 1, 1, 0.75, 0.8, 5 / 6, 6 / 7, 0.75]
    assert found == list(zip(accuracies, top_three, strict=True))
    parts[0].merge(parts[1])
    assert (parts[0].accuracy(), parts[0].top_n_accuracy()) == (2 / 8, 6 / 8)
    assert parts[0].top_n_correct_count == 6


def of_three_classes():
    """Rows whose confusion matrix is [[3, 1, 0], [2, 2, 1], [0, 3, 4]]."""
    matrix = [[3, 1, 0], [2, 2, 1], [0, 3, 4]]
    pairs = [(i, j) for i in range(3) for j in range(3) for _ in range(matrix[i][j])]
    labels, chosen = zip(*pairs, strict=True)
    result = Evaluation(3)
    result.eval(labels, one_hot(list(chosen), 3))
    return result


def test_counts_and_averages_of_a_confusion_matrix():
    of_three = of_three_classes()
    counts = list(
        zip(
            of_three.true_positives().tolist(),
            of_three.false_negatives().tolist(),
            of_three.false_positives().tolist(),
            of_three.true_negatives().tolist(),
            strict=True,
        )
    )
    assert counts == [(3, 1, 2, 10), (2, 3, 4, 7), (4, 3, 1, 8)]
    precisions, recalls = [3 / 5, 2 / 6, 4 / 5], [3 / 4, 2 / 5, 4 / 7]
    f1 = [2 * p * r / (p + r) for p, r in zip(precisions, recalls, strict=True)]
    g = [(p * r) ** 0.5 for p, r in zip(precisions, recalls, strict=True)]
    square = 3.5 * 3.5
    f_beta = [
        (1 + square) * p * r / (square * p + r)
        for p, r in zip(precisions, recalls, strict=True)
    ]
    mcc = [
        (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
        for tp, fn, fp, tn in counts
    ]
    for name, expected in (
        ("precision", precisions),
        ("recall", recalls),
        ("f1", f1),
        ("g_measure", g),
        ("matthews_correlation", mcc),
    ):
        ours = getattr(of_three, name)
        assert [ours(i) for i in range(3)] == pytest.approx(expected, abs=EXACT)
        assert ours() == ours(averaging="macro") == of_three.get_value(name)
        assert ours() == pytest.approx(np.mean(expected), abs=EXACT)
    assert of_three.f_beta(3.5) == pytest.approx(np.mean(f_beta), abs=EXACT)
    # micro: tp 9, fp 7, fn 7, tn 25
    assert of_three.precision(averaging="micro") == 9 / 16
    assert of_three.g_measure(averaging="micro") == pytest.approx(9 / 16)
    assert of_three.matthews_correlation(averaging="micro") == pytest.approx(
        (9 * 25 - 7 * 7) / (16 * 16 * 32 * 32) ** 0.5
    )
    assert of_three.false_positive_rate(0) == 2 / 12
    assert of_three.false_negative_rate(0) == 1 / 4
    rates = of_three.false_positive_rate() + of_three.false_negative_rate()
    assert of_three.false_alarm_rate() == rates / 2


def test_costs_and_a_threshold_change_what_is_chosen():
    rows = [[0.6, 0.4], [0.8, 0.2], [0.1, 0.9]]
    for argument, expected in (
        ({}, [0, 0, 1]),
        ({"cost_array": [1, 2]}, [1, 0, 1]),
        ({"binary_decision_threshold": 0.15}, [1, 1, 1]),
        ({"binary_decision_threshold": 0.4}, [0, 0, 1]),  # above, not at
    ):
        evaluation = Evaluation(**argument)
        evaluation.eval(expected, rows)
        assert evaluation.accuracy() == 1.0, argument
    single = Evaluation(binary_decision_threshold=0.3)
    single.eval([0, 1], [[0.3], [0.31]])
    assert single.accuracy() == 1.0


def test_time_series_with_a_mask_are_rows_without_it():
    rng = np.random.default_rng(1)
    outputs, labels = rng.random((6, 7, 4)), rng.integers(0, 4, (6, 7))
    mask = rng.random((6, 7)) < 0.5
    series, rows, hot = Evaluation(4), Evaluation(4), Evaluation(4)
    series.eval(labels, outputs, mask)
    hot.eval(one_hot(labels, 4), outputs, mask[..., None].astype(np.float32))
    rows.eval(labels[mask], outputs[mask])
    assert series.to_json() == rows.to_json() == hot.to_json()
    weighted = Evaluation(4)
    weighted.eval(labels, outputs, sample_weight=np.arange(6))
    assert weighted.accuracy() == pytest.approx(
        np.average(
            outputs.argmax(2) == labels, weights=np.arange(6).repeat(7).reshape(6, 7)
        )
    )


def test_a_large_batch_is_read_in_blocks():
    rng = np.random.default_rng(2)
    outputs, labels = rng.random((70_000, 3), np.float32), rng.integers(0, 3, 70_000)
    whole, parts = Evaluation(3), Evaluation(3)
    whole.eval(labels, outputs)
    for begin in range(0, 70_000, 999):
        parts.eval(labels[begin : begin + 999], outputs[begin : begin + 999])
    assert whole.to_json() == parts.to_json()
    spoilt = outputs.copy()
    spoilt[-1] = np.nan  # in the last block
    before = whole.to_json()
    with pytest.raises(ValueError, match="predictions hold NaN"):
        whole.eval(labels, spoilt)
    assert whole.to_json() == before


@pytest.mark.parametrize(
    ("labels", "outputs", "kind", "words"),
    [
        ([0, 3], [[1, 0, 0], [0, 1, 0]], ValueError, "indices of 3 classes are 0 to 2"),
        ([0, 0.5], [[1, 0, 0], [0, 1, 0]], ValueError, "labels hold 0.5"),
        ([0], [[1, 0, 0], [0, 1, 0]], ValueError, r"need \(2, 3\), or \(2,\)"),
        ([0, 1], [[1, 0], [0, 1]], ValueError, "of 3 outputs, and these have 2"),
        ([0, 1], [["a", "b", "c"]] * 2, TypeError, "predictions are numbers"),
        ([np.nan, 1], [[1, 0, 0], [0, 1, 0]], ValueError, "labels hold NaN"),
        ([], np.zeros((0, 0)), ValueError, "an axis of samples and one of outputs"),
    ],
)
def test_what_cannot_be_read_is_refused_and_changes_nothing(
    labels, outputs, kind, words
):
    evaluation = Evaluation(3)
    evaluation.eval([1], [[0, 1, 0]])
    before = evaluation.to_json()
    with pytest.raises(kind, match=words):
        evaluation.eval(labels, outputs)
    assert evaluation.to_json() == before


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"num_classes": 1}, ValueError, "num_classes is at least 2"),
        ({"num_classes": 3, "labels": ["a", "b"]}, ValueError, "ambiguous: 3 by num"),
        ({"labels": "ab"}, TypeError, "labels are names"),
        ({"top_n": 0}, ValueError, "top_n is at least 1"),
        ({"cost_array": [1, -1]}, ValueError, "cost_array has a finite number"),
        ({"binary_decision_threshold": 2}, ValueError, "is from 0 to 1"),
        ({"binary_positive_class": 2}, ValueError, "is 0, 1 or None"),
        (
            {"cost_array": [1, 1], "binary_decision_threshold": 0.5},
            ValueError,
            "not both",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, kind, words):
    with pytest.raises(kind, match=words):
        Evaluation(**arguments)


def test_wrong_questions_are_refused():
    of_three = of_three_classes()
    for ask, words in (
        (lambda: of_three.precision(3), "from 0 to 2"),
        (lambda: of_three.precision(0, "macro"), "not both"),
        (lambda: of_three.precision(averaging="mean"), "unknown averaging 'mean'"),
        (lambda: of_three.f_beta(0), "beta is above 0"),
        (lambda: of_three.get_value("auc"), "has no metric 'auc'"),
    ):
        with pytest.raises(ValueError, match=words):
            ask()


def test_classes_that_never_occur_are_named():
    evaluation = Evaluation(labels=["a", "b", "c"])
    evaluation.eval([0, 0, 1], one_hot([0, 1, 0], 3))
    text = evaluation.stats()
    assert "Never predicted: class c." in text
    assert "Never among the labels: class c." in text
