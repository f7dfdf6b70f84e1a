"""Hardware of addresses only: in every listing, planned on, never run on."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration
from memcfg.errors import InfeasiblePlanError, ResourceExhaustedError

add = config.experimental.add_simulated_device


def compiled():
    model = mc.nn.Sequential([mc.nn.Input((6,)), mc.nn.Dense(7), mc.nn.Dense(4)])
    model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_they_stand_in_every_listing(cpu):
    gpu = add(memory="16GiB")
    assert config.list_physical_devices() == [cpu, gpu]
    assert config.get_visible_devices("GPU") == [gpu]
    assert config.get_device_details(gpu)["simulated"] is True
    assert [device.device_type for device in config.list_logical_devices()] == [
        *("CPU", "GPU")
    ]


def test_after_first_use_it_is_too_late():
    config.list_logical_devices()
    with pytest.raises(RuntimeError, match="cannot be modified"):
        add("GPU", memory="16GiB")
    with pytest.raises(ValueError, match="memory"):
        add("GPU", memory="lots")


@pytest.mark.parametrize(
    ("kind", "memory", "error"),
    [
        *(("CPU", "1GiB", ValueError), ("gpu", "1GiB", ValueError)),
        *(("", "1GiB", ValueError), ("GPU:0", "1GiB", ValueError)),
        *(
            ("GPU", "0B", ValueError),
            ("GPU", -1, ValueError),
            ("GPU", "50%", ValueError),
            ("GPU", 2**62 + 1, ValueError),
        ),
        *((None, "1GiB", TypeError), ("GPU", None, TypeError), ("GPU", 1.5, TypeError)),
    ],
)
def test_what_is_no_device_is_not_added(kind, memory, error, cpu):
    with pytest.raises(error):
        add(kind, memory=memory)
    assert config.list_physical_devices() == [cpu]


def test_their_pools_are_larger_than_the_machine(cpu):
    memory = 64 * config.get_device_details(cpu)["memory"]
    add("GPU", memory=memory)
    pool = config.logical_device("GPU:0").pool
    with pool.allocate(memory // 2, tag="half"):
        assert config.get_memory_info("GPU:0")["current"] >= memory // 2
        with pytest.raises(ResourceExhaustedError, match="half") as caught:
            pool.allocate(memory)
        assert caught.value.device == "/device:GPU:0"
    assert config.get_memory_usage("GPU:0") == 0


def test_their_memory_cannot_be_touched():
    add("GPU", memory="1GiB")
    with config.logical_device("GPU:0").pool.allocate(64) as block:  # noqa: SIM117
        with pytest.raises(BufferError):
            memoryview(block)


def test_growing_devices_share_the_hardware():
    gpu = add("GPU", memory="1GiB")
    config.set_logical_device_configuration(
        gpu, [Configuration("75%", growth=True)] * 2
    )
    first, second = (config.logical_device(f"GPU:{i}").pool for i in (0, 1))
    with first.allocate(3 * 2**28):
        with pytest.raises(ResourceExhaustedError):
            second.allocate(2**29)
        second.allocate(2**27).free()


def test_a_model_is_planned_within_their_limit():
    gpu = add("GPU", memory="16GiB")
    config.set_logical_device_configuration(gpu, [Configuration("16KiB")])
    with mc.device("GPU:0"):
        model = compiled()
    assert model.plan(8).peak_bytes <= 2**14
    with pytest.raises(InfeasiblePlanError) as caught:
        model.plan(512)
    assert caught.value.device == "/device:GPU:0"
    assert caught.value.limit_bytes == 2**14
    assert config.get_memory_usage("GPU:0") == 0


def test_running_says_why_it_cannot():
    add("GPU", memory="16GiB")
    with mc.device("GPU:0"):
        model = compiled()
    x = np.zeros((30, 6), np.float32)
    y = np.zeros(30, np.int32)
    before = model.get_weights()
    for run in (
        lambda: model.fit(x, y, verbose=0),
        lambda: model.predict(x, verbose=0),
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.train_on_batch(x, y),
    ):
        with pytest.raises(RuntimeError, match=r"GPU:0 is simulated.*planned.*CPU"):
            run()
    assert config.get_memory_info("GPU:0") == {"current": 0, "peak": 0}
    for one, other in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(one, other)
    model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0)  # compiled outside the block: on the CPU
    assert config.get_memory_usage("CPU:0") > 0
