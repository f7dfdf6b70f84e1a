"""Which device a model takes its memory from, also after `memcfg.config.reset`."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg.config import LogicalDeviceConfiguration
from memcfg.errors import InfeasiblePlanError

nn = mc.nn


def configure(cpu, *limits):
    mc.config.reset()
    mc.config.set_logical_device_configuration(
        cpu, [LogicalDeviceConfiguration(limit) for limit in limits]
    )


def in_use(device="CPU:0"):
    return mc.config.get_memory_info(device)["current"]


@pytest.mark.parametrize("before", ["compile", "plan", "fit and close"])
def test_a_model_obeys_the_device_that_is_configured_after_reset(
    cpu, dense, rows, before
):
    configure(cpu, None)
    model = dense()
    if before == "plan":
        model.plan(8)
    if before == "fit and close":
        model.fit(*rows, verbose=0)
        model.close()
    configure(cpu, "1KiB")
    weights = model.get_weights()
    with pytest.raises(InfeasiblePlanError) as caught:
        model.plan(30)
    assert caught.value.limit_bytes == 1024
    with pytest.raises(InfeasiblePlanError):
        model.fit(*rows, verbose=0)
    assert mc.config.get_memory_info("CPU:0") == {"current": 0, "peak": 0}
    for first, second in zip(weights, model.get_weights(), strict=True):
        assert np.array_equal(first, second)
    mc.config.set_memory_limit("CPU:0", caught.value.smallest_limit_bytes)
    model.fit(*rows, verbose=0)
    assert in_use() == caught.value.smallest_limit_bytes
    assert model.memory_report().limit_bytes == in_use()


def test_a_model_that_was_not_compiled_obeys_it_too(cpu, rows):
    model = nn.Sequential([nn.Input((6,)), nn.Dense(400)])
    model.predict(rows[0], verbose=0)
    model.close()
    configure(cpu, "1KiB")
    with pytest.raises(InfeasiblePlanError):
        model.predict(rows[0], verbose=0)


def test_a_device_that_is_gone_is_named(cpu, dense, rows, loss):
    configure(cpu, None, None)
    with mc.device("CPU:1"):
        model = dense()
    configure(cpu, None)
    for call in (
        lambda: model.fit(*rows, verbose=0),
        lambda: model.predict(rows[0], verbose=0),
        lambda: model.plan(3),
    ):
        with pytest.raises(RuntimeError, match=r"/device:CPU:1.*compile it again"):
            call()
    model.compile("sgd", loss)
    model.fit(*rows, verbose=0)
    assert in_use() > 0


def test_the_device_is_that_of_compile(cpu, dense, rows, loss):
    configure(cpu, None, None)
    with mc.device("CPU:1"):
        built = nn.Sequential([nn.Input((6,)), nn.Dense(4)])
    built.compile("sgd", loss)
    with mc.device("CPU:1"):
        built.fit(*rows, verbose=0)
    assert (in_use("CPU:0") > 0, in_use("CPU:1")) == (True, 0)
    with mc.device("CPU:1"):
        built.compile("sgd", loss)
    assert (in_use("CPU:0"), in_use("CPU:1")) == (0, 0)
    built.fit(*rows, verbose=0)
    assert (in_use("CPU:0"), in_use("CPU:1") > 0) == (0, True)


def test_without_compile_it_is_that_of_the_block(cpu, rows):
    configure(cpu, None, None)
    model = nn.Sequential([nn.Input((6,)), nn.Dense(4)])
    with mc.device("CPU:1"):
        model.predict(rows[0], verbose=0)
    assert (in_use("CPU:0"), in_use("CPU:1") > 0) == (0, True)
    model.predict(rows[0], verbose=0)  # its memory stays where it is
    assert in_use("CPU:0") == 0
