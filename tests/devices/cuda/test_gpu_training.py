"""Training on GPUs, on the driver's stand-in: what the contract does not say."""

from __future__ import annotations

import gc
import threading

import gpus
import numpy as np
import pytest
from interpreter import random_values
from networks import NETWORKS, chain

import memcfg as mc
import memcfg.workspaces  # before `logical_device`, which it imports, is replaced
from memcfg import plan as planning
from memcfg.devices import CpuDevice
from memcfg.errors import InfeasiblePlanError, NonFiniteLossError
from memcfg.runtime import Executor


@pytest.fixture
def device():
    return gpus.made(gpus.stand_in())


def test_models_leave_nothing_behind():
    device = gpus.made(gpus.stand_in())
    graph = chain(depth=1)
    values = random_values(graph)
    gc.collect()  # what earlier tests had
    before = device.context.memory_info()[0]
    for _ in range(10):
        executor = Executor(device, name="model")
        executor.load({"train": graph}, planning.share(), values)
        executor.run("train")
        executor.close()
    device.pool.trim()
    assert device.context.memory_info()[0] == before
    assert device.host_pool.stats().current_bytes == 0


# -- training ------------------------------------------------------------


def train(device, monkeypatch, policy="auto", steps=4, optimizer="adam"):
    """Losses, weights and predictions of a net with most kinds of layers."""
    monkeypatch.setattr(mc.config, "logical_device", lambda name=None: device)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 6, 6, 2)).astype(np.float32)
    y = rng.integers(0, 3, 32)
    mc.nn.set_random_seed(0)
    model = mc.nn.Sequential(
        [
            mc.nn.Conv2D(4, 3, padding="same", use_bias=False),
            mc.nn.BatchNormalization(),
            mc.nn.ReLU(),
            mc.nn.MaxPooling2D(2),
            mc.nn.Dropout(0.2),
            mc.nn.Flatten(),
            mc.nn.Dense(8, activation="tanh"),
            mc.nn.Dense(3),
        ]
    )
    model.compile(
        optimizer,
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=getattr(planning, policy)(),
    )
    history = model.fit(x, y, batch_size=8, epochs=steps // 4, verbose=0, seed=0)
    found = [
        np.float32(history.history["loss"]),
        *model.get_weights(),
        model.predict(x[:5], verbose=0),
    ]
    report = model.memory_report()
    model.close()
    assert device.pool.stats().current_bytes == 0
    return found, report


@pytest.mark.parametrize("policy", ["keep_all", "share", "sqrt_checkpoint", "auto"])
def test_every_policy_trains_as_on_the_cpu(device, monkeypatch, policy):
    expected, _ = train(CpuDevice("/device:CPU:0"), monkeypatch)
    found, report = train(device, monkeypatch, policy)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert report.predicted_peak_bytes == device.pool.stats().peak_bytes


def test_lossless_policies_give_the_same_bits(monkeypatch):
    results = [
        [
            array.tobytes()
            for array in train(gpus.made(gpus.stand_in()), monkeypatch, policy)[0]
        ]
        for policy in ("keep_all", "share", "sqrt_checkpoint")
    ]
    assert results[0] == results[1] == results[2]


def test_a_loss_that_is_not_finite_leaves_the_weights(device, monkeypatch):
    monkeypatch.setattr(mc.config, "logical_device", lambda name=None: device)
    x = np.ones((8, 3), np.float32)
    model = mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Dense(1)])
    model.compile(mc.nn.SGD(0.1), "mean_squared_error")
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
    before = [weight.tobytes() for weight in model.get_weights()]
    x[6] = np.nan
    with pytest.raises(NonFiniteLossError):
        model.fit(x[4:], x[4:, :1], batch_size=4, verbose=0)
    assert [weight.tobytes() for weight in model.get_weights()] == before
    model.close()


def test_a_limit_that_is_too_small_is_refused(monkeypatch):
    device = gpus.made(gpus.stand_in(), 2048)
    with pytest.raises(InfeasiblePlanError):
        train(device, monkeypatch)
    assert device.pool.stats().current_bytes == 0


def test_two_devices_of_a_gpu_train_by_turns():
    hardware = gpus.stand_in()
    graph = NETWORKS["noisy"]()
    values = random_values(graph)
    limit = 2**21  # bytes; one page
    executors = []
    for number in range(2):
        device = gpus.made(hardware, limit, name=f"/device:GPU:{number}")
        executor = Executor(device, name=f"model {number}")
        executor.load({"train": graph}, planning.share(), values)
        executors.append(executor)
    for step in range(3):
        losses = []
        for executor in executors:
            for i, tensor in enumerate(graph.tensors):
                if tensor.role == "input" and graph.producer[i] is None:
                    value = step if tensor.name == "step" else values[tensor.name]
                    executor.feed("train", tensor.name)[...] = value
            assert executor.run("train", guard=True)
            losses.append(executor.fetch("train", "loss").tobytes())
            executor.finish("train")
        assert losses[0] == losses[1]
    for executor in executors:
        assert 0 < executor.device.pool.stats().current_bytes <= limit
        executor.close()


def test_threads_train_on_two_devices_of_a_gpu_at_once():
    graph = NETWORKS["branches"]()
    values = random_values(graph)
    found = {}

    def work(number):
        device = gpus.made(gpus.stand_in(), name=f"/device:GPU:{number}")
        executor = Executor(device, name=f"model {number}")
        executor.load({"train": graph}, planning.share(), values)
        losses = []
        for _ in range(8):
            for i, tensor in enumerate(graph.tensors):
                if tensor.role == "input" and graph.producer[i] is None:
                    executor.feed("train", tensor.name)[...] = values[tensor.name]
            assert executor.run("train", guard=True)
            losses.append(executor.fetch("train", "loss").tobytes())
            executor.finish("train")
        executor.close()
        found[number] = losses

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] == found[2]
