"""Steps of one's own: `train_step` and its relatives, `add_loss`, metrics in steps."""

from __future__ import annotations

import copy
import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import memcfg as mc
from memcfg.errors import InfeasiblePlanError, NonFiniteLossError

nn, ops = mc.nn, mc.nn.ops
layers = nn.layers


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = numbers(96, 4)
Y = X[:, :1] * X[:, 1:2]


class Plain(nn.Model):
    def __init__(self, penalty=None, rate=0.0):
        super().__init__()
        self.first = layers.Dense(
            16,
            activation="relu",
            kernel_regularizer=penalty,
            activity_regularizer=penalty,
        )
        self.drop = layers.Dropout(rate)
        self.last = layers.Dense(1)

    def call(self, x):
        return self.last(self.drop(self.first(x)))


class Own(Plain):
    """The built-in step, written with a tape."""

    def train_step(self, data):
        x, y, *weight = data
        with mc.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, *weight)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, np.float32(x.shape[0]))
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Inherited(Plain):
    def train_step(self, data):
        return super().train_step(data)


class WithTerm(Plain):
    """The built-in step, with a loss that has one more term."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **more):
        loss = super().compute_loss(x, y, y_pred, sample_weight, **more)
        return loss + ops.mean(ops.square(y_pred)) * 0.5


def trained(kind, optimizer=None, weight=None, memory=None, **options):
    nn.set_random_seed(0)
    model = kind(**options)
    model.build((None, 4))
    nn.set_random_seed(1)
    model.compile(optimizer or nn.Adam(0.01), "mse", metrics=["mae"], memory=memory)
    history = model.fit(
        X,
        Y,
        epochs=3,
        seed=3,
        sample_weight=weight,
        validation_data=(X[:20], Y[:20]),
        verbose=0,
    )
    return model, history.history


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (lambda: nn.SGD(0.1, momentum=0.9), {}),
        (lambda: nn.Adam(0.01), {"penalty": nn.regularizers.L2(0.01)}),
        (lambda: nn.RMSprop(0.01, use_ema=True), {}),
        (lambda: nn.Adam(0.01, gradient_accumulation_steps=3), {}),
    ],
)
@pytest.mark.parametrize("kind", [Own, Inherited])
def test_the_bits_are_those_of_the_built_in_step(kind, optimizer, options):
    wanted, first = trained(Plain, optimizer(), **options)
    made, second = trained(kind, optimizer(), **options)
    for one, other in zip(wanted.get_weights(), made.get_weights(), strict=True):
        assert_array_equal(one, other)
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert_allclose(values, second[name], rtol=1e-5)
    assert made.evaluate(X, Y, verbose=0) == pytest.approx(
        wanted.evaluate(X, Y, verbose=0), rel=1e-5
    )
    assert_array_equal(made.predict(X, verbose=0), wanted.predict(X, verbose=0))
    for one, other in zip(
        wanted.optimizer.variables, made.optimizer.variables, strict=True
    ):
        assert_array_equal(one, other)


def test_sample_weights_reach_the_step():
    weight = np.abs(numbers(96, seed=5))
    wanted, _ = trained(Plain, weight=weight)
    made, _ = trained(Own, weight=weight)
    for one, other in zip(wanted.get_weights(), made.get_weights(), strict=True):
        assert_array_equal(one, other)


def test_masks_reach_losses_and_metrics():
    def build(base):
        class Masked(base):
            def __init__(self):
                nn.Model.__init__(self)
                self.table = layers.Embedding(10, 4, mask_zero=True)
                self.rnn = layers.LSTM(4, return_sequences=True)
                self.last = layers.Dense(1)

            def call(self, x):
                return self.last(self.rnn(self.table(x)))

        return Masked

    x = np.random.default_rng(0).integers(0, 10, (16, 5))
    y = numbers(16, 5, 1)
    found = []
    for base in (Plain, Inherited):
        nn.set_random_seed(0)
        model = build(base)()
        model.compile(nn.SGD(0.1), "mse", metrics=["mae"])
        history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
        found.append((model.get_weights(), history))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert_array_equal(one, other)
    for name, values in found[0][1].items():
        assert_allclose(values, found[1][1][name], rtol=1e-5)


def test_the_same_bits_at_the_smallest_limit():
    wanted, _ = trained(Own)
    plan = wanted.plan(32)
    for policy in ("auto", "sqrt_checkpoint", "share"):
        made, _ = trained(Own, memory=policy)
        for one, other in zip(wanted.get_weights(), made.get_weights(), strict=True):
            assert_array_equal(one, other)
        report = made.memory_report(verify=True)
        assert report.measured_peak_bytes == made.memory_plan.peak_bytes
        timeline = made.memory_timeline(verify=True)
        assert timeline.measured_peak_bytes == report.measured_peak_bytes
    assert plan.peak_bytes == wanted.plan(32, limit=plan.peak_bytes).peak_bytes


def test_a_step_that_does_not_fit_leaves_everything():
    model, _ = trained(Own)
    before, state = model.get_weights(), model.optimizer.get_state()
    with pytest.raises(InfeasiblePlanError):
        model.plan(4096, limit=4096)
    for one, other in zip(before, model.get_weights(), strict=True):
        assert_array_equal(one, other)
    for key, value in model.optimizer.get_state().items():
        assert_array_equal(value, state[key])


def test_a_term_of_compute_loss_changes_training():
    plain, _ = trained(Plain)
    made, history = trained(WithTerm)
    assert (
        np.abs(made.predict(X, verbose=0)).mean()
        < np.abs(plain.predict(X, verbose=0)).mean()
    )
    assert history["loss"][0] > history["mae"][0] ** 2


def test_a_loss_that_is_not_finite_stops_before_the_update():
    made, _ = trained(Own)
    before = made.get_weights()
    bad = X.copy()
    bad[3] = np.nan
    with pytest.raises(NonFiniteLossError, match="the loss is nan in epoch 1/1"):
        made.fit(bad, Y, batch_size=96, shuffle=False, verbose=0)
    for one, other in zip(before, made.get_weights(), strict=True):
        assert_array_equal(one, other)
    made.fit(bad, Y, batch_size=96, verbose=0, on_nan="ignore")
    assert np.isnan(made.get_weights()[0]).any()


class Adversarial(nn.Model):
    """Two networks, each with an optimizer, in one step and without `call`."""

    def __init__(self, latent=3):
        super().__init__()
        self.judge = nn.Sequential(
            [nn.Input((2,)), layers.Dense(16, activation="relu"), layers.Dense(1)]
        )
        self.maker = nn.Sequential(
            [nn.Input((latent,)), layers.Dense(16, activation="relu"), layers.Dense(2)]
        )
        self.latent = latent
        self.judged = nn.metrics.Mean(name="judge_loss")
        self.made = nn.metrics.Mean(name="maker_loss")

    def compile(self, judge, maker, loss, **options):
        super().compile(**options)
        self.judge_optimizer, self.maker_optimizer, self.loss_fn = judge, maker, loss

    @property
    def metrics(self):
        return [self.judged, self.made]

    def train_step(self, real):
        count = real.shape[0]
        noise = nn.random.normal((count, self.latent))
        both = ops.concatenate([self.maker(noise), real], axis=0)
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        with mc.GradientTape() as tape:
            loss = self.loss_fn(labels, self.judge(both))
        weights = self.judge.trainable_weights
        pairs = zip(tape.gradient(loss, weights), weights, strict=True)
        self.judge_optimizer.apply_gradients(pairs)
        with mc.GradientTape() as tape:
            fooled = self.loss_fn(ops.zeros((count, 1)), self.judge(self.maker(noise)))
        weights = self.maker.trainable_weights
        self.maker_optimizer.apply(tape.gradient(fooled, weights), weights)
        self.judged.update_state(loss)
        self.made.update_state(fooled)
        return {"judge_loss": self.judged.result(), "maker_loss": self.made.result()}


def adversaries(memory=None):
    nn.set_random_seed(0)
    model = Adversarial()
    loss = nn.losses.BinaryCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.01), nn.Adam(0.01), loss, memory=memory)
    return model


def test_several_models_and_optimizers_in_one_step():
    model = adversaries()
    data = numbers(256, 2) + 3
    history = model.fit(data, epochs=4, seed=1, verbose=0).history
    assert [*history] == ["judge_loss", "maker_loss"]
    assert len(history["judge_loss"]) == 4
    before = model.maker.get_weights()
    noise = numbers(50, 3)
    assert np.linalg.norm(model.maker.predict(noise, verbose=0).mean(0) - 3) < 2
    model.fit(mc.data.Dataset.from_tensor_slices(data).batch(32), epochs=8, verbose=0)
    assert not np.array_equal(before[0], model.maker.get_weights()[0])
    assert model.judge_optimizer.iterations == model.maker_optimizer.iterations == 96
    thrifty = adversaries("sqrt_checkpoint")
    thrifty.fit(data, epochs=4, seed=1, verbose=0)
    for one, other in zip(before, thrifty.maker.get_weights(), strict=True):
        assert_array_equal(one, other)


class Sampling(layers.Layer):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor
        self.seeds = nn.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        kl = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        self.add_loss(-0.5 * ops.mean(kl) * self.factor)
        noise = nn.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


def autoencoder(factor):
    nn.set_random_seed(0)
    start = nn.Input((8,))
    hidden = layers.Dense(16, activation="relu")(start)
    sample = Sampling(factor)([layers.Dense(2)(hidden), layers.Dense(2)(hidden)])
    return nn.Model(start, layers.Dense(8)(sample))


def test_losses_that_a_layer_adds_are_minimised():
    x = numbers(64, 8)
    found = []
    for factor in (0.0, 1.0, 10.0):
        model = autoencoder(factor)
        model.compile(nn.Adam(0.01), "mse")
        model.fit(x, x, epochs=30, verbose=0)
        inner = nn.Model(model.inputs, model.layers[2].output)
        mean = inner.predict(x, verbose=0)
        found.append(float(np.square(mean).mean()))
    assert found[0] > found[1] > found[2]


def test_an_added_loss_has_its_value():
    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss(ops.sum(ops.square(x)) * 0.25)
            return x

    start = nn.Input((4,))
    model = nn.Model(start, Adds()(start))
    model.compile("sgd", "mse")
    wanted = np.square(X[:7] - 1).mean() + 0.25 * np.square(X[:7]).sum()
    assert model.test_on_batch(X[:7], np.ones((7, 4))) == pytest.approx(
        wanted, rel=1e-6
    )

    class Step(nn.Model):
        def __init__(self):
            super().__init__()
            self.inner = Adds()

        def call(self, x):
            self.add_loss(ops.mean(x))
            return self.inner(x)

        def test_step(self, data):
            return super().test_step(data)

    own = Step()
    own.compile("sgd", "mse")
    assert own.test_on_batch(X[:7], np.ones((7, 4))) == pytest.approx(
        wanted + X[:7].mean(), rel=1e-6
    )


def test_a_batch_with_added_losses_runs_whole():
    model = autoencoder(1.0)
    model.compile("sgd", "mse")
    wide = model.plan(512)
    with pytest.raises(InfeasiblePlanError):
        model.plan(512, limit=wide.peak_bytes // 8)


def functional_with_losses():
    nn, ops = mc.nn, mc.nn.ops
    x = nn.Input((3,))
    h = nn.Dense(2, activation="tanh")(x)
    model = nn.Model(x, nn.Dense(1)(h))
    model.add_loss(ops.mean(h) * 0.5)
    model.add_loss(ops.mean(ops.square(x), axis=-1))
    return model, nn.Model(x, h)


def test_losses_of_tensors_of_a_functional_model(tmp_path):
    model, inner = functional_with_losses()
    model.compile("sgd", "mse")
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=(4, 1)).astype("f4")
    error = model.predict(x, verbose=0) - y
    h = inner.predict(x, verbose=0)
    wanted = (error**2).mean() + h.mean() / 2 + (x**2).mean(-1).sum()
    assert model.evaluate(x, y, verbose=0) == pytest.approx(wanted, rel=1e-5)
    # What h adds to the loss changes the first kernel as its derivative says.
    first, second = (each for each in model.layers if each.weights)
    kernel, last = first.get_weights()[0], second.get_weights()[0]
    of_h = 2 * error / len(x) @ last.T + 0.5 / h.size
    step = 0.01 * x.T @ (of_h * (1 - h**2))
    assert model.fit(x, y, verbose=0).history["loss"][0] == pytest.approx(wanted, 1e-5)
    assert_allclose(first.get_weights()[0], kernel - step, rtol=1e-4, atol=1e-6)
    clone = mc.nn.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clone.compile("sgd", "mse")
    model.save(tmp_path / "m.memcfg")
    start = mc.nn.Input((3,))
    outer = mc.nn.Model(start, model(start))
    outer.compile("sgd", "mse")
    loaded = mc.nn.models.load_model(tmp_path / "m.memcfg")
    after = model.evaluate(x, y, verbose=0)
    for other in (clone, copy.deepcopy(model), loaded, outer):
        assert other.evaluate(x, y, verbose=0) == after


def test_losses_of_tensors_that_are_refused(tmp_path):
    nn, ops = mc.nn, mc.nn.ops
    model, _ = functional_with_losses()
    with pytest.raises(TypeError, match=r"losses of add_loss, which Keras's"):
        model.save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"depends on the input"):
        model.add_loss(ops.mean(nn.Input((3,))))
    with pytest.raises(TypeError, match=r"takes a tensor, got 0\.5"):
        model.add_loss(0.5)
    x = nn.Input((3,))
    with pytest.raises(ValueError, match=r"only losses of add_loss may be"):
        nn.Model(x, ops.mean(x))
    with pytest.raises(RuntimeError, match=r"a loss that `call` computes"):
        nn.Sequential([x, nn.Dense(2)]).add_loss(ops.mean(x))
    model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match=r"is compiled: call add_loss before"):
        model.add_loss(ops.mean(model.input))


def test_what_cannot_be_added_or_returned_is_refused():
    with pytest.raises(
        RuntimeError, match=r"add_loss adds a loss that `call` computes"
    ):
        layers.Dense(1).add_loss(1.0)

    class Reduces(layers.Layer):
        def call(self, x):
            return ops.mean(x, keepdims=True)

    with pytest.raises(ValueError, match="reduced along the batch"):
        Reduces()(nn.Input((4,)))

    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss(0.5)
            return x

    with pytest.raises(TypeError, match="takes a symbolic tensor, got"):
        Adds()(nn.Input((4,)))


def returning(made):
    class Step(Plain):
        def train_step(self, data):
            del data
            return made

    return Step()


@pytest.mark.parametrize(
    ("made", "kind", "text"),
    [
        (None, TypeError, "train_step must return a dict of numbers by name"),
        (3.0, TypeError, "train_step must return a dict of numbers by name"),
    ],
)
def test_steps_that_return_something_else_are_refused(made, kind, text):
    model = returning(made)
    model.compile("sgd", "mse")
    with pytest.raises(kind, match=text):
        model.fit(X, Y, verbose=0)


def test_a_step_must_return_scalars():
    class Step(Plain):
        def train_step(self, data):
            return {"each": self(data[0]) * 2}

    model = Step()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"must return scalars, got 'each' of shape"):
        model.fit(X, Y, verbose=0)


def test_what_steps_of_their_own_do_not_honour_is_refused():
    model = Own()
    with pytest.raises(ValueError, match="has steps of its own, which are planned"):
        model.compile("sgd", "mse", training_workspace_mode="none")
    with pytest.raises(ValueError, match="weights of the losses, and there are none"):
        model.compile("sgd", loss_weights=[1.0])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="class_weight is for the built-in step"):
        model.fit(X, Y, class_weight={0: 1.0}, verbose=0)
    with pytest.raises(RuntimeError, match="the data of train_step is not known yet"):
        model.plan(8)
    with pytest.raises(NotImplementedError, match="largest_batch is for the built-in"):
        model.largest_batch("1MiB")
    with pytest.raises(TypeError, match=r"make_train_function would not be called"):

        class Made(Plain):
            def make_train_function(self):
                pass


def test_metrics_without_a_loss_are_of_the_default_step():
    class Halved(Plain):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
            return ops.mean(ops.square(y - y_pred)) / 2

    model = Halved()
    model.build((None, 4))
    wide = Halved()
    wide.last = layers.Dense(3)
    wide.build((None, 4))
    with pytest.raises(ValueError, match="labels or one-hot targets: pass a metric"):
        wide.compile("sgd", metrics=["accuracy"])
    model.compile(nn.SGD(0.1), metrics=["mse"])
    logs = model.fit(X, Y, batch_size=96, epochs=2, verbose=0).history
    assert_allclose(logs["loss"], np.array(logs["mse"]) / 2, rtol=1e-6)
    assert logs["mse"][1] < logs["mse"][0]
    wanted = np.mean((model.predict(X, verbose=0) - Y) ** 2)
    assert_allclose(model.evaluate(X, Y, verbose=0), [wanted / 2, wanted], rtol=1e-5)


def test_a_loss_in_a_call_is_that_of_the_batch():
    class Judge(layers.Layer):
        def __init__(self, loss):
            super().__init__()
            self.of = loss

        def call(self, y, y_pred):
            self.add_loss(2 * self.of(y, y_pred))
            return y_pred

    for loss in (nn.losses.Huber(), nn.losses.MeanSquaredError(reduction="none")):
        x, y = layers.Input((4,)), layers.Input((1,))
        model = nn.Model([x, y], Judge(loss)(y, layers.Dense(1)(x)))
        model.compile(nn.SGD(0.1))
        wanted = 2 * np.sum(loss(Y, model.predict([X, Y], verbose=0)))
        assert_allclose(
            model.evaluate([X, Y], batch_size=96, verbose=0), wanted, rtol=1e-5
        )
        (dense,) = (each for each in model.layers if each.weights)

        def slopes(x, y, loss=loss, dense=dense):
            with mc.GradientTape() as tape:
                value = 2 * ops.sum(loss(y, dense(x)))
            return tape.gradient(value, dense.weights)

        before = model.get_weights()
        wanted = [
            weight - 0.1 * slope
            for weight, slope in zip(before, mc.function(slopes)(X, Y), strict=True)
        ]
        model.fit([X, Y], batch_size=96, verbose=0)
        for found, each in zip(model.get_weights(), wanted, strict=True):
            assert_allclose(found, each, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [float, lambda r: r * X, lambda r: X - r])
def test_results_of_metrics_are_known_after_the_step(wrong):
    class Step(Plain):
        def train_step(self, data):
            del data
            return {"loss": wrong(self.metrics[0].result())}

    model = Step()
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="is known after the function has run"):
        model.fit(X, Y, verbose=0)


def test_results_of_metrics_are_combined():
    @mc.function
    def step(a, b):
        one, two = nn.metrics.Mean(name="one"), nn.metrics.Mean(name="two")
        one.update_state(a)
        two.update_state(b)
        p, r = one.result(), two.result()
        f1 = 2 * ((p * r) / (p + r + nn.backend.epsilon()))
        return f1, 1 - p, np.float32(3) / r, -((p - 1.0) ** 2), 1.0 + p, p / 0

    found = step(np.float32([0.25, 0.75]), np.float32([0.25]))
    wanted = [1 / 3, 0.5, 12.0, -0.25, 1.5, np.inf]
    assert_allclose(found, wanted, rtol=1e-5)


def test_own_evaluation_and_prediction():
    class Step(Plain):
        def __init__(self):
            super().__init__()
            self.largest = nn.metrics.Mean(name="size")

        def test_step(self, data):
            x, _ = data
            self.largest.update_state(ops.abs(self(x)))
            return {"size": self.largest.result()}

        def predict_step(self, data):
            return {"y": self(data), "twice": self(data) * 2}

    model = Step()
    model.compile("sgd", "mse")
    found = model.predict(X, batch_size=40, verbose=0)
    assert_allclose(found["twice"], found["y"] * 2, rtol=1e-6)
    assert found["y"].shape == (96, 1)
    value = model.evaluate(X, Y, batch_size=40, verbose=0)
    assert value == pytest.approx(np.abs(found["y"]).mean(), rel=1e-5)
    assert model.predict_on_batch(X[:3])["y"].shape == (3, 1)


def test_weights_and_optimizer_survive_compiling_and_saving(tmp_path):
    model, _ = trained(Own, nn.Adam(0.01))
    state = model.optimizer.get_state()
    assert state["iteration"] == 9
    weights = model.get_weights()
    model.compile(model.optimizer, "mse")
    for key, value in model.optimizer.get_state().items():
        assert_array_equal(value, state[key])
    model.save_weights(tmp_path / "own.weights.safetensors")
    model.fit(X, Y, verbose=0)
    assert model.optimizer.iterations == 12
    model.load_weights(tmp_path / "own.weights.safetensors")
    for one, other in zip(weights, model.get_weights(), strict=True):
        assert_array_equal(one, other)
    model.close()
    for one, other in zip(weights, model.get_weights(), strict=True):
        assert_array_equal(one, other)


def test_a_backup_resumes_a_step_of_its_own(tmp_path):
    wanted, _ = trained(Own)

    class Stops(nn.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def run(*more):
        nn.set_random_seed(0)
        model = Own()
        model.build((None, 4))
        nn.set_random_seed(1)
        model.compile(nn.Adam(0.01), "mse")
        saved = nn.callbacks.BackupAndRestore(tmp_path)
        model.fit(X, Y, epochs=3, seed=3, verbose=0, callbacks=[saved, *more])
        return model

    with pytest.raises(KeyboardInterrupt):
        run(Stops())
    for one, other in zip(wanted.get_weights(), run().get_weights(), strict=True):
        assert_array_equal(one, other)


def test_callbacks_see_a_step_of_its_own():
    seen = []

    class Records(nn.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((batch, logs["loss"]))

    model = Own()
    model.compile(nn.Adam(0.01), "mse")
    stop = nn.callbacks.EarlyStopping("val_loss", patience=0, min_delta=10.0)
    data = mc.data.Dataset.from_tensor_slices((X, Y)).batch(32)
    history = model.fit(
        data, epochs=9, validation_data=data, callbacks=[Records(), stop], verbose=0
    )
    assert len(history.history["loss"]) == 2  # the first epoch is the best
    assert [batch for batch, _ in seen] == [0, 1, 2] * 2


def test_data_of_any_structure():
    class Step(Plain):
        def train_step(self, data):
            (a, b), extra = data["x"], data["more"]["z"]
            with mc.GradientTape() as tape:
                loss = ops.mean(ops.square(self(a) - self(b) - extra))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    model = Step()
    model.compile(nn.Adam(0.05))
    data = {"x": (X, X[::-1].copy()), "more": {"z": Y}}
    dataset = mc.data.Dataset.from_tensor_slices(data).batch(32)
    history = model.fit(dataset, epochs=20, verbose=0).history["loss"]
    assert history[-1] < history[0]


def test_metrics_begin_anew_with_each_epoch():
    class Step(Plain):
        def __init__(self):
            super().__init__()
            self.count = nn.metrics.Sum(name="count")

        def train_step(self, data):
            self.count.update_state(ops.ones((data[0].shape[0],)))
            loss = super().train_step(data)
            return {"loss": loss["loss"], "count": self.count.result()}

    model = Step()
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = model.fit(X, Y, epochs=3, batch_size=40, verbose=0).history
    assert history["count"] == [96.0] * 3


def test_mean_and_sum_of_values():
    mean, total = nn.metrics.Mean(), nn.metrics.Sum()
    values, weights = numbers(5, 3), np.abs(numbers(5, seed=2))
    mean.update_state(values, weights)
    mean.update_state(2.0)
    wanted = (values.mean(1) * weights).sum() + 2
    assert mean.result() == pytest.approx(wanted / (weights.sum() + 1), rel=1e-5)
    assert total(values) == pytest.approx(values.sum(), rel=1e-4)
    total.reset_state()
    assert total.result() == 0.0
    with pytest.raises(ValueError, match="sample_weight must have the shape"):
        mean.update_state(values, np.ones(4))
    model = nn.Sequential([nn.Input((2,)), layers.Dense(1)])
    with pytest.raises(TypeError, match="Mean is a metric of values"):
        model.compile("sgd", "mse", metrics=[nn.metrics.Mean()])


class Drawing(Plain):
    """A network that draws in training."""

    def __init__(self):
        super().__init__(rate=0.5)


class OwnDrawing(Drawing):
    def train_step(self, data):
        return super().train_step(data)


def test_draws_do_not_depend_on_validation():
    found = []
    for kind in (Drawing, OwnDrawing):
        for held in (None, (X, Y)):
            nn.set_random_seed(0)
            model = kind()
            model.build((None, 4))
            model.compile(nn.SGD(0.1), "mse")
            model.fit(X, Y, epochs=2, seed=1, validation_data=held, verbose=0)
            found.append(model.get_weights())
    for weights in found[1:]:
        for one, other in zip(found[0], weights, strict=True):
            assert_array_equal(one, other)


def test_an_array_is_assigned_in_each_call():
    model = nn.Sequential([nn.Input((4,)), layers.Dense(2)])
    (weight, _) = model.trainable_weights

    @mc.function
    def reset(x):
        before = weight + 0.0
        weight.assign(np.zeros((4, 2), np.float32))
        return ops.sum(x), before, weight + 0.0

    for value in (5.0, 7.0):
        weight.assign(np.full((4, 2), value, np.float32))
        reset.plan(X)
        assert weight.numpy().max() == value
        _, before, after = reset(X)
        assert before.max() == value
        assert after.max() == weight.numpy().max() == 0


def test_compiling_again_keeps_the_state_of_other_optimizers():
    model = adversaries()
    data = numbers(64, 2)
    model.fit(data, verbose=0)
    maker, state = model.maker_optimizer, model.maker_optimizer.get_state()
    loss = nn.losses.BinaryCrossentropy(from_logits=True)
    model.compile(model.judge_optimizer, maker, loss)
    assert_array_equal(maker.get_state()["iteration"], state["iteration"])
    model.fit(data, verbose=0)
    assert maker.iterations == 4


def test_a_copy_has_steps_of_its_own():
    model, _ = trained(Own)
    other = copy.deepcopy(model)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        assert_array_equal(one, two)
    other.fit(X, Y, verbose=0)
    assert other.optimizer.iterations == 12
    assert model.optimizer.iterations == 9


def test_metrics_in_lists_begin_anew():
    class Step(Plain):
        def __init__(self):
            super().__init__()
            self.sums = [nn.metrics.Sum(name="count")]

        def train_step(self, data):
            self.sums[0].update_state(ops.ones((data[0].shape[0],)))
            return super().train_step(data) | {"count": self.sums[0].result()}

    model = Step()
    model.compile("sgd", "mse")
    assert model.fit(X, Y, epochs=2, verbose=0).history["count"] == [96.0] * 2


def test_masks_of_data_sets_are_refused():
    model = Own()
    model.compile("sgd", "mse")
    data = [mc.data.DataSet(X, Y, None, np.ones((96, 1), np.float32))]
    with pytest.raises(ValueError, match="a data set with masks was given"):
        model.fit(data, verbose=0)


def test_a_step_returns_numbers():
    model = returning({"loss": None})
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="must return numbers, got 'loss': None"):
        model.fit(X, Y, verbose=0)


def test_losses_of_parts_count_where_the_model_is_not_called():
    class Adds(layers.Layer):
        def call(self, x):
            self.add_loss(ops.sum(x) * 0.5)
            return x

    class Parts(nn.Model):
        def __init__(self):
            super().__init__()
            start = nn.Input((4,))
            self.coder = nn.Model(start, Adds()(start))
            self.last = layers.Dense(1, kernel_regularizer=nn.regularizers.L2(2.0))

        def test_step(self, data):
            self.last(self.coder(data))
            return {"loss": sum(self.losses)}

    model = Parts()
    model.compile("sgd")
    found = model.evaluate(X[:7], verbose=0)
    kernel = model.last.kernel.numpy()
    wanted = X[:7].sum() * 0.5 + 2 * np.square(kernel).sum()
    assert found == pytest.approx(wanted, rel=1e-5)
    assert model.evaluate(X[:9], verbose=0) != found


def test_ways_out_that_are_not_taken_are_refused():
    for options in (
        {"on_oom": "mixed_bfloat16"},
        {"on_oom": ["micro_batch", "replan"]},
        {"batch_statistics": "micro"},
    ):
        with pytest.raises(ValueError, match="leave on_oom and batch_statistics out"):
            Own().compile("sgd", "mse", **options)


def test_trainable_that_was_set_since_compile_is_warned_of():
    model, _ = trained(Own)
    model.first.trainable = False
    with pytest.warns(UserWarning, match="trainable was set since"):
        model.fit(X, Y, verbose=0)


def test_a_model_predicts_before_it_is_compiled():
    model = Own()
    assert model.predict(X, verbose=0).shape == (96, 1)
    assert model.metrics == []


def test_validation_data_may_be_a_list():
    model = Own()
    model.compile("sgd", "mse")
    history = model.fit(X, Y, validation_data=[X, Y], verbose=0).history
    assert history["val_loss"]


def test_the_losses_of_compile_in_a_function():
    model, _ = trained(Plain)
    loss = mc.function(lambda x, y: model.compute_loss(x, y, model(x)))
    assert loss(X, Y) == pytest.approx(model.evaluate(X, Y, verbose=0)[0], rel=1e-5)


def test_predictions_have_a_row_a_sample():
    class Step(Plain):
        def predict_step(self, data):
            return ops.mean(self(data))

    model = Step()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="must return tensors with a row a sample"):
        model.predict(X, verbose=0)


def wide(steps=None):
    """A model whose batches take more than its weights."""
    nn = mc.nn

    class Wide(nn.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    ones = {"kernel_initializer": "ones"}
    layers = [nn.Dense(64, "tanh", **ones), nn.Dense(64, "tanh", **ones), nn.Dense(1)]
    model = Wide([nn.Input((2,)), *layers])
    model.layers[-1].kernel.assign(np.ones((64, 1)))
    model.compile(nn.SGD(0.01, gradient_accumulation_steps=steps), "mse")
    return model


def test_a_batch_that_does_not_fit_names_the_part_that_does():
    x = np.random.default_rng(1).random((256, 2)).astype(np.float32) / 64
    y, whole = x[:, :1], wide()
    whole.fit(x, y, batch_size=256, shuffle=False, verbose=0)
    expected = whole.get_weights()
    whole.close()
    limited = wide()
    mc.config.set_memory_limit("CPU:0", 160 * 1024)
    with pytest.raises(InfeasiblePlanError, match="train_step runs on whole") as caught:
        limited.fit(x, y, batch_size=256, shuffle=False, verbose=0)
    assert "train_step of 256 samples, trace 1 needs too much." in str(caught.value)
    told = re.search(
        r"batch_size=(\d+) fits: with gradient_accumulation_steps=(\d+)",
        str(caught.value),
    )
    size, steps = map(int, told.groups())
    assert size * steps == 256
    divided = wide(steps)
    divided.fit(x, y, batch_size=size, shuffle=False, verbose=0)
    for found, wanted in zip(divided.get_weights(), expected, strict=True):
        assert_allclose(found, wanted, rtol=1e-5)
    divided.close()
    mc.config.set_memory_limit("CPU:0", 16 * 1024)
    with pytest.raises(InfeasiblePlanError, match=r"batch_size=\d+ needs a limit of"):
        limited.fit(x, y, batch_size=256, shuffle=False, verbose=0)
    mc.config.set_memory_limit("CPU:0", 1024)
    with pytest.raises(InfeasiblePlanError) as caught:
        limited.fit(x[:1], y[:1], batch_size=1, verbose=0)
    assert "batch" not in caught.value.hint  # one sample cannot be fewer


class TestCallsOfWholeBatches:
    """A `call` that a step runs on the batch, and not its trace."""

    X = np.random.default_rng(4).standard_normal((8, 3)).astype("f4")

    def test_metrics_and_losses_of_a_call(self):
        class Penalised(nn.Model):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(2)
                self.size = nn.metrics.Mean(name="size")

            def call(self, x, training=False):
                y = self.dense(x)
                size = ops.mean(ops.square(y))
                self.add_loss(0.5 * size)
                self.size.update_state(size)
                return y + 1.0 if training else y

        model = Penalised()
        model.compile(nn.SGD(0.1), "mse", metrics=["mae"])
        target = self.X[:, :2]
        logs = model.evaluate(self.X, target, 8, verbose=0, return_dict=True)
        y = model.predict(self.X, verbose=0)
        size = (y**2).mean()
        wanted = ((y - target) ** 2).mean() + size / 2, abs(y - target).mean(), size
        np.testing.assert_allclose(
            [logs[name] for name in ("loss", "mae", "size")], wanted, 1e-5
        )
        history = model.fit(self.X, target, 4, epochs=3, verbose=0).history
        assert history["size"][0] > 0
        y = model.predict(self.X, verbose=0)
        history = model.fit(self.X, target, 8, verbose=0).history
        wanted = ((y + 1 - target) ** 2).mean() + (y**2).mean() / 2  # in training
        np.testing.assert_allclose(history["loss"], wanted, 1e-5)

    @pytest.mark.parametrize("built", [False, True])
    def test_a_helper_of_call_updates_a_metric(self, built):
        """Known before data is read: batches of a generator are each trained once."""

        class Measured(nn.Model):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(2)
                self.gauges = {"size": nn.metrics.Mean(name="size")}

            def call(self, x):
                return self.noted(self.dense(x))

            def noted(self, y):
                self.gauges["size"].update_state(ops.mean(ops.square(y)))
                return y

        model = Measured()
        if built:
            model(self.X)
        model.compile(nn.SGD(0.0), "mse")
        rows = iter([(self.X[:4], self.X[:4, :2]), (self.X[4:], self.X[4:, :2])])
        history = model.fit(rows, steps_per_epoch=2, verbose=0).history
        y = model.predict(self.X, verbose=0)
        assert sorted(history) == ["loss", "size"]
        np.testing.assert_allclose(history["size"], (y**2).mean(), 1e-5)
        np.testing.assert_allclose(
            history["loss"], ((y - self.X[:, :2]) ** 2).mean(), 1e-5
        )
        logs = model.evaluate(self.X, self.X[:, :2], 8, verbose=0, return_dict=True)
        np.testing.assert_allclose(logs["size"], (y**2).mean(), 1e-5)

    def test_the_batch_may_be_in_another_place(self):
        class Contrastive(nn.Model):
            def __init__(self):
                super().__init__()
                self.dense = nn.Dense(2, use_bias=False)

            def call(self, x):
                h = self.dense(x)
                return ops.matmul(h, ops.transpose(h))

            def compute_loss(self, x=None, y=None, y_pred=None, **_):
                return ops.mean(ops.square(y_pred - ops.eye(y_pred.shape[0])))

        model = Contrastive()
        model.compile(nn.SGD(0.05))
        first = model.fit(self.X, batch_size=8, verbose=0).history["loss"][0]
        losses = model.fit(self.X, batch_size=8, epochs=5, verbose=0).history["loss"]
        assert losses[-1] < first
        h = self.X @ model.get_weights()[0]
        wanted = ((h @ h.T - np.eye(8)) ** 2).mean()
        np.testing.assert_allclose(model.evaluate(self.X, verbose=0), wanted, 1e-4)

    def test_what_no_step_can_run_is_refused_as_before(self):
        class Wrong(nn.Model):
            def call(self, x):
                return ops.reshape(x, (7, 5))

            def compute_loss(self, x=None, y=None, y_pred=None, **_):
                return ops.mean(y_pred)

        model = Wrong()
        model.compile("sgd")
        with pytest.raises(ValueError, match="reshape"):
            model.fit(self.X, batch_size=8, verbose=0)


class TestTargetsThatDependOnWeights:
    """Losses have gradients with respect to targets."""

    X = np.random.default_rng(4).standard_normal((8, 3)).astype("f4")

    def model(self, target):
        class Twins(nn.Model):
            def __init__(self):
                super().__init__()
                self.one, self.other = nn.Dense(2), nn.Dense(2, use_bias=False)

            def call(self, x):
                return self.one(x)

            def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
                return nn.losses.MeanSquaredError()(target(self.other(x)), y_pred)

        model = Twins()
        model.compile(nn.SGD(0.1))
        return model

    def test_of_a_model(self):
        model = self.model(lambda z: z)
        model.build(self.X.shape)
        model.test_on_batch(self.X, self.X)
        before = model.other.kernel.numpy().copy()
        error = model.predict(self.X, verbose=0) - self.X @ before
        model.train_on_batch(self.X, self.X)
        slope = -2 * self.X.T @ error / error.size
        found = model.other.kernel.numpy()
        np.testing.assert_allclose(found, before - 0.1 * slope, 1e-5, 1e-6)

    def test_that_are_constant(self):
        with pytest.warns(UserWarning, match="no loss depends on the weights"):
            self.model(ops.stop_gradient).train_on_batch(self.X, self.X)

    def test_of_functions(self):
        p = self.X * 2
        error = nn.losses.mean_squared_error
        slope = mc.grad(lambda t: ops.sum(error(t, p)))(self.X)
        np.testing.assert_allclose(slope, 2 * (self.X - p) / 3, 1e-5)
        constant = mc.grad(lambda p: ops.sum(error(ops.stop_gradient(p), p)))(p)
        np.testing.assert_array_equal(constant, np.zeros_like(p))


class WithoutCall(nn.Model):
    """A model whose steps call its network; it has no `call`."""

    def __init__(self):
        super().__init__()
        normed = layers.BatchNormalization(momentum=0.5)
        self.network = nn.Sequential([nn.Input((4,)), layers.Dense(3), normed])
        self.slow = nn.models.clone_model(self.network)
        self.slow.set_weights(self.network.get_weights())

    def train_step(self, data):
        x, y = data
        with mc.GradientTape() as tape:
            y_pred = self.network(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.network.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for fast, slow in zip(self.network.weights, self.slow.weights, strict=True):
            slow.assign(0.75 * slow + 0.25 * fast)
        return self.compute_metrics(x, y, y_pred) | {"loss": loss}


def made_without_call():
    model = WithoutCall()
    model.compile(nn.SGD(0.1), "mse", metrics=["mae"])
    return model


def test_moving_averages_are_read_as_the_calls_before_have_left_them():
    model = made_without_call()
    before = [w.numpy().copy() for w in model.network.weights]
    model.train_on_batch(X[:32], np.repeat(Y[:32], 3, axis=1))
    names = [w.name for w in model.network.weights]
    assert names[-2:] == ["moving_mean", "moving_variance"]
    for start, fast, slow in zip(
        before, model.network.weights, model.slow.weights, strict=True
    ):
        assert not np.array_equal(start, fast.numpy())
        assert_allclose(slow.numpy(), 0.75 * start + 0.25 * fast.numpy(), 1e-6, 1e-7)


def test_moving_averages_are_read_at_each_place_of_a_function():
    norm = layers.BatchNormalization(momentum=0.5)
    norm.build((None, 4))

    @mc.function
    def averages(x):
        before = norm.moving_mean + 0.0
        norm(x, training=True)
        amid = norm.moving_mean + 0.0
        y = norm(x + 1.0, training=True)
        return before, amid, norm.moving_mean + 0.0, ops.sum(y)

    before, amid, after, _ = averages(X)
    mean = X.mean(axis=0)
    assert_array_equal(before, np.zeros(4))
    assert_array_equal(after, norm.moving_mean.numpy())
    assert_allclose(after, (amid + mean + 1) / 2, 1e-5, 1e-6)


def test_losses_and_metrics_of_compile_without_a_call():
    model = made_without_call()
    y = np.repeat(Y[:32], 3, axis=1)
    y_pred = model.network(X[:32], training=True)
    logs = model.train_on_batch(X[:32], y, return_dict=True)
    assert logs["loss"] == pytest.approx(np.square(y_pred - y).mean(), rel=1e-5)
    assert logs["mae"] == pytest.approx(np.abs(y_pred - y).mean(), rel=1e-5)


def test_losses_of_a_model_within_another_are_those_of_its_last_call():
    """As in Keras's example of a quantised autoencoder."""

    class Costs(layers.Layer):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def call(self, x):
            self.add_loss(self.rate * ops.sum(ops.square(x)))
            return x

    class Outer(nn.Model):
        def __init__(self):
            super().__init__()
            kernel = {"kernel_regularizer": nn.regularizers.L2(0.5)}
            self.inner = nn.Sequential(
                [nn.Input((3,)), Costs(2.0), nn.Dense(3, **kernel), Costs(1.0)]
            )
            self.other = Costs(10.0)
            self.noted = nn.metrics.Mean(name="noted")

        def call(self, x):
            return self.other(self.inner(x))

        def compute_loss(self, x=None, y=None, y_pred=None, **more):
            found = sum(self.inner.losses)
            self.noted.update_state(found)
            return found + ops.mean(y_pred)

    model = Outer()
    model.compile(nn.optimizers.SGD(0.0))
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("f")
    history = model.fit(x, x, batch_size=8, verbose=0).history
    kernel, bias = model.get_weights()
    y = x @ kernel + bias
    expected = 2 * (x**2).sum() + (y**2).sum() + (kernel**2).sum() / 2
    assert history["noted"] == [pytest.approx(expected, rel=1e-5)]
    assert history["loss"] == [pytest.approx(expected + y.mean(), rel=1e-5)]
