"""Programs that do not fit run in another way, with the update that was asked for."""

from __future__ import annotations

import warnings
from html import unescape

import numpy as np
import pytest
from interpreter import interpret

import memcfg as mc
from memcfg import nn
from memcfg.errors import FallbackWarning, InfeasiblePlanError, NonFiniteLossError
from memcfg.units import format_bytes

ROWS, BATCH = 47, 20  # batches of 20, 20 and 7


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def labels(count, classes, seed=1):
    return np.random.default_rng(seed).integers(0, classes, count)


def cross_entropy(**options):
    return nn.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def dense(width=16):
    return [
        nn.Dense(width, activation="relu", kernel_regularizer="l2"),
        nn.Dropout(0.3, seed=3),
        nn.Dense(width, activation="tanh", activity_regularizer="l2"),
        nn.Dense(width, activation="gelu"),
        nn.GlobalAveragePooling1D(),
        nn.Dense(5),
    ]


def plain():
    """Dropout, penalties on weights and on activities."""
    model = nn.Sequential([nn.Input((40, 8)), *dense()])
    return model, numbers(ROWS, 40, 8), labels(ROWS, 5), {}, {}


def dense_stack():
    hidden = [nn.Dense(64, activation="relu") for _ in range(3)]
    return [nn.Input((40, 8)), *hidden, nn.GlobalAveragePooling1D(), nn.Dense(5)]


def images():
    model = nn.Sequential(
        [
            nn.Input((8, 8, 3)),
            nn.Conv2D(16, 3, padding="same", activation="relu"),
            nn.SpatialDropout2D(0.2, seed=4),
            nn.GaussianNoise(0.1, seed=5),
            nn.Conv2D(16, 3, padding="same", activation="relu"),
            nn.GlobalAveragePooling2D(),
            nn.Dense(5),
        ]
    )
    return model, numbers(ROWS, 8, 8, 3), labels(ROWS, 5), {}, {}


def masked(**loss):
    """Sequences of different lengths, whose mean is over the steps that count."""
    model = nn.Sequential(
        [
            nn.Input((9,), dtype="int32"),
            nn.Embedding(11, 16, mask_zero=True),
            nn.LSTM(16, return_sequences=True, dropout=0.2, seed=7),
            nn.Dense(5),
        ]
    )
    x = labels((ROWS, 9), 11, seed=2)
    x[np.arange(9)[None] >= labels(ROWS, 9, seed=3)[:, None]] = 0
    return model, x, labels((ROWS, 9), 5), loss, {}


def attending():
    inputs = nn.Input((30, 16))
    attended = nn.MultiHeadAttention(2, 8, dropout=0.2, seed=3)(inputs, inputs)
    x = nn.LayerNormalization()(nn.Add()([inputs, attended]))
    model = nn.Model(inputs, nn.Dense(5)(nn.GlobalAveragePooling1D()(x)))
    return model, numbers(ROWS, 30, 16), labels(ROWS, 5), {}, {}


def weighted():
    model, x, y, loss, _ = plain()
    return model, x, y, loss, {"sample_weight": np.abs(numbers(ROWS, seed=9))}


def classes():
    model, x, y, loss, _ = plain()
    return model, x, y, loss, {"class_weight": {0: 3.0, 2: 0.25}}


def by_weight():
    return (*weighted()[:3], {"reduction": "mean_with_sample_weight"}, weighted()[4])


def summed():
    return (*plain()[:3], {"reduction": "sum"}, {})


def ignoring():
    return masked(ignore_class=2)


CASES = {
    each.__name__: each
    for each in (
        *(plain, images, masked, attending, weighted, classes, by_weight, summed),
        ignoring,
    )
}
OPTIMIZERS = {
    "sgd": lambda: nn.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: nn.optimizers.Adam(0.01, clipnorm=0.5),
    "averaged": lambda: nn.optimizers.AdamW(
        0.01, use_ema=True, ema_overwrite_frequency=3, global_clipnorm=1.0
    ),
    "accumulating": lambda: nn.optimizers.Adam(0.01, gradient_accumulation_steps=2),
}


def made(case, optimizer="sgd", **options):
    nn.set_random_seed(7)
    model, x, y, loss, fit = CASES[case]()
    model.compile(
        OPTIMIZERS[optimizer](),
        cross_entropy(**loss),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
        **options,
    )
    return model, x, y, fit


def limit_for(case, optimizer="sgd", batch=BATCH, **options):
    """A limit within which no policy can plan the batch."""
    model, *_ = made(case, optimizer, **options)
    return mc.plan.lower_bound(model.graph(batch)) // 4096 * 4096 - 4096


def limited(nbytes):
    """Limit the device, and count its peak from here."""
    limit = f"{nbytes}B" if isinstance(nbytes, int) else nbytes  # even a small one
    mc.config.set_memory_limit("CPU:0", limit)
    mc.config.reset_memory_stats("CPU:0")


def trained(case, optimizer, limit=None, **options):
    model, x, y, fit = made(case, optimizer, **options)
    if limit is not None:
        limit()
    history = model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0, seed=5, **fit)
    fit.pop("class_weight", None)
    logs = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True, **fit)
    outputs = model.predict(x, batch_size=BATCH, verbose=0)
    return model, history, logs, outputs


@pytest.mark.parametrize(
    ("case", "optimizer"),
    # Adam would divide the gradients of attention's biases, which are 0.
    [("attending", "sgd")]
    + [("plain", each) for each in OPTIMIZERS]
    + [(each, "adam") for each in CASES if each not in ("plain", "attending")],
)
def test_a_batch_in_parts_makes_the_update_of_the_whole(case, optimizer):
    nbytes = limit_for(case, optimizer)
    whole, expected, logs, outputs = trained(case, optimizer)
    assert expected.fallbacks == []
    state = whole.optimizer.get_state()
    weights = whole.get_weights()
    whole.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts, history, found, predicted = trained(
            case, optimizer, lambda: limited(nbytes)
        )
    assert mc.config.get_memory_info("CPU:0")["peak"] <= nbytes
    told = [str(each.message) for each in caught]
    assert sum("train, batch" in each for each in told) == 1  # not for the last batch
    assert all(each.category is FallbackWarning for each in caught)
    assert {each.step for each in history.fallbacks} == {"micro_batch"}
    for name, values in expected.history.items():
        np.testing.assert_allclose(history.history[name], values, rtol=3e-5, atol=1e-6)
    for name, value in logs.items():
        np.testing.assert_allclose(found[name], value, rtol=3e-5, atol=1e-6)
    np.testing.assert_allclose(predicted, outputs, rtol=1e-3, atol=2e-5)
    for mine, theirs in zip(parts.get_weights(), weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5)
    assert parts.optimizer.get_state().keys() == state.keys()
    assert parts.optimizer.iterations == whole.optimizer.iterations
    parts.close()


def compiled(layers, loss=None, **options):
    model = nn.Sequential(layers)
    model.compile("sgd", loss or cross_entropy(), **options)
    return model


def wide(**options):
    """A model whose batch of 64 takes more than that of 8."""
    nn.set_random_seed(7)
    model = compiled([nn.Input((40, 8)), *dense()], **options)
    return model, numbers(64, 40, 8), labels(64, 5)


def between(model, large=64):
    """A limit within which no policy can plan the larger batch."""
    return mc.plan.lower_bound(model.graph(large)) // 4096 * 4096 - 4096


def test_raise_refuses_and_says_what_fits():
    mc.config.set_alternatives_seconds(1000.0)  # however slow the machine is
    model, x, y = wide(on_oom="raise")
    limited(between(model))
    with pytest.raises(InfeasiblePlanError) as caught:
        model.train_on_batch(x, y)
    assert caught.value.largest_batch
    assert model.train_on_batch(x[:8], y[:8]) > 0


def test_replan_takes_another_method_and_no_smaller_batch():
    model, x, y = wide(on_oom="replan", memory="share")
    limited(model.estimate(64, "1GiB").levers[1].limit_bytes // 4096 * 4096 + 4096)
    with pytest.warns(FallbackWarning, match="auto plans it"):
        model.train_on_batch(x, y)
    assert "auto" in str(model.memory_plan)
    model.close()
    limited(between(model) // 2)
    with pytest.raises(InfeasiblePlanError):
        model.train_on_batch(x, y)


def test_the_bits_of_parts_do_not_depend_on_how_they_are_planned():
    weights = []
    for memory in ("look_ahead", "auto", "sqrt_checkpoint"):
        nn.set_random_seed(7)
        model = compiled([nn.Input((400, 8)), *dense()], memory=memory)
        x, y = numbers(2, 400, 8), labels(2, 5)
        limited(between(model, 2))
        with pytest.warns(FallbackWarning):
            model.fit(x, y, batch_size=2, epochs=3, shuffle=False, verbose=0)
        weights.append([each.tobytes() for each in model.get_weights()])
        model.close()
    assert weights[0] == weights[1] == weights[2]


def test_a_batch_runs_as_a_whole_again_where_there_is_room():
    model, x, y = wide()
    limit = between(model)
    limited(limit)
    with pytest.warns(FallbackWarning):
        model.train_on_batch(x, y)
    assert "micro-batch" in str(model.memory_plan)
    assert "fallback" in str(model.memory_report())
    limited(8 * limit)
    model.train_on_batch(x, y)
    assert "micro-batch" not in str(model.memory_plan)
    assert not model.memory_report().by_role.get("optimizer_state")
    history = model.fit(x, y, batch_size=64, verbose=0)
    assert history.fallbacks == []


@pytest.mark.parametrize("part", [0.85, 0.3])
@pytest.mark.always
def test_another_array_takes_the_memory_amid_training(part):
    """Training goes on: re-planned with the same bits, or in micro-batches."""

    def train(taken):
        model, x, y = wide()
        once, least = (each.limit_bytes for each in model.estimate(64).levers[:2])
        limited(-(-once // 4096) * 4096)
        options = {"batch_size": 64, "shuffle": False, "verbose": 0}
        model.fit(x, y, epochs=1, **options)
        model.close()
        pool = mc.config.logical_device("CPU:0").pool
        left = least + (once - least) * 0.5 if part > 0.5 else least * part * 2
        array = pool.allocate(int(once - left) // 4096 * 4096) if taken else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            history = model.fit(x, y, epochs=3, initial_epoch=1, **options)
        weights = model.get_weights()
        model.close()
        del array
        return weights, history.fallbacks

    expected, _ = train(False)
    found, fallbacks = train(True)
    assert bool(fallbacks) == (part < 0.5)
    for mine, theirs in zip(found, expected, strict=True):
        if part > 0.5:
            assert mine.tobytes() == theirs.tobytes()
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_memory_that_is_taken_after_planning_is_planned_around():
    held = []

    def slow(graph, limit_bytes=None):
        plan = mc.plan.share()(graph, limit_bytes)
        if armed and not held:  # as another thread may, meanwhile
            pool = mc.config.logical_device("CPU:0").pool
            held.append(pool.allocate((plan.peak_bytes * 3 // 4) // 4096 * 4096))
        return plan

    armed = []
    model, x, y = wide(memory=slow)
    once = model.estimate(64).levers[0].limit_bytes
    limited(once * 3 // 2 // 4096 * 4096)
    armed.append(True)
    with pytest.warns(FallbackWarning):
        model.train_on_batch(x, y)
    assert held


def normalized(**options):
    layers = [
        nn.Input((40, 8)),
        nn.Dense(16),
        nn.BatchNormalization(),
        nn.Activation("relu"),
        nn.GlobalAveragePooling1D(),
        nn.Dense(5),
    ]
    return compiled(layers, **options), numbers(64, 40, 8), labels(64, 5)


def test_batch_normalization_is_not_divided_unless_allowed():
    model, x, y = normalized()
    limited(between(model))
    with pytest.raises(InfeasiblePlanError, match="batch_statistics='micro'"):
        model.train_on_batch(x, y)
    model, x, y = normalized(batch_statistics="micro")
    with pytest.warns(FallbackWarning):
        model.train_on_batch(x, y)
    assert np.isfinite(model.predict(x, batch_size=8, verbose=0)).all()


def test_what_moves_with_each_part_is_named():
    layers = [nn.Input((40, 8)), nn.SpectralNormalization(nn.Dense(64)), *dense()]
    model = compiled(layers)
    limited(between(model))
    reason = r"'spectral_normalization\S*/vector_u' would move with micro-batches"
    with pytest.raises(InfeasiblePlanError, match=reason) as caught:
        model.train_on_batch(numbers(64, 40, 8), labels(64, 5))
    assert "batch normalisation" not in str(caught.value)


class Whole(nn.losses.Loss):
    """A loss that has no part for each sample."""

    def call(self, y_true, y_pred):
        return nn.ops.sqrt(nn.ops.mean(nn.ops.square(y_pred - y_true)))


class MeanOfAll(nn.losses.Loss):
    """A loss of the whole batch that is the mean over its samples."""

    def call(self, y_true, y_pred):
        return nn.ops.mean(nn.ops.mean(nn.ops.square(y_pred - y_true), axis=-1))


def root(y_true, y_pred):
    return nn.ops.sqrt(nn.ops.mean(nn.ops.square(y_pred - y_true)))


def above_the_mean(y_true, y_pred):
    of_all = nn.ops.mean(y_pred[:, 0], axis=0)
    return nn.ops.cast(y_pred[:, 0] > of_all, "float32")


@pytest.mark.parametrize("loss", [nn.losses.Dice(), Whole()], ids=["dice", "own"])
def test_a_loss_of_the_whole_batch_is_not_divided(loss):
    layers = [nn.Input((40, 8)), *dense(), nn.Activation("softmax")]
    model = compiled(layers, loss=loss)
    x, y = numbers(64, 40, 8), np.abs(numbers(64, 5))
    limited(between(model))
    refused = pytest.raises(InfeasiblePlanError, match="one number of a whole batch")
    with refused as caught:
        model.train_on_batch(x, y)
    assert caught.value.accumulation is None  # that would be another update


@pytest.mark.parametrize(
    ("metric", "reason"),
    [
        (root, "the metric root is one number of a whole batch"),
        (nn.losses.Dice(), "the metric dice is one number of a whole batch"),
        (above_the_mean, "the metric above_the_mean compares the samples of a batch"),
    ],
    ids=["own", "dice", "compares"],
)
def test_a_batch_with_a_metric_of_the_whole_is_not_divided(metric, reason):
    layers = [nn.Input((40, 8)), *dense(), nn.Activation("softmax")]
    model = compiled(layers, loss="mse", metrics=[metric])
    x, y = numbers(64, 40, 8), np.abs(numbers(64, 5))
    limited(between(model))
    with pytest.raises(InfeasiblePlanError, match=reason):
        model.train_on_batch(x, y)
    limited(model.plan(64, program="evaluate").peak_bytes * 2 // 3)
    with pytest.raises(InfeasiblePlanError, match=reason):
        model.test_on_batch(x, y)
    limited("1GiB")
    assert np.isfinite(model.train_on_batch(x, y)).all()


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_means_over_the_batch_are_those_of_the_whole(reduction):
    """Of losses and metrics that are one number of a batch of 20, 20 and 7 samples."""

    def mean_of_all(y_true, y_pred):
        return nn.ops.mean(nn.ops.abs(y_pred - y_true))

    def history(limit):
        nn.set_random_seed(7)
        model = nn.Sequential([nn.Input((40, 8)), *dense()])
        loss = MeanOfAll(reduction=reduction)
        model.compile("sgd", loss, metrics=[mean_of_all, "mse"])
        least = mc.plan.lower_bound(model.graph(BATCH)) // 4096 * 4096 - 4096
        limited(least if limit else "1GiB")
        logs = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, seed=3)
        values = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        weights = model.get_weights()
        model.close()
        return logs, values, weights

    x, y = numbers(ROWS, 40, 8), numbers(ROWS, 5)
    whole, expected, weights = history(limit=False)
    with pytest.warns(FallbackWarning):
        parts, values, found = history(limit=True)
    assert whole.fallbacks == []
    assert parts.fallbacks[0].parts > 1
    for name, numbers_of in whole.history.items():
        np.testing.assert_allclose(parts.history[name], numbers_of, rtol=1e-5)
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    for mine, theirs in zip(found, weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-6)
    limited("1GiB")
    sizes = [BATCH, BATCH, ROWS - 2 * BATCH]
    model = nn.Sequential([nn.Input((40, 8)), *dense()])
    model.set_weights(weights)
    apart = np.abs(model.predict(x, verbose=0) - y).mean(1)
    means = [part.mean() for part in np.split(apart, np.cumsum(sizes)[:-1])]
    np.testing.assert_allclose(expected[1], np.mean(means), rtol=1e-5)  # as in Keras


def test_a_loss_that_is_not_finite_in_a_later_part_changes_nothing():
    model, x, y = wide()
    limited(between(model))
    with pytest.warns(FallbackWarning):
        model.train_on_batch(x, y)
    before = model.get_weights()
    state = model.optimizer.get_state()
    x[-1] = np.nan
    with pytest.raises(NonFiniteLossError):
        model.train_on_batch(x, y)
    for mine, theirs in zip(model.get_weights(), before, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert model.optimizer.get_state()["iteration"] == state["iteration"]
    x[-1] = 0
    model.train_on_batch(x, y)
    assert all(np.isfinite(each).all() for each in model.get_weights())


def test_what_is_saved_amid_micro_batches_loads_anywhere(tmp_path):
    model, x, y = wide()
    limited(between(model))
    with pytest.warns(FallbackWarning):
        model.train_on_batch(x, y)
    model.save(tmp_path / "model.memcfg")
    limited("64MiB")
    model.train_on_batch(x, y)
    other = nn.models.load_model(tmp_path / "model.memcfg")
    other.train_on_batch(x, y)
    for mine, theirs in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", ["train", "predict"])
def test_the_largest_batch_fits_and_one_sample_more_does_not(program):
    model, *_ = wide(on_oom="raise")
    limit = between(model) // 2
    most = model.largest_batch(limit, program=program)
    assert most > 1
    x, y = numbers(most + 1, 40, 8), labels(most + 1, 5)

    def run(count):
        model.close()
        if program == "train":
            model.train_on_batch(x[:count], y[:count])
        else:
            model.predict_on_batch(x[:count])

    limited(limit)
    run(most)
    with pytest.raises(InfeasiblePlanError):
        run(most + 1)
    assert model.largest_batch("4KiB") == 0


@pytest.mark.parametrize("program", ["train", "predict"])
def test_the_largest_batch_is_one_that_kernels_take(program):
    """Where there is memory for more rows than their 31 bits count."""
    model = compiled([nn.Input((3,)), nn.Dense(2)], loss="mse")
    largest = model.largest_batch("80GiB", program=program)
    assert largest == 2**31 - 1
    peak = model.plan(largest, "80GiB", program=program).peak_bytes
    assert peak < 80 * 2**30
    with pytest.raises(mc.errors.KernelError):
        model.plan(largest + 1, "80GiB", program=program)


def test_several_policies_have_a_row_each_with_the_time_of_a_sample():
    model = compiled(dense_stack())
    policies = ["share", "auto", mc.plan.keep_all()]
    found = model.largest_batch("1MiB", policy=policies)
    assert {row.policy for row in found} == {"share", "auto", "keep_all"}
    for row in found:
        given = mc.plan.NAMED_POLICIES[row.policy]()
        assert row.batch_size == model.largest_batch("1MiB", policy=given)
        plan = model.plan(row.batch_size, "1MiB", policy=given)
        assert row.peak_bytes == plan.peak_bytes <= 2**20
        assert row.sample_seconds == plan.elapsed_seconds / row.batch_size
        assert found[row.policy] is row
    sizes = [row.batch_size for row in found]
    assert sizes == sorted(sizes, reverse=True)
    assert found.best is next(iter(found))
    lines = str(found).splitlines()
    assert lines[0].split()[:3] == ["Method", "Batch", "Peak"]
    assert "auto *" in lines[2]
    assert repr(found).startswith(f"<LargestBatches: auto {found['auto'].batch_size}, ")
    assert str(found["share"].batch_size) in unescape(found._repr_html_())
    with pytest.raises(KeyError, match="no policy 'rotor'; there are 'auto', "):
        found["rotor"]


def test_policies_without_a_sample_that_fits_say_what_one_needs():
    model = compiled(dense_stack())
    found = model.largest_batch("1KiB", policy=["share", "auto"])
    assert found.best is None
    assert len(found) == 2
    for row in found:
        assert (row.batch_size, row.peak_bytes, row.sample_seconds) == (0, 0, None)
        least = int(row.why_not.split("it needs ")[1].split()[0])
        assert model.largest_batch(least, policy=row.policy) >= 1
        assert row.why_not.split()[0] in str(found)
        assert row.why_not in unescape(found._repr_html_())
    with pytest.raises(ValueError, match="policy is an empty list"):
        model.largest_batch("1KiB", policy=[])
    with pytest.raises(ValueError, match="unknown memory policy"):
        model.largest_batch("1KiB", policy=["shear"])


def test_without_a_limit_no_batch_is_the_largest():
    model, *_ = wide()
    with pytest.raises(ValueError, match="no limit"):
        model.largest_batch()


def test_an_estimate_names_limits_that_have_a_plan():
    model, x, y = wide(on_oom="raise")
    estimate = model.estimate(64)
    assert "* recomputation" in str(estimate) or "* each op once" in str(estimate)
    assert estimate.floor_bytes < estimate.peak_bytes
    for lever in estimate.levers[:2]:
        model.close()
        limited(-(-lever.limit_bytes // 4096) * 4096)
        model.train_on_batch(x, y)
    model.close()
    limited(estimate.levers[1].limit_bytes // 4096 * 4096 - 4096)
    with pytest.raises(InfeasiblePlanError):
        model.train_on_batch(x, y)


def test_where_tiers_are_configured_tensors_leave_before_batches_are_divided():
    def train(spilling):
        mc.config.reset()
        if spilling:
            (cpu,) = mc.config.list_physical_devices("CPU")
            spill = mc.config.LogicalDeviceConfiguration(spill_to="host")
            mc.config.set_logical_device_configuration(cpu, [spill])
        model, x, y = wide()
        if spilling is not None:
            limited(limit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            told = model.fit(x, y, batch_size=64, verbose=0, shuffle=False)
        weights = [each.tobytes() for each in model.get_weights()]
        model.close()
        return weights, [each.step for each in told.fallbacks]

    model, *_ = wide()
    levers = {each.name: each.limit_bytes for each in model.estimate(64).levers}
    least = levers["recomputation (memory='auto')"]
    limit = (least + levers['swapping (spill_to="host")']) // 2 // 4096 * 4096
    assert limit < least
    whole, steps = train(None)
    assert steps == []
    assert train(True) == (whole, [])  # the same bits
    assert train(False)[1] == ["micro_batch"]


def test_steps_of_ones_own_are_taken_in_order():
    lossy = mc.plan.gist(dpr="fp8")
    steps = [lossy, "mixed_bfloat16", "micro_batch"]
    model, x, y = wide(on_oom=steps)
    floor = model.estimate(64).levers[1].limit_bytes
    limited(floor // 2 // 4096 * 4096)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(x, y, batch_size=64, verbose=0)
    # Whether these narrow layers need less in bfloat16 depends on their kernels.
    taken = [each.step for each in history.fallbacks]
    rounds = "mixed_bfloat16" in taken
    assert taken == ["replan", *["mixed_bfloat16"] * rounds, "micro_batch"]
    told = [str(each.message) for each in caught if each.category is FallbackWarning]
    assert len(told) == len(taken)
    assert "gist" in told[0]
    assert model.dtype_policy.name == ("mixed_bfloat16" if rounds else "float32")


def test_steps_that_do_not_help_are_not_in_force():
    """A refused batch leaves the types of layers and the policy as they were."""

    def made(on_oom):
        nn.set_random_seed(3)
        hidden = [nn.Conv2D(32, 3, padding="same") for _ in range(4)]
        ends = nn.GlobalAveragePooling2D(), nn.Dense(5)
        layers = [nn.Input((16, 16, 16)), *hidden, *ends]
        return compiled(layers, on_oom=on_oom, memory="share")

    x, y = numbers(32, 16, 16, 16), labels(32, 5)
    known = made("raise")
    known.train_on_batch(x[:2], y[:2])
    limit, weights = known.plan(2).peak_bytes + 4096, known.get_weights()
    known.close()
    model = made(["gist_fp8", "mixed_bfloat16"])
    limited(limit)
    for _ in range(2):  # with the same warnings
        with pytest.warns(FallbackWarning) as told, pytest.raises(InfeasiblePlanError):
            model.train_on_batch(x, y)
        assert "gist_fp8" in str(told[0].message)
        assert model.dtype_policy.name == model.layers[1].compute_dtype == "float32"
    with pytest.raises(FallbackWarning):  # warnings are errors here
        model.train_on_batch(x, y)
    model.train_on_batch(x[:2], y[:2])
    for mine, theirs in zip(model.get_weights(), weights, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    assert model.memory_report().fallbacks == ()


def test_another_model_computes_as_this_one_then_would():
    model = of_images(["mixed_bfloat16", "resize"])
    x, y = numbers(8, 32, 32, 3), labels(8, 5)
    limited(of_images("raise", 16).plan(8).peak_bytes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(x, y, batch_size=8, verbose=0)
    told = [str(each.message) for each in caught]
    rounds = any("bfloat16" in each for each in told)  # where that needs less
    assert "images are made" in told[-1]
    name = "mixed_bfloat16" if rounds else "float32"
    assert {each.dtype_policy.name for each in history.model.layers[2:]} == {name}
    assert {each.dtype_policy.name for each in model.layers} == {"float32"}
    history.model.close()


def test_the_first_step_that_is_enough_is_the_last():
    def make():
        hidden = [nn.Conv2D(32, 3, padding="same", activation="relu") for _ in range(4)]
        ends = nn.GlobalAveragePooling2D(), nn.Dense(5)
        layers = [nn.Input((16, 16, 16)), *hidden, *ends]
        return compiled(layers, on_oom=["mixed_bfloat16", "micro_batch"])

    model = make()
    limit = between(model, 32)
    mc.config.set_dtype_policy("mixed_bfloat16")
    try:
        mc.plan.auto()(make().graph(32), limit_bytes=limit)
    except InfeasiblePlanError:
        pytest.skip("this processor's kernels of bfloat16 need more scratch")
    finally:
        mc.config.set_dtype_policy("float32")
    x, y = numbers(32, 16, 16, 16), labels(32, 5)
    limited(limit)
    with pytest.warns(FallbackWarning):
        history = model.fit(x, y, batch_size=32, verbose=0)
    assert [each.step for each in history.fallbacks] == ["mixed_bfloat16"]
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert model.layers[0].kernel.dtype == "float32"


def test_a_narrower_model_is_trained_instead():
    def narrower(model):
        assert model is first
        return nn.Sequential([nn.Input((40, 8)), *dense(4)])

    first, x, y = wide(on_oom=narrower)
    limited(between(first) * 3 // 4 // 4096 * 4096)
    before = first.get_weights()
    with pytest.warns(FallbackWarning, match="history.model"):
        history = first.fit(x, y, batch_size=64, epochs=2, verbose=0)
    assert [each.step for each in history.fallbacks] == ["model"]
    assert history.model.layers[0].units == 4
    assert len(history.history["loss"]) == 2
    for mine, theirs in zip(first.get_weights(), before, strict=True):
        assert mine.tobytes() == theirs.tobytes()
    with pytest.raises(InfeasiblePlanError):
        first.train_on_batch(x, y)
    first.compile("sgd", cross_entropy(), on_oom=lambda model: None)
    with pytest.raises(TypeError, match="another Model"):
        first.fit(x, y, batch_size=64, verbose=0)


def of_images(steps, side=None, end=nn.GlobalAveragePooling2D):
    """A model of images of 32 x 32, which it makes smaller if a side is given."""
    first = [] if side is None else [nn.Resizing(side, side, antialias=True)]
    hidden = [nn.Conv2D(8, 3, padding="same", activation="relu") for _ in range(2)]
    nn.set_random_seed(3)
    layers = [nn.Input((32, 32, 3)), *first, *hidden, end(), nn.Dense(5)]
    return compiled(layers, on_oom=steps, memory="share")


@pytest.mark.parametrize("more", [[], ["micro_batch"]])
def test_the_model_of_the_largest_images_that_fit_is_trained_instead(more):
    x, y = numbers(8, 32, 32, 3), labels(8, 5)
    model, other = of_images(["resize", *more]), of_images("raise", 16)
    limit = of_images("raise", 20).plan(8).peak_bytes - 64
    assert other.plan(8).peak_bytes <= limit
    limited(limit)
    before = model.get_weights()
    with pytest.warns(FallbackWarning, match="images are made 16 x 16 first") as told:
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert len(told) == 1
    assert [(each.step, each.name) for each in history.fallbacks] == [
        ("resize", "16 x 16")
    ]
    for mine, known in zip(model.get_weights(), before, strict=True):
        assert mine.tobytes() == known.tobytes()
    (line,) = history.model.memory_report().fallbacks
    assert "images are made 16 x 16 first" in line
    after = history.model.get_weights()
    history.model.close()
    other.set_weights(before)
    other.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for mine, theirs in zip(after, other.get_weights(), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    model.set_weights(after)


def test_steps_behind_smaller_images_are_for_the_smallest_if_none_fits():
    x, y = numbers(64, 32, 32, 3), labels(64, 5)
    least = of_images("raise", 8).plan(64).peak_bytes
    alone, then = of_images("resize"), of_images(["resize", "micro_batch"])
    mc.config.set_alternatives_seconds(0.01)
    limited(least - 64)
    with pytest.raises(InfeasiblePlanError, match="those of 8 x 8 do not fit, either"):
        alone.fit(x, y, batch_size=64, verbose=0)
    with pytest.warns(FallbackWarning):
        history = then.fit(x, y, batch_size=64, verbose=0)
    mc.config.set_alternatives_seconds(None)
    assert [each.step for each in history.fallbacks] == ["resize", "micro_batch"]
    history.model.close()


@pytest.mark.parametrize("step", ["resize", "function"])
def test_a_model_that_its_data_builds_has_another_trained_instead(step):
    def smaller(model):
        ends = [nn.Conv2D(8, 3, padding="same"), nn.GlobalAveragePooling2D()]
        return nn.Sequential(
            [nn.Input(model.input_shape[1:]), nn.Resizing(16, 16), *ends, nn.Dense(5)]
        )

    def made(steps):
        nn.set_random_seed(3)
        hidden = [nn.Conv2D(8, 3, padding="same", activation="relu") for _ in range(2)]
        layers = [*hidden, nn.GlobalAveragePooling2D(), nn.Dense(5)]
        return compiled(layers, on_oom=steps, memory="share")

    x, y = numbers(8, 32, 32, 3), labels(8, 5)
    known = made("raise")
    known.build((None, 32, 32, 3))
    limited(known.plan(8).peak_bytes // 2)
    model = made("resize" if step == "resize" else smaller)
    with pytest.warns(FallbackWarning):
        history = model.fit(x, y, batch_size=8, verbose=0)
    (fallback,) = history.fallbacks
    assert fallback.step == ("resize" if step == "resize" else "model")
    for mine, theirs in zip(model.get_weights(), known.get_weights(), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    history.model.close()
    for steps, error in (
        ("resize", pytest.raises(InfeasiblePlanError, match="Smaller images cannot")),
        (lambda model: None, pytest.raises(TypeError, match="another Model")),
    ):
        refused = made(steps)
        limited("1KiB")
        with error:
            refused.fit(x, y, batch_size=8, verbose=0)
        assert not refused.built


def test_what_keeps_images_from_being_smaller_is_said():
    flat = of_images("resize", end=nn.Flatten)
    plain, x, y = wide(on_oom="resize")
    limited("16KiB")
    with pytest.raises(InfeasiblePlanError, match="kernel' is for images of one size"):
        flat.fit(numbers(8, 32, 32, 3), labels(8, 5), batch_size=8, verbose=0)
    with pytest.raises(InfeasiblePlanError, match="a height, a width and channels"):
        plain.fit(x, y, batch_size=64, verbose=0)


def test_no_other_model_is_trained_once_training_has_begun():
    model, x, y = wide(on_oom=lambda _: pytest.fail("called"))
    large = compiled([nn.Input((40, 8)), *dense(64)])

    class Beside(nn.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            large.train_on_batch(x, y)

    limited(large.estimate(1).floor_bytes // 2)
    with pytest.raises(InfeasiblePlanError, match=large.name):
        model.fit(x[:2], y[:2], batch_size=1, callbacks=[Beside()], verbose=0)


def test_no_other_model_is_trained_on_what_an_iterator_has_left():
    model, x, y = wide(on_oom=lambda _: pytest.fail("called"))
    limited(between(model))
    with pytest.raises(InfeasiblePlanError, match="can be read again"):
        model.fit(iter([(x, y)] * 3), verbose=0)


def test_a_step_that_fails_in_a_later_part_adds_nothing_to_its_window():
    """Gradients of earlier steps are kept, and those of its parts are not."""

    def train(limit):
        nn.set_random_seed(7)
        model = nn.Sequential([nn.Input((40, 8)), *dense()])
        optimizer = nn.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        model.compile(optimizer, cross_entropy())
        limited(limit and between(model))
        x, y = numbers(64, 40, 8), labels(64, 5)
        broken = x.copy()
        broken[-1] = np.nan
        model.train_on_batch(x, y)
        with pytest.raises(NonFiniteLossError):
            model.train_on_batch(broken, y)
        model.train_on_batch(x, y)
        model.train_on_batch(x, y)
        assert model.optimizer.iterations == 1
        return model.get_weights()

    whole = train(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        parts = train(True)
    for mine, theirs in zip(parts, whole, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_parts_draw_what_a_whole_batch_draws_outside_of_training():
    def predict(limit):
        nn.set_random_seed(7)
        inputs = nn.Input((40, 8))
        noisy = nn.Dropout(0.5, seed=3)(nn.Dense(16)(inputs), training=True)
        model = nn.Model(inputs, nn.Dense(2)(nn.GlobalAveragePooling1D()(noisy)))
        limited(limit)
        x = numbers(64, 40, 8)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outputs = [model.predict(x, batch_size=64, verbose=0) for _ in range(2)]
        assert bool(caught) == bool(limit)
        return outputs

    first, second = predict(None)
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_allclose(predict("16KiB"), [first, second], rtol=1e-4, atol=1e-5)


def test_a_loss_over_a_mask_that_is_drawn_is_not_divided():
    layers = [nn.Dropout(0.5, seed=3), nn.Masking(), nn.LSTM(9, return_sequences=True)]
    model = compiled([nn.Input((40, 1)), *layers, nn.Dense(5)])
    limited(between(model))
    with pytest.raises(InfeasiblePlanError, match="drawn at random"):
        model.train_on_batch(numbers(64, 40, 1), labels((64, 40), 5))


def test_an_estimate_of_small_batches_is_about_the_step_as_it_is():
    """Accumulators can take more than a micro-batch saves."""
    model = compiled([nn.Input((200,)), nn.Dense(200), nn.Dense(200)], loss="mse")
    estimate = model.estimate(2)
    assert estimate.peak_bytes == estimate.levers[0].limit_bytes
    assert max(each.limit_bytes for each in estimate.levers) > estimate.peak_bytes
    (line,) = (each for each in str(estimate).splitlines() if "once" in each)
    assert line.split()[-2:] == ["100%", "1.00x"]


def test_an_estimate_is_a_table_in_notebooks_and_short_at_a_prompt():
    model = compiled([nn.Input((200,)), nn.Dense(200), nn.Dense(200)], loss="mse")
    estimate = model.estimate(64, "1GiB")
    lines = str(estimate).splitlines()
    assert lines[-1] == "* the fastest within the limit"
    (marked,) = (line for line in lines[:-1] if line.startswith("  * "))
    assert marked.split("  ")[1] == f"* {estimate.best.name}"
    html = unescape(estimate._repr_html_())
    for lever in estimate.levers:
        assert html.count(lever.name) == 1
        assert lever.limit_bytes is None or format_bytes(lever.limit_bytes) in html
    assert f">* {estimate.best.name}<" in html
    assert lines[-1] in html
    peak, floor = estimate.peak_bytes, estimate.floor_bytes
    assert f"4 levers, peak {peak} B, floor {floor} B>" in repr(estimate)
    assert str(model.estimate(64, "1KiB")).endswith("No lever fits the limit.")


def test_a_policy_may_be_a_plain_function():
    def own(graph, limit_bytes=None):
        return mc.plan.share()(graph, limit_bytes)

    for on_oom in ("raise", "replan", "micro_batch"):
        model, x, y = wide(memory=own, on_oom=on_oom)
        limited(model.estimate(64, "1GiB").levers[1].limit_bytes // 4096 * 4096 + 4096)
        if on_oom == "raise":
            with pytest.raises(InfeasiblePlanError):
                model.train_on_batch(x, y)
        else:
            with pytest.warns(FallbackWarning):
                model.train_on_batch(x, y)
        model.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_oom": ["raise", "replan"]}, "combined"),
        ({"on_oom": mc.plan.share}, "call plan.share"),
        ({"batch_statistics": True}, "batch_statistics"),
        ({"on_oom": ["replan", "replan"]}, "twice"),
        ({"on_oom": [nn.Model]}, "on_oom"),
        ({"on_oom": 3}, "on_oom"),
        ({"on_oom": []}, "has no steps"),
        ({"on_oom": ["bfloat16", "mixed_bfloat16"]}, "twice"),
        ({"on_oom": ["gist_fp8", mc.plan.NAMED_POLICIES["gist_fp8"]()]}, "twice"),
        ({"on_oom": "halve"}, "on_oom"),
        ({"batch_statistics": "all"}, "batch_statistics"),
        ({"batch_statistics": "micro", "on_oom": "raise"}, "micro_batch"),
    ],
)
def test_other_steps_of_on_oom_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        compiled([nn.Input((3,)), nn.Dense(2)], **options)


def drawn(generator):
    """A random model with a batch of data."""
    batch = int(generator.integers(2, 40))
    kind = generator.choice(["dense", "images", "steps"])
    width, depth = int(generator.integers(4, 33)), int(generator.integers(1, 5))
    if kind == "images":
        layers = [nn.Input((10, 10, 3))]
        for _ in range(depth):
            layers += [nn.Conv2D(width, 3, padding="same"), nn.Activation("tanh")]
        layers += [nn.Flatten()]
    elif kind == "steps":
        layers = [nn.Input((12, 6)), nn.GRU(width, return_sequences=True)]
        layers += [nn.Dense(width, activation="gelu") for _ in range(depth)]
        layers += [nn.GlobalAveragePooling1D()]
    else:
        layers = [nn.Input((50,))]
        layers += [nn.Dense(width, activation="softplus") for _ in range(depth)]
    if generator.random() < 0.5:
        layers += [nn.Dropout(0.3, seed=int(generator.integers(100)))]
    layers += [nn.Dense(4)]
    seed = int(generator.integers(1000))
    x = numbers(batch, *layers[0].shape[1:], seed=seed)
    return layers, x, labels(batch, 4, seed=seed)


RATE = 0.1


@pytest.mark.parametrize("part", [1.0, 0.6, 0.3, 0.1, 0.02])
def test_a_random_model_trains_or_is_refused_with_what_would_do(part, tenths):
    """Its weights are those in double precision; with a plan also those of no limit."""
    mc.config.set_alternatives_seconds(1000.0)  # however slow the machine is
    generator = np.random.default_rng(int(1000 * part))
    count, steps = (2, 2) if tenths == 1 else (60, 10)
    for _ in range(count):
        nn.set_random_seed(int(generator.integers(1000)))
        layers, x, y = drawn(generator)
        model = nn.Sequential(layers)
        model.compile(nn.optimizers.SGD(RATE), cross_entropy())
        first = model.get_weights()
        peak = model.plan(len(x)).peak_bytes
        exact = in_double_precision(model, x, y, steps)
        for _ in range(steps):
            model.train_on_batch(x, y)
        whole = model.get_weights()
        assert_near(whole, exact)
        model.compile(nn.optimizers.SGD(RATE), cross_entropy())
        model.set_weights(first)
        model.close()
        limit = int(peak * part) // 64 * 64
        limited(limit)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", FallbackWarning)
                for _ in range(steps):
                    model.train_on_batch(x, y)
        except InfeasiblePlanError as refusal:
            assert part < 1
            what_a_refusal_says_is_so(model, x, y, refusal)
        else:
            assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
            in_parts = any("accumulated" in str(each.message) for each in caught)
            if in_parts:
                assert_near(model.get_weights(), exact)
            else:
                for mine, theirs in zip(model.get_weights(), whole, strict=True):
                    assert mine.tobytes() == theirs.tobytes()
        model.close()
        mc.config.set_memory_limit("CPU:0", None)


def in_double_precision(model, x, y, steps):
    """Return the weights after steps of gradient descent on the whole batch."""
    graph = model.graph(len(x))
    first = [graph.tensors[i].name for i in graph.persistent]
    values = dict(zip(first, model.get_weights(), strict=True))
    for step in range(steps):
        given = {"x": x, "y": y, "step": step, "learning_rate": np.float32(RATE)}
        made = interpret(graph, {**values, **given})
        for op in graph.ops:
            for before, after in op.in_place if op.phase == "update" else ():
                name = graph.tensors[before].name
                values[name] = made[graph.tensors[after].name]
    return [values[name] for name in first]


def assert_near(weights, exact):
    """To 1e-6 of the largest weight: biases that began at 0 are small yet."""
    largest = max(np.abs(each).max() for each in exact)
    for mine, theirs in zip(weights, exact, strict=True):
        assert np.abs(mine - theirs).max() <= 1e-6 * largest


def what_a_refusal_says_is_so(model, x, y, refusal):
    """The limit and the batch that it names train, and one more or less does not."""
    model.compile("sgd", cross_entropy(), on_oom="raise")
    most = refusal.largest_batch
    if len(x) > 1:
        assert most is not None
        assert most < len(x)
        assert not refusal.unsearched
        if most:
            model.train_on_batch(x[:most], y[:most])
            model.close()
        with pytest.raises(InfeasiblePlanError):
            model.train_on_batch(x[: most + 1], y[: most + 1])
    smallest = refusal.smallest_limit_bytes
    limited(smallest)
    model.train_on_batch(x, y)
    model.close()
    assert refusal.is_smallest
    limited(smallest - 64)
    with pytest.raises(InfeasiblePlanError):
        model.train_on_batch(x, y)


def test_both_ways_are_as_near_to_the_update_in_double_precision():
    """A network of two layers, ten steps of gradient descent, and NumPy."""
    x, y = numbers(512, 30, seed=1), numbers(512, 3, seed=2)
    weights = [numbers(30, 20, seed=3) / 5, numbers(20, 3, seed=4) / 5]
    layers = [nn.Input((30,)), nn.Dense(20, activation="tanh", use_bias=False)]
    model = nn.Sequential([*layers, nn.Dense(3, use_bias=False)])
    model.compile(nn.optimizers.SGD(0.1), "mse")

    def train(limit):
        model.set_weights(weights)
        limited(limit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            options = {"batch_size": 512, "epochs": 10, "shuffle": False}
            history = model.fit(x, y, verbose=0, **options)
        found = model.get_weights()
        model.close()
        return found, history.fallbacks

    small = mc.plan.lower_bound(model.graph(512)) // 4096 * 4096 - 4096
    a, b = (each.astype(np.float64) for each in weights)
    for _ in range(10):
        h = np.tanh(x @ a)
        slope = 2 * (h @ b - y) / y.size
        a, b = a - 0.1 * x.T @ (slope @ b.T * (1 - h * h)), b - 0.1 * h.T @ slope
    for limit, divided in (("1MiB", False), (small, True)):
        found, fallbacks = train(limit)
        assert bool(fallbacks) == divided
        for mine, exact in zip(found, (a, b), strict=True):
            assert np.abs(mine - exact).max() <= 1e-6 * np.abs(exact).max()


def test_the_largest_batch_is_the_measured_one(tenths):
    generator = np.random.default_rng(5)
    for _ in range(tenths):
        nn.set_random_seed(int(generator.integers(1000)))
        layers, x, _ = drawn(generator)
        model = compiled(layers, on_oom="raise")
        once = model.plan(8).peak_bytes
        for part in (0.7, 1.0, 2.5, 6.0):
            limit = int(once * part) // 4096 * 4096
            found = model.largest_batch(limit)
            limited(limit)
            for size in (found, found + 1):
                rows = np.zeros((size, *x.shape[1:]), np.float32)
                y = np.zeros(size, np.int32)
                if size == found and size:
                    model.train_on_batch(rows, y)
                    model.close()
                elif size:
                    with pytest.raises(InfeasiblePlanError):
                        model.train_on_batch(rows, y)
            mc.config.set_memory_limit("CPU:0", None)


@pytest.mark.parametrize(
    ("epochs", "width", "rate", "limit"),
    [
        (4, 16, 0.05, "24KiB"),
        pytest.param(8, 64, 0.01, "128KiB", marks=pytest.mark.slow),
    ],
)
def test_a_batch_16_times_too_large_ends_with_the_accuracy_of_one_that_fits(
    epochs, width, rate, limit
):
    x, teacher = numbers(256 * epochs, 20), numbers(20, 4, seed=3)
    y = (x @ teacher).argmax(1)

    def train(limit, batch_size):
        nn.set_random_seed(2)
        hidden = [nn.Dense(width, activation="relu") for _ in range(2)]
        model = nn.Sequential([nn.Input((20,)), *hidden, nn.Dense(4)])
        model.compile(nn.optimizers.Adam(rate), cross_entropy(), metrics=["accuracy"])
        mc.config.set_memory_limit("CPU:0", limit)
        size = batch_size or 16 * model.largest_batch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            history = model.fit(x, y, batch_size=size, epochs=epochs, verbose=0, seed=1)
        accuracy = model.evaluate(x, y, batch_size=16, verbose=0)[1]
        model.close()
        mc.config.set_memory_limit("CPU:0", None)
        return size, accuracy, history

    size, accuracy, told = train(limit, None)
    _, expected, plain = train(None, size)
    assert size >= 256
    assert plain.fallbacks == []
    assert expected > 0.5
    assert abs(accuracy - expected) < 0.005
    assert {fallback.step for fallback in told.fallbacks} == {"micro_batch"}
    assert f"batch {min(size, len(x))} needs" in str(told.fallbacks[0])
    assert "with accumulated gradients" in str(told.fallbacks[0])
    np.testing.assert_allclose(told.history["loss"], plain.history["loss"], rtol=1e-3)


def test_a_refusal_names_the_limit_of_micro_batches_of_one_sample():
    def fit(limit):
        mc.config.set_memory_limit("CPU:0", limit)
        model = nn.Sequential([nn.Input((64,)), nn.Dense(32), nn.Dense(2)])
        model.compile("adam", "mse")
        try:
            model.fit(np.ones((96, 64)), np.ones((96, 2)), batch_size=96, verbose=0)
        finally:
            model.close()

    with pytest.raises(InfeasiblePlanError) as refusal:
        fit("16KiB")
    least = refusal.value.micro_batch_limit_bytes
    assert least < refusal.value.smallest_limit_bytes
    assert f"would do is {least} B (" in str(refusal.value)
    bound = f"Lower bound for any policy: {refusal.value.lower_bound_bytes} B ("
    (line,) = [each for each in str(refusal.value).splitlines() if bound in each]
    assert line.endswith("), for the whole batch.")
    with pytest.raises(InfeasiblePlanError):
        fit(least - 64)
    with pytest.warns(mc.errors.FallbackWarning):
        fit(least)


def test_memory_that_comes_free_while_a_batch_is_planned_is_taken():
    def freeing(graph, limit_bytes=None):
        try:
            return mc.plan.auto()(graph, limit_bytes)
        finally:  # another thread may do so at any time
            while blocks:
                blocks.pop().free()

    blocks = []
    model, x, y = wide(memory=freeing)
    limited(2 * model.plan(64).peak_bytes)
    pool = mc.config.logical_device("CPU:0").pool
    blocks.append(pool.allocate(pool.limit * 9 // 10))
    assert model.fit(x, y, batch_size=64, verbose=0).fallbacks == []
    assert not blocks
