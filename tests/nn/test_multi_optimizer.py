"""Weights left to several optimizers: each trains as it would alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
optimizers = nn.optimizers


def two_layers():
    x = nn.Input((4,), name="x")
    y = nn.Dense(5, "tanh", name="body")(x)
    return nn.Model(x, nn.Dense(2, name="head")(y))


def rates(slow=0.05, fast=None):
    fast = fast or optimizers.Adam(0.02, clipvalue=0.3, use_ema=True)
    chosen = optimizers.OptimizerMap(
        optimizers.SGD(slow, momentum=0.9), {"head/.*": fast}
    )
    return optimizers.MultiOptimizer(chosen)


def data(count=24):
    random = np.random.default_rng(1)
    return [random.normal(size=(count, n)).astype(np.float32) for n in (4, 2)]


def trained(optimizer, frozen=(), epochs=1, **options):
    model = two_layers()
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.weights])
    for name in frozen:
        model.get_layer(name).trainable = False
    model.compile(optimizer, "mse", **options)
    if epochs:
        model.fit(*data(), batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return model


def weights_of(model):
    result = model.get_weights()
    model.close()
    return result


def test_each_part_moves_as_by_its_optimizer_alone():
    """A part whose other part is frozen has the same first step."""
    x, y = data(8)
    made = []
    for optimizer, frozen in (
        (rates(), ()),
        (optimizers.SGD(0.05, momentum=0.9), ("head",)),
        (optimizers.Adam(0.02, clipvalue=0.3), ("body",)),
    ):
        model = trained(optimizer, frozen, epochs=0)
        model.train_on_batch(x, y)
        made.append(weights_of(model))
    both, body, head = made
    for found, wanted in zip(both, [*body[:2], *head[2:]], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_divided_batch_and_memory_policies_change_no_bit():
    whole = weights_of(trained(rates(), memory="keep_all"))
    for policy in (mc.plan.share(), mc.plan.auto()):
        for found, wanted in zip(
            weights_of(trained(rates(), memory=policy)), whole, strict=True
        ):
            np.testing.assert_array_equal(found, wanted)


def test_steps_of_ones_own():
    model, twin = two_layers(), two_layers()
    twin.set_weights(model.get_weights())
    optimizer = rates()
    x, y = data(8)

    @mc.function
    def step(x, y):
        with mc.GradientTape() as tape:
            loss = nn.ops.mean(nn.ops.square(model(x) - y))
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(slopes, model.trainable_variables)
        return loss

    for _ in range(3):
        step(x, y)
    twin.compile(rates(), "mse")
    for _ in range(3):
        twin.train_on_batch(x, y)
    for found, wanted in zip(weights_of(model), weights_of(twin), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("suffix", [".memcfg", ".keras"])
def test_files(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    if suffix == ".keras":
        pytest.importorskip("h5py")
    model = trained(rates())
    model.save(path)
    again = nn.models.load_model(path)
    assert again.optimizer.get_config() == model.optimizer.get_config()
    first, second = again.optimizer.optimizers
    assert (first.learning_rate, second.learning_rate) == (0.02, 0.05)
    if suffix == ".memcfg":
        for each in (model, again):
            each.fit(*data(), batch_size=8, shuffle=False, verbose=0)
        for found, wanted in zip(weights_of(again), weights_of(model), strict=True):
            np.testing.assert_array_equal(found, wanted)
    model.close()
    again.close()


def test_rates_are_those_of_the_optimizers():
    schedule = optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.0])
    optimizer = rates(fast=optimizers.SGD(schedule))
    model = trained(optimizer, epochs=0)
    x, y = data(8)
    sums = []
    for _ in range(5):
        model.train_on_batch(x, y)
        sums.append([np.abs(w).sum() for w in model.get_weights()])
    assert sums[-1][2:] == sums[-2][2:]  # the schedule's rate is 0 by now
    assert sums[-1][:2] != sums[-2][:2]
    assert optimizer.iterations == 5
    assert optimizer.optimizers[0].iterations == 5  # which its schedule counts
    for call in (
        lambda: optimizer.learning_rate,
        lambda: setattr(optimizer, "learning_rate", 0.1),
    ):
        with pytest.raises(AttributeError, match="has no learning_rate"):
            call()
    model.close()


def test_averages_replace_only_their_weights():
    model = trained(rates())
    keys = model.optimizer.get_state().keys()
    assert {key for key in keys if key.endswith("average")} == {
        "head/kernel/average",
        "head/bias/average",
    }
    state = model.optimizer.get_state()
    for found, name in zip(model.get_weights()[2:], ("kernel", "bias"), strict=True):
        np.testing.assert_array_equal(found, state[f"head/{name}/average"])
    model.close()


def test_copies_and_callbacks(tmp_path):
    model = trained(rates())
    twin = copy.deepcopy(model)
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    backup = nn.callbacks.BackupAndRestore(tmp_path / "backup")
    for each, callbacks in (
        (model, [backup, nn.callbacks.TerminateOnNaN()]),
        (twin, []),
    ):
        each.fit(*data(), callbacks=callbacks, **options)
    for found, wanted in zip(weights_of(twin), weights_of(model), strict=True):
        np.testing.assert_array_equal(found, wanted)
    other = trained(rates())
    with pytest.raises(AttributeError, match="has no learning_rate"):
        other.fit(
            *data(), callbacks=[nn.callbacks.ReduceLROnPlateau("loss")], **options
        )
    other.close()


def test_maps():
    sgd, adam = optimizers.SGD(), optimizers.Adam()
    chosen = optimizers.OptimizerMap(sgd, {"a/.*": adam})
    chosen["b"] = adam
    assert [*chosen] == ["a/.*", "b"]
    assert len(chosen) == 2
    assert chosen["a/kernel"] is adam
    assert chosen["c"] is chosen.default_optimizer is sgd
    again = optimizers.OptimizerMap.from_config(chosen.get_config())
    assert again["a/x"].get_config() == adam.get_config()
    del chosen["b"]
    assert chosen["b"] is sgd
    chosen["a/b.*"] = sgd
    with pytest.raises(ValueError, match="several optimizers"):
        _ = chosen["a/bias"]
    with pytest.raises(ValueError, match="already has"):
        chosen["a/.*"] = sgd
    with pytest.raises(TypeError, match="is a string"):
        chosen[3] = sgd
    for wrong in ("sgd", optimizers.MultiOptimizer(chosen)):
        with pytest.raises(TypeError, match="has optimizers"):
            optimizers.OptimizerMap(wrong)


def test_a_map_may_be_a_function():
    chosen = {2: optimizers.SGD(0.1), 1: optimizers.Adam(0.1)}
    optimizer = optimizers.MultiOptimizer(lambda weight: chosen[len(weight.shape)])
    model = trained(optimizer)
    assert optimizer.optimizers == [chosen[2], chosen[1]]
    assert any(key.startswith("head/bias/") for key in optimizer.get_state())
    assert not any("kernel" in key for key in optimizer.get_state())
    twin = copy.copy(optimizer)
    assert twin.iterations == 0
    model.close()


def test_what_cannot_be_honoured():
    sgd = optimizers.SGD()
    with pytest.raises(TypeError, match="OptimizerMap or a function"):
        optimizers.MultiOptimizer([sgd])
    slow = optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="cannot have gradient_accumulation_steps"):
        optimizers.MultiOptimizer(optimizers.OptimizerMap(slow))
    with pytest.raises(ValueError, match="loss_scale_factor"):
        optimizers.MultiOptimizer(optimizers.OptimizerMap(sgd), loss_scale_factor=2.0)
    twins = optimizers.OptimizerMap(optimizers.Nadam(), {"head/.*": optimizers.Nadam()})
    with pytest.raises(ValueError, match="two optimizers of one kind share nadam/"):
        trained(optimizers.MultiOptimizer(twins))
    lone = optimizers.OptimizerMap(optimizers.SGD(), {"tail/.*": optimizers.Adam()})
    with pytest.warns(RuntimeWarning, match=r"'tail/\.\*' matches no weight .* body/k"):
        trained(optimizers.MultiOptimizer(lone)).close()


def test_a_function_that_makes_optimizers_makes_one_for_each_weight():
    optimizer = optimizers.MultiOptimizer(lambda weight: optimizers.Adam(0.05))
    model, _ = trained(optimizer, epochs=2), None
    assert len(optimizer.optimizers) == 4
    alone = trained(optimizers.Adam(0.05), epochs=2)
    for one, other in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
