"""What all optimizers have: rates, accumulation, clipping, averages, state, copies."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from calls import traced
from optimizer_rules import CLASSES, RULES

import memcfg as mc
from memcfg.errors import NonFiniteLossError, WeightsError

nn = mc.nn
schedules = nn.optimizers.schedules
PACKAGE = str(Path(mc.__file__).parent)


def weights(model):
    return [weight.tobytes() for weight in model.get_weights()]


# One program, the same bits under each policy and in each workspace mode


def residual():
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, padding="same", use_bias=False)(x)
    h = nn.Dropout(0.2)(nn.ReLU()(nn.BatchNormalization()(h)))
    h = nn.Add()([h, nn.Conv2D(4, 3, padding="same", activation="relu")(h)])
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


WHOLE = {
    "adam": lambda: nn.Adam(
        0.01,
        amsgrad=True,
        gradient_accumulation_steps=3,
        global_clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    ),
    "nadam": lambda: nn.Nadam(0.01, gradient_accumulation_steps=2, clipvalue=0.1),
    "adafactor": lambda: nn.Adafactor(
        0.05, gradient_accumulation_steps=2, clipnorm=0.5, weight_decay=0.01
    ),
    "means": lambda: nn.Adafactor(0.05, gradient_accumulation_steps=2, use_ema=True),
    "lamb": lambda: nn.Lamb(0.02, gradient_accumulation_steps=2, weight_decay=0.1),
    "muon": lambda: nn.Muon(0.02, gradient_accumulation_steps=2, clipnorm=1.0),
    "lion": lambda: nn.Lion(schedules.CosineDecay(0.01, 8), clipnorm=0.1),
}
RUNS = [
    *({"memory": each} for each in ("keep_all", "share", "sqrt_checkpoint", "auto")),
    *(
        {"training_workspace_mode": each, "inference_workspace_mode": each}
        for each in ("none", "single", "separate")
    ),
]


@pytest.mark.parametrize("case", WHOLE)
def test_policies_and_workspace_modes_give_the_same_bits(case, images, loss):
    found = []
    for options in RUNS:
        nn.set_random_seed(3)
        model = residual()
        model.compile(WHOLE[case](), loss, **options)
        history = model.fit(*images, batch_size=12, epochs=2, verbose=0, seed=1)
        state = [each.tobytes() for each in model.optimizer.variables]
        found.append((history.history, weights(model), state))
        if "memory" in options:
            predicted = model.memory_plan.peak_bytes
            assert model.memory_report(verify=True).measured_peak_bytes == predicted
        model.close()
    assert all(np.isfinite(each["loss"]).all() for each, _, _ in found)
    assert found[1:] == found[:-1]


# Accumulation


@pytest.mark.parametrize("kind", RULES)
def test_weights_change_at_the_last_step_of_a_window_alone(kind, dense, rows):
    x, y = rows
    options = {"gradient_accumulation_steps": 3, "weight_decay": 0.1}
    model = dense(CLASSES[kind](0.01, **options))
    for step in range(9):
        before = weights(model)
        model.train_on_batch(x[3 * step :][:3], y[3 * step :][:3])
        assert (weights(model) != before) == (step % 3 == 2)
        assert model.optimizer.iterations == (step + 1) // 3


@pytest.mark.parametrize("clip", [{}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}])
def test_a_window_is_a_larger_batch(clip, dense, rows):
    x, y = rows
    nn.set_random_seed(1)
    whole = dense(nn.SGD(0.1, momentum=0.9, **clip))
    parts = dense(nn.SGD(0.1, momentum=0.9, gradient_accumulation_steps=3, **clip))
    parts.set_weights(whole.get_weights())
    for _ in range(4):
        whole.train_on_batch(x, y)
        for i in range(3):
            parts.train_on_batch(x[10 * i :][:10], y[10 * i :][:10])
    for a, b in zip(whole.get_weights(), parts.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_finite_adds_nothing(dense, rows):
    x, y = rows
    model, expected = (
        dense(nn.Adam(0.01, gradient_accumulation_steps=2)) for _ in range(2)
    )
    expected.set_weights(model.get_weights())
    model.train_on_batch(x, y)
    with pytest.raises(NonFiniteLossError):
        model.train_on_batch(np.full_like(x, np.nan), y)
    model.train_on_batch(x[:9], y[:9])
    expected.train_on_batch(x, y)
    expected.train_on_batch(x[:9], y[:9])
    assert weights(model) == weights(expected)


def test_an_interrupt_leaves_whole_steps(dense, rows):
    """State and number of steps are those of some number of uninterrupted steps."""
    options = {"gradient_accumulation_steps": 2, "use_ema": True, "clipnorm": 0.1}

    class Stop(BaseException):
        pass

    def fresh():
        nn.set_random_seed(3)
        return dense(nn.Adam(0.01, **options))

    def tracer(last):
        def trace(frame, event, _):
            nonlocal last
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes = True
            last -= event == "opcode"
            if not last:
                raise Stop
            return trace

        return trace

    def state(model):
        return [each.tobytes() for each in model.optimizer.variables], weights(model)

    steps, model = [], fresh()
    for _ in range(30):
        steps.append(state(model))
        model.train_on_batch(*rows)
    model, stopped = fresh(), 0
    model.train_on_batch(*rows)
    for last in range(5, 4000, 173):
        try:
            with traced(tracer(last)):
                model.train_on_batch(*rows)
        except Stop:
            stopped += 1
        assert state(model) in steps
        assert steps.index(state(model)) == model.optimizer._iterations.value
    assert stopped > 3


# Averages


def test_averages_take_the_weights_places_at_the_end_of_fit(dense, rows):
    model = dense(nn.SGD(0.5, use_ema=True, ema_momentum=0.5))
    expected = [np.zeros_like(each) for each in model.get_weights()]
    raw = dense(nn.SGD(0.5))
    raw.set_weights(model.get_weights())
    for step in range(3):
        raw.train_on_batch(*rows)
        stays = 0.5 if step else 0
        expected = [
            stays * average + (1 - stays) * weight
            for average, weight in zip(expected, raw.get_weights(), strict=True)
        ]
    model.fit(*rows, batch_size=30, epochs=3, shuffle=False, verbose=0)
    for found, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    before = weights(model)
    model.optimizer.finalize_variable_values()
    assert weights(model) == before


def test_without_a_step_there_is_no_average(dense, rows):
    model = dense(nn.SGD(0.5, use_ema=True))
    before = weights(model)
    model.fit(*rows, epochs=0 + 1, initial_epoch=1, verbose=0)
    model.optimizer.finalize_variable_values(model.get_weights())
    assert weights(model) == before


# Learning rates


def test_a_schedule_is_asked_before_each_step(dense, rows):
    seen = []

    class Own(schedules.LearningRateSchedule):
        def __call__(self, step):
            seen.append(step)
            return 0.1 / (step + 1)

    model, other = dense(nn.SGD(Own())), dense(nn.SGD(0.1))
    other.set_weights(model.get_weights())
    for step in range(4):
        model.train_on_batch(*rows)
        other.optimizer.learning_rate.assign(0.1 / (step + 1))
        other.train_on_batch(*rows)
    assert seen == [0, 1, 2, 3]
    assert weights(model) == weights(other)
    assert float(model.optimizer.learning_rate) == 0.1 / 5
    model.optimizer.learning_rate = schedules.ExponentialDecay(0.5, 4, 0.5)
    assert model.optimizer.learning_rate == 0.25
    with pytest.raises(TypeError, match="cannot replace the schedule"):
        model.optimizer.learning_rate = 0.1


def test_schedules_count_steps_and_not_windows(dense, rows):
    rate = schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.5, 0.25])
    model = dense(nn.SGD(rate, gradient_accumulation_steps=3))
    before = model.get_weights()
    other = dense(nn.SGD(0.25))
    other.set_weights(before)
    for _ in range(3):
        model.train_on_batch(*rows)
    other.train_on_batch(*rows)
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_schedule_that_returns_no_rate_changes_nothing(dense, rows):
    class Wrong(schedules.LearningRateSchedule):
        def __call__(self, step):
            return math.nan

        def __repr__(self):
            return "Wrong()"

    model = dense(nn.SGD(Wrong()))
    before = weights(model)
    with pytest.raises(ValueError, match=r"what Wrong\(\) returns must be finite"):
        model.train_on_batch(*rows)
    assert weights(model) == before
    assert model.optimizer.iterations == 0
    with pytest.raises(NotImplementedError, match="does not define __call__"):
        schedules.LearningRateSchedule()(1)


def test_a_rate_that_is_read_can_be_set():
    optimizer = nn.Adam(0.5)
    rate = optimizer.learning_rate
    rate.assign(0.25)
    assert optimizer.learning_rate == 0.25
    assert rate.numpy() == np.float32(0.5)
    assert type(pickle.loads(pickle.dumps(rate))) is float
    with pytest.raises(TypeError, match="subclass optimizers"):
        optimizer.learning_rate = lambda: 0.5
    with pytest.raises(AttributeError, match="no attribute 'lr'"):
        optimizer.lr = 0.5


@pytest.mark.parametrize(
    ("make", "steps", "wanted"),
    [
        (
            lambda s: s.ExponentialDecay(1.0, 4, 0.5, staircase=True),
            (3, 4, 8),
            "1 .5 .25",
        ),
        (lambda s: s.InverseTimeDecay(1.0, 2, 1.0, True), (1, 2, 5), "1 .5 .33333333"),
        (lambda s: s.PolynomialDecay(1.0, 4, 0.0, 2.0), (0, 2, 9), "1 .25 0"),
        (lambda s: s.PolynomialDecay(1.0, 4, 0.0, cycle=True), (0, 4, 6), "1 0 .25"),
        (lambda s: s.CosineDecay(1.0, 4, 0.5), (0, 2, 4, 9), "1 .75 .5 .5"),
        (lambda s: s.CosineDecayRestarts(1.0, 2, 1.0, 0.5), (1, 2, 5), ".5 .5 .125"),
        (lambda s: s.CosineDecayRestarts(1.0, 2), (2, 4, 6, 10), "1 .5 1 .5"),
    ],
)
def test_schedules(make, steps, wanted):
    made = make(schedules)
    found = [made(step) for step in steps]
    assert found == pytest.approx([float(each) for each in wanted.split()])
    again = schedules.deserialize(schedules.serialize(made))
    assert repr(again) == repr(made)
    assert [again(step) for step in steps] == found
    assert repr(copy.deepcopy(made)) == repr(made)


# State


@pytest.mark.parametrize("kind", RULES)
def test_state_moves_to_another_model(kind, dense, rows):
    options = {"gradient_accumulation_steps": 2, "use_ema": True}
    first, second = (dense(CLASSES[kind](0.01, **options)) for _ in range(2))
    for _ in range(3):
        first.train_on_batch(*rows)
    state = first.optimizer.get_state()
    assert state["iteration"] == 3
    second.optimizer.set_state(state)
    second.set_weights(first.get_weights())
    for model in (first, second):
        model.train_on_batch(*rows)
    assert weights(first) == weights(second)
    for key, value in second.optimizer.get_state().items():
        np.testing.assert_array_equal(value, first.optimizer.get_state()[key])


def test_state_of_another_optimizer_is_refused(dense, rows):
    model = dense(nn.Adam())
    model.train_on_batch(*rows)
    before = model.optimizer.get_state()
    assert set(before) >= {"iteration", "dense/kernel/m", "dense_1/bias/v"}
    missing = {key: before[key] for key in before if key != "dense/kernel/m"}
    with pytest.raises(WeightsError, match="dense/kernel/m is not in both"):
        model.optimizer.set_state(missing)
    with pytest.raises(
        WeightsError, match=r"'dense_1/bias/v' must have shape \(4,\), got \(2,\)"
    ):
        model.optimizer.set_state(before | {"dense_1/bias/v": [1, 2]})
    with pytest.raises(ValueError, match="steps must be zero or more"):
        model.optimizer.set_state(before | {"iteration": -1})
    for key, value in model.optimizer.get_state().items():
        np.testing.assert_array_equal(value, before[key])
    with pytest.raises(RuntimeError, match="Call compile first"):
        nn.Adam().get_state()


def test_first_values_are_there_before_any_step(dense, rows):
    model = dense(nn.Adagrad(initial_accumulator_value=0.25))
    state = model.optimizer.get_state()
    assert (state["dense/kernel/accumulator"] == np.float32(0.25)).all()
    other = dense(nn.Adagrad(initial_accumulator_value=0.25))
    other.set_weights(model.get_weights())
    for each in (model, other):
        each.train_on_batch(*rows)
    assert weights(model) == weights(other)
    model = dense(nn.Nadam())
    assert model.optimizer.get_state()["product"] == 1


def test_copies_go_on_amid_a_window(dense, rows):
    model = dense(nn.Nadam(0.01, gradient_accumulation_steps=3, use_ema=True))
    for _ in range(4):
        model.train_on_batch(*rows)
    other = copy.deepcopy(model)
    assert other.optimizer._iterations.value == 4
    for each in (model, other):
        for _ in range(3):
            each.train_on_batch(*rows)
    assert weights(model) == weights(other)


# Settings


def test_some_weights_do_not_decay(dense, rows):
    x = np.zeros_like(rows[0])
    optimizer = nn.SGD(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model = dense(optimizer)
    before = [np.ones_like(each) for each in model.get_weights()]
    model.set_weights(before)
    model.train_on_batch(x, rows[1])
    first, bias, *_ = model.get_weights()
    np.testing.assert_allclose(first, 0.95, rtol=1e-6)
    assert np.abs(bias - 1).max() < 0.02
    with pytest.raises(RuntimeError, match="before the model is compiled"):
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
    with pytest.raises(TypeError, match="names"):
        nn.SGD().exclude_from_weight_decay(var_list=[1])


@pytest.mark.parametrize("kind", RULES)
def test_names_configurations_and_reprs(kind):
    made = nn.optimizers.get(kind)
    assert type(made) is CLASSES[kind]
    options = {
        "weight_decay": 0.5,
        "clipnorm": 2.0,
        "use_ema": True,
        "gradient_accumulation_steps": 4,
        "name": "mine",
    }
    made = CLASSES[kind](schedules.CosineDecay(0.5, 10), **options)
    text = nn.optimizers.serialize(made)
    again = nn.optimizers.get(text)
    assert repr(again) == repr(nn.optimizers.deserialize(text))
    assert nn.optimizers.serialize(again) == text
    assert repr(again) == repr(made)
    assert "gradient_accumulation_steps=4" in repr(made)
    assert again.name == "mine"
    with pytest.raises(AttributeError, match=r"'clipnorm' of .* is fixed"):
        again.clipnorm = 3.0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"clipnorm": 0}, ValueError, "clipnorm must be above zero, or None"),
        ({"clipvalue": -1.0}, ValueError, "clipvalue must be above zero"),
        ({"clipnorm": 1, "clipvalue": 1}, ValueError, "one of clipnorm, clipvalue and"),
        ({"weight_decay": -1}, ValueError, "weight_decay must be zero or more"),
        ({"loss_scale_factor": 2.0}, ValueError, "gradients are float32"),
        ({"ema_momentum": 1.5}, ValueError, r"ema_momentum must be in \[0, 1\]"),
        ({"ema_overwrite_frequency": 0}, ValueError, "ema_overwrite_frequency"),
        ({"gradient_accumulation_steps": 1}, ValueError, "must be 2 or more, or None"),
        ({"gradient_accumulation_steps": 2.5}, TypeError, "must be an integer"),
        ({"learning_rate": "fast"}, TypeError, "learning_rate must be a number"),
        ({"name": ""}, ValueError, "a name must not be empty"),
    ],
)
def test_options_that_cannot_be_honoured(options, error, words):
    with pytest.raises(error, match=words):
        nn.Adam(**options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Lion(beta_1=0.0), "beta_1 must be above 0"),
        (lambda: nn.AdamW(weight_decay=None), "weight_decay must be a number"),
        (lambda: nn.Adafactor(beta_2_decay=0.5), "beta_2_decay must be below 0"),
        (lambda: nn.Adafactor(clip_threshold=0), "clip_threshold must be above 0"),
        (lambda: nn.RMSprop(rho=1.0), "rho must be in"),
        (lambda: nn.Adagrad(initial_accumulator_value=-1), "zero or more"),
        (
            lambda: nn.optimizers.get("adan"),
            "unknown optimizer 'adan': did you mean 'adam'",
        ),
        (lambda: nn.optimizers.get("lossscaleoptimizer"), "no LossScale.*: gradients"),
        (lambda: nn.optimizers.Ftrl(learning_rate_power=1), "zero or less"),
        (lambda: nn.optimizers.Ftrl(l1_regularization_strength=-1), "zero or more"),
        (lambda: nn.optimizers.ScheduleFreeAdamW(beta_1=0.0), "beta_1 must be above 0"),
        (lambda: schedules.deserialize({"class_name": "X"}), "unknown schedule 'X'"),
        (lambda: schedules.CosineDecay(0.1, 0), "decay_steps must be above zero"),
        (lambda: schedules.CosineDecayRestarts(0.1, 5, 0.5), "t_mul must be 1 or more"),
        (
            lambda: schedules.PiecewiseConstantDecay([1], [1]),
            "one value more than bound",
        ),
        (lambda: schedules.PiecewiseConstantDecay([2, 1], [1] * 3), "ascend"),
    ],
)
def test_settings_that_are_wrong(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_what_keras_has_and_memcfg_has_not():
    with pytest.raises(AttributeError, match=r"'LossScaleOptimizer': .* inner opt"):
        _ = nn.optimizers.LossScaleOptimizer
    with pytest.raises(AttributeError, match=r"'Adan': did you mean 'Adam'"):
        _ = nn.optimizers.Adan


def test_which_weights_muon_leaves_to_adam():
    start = nn.Input((4,), dtype="int32")
    h = nn.Flatten()(nn.Embedding(9, 3)(start))
    y = nn.Dense(2, name="head")(nn.Dense(5, name="inner")(h))
    kept = {}
    for options in ({}, {"exclude_layers": ["hea"], "exclude_embeddings": False}):
        model = nn.Model(start, y)
        model.compile(nn.Muon(**options), "mse")
        names = model.optimizer.get_state()
        kept[bool(options)] = {
            name.rpartition("/")[0] for name in names if name.endswith("velocity")
        }
    vectors = {"inner/bias", "head/bias"}
    assert kept[False] == {"embedding/embeddings", *vectors}
    assert kept[True] == {"head/kernel", *vectors}
    for call, error in (
        (lambda: nn.Muon(exclude_layers="head"), TypeError),
        (lambda: nn.Muon(adam_lr_ratio=0), ValueError),
        (lambda: nn.Muon(ns_steps=0), ValueError),
    ):
        with pytest.raises(error, match="Muon: "):
            call()


@pytest.mark.parametrize("limit", ["clipnorm", "global_clipnorm"])
def test_gradients_whose_squares_overflow_are_clipped(limit):
    model = nn.Sequential([nn.Input((1,)), nn.Dense(1, use_bias=False)])
    model.set_weights([np.ones((1, 1))])
    model.compile(nn.SGD(0.25, **{limit: 1.0}), "mae")
    x = np.full((1, 1), 1e30, np.float32)
    assert model.train_on_batch(x, 0 * x) == pytest.approx(1e30)
    assert model.get_weights()[0].item() == 0.75


def test_a_step_that_loses_the_weights_is_told_of_by_the_next():
    model = nn.Sequential([nn.Input((1,)), nn.Dense(1, use_bias=False)])
    model.compile(nn.SGD(1e30), "mae")
    x = np.full((1, 1), 1e30, np.float32)
    model.train_on_batch(x, 0 * x)
    with pytest.raises(NonFiniteLossError, match="not finite since an earlier step"):
        model.fit(x, 0 * x, verbose=0)
    with pytest.raises(NonFiniteLossError, match="in step 2, because weights"):
        model.train_on_batch(x, 0 * x)


class Noam(nn.optimizers.schedules.LearningRateSchedule):
    """The rate of "Attention is all you need", by ops."""

    def __init__(self, width, warmup):
        self.width, self.warmup = width, warmup

    def __call__(self, step):
        step = nn.ops.cast(step, "float32") + 1.0
        rising = step * self.warmup**-1.5
        return self.width**-0.5 * nn.ops.minimum(nn.ops.rsqrt(step), rising)


class Stairs(nn.optimizers.schedules.LearningRateSchedule):
    """Python's conditions and ops."""

    def __call__(self, step):
        return 0.5 if step < 3 else nn.ops.exp(-0.1 * step)


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Noam(32, 5), lambda n: 32**-0.5 * min((n + 1) ** -0.5, (n + 1) * 5**-1.5)),
        (Stairs(), lambda n: 0.5 if n < 3 else np.exp(-0.1 * n)),
    ],
)
def test_schedules_of_ones_own_may_call_ops(schedule, wanted):
    layer = nn.Dense(1, use_bias=False)
    model = nn.Sequential([nn.Input((1,)), layer])
    model.compile(nn.SGD(schedule), nn.losses.MeanAbsoluteError())
    x, y = np.ones((1, 1), np.float32), np.full((1, 1), -100, np.float32)
    weight = model.get_weights()[0].item()
    for step in range(12):  # the slope is 1
        assert model.optimizer.learning_rate == pytest.approx(wanted(step), rel=1e-5)
        model.train_on_batch(x, y)
        weight -= wanted(step)
        assert model.get_weights()[0].item() == pytest.approx(weight, rel=1e-4)
    again = copy.deepcopy(model.optimizer)  # which begins anew
    assert again.learning_rate == pytest.approx(wanted(0), rel=1e-5)
