"""The bounds above limits, against plain arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg.config import LogicalDeviceConfiguration as Configuration
from memcfg.config import PhysicalDevice
from memcfg.config._bounds import Bounds, Share
from memcfg.config._settings import Demands, Settings
from memcfg.config._specify import specify
from memcfg.devices import SimulatedHardware

SIZES = st.integers(1, 40)
MAYBE = st.none() | st.integers(1, 100)
SHARES = st.lists(st.builds(Share, SIZES, st.booleans()), max_size=4)


def allowed(bounds, shares):
    """Say by itself whether limits go with bounds."""
    limits = [share.limit_bytes for share in shares]
    if bounds.memory_bytes is not None:
        taken = sum(share.limit_bytes for share in shares if not share.growth)
        if max(limits, default=0) > bounds.memory_bytes or taken > bounds.memory_bytes:
            return False
    return bounds.ceiling_bytes is None or sum(limits) <= bounds.ceiling_bytes


@given(st.builds(Bounds, st.just("x"), MAYBE, MAYBE), SHARES)
def test_limits_are_refused_exactly_when_they_exceed_a_bound(bounds, shares):
    if allowed(bounds, shares):
        bounds.check(shares)
    else:
        with pytest.raises(ValueError, match="limit"):
            bounds.check(shares)


@given(st.builds(Bounds, st.just("x"), MAYBE, MAYBE), SHARES, st.booleans())
def test_the_most_is_the_largest_limit_that_is_allowed(bounds, others, growth):
    most = bounds.most(growth, others)
    if not allowed(bounds, others):
        return
    if most is None:
        assert (bounds.memory_bytes, bounds.ceiling_bytes) == (None, None)
    else:
        assert allowed(bounds, [Share(most, growth), *others])
        assert not allowed(bounds, [Share(most + 1, growth), *others])


def test_under_a_ceiling_there_is_no_device_without_a_limit():
    bounds = Bounds("x", None, 10)
    with pytest.raises(ValueError, match="give each logical device a memory limit"):
        bounds.check([Share(None, True), Share(1, True)])
    Bounds("x", None, None).check([Share(None, True)])


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3))
def test_devices_stand_by_ordinal_then_hardware_then_configuration(ordinals):
    machine = {
        PhysicalDevice(f"/physical_device:GPU:{i}", "GPU"): SimulatedHardware(
            "GPU", i, 2**40
        )
        for i in range(len(ordinals))
    }
    limits = iter(range(1, 100))
    settings = Settings()
    wanted = []
    for i, (device, values) in enumerate(zip(machine, ordinals, strict=True)):
        configured = [Configuration(next(limits), None, value) for value in values]
        settings.logical[device] = tuple(configured)
        wanted += [
            (value, i, j, item.memory_limit)
            for j, (value, item) in enumerate(zip(values, configured, strict=True))
        ]
    found = specify(machine, settings, Demands())
    assert list(found) == [f"/device:GPU:{i}" for i in range(len(wanted))]
    assert [entry.share.limit_bytes >> 20 for entry in found.values()] == [
        limit for *_, limit in sorted(wanted)
    ]
