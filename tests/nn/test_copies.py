"""Copies and pickles of models, layers and optimizers: whole, and on their own."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn

WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),
    "buffers": lambda thing: by_buffers(thing),
}


def by_buffers(thing):
    """Pickle with arrays out of band, and destroy the buffers afterwards."""
    buffers = []
    data = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    owned = [bytearray(buffer.raw()) for buffer in buffers]
    found = pickle.loads(data, buffers=owned)
    for buffer in owned:
        buffer[:] = b"\xff" * len(buffer)
    return found


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def in_use():
    return mc.config.get_memory_info("CPU:0")["current"]


def residual():
    x = nn.Input((8, 8, 3))
    stem = nn.Conv2D(4, 3, padding="same", activation="relu", name="stem")(x)
    shared = nn.Conv2D(4, 3, padding="same")
    h = nn.BatchNormalization()(shared(shared(stem)))
    h = nn.Dropout(0.3)(nn.ReLU()(nn.Add()([stem, h])))
    return nn.Model(x, nn.Dense(5)(nn.GlobalAvgPool2D()(h)))


def chain():
    return nn.Sequential(
        [nn.Input((8, 8, 3)), nn.Conv2D(4, 3), nn.Flatten(), nn.Dense(5)]
    )


def late():
    return nn.Sequential([nn.Flatten(), nn.Dropout(0.2), nn.Dense(5)])


def nested():
    """A model in two places of another, and a chain in it at every step."""
    rows = nn.TimeDistributed(nn.Sequential([nn.Dense(4), nn.Dropout(0.2)]))
    x = nn.Input((8, 8, 3))
    tower = nn.Model(x, nn.Flatten()(rows(nn.Reshape((8, 24))(x))))
    return nn.Model(y := nn.Input((8, 8, 3)), nn.Dense(5)(tower(y) + tower(2 * y)))


MODELS = {"residual": residual, "chain": chain, "late": late, "nested": nested}
OPTIMIZERS = {"momentum": lambda: nn.SGD(0.1, momentum=0.9), "adam": nn.Adam}


def assert_same(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.strength(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_copy_goes_on_as_the_original_does(way, kind, optimizer, loss, images):
    """Weights, optimizer, masks and settings; what one does the other is not told."""
    model = MODELS[kind]()
    model.compile(OPTIMIZERS[optimizer](), loss, metrics=["accuracy"], memory="share")
    history = model.fit(*images, 16, verbose=0, seed=1)
    model.optimizer.learning_rate = 0.03
    before = in_use()
    made = way(model)
    assert in_use() == before
    assert type(made) is type(model)
    assert made.name == model.name
    assert [layer.name for layer in made.layers] == [each.name for each in model.layers]
    assert not set(map(id, made.layers)) & set(map(id, model.layers))
    assert made.optimizer is not model.optimizer
    assert repr(made.optimizer) == repr(model.optimizer)
    assert made.optimizer.iterations == model.optimizer.iterations == 3
    assert made.history.history == history.history
    assert_same(made.get_weights(), model.get_weights())
    copied = made.get_weights()
    found = model.fit(*images, 16, verbose=0, seed=2).history
    assert_same(made.get_weights(), copied)
    assert made.fit(*images, 16, verbose=0, seed=2).history == found
    assert in_use() > before
    assert_same(made.get_weights(), model.get_weights())
    assert made.evaluate(*images, verbose=0) == model.evaluate(*images, verbose=0)
    assert made.plan(16).method == "share"
    model.close()
    assert in_use() > 0
    del model
    gc.collect()
    made.fit(*images, 16, verbose=0)
    made.close()
    assert in_use() == 0


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("compiled", [True, False])
def test_a_model_that_was_never_used(way, kind, compiled, loss, images):
    model = MODELS[kind]()
    if compiled:
        model.compile("adam", loss)
    made = way(model)
    assert made.built == model.built
    assert in_use() == 0
    if kind == "chain" and not compiled:
        made.add(nn.Dense(2))
        assert len(made.layers) == len(model.layers) + 1
        assert made.predict(images[0], verbose=0).shape == (40, 2)
    elif model.built or compiled:
        assert_same(
            [made.predict(images[0], verbose=0)], [model.predict(images[0], verbose=0)]
        )
    if not compiled:
        with pytest.raises(RuntimeError, match="call compile"):
            made.fit(*images)


class Lawless:
    """An initializer that never draws the same again."""

    seed = None
    numbers = itertools.count()

    def draw(self, shape, seed):
        return np.full(shape, next(self.numbers), np.float32)


def test_weights_that_were_not_drawn_yet_are_the_same(way):
    model = nn.Sequential([nn.Input((3,)), nn.Dense(4, kernel_initializer=Lawless())])
    made = way(model)
    assert_same(made.get_weights(), model.get_weights())


def test_a_long_chain_is_copied_flat(way):
    """Python could not go as deep as it is."""
    model = nn.Sequential([nn.Input((2,)), *(nn.Dense(2) for _ in range(1200))])
    made = way(model)
    assert_same(made.get_weights(), model.get_weights())


class Owner(nn.Sequential):
    """A user's model, with attributes of its own that lead back to it."""

    def __init__(self):
        self.me = self
        self.last = nn.Dense(5)
        super().__init__([nn.Flatten(), self.last])


def test_a_users_model(way, loss, images):
    model = Owner()
    model.compile("sgd", loss)
    model.fit(*images, verbose=0)
    made, optimizer = way([model, model.optimizer])
    assert isinstance(made, Owner)
    assert made.me is made
    assert made.last is made.layers[-1]
    assert made.optimizer is optimizer
    assert optimizer.iterations == 2
    assert_same(made.get_weights(), model.get_weights())


def test_a_shallow_copy_is_refused(dense, rows):
    model = dense()
    model.fit(*rows, verbose=0)
    with pytest.raises(TypeError, match=r"copy.deepcopy\(model\) makes another model"):
        copy.copy(model)
    x = nn.Input((3,))
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copy the model, or call the layers again"):
            call(nn.Dense(3)(x))


def test_layers_and_optimizers_alone_are_new_ones(dense, rows):
    """They belong to no model, and have what their constructors were told."""
    model = dense(nn.SGD(0.1, momentum=0.9))
    model.fit(*rows, verbose=0)
    for way in (*WAYS.values(), copy.copy):
        layer, optimizer = way(model.layers[0]), way(model.optimizer)
        assert layer.weight_specs is None
        assert (layer.units, layer.name) == (7, model.layers[0].name)
        assert repr(optimizer) == repr(model.optimizer)
        assert optimizer.iterations == 0
        other = nn.Sequential([layer, nn.Dense(4)])
        other.compile(optimizer, nn.SparseCategoricalCrossentropy(from_logits=True))
        other.fit(rows[0][:, :3], rows[1], verbose=0)
        assert optimizer.iterations == 1


def test_copies_while_another_thread_trains(dense, rows):
    """Each is of a moment between two steps."""
    model, alone = dense(nn.Adam()), dense(nn.Adam())
    alone.set_weights(model.get_weights())
    moments = [alone.get_weights()]
    for start in range(0, 30, 6):
        alone.train_on_batch(rows[0][start : start + 6], rows[1][start : start + 6])
        moments.append(alone.get_weights())
    copied = []
    model.predict(rows[0], verbose=0)
    stop = threading.Event()

    def take():
        while not stop.is_set():
            copied.append(copy.deepcopy(model))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(take)
        model.fit(*rows, 6, verbose=0, shuffle=False)
        stop.set()
        running.result(60)
    for each in [*copied, copy.deepcopy(model)]:
        assert_same(each.get_weights(), moments[each.optimizer.iterations])


def test_namesakes_train_side_by_side(dense, rows):
    model = dense(training_workspace_mode="separate")
    made = copy.deepcopy(model)
    with ThreadPoolExecutor(2) as pool:
        calls = [
            pool.submit(each.fit, *rows, 8, 3, 0, seed=1) for each in (model, made)
        ]
        first, second = (call.result(60).history for call in calls)
    assert first == second
    held = mc.config.logical_device().pool.owners()
    tags = [f"model {model.name}", f"model {model.name} (2)"]
    assert held[tags[0]] == held[tags[1]] > 0
    mc.config.set_memory_limit("CPU:0", 64 * 1024)
    for each, other in zip((model, made), reversed(tags), strict=True):
        with pytest.raises(mc.errors.InfeasiblePlanError) as caught:
            each.train_on_batch(
                *(np.resize(array, (10_000, *array.shape[1:])) for array in rows)
            )
        assert caught.value.owners[other] == held[other]
        (own,) = {*tags} - {other}
        assert own not in caught.value.owners


def test_a_pickle_is_read_inside_a_workspace(dense, rows):
    """What a model keeps is not the workspace's."""
    model = dense()
    model.fit(*rows, verbose=0)
    data = pickle.dumps(model)
    with mc.workspace("pickles", mc.WorkspaceConfig(on_escape="invalidate")):
        made = pickle.loads(data)
    with mc.workspace("pickles", mc.WorkspaceConfig(on_escape="invalidate")) as space:
        np.full(10**4, 7, np.float32)
    assert_same(made.get_weights(), model.get_weights())
    space.destroy()


READER = """
import pickle, sys
import memcfg as mc
model, x = pickle.load(sys.stdin.buffer)
later = mc.nn.Dense(3)(mc.nn.Dense(2)(mc.nn.Input((2,))))
sys.stdout.buffer.write(model.predict(x, verbose=0).tobytes())
assert model.optimizer.iterations == 1
"""


def test_another_process_reads_a_pickle(dense, rows):
    model = dense()
    model.fit(*rows, verbose=0)
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=pickle.dumps((model, rows[0])),
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = np.frombuffer(done.stdout, np.float32).reshape(30, 4)
    assert np.array_equal(found, model.predict(rows[0], verbose=0))


def test_joblib(dense, rows, tmp_path):
    joblib = pytest.importorskip("joblib")
    model = dense("adam")
    model.fit(*rows, verbose=0)
    joblib.dump(model, tmp_path / "model.joblib")
    for mode in (None, "r"):
        made = joblib.load(tmp_path / "model.joblib", mmap_mode=mode)
        assert_same(made.get_weights(), model.get_weights())
        made.fit(*rows, verbose=0)
