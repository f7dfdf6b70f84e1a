"""Whole models in files: they go on as the saved ones would."""

from __future__ import annotations

import copy
import json
import os
import threading

import numpy as np
import pytest
from internals import backup, restore

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


def test_functions_of_the_names_of_keras_save_and_load(tmp_path):
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    path, x = tmp_path / "m.memcfg", np.ones((2, 3), "f4")
    nn.models.save_model(model, path)
    with pytest.raises(FileExistsError):
        nn.models.save_model(model, path, overwrite=False)
    again = nn.models.load_model(path)
    np.testing.assert_array_equal(
        again.predict(x, verbose=0), model.predict(x, verbose=0)
    )


def test_policy_and_modes_come_with_it(tmp_path):
    path = tmp_path / "m.memcfg"
    model = trained("sequential", "adam", memory="keep_all")
    model.save(path)
    x, y = images()
    other = models.load_model(path)
    other.train_on_batch(x, y)
    assert other.memory_plan.peak_bytes == model.memory_plan.peak_bytes
    by_name = trained("late", "momentum", memory="exact")
    by_name.save(path)
    other = models.load_model(path)
    other.train_on_batch(x, y)
    assert other.memory_plan.method == by_name.memory_plan.method == "exact"
    trained("late", "adam", training_workspace_mode="separate").save(path)
    assert models.load_model(path).training_workspace_mode.value == "separate"


def test_on_oom_comes_with_it(tmp_path):
    path = tmp_path / "m.memcfg"
    layers = [nn.Input((40, 9)), nn.Dense(9), nn.BatchNormalization(), nn.Dense(1)]
    x = np.ones((30, 40, 9), np.float32)

    def loaded(on_oom, **options):
        model = nn.Sequential(layers)
        model.compile("sgd", "mse", on_oom=on_oom, **options)
        model.save(path)
        model.close()
        other = models.load_model(path)
        nbytes = mc.plan.lower_bound(other.graph(30)) // 4096 * 4096 - 4096
        mc.config.set_memory_limit("CPU:0", nbytes)
        return other

    refused = pytest.raises(mc.errors.InfeasiblePlanError)
    with refused as caught:
        loaded("raise").train_on_batch(x, x[..., :1])
    assert "Micro-batches" not in str(caught.value)
    with pytest.warns(mc.errors.FallbackWarning):
        loaded(["micro_batch", mc.plan.share()], batch_statistics="micro").fit(
            x, x[..., :1], batch_size=30, verbose=0
        )
    with pytest.warns(RuntimeWarning, match="in on_oom is not saved"):
        other = loaded(lambda model: model)
    with pytest.raises(mc.errors.InfeasiblePlanError):
        other.train_on_batch(x, x[..., :1])


def test_a_policy_of_ones_own_is_told_about(tmp_path):
    def own(graph, **options):
        return mc.plan.share()(graph, **options)

    model = trained("late", "momentum", memory=own)
    with pytest.warns(
        RuntimeWarning, match="is not saved, and the loaded model will have 'auto'"
    ):
        model.save(tmp_path / "m.memcfg")
    assert bits(models.load_model(tmp_path / "m.memcfg")) == bits(model)


def test_without_compiling_and_of_a_model_that_never_was(tmp_path):
    model, path = trained("functional", "adam"), tmp_path / "m.memcfg"
    model.save(path)
    other = models.load_model(path, compile=False)
    assert bits(other) == bits(model)
    with pytest.raises(AttributeError, match="call compile"):
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
    with pytest.raises(ValueError, match=r"end in '\.memcfg' or '\.keras', got .*onnx"):
        model.save(tmp_path / "m.onnx")
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
        lambda d: d["model"]["calls"].reverse(),
        lambda d: d["model"]["calls"].append([99, [0], None]),
        lambda d: d["model"].pop("outputs"),
        lambda d: d["model"].update({"takes": ["set", []]}),
        lambda d: d["layers"][1]["config"].update({"units": 3, "surprise": 1}),
        lambda d: d.update({"layers": 5}),
        lambda d: d["compile"].update({"optimizer": {"class_name": "Evil"}}),
        lambda d: d["compile"].update({"goals": []}),
        lambda d: d["compile"].update({"frozen": 5}),
    ],
)
def test_descriptions_that_are_none_are_refused(change, tmp_path):
    path, x = tmp_path / "m.memcfg", nn.Input((8,))
    model = nn.Model(x, nn.Dense(3)(nn.Dense(4)(x)))
    model.compile("adam", "mse")
    model.save(path)
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


def test_any_flipped_bit_is_noticed(tmp_path):
    path, rng = tmp_path / "m.memcfg", np.random.default_rng(0)
    trained("late", "momentum").save(path)
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    places = [*rng.integers(8, start, 30), *rng.integers(start, len(data), 30)]
    for place in map(int, places):
        damage = bytes([data[place] ^ 1 << rng.integers(8)])
        path.write_bytes(data[:place] + damage + data[place + 1 :])
        with pytest.raises(FormatError) as caught:
            models.load_model(path)
        assert str(caught.value).count("m.memcfg") == 1


def test_state_that_is_not_read_takes_no_memory(tmp_path):
    """Adam's state is twice as large as the weights."""
    path, width = tmp_path / "m.memcfg", 256
    model = nn.Sequential([nn.Input((width,)), nn.Dense(width), nn.Dense(width)])
    model.compile("adam", "mse")
    model.save(path)
    largest = 4 * width * width
    with mc.budget(4 * largest) as budget:
        mc.config.reset_memory_stats("CPU:0")
        before = budget.in_use_bytes
        loaded = models.load_model(path, compile=False)
        peak = mc.config.get_memory_info("CPU:0")["peak"]
        assert peak - before < 2.5 * largest
    assert np.array_equal(loaded.get_weights()[0], model.get_weights()[0])
    del loaded  # or the devices are still in use


def of_one_number(number, path):
    """Save a model of which name, layer, steps and weights all tell a number."""
    layer = nn.Dense(3, name=f"layer{number}")
    model = nn.Sequential([nn.Input((4,)), layer], name=f"model{number}")
    model.compile("sgd", "mse")
    model.optimizer._iterations = type(model.optimizer._iterations)(number)
    model.set_weights([np.full(w.shape, number) for w in model.get_weights()])
    model.save(path)


def numbers_of(model):
    name = model.name.removeprefix("model"), model.layers[0].name.removeprefix("layer")
    values = np.concatenate([w.ravel() for w in model.get_weights()])
    return {*map(int, name), model.optimizer.iterations, *values.tolist()}


class Flipping:
    """Puts one of two files in place of a third, as fast as it can."""

    def __init__(self, path, files):
        self.path, self.files = path, files
        self.flips = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._flip)

    def _flip(self):
        while not self._over.is_set():
            spare = f"{self.path}.spare"
            os.link(self.files[self.flips % 2], spare)
            os.replace(spare, self.path)
            self.flips += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_one_of_the_two(tmp_path):
    path = tmp_path / "m.memcfg"
    files = [tmp_path / f"{number}.memcfg" for number in (1, 2)]
    for number, file in enumerate(files, 1):
        of_one_number(number, file)
    os.link(files[1], path)
    met = set()
    with Flipping(path, files) as flipping:
        for _ in range(60):
            found = numbers_of(models.load_model(path))
            assert len(found) == 1
            met |= found
    assert met == {1, 2}
    assert flipping.flips > 60


def test_a_file_that_comes_up_amid_a_save_is_not_overwritten(tmp_path, monkeypatch):
    path, fsync = tmp_path / "m.memcfg", os.fsync

    def of_another(handle):
        path.write_bytes(b"another's")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", of_another)
    with pytest.raises(FileExistsError, match="overwrite is False") as caught:
        functional().save(path, overwrite=False)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"another's"


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


def damaged(data, how):
    """Change a backup in a way that its header does not tell."""
    found = bytearray(data)
    start = 8 + int.from_bytes(data[:8], "little")
    match how:
        case "short":
            del found[-100:]
        case "empty":
            found.clear()
        case "long":
            found += bytes(8)
        case "weight":
            found[start + 5] ^= 1
        case "last byte":
            found[-1] ^= 1
        case "zeros":  # as after a power cut
            found[start:] = bytes(len(found) - start)
        case "epoch":
            place = found.index(b'"epoch":"4"') + len(b'"epoch":"')
            found[place : place + 1] = b"9"
    assert found != data
    return bytes(found)


DAMAGE = ("short", "empty", "long", "weight", "last byte", "zeros", "epoch")


@pytest.fixture(scope="module")
def two_backups(tmp_path_factory):
    """Bytes of the last backup, from which epoch 4 begins, and of the one before."""
    folder = tmp_path_factory.mktemp("backups")
    backup = cb.BackupAndRestore(folder, double_checkpoint=True)
    with pytest.raises(StopError):
        fitted(trained("late", "adam"), 5, backup, Crash(3))
    return [(folder / f"{name}.safetensors").read_bytes() for name in NAMES]


NAMES = ("latest", "before")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_backup_gives_way_to_the_one_before_it(tmp_path, two_backups, how):
    latest, before = (tmp_path / f"{name}.safetensors" for name in NAMES)
    latest.write_bytes(two_backups[0])
    before.write_bytes(two_backups[1])
    backup = cb.BackupAndRestore(tmp_path, double_checkpoint=True)
    assert backup.resumed_epoch() == 4
    latest.write_bytes(damaged(two_backups[0], how))
    assert backup.resumed_epoch() == 3
    before.unlink()
    with pytest.raises(
        FormatError, match=r"latest\.safetensors is not a training backup"
    ):
        backup.resumed_epoch()
    before.write_bytes(damaged(two_backups[1], "short"))
    with pytest.raises(
        FormatError, match=r"latest\.safetensors is not a training backup"
    ):
        backup.resumed_epoch()


def test_a_damaged_backup_does_not_take_the_place_of_a_whole_one(tmp_path, two_backups):
    """A crash right after it was found must find the whole one again."""
    latest, before = (tmp_path / f"{name}.safetensors" for name in NAMES)
    latest.write_bytes(damaged(two_backups[0], "weight"))
    before.write_bytes(two_backups[1])
    backup = cb.BackupAndRestore(tmp_path, double_checkpoint=True)
    with pytest.raises(StopError):
        fitted(trained("late", "adam"), 5, backup, Crash(3))
    assert latest.read_bytes() == two_backups[0]
    assert before.read_bytes() == two_backups[1]


def test_a_backup_that_is_replaced_before_training_begins_is_the_one_that_was_read(
    tmp_path,
):
    """The epoch is asked for before the values are put back."""
    folders = tmp_path / "1", tmp_path / "2"
    losses, _ = fitted(trained("late", "adam"), 5)
    for epoch, folder in zip((1, 3), folders, strict=True):
        with pytest.raises(StopError):
            fitted(
                trained("late", "adam"), 5, cb.BackupAndRestore(folder), Crash(epoch)
            )

    class Replace(cb.Callback):
        def on_train_begin(self, logs=None):
            name = "latest.safetensors"
            os.replace(folders[1] / name, folders[0] / name)

    rest, epochs = fitted(
        trained("late", "adam"), 5, Replace(), cb.BackupAndRestore(folders[0])
    )
    assert epochs == [2, 3, 4]
    assert rest == losses[2:]


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


class Block(nn.Layer):
    """A user's layer with layers inside, of which its constructor tells nothing."""

    def __init__(self, units, wide=None, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.wide = wide
        self.inner = nn.Dense(units)
        self.parts = [nn.Dropout(0.4), nn.LSTM(units, dropout=0.3)]

    def call(self, x, other=None, training=None):
        h = self.parts[0](self.inner(x), training=training)
        h = self.parts[1](h[:, None])
        return h if self.wide is None else self.wide(h + 2 * other)


class Told(nn.Layer):
    """A user's layer that tells its arguments as Keras's guide has it."""

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.dense = nn.Dense(units)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        return {**super().get_config(), "units": self.dense.units}


class Net(nn.Model):
    """A user's model."""

    def __init__(self, units=5, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.second = nn.Dense(4)  # before the first: so are its weights
        self.drop = nn.Dropout(0.2)
        self.first = nn.Sequential([nn.Dense(units), nn.Dropout(0.3)])
        self.second.trainable = False

    def call(self, x, training=False):
        return self.second(self.drop(self.first(x), training=training))


class Chain(nn.Sequential):
    """A user's chain, built by its constructor."""

    def __init__(self, units):
        self.units = units
        super().__init__([nn.Input((4,)), nn.Dense(units), nn.Dropout(0.5)])


OWN = {each.__name__: each for each in (Block, Told, Net, Chain)}


def chains():
    inner = nn.Sequential([nn.Dense(5), nn.Dropout(0.4), nn.Sequential([nn.Dense(3)])])
    return nn.Sequential([nn.Input((4,)), inner, nn.Dense(4)])


def towers():
    """Shared in two places, and one of its layers once more beside it."""
    a, b = nn.Input((4,), name="a"), nn.Input((4,), name="b")
    dense = nn.Dense(4, name="shared")
    inner = nn.Sequential([nn.Input((4,)), dense, nn.BatchNormalization()])
    tower = nn.Model(x := nn.Input((4,)), nn.Dropout(0.5)(inner(inner(x)) + dense(x)))
    last = nn.Dense(4)(nn.Concatenate()([tower(a), tower(b) / 2, inner(b)]))
    return nn.Model({"a": a, "b": b}, last)


def steps():
    """Models at every step, and both directions in one."""
    inner = nn.Sequential([nn.Dense(3, "tanh"), nn.Dropout(0.2)])
    both = nn.Sequential(
        [nn.Input((4, 3)), nn.Bidirectional(nn.GRU(2, dropout=0.2), name="both")]
    )
    x = nn.Input((4,))
    h = nn.TimeDistributed(inner)(nn.Reshape((4, 1))(x))
    return nn.Model(x, nn.Dense(4)(both(h)))


def stateful():
    """States stay between batches; so does the dropout of the layers' own."""
    x = nn.Input((4,), batch_size=8)
    h = nn.LSTM(3, stateful=True, return_sequences=True)(nn.Reshape((4, 1))(x))
    h = nn.Bidirectional(nn.GRU(2, stateful=True, dropout=0.2))(h)
    return nn.Model(x, nn.Dense(4)(h))


def several():
    """Dicts of inputs and outputs, inside of another model."""
    a, b = nn.Input((4,), name="a"), nn.Input((4,), name="b")
    ends = {"sum": nn.Dense(4)(a + b), "product": abs(a * b) ** 2}
    inner = nn.Model({"a": a, "b": b}, ends)
    x = nn.Input((4,))
    made = inner({"a": x, "b": nn.activations.softplus(x[:, ::-1])})
    return nn.Model(x, 1 / (1 + made["product"]) - made["sum"])


def frozen():
    inner = nn.Sequential([nn.Input((4,)), nn.Dense(4), nn.Dense(4)])
    inner.trainable = False
    inner.layers[1].trainable = True
    return nn.Sequential([inner, nn.BatchNormalization(trainable=False)])


def masked():
    x = nn.Input((4,))
    h = nn.Embedding(3, 4, mask_zero=True)(x)
    h = nn.LSTM(4, return_sequences=True)(h)
    return nn.Model(
        x, nn.Dense(4)(nn.MultiHeadAttention(2, 2, dropout=0.1)(h, h)[:, 1])
    )


def own():
    x = nn.Input((4,))
    h = Net(name="net")(x)
    h = Block(4, wide=nn.Dense(4, name="wide"), name="block")(h, other=x)
    return nn.Sequential([nn.Input((4,)), nn.Model(x, Told(4)(h)), Chain(4)])


FAMILIES = {
    each.__name__: each
    for each in (
        *(chains, towers, steps, stateful, several, frozen, masked, own),
        *(Net, lambda: Chain(4)),
    )
}


def fed(model, first, last):
    """Train on some of a list of batches."""
    found = []
    for seed in range(first, last):
        x, y = np.random.default_rng(seed).normal(size=(2, 8, 4)).astype("f4")
        if any(isinstance(layer, nn.Embedding) for layer in model.layers):
            x = abs(x) // 0.5 % 3
        given = {"a": x, "b": -x} if isinstance(model.input, dict) else x
        found.append(model.train_on_batch(given, y))
    return found


def compiled(model, optimizer):
    if not model.built:
        model.build((None, 4))
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_two_steps_and_two_more_are_four(family, tmp_path):
    path = tmp_path / "m.memcfg"
    nn.set_random_seed(2)
    model = compiled(FAMILIES[family](), "adam")
    fed(model, 0, 2)
    model.save(path)
    other = models.load_model(path, OWN)
    assert type(other) is type(model)
    assert bits(other) == bits(model)
    assert [w.trainable for w in other.weights] == [w.trainable for w in model.weights]
    assert fed(other, 2, 4) == fed(model, 2, 4)
    assert bits(other) == bits(model)
    if family not in ("own", "Net", "<lambda>"):  # in which names are new
        other.save(tmp_path / "again.memcfg")
        model.save(path)
        assert (tmp_path / "again.memcfg").read_bytes() == path.read_bytes()
    model.save(path)
    plain = models.load_model(path, OWN, compile=False)
    assert bits(plain) == bits(model)
    copied = copy.deepcopy(other)
    assert fed(copied, 4, 6) == fed(other, 4, 6) == fed(model, 4, 6)


@pytest.mark.strength(1)
@pytest.mark.parametrize("more", [{}, {"use_ema": True}, {"use_ema": False}])
@pytest.mark.parametrize(
    "kind",
    [
        each.__name__
        for each in nn.Optimizer.__subclasses__()
        if hasattr(nn.optimizers, each.__name__)  # not another test's
        and each is not nn.optimizers.MultiOptimizer  # it has others
    ],
)
def test_every_optimizer_goes_on(kind, more, tmp_path):
    """Its state, its average, its accumulated gradients amid an update."""
    if more:
        more = more | {"gradient_accumulation_steps": 2, "clipnorm": 1.0}
    if kind == "SGD":
        more = more | {"momentum": 0.9, "nesterov": True}
    nn.set_random_seed(2)
    x = nn.Input((4,))
    model = nn.Model(x, nn.Dense(4)(nn.Dropout(0.3)(nn.BatchNormalization()(x))))
    compiled(model, getattr(nn.optimizers, kind)(0.01, **more))
    fed(model, 0, 3)
    model.save(tmp_path / "m.memcfg")
    other = models.load_model(tmp_path / "m.memcfg")
    assert fed(other, 3, 6) == fed(model, 3, 6)
    assert bits(other) == bits(model)


def test_states_come_with_a_backup(tmp_path):
    model = compiled(stateful(), "adam")
    fed(model, 0, 2)
    backup(model, tmp_path / "b", 1)
    expected = fed(model, 2, 4)
    restore(model, tmp_path / "b")
    assert fed(model, 2, 4) == expected


def test_what_is_shared_stays_so(tmp_path):
    model = towers()
    model.save(tmp_path / "m.memcfg")
    other = models.load_model(tmp_path / "m.memcfg")
    assert len(other.weights) == len(model.weights) == 8
    tower, inner = (m for m in other.layers if isinstance(m, nn.Model))
    assert inner in tower.layers
    assert inner.get_layer("shared") is tower.get_layer("shared")


def off_by(y_true, y_pred):
    """A user's loss, or metric."""
    return nn.ops.mean(nn.ops.square(y_true - y_pred), axis=-1)


def test_functions_of_ones_own_are_named_when_they_are_read(tmp_path):
    path = tmp_path / "m.memcfg"
    x, y = np.ones((8, 3), np.float32), np.zeros((8, 2), np.float32)
    model = nn.Sequential([nn.Dense(2, name="end")])
    model.compile("adam", {"end": off_by}, metrics=[off_by])
    model.fit(x, y, verbose=0, callbacks=cb.ModelCheckpoint(path))
    with pytest.raises(FormatError, match=r"custom_objects=\{'off_by': off_by\}"):
        models.load_model(path)
    other = models.load_model(path, {"off_by": off_by})
    for _ in range(2):
        found = model.train_on_batch(x, y, return_dict=True)
        assert other.train_on_batch(x, y, return_dict=True) == found
    assert found.keys() == {"loss", "off_by"}


def test_functions_that_no_name_tells_are_refused_when_fit_begins(tmp_path):
    def same_name(y_true, y_pred):
        return nn.ops.mean(y_true - y_pred, axis=-1)

    same_name.__name__ = "off_by"
    x, y = np.ones((8, 3), np.float32), np.zeros((8, 2), np.float32)
    for metric, said in (
        (lambda y_true, y_pred: off_by(y_true, y_pred), "has no name"),
        (same_name, "functions are named 'off_by'"),
    ):
        model = nn.Sequential([nn.Dense(2)])
        model.compile("sgd", off_by, metrics=[metric])
        checkpoint = cb.ModelCheckpoint(tmp_path / "m.memcfg")
        with pytest.raises(TypeError, match=said):
            model.fit(x, y, verbose=0, callbacks=checkpoint)
        assert model.optimizer.iterations == 0
        weights = tmp_path / "m.weights.safetensors"
        alone = cb.ModelCheckpoint(weights, save_weights_only=True)
        model.fit(x, y, verbose=0, callbacks=alone)
        assert weights.exists()


def test_layers_frozen_since_compile_are_trained_still(tmp_path):
    """As `compile` has seen them: so a GAN's discriminator is."""
    model = compiled(nn.Sequential([nn.Dense(3), nn.Dense(4)]), "adam")
    fed(model, 0, 2)
    model.trainable = False
    model.save(tmp_path / "m.memcfg")
    other = models.load_model(tmp_path / "m.memcfg")
    assert not other.trainable
    copied = copy.deepcopy(other)
    assert fed(other, 2, 4) == fed(model, 2, 4) == fed(copied, 2, 4)
    assert bits(other) == bits(model)


def test_files_of_weights_do_not_depend_on_names_of_inner_models(tmp_path):
    """Which are counted within the model, as those of layers are."""
    chains().save_weights(tmp_path / "w.safetensors")
    other = chains()
    other.load_weights(tmp_path / "w.safetensors")
    assert other.layers[0].name != "sequential"


def test_a_class_of_ones_own_is_made_by_its_constructor_alone(tmp_path):
    path = tmp_path / "m.memcfg"
    compiled(Net(3, name="mine"), "sgd").save(path)
    with pytest.raises(FormatError, match=r"custom_objects=\{'Net': Net\}"):
        models.load_model(path)
    with pytest.raises(FormatError, match="is not a model"):
        models.load_model(path, {"Net": Told})
    other = models.load_model(path, {"Net": Net})
    assert (other.name, other.units) == ("mine", 3)

    class Silent(Net):
        def __init__(self, width):
            super().__init__(width)

    model = Silent(3)
    model.build((None, 4))
    with pytest.raises(TypeError, match=r"Set self\.width in Silent\.__init__"):
        model.save(path)


def test_lists_of_numbers_and_what_is_none(tmp_path):
    path = tmp_path / "m.memcfg"
    x = nn.Input((2,))
    model = nn.Model(x, nn.Normalization(mean=[1.0, 2], variance=np.ones(2))(x))
    model.save(path)
    data = np.ones((2, 2), "f4")
    assert np.array_equal(models.load_model(path).predict(data), model.predict(data))
    layer = Doubled(lambda: 3, name="d")
    model = nn.Sequential([nn.Input((4,)), Block(2, wide=None)])
    model.layers[0].wide = print
    with pytest.raises(TypeError, match="cannot be saved: it is not a number"):
        model.save(path)
    with pytest.raises(TypeError, match="a lambda has no name to find it by"):
        layer.get_config()


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


@pytest.mark.parametrize("end", ["memcfg", "keras"])
def test_a_chain_of_two_inputs(tmp_path, end):
    a, b = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    model = nn.Sequential([nn.Concatenate(), nn.Dense(1)], name="two")
    wanted = model.predict([a, b], verbose=0)
    model.save(tmp_path / f"m.{end}")
    saved = nn.models.load_model(tmp_path / f"m.{end}")
    copies = [copy.deepcopy(model), nn.models.clone_model(model)]
    copies += [nn.Sequential.from_config(model.get_config())]
    for each in copies[1:]:
        each.set_weights(model.get_weights())
    for each in (saved, *copies):
        assert type(each) is nn.Sequential
        assert each.count_params() == 6
        np.testing.assert_array_equal(each.predict([a, b], verbose=0), wanted)
    model.pop()
    np.testing.assert_array_equal(
        model.predict([a, b], verbose=0), np.ones((4, 5), np.float32)
    )
    model.pop()
    assert model.layers == []
    with pytest.raises(ValueError, match="expects 1 input, got 2"):
        nn.Sequential([nn.Dense(2)]).predict([a, b], verbose=0)


def test_functions_of_weights_are_those_of_models(tmp_path):
    first, second = (
        mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Dense(2)]) for _ in range(2)
    )
    mc.nn.saving.save_weights(first, tmp_path / "w.weights.safetensors")
    mc.nn.saving.load_weights(second, tmp_path / "w.weights.safetensors")
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(AttributeError, match="read files by load_model"):
        getattr(mc.nn.saving, "KerasFileEditor")  # noqa: B009
