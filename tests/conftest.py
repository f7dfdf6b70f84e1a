"""Every test starts with nothing configured and nothing in use."""

from __future__ import annotations

import os

import pytest

from memcfg import config
from memcfg.config._state import registry


def pytest_collection_modifyitems(items):
    if os.environ.get("MEMCFG_PARITY") == "1":
        return
    skip = pytest.mark.skip(reason="run it with: tox run -e parity")
    for item in items:
        if item.get_closest_marker("parity"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _fresh_configuration():
    yield
    try:
        config.reset()
    finally:
        registry.forget()  # a leak fails its own test, not those that follow


@pytest.fixture
def cpu():
    return config.list_physical_devices("CPU")[0]
