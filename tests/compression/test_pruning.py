"""Pruned models: what is left, what it trains to, and what memory it takes."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest

import memcfg as mc
from memcfg.compression import density_schedule, prune, share_weights, strip

nn = mc.nn


def data(rows=64):
    rng = np.random.default_rng(0)
    return np.float32(rng.normal(size=(rows, 12))), rng.integers(0, 3, rows)


def network(optimizer="adam", **options):
    nn.set_random_seed(0)
    layers = [
        nn.Dense(20, activation="relu", name="a", **options),
        nn.Dense(3, activation="softmax", name="b"),
    ]
    model = nn.Sequential([nn.Input((12,)), *layers], name="net")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def kernels(model):
    return {w.path: w.numpy() for w in model.weights if len(w.shape) > 1}


def state_bytes(model):
    graph = model.graph(16)
    roles = ("parameter", "optimizer_state")
    tensors = [graph.tensors[i] for i in graph.persistent]
    return {role: sum(t.nbytes for t in tensors if t.role == role) for role in roles}


@pytest.mark.parametrize("density", [0.01, 0.3, 0.5, 1.0])
def test_the_largest_are_kept_and_the_model_is_left_as_it_is(density):
    model = network()
    before = model.get_weights()
    pruned = prune(model, density)
    for old, (name, new) in zip(before[::2], kernels(pruned).items(), strict=True):
        count = int(np.ceil(density * old.size))
        assert np.count_nonzero(new) == count, name
        np.testing.assert_array_equal(new[new != 0], old[new != 0])
        least = np.sort(np.abs(old), axis=None)[-count]
        assert np.abs(new[new != 0]).min() == least
    assert all(map(np.array_equal, before, model.get_weights()))
    np.testing.assert_array_equal(pruned.get_weights()[1], before[1])
    assert pruned.optimizer is not model.optimizer


def test_names_choose_weights():
    pruned = kernels(prune(network(), {"a": 0.1, "b/kernel": 0.5}))
    assert [np.count_nonzero(each) for each in pruned.values()] == [24, 30]
    pruned = kernels(prune(network(), {"a/kernel": 0.1}))
    assert [np.count_nonzero(each) for each in pruned.values()] == [24, 60]


def test_a_global_density_has_one_threshold_in_standard_deviations():
    before = kernels(network())
    pruned = kernels(prune(network(), 0.25, scope="global"))
    sizes = [np.count_nonzero(each) for each in pruned.values()]
    assert sum(sizes) == 75
    assert sizes[0] / 240 != sizes[1] / 60
    kept, gone = [], []
    for old, new in zip(before.values(), pruned.values(), strict=True):
        scaled = np.abs(old) / old.std()
        kept.append(scaled[new != 0].min())
        gone.append(scaled[new == 0].max())
    assert max(gone) <= min(kept)


@pytest.mark.parametrize(("structure", "axis"), [("filter", -1), ("row", -2)])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_slices_are_kept_whole(structure, axis, scope):
    nn.set_random_seed(0)
    model = nn.Sequential(
        [nn.Input((8, 8, 4)), nn.Conv2D(8, 3), nn.Flatten(), nn.Dense(6)]
    )
    pruned = kernels(prune(model, 0.5, structure=structure, scope=scope))
    for old, new in zip(kernels(model).values(), pruned.values(), strict=True):
        rows = np.moveaxis(new, axis, 0).reshape(new.shape[axis], -1)
        whole = np.moveaxis(old, axis, 0).reshape(new.shape[axis], -1)
        empty = ~rows.any(1)
        np.testing.assert_array_equal(rows[~empty], whole[~empty])
        if scope == "layer":
            assert empty.sum() == new.shape[axis] // 2
            norms = np.linalg.norm(whole, axis=1)
            assert norms[empty].max() <= norms[~empty].min()


class Masked(nn.Constraint):
    """Zeros where a mask has them, after each update."""

    def __init__(self, mask):
        self.mask = mask

    def __call__(self, w):
        return w * self.mask


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop"])
def test_training_gives_the_bits_of_dense_training_with_a_mask(optimizer):
    x, y = data()
    pruned = prune(network(optimizer), {"a": 0.2})
    mask = (kernels(pruned)["a/kernel"] != 0).astype(np.float32)
    nn.set_random_seed(0)
    dense = network(optimizer)
    dense.set_weights(pruned.get_weights())
    for _ in range(5):
        dense.train_on_batch(x, y)
        pruned.train_on_batch(x, y)
        # What the update gave to pruned weights is taken back, as a mask does.
        weights = dense.get_weights()
        dense.set_weights([weights[0] * mask, *weights[1:]])
    for one, other in zip(dense.get_weights(), pruned.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_pruned_weights_have_no_state_and_peaks_are_as_planned():
    x, y = data()
    model = network("adam")
    whole = state_bytes(model)
    pruned = prune(model, {"a": 0.1})
    found = state_bytes(pruned)
    # 24 of 240 are left: values and indices, and two moments of Adam's.
    assert whole["optimizer_state"] - found["optimizer_state"] == 2 * 4 * (240 - 24)
    assert whole["parameter"] - found["parameter"] == 4 * (240 - 2 * 24)
    for each in (pruned, share_weights(pruned, 3)):
        each.fit(x, y, batch_size=16, epochs=1, verbose=0)
        report = each.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert np.count_nonzero(kernels(each)["a/kernel"]) == 24
    shared = state_bytes(share_weights(pruned, {"a": 3}, init="density"))
    assert shared["optimizer_state"] == found["optimizer_state"] - 2 * 4 * (24 - 8)


def test_a_limit_that_dense_training_exceeds_is_enough():
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((400,)), nn.Dense(300), nn.Dense(10)])
    model.compile("adam", "mse")
    pruned = prune(model, 0.05)
    limit = pruned.plan(8).peak_bytes
    assert limit < 0.75 * model.plan(8).peak_bytes
    x, y = np.ones((16, 400), np.float32), np.ones((16, 10), np.float32)
    mc.config.set_memory_limit("CPU:0", limit)
    pruned.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    pruned.close()
    model.compile("adam", "mse", on_oom="raise")
    with pytest.raises(mc.errors.InfeasiblePlanError):
        model.fit(x, y, batch_size=8, verbose=0)
    model.close()


def test_pruning_again_keeps_what_was_pruned():
    x, y = data()
    model, masks = network(), []
    for density in density_schedule(0.1, 3):
        model = prune(model, density)
        model.fit(x, y, epochs=1, verbose=0)
        masks.append(kernels(model)["a/kernel"] != 0)
    assert [each.sum() for each in masks] == [89, 33, 24]
    for before, after in itertools.pairwise(masks):
        assert not (after & ~before).any()


def test_stripping_gives_a_plain_model_that_is_saved_and_loaded(tmp_path):
    x, y = data()
    pruned = prune(network(), 0.2)
    pruned.fit(x, y, epochs=1, verbose=0)
    with pytest.raises(TypeError, match=r"strip makes of it"):
        pruned.save(tmp_path / "a.memcfg")
    plain = strip(pruned)
    plain.save(tmp_path / "a.memcfg")
    loaded = nn.models.load_model(tmp_path / "a.memcfg")
    wanted = pruned.predict(x, verbose=0)
    for each in (plain, loaded, copy.deepcopy(pruned)):
        np.testing.assert_array_equal(each.predict(x, verbose=0), wanted)
    plain.fit(x, y, epochs=1, verbose=0)
    assert (plain.layers[0].kernel.numpy() != 0).mean() > 0.9


def test_weights_are_read_and_set_as_plain_ones(tmp_path):
    x, y = data()
    pruned = prune(network(), 0.2)
    pruned.save_weights(tmp_path / "a.weights.safetensors")
    before = pruned.get_weights()
    best = nn.callbacks.EarlyStopping("loss", patience=0, restore_best_weights=True)
    pruned.fit(x, y, epochs=2, verbose=0, callbacks=[best])
    assert not np.array_equal(pruned.get_weights()[0], before[0])
    pruned.set_weights(before)
    assert all(map(np.array_equal, pruned.get_weights(), before))
    plain = network()
    plain.load_weights(tmp_path / "a.weights.safetensors")
    assert all(map(np.array_equal, plain.get_weights(), before))
    with pytest.raises(ValueError, match=r"'a/kernel': .* where weights are pruned"):
        pruned.set_weights(network().get_weights())
    assert all(map(np.array_equal, pruned.get_weights(), before))


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Embedding(9, 6), nn.LSTM(5), nn.Dense(1)],
        lambda: [nn.Embedding(9, 6), nn.Bidirectional(nn.GRU(4)), nn.Dense(1)],
        lambda: [
            nn.Embedding(9, 6),
            nn.TimeDistributed(nn.Dense(4)),
            nn.Flatten(),
            nn.Dense(1, kernel_regularizer="l2"),
        ],
        lambda: [
            nn.Embedding(9, 6),
            nn.Sequential([nn.Dense(4), nn.Flatten()]),
            nn.Dense(1),
        ],
    ],
)
def test_every_layer_trains_pruned(layers):
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((7,), dtype="int32"), *layers()])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).integers(0, 9, (16, 7)).astype(np.int32)
    y = x.mean(1, keepdims=True)
    pruned = prune(model, 0.4)
    wanted = strip(pruned).predict(x, verbose=0)
    np.testing.assert_array_equal(pruned.predict(x, verbose=0), wanted)
    losses = pruned.fit(x, y, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    for name, each in kernels(pruned).items():
        assert np.count_nonzero(each) <= np.ceil(0.4 * each.size), name


def test_a_shared_layer_is_pruned_once():
    nn.set_random_seed(0)
    x = nn.Input((6,))
    layer = nn.Dense(6, name="twice")
    model = nn.Model(x, nn.Dense(1, name="end")(layer(layer(x))))
    model.compile("sgd", "mse")
    pruned = prune(model, {"twice": 0.5})
    rows = np.ones((4, 6), np.float32)
    pruned.fit(rows, rows[:, :1], verbose=0)
    assert np.count_nonzero(kernels(pruned)["twice/kernel"]) == 18


def test_penalties_are_of_the_whole_weight():
    x, y = data()
    options = {"kernel_regularizer": nn.regularizers.L2(0.1)}
    pruned = prune(network(**options), 0.3)
    plain = strip(pruned)
    one, other = (
        each.evaluate(x, y, verbose=0, return_dict=True)["loss"]
        for each in (pruned, plain)
    )
    assert one == pytest.approx(other, rel=1e-6)
    without = strip(prune(network(), 0.3)).evaluate(x, y, verbose=0)[0]
    assert one > without + 0.1


def test_a_frozen_layer_stays_as_it_is():
    x, y = data()
    model = network()
    model.layers[0].trainable = False
    model.compile("adam", "sparse_categorical_crossentropy")
    pruned = prune(model, 0.3)
    before = pruned.get_weights()
    pruned.fit(x, y, epochs=1, verbose=0)
    assert all(map(np.array_equal, pruned.get_weights()[:2], before[:2]))
    assert not np.array_equal(pruned.get_weights()[2], before[2])


def test_a_function_of_a_pruned_model_is_refused():
    pruned = prune(network(), 0.3)

    @mc.function
    def call(x):
        return pruned(x)

    with pytest.raises(ValueError, match=r"reads 'net/a/kernel', .*strip"):
        call(data()[0])


def test_the_schedule_is_cubic_and_ends_at_the_density():
    assert density_schedule(0.25, 1) == [0.25]
    found = density_schedule(0.1, 4, begin=0.5)
    assert found == pytest.approx([0.26875, 0.15, 0.10625, 0.1])
    with pytest.raises(ValueError, match="at most begin"):
        density_schedule(0.6, 2, begin=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0}, "above 0 and at most 1"),
        ({"density": {"c": 0.1}}, "'c' is none of a/kernel, b/kernel"),
        ({"density": {"a": 2}}, "prune: density of 'a' must be above 0"),
        ({"density": 0.1, "structure": "rows"}, "did you mean 'row'"),
        ({"density": 0.1, "scope": "all"}, "known: layer, global"),
        ({"density": {"a": 0.1}, "scope": "global"}, "one number"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        prune(network(), **options)


def test_what_cannot_be_pruned_is_refused():
    with pytest.raises(TypeError, match="takes a Model, got int"):
        prune(3, 0.1)
    with pytest.raises(ValueError, match=r"'a/kernel' has a constraint"):
        prune(network(kernel_constraint="max_norm"), 0.1)
    model = nn.Sequential([nn.Input((3,)), nn.ReLU()])
    with pytest.raises(ValueError, match="no weights of two or more axes"):
        prune(model, 0.1)
    with pytest.raises(RuntimeError, match="shapes"):
        prune(nn.Sequential([nn.Dense(3)]), 0.1)

    class Own(nn.Model):
        def train_step(self, data):
            return super().train_step(data)

    x = nn.Input((3,))
    own = Own(x, nn.Dense(2)(x))
    own.compile("sgd", "mse")
    with pytest.raises(ValueError, match="steps of its own"):
        prune(own, 0.1)


@pytest.mark.parametrize("shard", [None, "gradients", "parameters"])
def test_workers_train_a_pruned_model_together(shard):
    x, y = data()
    alone, together = prune(network("sgd"), 0.3), prune(network("sgd"), 0.3)
    options = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    alone.fit(x, y, **options)
    given = {"training_mode": "all_reduce", "shard": shard}
    with mc.parallel.ParallelWrapper(together, 2, **given) as wrapper:
        wrapper.fit(x, y, **options)
        within = together.get_weights()
    for one, other in zip(alone.get_weights(), together.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    assert all(map(np.array_equal, within, together.get_weights()))
    for one, other in zip(
        kernels(alone).values(), kernels(together).values(), strict=True
    ):
        np.testing.assert_array_equal(one == 0, other == 0)
