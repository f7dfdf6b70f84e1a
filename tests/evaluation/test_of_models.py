"""Evaluators of a model's outputs: one pass, masks, several outputs, limits, faults."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.evaluation import (
    ROC,
    Evaluation,
    EvaluationBinary,
    EvaluationCalibration,
    RegressionEvaluation,
    ROCBinary,
    ROCMultiClass,
)

ROWS = 100


def data(classes=3):
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, 6), np.float32)
    return x, rng.integers(0, classes, ROWS), rng.random(ROWS)


def classifier(classes=3):
    nn.utils.set_random_seed(1)
    softmax = nn.Dense(classes, activation="softmax")
    return nn.Sequential([nn.Input((6,)), nn.Dense(5, activation="relu"), softmax])


class Recorder:
    """An evaluator that keeps what it is given."""

    def __init__(self):
        self.given = []

    def eval(self, labels, predictions, **others):
        self.given.append((labels, predictions, others))


def as_batches(x, y, w):
    return [(x[i : i + 32], y[i : i + 32], w[i : i + 32]) for i in range(0, ROWS, 32)]


FORMS = {
    "arrays": lambda x, y, w: (x, y, w),
    "list": lambda x, y, w: as_batches(x, y, w),
    "generator": lambda x, y, w: iter(as_batches(x, y, w)),
    "dataset": lambda x, y, w: mc.data.Dataset.from_tensor_slices((x, y, w)).batch(32),
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_one_pass_evaluates_what_predict_returns(form):
    x, y, w = data()
    model = classifier()  # not compiled
    outputs = model.predict(x, verbose=0)
    right = outputs.argmax(1) == y
    recorder, evaluation, roc = Recorder(), Evaluation(3), ROCMultiClass(50)
    found = model.do_evaluation(FORMS[form](x, y, w), recorder, evaluation, roc)
    assert found == (recorder, evaluation, roc)
    assert [len(each[0]) for each in recorder.given] == [32, 32, 32, 4]
    np.testing.assert_array_equal(
        np.concatenate([each[1] for each in recorder.given]), outputs
    )
    np.testing.assert_array_equal(np.concatenate([e[0] for e in recorder.given]), y)
    assert all(each[2].keys() == {"sample_weight"} for each in recorder.given)
    assert evaluation.count == ROWS
    mean = np.average(right, weights=w)
    assert evaluation.accuracy() == pytest.approx(mean, rel=1e-6)
    expected = ROCMultiClass(50)
    expected.eval(y, outputs, sample_weight=w.astype(np.float32))
    assert roc.calculate_average_auc() == pytest.approx(
        expected.calculate_average_auc(), abs=1e-6
    )


def test_a_model_is_built_by_the_first_batch():
    x, y, _ = data()
    model = nn.Sequential([nn.Dense(3, activation="softmax")])
    evaluation = model.do_evaluation((x, y), Evaluation(3), batch_size=30)
    assert evaluation.count == ROWS
    right = model.predict(x, verbose=0).argmax(1) == y
    assert evaluation.accuracy() == right.mean()


def test_evaluate_returns_the_same_numbers_in_the_same_pass():
    x, y, w = data()
    model = classifier()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    plain = model.evaluate(x, y, sample_weight=w, verbose=0)
    evaluation = Evaluation(3)
    steps = []

    class Counting(nn.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            steps.append(batch)

    found = model.evaluate(
        x,
        y,
        sample_weight=w,
        verbose=0,
        evaluations=[evaluation],
        callbacks=[Counting()],
    )
    assert found == plain
    assert steps == [0, 1, 2, 3]
    unweighted = Evaluation(3)
    assert model.evaluate(x, y, verbose=0, evaluations=[unweighted])[1] == (
        pytest.approx(unweighted.accuracy())
    )
    outputs = model.predict(x, verbose=0)
    assert evaluation.accuracy() == pytest.approx(
        np.average(outputs.argmax(1) == y, weights=w), rel=1e-6
    )
    # training goes on, and other evaluators serve at any time
    model.fit(x, y, epochs=1, verbose=0)
    later = Evaluation(3, top_n=2)
    model.evaluate(x, y, verbose=0, evaluations=[later, ROCMultiClass()])
    assert later.count == ROWS


def test_steps_that_layers_mask_do_not_count():
    nn.utils.set_random_seed(2)
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 5, (40, 7)), rng.integers(0, 4, (40, 7))
    model = nn.Sequential(
        [
            nn.Input((7,), dtype="int32"),
            nn.Embedding(5, 6, mask_zero=True),
            nn.LSTM(5, return_sequences=True),
            nn.Dense(4, activation="softmax"),
        ]
    )
    right = model.predict(x, verbose=0).argmax(-1) == y
    kept = x != 0
    evaluation = model.do_evaluation((x, y), Evaluation(4))
    assert evaluation.count == kept.sum()
    assert evaluation.accuracy() == pytest.approx(right[kept].mean())
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    again = Evaluation(4)
    logs = model.evaluate(x, y, verbose=0, evaluations=[again], return_dict=True)
    assert again.to_json() == evaluation.to_json()
    assert logs["accuracy"] == pytest.approx(evaluation.accuracy())
    assert logs == model.evaluate(x, y, verbose=0, return_dict=True)


def test_batches_of_any_length():
    nn.utils.set_random_seed(3)
    rng = np.random.default_rng(2)
    model = nn.Sequential(
        [
            nn.Input((None,), dtype="int32"),
            nn.Embedding(5, 6, mask_zero=True),
            nn.GRU(4, return_sequences=True),
            nn.Dense(3, activation="softmax"),
        ]
    )
    batches = [
        (rng.integers(0, 5, (8, n)), rng.integers(0, 3, (8, n))) for n in (4, 6, 4)
    ]
    evaluation = model.do_evaluation(batches, Evaluation(3))
    right = kept = 0
    for x, y in batches:
        hits = model.predict_on_batch(x).argmax(-1) == y
        right, kept = right + hits[x != 0].sum(), kept + (x != 0).sum()
    assert evaluation.count == kept
    assert evaluation.accuracy() == right / kept


def branches():
    nn.utils.set_random_seed(4)
    x = nn.Input((6,))
    kind = nn.Dense(3, activation="softmax", name="kind")(x)
    size = nn.Dense(2, name="size")(x)
    return nn.Model(x, {"kind": kind, "size": size})


def test_outputs_have_evaluators_by_name_or_index():
    x, y, w = data()
    sizes = np.stack((w, 1 - w), 1)
    model = branches()
    outputs = model.predict(x, verbose=0)
    kind, size, several = Evaluation(3), RegressionEvaluation(), Recorder()
    targets = {"kind": y, "size": sizes}
    model.do_evaluation((x, targets), {"kind": kind, 1: [size, several]})
    assert kind.accuracy() == (outputs["kind"].argmax(1) == y).mean()
    expected = ((outputs["size"][:, 1] - sizes[:, 1]) ** 2).mean()
    assert size.mean_squared_error(1) == pytest.approx(expected, rel=1e-6)
    assert sum(len(each[0]) for each in several.given) == ROWS
    alone = kind.new_instance()
    model.do_evaluation((x, {"kind": y}), {"kind": alone})  # no y for the other
    assert alone.to_json() == kind.to_json()
    model.compile("sgd", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    both = kind.new_instance(), size.new_instance()
    model.evaluate(
        x, targets, verbose=0, evaluations=[{"kind": both[0], "size": both[1]}]
    )
    assert both[0].to_json() == kind.to_json()
    assert both[1].mean_squared_error(0) == pytest.approx(size.mean_squared_error(0))
    model.compile("sgd", {"kind": "sparse_categorical_crossentropy"})
    with pytest.raises(ValueError, match="'size', which has no loss"):
        model.evaluate(x, {"kind": y}, verbose=0, evaluations=[{"size": size}])


def test_a_batch_in_parts_is_evaluated_as_a_whole():
    rng = np.random.default_rng(3)
    x, y = rng.random((64, 6), np.float32), rng.integers(0, 3, 64)
    nn.utils.set_random_seed(5)
    model = nn.Sequential([nn.Input((6,)), nn.Dense(512, "relu"), nn.Dense(3)])
    model.compile(
        "sgd",
        nn.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        on_oom="micro_batch",
    )
    free = Evaluation(3)
    numbers = model.evaluate(x, y, batch_size=64, verbose=0, evaluations=[free])
    model.close()
    held = Evaluation(3)
    mc.config.set_memory_limit("CPU:0", "100KiB")
    mc.config.reset_memory_stats("CPU:0")
    with pytest.warns(mc.errors.FallbackWarning, match="with outputs"):
        found = model.evaluate(x, y, batch_size=64, verbose=0, evaluations=[held])
    assert held.to_json() == free.to_json()
    assert found == pytest.approx(numbers, rel=1e-5)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= 102400
    again = Evaluation(3)
    with pytest.warns(mc.errors.FallbackWarning, match="predict, batch 64"):
        model.do_evaluation((x, y), again, batch_size=64)
    assert again.to_json() == free.to_json()


@pytest.mark.parametrize(
    "make",
    [
        partial(Evaluation, 3, top_n=2),
        partial(EvaluationBinary, 3),
        partial(EvaluationCalibration, 5, 7),
        RegressionEvaluation,
        partial(ROCBinary, 50),
        partial(ROCMultiClass, 50),
    ],
    ids=lambda make: getattr(make, "func", make).__name__,
)
def test_ten_times_as_many_rows_have_the_same_peak(make):
    rng = np.random.default_rng(4)
    x, y = rng.random((1280, 6), np.float32), np.eye(3)[rng.integers(0, 3, 1280)]
    model = classifier()
    peaks, counts = [], []
    for rows in (128, 1280):
        mc.config.reset_memory_stats("CPU:0")
        found = model.do_evaluation((x[:rows], y[:rows]), make(), batch_size=32)
        peaks.append(mc.config.get_memory_info("CPU:0")["peak"])
        counts.append(found.count)
        del found
        model.close()
    assert counts == [128, 1280]
    assert peaks[0] == peaks[1] > 0


class OwnSteps(nn.Model):
    """A model whose steps are its own."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, activation="softmax")

    def call(self, x):
        return self.dense(x)

    def predict_step(self, data):
        x, _, _ = nn.utils.unpack_x_y_sample_weight(data)
        return self(x, training=False) * 1.0


def test_steps_of_ones_own_are_evaluated():
    x, y, w = data()
    model = OwnSteps()
    model.compile("sgd", "sparse_categorical_crossentropy")
    outputs = model.predict(x, verbose=0)
    for given, weights in (((x, y), None), ((x, y, w), w)):
        evaluation = model.do_evaluation(given, Evaluation(3))
        assert evaluation.accuracy() == pytest.approx(
            np.average(outputs.argmax(1) == y, weights=weights), rel=1e-6
        )
    with pytest.raises(ValueError, match="use do_evaluation"):
        model.evaluate(x, y, evaluations=[Evaluation(3)], verbose=0)


def test_the_state_of_evaluators_counts_in_a_budget():
    x, y, _ = data()
    model = classifier()
    with mc.budget("1MiB"):
        evaluation = model.do_evaluation((x, y), Evaluation(3))
        held = mc.config.get_memory_info("CPU:0")["current"]
        evaluation.reset()
        # 9 counts of 8 bytes, rounded up to 64
        assert held - mc.config.get_memory_info("CPU:0")["current"] == 128
        many = Evaluation(500)  # 2 MB of counts
        wide = nn.Sequential([nn.Input((6,)), nn.Dense(500)])
        with pytest.raises(mc.errors.ResourceExhaustedError):
            wide.do_evaluation((x, y), many)
        assert many.count == 0


@pytest.mark.parametrize(
    ("evaluate", "kind", "words"),
    [
        (lambda m, x, y: m.do_evaluation((x, y)), ValueError, "there is no evaluator"),
        (
            lambda m, x, y: m.do_evaluation((x, y), Evaluation),
            TypeError,
            "has a method",
        ),
        (lambda m, x, y: m.do_evaluation((x, y), 3), TypeError, "3 has none"),
        (
            lambda m, x, y: m.do_evaluation(x, y, Evaluation()),
            TypeError,
            r"array of shape \(.*\) has none: samples and labels are one .*\(x, y\)$",
        ),
        (lambda m, x, y: m.do_evaluation(x, ROC()), TypeError, "takes arrays"),
        (
            lambda m, x, y: m.do_evaluation([(x,)], ROC()),
            ValueError,
            r"a batch is \(x, y\)",
        ),
        (
            lambda m, x, y: m.do_evaluation((x, y), {"other": ROC()}),
            ValueError,
            "unknown output 'other'",
        ),
        (
            lambda m, x, y: m.do_evaluation((x, y), {3: ROC()}),
            ValueError,
            "none is 3",
        ),
        (
            lambda m, x, y: m.do_evaluation((x, y), {1.5: ROC()}),
            TypeError,
            "a name or an index",
        ),
        (
            lambda m, x, y: m.do_evaluation((x, y[:7]), Evaluation(3)),
            ValueError,
            "differ in number",
        ),
        (
            lambda m, x, y: m.do_evaluation((x, y + 9), Evaluation(3)),
            ValueError,
            "indices of 3 classes",
        ),
        (
            lambda m, x, y: m.do_evaluation((x, y), ROC()),
            ValueError,
            "use ROCMultiClass",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_refused(evaluate, kind, words):
    x, y, _ = data()
    with pytest.raises(kind, match=words):
        evaluate(classifier(), x, y)


def test_several_outputs_need_a_name():
    x, y, _ = data()
    with pytest.raises(ValueError, match=r"as in \{'kind': Evaluation\(\)\}"):
        branches().do_evaluation((x, y), Evaluation(3))


def per_step(masking=False):
    """A class for each step, of three."""
    x = nn.Input((6, 4))
    h = nn.Masking()(x) if masking else x
    return nn.Model(x, nn.Dense(3, "softmax")(nn.LSTM(5, return_sequences=True)(h)))


def steps_of(seed, size=8):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 6, 4)).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.integers(0, 3, (size, 6))]
    return x, y, (rng.random((size, 6)) < 0.6).astype(np.float32)


def test_masks_of_labels_are_those_of_data_sets():
    """DL4J's rule: what the mask hides is as if it were not there."""
    model, batches = per_step(), [steps_of(seed) for seed in range(3)]
    data = [mc.data.DataSet(x, y, None, mask) for x, y, mask in batches]
    found, curve = mc.evaluation.Evaluation(3), mc.evaluation.ROCMultiClass(0)
    model.do_evaluation(data, found, curve)
    alone, curve_alone = mc.evaluation.Evaluation(3), mc.evaluation.ROCMultiClass(0)
    for x, y, mask in batches:
        shown = mask > 0
        made = model.predict(x, verbose=0)
        alone.eval(y[shown], made[shown])
        curve_alone.eval(y[shown], made[shown])
    assert found.count == alone.count == sum(int(mask.sum()) for *_, mask in batches)
    assert found.to_json() == alone.to_json()
    assert curve.calculate_average_auc() == curve_alone.calculate_average_auc()


def test_a_step_is_hidden_by_the_data_or_by_a_layer():
    model, (x, y, mask) = per_step(masking=True), steps_of(5)
    x[:, 4:] = 0  # which the layer hides
    data = [mc.data.DataSet(x, y, None, mask)]
    found = model.do_evaluation(data, mc.evaluation.Evaluation(3))
    assert found.count == int(mask[:, :4].sum())
    assert model.do_evaluation((x, y), mc.evaluation.Evaluation(3)).count == 8 * 4


def test_masks_of_several_outputs():
    x = nn.Input((6, 4))
    ends = [nn.Dense(3, "softmax", name=name)(x) for name in ("a", "b")]
    model = nn.Model(x, ends)
    (samples, y, mask), (_, other, _) = steps_of(1), steps_of(2)
    data = [mc.data.MultiDataSet([samples], [y, other], None, [None, mask])]
    both = {"a": mc.evaluation.Evaluation(3), "b": mc.evaluation.Evaluation(3)}
    model.do_evaluation(data, both)
    assert (both["a"].count, both["b"].count) == (48, int(mask.sum()))


def test_masks_are_refused_where_nothing_reads_them():
    model, (x, y, mask) = per_step(), steps_of(1)
    model.compile("adam", "categorical_crossentropy")
    data = [mc.data.DataSet(x, y, None, mask)]
    for call in (
        lambda: model.fit(data, verbose=0),
        lambda: model.evaluate(data, verbose=0),
        lambda: model.evaluate(
            data, verbose=0, evaluations=[mc.evaluation.Evaluation(3)]
        ),
        lambda: model.do_evaluation(
            [mc.data.DataSet(x, y, mask, None)], mc.evaluation.Evaluation(3)
        ),
    ):
        with pytest.raises(ValueError, match="a data set with masks was given"):
            call()
