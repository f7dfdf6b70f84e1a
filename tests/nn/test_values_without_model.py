"""Layers that outlive their model keep its values, or say that they are lost."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import memcfg as mc
from memcfg import nn
from memcfg.compression import prune, strip

X = np.random.default_rng(3).standard_normal((8, 6)).astype(np.float32)
Y = np.arange(8) % 2


def made(*, trained=True):
    nn.set_random_seed(2)
    layers = [nn.Dense(5, activation="relu"), nn.BatchNormalization(), nn.Dense(2)]
    model = nn.Sequential([nn.Input((6,)), *layers])
    model.compile("adam", nn.SparseCategoricalCrossentropy(from_logits=True))
    if trained:
        model.fit(X, Y, epochs=3, verbose=0)
    return model


def in_use():
    return mc.config.get_memory_info("CPU:0")["current"]


def of_layers(layers):
    return [value for layer in layers for value in layer.get_weights()]


def assert_same(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def in_a_cycle(*kept):
    """Have the collector collect objects, and not their last reference."""
    cycle = [*kept]
    cycle.append(cycle)


def closed(folder):
    model = made()
    model.close()
    return model


def read_from_a_file(folder):
    made().save(folder / "a.memcfg")
    return nn.models.load_model(folder / "a.memcfg")


def never_run(folder):
    return made(trained=False)


def given(folder):
    model = made(trained=False)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    return model


HOW = [closed, read_from_a_file, never_run, given]


@pytest.mark.parametrize("is_cyclic", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_values_on_the_host_stay_with_the_layers(how, is_cyclic, tmp_path):
    model = how(tmp_path)
    wanted = how(tmp_path).get_weights()
    layers = model.layers
    gone = weakref.ref(model)
    if is_cyclic:
        in_a_cycle(model)
    del model
    gc.collect()
    assert gone() is None
    assert_same(of_layers(layers), wanted)
    assert in_use() == 0
    again = nn.Sequential([nn.Input((6,)), *layers])  # takes them over
    again.predict(X, verbose=0)
    assert_same(again.get_weights(), wanted)
    del again, layers
    gc.collect()
    assert in_use() == 0


def test_values_on_the_device_are_lost_and_reading_says_so():
    model = made()
    first = model.layers[0]
    wanted = first.get_weights()
    del model
    assert in_use() == 0
    for read in (first.kernel.numpy, first.get_weights, lambda: first(X)):
        with pytest.raises(RuntimeError, match=r"'kernel'.*keep a reference"):
            read()
    with pytest.raises(RuntimeError, match="keep a reference"):
        nn.Sequential([nn.Input((6,)), first]).predict(X)
    first.set_weights(wanted)
    assert_same(first.get_weights(), wanted)
    assert_same(nn.Sequential([nn.Input((6,)), first]).get_weights(), wanted)


def test_first_values_are_drawn_again_if_nothing_has_changed_them():
    nn.set_random_seed(5)
    x = nn.Input((6,))
    layer = nn.Dense(3)
    y = layer(x)
    wanted = nn.Model(x, y).predict(X, verbose=0)
    np.testing.assert_array_equal(nn.Model(x, [y, y]).predict(X)[1], wanted)
    model = nn.Model(x, y)
    model.predict(X)
    layer.set_weights([weight + 1 for weight in layer.get_weights()])
    model.predict(X)
    del model
    gc.collect()
    np.testing.assert_array_equal(layer.bias.numpy(), np.ones(3))  # as others used it
    other = nn.Dense(3)
    model = nn.Model(x, other(x))
    model.predict(X)
    other.bias.assign(np.ones(3))
    del model
    gc.collect()
    assert other.kernel.numpy().any()
    with pytest.raises(RuntimeError, match="'bias'"):
        other.get_weights()


def test_a_layer_of_a_stripped_model_keeps_its_values():
    pruned = prune(made(), 0.5)
    wanted = pruned.layers[0].kernel.numpy()
    layer = strip(pruned).layers[0]
    np.testing.assert_array_equal(layer.kernel.numpy(), wanted)
    gone = pruned.layers[0]
    pruned.close()
    del pruned
    with pytest.raises(RuntimeError, match=r"'kernel'.*keep a reference"):
        gone.kernel.numpy()  # computed from parts, which only the model did


def test_a_layer_of_two_models_keeps_the_newer_values():
    """Also if they are collected at once, the older one first."""
    nn.set_random_seed(4)
    shared = nn.Dense(6, use_bias=False)
    models = [nn.Sequential([nn.Input((6,)), shared]) for _ in range(2)]
    for model in models:
        model.compile("sgd", "mse")
        model.fit(X, X, verbose=0)
    wanted = shared.get_weights()
    in_a_cycle(*models)
    del model, models
    gc.collect()
    assert in_use() == 0
    assert_same(shared.get_weights(), wanted)
