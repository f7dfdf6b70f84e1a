"""Shared weights: their values, the gradients of centroids, and their state."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.compression import k_means, prune, share_weights, strip

nn = mc.nn


def data():
    rng = np.random.default_rng(0)
    return np.float32(rng.normal(size=(32, 12))), rng.integers(0, 3, 32)


def network(optimizer="sgd", **options):
    nn.set_random_seed(0)
    layers = [
        nn.Dense(20, activation="relu", name="a", **options),
        nn.Dense(3, activation="softmax", name="b"),
    ]
    model = nn.Sequential([nn.Input((12,)), *layers], name="net")
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def kernel(model):
    return model.layers[0].kernel.numpy()


@pytest.mark.parametrize("density", [1.0, 0.3])
@pytest.mark.parametrize("init", ["linear", "density", "random"])
def test_values_are_the_centroids_of_those_that_are_left(density, init):
    model = prune(network(), density)
    before = kernel(model)
    shared = kernel(share_weights(model, {"a": 3}, init=init, seed=2))
    left = before[before != 0]
    found = k_means(left, 8, init=init, seed=2)
    np.testing.assert_array_equal(shared[before != 0], found.centroids[found.codes])
    assert not shared[before == 0].any()
    np.testing.assert_array_equal(kernel(model), before)


@pytest.mark.parametrize("density", [1.0, 0.3])
def test_the_gradient_of_a_centroid_is_the_sum_of_those_of_its_weights(density):
    x, y = data()
    rate = 0.5
    pruned = prune(network(nn.SGD(rate)), density)
    shared = share_weights(pruned, {"a": 2}, init="density")
    dense = strip(shared)
    before = kernel(dense)
    dense.train_on_batch(x, y)
    shared.train_on_batch(x, y)
    gradient = (before - kernel(dense)) / rate
    after = kernel(shared)
    values = [each for each in np.unique(before) if each or density == 1]
    assert len(values) == 4
    for value in values:
        total = gradient[before == value].sum(dtype=np.float64)
        (moved,) = np.unique(after[before == value])
        assert moved == pytest.approx(value - rate * total, abs=2e-6)
    assert np.array_equal(after == 0, before == 0)


def test_training_changes_values_and_lowers_the_loss():
    x, y = data()
    shared = share_weights(prune(network("adam"), 0.5), 2)
    before = kernel(shared)
    losses = shared.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    after = kernel(shared)
    assert not np.array_equal(after, before)
    for value in np.unique(before):  # what shared a value still does
        assert len(np.unique(after[before == value])) == 1


def test_state_is_as_large_as_the_codebook():
    graph = share_weights(network("adam"), {"a": 4}).graph(8)
    tensors = {graph.tensors[i].name: graph.tensors[i] for i in graph.persistent}
    names = [name for name in tensors if "a/kernel" in name]
    assert {name: tensors[name].shape for name in names} == {
        "a/kernel_codebook": (16,),
        "a/kernel_codes": (240,),
        "adam/a/kernel_codebook/m": (16,),
        "adam/a/kernel_codebook/v": (16,),
    }
    assert tensors["a/kernel_codes"].dtype == "int32"


def test_weights_are_set_only_as_they_are_shared():
    x, y = data()
    shared = share_weights(network("adam"), 3)
    before = shared.get_weights()
    shared.fit(x, y, epochs=2, verbose=0)
    after = shared.get_weights()
    shared.set_weights(before)
    assert all(map(np.array_equal, shared.get_weights(), before))
    shared.set_weights(after)
    with pytest.raises(ValueError, match=r"'a/kernel': .* where weights share one"):
        shared.set_weights(network().get_weights())
    assert all(map(np.array_equal, shared.get_weights(), after))


def test_what_is_refused():
    with pytest.raises(ValueError, match="bits must be at most 16, got 17"):
        share_weights(network(), 17)
    with pytest.raises(ValueError, match="unknown init"):
        share_weights(network(), 3, init="forgy")
    with pytest.raises(ValueError, match="'a/kernel' has a constraint"):
        share_weights(network(kernel_constraint="non_neg"), 3)
    with pytest.raises(ValueError, match="'c' is none of"):
        share_weights(network(), {"c": 3})
