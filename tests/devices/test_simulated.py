"""Simulated hardware and its devices, without the configuration above them."""

from __future__ import annotations

import pytest

from memcfg.devices import CpuDevice, CpuHardware, SimulatedDevice, SimulatedHardware
from memcfg.errors import ResourceExhaustedError

GIB = 2**30


def make(hardware, limit=GIB, growth=True, priority=0):
    return hardware.make(
        "/device:GPU:0", limit_bytes=limit, growth=growth, priority=priority
    )


def test_hardware_is_described():
    gpu = SimulatedHardware("GPU", 3, 2 * GIB)
    assert gpu.name == "/physical_device:GPU:3"
    assert gpu.details() == {
        "device_name": "simulated GPU",
        "memory": 2 * GIB,
        "simulated": True,
    }
    assert (gpu.divisible, gpu.bounded, list(gpu.priorities)) == (
        *(True, True, [-5, -4, -3, -2, -1, 0]),
    )
    tpu = SimulatedHardware("TPU", 0, GIB)
    assert (tpu.divisible, tpu.priorities) == (False, None)


def test_a_device_has_a_pool_under_its_limit():
    device = make(SimulatedHardware("GPU", 0, 4 * GIB), priority=-2)
    assert isinstance(device, SimulatedDevice)
    assert (device.name, device.space, device.priority) == (
        "/device:GPU:0",
        "addresses",
        -2,
    )
    assert repr(device) == f"SimulatedDevice('/device:GPU:0', limit_bytes={GIB})"
    with device.pool.allocate(GIB // 2, tag="weights"):
        with pytest.raises(ResourceExhaustedError) as caught:
            device.pool.allocate(GIB)
        assert caught.value.device == "/device:GPU:0"
        assert caught.value.owners == {"weights": GIB // 2}
    device.pool.check()


def test_devices_share_the_addresses_of_their_hardware():
    hardware = SimulatedHardware("GPU", 0, 4 * GIB)
    first, second = make(hardware, 3 * GIB), make(hardware, 3 * GIB)
    assert first.pool.upstream is second.pool.upstream
    with first.pool.allocate(3 * GIB) as one:
        with pytest.raises(ResourceExhaustedError):
            second.pool.allocate(2 * GIB)
        with second.pool.allocate(GIB // 2) as other:
            apart = (
                one.address + one.nbytes <= other.address
                or other.address + other.nbytes <= one.address
            )
            assert apart


def test_without_growth_all_is_taken_at_once():
    hardware = SimulatedHardware("GPU", 0, 4 * GIB)
    first = make(hardware, 3 * GIB, growth=False)
    assert first.pool.stats().reserved_bytes == 3 * GIB
    with pytest.raises(ResourceExhaustedError):
        make(hardware, 2 * GIB, growth=False)
    del first
    make(hardware, 4 * GIB, growth=False)


def test_the_kernels_are_for_planning_only():
    device = make(SimulatedHardware("GPU", 0, GIB))
    assert device.kernels.name in ("onednn", "reference")
    assert device.describe_kernels() == "none: the device is simulated"


def test_a_cpu_is_not_simulated():
    hardware = CpuHardware()
    device = hardware.make("/device:CPU:0", limit_bytes=64, growth=True, priority=0)
    assert isinstance(device, CpuDevice)
    assert (hardware.space, device.space) == ("host", "host")
    assert device.pool.limit == 64
