from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from memcfg.config import LogicalDeviceConfiguration


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [
        (None, None),
        (48, 48 * 2**20),
        (0.5, 2**19),
        (np.int64(3), 3 * 2**20),
        (np.int8(100), 100 * 2**20),
        (Fraction(1, 2), 2**19),
        (np.float32(1.5), 3 * 2**19),
        ("4100031B", 4100031),
        ("4MiB", 4 * 2**20),
    ],
)
def test_a_number_is_mebibytes_and_a_string_is_exact(limit, nbytes):
    found = LogicalDeviceConfiguration(memory_limit=limit).limit_bytes
    assert found == nbytes
    assert type(found) in (int, type(None))


@pytest.mark.parametrize(
    "limit",
    [0, -1, -0.5, 0.1, float("nan"), float("inf"), "0B", "many", "4", 2**60, 10**400],
)
def test_a_limit_that_is_no_positive_size_is_a_value_error(limit):
    with pytest.raises(ValueError):  # noqa: PT011 - the wording differs by cause
        LogicalDeviceConfiguration(memory_limit=limit)


@pytest.mark.parametrize("limit", [True, False, [48], 1 + 2j, object(), b"4MiB"])
def test_a_limit_that_is_no_number_is_a_type_error(limit):
    with pytest.raises(TypeError, match="4100031B"):
        LogicalDeviceConfiguration(memory_limit=limit)


def test_configurations_are_values():
    one, same = LogicalDeviceConfiguration(4), LogicalDeviceConfiguration(4)
    assert one == same
    assert hash(one) == hash(same)
    assert one != LogicalDeviceConfiguration(5)
    with pytest.raises(AttributeError):
        one.memory_limit = 5
