"""fit, evaluate and predict as a user sees them."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import NonFiniteLossError

nn = mc.nn


def convolutional(loss, **options):
    model = nn.Sequential(
        [
            nn.Conv2D(6, 3, padding="same", activation="relu"),
            nn.BatchNormalization(),
            nn.MaxPool2D(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Dense(5),
        ]
    )
    options = {"optimizer": nn.Adam(0.01), "metrics": ["accuracy"]} | options
    model.compile(loss=loss, **options)
    return model


def separable(samples=120):
    """Return points whose class is the largest of three coordinates."""
    generator = np.random.default_rng(8)
    x = generator.standard_normal((samples, 3)).astype(np.float32)
    return x, x.argmax(axis=1)


def test_it_learns(loss):
    x, y = separable()
    model = nn.Sequential([nn.Dense(16, activation="relu"), nn.Dense(3)])
    model.compile(nn.Adam(0.03), loss, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=32, epochs=30, verbose=0, seed=0)
    found = history.history
    assert list(found) == ["loss", "accuracy"]
    assert history.epoch == list(range(30))
    assert found["loss"][-1] < 0.3 * found["loss"][0]
    assert found["accuracy"][-1] > 0.95
    loss_value, accuracy = model.evaluate(x, y, verbose=0)
    assert accuracy == np.mean(model.predict(x, verbose=0).argmax(1) == y)
    assert loss_value < found["loss"][0]


class Named(nn.ReLU):
    """A layer whose op has a name of its choice."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def trace(self, scope, inputs):
        return scope.builder.apply("relu", inputs, name=self.op)[0]


@pytest.mark.strength(1)
@pytest.mark.parametrize("mode", ["enabled", "single"])
@pytest.mark.parametrize(
    "name", ["loss", "correct_count", "output", "x", "y", "learning_rate", "step"]
)
def test_what_a_layer_calls_its_op_changes_nothing(name, mode, loss, images):
    found = []
    for op in ("relu", name):
        nn.set_random_seed(3)
        model = nn.Sequential([nn.Flatten(), nn.Dense(7), Named(op), nn.Dense(5)])
        model.compile(
            "adam",
            loss,
            metrics=["accuracy"],
            training_workspace_mode=mode,
            inference_workspace_mode=mode,
        )
        history = model.fit(*images, batch_size=16, epochs=2, verbose=0).history
        weights = model.get_weights()
        with pytest.raises(NonFiniteLossError, match="the loss is nan"):
            model.train_on_batch(np.full_like(images[0][:4], np.nan), images[1][:4])
        for before, after in zip(weights, model.get_weights(), strict=True):
            assert np.array_equal(before, after)
        scores = model.evaluate(*images, verbose=0)
        found.append((history, scores, model.predict(images[0], verbose=0).tobytes()))
    assert found[0] == found[1]


def test_the_same_seed_gives_the_same_bits(loss, images):
    found = []
    for _ in range(2):
        nn.set_random_seed(3)
        model = convolutional(loss)
        history = model.fit(*images, batch_size=16, epochs=2, verbose=0)
        found.append((history.history, model.get_weights()))
    assert found[0][0] == found[1][0]
    for first, second in zip(found[0][1], found[1][1], strict=True):
        assert np.array_equal(first, second)


def test_shuffling_is_numpys_permutation_of_the_seed(dense, rows):
    """Training on the permuted rows in order is the same to the last bit."""
    x, y = rows
    nn.set_random_seed(3)
    shuffled = dense()
    shuffled.fit(x, y, batch_size=8, epochs=2, verbose=0, seed=11)
    nn.set_random_seed(3)
    ordered = dense()
    generator = np.random.default_rng(11)
    for _ in range(2):
        order = generator.permutation(len(x))
        ordered.fit(x[order], y[order], 8, verbose=0, shuffle=False)
    for first, second in zip(
        shuffled.get_weights(), ordered.get_weights(), strict=True
    ):
        assert np.array_equal(first, second)


def test_training_can_go_on_where_it_stopped(dense, rows):
    nn.set_random_seed(3)
    whole = dense(nn.SGD(0.1, momentum=0.9))
    whole.fit(*rows, batch_size=8, epochs=4, verbose=0, seed=11)
    nn.set_random_seed(3)
    parts = dense(nn.SGD(0.1, momentum=0.9))
    parts.fit(*rows, batch_size=8, epochs=2, verbose=0, seed=11)
    history = parts.fit(
        *rows, batch_size=8, epochs=4, initial_epoch=2, verbose=0, seed=11
    )
    assert history.epoch == [2, 3]
    for first, second in zip(whole.get_weights(), parts.get_weights(), strict=True):
        assert np.array_equal(first, second)


def test_epoch_loss_is_the_mean_over_samples(dense, rows):
    """With a learning rate of zero it is the loss that evaluate finds."""
    model = dense(nn.SGD(0.0), metrics=["accuracy"])
    history = model.fit(*rows, batch_size=8, verbose=0, seed=0).history
    for size in (7, 30, 64):
        loss, accuracy = model.evaluate(*rows, batch_size=size, verbose=0)
        assert history["loss"][0] == pytest.approx(loss, rel=1e-5)
        assert history["accuracy"][0] == pytest.approx(accuracy)


def test_the_last_partial_batch_is_trained(dense, rows):
    """30 rows in batches of 8: three of 8 and one of 6, by hand."""
    x, y = rows
    nn.set_random_seed(3)
    model = dense()
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    assert model.optimizer.iterations == 4
    nn.set_random_seed(3)
    by_hand = dense()
    for start in (0, 8, 16, 24):
        by_hand.train_on_batch(x[start : start + 8], y[start : start + 8])
    for first, second in zip(model.get_weights(), by_hand.get_weights(), strict=True):
        assert np.array_equal(first, second)


def test_everything_is_loaded_at_once_before_the_first_step(dense, rows, runs):
    calls = runs.order
    x, y = rows
    model = dense()
    model.fit(x[:20], y[:20], 8, 2, 0, validation_data=(x[20:], y[20:]))
    epoch = ["train, batch 8"] * 2 + ["train, batch 4"]
    epoch += ["evaluate, batch 8", "evaluate, batch 2"]
    assert calls[0] == sorted(set(epoch))
    assert calls[1:] == epoch * 2
    calls.clear()
    model.train_on_batch(x[:8], y[:8])  # a batch size that is loaded already
    assert calls == ["train, batch 8"]


def test_validation(dense, rows):
    x, y = rows
    model = dense(metrics=["accuracy"])
    history = model.fit(
        x[:20], y[:20], verbose=0, validation_data=(x[20:], y[20:]), seed=0
    ).history
    assert list(history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    expected = model.evaluate(x[20:], y[20:], verbose=0, return_dict=True)
    assert history["val_loss"][0] == pytest.approx(expected["loss"], rel=1e-6)
    assert history["val_accuracy"][0] == expected["accuracy"]


def test_validation_split_holds_out_the_end(dense, rows):
    x, y = rows
    nn.set_random_seed(3)
    split = dense()
    first = split.fit(x, y, verbose=0, validation_split=0.2, seed=0).history
    nn.set_random_seed(3)
    given = dense()
    second = given.fit(
        x[:24], y[:24], verbose=0, validation_data=(x[24:], y[24:]), seed=0
    ).history
    assert first == second


def test_metrics_decide_what_is_returned(dense, rows):
    plain = dense()
    for method in (plain.train_on_batch, plain.test_on_batch):
        assert isinstance(method(*rows), float)
        assert list(method(*rows, return_dict=True)) == ["loss"]
    assert isinstance(plain.evaluate(*rows, verbose=0), float)
    counted = dense(metrics=["sparse_categorical_accuracy"])
    found = counted.train_on_batch(*rows)
    assert [type(value) for value in found] == [float, float]
    assert list(counted.evaluate(*rows, verbose=0, return_dict=True)) == [
        "loss",
        "sparse_categorical_accuracy",
    ]


def test_predictions_are_the_same_in_batches_of_any_size(dense, rows):
    x, _ = rows
    model = dense()
    expected = model.predict(x, verbose=0)
    assert expected.shape == (30, 4)
    assert expected.dtype == np.float32
    for size in (1, 7, 30):
        found = model.predict(x, batch_size=size, verbose=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(model.predict_on_batch(x[:30]), expected)


def test_predictions_stay_when_the_model_goes_on(dense, rows):
    x, y = rows
    model = dense(nn.SGD(0.5))
    before = model.predict(x, verbose=0)
    copy = before.copy()
    model.fit(x, y, verbose=0)
    assert np.array_equal(before, copy)
    assert not np.array_equal(model.predict(x, verbose=0), before)


def test_predictions_are_right_when_the_arena_is_laid_out_anew(dense, rows):
    """The optimizer's state moves the inputs of programs that were loaded before."""
    x, y = rows
    model = dense(nn.SGD(0.0, momentum=0.9))
    expected = model.predict(x, verbose=0)
    model.train_on_batch(x, y)
    assert np.array_equal(model.predict(x, verbose=0), expected)


def test_a_model_predicts_without_compile(rows):
    model = nn.Sequential([nn.Dense(3)])
    x, _ = rows
    found = model.predict(x, verbose=0)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(found, x @ kernel + bias, rtol=1e-5, atol=1e-6)


def test_a_model_without_ops_returns_its_input(rows):
    x, _ = rows
    model = nn.Sequential([nn.Dropout(0.5)])
    assert np.array_equal(model.predict(x, verbose=0), x)


def test_dropout_is_only_in_training(loss, images):
    x, y = images
    model = nn.Sequential([nn.Flatten(), nn.Dropout(0.9), nn.Dense(5)])
    model.compile(nn.SGD(0.0), loss)
    clean = model.evaluate(x, y, verbose=0)
    assert model.evaluate(x, y, verbose=0) == clean
    noisy = [model.train_on_batch(x, y) for _ in range(3)]
    assert len({clean, *noisy}) == 4  # a new mask each step


def test_dropout_masks_and_scales(loss):
    """With a kernel of ones and equal inputs, the loss tells the mask's mean."""
    x = np.ones((64, 1000), np.float32)
    y = np.zeros(64, np.int64)
    model = nn.Sequential(
        [nn.Dropout(0.25, seed=5), nn.Dense(2, kernel_initializer="zeros")]
    )
    model.compile(nn.SGD(1.0), loss)
    model.train_on_batch(x, y)
    kernel = model.get_weights()[0]
    # d loss / d kernel[:, 0] = mean over rows of mask / (1 - rate) * (0.5 - 1)
    mask = kernel[:, 0] / 0.5 * 0.75
    assert mask.mean() == pytest.approx(0.75, abs=0.01)
    counts = mask * 64
    np.testing.assert_allclose(counts, counts.round(), atol=1e-3)


def test_batch_normalization_moves_its_averages_once_a_step(loss, rows):
    x, y = rows
    x = x * 3 + 1
    model = nn.Sequential(
        [nn.Input((6,)), nn.BatchNormalization(momentum=0.9), nn.Dense(4)]
    )
    model.compile(nn.SGD(0.0), loss)
    for _ in range(2):
        model.train_on_batch(x, y)
    gamma, beta, mean, variance = model.get_weights()[:4]
    assert (gamma == 1).all()
    assert (beta == 0).all()
    kept = 0.9**2
    np.testing.assert_allclose(mean, (1 - kept) * x.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, kept + (1 - kept) * x.var(0), rtol=1e-4)


def test_batch_normalization_predicts_with_its_averages(rows):
    x, _ = rows
    model = nn.Sequential([nn.Input((6,)), nn.BatchNormalization()])
    values = [np.random.default_rng(1).random(6) + 0.5 for _ in range(4)]
    model.set_weights(values)
    gamma, beta, mean, variance = values
    expected = gamma * (x - mean) / np.sqrt(variance + 1e-3) + beta
    np.testing.assert_allclose(
        model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::-1],
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=0)[::2],
        lambda x: (
            np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:]
            .view(np.float32)
            .reshape(x.shape)
        ),
    ],
)
def test_any_strides_give_the_same_bits(dense, rows, view):
    x, y = rows
    same = view(x)
    found = []
    for samples in (same, np.ascontiguousarray(same)):
        nn.set_random_seed(3)
        model = dense()
        model.fit(samples, y, batch_size=8, verbose=0, seed=1)
        found.append([*model.get_weights(), model.predict(samples, verbose=0)])
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


def test_data_is_never_modified(loss, images):
    x, y = images
    copies = x.copy(), y.copy()
    x.flags.writeable = y.flags.writeable = False
    model = convolutional(loss)
    model.fit(x, y, batch_size=16, verbose=0, validation_split=0.25)
    model.predict(x, verbose=0)
    assert np.array_equal(x, copies[0])
    assert np.array_equal(y, copies[1])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", ">i4"])
def test_labels_of_any_integer_type(dense, rows, dtype):
    x, y = rows
    model = dense()
    expected = model.evaluate(x, y, verbose=0)
    assert model.evaluate(x, y.astype(dtype), verbose=0) == expected
    assert model.evaluate(x, y.astype(dtype)[:, None], verbose=0) == expected


def test_compiling_again_keeps_weights(dense, rows, loss):
    x, y = rows
    model = dense(nn.SGD(0.1, momentum=0.9))
    model.fit(x, y, verbose=0)
    before = model.get_weights()
    model.compile("adam", loss, metrics=["accuracy"], memory="keep_all")
    with pytest.raises(RuntimeError, match="no memory plan yet"):
        _ = model.memory_plan
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    model.fit(x, y, verbose=0)
    assert model.memory_plan.method == "keep_all"
    assert model.optimizer.iterations == 1


def test_compiling_with_the_same_optimizer_keeps_its_state(dense, rows, loss):
    x, y = rows
    found = []
    for again in (False, True):
        nn.set_random_seed(3)
        model = dense(nn.SGD(0.1, momentum=0.9))
        model.fit(x, y, batch_size=8, verbose=0, seed=0)
        if again:
            model.compile(model.optimizer, loss, memory="share")
        model.fit(x, y, batch_size=8, verbose=0, seed=0)
        found.append(model.get_weights())
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


def test_a_new_optimizer_starts_without_the_state_of_the_old(dense, rows, loss):
    x, y = rows
    model = dense(nn.SGD(0.1, momentum=0.9))
    model.fit(x, y, batch_size=8, verbose=0, seed=0)
    fresh = dense(nn.SGD(0.1, momentum=0.9))
    fresh.set_weights(model.get_weights())
    model.compile(nn.SGD(0.1, momentum=0.9), loss)
    for trained in (model, fresh):
        trained.train_on_batch(x, y)
        trained.train_on_batch(x, y)
    for first, second in zip(model.get_weights(), fresh.get_weights(), strict=True):
        assert np.array_equal(first, second)


def test_a_closed_model_goes_on(dense, rows):
    x, y = rows
    found = []
    for closing in (False, True):
        nn.set_random_seed(3)
        model = dense(nn.SGD(0.1, momentum=0.9))
        model.fit(x, y, batch_size=8, verbose=0, seed=0)
        if closing:
            model.close()
            assert mc.config.get_memory_info("CPU:0")["current"] == 0
        model.fit(x, y, batch_size=8, verbose=0, seed=0)
        found.append(model.get_weights())
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


def test_many_batch_sizes(dense, rows):
    x, y = rows
    model = dense(nn.SGD(0.0))
    expected = {}
    for _ in range(2):
        for size in range(1, 30):
            loss = model.train_on_batch(x[:size], y[:size])
            assert loss == expected.setdefault(size, loss)
    assert model.optimizer.iterations == 58


@pytest.mark.parametrize(
    ("freq", "epochs"),
    [(1, [0, 1, 2, 3, 4]), (2, [1, 3]), ([1, 4, 9], [0, 3]), (9, [])],
)
def test_validation_comes_after_some_epochs(freq, epochs, tmp_path):
    from memcfg.nn import callbacks

    model = mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    seen = []
    told = callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(epoch) if "val_loss" in logs else 0
    )
    history = model.fit(
        *(x, y),
        epochs=5,
        verbose=0,
        callbacks=[told, callbacks.CSVLogger(tmp_path / "log.csv")],
        validation_data=(x, y),
        validation_freq=freq,
    ).history
    assert seen == epochs
    assert len(history.get("val_loss", ())) == len(epochs)
    rows = [line.split(",") for line in (tmp_path / "log.csv").read_text().split()]
    assert rows[0] == ["epoch", "loss", "val_loss"]
    assert [i for i, row in enumerate(rows[1:]) if row[2] != "NA"] == epochs


def test_a_frequency_of_validation_is_a_count_or_epochs():
    model = mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    with pytest.raises(ValueError, match="validation_freq must be positive"):
        model.fit(x, y, validation_data=(x, y), validation_freq=0)
    with pytest.raises(
        TypeError, match="an epoch of validation_freq must be an integer"
    ):
        model.fit(x, y, validation_data=(x, y), validation_freq=["2"])


def test_compile_has_keras_default_optimizer_and_wants_a_loss():
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    model.compile("sgd")
    assert model.predict(x, verbose=0).shape == (4, 2)
    for use in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
        with pytest.raises(TypeError, match="there is none: pass loss='mse'"):
            use(x, y)
    with pytest.raises(TypeError, match="there is none: pass loss='mse'"):
        model.compile("sgd", metrics=["mse"])
    model.compile(loss="mse")
    assert isinstance(model.optimizer, nn.optimizers.RMSprop)


def test_a_batch_that_does_not_fit_beside_another_is_one_error():
    cpu = mc.config.list_physical_devices("CPU")[0]
    limit = mc.config.LogicalDeviceConfiguration(memory_limit=1)
    mc.config.set_logical_device_configuration(cpu, [limit])
    model = nn.Sequential([nn.Input((64,)), nn.Dense(64)])
    model.compile("sgd", "mse", on_oom="raise")
    x = np.ones((4096, 64), np.float32)
    model.fit(x[:8], x[:8], verbose=0)
    with pytest.raises(mc.errors.InfeasiblePlanError) as caught:
        model.fit(x, x, batch_size=4096, verbose=0)
    assert caught.value.__context__ is None
    model.train_on_batch(x[:8], x[:8])
