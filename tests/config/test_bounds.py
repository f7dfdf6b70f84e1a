"""The bounds above limits, against plain arithmetic."""

from __future__ import annotations

from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memcfg import config
from memcfg.config import LogicalDeviceConfiguration as Configuration

UNIT = 2**12  # bytes of all sizes below


class Spec(NamedTuple):
    limit: int
    growth: bool


class Bounds(NamedTuple):
    memory: int | None  # None: the CPU's, which is the machine's
    ceiling: int | None

    @property
    def kind(self):
        return "CPU" if self.memory is None else "GPU"


SIZES = st.integers(1, 40)
MAYBE = st.none() | st.integers(1, 100)
SPECS = st.lists(st.builds(Spec, SIZES, st.booleans()), min_size=1, max_size=4)
BOUNDS = st.builds(Bounds, MAYBE, MAYBE)


def allowed(bounds, specs):
    """Say by itself whether limits go with bounds."""
    limits = [spec.limit for spec in specs]
    if bounds.memory is not None:
        used = sum(spec.limit for spec in specs if not spec.growth)
        if max(limits) > bounds.memory or used > bounds.memory:
            return False
    return bounds.ceiling is None or sum(limits) <= bounds.ceiling


@contextmanager
def hardware(bounds, *configurations):
    """Configure one device with bounds."""
    config.reset()
    with pytest.MonkeyPatch.context() as patch:
        if bounds.ceiling is not None:
            ceiling = f"{bounds.kind}:0={bounds.ceiling * UNIT}B"
            patch.setenv("MEMCFG_MEMORY_LIMIT", ceiling)
        if bounds.memory is not None:
            memory = f"{bounds.memory * UNIT}B"
            config.experimental.add_simulated_device("GPU", memory=memory)
        config.set_logical_device_configuration(bounds.kind, configurations)
        yield
    config.reset()


def configured(specs):
    return [Configuration(f"{limit * UNIT}B", growth=growth) for limit, growth in specs]


@given(BOUNDS, SPECS)
def test_limits_are_refused_exactly_when_they_exceed_a_bound(bounds, specs):
    with hardware(bounds, *configured(specs)):
        if allowed(bounds, specs):
            assert len(config.list_logical_devices(bounds.kind)) == len(specs)
        else:
            with pytest.raises(ValueError, match="limit"):
                config.list_logical_devices()


@given(BOUNDS, SPECS)
def test_without_a_limit_there_is_the_largest_that_is_allowed(bounds, specs):
    assume(allowed(bounds, specs))
    with hardware(bounds, *configured(specs)):
        device = f"{bounds.kind}:0"
        config.set_memory_limit(device, None)
        limit = config.get_memory_limit(device)
        if limit is None:
            assert bounds == (None, None)
            return
        first, *others = specs
        assert limit % UNIT == 0
        assert allowed(bounds, [Spec(limit // UNIT, first.growth), *others])
        assert not allowed(bounds, [Spec(limit // UNIT + 1, first.growth), *others])
        with pytest.raises(ValueError, match="limit"):
            config.set_memory_limit(device, f"{limit + 1}B")


def test_under_a_ceiling_there_is_no_device_without_a_limit():
    unlimited = [Configuration(None), *configured([Spec(1, True)])]
    with (
        hardware(Bounds(None, 10), *unlimited),
        pytest.raises(ValueError, match="give each logical device a memory limit"),
    ):
        config.list_logical_devices()
    with hardware(Bounds(None, None), *unlimited):
        assert len(config.list_logical_devices()) == 2


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3))
def test_devices_stand_by_ordinal_then_hardware_then_configuration(ordinals):
    config.reset()
    limits = iter(range(1, 100))
    wanted = []
    for _ in ordinals:
        config.experimental.add_simulated_device("GPU", memory="1TiB")
    for i, values in enumerate(ordinals):
        items = [Configuration(next(limits), None, value) for value in values]
        config.set_logical_device_configuration(f"GPU:{i}", items)
        wanted += [
            (value, i, j, item.memory_limit)
            for j, (value, item) in enumerate(zip(values, items, strict=True))
        ]
    found = config.list_logical_devices("GPU")
    assert [each.name for each in found] == [
        f"/device:GPU:{i}" for i in range(len(wanted))
    ]
    assert [config.get_memory_limit(each) >> 20 for each in found] == [
        limit for *_, limit in sorted(wanted)
    ]
