"""Simulated hardware for the rules of GPUs, and an environment that says nothing."""

from __future__ import annotations

import pytest

from memcfg import config

VARIABLES = (
    "MEMCFG_FORCE_GPU_ALLOW_GROWTH",
    "MEMCFG_MAX_BYTES",
    "MEMCFG_MAX_RSS_BYTES",
    "MEMCFG_MEMORY_LIMIT",
    "MEMCFG_SIMULATED_DEVICES",
)


@pytest.fixture(autouse=True)
def _silent_environment(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def gpus():
    """Return two simulated GPUs of 16 GiB."""
    return [
        config.experimental.add_simulated_device("GPU", memory="16GiB")
        for _ in range(2)
    ]


@pytest.fixture
def limits():
    """Return a function that lists the limits of the logical devices of a type."""

    def of(device_type="CPU"):
        return [
            config.logical_device(device.name).pool.limit
            for device in config.list_logical_devices(device_type)
        ]

    return of


@pytest.fixture
def growths():
    """Return a function that lists whether the logical devices of a type grow."""

    def of(device_type="GPU"):
        return [
            config.logical_device(device.name).pool.growth
            for device in config.list_logical_devices(device_type)
        ]

    return of
