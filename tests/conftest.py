"""Every test starts with nothing configured and nothing in use."""

from __future__ import annotations

import pytest

from memcfg import config
from memcfg.config._state import registry


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
