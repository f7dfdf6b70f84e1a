"""Whole models in files: they go on as the saved ones would."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import FormatError, WeightsError
from memcfg.nn import callbacks as cb
from memcfg.nn import models

nn = mc.nn


def images(count=24):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 8, 8, 3)).astype(np.float32), np.arange(count) % 3


def sequential():
    return nn.Sequential(
        [
            nn.Input((8, 8, 3)),
            nn.Conv2D(4, 3, 2, "same", activation="relu"),
            nn.BatchNormalization(momentum=0.9, center=False),
            nn.GroupNormalization(2),
            nn.SpatialDropout2D(0.2),
            nn.DepthwiseConv2D(3, depth_multiplier=2),
            nn.GaussianNoise(0.1),
            nn.LeakyReLU(0.1),
            nn.ReLU(max_value=3.0),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Dense(
                3,
                kernel_regularizer="l2",
                activity_regularizer=nn.regularizers.L1(0.001),
            ),
        ]
    )


def functional():
    x = nn.Input((8, 8, 3), name="image")
    shared = nn.Conv2D(4, 3, padding="same", name="shared")
    h = nn.PReLU(shared_axes=[1, 2])(shared(x))
    h = nn.Conv2D(3, 1)(h)
    h = nn.Add()([shared(h), nn.Conv2D(4, 1)(x)])
    h = nn.Reshape((64, 4))(h)
    h = nn.LSTM(5, return_sequences=True)(h)
    h = nn.Attention()([h, h], use_causal_mask=True)
    h = nn.MultiHeadAttention(2, 3)(h, h, use_causal_mask=True)
    h = nn.Bidirectional(nn.GRU(2, return_sequences=True))(h)
    return nn.Model(x, nn.Dense(3, name="logits")(nn.GlobalMaxPooling1D()(h)))


def late():
    """Shapes are known from the first data."""
    return nn.Sequential([nn.Flatten(), nn.Dense(8, "tanh"), nn.Dense(3)])


NETWORKS = {"sequential": sequential, "functional": functional, "late": late}
OPTIMIZERS = {
    "momentum": lambda: nn.SGD(0.05, momentum=0.9),
    "adam": lambda: nn.optimizers.Adam(
        nn.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9), clipnorm=1.0
    ),
    "ema": lambda: nn.optimizers.RMSprop(
        0.01, use_ema=True, gradient_accumulation_steps=2
    ),
}


def trained(network, optimizer, **options):
    nn.set_random_seed(4)
    model = NETWORKS[network]()
    model.compile(
        OPTIMIZERS[optimizer](),
        nn.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", nn.metrics.SparseTopKCategoricalAccuracy(k=2)],
        **options,
    )
    x, y = images()
    for _ in range(3):
        model.train_on_batch(x, y)
    return model


def bits(model):
    return [w.tobytes() for w in model.get_weights()]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_loaded_model_goes_on_as_the_saved_one_does(network, optimizer, tmp_path):
    model, path = trained(network, optimizer), tmp_path / "m.memcfg"
    model.save(path)
    other = models.load_model(path)
    x, y = images()
    assert type(other) is type(model)
    assert other.name == model.name
    assert bits(other) == bits(model)
    assert other.optimizer.iterations == model.optimizer.iterations > 0
    for _ in range(3):
        assert other.train_on_batch(x, y) == model.train_on_batch(x, y)
    assert bits(other) == bits(model)
    assert other.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    again = tmp_path / "again.memcfg"
    other.save(again)
    model.save(path)
    assert again.read_bytes() == path.read_bytes()
    other.close()
    model.close()


def test_policy_and_modes_come_with_it(tmp_path):
    path = tmp_path / "m.memcfg"
    model = trained("sequential", "adam", memory="keep_all")
    model.save(path)
    x, y = images()
    other = models.load_model(path)
    other.train_on_batch(x, y)
    assert other.memory_plan.peak_bytes == model.memory_plan.peak_bytes
    trained("late", "adam", training_workspace_mode="separate").save(path)
    assert models.load_model(path).training_workspace_mode.value == "separate"


def test_a_policy_of_ones_own_is_told_about(tmp_path):
    def own(graph, **options):
        return mc.plan.share()(graph, **options)

    model = trained("late", "momentum", memory=own)
    with pytest.warns(
        RuntimeWarning, match="is not saved: the loaded model has 'auto'"
    ):
        model.save(tmp_path / "m.memcfg")
    assert bits(models.load_model(tmp_path / "m.memcfg")) == bits(model)


def test_without_compiling_and_of_a_model_that_never_was(tmp_path):
    model, path = trained("functional", "adam"), tmp_path / "m.memcfg"
    model.save(path)
    other = models.load_model(path, compile=False)
    assert bits(other) == bits(model)
    with pytest.raises(RuntimeError, match="call compile"):
        _ = other.optimizer
    plain = functional()
    plain.save(path)
    assert bits(models.load_model(path)) == bits(plain)


class Doubled(nn.Layer):
    """A user's layer."""

    def __init__(self, times, *, name=None):
        self.times = times
        super().__init__(name)

    def trace(self, scope, inputs):
        total = inputs[0]
        for _ in range(self.times):
            (total,) = scope.apply("add", (total, total))
        return total


def test_a_layer_of_ones_own_is_named_when_it_is_read(tmp_path):
    x = nn.Input((4,))
    model = nn.Model(x, nn.Dense(2)(Doubled(2)(x)))
    path = tmp_path / "m.memcfg"
    model.save(path)
    with pytest.raises(FormatError, match=r"custom_objects=\{'Doubled': Doubled\}"):
        models.load_model(path)
    other = models.load_model(path, {"Doubled": Doubled})
    data = np.ones((2, 4), np.float32)
    assert np.array_equal(other.predict(data), model.predict(data))


def test_names_of_other_formats_and_files_that_are_there(tmp_path):
    model = functional()
    with pytest.raises(ValueError, match=r"end in '\.memcfg', got .*keras"):
        model.save(tmp_path / "m.keras")
    path = tmp_path / "m.memcfg"
    model.save(path)
    with pytest.raises(FileExistsError, match="overwrite is False"):
        model.save(path, overwrite=False)
    weights = tmp_path / "x.safetensors"
    model.save_weights(weights)
    with pytest.raises(FormatError, match="use load_weights"):
        models.load_model(weights)
    with pytest.raises(RuntimeError, match="shapes"):
        late().save(path)


def changed(path, change):
    """Rewrite the model's description in a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    document = json.loads(header["__metadata__"]["model"])
    change(document)
    header["__metadata__"]["model"] = json.dumps(document)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["layers"].pop(),
        lambda d: d["layers"][1].update({"class": "os.system"}),
        lambda d: d["layers"][1].update({"class": "initializers.Initializer"}),
        lambda d: d["calls"].reverse(),
        lambda d: d["calls"].append([99, [0]]),
        lambda d: d.pop("outputs"),
        lambda d: d.update({"takes": ["set", []]}),
        lambda d: d["layers"][1]["config"].update({"units": 3, "surprise": 1}),
        lambda d: d.update({"layers": 5}),
        lambda d: d["compile"].update({"optimizer": {"class_name": "Evil"}}),
        lambda d: d["compile"].update({"goals": []}),
        lambda d: d["compile"]["state"].pop(),
    ],
)
def test_descriptions_that_are_none_are_refused(change, tmp_path):
    path = tmp_path / "m.memcfg"
    trained("late", "adam").save(path)
    changed(path, change)
    with pytest.raises((FormatError, WeightsError, TypeError, ValueError)):
        models.load_model(path)


def test_damaged_files_are_refused(tmp_path):
    path, rng = tmp_path / "m.memcfg", np.random.default_rng(0)
    trained("late", "momentum").save(path)
    data = path.read_bytes()
    for _ in range(60):
        cut = data[: rng.integers(0, len(data))]
        path.write_bytes(cut)
        with pytest.raises((FormatError, WeightsError)):
            models.load_model(path)


class StopError(Exception):
    pass


class Crash(cb.Callback):
    """Raises at the end of an epoch, behind the callbacks before it."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise StopError


def fitted(model, epochs, *callbacks):
    x, y = images(40)
    history = model.fit(
        x, y, batch_size=16, epochs=epochs, seed=3, verbose=0, callbacks=callbacks
    )
    return history.history["loss"], history.epoch


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_after_a_crash_as_if_there_had_been_none(optimizer, tmp_path):
    whole = trained("sequential", optimizer)
    losses, _ = fitted(whole, 5)
    backup = cb.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(StopError):
        fitted(trained("sequential", optimizer), 5, backup, Crash(2))
    other = trained("sequential", optimizer)
    again = cb.BackupAndRestore(tmp_path / "backup")
    rest, epochs = fitted(other, 5, again)
    assert epochs == [3, 4]
    assert rest == losses[3:]
    assert bits(other) == bits(whole)
    assert os.listdir(tmp_path / "backup") == []


def test_the_backup_before_the_last_one(tmp_path):
    folder = tmp_path / "backup"
    backup = cb.BackupAndRestore(folder, double_checkpoint=True)
    with pytest.raises(StopError):
        fitted(trained("late", "adam"), 5, backup, Crash(3))
    assert sorted(os.listdir(folder)) == ["before.safetensors", "latest.safetensors"]
    (folder / "latest.safetensors").write_bytes(b"damaged")
    _, epochs = fitted(trained("late", "adam"), 5, backup)
    assert epochs == [3, 4]


def test_a_backup_of_another_model_is_refused(tmp_path):
    backup = cb.BackupAndRestore(tmp_path, delete_checkpoint=False)
    fitted(trained("late", "adam"), 1, backup)
    model = trained("sequential", "adam")
    before = bits(model)
    with pytest.raises(WeightsError, match="another architecture"):
        fitted(model, 3, backup)
    assert bits(model) == before
    (tmp_path / "latest.safetensors").write_bytes(b"x")
    with pytest.raises(FormatError):
        fitted(model, 3, backup)


def test_checkpoints_of_whole_models(tmp_path):
    model = trained("late", "adam")
    path = tmp_path / "{epoch}.memcfg"
    fitted(model, 2, cb.ModelCheckpoint(path))
    assert sorted(os.listdir(tmp_path)) == ["1.memcfg", "2.memcfg"]
    assert bits(models.load_model(tmp_path / "2.memcfg")) == bits(model)


def test_models_inside_of_models_are_refused_in_words(tmp_path):
    inner = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    x = nn.Input((4,))
    model = nn.Model(x, nn.Dense(2)(inner(x)))
    with pytest.raises(TypeError, match="models inside of models"):
        model.save(tmp_path / "m.memcfg")
    assert os.listdir(tmp_path) == []


def test_frozen_layers_stay_frozen(tmp_path):
    nn.set_random_seed(1)
    model = sequential()
    model.layers[0].trainable = False
    model.compile("sgd", nn.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = images()
    model.train_on_batch(x, y)
    path = tmp_path / "m.memcfg"
    model.save(path)
    other = models.load_model(path)
    assert not other.layers[0].trainable
    assert other.train_on_batch(x, y) == model.train_on_batch(x, y)
    assert bits(other) == bits(model)


def test_weights_that_do_not_decay_stay_so(tmp_path):
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    optimizer = nn.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    x, y = np.ones((8, 4), np.float32), np.ones((8, 3), np.float32)
    model.train_on_batch(x, y)
    model.save(tmp_path / "m.memcfg")
    other = models.load_model(tmp_path / "m.memcfg")
    for _ in range(2):
        assert other.train_on_batch(x, y) == model.train_on_batch(x, y)
    assert bits(other) == bits(model)


def test_adapted_statistics_come_with_it(tmp_path):
    x = np.random.default_rng(0).normal(3, 2, (64, 4)).astype(np.float32)
    layer = nn.Normalization()
    layer.adapt(x)
    model = nn.Sequential([nn.Input((4,)), layer, nn.Dense(2)])
    model.save(tmp_path / "m.memcfg")
    other = models.load_model(tmp_path / "m.memcfg")
    assert np.array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))
