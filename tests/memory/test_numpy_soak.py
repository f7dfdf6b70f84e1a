"""Random work on arrays in pools, by threads that hand arrays to one another."""

from __future__ import annotations

from array_soak import soak_alone


def test_no_array_changes_under_its_owner_and_nothing_is_left(tenths):
    print(soak_alone(10_000 * tenths, derandomize=tenths == 1))
