"""Optimizers of users': `update_step` and `build`, with Keras's names."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops


class OwnAdam(nn.optimizers.Optimizer):
    """As Keras writes it."""

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.999, **common):
        super().__init__(learning_rate=learning_rate, **common)
        self.beta_1, self.beta_2 = beta_1, beta_2

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        names = ["momentum", "velocity"]
        self.momentums, self.velocities = self.add_optimizer_variables(variables, names)

    def update_step(self, gradient, variable, learning_rate):
        step = ops.cast(self.iterations + 1, variable.dtype)
        place = self._get_variable_index(variable)
        m, v = self.momentums[place], self.velocities[place]
        by = 1 - ops.power(self.beta_2, step)
        rate = learning_rate * ops.sqrt(by) / (1 - ops.power(self.beta_1, step))
        self.assign_add(m, (gradient - m) * (1 - self.beta_1))
        self.assign_add(v, (ops.square(gradient) - v) * (1 - self.beta_2))
        self.assign_sub(variable, m * rate / (ops.sqrt(v) + 1e-7))


X = np.random.default_rng(0).standard_normal((64, 5)).astype(np.float32)
Y = X[:, :2] ** 2


def trained(optimizer, **options):
    nn.set_random_seed(0)
    layers = [nn.Input((5,)), nn.Dense(4, "tanh"), nn.Dense(2, name="last")]
    model = nn.Sequential(layers)
    model.compile(optimizer, "mse", **options)
    model.fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return model


@pytest.mark.parametrize(
    "common",
    [{}, {"weight_decay": 0.01, "clipnorm": 0.1}, {"use_ema": True}],
)
def test_it_trains_as_the_one_of_its_formula(common):
    found, wanted = (
        trained(kind(0.01, **common)).get_weights() for kind in (OwnAdam, nn.Adam)
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_same_bits_and_the_predicted_peak():
    wanted = trained(OwnAdam(0.01)).get_weights()
    for policy in ("keep_all", "sqrt_checkpoint", "look_ahead"):
        model = trained(OwnAdam(0.01), memory=policy)
        for one, other in zip(model.get_weights(), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes


def test_its_variables_are_told_apart():
    class ByVariable(OwnAdam):
        def update_step(self, gradient, variable, learning_rate):
            m, v = self.momentums[0], self.velocities[0]
            assert m != v
            assert v not in [m, variable]
            moved = {variable: 0.1, m: 2.0, v: 3.0}
            assert len(moved) == 3
            for each, by in moved.items():
                self.assign_add(each, ops.ones_like(gradient) * by)

    nn.set_random_seed(0)
    dense = nn.Dense(2)
    model = nn.Sequential([nn.Input((5,)), dense])
    before = dense.kernel.numpy()
    optimizer = ByVariable()
    model.compile(optimizer, "mse")
    model.fit(X, Y, batch_size=32, verbose=0)
    np.testing.assert_allclose(dense.kernel.numpy(), before + 0.2, rtol=1e-5)
    state = optimizer.get_state()
    found = [value.max() for name, value in state.items() if name.endswith("velocity")]
    assert found == [6, 6]


def test_its_state_is_saved(tmp_path):
    model = trained(OwnAdam(0.01))
    state = model.optimizer.get_state()
    assert {"iteration", "last/bias/momentum", "last/bias/velocity"} < state.keys()
    model.save(tmp_path / "m.memcfg")
    named = {"OwnAdam": OwnAdam}
    loaded = nn.models.load_model(tmp_path / "m.memcfg", custom_objects=named)
    copied = copy.deepcopy(model)
    for each in (model, loaded, copied):
        each.fit(X, Y, batch_size=16, shuffle=False, verbose=0)
    for each in (loaded, copied):
        for one, other in zip(model.get_weights(), each.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_it_updates_in_a_function():
    results = []
    for optimizer in (OwnAdam(0.1), nn.Adam(0.1)):
        nn.set_random_seed(0)
        dense = nn.Dense(2)
        dense.build((None, 5))

        @mc.function
        def step(x, y, dense=dense, optimizer=optimizer):
            with mc.GradientTape() as tape:
                loss = ops.mean(ops.square(dense(x) - y))
            weights = dense.trainable_weights
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        results.append([float(step(X, Y)) for _ in range(4)])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_what_it_cannot_do_is_told():
    class Nothing(OwnAdam):
        def update_step(self, gradient, variable, learning_rate):
            del gradient, learning_rate
            self.assign(self.momentums[0], variable * 2)

    class Random(OwnAdam):
        def build(self, variables):
            self.add_variable_from_reference(variables[0], "m", "glorot_uniform")

    with pytest.raises(ValueError, match="assigns no value to the weight"):
        trained(Nothing())
    with pytest.raises(ValueError, match="starts with 'zeros' or 'ones'"):
        trained(Random())
    with pytest.raises(ValueError, match="leave out gradient_accumulation_steps"):
        trained(OwnAdam(gradient_accumulation_steps=2))
    with pytest.raises(RuntimeError, match=r"made in its build\(variables\)"):
        OwnAdam().add_variable_from_reference(nn.Dense(1), "m")


def test_a_batch_that_does_not_fit_is_refused():
    model = trained(OwnAdam(0.01))
    peak, floor = model.plan(64).peak_bytes, model.plan(1).peak_bytes
    model.close()
    mc.config.set_memory_limit("CPU:0", (peak + floor) // 2)
    try:
        with pytest.raises(
            mc.errors.InfeasiblePlanError, match=r"update_step updates in every part"
        ):
            model.fit(X, Y, batch_size=64, verbose=0)
    finally:
        mc.config.set_memory_limit("CPU:0", None)
